//! The calls of one answer, numbered and named.

use super::call::Call;
use super::piece::Piece;

/// More in one answer is a model in a loop.
const MAX_CALLS: usize = 128;

#[derive(Clone, Debug)]
pub(super) struct CallList {
    /// Makes ids differ from those of other answers in the same conversation.
    seed: u64,
    n_calls: usize,
}

impl CallList {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed, n_calls: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.n_calls == 0
    }

    /// Gives `calls` out, or says that there are too many.
    pub(super) fn give_out(&mut self, calls: Vec<Call>, out: &mut Vec<Piece>) -> bool {
        if self.n_calls + calls.len() > MAX_CALLS {
            return false;
        }
        for call in calls {
            let index = self.n_calls;
            self.n_calls += 1;
            let id = format!("call_{:016x}{index:04x}", self.seed);
            out.push(Piece::CallStart { index, id, name: call.name });
            out.push(Piece::CallArgs { index, text: call.args });
            out.push(Piece::CallEnd { index });
        }
        true
    }
}
