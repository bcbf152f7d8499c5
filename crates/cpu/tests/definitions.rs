//! Ops whose only path is their definition, against the formulas written out once more in `f64`: here the table's
//! oracle would be compared with itself.

use overdraft_cpu::Cpu;
use overdraft_cpu::conformance::{Arithmetic, Case, CaseBuilder, Kind, Order, Part, Session};
use overdraft_plan::{
    AttentionPrepare, AttentionState, Glu, KvType, LayerState, Op, RecurrentPrepare, RecurrentState,
    Retention, RmsNorm, RopeStyle, Route, RouteRule,
};

const N: usize = Case::N_TOKENS as usize;

fn builder(kind: Kind) -> CaseBuilder {
    CaseBuilder::new(kind, Arithmetic::Elementwise, "by hand".into())
}

/// The output of tokens `0..n`, fed as one chain to a fast backend.
fn run(case: &Case, n: usize) -> Vec<Vec<f32>> {
    let tokens: Vec<u32> = (0..n as u32).collect();
    let mut session = Session::new(case, Box::new(Cpu::new(2)), 1, n).unwrap();
    session.feed(&[Part::chain(0, &tokens)], Order::Apart).unwrap().remove(0)
}

#[track_caller]
fn assert_near(got: &[f32], want: &[f64], tolerance: f64, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert!(
            (*got as f64 - want).abs() <= tolerance * want.abs().max(1.0),
            "{what} [{i}]: {got}, not {want}"
        );
    }
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

/// `x / sqrt(mean(x²) + eps) · w`
fn rms_norm(x: &[f32], weight: &[f32], eps: f64) -> Vec<f64> {
    let mean = x.iter().map(|x| (*x as f64).powi(2)).sum::<f64>() / x.len() as f64;
    x.iter().zip(weight).map(|(x, w)| *x as f64 / (mean + eps).sqrt() * *w as f64).collect()
}

#[test]
fn norms_and_gated_norms() {
    let (heads, dim) = (3, 20);
    let mut b = builder(Kind::GatedNorm);
    let (x, gate) = (b.random.gaussians(N * heads * dim, 2.0), b.random.gaussians(N * heads * dim, 3.0));
    let (wide, narrow) = (b.random.gaussians(heads * dim, 1.0), b.random.gaussians(dim, 1.0));
    let (x_in, gate_in) = (b.input_of(&x, heads * dim), b.input_of(&gate, heads * dim));
    let whole = RmsNorm { weight: b.vector(wide.clone()), eps: 0.3 };
    let per_head = RmsNorm { weight: b.vector(narrow.clone()), eps: 1e-6 };
    let case = b.build(move |r| {
        let (x, gate) = (x_in.record(r), gate_in.record(r));
        let (normed, gated, tap) = (r.act(heads * dim), r.act(heads * dim), r.tap(heads * dim));
        r.push(Op::Norm { x, norm: whole, out: normed, tap: Some(tap) });
        r.push(Op::GatedNorm { x, gate, norm: per_head, head_dim: dim, out: gated });
        vec![normed, tap, gated]
    });
    for (t, out) in run(&case, N).iter().enumerate() {
        let row = &x[t * heads * dim..][..heads * dim];
        let gate = &gate[t * heads * dim..][..heads * dim];
        let mut want = rms_norm(row, &wide, 0.3);
        want.extend(row.iter().map(|x| *x as f64));
        let heads = row.chunks(dim).flat_map(|head| rms_norm(head, &narrow, 1e-6));
        want.extend(heads.zip(gate).map(|(h, g)| h * silu(*g as f64)));
        assert_near(out, &want, 1e-6, &format!("token {t}"));
    }
}

