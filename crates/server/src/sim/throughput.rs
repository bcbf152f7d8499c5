//! What speculation brings to many streams, in virtual time.

use std::sync::Arc;

use overdraft_engine::spec::policy::Mode;
use overdraft_engine::{Clock, EngineConfig, Stats};

use super::VirtualClock;
use super::device::{Costs, Device, Faults};
use super::world::{Built, MODELS, build, plain_request};

/// Rows at a price as on a small CPU, and nearly for nothing as on a GPU.
const MACHINES: [(&str, Costs); 2] = [
    ("cpu", Costs { target: (1000, 140), draft: (200, 40) }),
    ("gpu", Costs { target: (10_000, 30), draft: (1500, 5) }),
];

const TOKENS: usize = 96;

/// Tokens a virtual second over three answers of each stream, and what was done.
fn rate(costs: Costs, misguesses: bool, streams: usize, draft_mode: Mode, lookup: bool) -> (f64, Stats) {
    let clock = Arc::new(VirtualClock::new());
    let device = Device::new(clock.clone(), 1, Faults { misguesses, is_even: true, ..Default::default() });
    let config = EngineConfig { context: 512, max_seqs: streams, draft_mode, lookup, ..Default::default() };
    let model = MODELS.iter().position(|m| m.1 == Some("qwen3_dflash")).unwrap();
    let Built { mut engine, .. } = build(model, config, None, device.with_costs(costs), clock.clone());
    let (mut from, mut tokens, mut sum) = (clock.now(), 0, Stats::default());
    // The first answers find out what things cost; a server does that once. Where a stream ends the next begins, and
    // what is counted ends with the last that begins: a batch that runs out counts what its slowest costs.
    let (mut begun, mut running) = (0, 0);
    loop {
        while running < streams && begun < 5 * streams {
            let mut request = plain_request(20, TOKENS);
            (request.prompt[3], request.prompt[5]) = (50 + begun as u32 % 64, 50 + begun as u32 / 64);
            engine.admit(request).unwrap();
            (begun, running) = (begun + 1, running + 1);
            if begun == streams + 1 {
                (from, tokens, sum) = (clock.now(), 0, Stats::default());
            }
        }
        if begun == 5 * streams {
            return (tokens as f64 / (clock.now() - from).as_secs_f64(), sum);
        }
        match engine.step() {
            // A text may come to where the made-up model says nothing, whatever the mode.
            Err(error) => running -= usize::from(error.failed_sequence().is_some()),
            Ok(events) => {
                tokens += events.len();
                for (_, stats) in events.iter().filter_map(|e| e.finish) {
                    sum.add(&stats);
                    running -= 1;
                }
            }
        }
    }
}

#[test]
fn auto_is_never_slower_than_plain_decoding_at_any_number_of_streams() {
    for (machine, costs) in MACHINES {
        for (draft, misguesses) in [("good", false), ("hopeless", true)] {
            for streams in [1, 4, 16, 64] {
                let (plain, _) = rate(costs, misguesses, streams, Mode::Off, false);
                for lookup in [false, true] {
                    let (auto, stats) = rate(costs, misguesses, streams, Mode::Auto, lookup);
                    let gain = auto / plain;
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
