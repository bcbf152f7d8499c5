//! Routing and the chosen experts' layers.

use overdraft_formats::DType;
use overdraft_plan::{ExpertAdd, ExpertGlu, Glu, LinearOut, Op, RmsNorm, Route, RouteRule};

use crate::conformance::case::{Arithmetic, Case, CaseBuilder, Input, Kind, Observed};

const RULES: [RouteRule; 3] = [RouteRule::SoftmaxRenormalised, RouteRule::Softmax, RouteRule::TopThenSoftmax];

pub(super) fn routes() -> Vec<Case> {
    let mut cases = Vec::new();
    for rule in RULES {
        for (n_experts, k) in [(4, 1), (8, 2), (32, 4), (128, 8), (4, 4)] {
            cases.push(route(rule, n_experts, k, Ties::Few));
        }
        cases.push(route(rule, 16, 4, Ties::Many));
    }
    // More experts than a lane holds at first, and than it holds twice.
    cases.extend([route(RULES[0], 200, 10, Ties::Few), route(RULES[1], 513, 6, Ties::Few)]);
    // Columns of less than a step, of several, of no whole step, and more than a block holds of a row.
    cases.extend([
        norm_and_router(8, 64, false, false),
        norm_and_router(45, 1100, true, true),
        norm_and_router(128, 2880, true, false),
        norm_and_router(16, 4096, false, true),
        norm_and_router(16, 4224, true, true),
        norm_and_router(8, 70, false, false),
    ]);
    cases
}

pub(super) fn glus() -> Vec<Case> {
    // More columns than a block may have in shared memory at once.
    let wide = Shape { n_in: 9728, width: 16, hidden: 16, ..Shape::PLAIN };
    let wide = [DType::Q8_0, DType::F16].map(|dtype| {
        let mut case = glu(Shape { dtype, ..wide });
        case.most_rows = 8;
        case
    });
    // As many experts as a batch's choices, of which there are more than a block has threads.
    let many = Shape { n_in: 64, width: 16, hidden: 16, ..Shape::PLAIN };
    let many = glu_among(Shape { dtype: DType::Q8_0, ..many }, 320, 10);
    shapes().into_iter().map(glu).chain(wide).chain([many]).collect()
}

pub(super) fn adds() -> Vec<Case> {
    use DType::{BF16, F16, F32, Q8_0};
    let mut cases: Vec<Case> = shapes().into_iter().map(add).collect();
    // Rows that end inside 128 columns, rows wider than a norm's block holds, and experts that fill no tiles.
    cases.extend([
        add_and_norm(F32, [160, 144], true),
        add_and_norm(Q8_0, [32, 4112], false),
        add_and_norm(F16, [32, 8208], true),
        add_and_norm(BF16, [64, 45], false),
    ]);
    cases
}

#[rustfmt::skip]
fn shapes() -> Vec<Shape> {
    use DType::*;
    let plain = Shape::PLAIN;
    // Sizes that whole tiles of outputs hold, columns that end inside a block of 128.
    let tiled = Shape { n_in: 320, width: 160, hidden: 144, ..plain };
    let blocks = [F32, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, MXFP4].map(|dtype| Shape { dtype, ..tiled });
    let supers = [Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_XS].map(|dtype| Shape { dtype, n_in: 512, width: 256, ..tiled });
    let special = [
        plain,
        Shape { dtype: DType::BF16, fused: true, ..plain },
        Shape { dtype: DType::F16, parts: EXPERTS, ..plain },
        Shape { dtype: DType::Q8_0, fused: true, width: 64, ..plain },
        Shape { dtype: DType::Q4_K, n_in: 256, width: 256, parts: EXPERTS, ..plain },
        Shape { dtype: DType::Q6_K, n_in: 512, width: 256, favourite: true, ..plain },
        Shape { dtype: DType::MXFP4, bias: true, width: 96, glu: CLAMPED, ..plain },
        Shape { dtype: DType::F32, bias: true, fused: true, glu: CLAMPED, favourite: true, ..plain },
        Shape { dtype: DType::MXFP4, bias: true, parts: EXPERTS, width: 64, glu: CLAMPED, favourite: true, ..plain },
        Shape { dtype: DType::MXFP4, bias: true, fused: true, glu: CLAMPED, favourite: true, ..tiled },
    ];
    [special.as_slice(), &blocks, &supers].concat()
}

