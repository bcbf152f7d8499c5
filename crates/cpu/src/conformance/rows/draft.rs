//! What only drafts need: kept taps, inputs side by side, the best tokens.

use overdraft_plan::{Op, RmsNorm};

use crate::conformance::case::{Arithmetic, Case, CaseBuilder, Kind};

pub(super) fn load_taps() -> Vec<Case> {
    vec![taps(1, 8), taps(3, 40)]
}

pub(super) fn concats() -> Vec<Case> {
    vec![concat(&[5]), concat(&[32, 1, 64]), concat(&[96, 96, 96, 96, 96])]
}

pub(super) fn top_tokens() -> Vec<Case> {
    let plain = [(1, 1), (7, 3), (256, 8), (1000, 32), (20_004, 16)]
        .into_iter()
        .map(|(vocab, k)| top(vocab, k, false));
    plain.chain([top(300, 16, true)]).collect()
}

/// Each step loads, at its rows' positions, what steps before it left there. That is a ring of 32 positions, so what
/// a row finds depends on how its sequence was cut into steps.
fn taps(n: usize, width: usize) -> Case {
    let mut b = CaseBuilder::new(Kind::LoadTaps, Arithmetic::Copy, format!("{n} taps of {width}"));
    let inputs: Vec<_> = (0..n).map(|_| b.input(width, 1.0)).collect();
    let norm = RmsNorm { weight: b.norm_weight(width), eps: 1e-6 };
    b.tap_width(n * width);
    b.depends_on_steps();
    b.build(move |r| {
        let loaded = r.act(n * width);
        r.push(Op::LoadTaps { out: loaded });
        for input in &inputs {
            let x = input.record(r);
            let (out, tap) = (r.act(width), r.tap(width));
            r.push(Op::Norm { x, norm, out, tap: Some(tap) });
        }
        vec![loaded]
    })
}

fn concat(widths: &[usize]) -> Case {
    let mut b = CaseBuilder::new(Kind::Concat, Arithmetic::Copy, format!("{widths:?}"));
    let inputs: Vec<_> = widths.iter().map(|width| b.input(*width, 1.0)).collect();
    let width = widths.iter().sum();
    b.build(move |r| {
        let xs = inputs.iter().map(|input| input.record(r)).collect();
        let out = r.act(width);
        r.push(Op::Concat { xs, out });
        vec![out]
    })
}

/// With `ties`, logits are whole numbers, so that most of the best have equals.
fn top(vocab: usize, k: usize, ties: bool) -> Case {
    let name = format!("{k} of {vocab}{}", if ties { ", many ties" } else { "" });
    let mut b = CaseBuilder::new(Kind::TopTokens, Arithmetic::Elementwise, name);
    let mut logits = b.random.gaussians(Case::N_TOKENS as usize * vocab, 3.0);
    if ties {
        logits.iter_mut().for_each(|l| *l = l.round());
    }
    let logits = b.input_of(&logits, vocab);
    b.build_choosing(move |r| {
        let x = logits.record(r);
        let logits = r.logit_act(vocab);
        r.push(Op::Select { x, out: logits });
        let choice = r.logit_choice(k);
        r.push(Op::TopTokens { logits, choice });
        choice
    })
}