#[test]
fn rotary_embeddings_turn_the_right_channels_by_the_right_angles() {
    // Queries of two heads, each followed by its gate, and keys of one.
    let (heads, dim, rotary) = (2, 12, 8);
    for style in [RopeStyle::Halves, RopeStyle::Pairs] {
        let mut b = builder(Kind::AttentionPrepare);
        let (q, k) = (b.random.gaussians(N * heads * 2 * dim, 1.0), b.random.gaussians(N * dim, 1.0));
        let inv_freq: Vec<f32> = (0..rotary / 2).map(|i| 100f32.powf(-(i as f32) / 4.0)).collect();
        let weight = b.random.gaussians(dim, 1.0);
        let (q_in, k_in, v_in) = (b.input_of(&q, heads * 2 * dim), b.input_of(&k, dim), b.input(dim, 1.0));
        let freq = b.vector(inv_freq.clone());
        let norm = RmsNorm { weight: b.vector(weight.clone()), eps: 1e-6 };
        b.layer(LayerState::Attention(AttentionState { kv_heads: 1, head_dim: dim, class: 0 }));
        b.class(Retention::Full);
        b.kv(KvType::F16);
        let case = b.build(move |r| {
            let (q, k, v) = (q_in.record(r), k_in.record(r), v_in.record(r));
            let angles = r.act(rotary);
            r.push(Op::Angles { inv_freq: freq, magnitude: 1.25, out: angles });
            r.push(Op::AttentionPrepare(AttentionPrepare {
                q: Some(q),
                k,
                v,
                gated: true,
                q_norm: Some(norm),
                k_norm: None,
                angles,
                rotary_dims: rotary,
                style,
                heads,
                kv_heads: 1,
                head_dim: dim,
                layer: 0,
            }));
            vec![q, k]
        });
        let turned = |mut x: Vec<f64>, pos: usize| {
            for (i, f) in inv_freq.iter().enumerate() {
                let angle = pos as f64 * *f as f64;
                let (a, b) =
                    if style == RopeStyle::Halves { (i, i + rotary / 2) } else { (2 * i, 2 * i + 1) };
                let (xa, xb) = (x[a], x[b]);
                x[a] = 1.25 * (xa * angle.cos() - xb * angle.sin());
                x[b] = 1.25 * (xb * angle.cos() + xa * angle.sin());
            }
            x
        };
        for (pos, out) in run(&case, N).iter().enumerate() {
            let mut want = Vec::new();
            for head in q[pos * heads * 2 * dim..][..heads * 2 * dim].chunks(2 * dim) {
                want.extend(turned(rms_norm(&head[..dim], &weight, 1e-6), pos));
                want.extend(head[dim..].iter().map(|g| *g as f64));
            }
            want.extend(turned(k[pos * dim..][..dim].iter().map(|x| *x as f64).collect(), pos));
            assert_near(out, &want, 4e-6, &format!("{style:?}, position {pos}"));
        }
    }
}