const CLAMPED: Glu = Glu::Clamped { alpha: 1.702, limit: 7.0 };
const EXPERTS: usize = 8;
const K: usize = 3;

#[derive(Clone, Copy, PartialEq)]
enum Ties {
    Few,
    Many,
}

/// Logits of every token. Token 0 ties all experts; with many ties all tokens have few distinct logits.
fn logits(b: &mut CaseBuilder, n_experts: usize, ties: Ties) -> Input {
    let mut values = b.random.gaussians(Case::N_TOKENS as usize * n_experts, 2.0);
    values[..n_experts].fill(0.0);
    if ties == Ties::Many {
        values.iter_mut().for_each(|v| *v = v.round().clamp(-1.0, 1.0));
    }
    b.input_of(&values, n_experts)
}

fn route(rule: RouteRule, n_experts: usize, k: usize, ties: Ties) -> Case {
    let many = if ties == Ties::Many { ", many ties" } else { "" };
    let name = format!("{rule:?}, {k} of {n_experts}{many}");
    let mut b = CaseBuilder::new(Kind::Route, Arithmetic::Elementwise, name);
    let logits = logits(&mut b, n_experts, ties);
    b.build_choosing(move |r| {
        let logits = logits.record(r);
        let choice = r.choice(k);
        r.push(Op::Route(Route { logits, rule, n_experts, choice }));
        choice
    })
}

/// What a layer of experts begins with: the norm, the router that reads it, who is chosen. With a gate the router's op has a second
/// output, and something else reads the norm. A backend may run all three together.
fn norm_and_router(n_experts: usize, width: usize, with_bias: bool, with_gate: bool) -> Case {
    let name = format!("{n_experts} behind a norm of {width}, bias {with_bias}, gate {with_gate}");
    let mut b = CaseBuilder::new(Kind::Route, Arithmetic::Chain(DType::F32), name);
    let stream = b.input(width, 3.0);
    let norm = RmsNorm { weight: b.norm_weight(width), eps: 1e-2 };
    let router = b.matrix(DType::F32, n_experts, width);
    let bias = with_bias.then(|| b.bias(n_experts));
    let others = with_gate.then(|| (b.matrix(DType::F32, 1, width), b.matrix(DType::F32, 17, width)));
    b.build_observing(move |r| {
        let stream = stream.record(r);
        let (normed, logits, choice) = (r.act(width), r.act(n_experts), r.choice(K));
        let mut outs = vec![LinearOut { weight: router, bias, out: logits }];
        let mut acts = vec![normed, logits];
        r.push(Op::Norm { x: stream, norm, out: normed, tap: None });
        if let Some((gate, _)) = others {
            outs.push(LinearOut { weight: gate, bias: None, out: r.act(1) });
            acts.push(outs[1].out);
        }
        r.push(Op::Linear { x: normed, outs });
        r.push(Op::Route(Route { logits, rule: RouteRule::Softmax, n_experts, choice }));
        if let Some((_, other)) = others {
            let out = r.act(17);
            r.push(Op::Linear { x: normed, outs: vec![LinearOut { weight: other, bias: None, out }] });
            acts.push(out);
        }
        Observed { acts, choices: vec![choice] }
    })
}

#[derive(Clone, Copy, Debug)]
struct Shape {
    dtype: DType,
    /// Gate and up in one stack.
    fused: bool,
    bias: bool,
    /// Pieces the stacks lie in.
    parts: usize,
    glu: Glu,
    n_in: usize,
    width: usize,
    hidden: usize,
    /// Every row chooses expert 5, so that it has all rows of a step and others have few or none.
    favourite: bool,
}

impl Shape {
    const PLAIN: Self = Self {
        dtype: DType::F32,
        fused: false,
        bias: false,
        parts: 1,
        glu: Glu::Swish,
        n_in: 64,
        width: 40,
        hidden: 45,
        favourite: false,
    };

