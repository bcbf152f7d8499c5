//! What speculation brings to many streams, in virtual time.

use std::sync::Arc;
use std::time::Duration;

use overdraft_engine::spec::policy::Mode;
use overdraft_engine::{Clock, EngineConfig, Request, Stats};

use super::VirtualClock;
use super::device::{Costs, Device, Faults};
use super::world::{Built, MODELS, build, plain_request};

/// Rows at a price as on a small CPU, and nearly for nothing as on a GPU.
const MACHINES: [(&str, Costs); 2] = [
    ("cpu", Costs { target: (1000, 140), draft: (200, 40) }),
    ("gpu", Costs { target: (10_000, 30), draft: (1500, 5) }),
];

const TOKENS: usize = 160;

/// Virtual seconds of writing, prompts not counted, and what was done.
fn seconds(costs: Costs, misguesses: bool, streams: usize, draft_mode: Mode, lookup: bool) -> (f64, Stats) {
    let clock = Arc::new(VirtualClock::new());
    let device = Device::new(clock.clone(), 1, Faults { misguesses, is_even: true, ..Default::default() });
    let config = EngineConfig { context: 512, max_seqs: streams, draft_mode, lookup, ..Default::default() };
    let model = MODELS.iter().position(|m| m.1 == Some("qwen3_dflash")).unwrap();
    let Built { mut engine, .. } = build(model, config, None, device.with_costs(costs), clock.clone());
    let mut sum = (Duration::ZERO, Stats::default());
    // The first answers find out what things cost; a server does that once.
    for round in 0..2 {
        for i in 0..streams {
            let mut request = plain_request(20, TOKENS);
            request.prompt[3] = 50 + i as u32;
            request.prompt[5] = 50 + round;
            engine.admit(Request { max_tokens: TOKENS, ..request }).unwrap();
        }
        let mut step = || match engine.step() {
            // A text may come to where the made-up model says nothing, whatever the mode.
            Err(error) if error.failed_sequence().is_some() => (Vec::new(), engine.is_idle()),
            events => (events.unwrap(), engine.is_idle()),
        };
        step();
        let from = clock.now();
        sum = (Duration::ZERO, Stats::default());
        let mut is_idle = false;
        while !is_idle {
            let events;
            (events, is_idle) = step();
            events.iter().filter_map(|e| e.finish).for_each(|(_, stats)| sum.1.add(&stats));
        }
        sum.0 = clock.now() - from;
    }
    (sum.0.as_secs_f64(), sum.1)
}

#[test]
fn auto_is_never_slower_than_plain_decoding_at_any_number_of_streams() {
    for (machine, costs) in MACHINES {
        for (draft, misguesses) in [("good", false), ("hopeless", true)] {
            for streams in [1, 4, 16, 64] {
                let (plain, _) = seconds(costs, misguesses, streams, Mode::Off, false);
                for lookup in [false, true] {
                    let (auto, stats) = seconds(costs, misguesses, streams, Mode::Auto, lookup);
                    let gain = plain / auto;
                    let case = format!("{machine}, {draft} draft, {streams} streams, lookup {lookup}");
                    eprintln!("{case}: {gain:.3} of plain, {:.2} tokens a round", stats.tokens_per_round());
                    assert!(gain >= 0.97, "{case}: {gain:.3} of plain speed, {:?}", stats.plain);
                    assert!(
                        misguesses || streams > 1 || gain >= 1.3,
                        "{case}: only {gain:.3} of plain speed"
                    );
                }
            }
        }
    }
}
