//! The chain from logits to a token.

use super::{Chance, Drawing, Past};

/// Draws tokens; keeps its buffers.
///
/// Past bias, penalties and temperature all that counts of a token is its distance from the best, and its id: `f32` less
/// than [`Chance::REACH`], compared in steps of 2^-25. Sums are of whole numbers, so no order of them matters.
#[derive(Default)]
pub struct Sampler {
    /// Logits with bias and penalties, where there are any.
    adjusted: Vec<f32>,
    /// (token, distance)
    candidates: Vec<(u32, f32)>,
}

impl Sampler {
    /// The token at `position` and its distance from the best, or `None` where no logit is a finite number. Only tokens
    /// whose bit is set in `allowed` are drawn: bit `t % 32` of word `t / 32`.
    pub fn draw(
        &mut self,
        logits: &[f32],
        allowed: Option<&[u32]>,
        drawing: &Drawing,
        past: Past<'_>,
        position: u32,
    ) -> Option<(u32, f32)> {
        let mut logits = logits;
        if allowed.is_some()
            || !past.listed.is_empty()
            || (drawing.has_penalties() && !past.drafted.is_empty())
        {
            self.adjusted.clear();
            self.adjusted.extend_from_slice(logits);
            allowed.iter().for_each(|mask| forbid(&mut self.adjusted, mask));
            for change in past.changes() {
                if let Some(l) = self.adjusted.get_mut(change.token as usize) {
                    *l = drawing.adjusted(*l, &change);
                }
            }
            logits = &self.adjusted;
        }
        let scale = drawing.scale();
        let (first, most) = largest(logits, scale)?;
        if drawing.is_greedy() {
            return Some((first, 0.0));
        }
        let chance = Chance::new(drawing.seed, drawing.choice, position);
        let (share, least) = (drawing.share(), drawing.least_weight());
        if drawing.top_k == 0 && share.is_none() && least == 0 {
            let mut best = Best { score: chance.gumbel(first), token: first, distance: 0.0 };
            for_near(logits, scale, most, best.reach(), |token, distance| {
                best.offer(chance, token, distance);
                best.reach()
            });
            return Some((best.token, best.distance));
        }
        let candidates = &mut self.candidates;
        collect(candidates, logits, scale, most, drawing.top_k as usize, drawing.reach());
        if let Some(share) = share {
            keep_share(candidates, share);
        }
        let mut best = Best { score: f32::NEG_INFINITY, token: first, distance: 0.0 };
        for (token, distance) in candidates {
            if least == 0 || Chance::weight(*distance) >= least {
                best.offer(chance, *token, *distance);
            }
        }
        Some((best.token, best.distance))
    }
}

/// The tokens nearer than `reach`; with `k`, the first so many of them.
fn collect(candidates: &mut Vec<(u32, f32)>, logits: &[f32], scale: f32, most: f32, k: usize, reach: f32) {
    candidates.clear();
    // Selected now and then: what is further than the k nearest so far need not be looked at.
    let room = if k == 0 { usize::MAX } else { k.saturating_mul(4).max(256) };
    let mut reach = reach;
    for_near(logits, scale, most, reach, |token, distance| {
        candidates.push((token, distance));
        if candidates.len() == room {
            candidates.select_nth_unstable_by_key(k - 1, rank);
            candidates.truncate(k);
            // Tokens come in order, so an equal one is behind it.
            reach = candidates[k - 1].1;
        }
        reach
    });
    if k > 0 && k < candidates.len() {
        candidates.select_nth_unstable_by_key(k - 1, rank);
        candidates.truncate(k);
    }
}

/// The smallest set of most likely tokens whose weight reaches `share` of all weight that is left.
fn keep_share(candidates: &mut Vec<(u32, f32)>, share: u64) {
    let total: u64 = candidates.iter().map(|c| Chance::weight(c.1) as u64).sum();
    let needed = ((total as u128 * share as u128) >> 56) as u64;
    // Sorting a whole vocabulary costs more than the model's head; the nucleus is nearly always in the first few.
    let (mut sorted, mut kept, mut weight) = (0, 0, 0);
    while kept < candidates.len() && weight < needed.max(1) {
        if kept == sorted {
            let rest = &mut candidates[sorted..];
            let n = rest.len().min((4 * sorted).max(64));
            if n < rest.len() {
                rest.select_nth_unstable_by_key(n - 1, rank);
            }
            rest[..n].sort_unstable_by_key(rank);
            sorted += n;
        }
        weight += Chance::weight(candidates[kept].1) as u64;
        kept += 1;
    }
    candidates.truncate(kept);
}

