//! What a request wants of its tokens, and what its bias and penalties know of them. The chain from logits to a token is
//! [`overdraft_plan::draw`]'s.

use overdraft_plan::draw::{self, Adjustment, Drawing, Past};

use crate::error::{EngineError, Result};

/// How to choose tokens. The default is greedy.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sampling {
    pub drawing: Drawing,
    /// Added to the logits of single tokens.
    pub bias: Vec<(u32, f32)>,
}

impl From<Drawing> for Sampling {
    fn from(drawing: Drawing) -> Self {
        Self { drawing, bias: Vec::new() }
    }
}

impl Sampling {
    /// Refuses values outside their meaning, by name.
    pub fn check(&self, vocab: usize) -> Result<()> {
        let how = &self.drawing;
        let rules = [
            ("temperature", how.temperature, 0.0..=100.0, "must be between 0 (greedy) and 100"),
            ("top_p", how.top_p, 0.0..=1.0, "must be between 0 and 1 (off)"),
            ("min_p", how.min_p, 0.0..=1.0, "must be between 0 (off) and 1"),
            (
                "repetition_penalty",
                how.repetition_penalty,
                0.01..=100.0,
                "must be between 0.01 and 100 (1 is off)",
            ),
            (
                "frequency_penalty",
                how.frequency_penalty,
                -100.0..=100.0,
                "must be between -100 and 100 (0 is off)",
            ),
            (
                "presence_penalty",
                how.presence_penalty,
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
        let counts = sampling.drawing.has_penalties();
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
        if self.counts {
            Adjustment::count(&mut self.listed, token);
        }
    }

    /// Whether the list still holds no more than `most` tokens when so many have joined the answer.
    pub fn stays_within(&self, most: usize, joining: usize) -> bool {
        self.listed.len() + if self.counts { joining } else { 0 } <= most
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
        self.0.draw(logits, allowed, &sampling.drawing, past, position).map(|drawn| drawn.0)
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
        let s = Sampling { drawing: Drawing { presence_penalty: 0.5, ..s.drawing }, ..s };
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
            ("temperature", Drawing { temperature: -1.0, ..Default::default() }.into()),
            ("temperature", Drawing { temperature: f32::NAN, ..Default::default() }.into()),
            ("top_p", Drawing { top_p: 1.5, ..Default::default() }.into()),
            ("min_p", Drawing { min_p: -0.1, ..Default::default() }.into()),
            ("repetition_penalty", Drawing { repetition_penalty: 0.0, ..Default::default() }.into()),
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
