//! The delta rule and what prepares it.

use overdraft_plan::{
    KeptRows, KeyHeadRule, LayerState, Op, Recurrent, RecurrentPrepare, RecurrentState, RmsNorm,
};

use crate::conformance::case::{Arithmetic, Case, CaseBuilder, Kind};

pub(super) fn prepares() -> Vec<Case> {
    let case = |(shape, rule)| case(shape, rule, Kind::RecurrentPrepare, Arithmetic::Elementwise, false);
    shapes().map(case).collect()
}

pub(super) fn recurrents() -> Vec<Case> {
    // Also with the norm behind it, which backends may take together with the rule.
    shapes()
        .flat_map(|(shape, rule)| {
            [false, true]
                .map(|is_normed| case(shape, rule, Kind::Recurrent, Arithmetic::Recurrent, is_normed))
        })
        .collect()
}

fn shapes() -> impl Iterator<Item = (RecurrentState, KeyHeadRule)> {
    let shapes = [
        (1, 1, 2, 2, KeyHeadRule::Grouped),
        (1, 3, 16, 16, KeyHeadRule::Tiled),
        (2, 4, 16, 16, KeyHeadRule::Grouped),
        (2, 8, 16, 40, KeyHeadRule::Tiled),
        (3, 6, 64, 64, KeyHeadRule::Grouped),
        (4, 8, 64, 64, KeyHeadRule::Tiled),
        (2, 4, 128, 128, KeyHeadRule::Tiled),
        (1, 1, 128, 128, KeyHeadRule::Grouped),
    ];
    shapes.into_iter().map(|(key_heads, value_heads, key_dim, value_dim, rule)| {
        (RecurrentState { key_heads, value_heads, key_dim, value_dim }, rule)
    })
}

/// Both ops, since the convolution's history is kept by the second.
fn case(
    shape: RecurrentState,
    rule: KeyHeadRule,
    kind: Kind,
    arithmetic: Arithmetic,
    is_normed: bool,
) -> Case {
    let RecurrentState { key_heads, value_heads, key_dim, value_dim } = shape;
    let name = format!(
        "{key_heads} key heads of {key_dim}, {value_heads} value heads of {value_dim}, {rule:?}{}",
        if is_normed { ", normed" } else { "" }
    );
    let mut b = CaseBuilder::new(kind, arithmetic, name);
    let width = shape.conv_width();
    let (qkv, beta, a) = (b.input(width, 1.0), b.input(value_heads, 2.0), b.input(value_heads, 2.0));
    let conv = b.random.gaussians(4 * width, 0.5);
    let conv = b.vector(conv);
    // From heads that hardly forget to heads that forget at once.
    let decay = (0..value_heads).map(|h| -(4f32.powi(h as i32 - 4))).collect();
    let decay = b.vector(decay);
    let dt_bias = b.bias(value_heads);
    let norm = is_normed.then(|| {
        (b.input(value_heads * value_dim, 1.0), RmsNorm { weight: b.norm_weight(value_dim), eps: 1e-6 })
    });
    b.layer(LayerState::Recurrent(shape));
    b.prompt(70);
    b.build(move |r| {
        let (qkv, beta, a) = (qkv.record(r), beta.record(r), a.record(r));
        let (prepared, gates) = (r.act(width), r.act(2 * value_heads));
        r.push(Op::RecurrentPrepare(RecurrentPrepare {
            qkv,
            b: beta,
            a,
            conv,
            decay,
            dt_bias,
            out: prepared,
            gates,
            layer: 0,
        }));
        let (delta, out) = (r.act(value_heads * value_dim), r.act(value_heads * value_dim));
        r.push(Op::Recurrent(Recurrent { prepared, preconv: qkv, gates, delta, out, rule, layer: 0 }));
        r.keep(KeptRows { layer: 0, prepared, preconv: qkv, gates, delta });
        let Some((gate, norm)) = norm else {
            return if kind == Kind::Recurrent { vec![out, delta] } else { vec![prepared, gates] };
        };
        let (gate, normed) = (gate.record(r), r.act(value_heads * value_dim));
        r.push(Op::GatedNorm { x: out, gate, norm, head_dim: value_dim, out: normed });
        vec![normed, delta]
    })
}
