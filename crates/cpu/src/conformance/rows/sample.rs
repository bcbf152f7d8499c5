//! Tokens drawn: every part of the chain alone and all at once, over vocabularies that fit a block and such as do not.

use overdraft_plan::Op;
use overdraft_plan::draw::{Adjustment, Drawing};

use crate::conformance::case::{Arithmetic, Case, CaseBuilder, Kind};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Logits {
    Smooth,
    /// Whole numbers.
    Ties,
    /// Rows with infinities, rows of nothing, and a row without a number.
    Odd,
}

pub(super) fn samples() -> Vec<Case> {
    let mut cases = Vec::new();
    for (vocab, logits) in [
        (33, Logits::Smooth),
        (33, Logits::Odd),
        (5003, Logits::Ties),
        (24_000, Logits::Smooth),
        (24_000, Logits::Odd),
    ] {
        cases.extend((0..chains().len()).map(|i| sample(vocab, logits, &[i])));
    }
    cases.push(sample(248_320, Logits::Smooth, &[0, 3]));
    cases.push(sample(248_320, Logits::Ties, &[4, 5]));
    cases
}

/// Chains by pairs, for two sequences each; the odd ones of the last also change single logits.
#[rustfmt::skip]
fn chains() -> [(&'static str, [Drawing; 2]); 6] {
    let hot = Drawing { temperature: 0.8, seed: 11, ..Default::default() };
    [
        ("greedy and plain", [Drawing::default(), hot]),
        ("top-k 1 and 20", [Drawing { top_k: 1, ..hot }, Drawing { top_k: 20, choice: 3, ..hot }]),
        ("top-p tiny and 0.95", [Drawing { top_p: 1e-6, ..hot }, Drawing { top_p: 0.95, ..hot }]),
        ("min-p, and all at once", [
            Drawing { min_p: 0.05, temperature: 2.0, ..hot },
            Drawing { top_k: 50, top_p: 0.9, min_p: 0.02, repetition_penalty: 1.3, frequency_penalty: 0.2, presence_penalty: 0.4, ..hot },
        ]),
        ("penalties", [
            Drawing { repetition_penalty: 1.7, ..Default::default() },
            Drawing { temperature: 1.5, top_p: 0.999, frequency_penalty: 2.0, presence_penalty: -1.0, seed: u64::MAX, ..hot },
        ]),
        ("wide", [
            Drawing { temperature: 3.0, top_k: 5000, seed: 1 << 40, ..hot },
            Drawing { temperature: 50.0, top_k: 3000, top_p: 0.9999, choice: u32::MAX, ..hot },
        ]),
    ]
}

fn sample(vocab: usize, logits: Logits, which: &[usize]) -> Case {
    let chains = chains();
    let names: Vec<&str> = which.iter().map(|i| chains[*i].0).collect();
    let name = format!("{} of {vocab}, {logits:?}", names.join(", "));
    let mut b = CaseBuilder::new(Kind::Sample, Arithmetic::Copy, name);
    for drawing in which.iter().flat_map(|i| chains[*i].1) {
        let is_changed = drawing.has_penalties();
        let listed = if is_changed { changes(&mut b, vocab) } else { Vec::new() };
        b.draw(drawing, listed);
    }
    let mut values = b.random.gaussians(Case::N_TOKENS as usize * vocab, 3.0);
    for (nth, row) in values.chunks_exact_mut(vocab).enumerate() {
        match (logits, nth % 5) {
            (Logits::Ties, _) => row.iter_mut().for_each(|l| *l = l.round()),
            (Logits::Odd, 0) => row.fill(f32::NAN),
            (Logits::Odd, 1) => row.fill(-0.5),
            (Logits::Odd, 2) => {
                (row[3], row[vocab / 2], row[vocab - 1]) = (f32::INFINITY, f32::NAN, f32::NEG_INFINITY)
            }
            (Logits::Odd, 3) => row[vocab / 3..].fill(f32::NEG_INFINITY),
            // Only a few can be drawn, and a difference overflows.
            (Logits::Odd, _) => {
                row.iter_mut().enumerate().for_each(|(i, l)| *l *= if i % 9 == 0 { 1e38 } else { 40.0 })
            }
            (Logits::Smooth, _) => {}
        }
    }
    let logits = b.input_of(&values, vocab);
    if vocab > 100_000 {
        b.most_rows(24);
    }
    b.build_choosing(move |r| {
        let x = logits.record(r);
        let logits = r.logit_act(vocab);
        r.push(Op::Select { x, out: logits });
        let choice = r.logit_choice(1);
        r.push(Op::Sample { logits, choice });
        choice
    })
}

/// Of every seventh token, about: in the prompt, in the answer, or biased; some tokens of drafts among them.
fn changes(b: &mut CaseBuilder, vocab: usize) -> Vec<Adjustment> {
    let tokens: Vec<u32> = (0..vocab as u32).filter(|_| b.random.below(7) == 0).collect();
    let mut change = |token| {
        let bias = match b.random.below(40) {
            0 => f32::NEG_INFINITY,
            1..10 => b.random.gaussian(),
            _ => 0.0,
        };
        Adjustment { token, bias, answered: b.random.below(4) as u32, is_in_prompt: b.random.below(2) == 0 }
    };
    tokens.into_iter().map(&mut change).collect()
}
