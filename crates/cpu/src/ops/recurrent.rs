//! The gated delta rule as rows: each row is computed from the grid state and the window of rows after it, so that
//! rejecting rows is forgetting them, and rows that came one at a time or in a tree meet the same numbers in the
//! same order.

use overdraft_plan::{
    CONV_ROWS, GRID, KeptRows, NO_PARENT, Recurrent, RecurrentState, SeqView, WINDOW_ROWS, grid_of,
};

use super::thread_buffer::with_buffer;
use super::{Cx, Mode, recurrent_groups};
use crate::memory::{Acts, RecurrentMemory};
use crate::shared::Shared;

/// The rows a row can need: its grid lies at most 31 behind it, however deep a draft it is.
pub(super) const REACH: usize = 2 * GRID;

/// One earlier row as a value head sees it.
#[derive(Clone, Copy, Default)]
pub(super) struct Past<'a> {
    pub(super) k: &'a [f32],
    pub(super) delta: &'a [f32],
    pub(super) g: f32,
}

pub(super) fn run(cx: &Cx<'_>, op: &Recurrent, layer: &mut RecurrentMemory) {
    let shape = layer.shape;
    let s = Shared::new(&mut layer.s);
    let window = &layer.window;
    cx.each(cx.step.n_seqs() * shape.value_heads, |task| {
        let seq = cx.step.seq(task / shape.value_heads);
        let head = Head::new(cx, op, &shape, window, seq, task % shape.value_heads);
        let len = shape.key_dim * shape.value_dim;
        let at = seq.slot * shape.state_len() + head.index * len;
        // SAFETY: a slot belongs to one sequence of the step (validated), and each of its heads to one task.
        let state = unsafe { s.write(at..at + len) };
        with_buffer(buffer_len(&shape), |buffer| {
            let (ahead, scaled_keys) = buffer.split_at_mut(len);
            match cx.mode {
                Mode::Definition => define(&head, state, ahead),
                Mode::Fast { isa, .. } => recurrent_groups::run(&head, *isa, state, ahead, scaled_keys),
            }
        });
    });
    for i in 0..cx.step.n_seqs() {
        keep_sure_rows(cx, op, layer, cx.step.seq(i));
    }
}

/// Floats of a task's buffer: a state one grid ahead, and the scaled keys of a fold.
pub(crate) fn buffer_len(shape: &RecurrentState) -> usize {
    shape.key_dim * shape.value_dim + GRID * shape.key_dim
}

/// A value head of one sequence: where its numbers are.
pub(super) struct Head<'a> {
    pub(super) cx: &'a Cx<'a>,
    op: &'a Recurrent,
    pub(super) seq: SeqView<'a>,
    window: &'a [f32],
    pub(super) shape: RecurrentState,
    index: usize,
    key_head: usize,
}

/// The inputs of one row.
pub(super) struct RowIn<'a> {
    pub(super) q: &'a [f32],
    pub(super) k: &'a [f32],
    pub(super) v: &'a [f32],
    pub(super) g: f32,
    pub(super) beta: f32,
}

impl<'a> Head<'a> {
    fn new(
        cx: &'a Cx<'a>,
        op: &'a Recurrent,
        shape: &RecurrentState,
        window: &'a [f32],
        seq: SeqView<'a>,
        index: usize,
    ) -> Self {
        let key_head = op.rule.key_head(index, shape.key_heads, shape.value_heads);
        Self { cx, op, seq, window, shape: *shape, index, key_head }
    }

