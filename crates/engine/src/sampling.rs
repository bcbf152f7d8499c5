//! From logits to a token: bias, penalties, temperature, top-k, top-p, min-p, then the draw. Always in this order,
//! sums always in token order, ties always to the lower id.

use std::collections::HashMap;

use crate::error::{EngineError, Result};
use crate::noise::Draw;

/// Colder than this is greedy: the draw could not differ, and dividing by it could overflow.
const GREEDY_BELOW: f32 = 1e-4;

/// How to choose tokens. The default is greedy.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0 is greedy.
    pub temperature: f32,
    /// 0 is off.
    pub top_k: u32,
    /// 1 is off.
    pub top_p: f32,
    /// 0 is off.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens seen in prompt or answer; 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted once per occurrence in the answer.
    pub frequency_penalty: f32,
    /// Subtracted once if the token occurs in the answer.
    pub presence_penalty: f32,
    /// Added to the logits of single tokens.
    pub bias: Vec<(u32, f32)>,
    pub seed: u64,
    /// Which of several answers to one request this is.
    pub choice: u32,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            bias: Vec::new(),
            seed: 0,
            choice: 0,
        }
    }
}

impl Sampling {
    /// Refuses values outside their meaning, by name.
    pub fn check(&self, vocab: usize) -> Result<()> {
        let rules = [
            ("temperature", self.temperature, 0.0..=100.0, "must be between 0 (greedy) and 100"),
            ("top_p", self.top_p, 0.0..=1.0, "must be between 0 and 1 (off)"),
            ("min_p", self.min_p, 0.0..=1.0, "must be between 0 (off) and 1"),
            (
                "repetition_penalty",
                self.repetition_penalty,
                0.01..=100.0,
                "must be between 0.01 and 100 (1 is off)",
            ),
            (
                "frequency_penalty",
                self.frequency_penalty,
                -100.0..=100.0,
                "must be between -100 and 100 (0 is off)",
            ),
            (
                "presence_penalty",
                self.presence_penalty,
                -100.0..=100.0,
                "must be between -100 and 100 (0 is off)",
            ),
        ];
        for (name, value, range, allowed) in rules {
            if !range.contains(&value) {
                return Err(EngineError::Parameter { name, value: value.to_string(), allowed });
            }
        }
        for (token, value) in &self.bias {
            if *token as usize >= vocab {
                return Err(EngineError::Token { token: *token, vocab });
            }
            if value.is_nan() {
                let allowed = "must be a number";
                return Err(EngineError::Parameter { name: "logit_bias", value: value.to_string(), allowed });
            }
        }
        Ok(())
    }

    /// Whether the token is the largest logit as the target gives them.
    pub(crate) fn takes_the_best(&self) -> bool {
        self.temperature < GREEDY_BELOW && self.bias.is_empty() && !self.has_penalties()
    }

    pub(crate) fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0 || self.frequency_penalty != 0.0 || self.presence_penalty != 0.0
    }
}

/// What a sequence has said so far, as the penalties need it.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// token -> (times in the answer, seen in the prompt)
    counts: HashMap<u32, (u32, bool)>,
}

impl History {
    /// With room for so many different tokens.
    pub fn for_tokens(n: usize) -> Self {
        Self { counts: HashMap::with_capacity(n) }
    }

    pub fn prompt(&mut self, token: u32) {
        self.counts.entry(token).or_default().1 = true;
    }

    pub fn answer(&mut self, token: u32) {
        self.counts.entry(token).or_default().0 += 1;
    }
}

/// Chooses tokens; keeps its buffers.
#[derive(Default)]
pub struct Sampler {
    /// Logits with bias and penalties, where there are any.
    adjusted: Vec<f32>,
    /// (token, logit), then (token, probability)
    candidates: Vec<(u32, f32)>,
}

impl Sampler {
    /// The token at `position`, or `None` when no logit is a finite number.
    pub fn choose(
        &mut self,
        logits: &[f32],
        sampling: &Sampling,
        history: &History,
        position: u32,
    ) -> Option<u32> {
        self.choose_allowed(logits, None, sampling, history, position)
    }

