//! A constraint for tests: a rule says what may follow the tokens so far.

use crate::constraint::Constraint;

/// Asks `rule(tokens so far, token)` for every token of a vocabulary.
pub struct ByRule<R> {
    vocab: u32,
    rule: R,
    given: Vec<u32>,
}

impl<R: Fn(&[u32], u32) -> bool> ByRule<R> {
    pub fn new(vocab: usize, rule: R) -> Self {
        Self { vocab: vocab as u32, rule, given: Vec::new() }
    }
}

impl<R: Fn(&[u32], u32) -> bool + Send> Constraint for ByRule<R> {
    fn mask(&mut self, allowed: &mut [u32]) {
        assert!(allowed.iter().all(|word| *word == 0), "a mask comes all zero");
        for token in (0..self.vocab).filter(|t| (self.rule)(&self.given, *t)) {
            allowed[token as usize / 32] |= 1 << (token % 32);
        }
    }

    fn accept(&mut self, token: u32) -> bool {
        let may = (self.rule)(&self.given, token);
        if may {
            self.given.push(token);
        }
        may
    }

    fn rollback(&mut self, n: usize) {
        let left = self.given.len().checked_sub(n);
        self.given.truncate(left.expect("no more is taken back than was given"));
    }
}
