//! From a path to an engine: opened and checked first, loaded once it is known to be worth it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use overdraft_engine::spec::policy::Mode;
use overdraft_engine::{Engine, EngineConfig, human, plan_state};
use overdraft_formats::TensorInfo;
use overdraft_formats::tokenizer::Tokenizer;
use overdraft_models::{Checkpoint, Decoder, Draft, Hyper};
use overdraft_plan::Backend;
use serde_json::{Value, json};

use crate::config::Machine;
use crate::cost_cache::CostCache;
use crate::demo;
use crate::failure::{Failure, Result};
use crate::inspect::{count_parameters, short_count};
use crate::progress::Progress;
use crate::screen::Screen;

/// What may go by before the first prompt for making graphs on a device, which its first texts would wait for otherwise: about so much
/// time. The demo pair on an H200 uses all of it; not every likely kind of round is made by then.
const WARM_UP: Duration = Duration::from_millis(300);

/// A target that was opened and not yet loaded.
pub(crate) struct Model {
    pub(crate) checkpoint: Checkpoint,
    pub(crate) hyper: Hyper,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) is_demo: bool,
}

impl Model {
    /// The model at `path`, or the one inside the binary.
    pub(crate) fn open(path: Option<&Path>) -> Result<Self> {
        let checkpoint = match path {
            Some(path) => Checkpoint::open(path)?,
            None => demo::target()?,
        };
        let hyper = checkpoint.hyper()?;
        let tokenizer = Arc::new(checkpoint.tokenizer()?);
        Ok(Self { checkpoint, hyper, tokenizer, is_demo: path.is_none() })
    }

    /// Says that the demo model is one, to a person.
    pub(crate) fn greet(&self, screen: &Screen) {
        if self.is_demo {
            let size = short_count(count_parameters(&self.checkpoint).total);
            screen.greet(&format!("demo model, {size} parameters: {}", demo::CAVEAT));
        }
        for warning in self.tokenizer.warnings() {
            screen.note(warning);
        }
    }

    /// Loads the weights and plans all memory. Says so when the context had to shrink.
    pub(crate) fn start(
        &self,
        machine: &Machine,
        draft: Option<&Checkpoint>,
        screen: &Screen,
    ) -> Result<Engine> {
        // Asked before loading: what loading copies is counted as weights already.
        let (backend, memory) = machine.device.open(machine.threads, Some(screen))?;
        self.check_weights(memory)?;
        let mut progress = Progress::new("loading", screen);
        let mut decoder = Decoder::load(&self.checkpoint, |done, of| progress.at(done, of))?;
        let mut draft = draft.map(|d| Draft::load(d, &mut decoder)).transpose()?;
        if let (Some(draft), Some(window)) = (&mut draft, machine.draft_window) {
            draft.limit_window(window);
        }
        progress.clear();
        let mut config = EngineConfig {
            context: machine.context,
            kv: machine.kv,
            memory,
            draft_mode: machine.draft_mode,
            budget: machine.budget,
            // Looking in the text itself costs nothing; who insists on a chain or a tree wants the draft's alone.
            lookup: machine.draft_mode == Mode::Auto && !machine.draft_only,
            exact: machine.exact,
            witness: machine.witness,
            max_seqs: machine.streams,
            cache_bytes: machine.cache_memory,
            kv_bytes: machine.kv_memory,
            token_gap: machine.token_gap,
            ..EngineConfig::default()
        };
        self.fit_streams(&decoder, draft.as_ref(), &*backend, &mut config, screen);
        if !machine.context_is_asked
            && let Some(limit) = memory
            && let Some(fits) = Engine::context_that_fits(&decoder, draft.as_ref(), &*backend, &config, limit)
            && fits < config.context
        {
            let wanted = config.context;
            screen.note(&format!("context lowered from {wanted} to {fits} tokens: memory holds no more"));
            config.context = fits;
        }
        config.step_rows = prompt_rows(&decoder, draft.as_ref(), &*backend, &config);
        if config.context > self.hyper.context {
            screen.note(&format!(
                "--ctx {} is longer than the {} tokens this model was trained for; expect worse text beyond them",
                config.context, self.hyper.context
            ));
        }
        let mut engine = Engine::new(decoder, draft, self.tokenizer.clone(), backend, config)?;
        engine.warm_up(WARM_UP)?;
        Ok(engine)
    }