    pub(super) fn input(&self, row: usize) -> RowIn<'a> {
        let (dk, dv, sh) = (self.shape.key_dim, self.shape.value_dim, &self.shape);
        // SAFETY: prepared rows and gates are only read in this op.
        let (x, gates) =
            unsafe { (self.cx.acts.row(self.op.prepared, row), self.cx.acts.row(self.op.gates, row)) };
        let keys = sh.key_heads * dk;
        RowIn {
            q: &x[self.key_head * dk..][..dk],
            k: &x[keys + self.key_head * dk..][..dk],
            v: &x[2 * keys + self.index * dv..][..dv],
            g: gates[self.index],
            beta: gates[sh.value_heads + self.index],
        }
    }

    /// `g` of a row of this step.
    pub(super) fn decay(&self, row: usize) -> f32 {
        // SAFETY: gates are only read in this op.
        unsafe { self.cx.acts.row(self.op.gates, row)[self.index] }
    }

    /// A row of this step that has been computed.
    pub(super) fn step_row(&self, row: usize) -> Past<'a> {
        let input = self.input(row);
        let dv = self.shape.value_dim;
        let columns = self.index * dv..(self.index + 1) * dv;
        // SAFETY: this head's deltas are written by this task alone, and this row's before now.
        let delta = unsafe { self.cx.acts.part(self.op.delta, row, columns) };
        Past { k: input.k, delta, g: input.g }
    }

    /// A committed row, from the window.
    fn kept_row(&self, pos: u32) -> Past<'a> {
        let sh = &self.shape;
        let len = sh.window_row_len();
        let at = (self.seq.slot * WINDOW_ROWS + pos as usize % WINDOW_ROWS) * len;
        let row = &self.window[at..at + len];
        let deltas = sh.key_heads * sh.key_dim;
        let gs = deltas + sh.value_heads * sh.value_dim;
        Past {
            k: &row[self.key_head * sh.key_dim..][..sh.key_dim],
            delta: &row[deltas + self.index * sh.value_dim..][..sh.value_dim],
            g: row[gs + self.index],
        }
    }

    /// A committed or sure row.
    pub(super) fn sure_row(&self, pos: u32) -> Past<'a> {
        match pos.checked_sub(self.seq.committed) {
            Some(i) => self.step_row(self.seq.rows[i as usize] as usize),
            None => self.kept_row(pos),
        }
    }

    /// The rows from `grid` up to the parent of `row`, in position order.
    fn past<'b>(&self, grid: u32, row: usize, out: &'b mut [Past<'a>; REACH]) -> &'b [Past<'a>] {
        let rows = self.cx.step.rows();
        let pos = rows[row].pos;
        let mut parent = rows[row].parent;
        for p in (grid..pos).rev() {
            out[(p - grid) as usize] = if parent == NO_PARENT {
                self.kept_row(p)
            } else {
                let past = self.step_row(parent as usize);
                parent = rows[parent as usize].parent;
                past
            };
        }
        &out[..(pos - grid) as usize]
    }

    /// # Safety
    /// The row's outputs of this head are this task's.
    pub(super) unsafe fn outputs(&self, row: usize) -> (&'a mut [f32], &'a mut [f32]) {
        let dv = self.shape.value_dim;
        let columns = self.index * dv..(self.index + 1) * dv;
        // SAFETY: the caller's promise.
        unsafe {
            (
                self.cx.acts.part_mut(self.op.delta, row, columns.clone()),
                self.cx.acts.part_mut(self.op.out, row, columns),
            )
        }
    }
}

/// Calls `compute(rows, grid, S at that grid)` for groups of up to [`GRID`] rows that start from the same state, in
/// order, folding `S` (stored for the grid of the last sure row, in `ahead` for deeper rows) by `fold(S, the grid it
/// stands at)`.
pub(super) fn walk(
    head: &Head<'_>,
    state: &mut [f32],
    ahead: &mut [f32],
    mut fold: impl FnMut(&mut [f32], u32),
    mut compute: impl FnMut(&[u32], u32, &[f32]),
) {
    let grid_at = |row: &u32| grid_of(head.cx.step.rows()[*row as usize].pos);
    let mut stored = head.seq.stored_grid;
    // The grid that `ahead` stands at, once it is needed.
    let mut ahead_at = None;
    let mut rest = head.seq.rows;
    while let Some(first) = rest.first() {
        let grid = grid_at(first);
        let sure = head.seq.rows.len() - rest.len() < head.seq.n_sure as usize;
        let n = rest.iter().take(GRID).take_while(|row| grid_at(row) == grid).count();
        let group;
        (group, rest) = rest.split_at(n);
        if sure {
            while stored < grid {
                fold(state, stored);
                stored += GRID as u32;
            }
        }
        if grid == stored {
            compute(group, grid, state);
        } else {
            // Deep drafts: one grid further, which only committed rows decide.
            let at = ahead_at.get_or_insert_with(|| {
                ahead.copy_from_slice(state);
                stored
            });
            while *at < grid {
                fold(ahead, *at);
                *at += GRID as u32;
            }
            compute(group, grid, ahead);
        }
    }
}

