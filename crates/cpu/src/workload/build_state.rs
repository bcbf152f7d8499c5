//! Ops that read and write what sequences keep. Each copy has a layer of its own.

use overdraft_plan::{
    Attention, AttentionPrepare, AttentionState, KeyHeadRule, LayerState, Op, Recurrent, RecurrentPrepare,
    RecurrentState, Retention, RopeStyle,
};

use super::build::{cost, finish};
use super::{Cost, Size, Workload};
use crate::conformance::{Arithmetic, CaseBuilder, Kind};

const MOST_LAYERS: usize = 16;
/// Bytes of state that the layers may take together.
const STATE_BYTES: usize = 256 << 20;

pub(super) fn build(kind: Kind, size: &Size) -> Workload {
    let b = CaseBuilder::new(kind, Arithmetic::Copy, format!("{size:?}"));
    match kind {
        Kind::Attention | Kind::AttentionPrepare => attention(kind, b, size),
        Kind::LoadTaps => load_taps(b, size),
        _ => recurrent(kind, b, size),
    }
}

fn layers_within(size: &Size, layer_bytes: usize) -> usize {
    (STATE_BYTES / layer_bytes.max(1)).clamp(1, MOST_LAYERS.min(size.most_copies.max(1)))
}

fn attention(kind: Kind, mut b: CaseBuilder, size: &Size) -> Workload {
    let (heads, kv_heads, head_dim) = (size.dims[0], size.dims[1], size.dims[2]);
    let (q_width, kv_width) = (heads * head_dim, kv_heads * head_dim);
    let (q, k, v) = (b.input(q_width, 1.0), b.input(kv_width, 1.0), b.input(kv_width, 1.0));
    let inv_freq = b.vector(vec![0.01; head_dim / 2]);
    let position_bytes = 2 * kv_width * size.kv.bytes();
    let copies = layers_within(size, position_bytes * (size.depth + 512));
    (0..copies).for_each(|_| {
        b.layer(LayerState::Attention(AttentionState { kv_heads, head_dim, class: 0 }));
    });
    b.class(Retention::Full);
    b.kv(size.kv);
    let depth = size.depth;
    let prepares = kind == Kind::AttentionPrepare;
    let cost = move |rows: usize| {
        let (seen, r) = (depth as f64 + rows as f64 / 2.0, rows as f64);
        if prepares {
            let (turned, written) = (q_width + kv_width, position_bytes);
            let bytes = r * (8 * turned + 4 * kv_width + written) as f64;
            return Cost { bytes, multiply_adds: r * 2.0 * turned as f64 };
        }
        let bytes = (depth + rows) as f64 * position_bytes as f64 + r * 8.0 * q_width as f64;
        Cost { bytes, multiply_adds: r * seen * 2.0 * q_width as f64 }
    };
    finish(b, size, copies, cost, move |r, n| {
        let (q, k, v) = (q.record(r), k.record(r), v.record(r));
        let (angles, out) = (r.act(head_dim), r.act(q_width));
        r.push(Op::Angles { inv_freq, magnitude: 1.0, out: angles });
        let prepare = |layer| {
            Op::AttentionPrepare(AttentionPrepare {
                q: Some(q),
                k,
                v,
                gated: false,
                q_norm: None,
                k_norm: None,
                angles,
                rotary_dims: head_dim,
                style: RopeStyle::Halves,
                heads,
                kv_heads,
                head_dim,
                layer,
            })
        };
        if prepares {
            return (0..n).for_each(|layer| r.push(prepare(layer)));
        }
        r.push(prepare(0));
        for layer in 0..n {
            r.push(Op::Attention(Attention {
                q,
                out,
                gated: false,
                heads,
                kv_heads,
                head_dim,
                scale: (head_dim as f32).sqrt().recip(),
                window: None,
                see_ahead: false,
                sinks: None,
                layer,
            }));
        }
    })
}

fn recurrent(kind: Kind, mut b: CaseBuilder, size: &Size) -> Workload {
    let (key_heads, value_heads, dim) = (size.dims[0], size.dims[1], size.dims[2]);
    let shape = RecurrentState { key_heads, value_heads, key_dim: dim, value_dim: dim };
    let width = shape.conv_width();
    let (qkv, beta, a) = (b.input(width, 1.0), b.input(value_heads, 1.0), b.input(value_heads, 1.0));
    let conv = b.random.gaussians(4 * width, 0.5);
    let conv = b.vector(conv);
    let decay = b.vector(vec![-0.1; value_heads]);
    let dt_bias = b.vector(vec![0.0; value_heads]);
    let copies = layers_within(size, 4 * (shape.state_len() + 48 * shape.window_row_len()));
    (0..copies).for_each(|_| b.layer(LayerState::Recurrent(shape)));
    let values = value_heads * dim;
    let prepares = kind == Kind::RecurrentPrepare;
    let cost = move |rows: usize| {
        let r = rows as f64;
        if prepares {
            return Cost { bytes: r * 8.0 * width as f64, multiply_adds: r * 4.0 * width as f64 };
        }
        // Per head and row two products with S, on average 24 window rows (their products with k and q, and their
        // deltas twice), and its share of moving S.
        let products = value_heads * (3 * dim * dim + 24 * 4 * dim);
        let bytes = 4.0 * shape.state_len() as f64 + r * 4.0 * (width + 2 * values) as f64;
        Cost { bytes, multiply_adds: r * products as f64 }
    };
    finish(b, size, copies, cost, move |r, n| {
        let (qkv, beta, a) = (qkv.record(r), beta.record(r), a.record(r));
        let (prepared, gates) = (r.act(width), r.act(2 * value_heads));
        let (delta, out) = (r.act(values), r.act(values));
        let prepare = |layer| {
            let prepare =
                RecurrentPrepare { qkv, b: beta, a, conv, decay, dt_bias, out: prepared, gates, layer };
            Op::RecurrentPrepare(prepare)
        };
        if prepares {
            return (0..n).for_each(|layer| r.push(prepare(layer)));
        }
        r.push(prepare(0));
        for layer in 0..n {
            let rule = KeyHeadRule::Grouped;
            r.push(Op::Recurrent(Recurrent { prepared, preconv: qkv, gates, delta, out, rule, layer }));
        }
    })
}

fn load_taps(mut b: CaseBuilder, size: &Size) -> Workload {
    let width = size.dims[0] * size.dims[1];
    let x = b.input(1, 1.0);
    b.tap_width(width);
    finish(b, size, MOST_LAYERS, cost(0, 8 * width, 0), move |r, n| {
        x.record(r);
        let out = r.act(width);
        (0..n).for_each(|_| r.push(Op::LoadTaps { out }));
    })
}