/// Nearer first, then the lower id: a total order, so that every selection is unique.
fn rank(candidate: &(u32, f32)) -> u64 {
    ((candidate.1 * (1u32 << 25) as f32) as u64) << 32 | candidate.0 as u64
}

/// The candidate that the noise favours; among equals the lowest token.
struct Best {
    score: f32,
    token: u32,
    distance: f32,
}

impl Best {
    fn offer(&mut self, chance: Chance, token: u32, distance: f32) {
        // No noise could carry it so far.
        if Chance::MOST - distance < self.score {
            return;
        }
        let score = chance.gumbel(token) - distance;
        if score > self.score || (score == self.score && token < self.token) {
            *self = Self { score, token, distance };
        }
    }

    /// Where nothing can win any more, with room for roundings.
    fn reach(&self) -> f32 {
        (Chance::MOST + 0.01 - self.score).min(Chance::REACH)
    }
}

/// Tokens that are looked at together: most such chunks have none near enough, which their maximum tells.
const CHUNK: usize = 64;

/// Calls `each` on tokens and distances less than `reach`, in order; what it returns is the reach from there on.
fn for_near(logits: &[f32], scale: f32, most: f32, mut reach: f32, mut each: impl FnMut(u32, f32) -> f32) {
    for (i, chunk) in logits.chunks(CHUNK).enumerate() {
        if most - maximum(chunk) * scale >= reach {
            continue;
        }
        for (token, l) in ((i * CHUNK) as u32..).zip(chunk) {
            let distance = most - l * scale;
            // An infinite logit is below 0.
            if distance >= 0.0 && distance < reach {
                reach = each(token, distance);
            }
        }
    }
}