    /// Where memory is short, streams share what there is and wait for each other, before the context gives way: two
    /// long texts are of more use than sixteen cut ones.
    fn fit_streams(
        &self,
        decoder: &Decoder,
        draft: Option<&Draft>,
        backend: &dyn Backend,
        config: &mut EngineConfig,
        screen: &Screen,
    ) {
        let Some(limit) = config.memory else { return };
        let fits = |config: &EngineConfig| {
            Engine::context_that_fits(decoder, draft, backend, config, limit) == Some(config.context)
        };
        if config.max_seqs == 1 || fits(config) {
            return;
        }
        if config.cache_bytes > 0 {
            config.cache_bytes = 0;
            screen.note("no memory is left for a prefix cache: every prompt will be read whole");
        }
        if config.kv_bytes.is_none() && !fits(config) {
            let one = plan_state(&decoder.hyper, draft, &EngineConfig { max_seqs: 1, ..*config });
            let one: usize = (0..one.classes.len()).map(|c| one.pages[c] * one.page_bytes(c)).sum();
            let shared = |contexts| EngineConfig { kv_bytes: Some(contexts * one), ..*config };
            if let Some(contexts) = (1..config.max_seqs).rev().find(|contexts| fits(&shared(*contexts))) {
                *config = shared(contexts);
                let streams = config.max_seqs;
                screen.note(&format!("{streams} streams share memory for {contexts} whole contexts"));
                return;
            }
        }
        while config.max_seqs > 1 && !fits(config) {
            config.max_seqs -= 1;
        }
        screen.note(&format!("memory holds no more than {} streams", config.max_seqs));
    }

    /// Where what this pair costs here is kept; `None` where nothing is to be learned or kept.
    pub(crate) fn cost_cache(
        &self,
        machine: &Machine,
        draft: Option<&Checkpoint>,
        engine: &Engine,
    ) -> Option<CostCache> {
        let wanted = machine.cost_cache && machine.draft_mode == Mode::Auto;
        wanted.then(|| CostCache::of(&self.checkpoint, draft, engine)).flatten()
    }

    /// Loading may copy weights, so what can never fit is refused before.
    fn check_weights(&self, memory: Option<usize>) -> Result<()> {
        let needed: usize = tensors(&self.checkpoint).iter().filter_map(|t| t.n_bytes).sum();
        match memory {
            Some(limit) if needed > limit => Err(Failure::input(format!(
                "{}: the weights alone need {} of memory and {} are available",
                self.checkpoint.name(),
                human(needed),
                human(limit)
            ))
            .hint("use a smaller or more strongly quantised model, or free some memory")),
            _ => Ok(()),
        }
    }

    pub(crate) fn as_json(&self) -> Value {
        json!({
            "file": self.checkpoint.name(),
            "demo": self.is_demo,
            "architecture": self.hyper.arch.name(),
            "parameters": count_parameters(&self.checkpoint).total,
            "layers": self.hyper.layers.len(),
            "vocabulary": self.hyper.vocab,
            "trained_context": self.hyper.context,
        })
    }
}

/// Rows of a prompt to read at once. A device's many multiprocessors have too little to do with 512 of them where matrices are
/// small, so there it is as many as memory is left for. Changes no bit: chunks end with pages or with the prompt.
fn prompt_rows(
    decoder: &Decoder,
    draft: Option<&Draft>,
    backend: &dyn Backend,
    config: &EngineConfig,
) -> usize {
    let Some(limit) = config.memory.filter(|_| backend.is_far()) else { return config.step_rows };
    let fits = |step_rows: &usize| {
        let config = EngineConfig { step_rows: *step_rows, ..*config };
        Engine::context_that_fits(decoder, draft, backend, &config, limit) == Some(config.context)
    };
    [2048, 1024].into_iter().find(fits).unwrap_or(config.step_rows)
}

pub(crate) fn tensors(checkpoint: &Checkpoint) -> &[TensorInfo] {
    match checkpoint {
        Checkpoint::Gguf(gguf) => gguf.tensors(),
        Checkpoint::HuggingFace { tensors, .. } => tensors.tensors(),
    }
}