#[test]
fn the_convolution_and_gates_of_the_delta_rule() {
    let shape = RecurrentState { key_heads: 2, value_heads: 4, key_dim: 6, value_dim: 5 };
    let width = shape.conv_width();
    let mut b = builder(Kind::RecurrentPrepare);
    let x = b.random.gaussians(N * width, 1.0);
    let (beta, a) = (b.random.gaussians(N * 4, 4.0), b.random.gaussians(N * 4, 12.0));
    let (conv, decay) = (b.random.gaussians(4 * width, 1.0), vec![-0.01f32, -0.5, -2.0, -70.0]);
    let dt_bias = b.random.gaussians(4, 1.0);
    let (x_in, beta_in, a_in) = (b.input_of(&x, width), b.input_of(&beta, 4), b.input_of(&a, 4));
    let ids = [conv.clone(), decay.clone(), dt_bias.clone()].map(|v| b.vector(v));
    b.layer(LayerState::Recurrent(shape));
    let case = b.build(move |r| {
        let (qkv, beta, a) = (x_in.record(r), beta_in.record(r), a_in.record(r));
        let (out, gates) = (r.act(width), r.act(8));
        let [conv, decay, dt_bias] = ids;
        r.push(Op::RecurrentPrepare(RecurrentPrepare {
            qkv,
            b: beta,
            a,
            conv,
            decay,
            dt_bias,
            out,
            gates,
            layer: 0,
        }));
        vec![out, gates]
    });
    for (t, out) in run(&case, N).iter().enumerate() {
        let mut want: Vec<f64> = (0..width)
            .map(|c| {
                let tap = |j: usize| (t + j).checked_sub(3).map_or(0.0, |row| x[row * width + c] as f64);
                silu((0..4).map(|j| conv[4 * c + j] as f64 * tap(j)).sum())
            })
            .collect();
        let keys = shape.key_heads * shape.key_dim;
        for (i, head) in want[..2 * keys].chunks_mut(shape.key_dim).enumerate() {
            let length = (head.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
            let scale = if i < shape.key_heads { (shape.key_dim as f64).sqrt() } else { 1.0 };
            head.iter_mut().for_each(|x| *x /= length * scale);
        }
        let g = |h: usize| decay[h] as f64 * (a[t * 4 + h] as f64 + dt_bias[h] as f64).exp().ln_1p();
        want.extend((0..4).map(g));
        want.extend((0..4).map(|h| 1.0 / (1.0 + (-beta[t * 4 + h] as f64).exp())));
        assert_near(out, &want, 3e-6, &format!("token {t}"));
    }
}

#[test]
fn routes_take_the_best_and_weigh_them_by_rule() {
    let (n_experts, k) = (5, 2);
    // (logits, experts chosen): the lower index among equals.
    let rows = [
        ([0.0f32, 3.0, 1.0, 2.0, -1.0], [1, 3]),
        ([1.0, 1.0, 1.0, 1.0, 1.0], [0, 1]),
        ([-5.0, 80.0, 0.5, 80.0, 80.0], [1, 3]),
        ([-5.0, -6.0, -7.0, -8.0, -1.0], [4, 0]),
    ];
    for rule in [RouteRule::Softmax, RouteRule::SoftmaxRenormalised, RouteRule::TopThenSoftmax] {
        let mut b = builder(Kind::Route);
        let logits = b.input_of(&rows.map(|r| r.0).concat(), n_experts);
        let case = b.build_choosing(move |r| {
            let logits = logits.record(r);
            let choice = r.choice(k);
            r.push(Op::Route(Route { logits, rule, n_experts, choice }));
            choice
        });
        for ((logits, chosen), out) in rows.iter().zip(run(&case, rows.len())) {
            let share = |e: usize| (logits[e] as f64 - 80.0).exp();
            let total: f64 = match rule {
                RouteRule::Softmax => (0..n_experts).map(share).sum(),
                _ => chosen.iter().map(|e| share(*e)).sum(),
            };
            // Sessions show an index in 64ths, so that it weighs no more than a weight.
            let want: Vec<f64> = chosen.iter().flat_map(|e| [*e as f64 / 64.0, share(*e) / total]).collect();
            assert_near(&out, &want, 1e-6, &format!("{rule:?} of {logits:?}"));
        }
    }
}

#[test]
fn the_clamped_unit_gives_the_published_values() {
    let glu = Glu::Clamped { alpha: 1.702, limit: 7.0 };
    let mut b = builder(Kind::LinearGlu);
    // The two inputs are the gate and the up value themselves.
    let inputs = [[1.0f32, 0.0], [8.0, 9.0], [-9.0, -9.0], [0.5, -2.0]];
    let x = b.input_of(&inputs.concat(), 2);
    let (gate, up) = (b.matrix_of(&[1.0, 0.0], 2), b.matrix_of(&[0.0, 1.0], 2));
    let case = b.build(move |r| {
        let x = x.record(r);
        let out = r.act(1);
        r.push(Op::LinearGlu { x, gate, up, glu, out });
        vec![out]
    });
    let want = [0.845_795_766, 55.999_625_0, 1.201_906_79e-5, -0.350_388_437];
    for (out, want) in run(&case, 4).iter().zip(want) {
        assert_near(out, &[want], 1e-6, "act");
    }
}