/// The recurrence itself, step by step from the grid: `S ← e^g S; delta = beta (v - Sᵀk); S ← S + k deltaᵀ; o = Sᵀq`.
fn define(head: &Head<'_>, state: &mut [f32], ahead: &mut [f32]) {
    let wide = |s: &[f32]| s.iter().map(|x| *x as f64).collect::<Vec<f64>>();
    walk(
        head,
        state,
        ahead,
        |s, grid| {
            let mut sum = wide(s);
            (grid..grid + GRID as u32).for_each(|p| advance(&mut sum, &head.sure_row(p)));
            s.iter_mut().zip(sum).for_each(|(s, x)| *s = x as f32);
        },
        |rows, grid, s| {
            for row in rows {
                define_row(head, *row as usize, grid, wide(s));
            }
        },
    );
}

fn advance(s: &mut [f64], past: &Past<'_>) {
    for (row, k) in s.chunks_exact_mut(past.delta.len()).zip(past.k) {
        for (x, delta) in row.iter_mut().zip(past.delta) {
            *x = (past.g as f64).exp() * *x + *k as f64 * *delta as f64;
        }
    }
}

fn define_row(head: &Head<'_>, row: usize, grid: u32, mut s: Vec<f64>) {
    let (dk, dv) = (head.shape.key_dim, head.shape.value_dim);
    let input = head.input(row);
    let mut reach = [Past::default(); REACH];
    for past in head.past(grid, row, &mut reach) {
        advance(&mut s, past);
    }
    let read = |s: &[f64], x: &[f32], scale: f64, c: usize| -> f64 {
        (0..dk).map(|a| scale * s[a * dv + c] * x[a] as f64).sum()
    };
    // SAFETY: the row's columns of this head are written by this task only.
    let (delta, out) = unsafe { head.outputs(row) };
    for (c, delta) in delta.iter_mut().enumerate() {
        let seen = read(&s, input.k, (input.g as f64).exp(), c);
        *delta = (input.beta as f64 * (input.v[c] as f64 - seen)) as f32;
    }
    advance(&mut s, &Past { k: input.k, delta, g: input.g });
    for (c, out) in out.iter_mut().enumerate() {
        *out = read(&s, input.q, 1.0, c) as f32;
    }
}

/// Sure rows enter the kept window; what they push out is behind every grid a later row can need.
fn keep_sure_rows(cx: &Cx<'_>, op: &Recurrent, layer: &mut RecurrentMemory, seq: SeqView<'_>) {
    let kept = KeptRows {
        layer: op.layer,
        prepared: op.prepared,
        preconv: op.preconv,
        gates: op.gates,
        delta: op.delta,
    };
    let n = seq.n_sure as usize;
    for i in n.saturating_sub(WINDOW_ROWS)..n {
        keep_row(&cx.acts, &kept, layer, seq.slot, seq.committed as usize + i, seq.rows[i] as usize);
    }
}

/// Row `row` of the step enters the slot's window at `pos`, and its input the convolution's.
pub(super) fn keep_row(
    acts: &Acts<'_>,
    kept: &KeptRows,
    layer: &mut RecurrentMemory,
    slot: usize,
    pos: usize,
    row: usize,
) {
    let shape = layer.shape;
    let (keys, len, width) = (shape.key_heads * shape.key_dim, shape.window_row_len(), shape.conv_width());
    let deltas = shape.value_heads * shape.value_dim;
    // SAFETY: no task of the op that computed the row is left.
    let (x, delta, gates, preconv) = unsafe {
        (
            acts.row(kept.prepared, row),
            acts.row(kept.delta, row),
            acts.row(kept.gates, row),
            acts.row(kept.preconv, row),
        )
    };
    let at = (slot * WINDOW_ROWS + pos % WINDOW_ROWS) * len;
    let window = &mut layer.window[at..at + len];
    window[..keys].copy_from_slice(&x[keys..2 * keys]);
    window[keys..keys + deltas].copy_from_slice(delta);
    window[keys + deltas..].copy_from_slice(&gates[..shape.value_heads]);
    let at = (slot * CONV_ROWS + pos % CONV_ROWS) * width;
    layer.conv[at..at + width].copy_from_slice(preconv);
}