    fn builder(&self, kind: Kind, arithmetic: Arithmetic, n_experts: usize) -> (CaseBuilder, Input) {
        let among = if n_experts == EXPERTS { String::new() } else { format!(", {n_experts} experts") };
        let mut b = CaseBuilder::new(kind, arithmetic, format!("{self:?}{among}"));
        let mut values = b.random.gaussians(Case::N_TOKENS as usize * n_experts, 2.0);
        if self.favourite {
            values.iter_mut().skip(5).step_by(n_experts).for_each(|v| *v = 9.0);
        }
        let logits = b.input_of(&values, n_experts);
        (b, logits)
    }
}

fn glu(shape: Shape) -> Case {
    glu_among(shape, EXPERTS, K)
}

fn glu_among(shape: Shape, n_experts: usize, k: usize) -> Case {
    let (mut b, logits) = shape.builder(Kind::ExpertGlu, Arithmetic::Gated(shape.dtype), n_experts);
    let Shape { dtype, fused, bias, parts, glu, n_in, width, .. } = shape;
    let x = b.input(n_in, 3.0);
    let (stride, up_row) = if fused { (2 * width, width) } else { (width, 0) };
    let gate = b.stack(dtype, n_experts * stride, n_in, parts);
    let up = if fused { gate } else { b.stack(dtype, n_experts * stride, n_in, parts) };
    let gate_bias = bias.then(|| b.bias(n_experts * width));
    let up_bias = bias.then(|| b.bias(n_experts * width));
    b.build(move |r| {
        let (logits, x) = (logits.record(r), x.record(r));
        let choice = r.choice(k);
        r.push(Op::Route(Route { logits, rule: RouteRule::Softmax, n_experts, choice }));
        let out = r.act(k * width);
        r.push(Op::ExpertGlu(ExpertGlu {
            x,
            choice,
            gate,
            up,
            up_row,
            stride,
            gate_bias,
            up_bias,
            glu,
            width,
            out,
        }));
        vec![out]
    })
}

fn add(shape: Shape) -> Case {
    let (mut b, logits) = shape.builder(Kind::ExpertAdd, Arithmetic::Weights(shape.dtype), EXPERTS);
    let Shape { dtype, bias, parts, width, hidden, .. } = shape;
    let (h, stream) = (b.input(K * width, 1.0), b.input(hidden, 1.0));
    let down = b.stack(dtype, EXPERTS * hidden, width, parts);
    let bias = bias.then(|| b.bias(EXPERTS * hidden));
    b.build(move |r| {
        let (logits, h, stream) = (logits.record(r), h.record(r), stream.record(r));
        let choice = r.choice(K);
        r.push(Op::Route(Route { logits, rule: RouteRule::TopThenSoftmax, n_experts: EXPERTS, choice }));
        let parts = r.act(K * hidden);
        r.push(Op::ExpertAdd(ExpertAdd { h, choice, down, bias, parts, stream }));
        vec![stream]
    })
}

/// A layer's end and what the next begins with: the sum, its norm, with or without a tap, and a product of that. A
/// backend may have no norm, but have its neighbours make what it does.
fn add_and_norm(dtype: DType, [width, hidden]: [usize; 2], with_tap: bool) -> Case {
    let name = format!("{dtype}, {width} to {hidden}, a norm behind, tap {with_tap}");
    let mut b = CaseBuilder::new(Kind::ExpertAdd, Arithmetic::Chain(dtype), name);
    let (logits, h, stream) = (b.input(EXPERTS, 2.0), b.input(K * width, 1.0), b.input(hidden, 1.0));
    let (down, next) = (b.matrix(dtype, EXPERTS * hidden, width), b.matrix(DType::F32, 17, hidden));
    let norm = RmsNorm { weight: b.norm_weight(hidden), eps: 1e-2 };
    b.build(move |r| {
        let (logits, h, stream) = (logits.record(r), h.record(r), stream.record(r));
        let (choice, parts) = (r.choice(K), r.act(K * hidden));
        let (normed, tap, y) = (r.act(hidden), with_tap.then(|| r.tap(hidden)), r.act(17));
        r.push(Op::Route(Route { logits, rule: RouteRule::TopThenSoftmax, n_experts: EXPERTS, choice }));
        r.push(Op::ExpertAdd(ExpertAdd { h, choice, down, bias: None, parts, stream }));
        r.push(Op::Norm { x: stream, norm, out: normed, tap });
        r.push(Op::Linear { x: normed, outs: vec![LinearOut { weight: next, bias: None, out: y }] });
        [stream, y].into_iter().chain(tap).collect()
    })
}

