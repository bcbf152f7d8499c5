//! What an answer cost, in the words of each API: usage, llama.cpp's timings, vLLM's metrics of speculation.

use std::time::Duration;

use overdraft_engine::{Plain, Speculative, Stats};
use serde_json::{Map, Value, json};

use crate::handle::Timings;

/// Of all answers to one request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Figures {
    /// Counted once, however many answers it has.
    pub(crate) prompt_tokens: usize,
    pub(crate) cached_tokens: usize,
    pub(crate) reasoning_tokens: usize,
    /// Of all answers together.
    pub(crate) stats: Stats,
    /// Of the answer that took longest.
    pub(crate) timings: Timings,
    pub(crate) asked: Speculative,
    pub(crate) seed: u64,
    /// Why each answer that is over ended, in OpenAI's words.
    pub(crate) finished: Vec<&'static str>,
}

impl Figures {
    pub(crate) fn completion_tokens(&self) -> usize {
        self.stats.generated_tokens
    }

    /// Adds an answer that is over.
    pub(crate) fn add(&mut self, stats: &Stats, timings: &Timings) {
        self.stats.add(stats);
        if timings.total >= self.timings.total {
            self.timings = *timings;
        }
    }

    pub(crate) fn usage(&self) -> Value {
        let (prompt, completion) = (self.prompt_tokens, self.completion_tokens());
        json!({
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            "completion_tokens_details": {
                "reasoning_tokens": self.reasoning_tokens,
                "accepted_prediction_tokens": self.stats.accepted,
                "rejected_prediction_tokens": self.stats.drafted.saturating_sub(self.stats.accepted),
            },
        })
    }

    /// The Responses API's words for the same.
    pub(crate) fn responses_usage(&self) -> Value {
        let (prompt, completion) = (self.prompt_tokens, self.completion_tokens());
        json!({
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": self.cached_tokens},
            "output_tokens": completion,
            "output_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
            "total_tokens": prompt + completion,
        })
    }

    /// Anthropic's: what was read from the cache is not counted as input again.
    pub(crate) fn messages_usage(&self) -> Value {
        json!({
            "input_tokens": self.prompt_tokens.saturating_sub(self.cached_tokens),
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": self.cached_tokens,
            "output_tokens": self.completion_tokens(),
        })
    }

    /// Beside an answer or its last chunk: how it came about.
    pub(crate) fn add_to(&self, object: &mut Value) {
        object["timings"] = self.timings();
        object["metrics"] = self.metrics();
    }

    /// OpenAI's last chunk of a stream, where it was asked for.
    pub(crate) fn last_chunk(&self, mut chunk: Value) -> Value {
        chunk["usage"] = self.usage();
        self.add_to(&mut chunk);
        chunk
    }

    /// As llama.cpp's server has it.
    pub(crate) fn timings(&self) -> Value {
        let read = self.prompt_tokens.saturating_sub(self.cached_tokens);
        let (prompt, written) = (self.stats.prompt_time, self.stats.generation_time);
        // The first token comes with the prompt's last step.
        let steps = self.completion_tokens().saturating_sub(1);
        json!({
            "cache_n": self.cached_tokens,
            "prompt_n": read,
            "prompt_ms": ms(prompt),
            "prompt_per_token_ms": per(ms(prompt), read),
            "prompt_per_second": rate(read, prompt),
            "predicted_n": self.completion_tokens(),
            "predicted_ms": ms(written),
            "predicted_per_token_ms": per(ms(written), steps),
            "predicted_per_second": rate(steps, written),
            "draft_n": self.stats.drafted,
            "draft_n_accepted": self.stats.accepted,
        })
    }

    /// As vLLM has it when asked for, and what we know beyond.
    pub(crate) fn metrics(&self) -> Value {
        let steps = self.completion_tokens().saturating_sub(1);
        let generation = self.timings.generation;
        json!({
            "time_to_first_token_ms": ms(self.timings.first_token),
            "generation_time_ms": ms(generation),
            "queue_time_ms": ms(self.timings.queued),
            "mean_itl_ms": per(ms(generation), steps),
            "tokens_per_second": rate(steps, generation),
            "seed": self.seed,
            "speculative_decoding": self.speculation(),
        })
    }

    fn speculation(&self) -> Value {
        let s = &self.stats;
        let rounds = Rounds::of(s);
        let (mode, reason) = self.mode();
        json!({
            "mean_acceptance_length": 1.0 + per(rounds.accepted as f64, rounds.steps as usize),
            "draft_acceptance_rate": per(rounds.accepted as f64, rounds.drafted as usize),
            "acceptance_histogram": rounds.histogram,
            "num_spec_steps": rounds.steps,
            "num_accepted_draft_tokens": rounds.accepted,
            // Of a tree its depth counts: what could have been accepted, not what was looked at.
            "num_draft_tokens": rounds.drafted,
            "num_spec_tokens": rounds.depth,
            "num_draft_nodes": s.drafted,
            "num_rounds": s.rounds,
            "tokens_per_round": s.tokens_per_round(),
            "mode": mode,
            "reason": reason,
            "rounds": {"chain": s.chains, "tree": s.trees, "plain": plain_rounds(s)},
        })
    }

