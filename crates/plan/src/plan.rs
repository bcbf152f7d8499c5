//! A recorded forward pass: activations and the ops between them.

use crate::op::Op;

/// Which rows an activation has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowSet {
    /// One per row of the step.
    Step,
    /// One per row whose logits were asked for.
    Logits,
}

/// An activation buffer, `[rows, width]` of `f32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Act(pub u32);

/// A buffer of choices: `[rows, k]` of (expert, weight) or (token, log-probability).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice(pub u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActSpec {
    pub width: usize,
    pub rows: RowSet,
}

/// What a recurrent layer computed for rows that are not sure, kept to the end of the step for a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptRows {
    pub layer: usize,
    pub prepared: Act,
    pub preconv: Act,
    pub gates: Act,
    pub delta: Act,
}

/// Ops in order, for at most `bucket` rows. Made by a [`crate::Recorder`].
#[derive(Clone, Debug)]
pub struct Plan {
    pub bucket: usize,
    /// Rows whose logits can be asked for: a vocabulary wide each, so fewer than `bucket` in large plans.
    pub logit_rows: usize,
    pub acts: Vec<ActSpec>,
    /// Entries per row (`width`) of each choice buffer.
    pub choices: Vec<ActSpec>,
    pub ops: Vec<Op>,
    /// `[logit rows, vocabulary]`.
    pub logits: Act,
    /// Copies of the residual stream that were asked for, in layer order.
    pub taps: Vec<Act>,
    /// Every recurrent layer's rows, in plans whose steps may hold rows that are not sure.
    pub kept: Vec<KeptRows>,
    /// Layers whose pages the plan writes.
    pub kv_layers: Vec<usize>,
    /// Where rows of prompts are computed by kernels of their own ([`crate::Backend::reads_apart`]): how many written rows
    /// can stand before them. `None`: all rows are computed as written ones are.
    pub written_before_prompts: Option<usize>,
    /// Ops over rows of logits run on those kernels too: of a draft, whose numbers are nobody's text.
    pub logits_apart: bool,
}

impl Plan {
    /// Adds the draw of each logit row's token, to be made where the logits lie.
    pub fn sample(&mut self) -> Choice {
        self.choices.push(ActSpec { width: 1, rows: RowSet::Logits });
        let choice = Choice(self.choices.len() as u32 - 1);
        self.ops.push(Op::Sample { logits: self.logits, choice });
        choice
    }

    pub fn act(&self, act: Act) -> ActSpec {
        self.acts[act.0 as usize]
    }

    /// Floats of scratch the plan needs.
    pub fn scratch_len(&self) -> usize {
        self.acts.iter().map(|a| a.width * self.capacity(a.rows)).sum()
    }

    /// Rows a buffer of this kind has room for.
    pub fn capacity(&self, rows: RowSet) -> usize {
        match rows {
            RowSet::Step => self.bucket,
            RowSet::Logits => self.logit_rows,
        }
    }
}
