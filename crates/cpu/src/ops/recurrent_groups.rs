//! The delta rule without ever moving `S` between grids, by groups of rows that start from the same state: `S` is read
//! once for a group, the rows before the group are met as a matrix product, the rows inside one after another. Every
//! element of a result is one chain of terms (the state, then earlier rows in position order), so a row has the same
//! bits in a group as alone.

use overdraft_plan::GRID;

use super::recurrent::{Head, Past, REACH, RowIn, walk};
use crate::linear::Isa;
use crate::simd;
use crate::sums::{Factors, Matrix, Start, dots_with_two, weighted_sums};

/// `scaled_keys` holds [`GRID`] keys while a state is folded.
pub(super) fn run(head: &Head<'_>, isa: Isa, state: &mut [f32], ahead: &mut [f32], scaled_keys: &mut [f32]) {
    walk(
        head,
        state,
        ahead,
        |s, grid| fold(head, isa, s, grid, scaled_keys),
        |rows, grid, s| Group::new(head, isa, rows, grid).compute(s),
    );
}

/// `S` moves one grid on: `S ← e^{b_15} S + Σ_j e^{b_15-b_j} k_j delta_jᵀ`.
fn fold(head: &Head<'_>, isa: Isa, s: &mut [f32], grid: u32, scaled_keys: &mut [f32]) {
    let (dk, dv) = (head.shape.key_dim, head.shape.value_dim);
    let reach: [Past<'_>; GRID] = std::array::from_fn(|j| head.sure_row(grid + j as u32));
    // Decay from each row to the end of the block, summed from the end; the last is that of the state.
    let mut weights = [0.0f32; GRID + 1];
    for j in (0..GRID).rev() {
        weights[j] = weights[j + 1] + reach[j].g;
    }
    simd::decayed(isa, &mut weights);
    let [whole, weights @ ..] = weights;
    for ((scaled, past), weight) in scaled_keys.chunks_exact_mut(dk).zip(&reach).zip(weights) {
        scaled.copy_from_slice(past.k);
        simd::scale(isa, weight, scaled);
    }
    let deltas = reach.map(|past| past.delta);
    const AT_ONCE: usize = 16;
    for (i, rows) in s.chunks_mut(AT_ONCE * dv).enumerate() {
        let n = rows.len() / dv;
        let mut sums: [&mut [f32]; AT_ONCE] = std::array::from_fn(|_| Default::default());
        for (sum, row) in sums.iter_mut().zip(rows.chunks_exact_mut(dv)) {
            *sum = row;
        }
        // The factors of an element's rows lie one key apart.
        let of: [&[f32]; AT_ONCE] = std::array::from_fn(|a| &scaled_keys[(i * AT_ONCE + a).min(dk - 1)..]);
        let factors = Factors { of: &of[..n], step: dk };
        weighted_sums(isa, factors, &deltas[..], Start::Scaled(whole), &mut sums[..n]);
    }
}

/// Rows that start from the state at `grid`, and the rows from there on that all of them come after.
struct Group<'a> {
    head: &'a Head<'a>,
    isa: Isa,
    rows: &'a [u32],
    grid: u32,
    /// Position up to which all rows have the same past.
    common_end: u32,
    keys: [&'a [f32]; REACH],
    deltas: [&'a [f32]; REACH],
    /// Per row, at the place of a past position, the decay from just after it to the row; at the row's own place the
    /// decay of the state.
    weights: [[f32; REACH]; GRID],
}

/// Factors of earlier rows: `-e^{b_i-b_j} (k_j·k_i)` in a delta and `e^{b_i-b_j} (k_j·q_i)` in an output.
#[derive(Clone, Copy)]
struct RowFactors {
    in_delta: [f32; REACH],
    in_out: [f32; REACH],
}

impl<'a> Group<'a> {
    fn new(head: &'a Head<'a>, isa: Isa, rows: &'a [u32], grid: u32) -> Self {
        let first = head.cx.step.rows()[rows[0] as usize];
        // What hangs below a sure row comes after all rows up to it; drafts have at least the sure rows in common.
        let common_end = if first.local < head.seq.n_sure { first.pos } else { head.seq.sure_end() };
        let mut group = Self {
            head,
            isa,
            rows,
            grid,
            common_end,
            keys: [&[]; REACH],
            deltas: [&[]; REACH],
            weights: [[0.0; REACH]; GRID],
        };
        let mut decays = [0.0f32; REACH];
        for (j, p) in (grid..common_end).enumerate() {
            let past = head.sure_row(p);
            (group.keys[j], group.deltas[j], decays[j]) = (past.k, past.delta, past.g);
        }
        for i in 0..rows.len() {
            group.weigh(i, &decays);
        }
        group
    }

    /// Decays from the row back. Summed backwards from the row itself: prefix sums reach -1500 and their differences
    /// would lose the digits that matter.
    fn weigh(&mut self, i: usize, common: &[f32; REACH]) {
        let rows = self.head.cx.step.rows();
        let mut at = rows[self.rows[i] as usize];
        let own = (at.pos - self.grid) as usize;
        let n_common = self.n_common();
        let weights = &mut self.weights[i][..=own];
        let mut decay = self.head.decay(self.rows[i] as usize);
        for weight in weights[n_common..own].iter_mut().rev() {
            *weight = decay;
            decay += self.head.decay(at.parent as usize);
            at = rows[at.parent as usize];
        }
        for (weight, g) in weights[..n_common].iter_mut().zip(common).rev() {
            *weight = decay;
            decay += g;
        }
        weights[own] = decay;
        simd::decayed(self.isa, weights);
    }

    fn n_common(&self) -> usize {
        (self.common_end - self.grid) as usize
    }

    /// Factors of the past rows with these keys, the first of them at `place`.
    fn factors(&self, i: usize, place: usize, keys: &[&[f32]], input: &RowIn<'_>) -> RowFactors {
        let n = keys.len();
        let mut factors = RowFactors { in_delta: [0.0; REACH], in_out: [0.0; REACH] };
        let (in_delta, in_out) = (&mut factors.in_delta[..n], &mut factors.in_out[..n]);
        dots_with_two(self.isa, keys, input.k, input.q, in_delta, in_out);
        for ((d, o), weight) in in_delta.iter_mut().zip(in_out).zip(&self.weights[i][place..]) {
            *d *= -weight;
            *o *= weight;
        }
        factors
    }

    fn compute(&self, s: &[f32]) {
        self.start(s);
        for i in 0..self.rows.len() {
            self.finish(i);
        }
    }

    /// What the state and the common past put into every row's delta and output.
    fn start(&self, s: &[f32]) {
        const TWO_EACH: usize = 2 * GRID;
        let (n, n_common) = (self.rows.len(), self.n_common());
        let mut sums: [&mut [f32]; TWO_EACH] = std::array::from_fn(|_| Default::default());
        let mut state_factors: [&[f32]; TWO_EACH] = [&[]; TWO_EACH];
        let mut factors = [RowFactors { in_delta: [0.0; REACH], in_out: [0.0; REACH] }; GRID];
        for (i, row) in self.rows.iter().enumerate() {
            let input = self.head.input(*row as usize);
            // SAFETY: the row's columns of this head are written by this task only.
            let (delta, out) = unsafe { self.head.outputs(*row as usize) };
            (sums[2 * i], sums[2 * i + 1]) = (delta, out);
            (state_factors[2 * i], state_factors[2 * i + 1]) = (input.k, input.q);
            factors[i] = self.factors(i, 0, &self.keys[..n_common], &input);
        }
        let of_state = Factors { of: &state_factors[..2 * n], step: 1 };
        let state = Matrix { elements: s, width: self.head.shape.value_dim };
        weighted_sums(self.isa, of_state, &state, Start::Zero, &mut sums[..2 * n]);
        for (i, row) in self.rows.iter().enumerate() {
            let own = self.head.cx.step.rows()[*row as usize].pos - self.grid;
            let whole = self.weights[i][own as usize];
            let [delta, out] = &mut sums[2 * i..2 * i + 2] else { unreachable!("two of each row") };
            simd::scale_and_subtract(self.isa, whole, self.head.input(*row as usize).v, delta);
            simd::scale(self.isa, whole, out);
        }
        let mut of_past: [&[f32]; TWO_EACH] = [&[]; TWO_EACH];
        for (two, factors) in of_past.chunks_exact_mut(2).zip(&factors[..n]) {
            (two[0], two[1]) = (&factors.in_delta[..n_common], &factors.in_out[..n_common]);
        }
        let of_past = Factors { of: &of_past[..2 * n], step: 1 };
        weighted_sums(self.isa, of_past, &self.deltas[..n_common], Start::ADD, &mut sums[..2 * n]);
    }

    /// What the row's own past, its ancestors after the common ones, and the row itself add.
    fn finish(&self, i: usize) {
        let row = self.rows[i] as usize;
        let input = self.head.input(row);
        let rows = self.head.cx.step.rows();
        let n = (rows[row].pos - self.common_end) as usize;
        let (mut keys, mut deltas): ([&[f32]; REACH], [&[f32]; REACH]) = ([&[]; REACH], [&[]; REACH]);
        let mut ancestor = row;
        for (key, delta) in keys[..n].iter_mut().zip(&mut deltas).rev() {
            ancestor = rows[ancestor].parent as usize;
            let past = self.head.step_row(ancestor);
            (*key, *delta) = (past.k, past.delta);
        }
        let factors = self.factors(i, self.n_common(), &keys[..n], &input);
        // SAFETY: the row's columns of this head are written by this task only, and its ancestors' are other rows'.
        let (delta, out) = unsafe { self.head.outputs(row) };
        let of: [&[f32]; 2] = [&factors.in_delta[..n], &factors.in_out[..n]];
        let factors = Factors { of: &of, step: 1 };
        weighted_sums(self.isa, factors, &deltas[..n], Start::ADD, &mut [&mut *delta, &mut *out]);
        simd::scale(self.isa, input.beta, delta);
        simd::axpy(self.isa, simd::dot(self.isa, input.k, input.q), delta, out);
    }
}