    /// [`Self::choose`] among the tokens whose bit is set in `allowed`: bit `t % 32` of word `t / 32`.
    pub fn choose_allowed(
        &mut self,
        logits: &[f32],
        allowed: Option<&[u32]>,
        sampling: &Sampling,
        history: &History,
        position: u32,
    ) -> Option<u32> {
        let mut logits = logits;
        if allowed.is_some() || !sampling.bias.is_empty() || sampling.has_penalties() {
            self.adjusted.clear();
            self.adjusted.extend_from_slice(logits);
            allowed.iter().for_each(|mask| forbid(&mut self.adjusted, mask));
            adjust(&mut self.adjusted, sampling, history);
            logits = &self.adjusted;
        }
        if sampling.temperature < GREEDY_BELOW {
            return greedy(logits);
        }
        let draw = Draw { seed: sampling.seed, choice: sampling.choice, position };
        self.candidates.clear();
        let finite = logits.iter().enumerate().filter(|(_, l)| l.is_finite());
        self.candidates.extend(finite.map(|(t, l)| (t as u32, l / sampling.temperature)));
        self.keep_top_k(sampling.top_k as usize);
        if sampling.top_p < 1.0 || sampling.min_p > 0.0 {
            self.keep_likely(sampling.top_p, sampling.min_p);
        }
        let noisy = self.candidates.iter().map(|(t, l)| (*t, l + draw.gumbel(*t)));
        best(noisy)
    }

    /// The `k` largest, still in token order.
    fn keep_top_k(&mut self, k: usize) {
        if k == 0 || k >= self.candidates.len() {
            return;
        }
        self.candidates.select_nth_unstable_by(k - 1, |a, b| descending(*a, *b));
        self.candidates.truncate(k);
        self.candidates.sort_unstable_by_key(|c| c.0);
    }

    /// The smallest set of most likely tokens whose probability reaches `top_p`, and of those the ones at least
    /// `min_p` times as likely as the best. Probabilities are of what top-k left.
    fn keep_likely(&mut self, top_p: f32, min_p: f32) {
        let Some(max) = self.candidates.iter().map(|c| c.1).reduce(f32::max) else { return };
        let total: f64 = self.candidates.iter().map(|c| ((c.1 - max) as f64).exp()).sum();
        // Sorting a whole vocabulary costs more than the model's head; the nucleus is nearly always in the first few.
        let mut sorted = 0;
        let mut mass = 0.0f64;
        let mut kept = 0;
        'search: while kept < self.candidates.len() {
            if kept == sorted {
                let rest = &mut self.candidates[sorted..];
                let n = rest.len().min((4 * sorted).max(64));
                if n < rest.len() {
                    rest.select_nth_unstable_by(n - 1, |a, b| descending(*a, *b));
                }
                rest[..n].sort_unstable_by(|a, b| descending(*a, *b));
                sorted += n;
            }
            while kept < sorted {
                let weight = ((self.candidates[kept].1 - max) as f64).exp();
                if kept > 0 && (mass >= top_p as f64 * total || weight < min_p as f64) {
                    break 'search;
                }
                mass += weight;
                kept += 1;
            }
        }
        self.candidates.truncate(kept);
    }
}

/// Larger logit first, then lower id: a total order, so that every selection is unique.
fn descending(a: (u32, f32), b: (u32, f32)) -> std::cmp::Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

/// The largest value; among equals the lowest token.
fn best(candidates: impl Iterator<Item = (u32, f32)>) -> Option<u32> {
    candidates
        .reduce(|best, c| if c.1 > best.1 || (c.1 == best.1 && c.0 < best.0) { c } else { best })
        .map(|c| c.0)
}

/// The largest finite logit; among equals the lowest token. By chunks whose maxima the compiler takes several lanes at a
/// time: token by token it cost more than the norms of all layers together.
fn greedy(logits: &[f32]) -> Option<u32> {
    const CHUNK: usize = 256;
    let (mut at, mut max) = (0, f32::NEG_INFINITY);
    for (i, chunk) in logits.chunks(CHUNK).enumerate() {
        let here = maximum(chunk);
        if here > max {
            (at, max) = (i * CHUNK, here);
        }
    }
    if max == f32::INFINITY {
        return best(logits.iter().enumerate().filter(|(_, l)| l.is_finite()).map(|(t, l)| (t as u32, *l)));
    }
    let within = logits[at..].iter().position(|l| *l == max && l.is_finite())?;
    Some((at + within) as u32)
}

