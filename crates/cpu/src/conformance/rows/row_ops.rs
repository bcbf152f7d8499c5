//! Embed, norm, select, angles, gated norm.

use overdraft_formats::DType;
use overdraft_plan::{Op, RmsNorm};

use crate::conformance::case::{Arithmetic, Case, CaseBuilder, Kind};

pub(super) fn embeds() -> Vec<Case> {
    let types = DType::all().filter(|d| d.is_decodable()).map(|dtype| embed(dtype, 256));
    types.chain([embed(DType::Q4_0, 96)]).collect()
}

pub(super) fn norms() -> Vec<Case> {
    [(1, false), (2, true), (31, false), (96, true), (256, false), (2880, true)]
        .map(|(width, tap)| norm(width, tap))
        .into()
}

pub(super) fn selects() -> Vec<Case> {
    vec![select(1), select(3)]
}

pub(super) fn angles() -> Vec<Case> {
    [(1, 1e4, 1.0), (16, 1e4, 1.0), (32, 1e7, 1.346_573_6), (64, 5e5, 1.0)]
        .map(|(n, base, magnitude)| angle(n, base, magnitude))
        .into()
}

pub(super) fn gated_norms() -> Vec<Case> {
    [(1, 2), (3, 16), (8, 64), (4, 128)].map(|(heads, dim)| gated_norm(heads, dim)).into()
}

fn embed(dtype: DType, width: usize) -> Case {
    let mut b = CaseBuilder::new(Kind::Embed, Arithmetic::Copy, format!("{dtype} of {width}"));
    let table = b.matrix(dtype, Case::N_TOKENS as usize, width);
    b.build(move |r| {
        let out = r.act(width);
        r.push(Op::Embed { table, out });
        vec![out]
    })
}

fn norm(width: usize, with_tap: bool) -> Case {
    let mut b = CaseBuilder::new(Kind::Norm, Arithmetic::Elementwise, format!("of {width}, tap {with_tap}"));
    let input = b.input(width, 3.0);
    let norm = RmsNorm { weight: b.norm_weight(width), eps: 1e-6 };
    b.build(move |r| {
        let x = input.record(r);
        let out = r.act(width);
        let tap = with_tap.then(|| r.tap(width));
        r.push(Op::Norm { x, norm, out, tap });
        [Some(out), tap].into_iter().flatten().collect()
    })
}

fn select(every: u32) -> Case {
    let mut b = CaseBuilder::new(Kind::Select, Arithmetic::Copy, format!("rows at multiples of {every}"));
    let input = b.input(48, 1.0);
    b.logits_every(every);
    b.build(move |r| {
        let x = input.record(r);
        let out = r.logit_act(48);
        r.push(Op::Select { x, out });
        vec![out]
    })
}

fn angle(frequencies: usize, base: f32, magnitude: f32) -> Case {
    let name = format!("{frequencies} frequencies, base {base}");
    let mut b = CaseBuilder::new(Kind::Angles, Arithmetic::Elementwise, name);
    let inv_freq = (0..frequencies).map(|i| base.powf(-(i as f32) / frequencies as f32)).collect();
    let inv_freq = b.vector(inv_freq);
    let input = b.input(1, 1.0);
    b.prompt(600);
    b.build(move |r| {
        // Unused, but it tells the backend which tokens there are.
        input.record(r);
        let out = r.act(2 * frequencies);
        r.push(Op::Angles { inv_freq, magnitude, out });
        vec![out]
    })
}

fn gated_norm(heads: usize, head_dim: usize) -> Case {
    let name = format!("{heads} heads of {head_dim}");
    let mut b = CaseBuilder::new(Kind::GatedNorm, Arithmetic::Elementwise, name);
    let width = heads * head_dim;
    let (x, gate) = (b.input(width, 1.0), b.input(width, 3.0));
    let norm = RmsNorm { weight: b.norm_weight(head_dim), eps: 1e-6 };
    b.build(move |r| {
        let (x, gate) = (x.record(r), gate.record(r));
        let out = r.act(width);
        r.push(Op::GatedNorm { x, gate, norm, head_dim, out });
        vec![out]
    })
}