/// The largest logit, scaled, of those that then are finite, and its token, among equals the lowest. By chunks whose maxima
/// the compiler takes several lanes at a time: token by token it cost more than the norms of all layers together.
fn largest(logits: &[f32], scale: f32) -> Option<(u32, f32)> {
    // Longer ones here: 28 us for 250 000 logits, where chunks of 64 take 45.
    const CHUNK: usize = 256;
    let (mut at, mut max) = (0, f32::NEG_INFINITY);
    for (i, chunk) in logits.chunks(CHUNK).enumerate() {
        let here = maximum(chunk) * scale;
        if here > max {
            (at, max) = (CHUNK * i, here);
        }
    }
    if max == f32::INFINITY {
        at = 0;
        max = logits.iter().map(|l| l * scale).filter(|v| v.is_finite()).reduce(f32::max)?;
    }
    let within = logits[at..].iter().position(|l| l * scale == max && max.is_finite())?;
    Some(((at + within) as u32, max))
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

#[cfg(test)]
mod tests {
    use super::super::Adjustment;
    use super::*;

    fn choose(logits: &[f32], drawing: &Drawing, position: u32) -> Option<u32> {
        Sampler::default().draw(logits, None, drawing, Past::default(), position).map(|c| c.0)
    }

    #[test]
    #[rustfmt::skip]
    fn greedy_takes_the_largest_and_the_lower_of_equals() {
        let greedy = Drawing::default();
        assert_eq!(choose(&[0.0, 3.0, 1.0], &greedy, 0), Some(1));
        assert_eq!(choose(&[2.0, 3.0, 3.0], &greedy, 0), Some(1));
        assert_eq!(choose(&[f32::NAN, -3.0, f32::INFINITY], &greedy, 0), Some(1), "only finite logits count");
        assert_eq!(choose(&[f32::NAN, f32::NAN], &greedy, 0), None);
        assert_eq!(choose(&[f32::NEG_INFINITY, f32::INFINITY], &greedy, 0), None);
        let long: Vec<f32> = (0..1000).map(|t| if t == 3 { f32::NAN } else { (t * 7 % 500) as f32 }).collect();
        assert_eq!(choose(&long, &greedy, 0), Some(357), "499 stands at 357 and at 857");
        assert_eq!(choose(&[long, vec![f32::INFINITY]].concat(), &greedy, 0), Some(357), "past an infinity");
    }

    /// Draws at 20 000 positions.
    fn frequencies(logits: &[f32], drawing: &Drawing) -> Vec<f64> {
        let n = 20_000;
        let mut counts = vec![0usize; logits.len()];
        for position in 0..n {
            counts[choose(logits, drawing, position).unwrap() as usize] += 1;
        }
        counts.iter().map(|c| *c as f64 / n as f64).collect()
    }

    #[track_caller]
    fn check(drawing: Drawing, expected: &[f64], case: &str) {
        let logits: Vec<f32> = [0.4f32, 0.3, 0.2, 0.08, 0.02].iter().map(|p: &f32| p.ln()).collect();
        for (token, (got, want)) in frequencies(&logits, &drawing).iter().zip(expected).enumerate() {
            // Four standard deviations of a count of 20 000; what is cut must be gone altogether.
            let slack = 4.0 * (want * (1.0 - want) / 20_000.0).sqrt();
            assert!((got - want).abs() <= slack, "{case}: token {token} drawn {got}, expected {want}");
        }
    }

    #[test]
    #[rustfmt::skip]
    fn draws_follow_the_distribution_that_the_chain_leaves() {
        let t1 = Drawing { temperature: 1.0, seed: 3, ..Default::default() };
        check(t1, &[0.4, 0.3, 0.2, 0.08, 0.02], "plain");
        check(Drawing { top_k: 2, ..t1 }, &[4.0 / 7.0, 3.0 / 7.0, 0.0, 0.0, 0.0], "top-k 2");
        check(Drawing { top_p: 0.65, ..t1 }, &[4.0 / 7.0, 3.0 / 7.0, 0.0, 0.0, 0.0], "top-p 0.65");
        check(Drawing { top_p: 0.0, ..t1 }, &[1.0, 0.0, 0.0, 0.0, 0.0], "top-p 0 keeps the best");
        check(Drawing { min_p: 0.4, ..t1 }, &[4.0 / 9.0, 3.0 / 9.0, 2.0 / 9.0, 0.0, 0.0], "min-p 0.4");
        check(Drawing { temperature: 0.5, ..t1 },
              &[0.16 / 0.2968, 0.09 / 0.2968, 0.04 / 0.2968, 0.0064 / 0.2968, 0.0004 / 0.2968], "temperature 0.5");
    }

    /// The chain as its words say: everything sorted, nothing skipped.
    fn plainly(logits: &[f32], drawing: &Drawing, position: u32) -> Option<(u32, f32)> {
        let scaled: Vec<f32> = logits.iter().map(|l| l * drawing.scale()).collect();
        let most = scaled.iter().copied().filter(|v| v.is_finite()).reduce(f32::max)?;
        let tokens = (0..).zip(&scaled).filter(|(_, v)| v.is_finite()).map(|(t, v)| (t, most - v));
        let mut left: Vec<(u32, f32)> = tokens.filter(|c| c.1 < Chance::REACH).collect();
        left.sort_by_key(rank);
        if drawing.top_k > 0 {
            left.truncate(drawing.top_k as usize);
        }
        if drawing.top_p < 1.0 {
            let total: f64 = left.iter().map(|c| Chance::weight(c.1) as f64).sum();
            let mut before = 0.0;
            left.retain(|c| {
                let is_kept = before == 0.0 || before < (drawing.top_p as f64 * total).floor();
                before += Chance::weight(c.1) as f64;
                is_kept
            });
        }
        left.retain(|c| Chance::weight(c.1) as f64 >= (drawing.min_p as f64 * (1u64 << 31) as f64).floor());
        let chance = Chance::new(drawing.seed, drawing.choice, position);
        let score = |c: &(u32, f32)| chance.gumbel(c.0) - c.1;
        left.sort_by(|a, b| score(b).total_cmp(&score(a)).then(a.0.cmp(&b.0)));
        left.first().copied()
    }

    #[test]
    fn what_is_skipped_would_not_have_been_drawn() {
        let chance = Chance::new(5, 0, 0);
        let size = |t: u32| 3.0 * (chance.gumbel(t) + chance.gumbel(t + 10_000));
        let smooth: Vec<f32> = (0..3000).map(size).collect();
        let ties: Vec<f32> = smooth.iter().map(|l| l.round()).collect();
        let mut odd = smooth.clone();
        odd[7] = f32::INFINITY;
        odd[1000..1200].fill(f32::NAN);
        odd[2000..2100].fill(f32::NEG_INFINITY);
        odd[50] = -3e38;
        for (logits, what) in [(smooth, "smooth"), (ties, "ties"), (odd, "odd"), (vec![0.5; 3000], "equal")] {
            for temperature in [0.2, 1.0, 5.0] {
                for (top_k, top_p, min_p) in [
                    (0, 1.0, 0.0),
                    (20, 1.0, 0.0),
                    (0, 0.9, 0.0),
                    (0, 1.0, 0.05),
                    (200, 0.8, 0.01),
                    (1, 0.0, 1.0),
                ] {
                    let drawing = Drawing { temperature, top_k, top_p, min_p, seed: 9, ..Default::default() };
                    for position in 0..20 {
                        let got = Sampler::default().draw(&logits, None, &drawing, Past::default(), position);
                        assert_eq!(
                            got,
                            plainly(&logits, &drawing, position),
                            "{what}, {drawing:?}, {position}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    #[allow(clippy::type_complexity, reason = "a table")]
    fn only_allowed_tokens_are_drawn() {
        let logits: Vec<f32> = (0..70).map(|t| (t % 7) as f32).collect();
        let allow = |tokens: &[u32]| {
            let mut mask = vec![0u32; 3];
            tokens.iter().for_each(|t| mask[*t as usize / 32] |= 1 << (t % 32));
            mask
        };
        let (greedy, hot) = (Drawing::default(), Drawing { temperature: 1.0, ..Default::default() });
        let biased = [
            Adjustment { token: 1, bias: 9.0, ..Default::default() },
            Adjustment { token: 6, bias: f32::INFINITY, ..Default::default() },
        ];
        let cases: [(&[u32], &Drawing, &[Adjustment], Option<u32>); 6] = [
            (&[0, 33, 69], &greedy, &[], Some(69)),
            (&[0, 33], &greedy, &[], Some(33)),
            (&[], &greedy, &[], None),
            (&[64], &hot, &[], Some(64)),
            (&[], &hot, &[], None),
            (&[1, 2], &greedy, &biased, Some(1)),
        ];
        for (tokens, drawing, listed, want) in cases {
            let past = Past { listed, drafted: &[] };
            let got = Sampler::default().draw(&logits, Some(&allow(tokens)), drawing, past, 3);
            assert_eq!(got.map(|c| c.0), want, "{tokens:?}");
        }
        let short = allow(&[5]);
        let got = Sampler::default().draw(&logits, Some(&short[..1]), &hot, Past::default(), 3);
        assert_eq!(got.map(|c| c.0), Some(5), "what a mask does not reach is not allowed");
    }

    #[test]
    fn penalties_count_prompt_answer_and_drafts_as_defined() {
        let drawing = Drawing {
            repetition_penalty: 2.0,
            presence_penalty: 0.5,
            frequency_penalty: 0.25,
            ..Default::default()
        };
        let listed = [
            Adjustment { token: 0, is_in_prompt: true, ..Default::default() },
            Adjustment { token: 1, answered: 1, ..Default::default() },
            Adjustment { token: 3, bias: -1.0, ..Default::default() },
        ];
        let mut logits = [4.0, 4.0, 3.0, -1.0, 2.0];
        for change in (Past { listed: &listed, drafted: &[1, 4, 4] }).changes() {
            let l = &mut logits[change.token as usize];
            *l = drawing.adjusted(*l, &change);
        }
        assert_eq!(logits, [2.0, 1.0, 3.0, -2.0, 0.0]);
    }

    #[test]
    fn a_large_nucleus_is_found_beyond_the_first_sorted_part() {
        let drawing = Drawing { temperature: 1.0, top_p: 0.5, ..Default::default() };
        let mut sampler = Sampler::default();
        sampler.draw(&[0.0f32; 1000], None, &drawing, Past::default(), 0);
        assert_eq!(sampler.candidates.len(), 500);
        assert!(sampler.candidates.iter().all(|c| c.0 < 500), "ties go to lower ids");
    }
}
