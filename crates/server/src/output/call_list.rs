//! The calls of one answer, numbered and named.

use super::call::Call;
use super::piece::{Piece, append_args};

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

    pub(super) fn has_room(&self, n: usize) -> bool {
        self.n_calls + n <= MAX_CALLS
    }

    /// Gives out that a function is called, before its arguments are; returns the call's number.
    pub(super) fn begin(&mut self, name: String, out: &mut Vec<Piece>) -> usize {
        let index = self.n_calls;
        self.n_calls += 1;
        let id = format!("call_{:016x}{index:04x}", self.seed);
        out.push(Piece::CallStart { index, id, name });
        index
    }

    /// Gives `calls` out whole, or says that there are too many.
    pub(super) fn give_out(&mut self, calls: Vec<Call>, out: &mut Vec<Piece>) -> bool {
        if !self.has_room(calls.len()) {
            return false;
        }
        for call in calls {
            let index = self.begin(call.name, out);
            append_args(out, index, &call.args);
            out.push(Piece::CallEnd { index });
        }
        true
    }
}
