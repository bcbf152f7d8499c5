//! Ops whose rows know nothing of each other.

use overdraft_formats::{Bytes, DType};
use overdraft_plan::draw::Drawing;
use overdraft_plan::{
    ExpertAdd, ExpertGlu, Glu, LinearOut, Matrix, MatrixId, Op, Recorder, RmsNorm, Route, RouteRule,
};

use super::{Cost, Size, Workload};
use crate::conformance::{Arithmetic, CaseBuilder, Kind, Random, random_matrix};

/// Copies of an op without weights: together they take longer than the clock is wrong.
const LIGHT_COPIES: usize = 64;
/// Copies of an op with weights at most: a plan of more says nothing new.
const MAX_COPIES: usize = 1024;
/// Rows made at random; the rest of a matrix repeats them. Speed does not depend on the numbers, and making 100 million
/// takes seconds.
const RANDOM_ROWS: usize = 16;

pub(super) fn build(kind: Kind, size: &Size) -> Workload {
    let mut b = CaseBuilder::new(kind, Arithmetic::Copy, format!("{size:?}"));
    let d = size.dims.clone();
    match kind {
        Kind::Embed => {
            let tables = copies(&mut b, size, d[0], d[1]);
            let row = size.dtype.row_bytes(d[1]).unwrap_or(0) + 4 * d[1];
            let width = d[1];
            finish(b, size, tables.len(), cost(0, row, 0), move |r, n| {
                let out = r.act(width);
                tables.iter().take(n).for_each(|table| r.push(Op::Embed { table: *table, out }));
                if n == 0 {
                    // A plan without ops has no tokens.
                    r.push(Op::Embed { table: tables[0], out });
                }
            })
        }
        Kind::Linear | Kind::LinearAdd | Kind::LinearGlu => linear(kind, b, size, d[0], d[1]),
        Kind::ExpertGlu | Kind::ExpertAdd => experts(kind, b, size),
        Kind::Norm => {
            let x = b.input(d[0], 1.0);
            let norm = RmsNorm { weight: b.norm_weight(d[0]), eps: 1e-6 };
            finish(b, size, LIGHT_COPIES, cost(4 * d[0], 8 * d[0], 2 * d[0]), move |r, n| {
                let (x, out) = (x.record(r), r.act(d[0]));
                (0..n).for_each(|_| r.push(Op::Norm { x, norm, out, tap: None }));
            })
        }
        Kind::GatedNorm => {
            let width = d[0] * d[1];
            let (x, gate) = (b.input(width, 1.0), b.input(width, 1.0));
            let norm = RmsNorm { weight: b.norm_weight(d[1]), eps: 1e-6 };
            finish(b, size, LIGHT_COPIES, cost(4 * d[1], 12 * width, 3 * width), move |r, n| {
                let (x, gate, out) = (x.record(r), gate.record(r), r.act(width));
                (0..n).for_each(|_| r.push(Op::GatedNorm { x, gate, norm, head_dim: d[1], out }));
            })
        }
        Kind::Select => {
            let x = b.input(d[0], 1.0);
            finish(b, size, LIGHT_COPIES, cost(0, 8 * d[0], 0), move |r, n| {
                let (x, out) = (x.record(r), r.logit_act(d[0]));
                (0..n).for_each(|_| r.push(Op::Select { x, out }));
            })
        }
        Kind::Angles => {
            let (x, inv_freq) = (b.input(1, 1.0), b.vector(vec![0.01; d[0]]));
            finish(b, size, LIGHT_COPIES, cost(4 * d[0], 8 * d[0], d[0]), move |r, n| {
                x.record(r);
                let out = r.act(2 * d[0]);
                (0..n).for_each(|_| r.push(Op::Angles { inv_freq, magnitude: 1.0, out }));
            })
        }
        Kind::Route => {
            let logits = b.input(d[0], 1.0);
            finish(b, size, LIGHT_COPIES, cost(0, 4 * d[0] + 8 * d[1], 0), move |r, n| {
                let (logits, choice) = (logits.record(r), r.choice(d[1]));
                let rule = RouteRule::SoftmaxRenormalised;
                (0..n).for_each(|_| r.push(Op::Route(Route { logits, rule, n_experts: d[0], choice })));
            })
        }
        Kind::Concat => {
            let xs: Vec<_> = (0..d[0]).map(|_| b.input(d[1], 1.0)).collect();
            finish(b, size, LIGHT_COPIES, cost(0, 8 * d[0] * d[1], 0), move |r, n| {
                let xs: Vec<_> = xs.iter().map(|x| x.record(r)).collect();
                let out = r.act(d[0] * d[1]);
                (0..n).for_each(|_| r.push(Op::Concat { xs: xs.clone(), out }));
            })
        }
        Kind::TopTokens => {
            let logits = b.input(d[0], 3.0);
            finish(b, size, LIGHT_COPIES / 4, cost(0, 4 * d[0] + 8 * d[1], 0), move |r, n| {
                let x = logits.record(r);
                let (logits, choice) = (r.logit_act(d[0]), r.logit_choice(d[1]));
                r.push(Op::Select { x, out: logits });
                (0..n).for_each(|_| r.push(Op::TopTokens { logits, choice }));
            })
        }
        // Top-k of so many, and top-p: what the makers of most models advise.
        Kind::Sample => {
            let logits = b.input(d[0], 3.0);
            let drawing = Drawing { temperature: 0.7, top_k: d[1] as u32, top_p: 0.8, ..Default::default() };
            b.draw(drawing, Vec::new());
            finish(b, size, LIGHT_COPIES / 4, cost(0, 4 * d[0] + 8, 0), move |r, n| {
                let x = logits.record(r);
                let (logits, choice) = (r.logit_act(d[0]), r.logit_choice(1));
                r.push(Op::Select { x, out: logits });
                (0..n).for_each(|_| r.push(Op::Sample { logits, choice }));
            })
        }
        Kind::Attention
        | Kind::AttentionPrepare
        | Kind::Recurrent
        | Kind::RecurrentPrepare
        | Kind::LoadTaps => {
            unreachable!("has state, so `build_state` makes it")
        }
    }
}