    /// The mode of most rounds, and why.
    fn mode(&self) -> (&'static str, &'static str) {
        let s = &self.stats;
        let plain: usize = s.plain.iter().sum();
        let most = s.plain.iter().zip(Plain::ALL).max_by_key(|(n, _)| **n);
        match self.asked {
            Speculative::Off => ("off", "request"),
            _ if s.rounds == 0 => ("off", "no round was needed"),
            _ if s.trees >= s.chains && s.trees >= plain => ("tree", "it paid"),
            _ if s.chains >= plain => ("chain", "it paid"),
            _ => ("off", most.map_or("off", |(_, why)| why.name())),
        }
    }
}

/// Rounds that drafted nothing, by the reason.
fn plain_rounds(stats: &Stats) -> Map<String, Value> {
    let named = stats.plain.iter().zip(Plain::ALL).filter(|(n, _)| **n > 0);
    named.map(|(n, why)| (why.name().to_owned(), (*n).into())).collect()
}

/// Rounds that drafted, counted by depth: the same figures for chains and trees.
#[derive(Debug, PartialEq, Eq)]
struct Rounds {
    steps: u32,
    drafted: u32,
    accepted: u32,
    /// The deepest that was drafted.
    depth: usize,
    /// How often so many were accepted, from none to `depth`. Tools check that these sum up to `steps`, and times
    /// their index to `accepted`, and leave out a server where they do not.
    histogram: Vec<u32>,
}

impl Rounds {
    fn of(stats: &Stats) -> Self {
        let depth = stats.by_depth.iter().take_while(|d| d.0 > 0).count();
        let by_depth = &stats.by_depth[..depth];
        let steps = by_depth.first().map_or(0, |d| d.0);
        // Accepted at least so deep, for depths from 0 on.
        let reached = || std::iter::once(steps).chain(by_depth.iter().map(|d| d.1));
        let deeper = reached().skip(1).chain([0]);
        Self {
            steps,
            drafted: by_depth.iter().map(|d| d.0).sum(),
            accepted: by_depth.iter().map(|d| d.1).sum(),
            depth,
            histogram: reached().zip(deeper).map(|(here, deeper)| here.saturating_sub(deeper)).collect(),
        }
    }
}

fn ms(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

/// 0 where there is nothing to divide by: JSON has no NaN.
fn per(total: f64, n: usize) -> f64 {
    if n == 0 { 0.0 } else { total / n as f64 }
}

fn rate(n: usize, time: Duration) -> f64 {
    let seconds = time.as_secs_f64();
    if seconds > 0.0 { n as f64 / seconds } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(by_depth: &[(u32, u32)]) -> Stats {
        let mut stats = Stats::default();
        stats.by_depth[..by_depth.len()].copy_from_slice(by_depth);
        stats
    }

    #[test]
    #[rustfmt::skip]
    fn the_histogram_sums_up_to_the_totals() {
        //     drafted so deep, accepted so deep        histogram        steps, accepted
        for (by_depth, histogram) in [
            (&[][..],                                   vec![0]),
            (&[(4, 0)][..],                             vec![4, 0]),
            (&[(4, 4)][..],                             vec![0, 4]),
            (&[(10, 7), (8, 5), (2, 1)][..],            vec![3, 2, 4, 1]),
        ] {
            let rounds = Rounds::of(&stats(by_depth));
            assert_eq!(rounds.histogram, histogram);
            assert_eq!(rounds.histogram.len(), rounds.depth + 1);
            assert_eq!(rounds.histogram.iter().sum::<u32>(), rounds.steps);
            let weighed: u32 = rounds.histogram.iter().enumerate().map(|(i, n)| i as u32 * n).sum();
            assert_eq!(weighed, rounds.accepted);
        }
    }

    #[test]
    fn nothing_done_divides_by_nothing() {
        let none = Figures::default();
        for value in
            [none.usage(), none.timings(), none.metrics(), none.messages_usage(), none.responses_usage()]
        {
            assert!(!value.to_string().contains("null"), "{value}");
        }
        assert_eq!(none.metrics()["speculative_decoding"]["mode"], "off");
    }

    #[test]
    fn cached_tokens_are_part_of_openais_input_and_not_of_anthropics() {
        let figures = Figures { prompt_tokens: 100, cached_tokens: 64, ..Figures::default() };
        assert_eq!(figures.usage()["prompt_tokens"], 100);
        assert_eq!(figures.usage()["prompt_tokens_details"]["cached_tokens"], 64);
        let usage = figures.messages_usage();
        assert_eq!((&usage["input_tokens"], &usage["cache_read_input_tokens"]), (&json!(36), &json!(64)));
    }
}
