//! A text's place in its grammar.

use std::sync::Arc;

use llguidance::Matcher;
use overdraft_engine::Constraint;
use overdraft_formats::tokenizer::Tokenizer;

pub(super) struct GrammarConstraint {
    matcher: Matcher,
    tokenizer: Arc<Tokenizer>,
    /// Control tokens, and those that end the text.
    controls: Arc<[u32]>,
    /// End tokens accepted. They are kept from the matcher, which takes some of them for text.
    n_ends: usize,
}

impl GrammarConstraint {
    pub(super) fn new(matcher: Matcher, tokenizer: Arc<Tokenizer>, controls: Arc<[u32]>) -> Self {
        Self { matcher, tokenizer, controls, n_ends: 0 }
    }
}

impl GrammarConstraint {
    /// Where a user's grammar allows bytes that are no text (`~/x/` does), the library's mask has control tokens that it
    /// then refuses.
    fn forbid_hidden_controls(&mut self, allowed: &mut [u32]) {
        let mut may_end = None;
        for &token in self.controls.iter() {
            let (word, bit) = (token as usize / 32, 1 << (token % 32));
            if allowed.get(word).is_none_or(|word| word & bit == 0) {
                continue;
            }
            let is_allowed = match self.tokenizer.is_end(token) {
                true => *may_end.get_or_insert_with(|| self.matcher.is_accepting().unwrap_or(false)),
                false => matches!(self.matcher.validate_tokens(&[token]), Ok(1)),
            };
            if !is_allowed {
                allowed[word] &= !bit;
            }
        }
    }
}

impl Constraint for GrammarConstraint {
    fn mask(&mut self, allowed: &mut [u32]) {
        if self.n_ends > 0 {
            return;
        }
        // A step beyond its limits leaves no token: the text ends there.
        if let Ok(mask) = self.matcher.compute_mask_or_eos() {
            allowed.iter_mut().zip(mask.as_slice()).for_each(|(to, from)| *to = *from);
            self.forbid_hidden_controls(allowed);
        }
    }

    fn accept(&mut self, token: u32) -> bool {
        if self.n_ends > 0 {
            return false;
        }
        if self.tokenizer.is_end(token) {
            let may_end = self.matcher.is_accepting().unwrap_or(false);
            self.n_ends += usize::from(may_end);
            return may_end;
        }
        if self.matcher.is_stopped() {
            return false;
        }
        self.matcher.try_consume_tokens(&[token]).is_ok_and(|n_consumed| n_consumed == 1)
    }

    fn rollback(&mut self, n: usize) {
        let n_ends = self.n_ends.min(n);
        self.n_ends -= n_ends;
        // Fails only for a matcher that has failed before, which then allows nothing.
        let _ = self.matcher.rollback(n - n_ends);
    }
}