fn linear(kind: Kind, mut b: CaseBuilder, size: &Size, n_out: usize, n_in: usize) -> Workload {
    let x = b.input(n_in, 1.0);
    let stream = b.input(if kind == Kind::LinearAdd { n_out } else { 1 }, 1.0);
    let per_copy = if kind == Kind::LinearGlu { 2 } else { 1 };
    let mut weights = copies(&mut b, size, n_out, n_in);
    if weights.len() < per_copy {
        weights.push(weights[0]);
    }
    let matrix = n_out * size.dtype.row_bytes(n_in).unwrap_or(0);
    let n_copies = weights.len() / per_copy;
    let cost = cost(per_copy * matrix, 4 * (n_in + n_out), per_copy * n_in * n_out);
    finish(b, size, n_copies, cost, move |r, n| {
        let (x, stream, out) = (x.record(r), stream.record(r), r.act(n_out));
        for w in weights.chunks_exact(per_copy).take(n) {
            r.push(match kind {
                Kind::LinearAdd => Op::LinearAdd { x, weight: w[0], bias: None, gate: None, stream },
                Kind::LinearGlu => Op::LinearGlu { x, gate: w[0], up: w[1], glu: Glu::Swish, out },
                _ => Op::Linear { x, outs: vec![LinearOut { weight: w[0], bias: None, out }] },
            });
        }
    })
}

