//! The figures of an answer, for people and for programs.

use overdraft_engine::{Engine, Stats};
use serde_json::{Value, json};

use crate::config::mode_name;
use crate::generate::Ended;

/// `prompt 24 tok, 812 tok/s · generated 128 tok, 301 tok/s · 4.2 tokens a round (auto), about 2.1x plain · cpu, avx2,
/// 2 threads · stop: max-tokens`
pub(crate) fn line(stats: &Stats, engine: &Engine, ended: Ended) -> String {
    let plain = engine.plain_seconds();
    let mode = mode_name(engine.config().draft_mode);
    assemble(stats, mode, plain, &engine.describe(), ended)
}

fn assemble(stats: &Stats, mode: &str, plain: Option<f64>, device: &str, ended: Ended) -> String {
    let prompt = with_rate(stats.prompt_tokens, stats.prompt_rate());
    let generated = with_rate(stats.generated_tokens, stats.generation_rate());
    let mut drafted = String::new();
    if stats.drafted > 0 {
        drafted = format!(" · {:.1} tokens a round ({mode})", stats.tokens_per_round());
        if let Some(speedup) = speedup(stats, plain) {
            drafted.push_str(&format!(", about {speedup:.1}x plain"));
        }
    }
    format!("prompt {prompt} · generated {generated}{drafted} · {device} · stop: {}", ended.name())
}

/// Against plain decoding, whose speed is one token per step of one row.
fn speedup(stats: &Stats, plain_seconds: Option<f64>) -> Option<f64> {
    let rate = stats.generation_rate();
    plain_seconds.filter(|_| rate > 0.0).map(|seconds| rate * seconds)
}

/// No rate where there was nothing to measure, as after a single token.
fn with_rate(n: usize, rate: f64) -> String {
    match rate {
        r if r <= 0.0 => format!("{n} tok"),
        r if r < 10.0 => format!("{n} tok, {r:.1} tok/s"),
        r => format!("{n} tok, {r:.0} tok/s"),
    }
}

pub(crate) fn as_json(stats: &Stats, engine: &Engine) -> Value {
    let by_depth: Vec<Value> = stats
        .by_depth
        .iter()
        .take_while(|d| d.0 > 0)
        .map(|(tried, accepted)| json!([tried, accepted]))
        .collect();
    json!({
        "prompt_tokens": stats.prompt_tokens,
        "prompt_seconds": stats.prompt_time.as_secs_f64(),
        "prompt_tokens_per_second": stats.prompt_rate(),
        "generated_tokens": stats.generated_tokens,
        "generation_seconds": stats.generation_time.as_secs_f64(),
        "generated_tokens_per_second": stats.generation_rate(),
        "rounds": stats.rounds,
        "drafted": stats.drafted,
        "accepted": stats.accepted,
        "tokens_per_round": stats.tokens_per_round(),
        // By depth from 1: rounds that drafted so deep, rounds accepted so deep.
        "acceptance_by_depth": by_depth,
        "speedup_over_plain_estimate": speedup(stats, engine.plain_seconds()).filter(|_| stats.drafted > 0),
        "device": engine.describe(),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_line_reads_as_promised() {
        let stats = Stats {
            prompt_tokens: 24,
            generated_tokens: 129,
            prompt_time: Duration::from_millis(30),
            generation_time: Duration::from_secs(64),
            rounds: 128,
            ..Stats::default()
        };
        let ended = Ended::Finished(overdraft_engine::Finish::MaxTokens);
        assert_eq!(
            assemble(&stats, "auto", None, "cpu, avx2, 2 threads", ended),
            "prompt 24 tok, 800 tok/s · generated 129 tok, 2.0 tok/s · cpu, avx2, 2 threads · stop: max-tokens"
        );
        let one = Stats { generated_tokens: 1, generation_time: Duration::ZERO, ..stats };
        let spec = Stats { rounds: 32, drafted: 300, accepted: 96, ..stats };
        assert!(
            assemble(&spec, "auto", Some(1.0), "cpu", ended)
                .contains("· 4.0 tokens a round (auto), about 2.0x plain ·")
        );
        assert!(
            assemble(&one, "auto", None, "cpu", Ended::Interrupted)
                .contains("generated 1 tok · cpu · stop: interrupted")
        );
    }
}
