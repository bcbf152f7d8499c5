//! What an engine allocates, planned from the structs that allocate it before anything is.

use overdraft_models::{Decoder, Draft, Hyper};
use overdraft_plan::{Backend, Footprint, PAGE, Retention, StateSpec};

use crate::engine::{Engine, EngineConfig, SLACK};
use crate::error::{EngineError, Result};
use crate::ledger::{Ledger, human};
use crate::memory::{CacheRoom, PagePool};
use crate::plans::{MAX_LOGIT_ROWS, Plans};

impl Engine {
    /// The longest context, up to `config.context`, with which everything stays within `limit` bytes; `None` when
    /// not even one page does.
    pub fn context_that_fits(
        decoder: &Decoder,
        draft: Option<&Draft>,
        backend: &dyn Backend,
        config: &EngineConfig,
        limit: usize,
    ) -> Option<usize> {
        let held = footprint(decoder, draft, backend, config);
        let fits = |context: usize| {
            let config = EngineConfig { context, ..*config };
            plan_memory(held, &plan_state(&decoder.hyper, draft, &config), &config).total() <= limit
        };
        if fits(config.context) {
            return Some(config.context);
        }
        // By halving: memory grows with the context in steps of pages.
        let (mut good, mut bad) = (0, config.context / PAGE + 1);
        while bad - good > 1 {
            let pages = (good + bad) / 2;
            if fits(pages * PAGE) { good = pages } else { bad = pages }
        }
        (good > 0).then_some(good * PAGE)
    }
}

pub(crate) fn check_config(config: &EngineConfig) -> Result<()> {
    let rules = [
        ("--ctx", config.context, 2..=1 << 24, "must be between 2 and 16777216"),
        ("max_seqs", config.max_seqs, 1..=MAX_LOGIT_ROWS, "must be between 1 and 64"),
        ("step_rows", config.step_rows, PAGE..=2048, "must be between 64 and 2048"),
    ];
    for (name, value, range, allowed) in rules {
        if !range.contains(&value) {
            return Err(EngineError::Parameter { name, value: value.to_string(), allowed });
        }
    }
    Ok(())
}

/// What an engine for this model allocates for sequences: pages for every one's full context, or as many as it may have,
/// and its slots; then those of the prefix cache.
pub fn plan_state(hyper: &Hyper, draft: Option<&Draft>, config: &EngineConfig) -> StateSpec {
    let mut spec = hyper.state_spec(config.kv);
    if let Some(draft) = draft {
        draft.extend_state(&mut spec, hyper.hidden);
    }
    let room = CacheRoom::within(config.cache_bytes, &spec);
    spec.slots = config.max_seqs + room.snapshots;
    let needed = |r: &Retention| PagePool::needed(*r, config.context + SLACK, config.step_rows);
    spec.pages = spec.classes.iter().map(|r| config.max_seqs * needed(r)).collect();
    if let Some(bytes) = config.kv_bytes {
        limit_pages(&mut spec, bytes, needed(&Retention::Full));
    }
    spec.pages.iter_mut().for_each(|n| *n += room.blocks);
    spec
}

/// Cuts the pages of full classes to what `bytes` hold beside the windows, which every sequence needs whole; never below
/// the `least` that one sequence needs.
fn limit_pages(spec: &mut StateSpec, bytes: usize, least: usize) {
    let sum = |spec: &StateSpec, of_full: bool, n: fn(&StateSpec, usize) -> usize| -> usize {
        let classes = (0..spec.classes.len()).filter(|c| (spec.classes[*c] == Retention::Full) == of_full);
        classes.map(|class| n(spec, class) * spec.page_bytes(class)).sum()
    };
    let windows = sum(spec, false, |spec, class| spec.pages[class]);
    let page = sum(spec, true, |_, _| 1).max(1);
    let fit = (bytes.saturating_sub(windows) / page).max(least);
    for class in 0..spec.classes.len() {
        if spec.classes[class] == Retention::Full {
            spec.pages[class] = spec.pages[class].min(fit);
        }
    }
}

/// Refuses a bound on context pages within which not even one sequence fits.
pub(crate) fn check_kv_bytes(spec: &StateSpec, config: &EngineConfig, room: CacheRoom) -> Result<()> {
    let Some(bytes) = config.kv_bytes else { return Ok(()) };
    let pages = |class: usize| (spec.pages[class] - room.blocks) * spec.page_bytes(class);
    let needed: usize = (0..spec.classes.len()).map(pages).sum();
    if needed <= bytes {
        return Ok(());
    }
    let (needed, bytes, context) = (human(needed), human(bytes), config.context);
    Err(EngineError::Memory(format!(
        "--kv-memory {bytes} is less than the {needed} that one context of {context} and the windows of {} sequences take; raise it, or lower --ctx or --max-streams",
        config.max_seqs
    )))
}

pub(crate) fn cache_room(hyper: &Hyper, draft: Option<&Draft>, config: &EngineConfig) -> CacheRoom {
    CacheRoom::within(config.cache_bytes, &plan_state(hyper, draft, config))
}

/// What the backend holds beside the state; the same for any context.
pub(crate) fn footprint(
    decoder: &Decoder,
    draft: Option<&Draft>,
    backend: &dyn Backend,
    config: &EngineConfig,
) -> Footprint {
    let plans = Plans::new(backend, config.exact, config.max_seqs);
    backend.footprint(&decoder.weights, &plans.largest(config, decoder, draft, backend))
}

pub(crate) fn plan_memory(held: Footprint, spec: &StateSpec, config: &EngineConfig) -> Ledger {
    let mut ledger = Ledger::default();
    let (s, rows) = spec.slot_bytes();
    ledger.add("weights", held.weights);
    let room = CacheRoom::within(config.cache_bytes, spec);
    let block: usize = (0..spec.classes.len()).map(|c| spec.page_bytes(c)).sum();
    let pages: usize = (0..spec.classes.len()).map(|c| spec.pages[c] * spec.page_bytes(c)).sum();
    ledger.add("context pages", pages - room.blocks * block);
    ledger.add("recurrent state", config.max_seqs * s);
    ledger.add("recurrent window", config.max_seqs * rows);
    if spec.tap_width > 0 {
        ledger.add("waiting taps", config.max_seqs * spec.tap_bytes());
    }
    if room != CacheRoom::default() {
        ledger.add("prefix cache", room.blocks * block + room.snapshots * (s + rows + spec.tap_bytes()));
    }
    ledger.add("plan scratch", held.scratch);
    if held.plans > 0 {
        ledger.add("kernels and plans", held.plans);
    }
    ledger
}

pub(crate) fn does_not_fit(
    decoder: &Decoder,
    draft: Option<&Draft>,
    backend: &dyn Backend,
    config: &EngineConfig,
    ledger: &Ledger,
    limit: usize,
) -> String {
    let lines: Vec<String> = ledger.lines.iter().map(|(what, n)| format!("{what} {}", human(*n))).collect();
    let (needed, limit_text) = (human(ledger.total()), human(limit));
    let text = format!("{needed} of memory are needed ({}) and {limit_text} are available", lines.join(", "));
    let remedy = match Engine::context_that_fits(decoder, draft, backend, config, limit) {
        Some(fits) => format!("--ctx {fits} would fit"),
        None => "no context would fit; use a smaller or more strongly quantised model".into(),
    };
    format!("{text}; {remedy}")
}