fn experts(kind: Kind, mut b: CaseBuilder, size: &Size) -> Workload {
    let &[n_experts, k, width, other] = size.dims.as_slice() else {
        unreachable!("`check` saw four dimensions")
    };
    let logits = b.input(n_experts, 1.0);
    let glu = kind == Kind::ExpertGlu;
    let (rows, cols) = if glu { (width, other) } else { (other, width) };
    let x = b.input(if glu { other } else { k * width }, 1.0);
    let stream = b.input(if glu { 1 } else { other }, 1.0);
    let weights = copies(&mut b, size, n_experts * rows, cols);
    let n_copies = if glu { weights.len().div_ceil(2) } else { weights.len() };
    let expert_bytes = rows * size.dtype.row_bytes(cols).unwrap_or(0) * if glu { 2 } else { 1 };
    let products = k * rows * cols * if glu { 2 } else { 1 };
    let cost = move |n_rows: usize| {
        // Rows choose at random here, so this is how many experts are met.
        let missed = (1.0 - k as f64 / n_experts as f64).powi(n_rows as i32);
        let met = n_experts as f64 * (1.0 - missed);
        let acts = 4 * n_rows * (other + 2 * k * width);
        Cost { bytes: met * expert_bytes as f64 + acts as f64, multiply_adds: (n_rows * products) as f64 }
    };
    finish(b, size, n_copies, cost, move |r, n| {
        let (logits, x, stream) = (logits.record(r), x.record(r), stream.record(r));
        let choice = r.choice(k);
        r.push(Op::Route(Route { logits, rule: RouteRule::Softmax, n_experts, choice }));
        let out = r.act(k * rows);
        for i in 0..n {
            r.push(if glu {
                let (gate, up) = (weights[2 * i % weights.len()], weights[(2 * i + 1) % weights.len()]);
                Op::ExpertGlu(ExpertGlu {
                    x,
                    choice,
                    gate,
                    up,
                    up_row: 0,
                    stride: width,
                    gate_bias: None,
                    up_bias: None,
                    glu: Glu::Swish,
                    width,
                    out,
                })
            } else {
                Op::ExpertAdd(ExpertAdd { h: x, choice, down: weights[i], bias: None, parts: out, stream })
            });
        }
    })
}

/// As many matrices as fill the working set, each in memory of its own.
fn copies(b: &mut CaseBuilder, size: &Size, rows: usize, cols: usize) -> Vec<MatrixId> {
    let some = random_matrix(&mut Random::new(7), size.dtype, rows.min(RANDOM_ROWS), cols, 1);
    let bytes = tile(some.row_range(0, some.rows), rows * some.row_bytes());
    let n = (size.working_set / bytes.len().max(1)).clamp(1, MAX_COPIES);
    (0..n).map(|_| b.given(whole(size.dtype, rows, cols, bytes.clone()))).collect()
}

fn tile(some: &[u8], n_bytes: usize) -> Vec<u8> {
    some.iter().copied().cycle().take(n_bytes).collect()
}

fn whole(dtype: DType, rows: usize, cols: usize, bytes: Vec<u8>) -> Matrix {
    Matrix::new("random".into(), dtype, rows, cols, vec![Bytes::from_vec(bytes)])
        .expect("made of as many bytes as the rows have")
}

/// Bytes once a step, bytes and products a row.
pub(super) fn cost(once: usize, row_bytes: usize, products: usize) -> impl Fn(usize) -> Cost {
    move |rows| Cost { bytes: (once + rows * row_bytes) as f64, multiply_adds: (rows * products) as f64 }
}

pub(super) fn finish(
    b: CaseBuilder,
    size: &Size,
    copies: usize,
    cost: impl Fn(usize) -> Cost + 'static,
    record: impl Fn(&mut Recorder, usize) + 'static,
) -> Workload {
    // Everything but the recording; a case records one plan, and two are needed here.
    let case = b.build(|_| Vec::new());
    let multiplies = matches!(
        case.kind,
        Kind::Linear | Kind::LinearAdd | Kind::LinearGlu | Kind::ExpertGlu | Kind::ExpertAdd
    );
    Workload {
        copies: copies.clamp(1, size.most_copies.max(1)),
        is_int8: multiplies && size.dtype.is_quantised(),
        weights: case.weights,
        layers: case.layers,
        classes: case.classes,
        kv: case.kv,
        tap_width: case.tap_width,
        drawing: case.draws.first().map(|d| d.0),
        depth: size.depth,
        record: Box::new(record),
        cost: Box::new(cost),
    }
}
