//! How tokens are drawn from logits. What a request wants is data of a step; the chain from logits to a token is one
//! function, so that a host that reads logits and a device that does not draw the same token, always.

mod chance;
mod sampler;

pub use chance::{Chance, mix};
pub use sampler::Sampler;

/// Colder than this is greedy: the draw could not differ, and dividing by it could overflow.
const GREEDY_BELOW: f32 = 1e-4;

/// How a sequence's tokens are drawn. Always in this order: bias, penalties, temperature, top-k, top-p, min-p, the draw.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drawing {
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
    pub seed: u64,
    /// Which of several answers to one request this is.
    pub choice: u32,
}

impl Default for Drawing {
    fn default() -> Self {
        Self::GREEDY
    }
}

impl Drawing {
    pub const GREEDY: Self = Self {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        repetition_penalty: 1.0,
        frequency_penalty: 0.0,
        presence_penalty: 0.0,
        seed: 0,
        choice: 0,
    };

    pub fn is_greedy(&self) -> bool {
        self.temperature < GREEDY_BELOW
    }

    pub fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0 || self.frequency_penalty != 0.0 || self.presence_penalty != 0.0
    }

    /// What logits are multiplied by.
    pub fn scale(&self) -> f32 {
        if self.is_greedy() { 1.0 } else { 1.0 / self.temperature }
    }

    /// `top_p` in units of 2^-56, where it is on.
    pub fn share(&self) -> Option<u64> {
        (self.top_p < 1.0).then_some((self.top_p as f64 * (1u64 << 56) as f64) as u64)
    }

    /// The least [`Chance::weight`] that `min_p` keeps.
    pub fn least_weight(&self) -> u32 {
        (self.min_p as f64 * (1u64 << 31) as f64) as u32
    }

    /// No token at this distance from the best or further can be drawn, nor does it matter to those that can.
    pub fn reach(&self) -> f32 {
        let least = self.least_weight();
        if self.share().is_some() {
            Chance::WEIGHS_NOTHING
        } else if least > 0 {
            // With room for roundings.
            (((1u64 << 31) as f32 / least as f32).ln() + 0.01).min(Chance::WEIGHS_NOTHING)
        } else {
            Chance::REACH
        }
    }

    /// A logit after bias and penalties.
    pub fn adjusted(&self, logit: f32, change: &Adjustment) -> f32 {
        let l = logit + change.bias;
        if !change.is_in_prompt && change.answered == 0 {
            return l;
        }
        let l = if l > 0.0 { l / self.repetition_penalty } else { l * self.repetition_penalty };
        if change.answered == 0 {
            return l;
        }
        l - (self.presence_penalty + change.answered as f32 * self.frequency_penalty)
    }
}

/// What bias and penalties know of a token.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Adjustment {
    pub token: u32,
    pub bias: f32,
    /// Times it occurs in the answer.
    pub answered: u32,
    pub is_in_prompt: bool,
}

impl Adjustment {
    /// A token has joined the answer; `listed` is by token, each once, and stays so.
    pub fn count(listed: &mut Vec<Self>, token: u32) {
        match listed.binary_search_by_key(&token, |a| a.token) {
            Ok(at) => listed[at].answered += 1,
            Err(at) => listed.insert(at, Self { token, answered: 1, ..Default::default() }),
        }
    }
}

/// The tokens of a sequence that bias and penalties change, up to the place where one is drawn.
#[derive(Clone, Copy, Debug, Default)]
pub struct Past<'a> {
    /// By token, each once.
    pub listed: &'a [Adjustment],
    /// Drafted tokens behind those that the list counts.
    pub drafted: &'a [u32],
}

impl Past<'_> {
    /// Every token that is changed, once.
    fn changes(&self) -> impl Iterator<Item = Adjustment> {
        let listed = self.listed.iter().copied();
        let is_new = |(i, token): &(usize, &u32)| {
            !self.drafted[..*i].contains(token)
                && self.listed.binary_search_by_key(*token, |a| a.token).is_err()
        };
        let drafted = self.drafted.iter().enumerate().filter(is_new);
        let drafted = drafted.map(|(_, token)| Adjustment { token: *token, ..Default::default() });
        listed.chain(drafted).map(|change| {
            let again = self.drafted.iter().filter(|token| **token == change.token).count() as u32;
            Adjustment { answered: change.answered + again, ..change }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_list_counts_what_a_map_would_and_keeps_the_rest() {
        let mut random = (0u64..).map(|i| mix(i) as u32);
        for case in 0..50 {
            let mut below = |n: u32| random.next().unwrap_or(0) % n;
            let (vocab, n) = (1 + below(300), below(200));
            let first = (0..n).map(|_| (below(vocab), (below(5) as f32, below(4), below(2) == 1)));
            let mut wanted: BTreeMap<u32, (f32, u32, bool)> = first.collect();
            let entry = |(token, (bias, answered, is_in_prompt)): (&u32, &(f32, u32, bool))| Adjustment {
                token: *token,
                bias: *bias,
                answered: *answered,
                is_in_prompt: *is_in_prompt,
            };
            let mut listed: Vec<Adjustment> = wanted.iter().map(entry).collect();
            for _ in 0..100 {
                let token = below(vocab);
                Adjustment::count(&mut listed, token);
                wanted.entry(token).or_default().1 += 1;
            }
            assert!(listed.iter().copied().eq(wanted.iter().map(entry)), "case {case}");
        }
    }
}
