//! What a request wants of its tokens, and what its bias and penalties know of them. The chain from logits to a token is
//! [`overdraft_plan::draw`]'s.

use overdraft_plan::draw::{self, Adjustment, Drawing, Past};

use crate::error::{EngineError, Result};

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

    pub(crate) fn has_penalties(&self) -> bool {
        self.drawing().has_penalties()
    }

    /// All but the bias, as backends take it.
    pub fn drawing(&self) -> Drawing {
        Drawing {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            seed: self.seed,
            choice: self.choice,
        }
    }
}

/// The tokens of a sequence that bias and penalties change, by token: as steps hand it on to backends.
#[derive(Clone, Debug, Default)]
pub struct History {
    listed: Vec<Adjustment>,
    counts: bool,
}

impl History {
    /// Of a text that begins with `prompt`, with room for so many different tokens that penalties count.
    pub fn new(sampling: &Sampling, prompt: &[u32], room: usize) -> Self {
        let counts = sampling.has_penalties();
        let biased = sampling.bias.iter().map(|(token, bias)| Adjustment {
            token: *token,
            bias: *bias,
            ..Default::default()
        });
        let seen = if counts { prompt } else { &[] };
        let seen =
            seen.iter().map(|token| Adjustment { token: *token, is_in_prompt: true, ..Default::default() });
        let mut listed: Vec<Adjustment> = biased.chain(seen).collect();
        listed.sort_by_key(|a| a.token);
        listed.dedup_by(|again, first| {
            let is_same = again.token == first.token;
            if is_same {
                first.bias += again.bias;
                first.is_in_prompt |= again.is_in_prompt;
            }
            is_same
        });
        if counts {
            listed.reserve_exact((room + sampling.bias.len()).saturating_sub(listed.len()));
        }
        Self { listed, counts }
    }

    /// A token has joined the answer.
    pub fn answer(&mut self, token: u32) {
        if !self.counts {
            return;
        }
        match self.listed.binary_search_by_key(&token, |a| a.token) {
            Ok(at) => self.listed[at].answered += 1,
            Err(at) => self.listed.insert(at, Adjustment { token, answered: 1, ..Default::default() }),
        }
    }

    pub fn listed(&self) -> &[Adjustment] {
        &self.listed
    }
}

/// Chooses tokens where logits are read; keeps its buffers.
#[derive(Default)]
pub struct Sampler(draw::Sampler);

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
        let past = Past { listed: &history.listed, drafted: &[] };
        self.0.draw(logits, allowed, &sampling.drawing(), past, position).map(|drawn| drawn.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_of_a_token_is_listed_once_and_in_order() {
        let s = Sampling { bias: vec![(7, 2.0), (3, 1.0), (7, 0.5)], ..Default::default() };
        let mut history = History::new(&s, &[9, 3], 16);
        history.answer(5);
        let known = |token, bias, answered, is_in_prompt| Adjustment { token, bias, answered, is_in_prompt };
        assert_eq!(
            history.listed(),
            [known(3, 1.0, 0, false), known(7, 2.5, 0, false)],
            "nothing is counted"
        );
        let s = Sampling { presence_penalty: 0.5, ..s };
        let mut history = History::new(&s, &[9, 3, 9], 16);
        let room = history.listed.capacity();
        [5, 9, 5].into_iter().for_each(|token| history.answer(token));
        let want = [
            known(3, 1.0, 0, true),
            known(5, 0.0, 2, false),
            known(7, 2.5, 0, false),
            known(9, 0.0, 1, true),
        ];
        assert_eq!(history.listed(), want);
        assert_eq!(history.listed.capacity(), room);
    }

    #[test]
    fn bias_moves_the_choice() {
        let s = Sampling { bias: vec![(0, 9.0), (2, f32::NEG_INFINITY)], ..Default::default() };
        let history = History::new(&s, &[], 0);
        assert_eq!(Sampler::default().choose(&[0.0, 3.0, 5.0], &s, &history, 0), Some(0));
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
