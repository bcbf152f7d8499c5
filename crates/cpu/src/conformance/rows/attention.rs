//! Attention and what prepares it.

use overdraft_formats::DType;
use overdraft_plan::{
    Act, Attention, AttentionPrepare, AttentionState, KvType, LayerState, LinearOut, MatrixId, Op, Recorder,
    Retention, RmsNorm, RopeStyle, VectorId,
};

use crate::conformance::case::{Arithmetic, Case, CaseBuilder, Input, Kind};

#[derive(Clone, Copy, Debug)]
struct Shape {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    gated: bool,
    window: Option<u32>,
    sinks: bool,
    kv: KvType,
    norms: bool,
    rotary_dims: usize,
    style: RopeStyle,
    see_ahead: bool,
    prompt: usize,
}

const PLAIN: Shape = Shape {
    heads: 4,
    kv_heads: 4,
    head_dim: 32,
    gated: false,
    window: None,
    sinks: false,
    kv: KvType::F32,
    norms: false,
    rotary_dims: 32,
    style: RopeStyle::Halves,
    see_ahead: false,
    prompt: 130,
};

#[rustfmt::skip]
fn shapes() -> Vec<Shape> {
    vec![
        PLAIN,
        Shape { kv: KvType::F16, style: RopeStyle::Pairs, ..PLAIN },
        Shape { heads: 4, kv_heads: 1, head_dim: 64, rotary_dims: 64, norms: true, ..PLAIN },
        Shape { heads: 8, kv_heads: 1, head_dim: 64, rotary_dims: 64, kv: KvType::F16, ..PLAIN },
        Shape { heads: 8, kv_heads: 2, head_dim: 128, rotary_dims: 128, norms: true, kv: KvType::F16, prompt: 70, ..PLAIN },
        Shape { heads: 2, kv_heads: 1, head_dim: 256, rotary_dims: 64, norms: true, gated: true, kv: KvType::F16, ..PLAIN },
        Shape { heads: 2, kv_heads: 2, head_dim: 256, rotary_dims: 64, norms: true, gated: true, ..PLAIN },
        Shape { heads: 8, kv_heads: 1, window: Some(1), sinks: true, ..PLAIN },
        Shape { heads: 4, kv_heads: 2, window: Some(64), ..PLAIN },
        Shape { heads: 8, kv_heads: 2, head_dim: 64, rotary_dims: 64, window: Some(128), sinks: true, kv: KvType::F16, prompt: 260, ..PLAIN },
        Shape { heads: 2, kv_heads: 1, window: Some(37), sinks: true, kv: KvType::F16, ..PLAIN },
        Shape { heads: 4, kv_heads: 1, sinks: true, gated: true, ..PLAIN },
        Shape { heads: 4, kv_heads: 2, see_ahead: true, ..PLAIN },
        Shape { heads: 2, kv_heads: 1, see_ahead: true, window: Some(40), kv: KvType::F16, ..PLAIN },
        Shape { heads: 2, kv_heads: 1, prompt: 900, ..PLAIN },
        Shape { heads: 2, kv_heads: 1, kv: KvType::F16, prompt: 900, ..PLAIN },
        Shape { heads: 6, kv_heads: 1, head_dim: 256, rotary_dims: 64, norms: true, gated: true, kv: KvType::Bf16, prompt: 200, ..PLAIN },
        Shape { heads: 4, kv_heads: 2, kv: KvType::Bf16, window: Some(70), sinks: true, ..PLAIN },
        Shape { heads: 2, kv_heads: 1, head_dim: 64, rotary_dims: 64, kv: KvType::F16, prompt: 2600, ..PLAIN },
        Shape { heads: 4, kv_heads: 1, head_dim: 128, rotary_dims: 128, kv: KvType::F16, see_ahead: true, window: Some(90), ..PLAIN },
    ]
}

pub(super) fn attentions() -> Vec<Case> {
    shapes().into_iter().map(|s| case(s, Kind::Attention, Arithmetic::Attention(s.kv))).collect()
}