/// The largest; what is not a number does not count.
fn maximum(logits: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let mut lanes = [f32::NEG_INFINITY; 16];
    let (chunks, rest) = logits.as_chunks::<16>();
    for chunk in chunks {
        for (lane, l) in lanes.iter_mut().zip(chunk) {
            *lane = larger(*lane, *l);
        }
    }
    lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |max, l| larger(max, *l))
}

/// Leaves only what the mask allows.
fn forbid(logits: &mut [f32], mask: &[u32]) {
    let words = mask.iter().copied().chain(std::iter::repeat(0));
    for (logits, word) in logits.chunks_mut(32).zip(words) {
        if word == u32::MAX {
            continue;
        }
        for (bit, l) in logits.iter_mut().enumerate() {
            if word >> bit & 1 == 0 {
                *l = f32::NEG_INFINITY;
            }
        }
    }
}

/// Bias, then penalties.
fn adjust(logits: &mut [f32], sampling: &Sampling, history: &History) {
    for (token, bias) in &sampling.bias {
        if let Some(l) = logits.get_mut(*token as usize) {
            *l += bias;
        }
    }
    if !sampling.has_penalties() {
        return;
    }
    for (token, (answered, _)) in &history.counts {
        let Some(l) = logits.get_mut(*token as usize) else { continue };
        *l = if *l > 0.0 { *l / sampling.repetition_penalty } else { *l * sampling.repetition_penalty };
        if *answered > 0 {
            *l -= sampling.presence_penalty + *answered as f32 * sampling.frequency_penalty;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(logits: &[f32], sampling: &Sampling, position: u32) -> Option<u32> {
        Sampler::default().choose(logits, sampling, &History::default(), position)
    }

    #[test]
    #[rustfmt::skip]
    fn greedy_takes_the_largest_and_the_lower_of_equals() {
        let s = Sampling::default();
        assert_eq!(choose(&[0.0, 3.0, 1.0], &s, 0), Some(1));
        assert_eq!(choose(&[2.0, 3.0, 3.0], &s, 0), Some(1));
        assert_eq!(choose(&[f32::NAN, -3.0, f32::INFINITY], &s, 0), Some(1), "only finite logits count");
        assert_eq!(choose(&[f32::NAN, f32::NAN], &s, 0), None);
        assert_eq!(choose(&[f32::NEG_INFINITY, f32::INFINITY], &s, 0), None);
        let long: Vec<f32> = (0..1000).map(|t| if t == 3 { f32::NAN } else { (t * 7 % 500) as f32 }).collect();
        assert_eq!(choose(&long, &s, 0), Some(357), "499 stands at 357 and at 857");
        assert_eq!(choose(&[long, vec![f32::INFINITY]].concat(), &s, 0), Some(357), "past an infinity");
        let biased = Sampling { bias: vec![(0, 9.0), (2, f32::NEG_INFINITY)], ..s.clone() };
        assert_eq!(choose(&[0.0, 3.0, 5.0], &biased, 0), Some(0));
    }

    /// Draws at 20 000 positions.
    fn frequencies(logits: &[f32], sampling: &Sampling) -> Vec<f64> {
        let n = 20_000;
        let mut counts = vec![0usize; logits.len()];
        for position in 0..n {
            counts[choose(logits, sampling, position).unwrap() as usize] += 1;
        }
        counts.iter().map(|c| *c as f64 / n as f64).collect()
    }

    #[track_caller]
    fn check(sampling: Sampling, expected: &[f64], case: &str) {
        let logits: Vec<f32> = [0.4f32, 0.3, 0.2, 0.08, 0.02].iter().map(|p: &f32| p.ln()).collect();
        for (token, (got, want)) in frequencies(&logits, &sampling).iter().zip(expected).enumerate() {
            // Four standard deviations of a count of 20 000; what is cut must be gone altogether.
            let slack = 4.0 * (want * (1.0 - want) / 20_000.0).sqrt();
            assert!((got - want).abs() <= slack, "{case}: token {token} drawn {got}, expected {want}");
        }
    }

    #[test]
    #[rustfmt::skip]
    fn draws_follow_the_distribution_that_the_chain_leaves() {
        let t1 = Sampling { temperature: 1.0, seed: 3, ..Default::default() };
        check(t1.clone(), &[0.4, 0.3, 0.2, 0.08, 0.02], "plain");
        check(Sampling { top_k: 2, ..t1.clone() }, &[4.0 / 7.0, 3.0 / 7.0, 0.0, 0.0, 0.0], "top-k 2");
        check(Sampling { top_p: 0.65, ..t1.clone() }, &[4.0 / 7.0, 3.0 / 7.0, 0.0, 0.0, 0.0], "top-p 0.65");
        check(Sampling { top_p: 0.0, ..t1.clone() }, &[1.0, 0.0, 0.0, 0.0, 0.0], "top-p 0 keeps the best");
        check(Sampling { min_p: 0.4, ..t1.clone() }, &[4.0 / 9.0, 3.0 / 9.0, 2.0 / 9.0, 0.0, 0.0], "min-p 0.4");
        check(Sampling { temperature: 0.5, ..t1 },
              &[0.16 / 0.2968, 0.09 / 0.2968, 0.04 / 0.2968, 0.0064 / 0.2968, 0.0004 / 0.2968], "temperature 0.5");
    }

    #[test]
    fn only_allowed_tokens_are_drawn() {
        let logits: Vec<f32> = (0..70).map(|t| (t % 7) as f32).collect();
        let allow = |tokens: &[u32]| {
            let mut mask = vec![0u32; 3];
            tokens.iter().for_each(|t| mask[*t as usize / 32] |= 1 << (t % 32));
            mask
        };
        let hot = Sampling { temperature: 1.0, ..Default::default() };
        let biased = Sampling { bias: vec![(6, f32::INFINITY), (1, 9.0)], ..Default::default() };
        let cases: [(&[u32], &Sampling, Option<u32>); 6] = [
            (&[0, 33, 69], &Sampling::default(), Some(69)),
            (&[0, 33], &Sampling::default(), Some(33)),
            (&[], &Sampling::default(), None),
            (&[64], &hot, Some(64)),
            (&[], &hot, None),
            (&[1, 2], &biased, Some(1)),
        ];
        for (tokens, sampling, want) in cases {
            let mask = allow(tokens);
            let mut sampler = Sampler::default();
            let got = sampler.choose_allowed(&logits, Some(&mask), sampling, &History::default(), 3);
            assert_eq!(got, want, "{tokens:?}");
        }
        let short = allow(&[5]);
        let got = Sampler::default().choose_allowed(&logits, Some(&short[..1]), &hot, &History::default(), 3);
        assert_eq!(got, Some(5), "what a mask does not reach is not allowed");
    }

    #[test]
    fn penalties_count_prompt_and_answer_as_defined() {
        let mut history = History::default();
        history.prompt(0);
        history.answer(1);
        history.answer(1);
        let s = Sampling {
            repetition_penalty: 2.0,
            presence_penalty: 0.5,
            frequency_penalty: 0.25,
            ..Default::default()
        };
        let mut logits = [4.0, 4.0, 3.0, -1.0];
        adjust(&mut logits, &s, &history);
        assert_eq!(logits, [2.0, 1.0, 3.0, -1.0]);
    }

    #[test]
    fn a_large_nucleus_is_found_beyond_the_first_sorted_part() {
        let logits = vec![0.0f32; 1000];
        let s = Sampling { temperature: 1.0, top_p: 0.5, ..Default::default() };
        let mut sampler = Sampler::default();
        sampler.choose(&logits, &s, &History::default(), 0);
        assert_eq!(sampler.candidates.len(), 500);
        assert!(sampler.candidates.iter().all(|c| c.0 < 500), "ties go to lower ids");
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        let bad = [
            ("temperature", Sampling { temperature: -1.0, ..Default::default() }),
            ("temperature", Sampling { temperature: f32::NAN, ..Default::default() }),
            ("top_p", Sampling { top_p: 1.5, ..Default::default() }),
            ("min_p", Sampling { min_p: -0.1, ..Default::default() }),
            ("repetition_penalty", Sampling { repetition_penalty: 0.0, ..Default::default() }),
            ("logit_bias", Sampling { bias: vec![(1, f32::NAN)], ..Default::default() }),
        ];
        for (want, sampling) in bad {
            match sampling.check(10) {
                Err(EngineError::Parameter { name, .. }) => assert_eq!(name, want),
                other => panic!("{want}: {other:?}"),
            }
        }
        let far = Sampling { bias: vec![(10, 1.0)], ..Default::default() };
        assert!(matches!(far.check(10), Err(EngineError::Token { token: 10, vocab: 10 })));
    }
}
