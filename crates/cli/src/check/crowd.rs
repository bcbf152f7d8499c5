//! `check --streams`: requests of every kind that come, wait and go at random, and whether each writes the text, the
//! log-probabilities and the logits, bit for bit, that it writes alone without a draft.

use std::process::ExitCode;
use std::time::Duration;

use overdraft_engine::noise::Numbers;
use overdraft_engine::spec::policy::Mode;
use overdraft_engine::{Engine, EngineError, Finish, SeqId, Witness};
use serde_json::{Value, json};

use super::visitors::{LONGEST_PROMPT, Visitor, Written, invite};
use crate::config::{Machine, mode_name};
use crate::failure::Result;
use crate::interrupt;
use crate::output::Output;
use crate::progress::Progress;
use crate::screen::Screen;

/// How the crowd is served.
struct Service {
    mode: Mode,
    budget: Option<usize>,
    /// Prompts are read a page at a time beside those who write, or as much as a step holds.
    in_pages: bool,
    /// Bytes for prompts that are read once for all.
    cache: usize,
    witness: Witness,
}

const SERVICES: [Service; 4] = [
    Service { mode: Mode::Auto, budget: None, in_pages: true, cache: 0, witness: Witness::Fingerprints },
    // As it is served: nobody looks at logits who need not, and prefixes are kept.
    Service { mode: Mode::Auto, budget: None, in_pages: false, cache: 64 << 20, witness: Witness::None },
    Service { mode: Mode::Tree, budget: Some(12), in_pages: true, cache: 0, witness: Witness::Fingerprints },
    Service { mode: Mode::Chain, budget: Some(7), in_pages: false, cache: 0, witness: Witness::Fingerprints },
];

/// What is to be checked.
pub(crate) struct Plan<'a> {
    pub(crate) streams: &'a [u32],
    pub(crate) texts: &'a [Vec<u32>],
    pub(crate) tokens: usize,
    pub(crate) seed: u64,
    pub(crate) machine: &'a Machine,
}

/// What came of a crowd.
#[derive(Default)]
struct Outcome {
    streams: usize,
    service: String,
    visitors: usize,
    identical: usize,
    tokens: usize,
    accepted: usize,
    most_at_once: usize,
    /// Ended by a stop text, by a stop token, by their limit; left before.
    ends: [usize; 4],
    /// The first that wrote another text, and at which token.
    parted: Option<(usize, usize)>,
}

impl Outcome {
    fn is_good(&self) -> bool {
        self.identical == self.visitors
    }
}

/// `start`: an engine on a machine, with a draft or without.
pub(crate) fn check(
    plan: &Plan<'_>,
    start: impl Fn(&Machine, bool) -> Result<Engine>,
    screen: &Screen,
    as_json: bool,
) -> Result<ExitCode> {
    let context = LONGEST_PROMPT + plan.tokens + 1;
    let machine = Machine { context, context_is_asked: true, ..plan.machine.clone() };
    let mut progress = Progress::new("checking", screen);
    let total = plan.streams.len() * SERVICES.len();
    let mut outcomes = Vec::new();
    for streams in plan.streams.iter().map(|n| *n as usize) {
        let mut numbers = Numbers::new(plan.seed ^ (streams as u64) << 32);
        let alone = Machine { draft_mode: Mode::Off, witness: Witness::Fingerprints, ..machine.clone() };
        let mut plain = start(&alone, false)?;
        let visitors = invite((3 * streams).max(8), plan.texts, plan.tokens, &mut numbers, &mut plain)?;
        drop(plain);
        for service in &SERVICES {
            progress.at(outcomes.len(), total);
            let machine = Machine {
                streams,
                draft_mode: service.mode,
                budget: service.budget,
                // Less than any step takes.
                token_gap: service.in_pages.then_some(Duration::from_nanos(1)),
                cache_memory: service.cache,
                witness: service.witness,
                ..machine.clone()
            };
            let mut engine = start(&machine, true)?;
            let mut outcome = serve(&mut engine, &visitors, &mut numbers)?;
            outcome.streams = streams;
            let guesses = service.budget.map_or_else(String::new, |n| format!(" {n}"));
            let reading = if service.in_pages { "pages" } else { "whole" };
            outcome.service = format!("{}{guesses}, {reading}", mode_name(service.mode));
            outcomes.push(outcome);
        }
    }
    progress.clear();
    report(&outcomes, as_json)
}

/// Someone who is being served.
struct Guest {
    id: SeqId,
    visitor: usize,
    is_paused: bool,
}

