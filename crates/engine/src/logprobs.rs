//! Log-probabilities of the target's own distribution: no bias, penalty, temperature or constraint.

/// Beyond this a client wants the whole distribution, which is not what this is for.
pub const MAX_TOP: usize = 20;

/// Of one token.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Logprobs {
    pub chosen: f32,
    /// As many as were asked for, best first, the lower id first among equals.
    pub top: Vec<(u32, f32)>,
}

/// Those of `token` and of the `n` most likely. Logits that are no finite numbers have no share.
pub(crate) fn logprobs(logits: &[f32], token: u32, n: usize) -> Logprobs {
    let finite = || logits.iter().copied().enumerate().filter(|(_, l)| l.is_finite());
    let max = finite().fold(f32::NEG_INFINITY, |max, (_, l)| max.max(l));
    // In f64 and in token order: the sum of 250 000 terms keeps every bit of an f32.
    let total = finite().map(|(_, l)| f64::from(l - max).exp()).sum::<f64>().ln();
    let logprob = |l: f32| (f64::from(l) - f64::from(max) - total) as f32;
    let mut top: Vec<(u32, f32)> = Vec::with_capacity(n + 1);
    if n > 0 {
        for (t, l) in finite() {
            if top.len() == n && l <= top[n - 1].1 {
                continue;
            }
            let at = top.partition_point(|other| other.1 >= l);
            top.truncate(n - 1);
            top.insert(at, (t as u32, l));
        }
    }
    top.iter_mut().for_each(|t| t.1 = logprob(t.1));
    let chosen = logits.get(token as usize).copied().filter(|l| l.is_finite());
    Logprobs { chosen: chosen.map_or(f32::NEG_INFINITY, logprob), top }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chosen_and_the_best_have_their_share_of_the_raw_distribution() {
        let p = [0.1f32, 0.5, 0.25, 0.1, 0.05];
        let mut logits: Vec<f32> = p.iter().map(|p| p.ln() + 3.0).collect();
        logits.push(f32::NAN);
        logits.push(f32::INFINITY);
        for n in 0..=7 {
            let got = logprobs(&logits, 3, n);
            assert!((got.chosen - 0.1f32.ln()).abs() < 1e-6);
            let want: Vec<u32> = [1, 2, 0, 3, 4].into_iter().take(n).collect();
            assert_eq!(got.top.iter().map(|t| t.0).collect::<Vec<_>>(), want, "equals by id");
            for (token, logprob) in got.top {
                assert!((logprob - p[token as usize].ln()).abs() < 1e-6);
            }
        }
        assert_eq!(logprobs(&logits, 5, 0).chosen, f32::NEG_INFINITY, "no number, no share");
    }

    #[test]
    fn far_apart_logits_neither_overflow_nor_vanish() {
        let got = logprobs(&[1e30, -1e30, 1e30], 0, 3);
        assert!((got.chosen - 0.5f32.ln()).abs() < 1e-6);
        assert_eq!(got.top[2], (1, -2e30));
        assert_eq!(logprobs(&[], 0, 3), Logprobs { chosen: f32::NEG_INFINITY, top: vec![] });
    }
}