/// Types of the experts' matrices, of the shared one's gate, up and down; widths of the stream, an expert and the shared one.
pub(super) fn shared_layers() -> Vec<Case> {
    use DType::{BF16, F32, Q4_0, Q4_K, Q5_K, Q6_K, Q8_0};
    let cases = [
        ([F32, F32, F32, F32], [144, 32, 48]),
        ([Q8_0, Q8_0, Q8_0, Q8_0], [352, 64, 160]),
        // Of other types than the experts, wider and narrower.
        ([Q4_K, Q8_0, Q8_0, Q6_K], [256, 256, 768]),
        ([Q5_K, Q4_0, Q4_0, BF16], [512, 256, 64]),
        // Gate and up of two types, a stream that fills no tiles, and experts that fill none: each by itself.
        ([Q8_0, Q4_K, Q6_K, Q8_0], [256, 64, 256]),
        ([F32, F32, F32, F32], [45, 32, 48]),
        ([F32, F32, F32, F32], [144, 40, 48]),
    ];
    cases.map(|(types, widths)| shared_layer(types, widths)).into()
}

/// A layer of experts with one that every row has, the norm behind it, and a product of that. A backend may run all of it together.
fn shared_layer([dtype, gate, up, down]: [DType; 4], [hidden, width, shared]: [usize; 3]) -> Case {
    let name = format!("{dtype}, {hidden} by {width}, and for all {gate}, {up}, {down} by {shared}");
    let worst = [dtype, gate, down].into_iter().find(|d| d.is_quantised()).unwrap_or(dtype);
    let mut b = CaseBuilder::new(Kind::LinearAdd, Arithmetic::Chain(worst), name);
    let stream = b.input(hidden, 1.0);
    let mut norm = || RmsNorm { weight: b.norm_weight(hidden), eps: 1e-2 };
    let norms = [norm(), norm()];
    let (router, own_gate) = (b.matrix(DType::F32, EXPERTS, hidden), b.matrix(DType::F32, 1, hidden));
    let [e_gate, e_up] = [0; 2].map(|_| b.matrix(dtype, EXPERTS * width, hidden));
    let e_down = b.matrix(dtype, EXPERTS * hidden, width);
    let pair = [gate, up].map(|dtype| b.matrix(dtype, shared, hidden));
    let (down, next) = (b.matrix(down, hidden, shared), b.matrix(DType::F32, 17, hidden));
    b.build(move |r| {
        let stream = stream.record(r);
        let (x, logits, gates, choice) = (r.act(hidden), r.act(EXPERTS), r.act(1), r.choice(K));
        let (h, parts, own_h) = (r.act(K * width), r.act(K * hidden), r.act(shared));
        let (tap, y) = (r.tap(hidden), r.act(17));
        let out = |weight, out| LinearOut { weight, bias: None, out };
        r.push(Op::Norm { x: stream, norm: norms[0], out: x, tap: None });
        r.push(Op::Linear { x, outs: vec![out(router, logits), out(own_gate, gates)] });
        let rule = RouteRule::SoftmaxRenormalised;
        r.push(Op::Route(Route { logits, rule, n_experts: EXPERTS, choice }));
        r.push(Op::ExpertGlu(ExpertGlu {
            x,
            choice,
            gate: e_gate,
            up: e_up,
            up_row: 0,
            stride: width,
            gate_bias: None,
            up_bias: None,
            glu: Glu::Swish,
            width,
            out: h,
        }));
        r.push(Op::ExpertAdd(ExpertAdd { h, choice, down: e_down, bias: None, parts, stream }));
        r.push(Op::LinearGlu { x, gate: pair[0], up: pair[1], glu: Glu::Swish, out: own_h });
        r.push(Op::LinearAdd { x: own_h, weight: down, bias: None, gate: Some(gates), stream });
        r.push(Op::Norm { x: stream, norm: norms[1], out: x, tap: Some(tap) });
        r.push(Op::Linear { x, outs: vec![out(next, y)] });
        vec![stream, tap, y]
    })
}