/// Serves all visitors: who comes when, who waits for a while and who leaves is drawn by `numbers`.
fn serve(engine: &mut Engine, visitors: &[Visitor], numbers: &mut Numbers) -> Result<Outcome> {
    let generating = interrupt::generating();
    let mut outcome = Outcome { visitors: visitors.len(), ..Outcome::default() };
    let mut written = vec![Written::default(); visitors.len()];
    let mut has_left = vec![false; visitors.len()];
    let (mut guests, mut next) = (Vec::<Guest>::new(), 0);
    while next < visitors.len() || !guests.is_empty() {
        while next < visitors.len() && (guests.is_empty() || numbers.below(3) > 0) {
            let visitor = &visitors[next];
            match engine.admit_as(visitor.request.clone(), visitor.options()) {
                Ok(id) => guests.push(Guest { id, visitor: next, is_paused: false }),
                Err(EngineError::NoSlot { .. } | EngineError::NoPages { .. }) => break,
                Err(other) => return Err(other.into()),
            }
            next += 1;
        }
        outcome.most_at_once = outcome.most_at_once.max(guests.len());
        if numbers.below(4) == 0 {
            let guest = numbers.below(guests.len());
            guests[guest].is_paused ^= true;
        }
        if guests.iter().all(|g| g.is_paused) {
            guests.iter_mut().for_each(|g| g.is_paused = false);
        }
        guests.iter().for_each(|g| engine.set_paused(g.id, g.is_paused));
        for event in engine.step()? {
            let Some(at) = guests.iter().position(|g| g.id == event.seq) else { continue };
            if let Some((_, stats)) = &event.finish {
                outcome.accepted += stats.accepted;
            }
            written[guests[at].visitor].see(event);
        }
        guests.retain(|guest| {
            let (visitor, written) = (&visitors[guest.visitor], &written[guest.visitor]);
            let leaves = visitor.leaves_after.is_some_and(|n| written.tokens.len() >= n);
            if written.finish.is_none() && leaves {
                has_left[guest.visitor] = true;
                outcome.accepted += engine.cancel(guest.id).map_or(0, |stats| stats.accepted);
            }
            written.finish.is_none() && !leaves
        });
        if generating.asked_to_stop() {
            return Err(interrupt::failure());
        }
    }
    for (i, (written, visitor)) in written.iter().zip(visitors).enumerate() {
        outcome.tokens += written.tokens.len();
        let end = match written.finish {
            Some(Finish::StopString) => Some(0),
            Some(Finish::EndToken) => Some(1),
            Some(_) => Some(2),
            None => has_left[i].then_some(3),
        };
        end.into_iter().for_each(|end| outcome.ends[end] += 1);
        match written.parts_from(&visitor.alone, has_left[i]) {
            None => outcome.identical += 1,
            Some(token) => {
                outcome.parted.get_or_insert((i, token));
            }
        }
    }
    Ok(outcome)
}

const ENDS: [&str; 4] = ["stop_text", "stop_token", "limit", "left"];

fn report(outcomes: &[Outcome], as_json: bool) -> Result<ExitCode> {
    let is_exact = outcomes.iter().all(Outcome::is_good);
    // With a stream by itself auto may find nothing worth drafting in so few tokens; no kind of stream may go untested.
    let is_tested = ENDS.iter().enumerate().all(|(end, _)| outcomes.iter().any(|o| o.ends[end] > 0))
        && outcomes.iter().map(|o| o.accepted).sum::<usize>() > 0;
    let mut output = Output::new();
    if as_json {
        let rows: Vec<Value> = outcomes.iter().map(as_value).collect();
        let exact = is_exact && is_tested;
        output.write(&format!("{}\n", json!({ "exact": exact, "crowds": rows })))?;
    } else {
        output.write(&format!(
            "{:<8} {:<16} {:<13} {:<7} {:<9} {:<8} ends: stop text, stop token, limit, left\n",
            "streams", "drafting, prompt", "identical", "tokens", "accepted", "at once"
        ))?;
        for outcome in outcomes {
            output.write(&line(outcome))?;
        }
        output.write(match (is_exact, is_tested) {
            (true, true) => {
                "exact: every text, log-probability and bit of a logit is what its request writes alone, without a draft\n"
            }
            (true, false) => "not shown to be exact: too few tokens for every kind of end and for accepted guesses\n",
            (false, _) => "NOT exact\n",
        })?;
    }
    Ok(if is_exact && is_tested { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn line(o: &Outcome) -> String {
    let identical = format!("{} of {}", o.identical, o.visitors);
    let parted = o.parted.map_or_else(String::new, |(visitor, token)| {
        format!("   first differs in request {visitor} at token {token}")
    });
    let [text, token, limit, left] = o.ends;
    format!(
        "{:<8} {:<16} {identical:<13} {:<7} {:<9} {:<8} {text}, {token}, {limit}, {left}{parted}\n",
        o.streams, o.service, o.tokens, o.accepted, o.most_at_once
    )
}

fn as_value(o: &Outcome) -> Value {
    let ends: serde_json::Map<String, Value> =
        ENDS.iter().zip(o.ends).map(|(name, n)| (name.to_string(), n.into())).collect();
    json!({
        "streams": o.streams,
        "service": o.service,
        "requests": o.visitors,
        "identical": o.identical,
        "tokens": o.tokens,
        "accepted": o.accepted,
        "most_at_once": o.most_at_once,
        "ends": ends,
        "first_difference": o.parted.map(|(request, token)| json!({ "request": request, "token": token })),
    })
}
