//! The token that each row's sequence draws. One function does it on every host ([`Sampler`]); the rows are shared out.

use std::cell::RefCell;

use overdraft_plan::draw::{Past, Sampler};
use overdraft_plan::{Act, Choice, MAX_DRAFT_DEPTH, NO_TOKEN};

use super::Cx;

thread_local! {
    static SAMPLER: RefCell<Sampler> = RefCell::default();
}

pub(super) fn run(cx: &Cx<'_>, logits: Act, choice: Choice) {
    let width = cx.acts.width(logits);
    cx.each_row(cx.acts.rows(logits), 4 * width, |r| {
        let view = cx.step.view(cx.step.logit_rows()[r] as usize);
        let mut path = [0; MAX_DRAFT_DEPTH + 1];
        let n = path.iter_mut().zip(view.drafted()).map(|(to, token)| *to = token).count();
        let past = Past { listed: view.seq.listed(), drafted: &path[..n] };
        // SAFETY: logits are only read, and the row's choice is this task's.
        let (logits, chosen) = unsafe { (cx.acts.row(logits, r), cx.acts.choice_mut(choice, r)) };
        let (how, position) = (&view.seq.drawing, view.row.pos + 1);
        let drawn = SAMPLER.with_borrow_mut(|s| s.draw(logits, None, how, past, position));
        chosen[0] = drawn.unwrap_or((NO_TOKEN, f32::INFINITY));
    });
}