/// A product behind attention, which a backend may make its input's form for: heads that are halves of 128 channels, two or three to a key
/// head, and heads that are as many.
pub(super) fn projections() -> Vec<Case> {
    let heads = |heads, kv_heads, head_dim| {
        let shape =
            Shape { heads, kv_heads, head_dim, rotary_dims: 64, kv: KvType::F16, prompt: 70, ..PLAIN };
        case(shape, Kind::Linear, Arithmetic::Chain(PROJECTION))
    };
    vec![heads(8, 1, 64), heads(4, 2, 64), heads(6, 2, 64), heads(4, 1, 128)]
}

const PROJECTION: DType = DType::Q8_0;

pub(super) fn prepares() -> Vec<Case> {
    shapes().into_iter().take(8).map(|s| case(s, Kind::AttentionPrepare, Arithmetic::Elementwise)).collect()
}

impl Shape {
    fn q_width(&self) -> usize {
        self.heads * self.head_dim * if self.gated { 2 } else { 1 }
    }

    fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }
}

/// The weights and inputs of a case.
#[derive(Clone, Copy)]
struct Parts {
    q: Input,
    k: Input,
    v: Input,
    inv_freq: VectorId,
    q_norm: Option<RmsNorm>,
    k_norm: Option<RmsNorm>,
    sinks: Option<VectorId>,
    projection: Option<MatrixId>,
}

fn case(shape: Shape, kind: Kind, arithmetic: Arithmetic) -> Case {
    let mut b = CaseBuilder::new(kind, arithmetic, format!("{shape:?}"));
    let half = shape.rotary_dims / 2;
    let inv_freq = (0..half).map(|i| 1e4f32.powf(-(i as f32) / half as f32)).collect();
    let mut norm = || shape.norms.then(|| RmsNorm { weight: b.norm_weight(shape.head_dim), eps: 1e-6 });
    let (q_norm, k_norm) = (norm(), norm());
    let parts = Parts {
        // Scores come out a few units wide, so that some positions matter much and most a little.
        q: b.input(shape.q_width(), 1.5),
        k: b.input(shape.kv_width(), 1.5),
        v: b.input(shape.kv_width(), 1.0),
        inv_freq: b.vector(inv_freq),
        q_norm,
        k_norm,
        sinks: shape.sinks.then(|| b.bias(shape.heads)),
        projection: (kind == Kind::Linear).then(|| b.matrix(PROJECTION, 40, shape.heads * shape.head_dim)),
    };
    let (kv_heads, head_dim) = (shape.kv_heads, shape.head_dim);
    b.layer(LayerState::Attention(AttentionState { kv_heads, head_dim, class: 0 }));
    b.class(shape.window.map_or(Retention::Full, Retention::Sliding));
    b.kv(shape.kv);
    b.prompt(shape.prompt);
    if shape.see_ahead && kind == Kind::Attention {
        b.depends_on_steps();
    }
    b.build(move |r| record(r, &shape, &parts, kind))
}

fn record(r: &mut Recorder, shape: &Shape, parts: &Parts, kind: Kind) -> Vec<Act> {
    let (q, k, v) = (parts.q.record(r), parts.k.record(r), parts.v.record(r));
    let angles = r.act(shape.rotary_dims);
    r.push(Op::Angles { inv_freq: parts.inv_freq, magnitude: 1.0, out: angles });
    r.push(Op::AttentionPrepare(AttentionPrepare {
        q: Some(q),
        k,
        v,
        gated: shape.gated,
        q_norm: parts.q_norm,
        k_norm: parts.k_norm,
        angles,
        rotary_dims: shape.rotary_dims,
        style: shape.style,
        heads: shape.heads,
        kv_heads: shape.kv_heads,
        head_dim: shape.head_dim,
        layer: 0,
    }));
    if kind == Kind::AttentionPrepare {
        return vec![q, k];
    }
    let out = r.act(shape.heads * shape.head_dim);
    r.push(Op::Attention(Attention {
        q,
        out,
        gated: shape.gated,
        heads: shape.heads,
        kv_heads: shape.kv_heads,
        head_dim: shape.head_dim,
        scale: (shape.head_dim as f32).sqrt().recip(),
        window: shape.window,
        see_ahead: shape.see_ahead,
        sinks: parts.sinks,
        layer: 0,
    }));
    let Some(weight) = parts.projection else { return vec![out] };
    let projected = r.act(40);
    r.push(Op::Linear { x: out, outs: vec![LinearOut { weight, bias: None, out: projected }] });
    vec![out, projected]
}
