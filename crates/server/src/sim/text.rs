//! The made-up model: what follows depends on every token before, yet repeats itself often enough to be guessed.

use overdraft_engine::sampling::{History, Sampler};
use overdraft_engine::spec::by_rule::ByRule;
use overdraft_engine::{Constraint, Finish, Request};
use overdraft_plan::Retention;

use super::random::mix;

pub(crate) const VOCAB: usize = 384;
/// Ends a text where a request says so.
pub(crate) const END: u32 = 3;

/// One more token of a prefix; a prefix is all its tokens in order.
pub(crate) fn fold(hash: u64, token: u32) -> u64 {
    hash.wrapping_mul(0x0000_0100_0000_01b3).wrapping_add(u64::from(token) + 1)
}

/// What mostly comes after a token, whatever came before.
pub(crate) fn guess(token: u32) -> u32 {
    (token * 5 + 7) % 29
}

/// Of all that a row has seen: the hash of what each retention class shows it, and of what the recurrent state does.
pub(crate) fn logits(last: u32, seen: &[u64], out: &mut [f32]) {
    let hash = seen.iter().fold(1, |all, h| mix(all ^ h));
    if hash % 3001 == 7 {
        out.fill(f32::NAN);
        return;
    }
    for (token, l) in out.iter_mut().enumerate() {
        *l = (mix(hash ^ (token as u64) << 40) % 64) as f32 / 32.0;
    }
    let best = if hash % 7 == 0 { (hash >> 20) as usize % VOCAB } else { guess(last) as usize };
    out[best] = 5.0 + (hash % 97) as f32 / 97.0;
}

/// What a row after `prefix` should have seen.
pub(crate) fn seen(prefix: &[u32], classes: &[Retention], is_recurrent: bool) -> Vec<u64> {
    let hash = |tokens: &[u32]| tokens.iter().fold(0, |h, t| fold(h, *t));
    let class = |retention: &Retention| match retention {
        Retention::Full => hash(prefix),
        Retention::Sliding(window) => hash(&prefix[prefix.len().saturating_sub(*window as usize)..]),
    };
    classes.iter().map(class).chain(is_recurrent.then(|| hash(prefix))).collect()
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum End {
    Finished(Finish),
    NoLogits,
}

/// The text of a request that nothing disturbs, by the definition of it.
pub(crate) fn alone(
    request: &Request,
    mut constraint: Option<Box<dyn Constraint>>,
    context: usize,
    (classes, is_recurrent): (&[Retention], bool),
) -> (Vec<u32>, End) {
    let mut prefix = request.prompt.clone();
    let mut history = History::new(&request.sampling, &prefix, VOCAB);
    let mut sampler = Sampler::default();
    let mut row = vec![0.0; VOCAB];
    let mut mask = vec![0u32; VOCAB / 32];
    let n = prefix.len();
    loop {
        logits(prefix[prefix.len() - 1], &seen(&prefix, classes, is_recurrent), &mut row);
        let allowed = constraint.as_mut().map(|c| {
            mask.fill(0);
            c.mask(&mut mask);
            mask.as_slice()
        });
        let position = prefix.len() as u32;
        let chosen = sampler.choose_allowed(&row, allowed, &request.sampling, &history, position);
        let Some(token) = chosen else { return (prefix.split_off(n), End::NoLogits) };
        history.answer(token);
        prefix.push(token);
        let finish = if request.stop_ids.contains(&token) {
            Some(Finish::EndToken)
        } else if prefix.len() - n >= request.max_tokens {
            Some(Finish::MaxTokens)
        } else if prefix.len() >= context {
            Some(Finish::Context)
        } else {
            None
        };
        if let Some(finish) = finish {
            return (prefix.split_off(n), End::Finished(finish));
        }
        if let Some(constraint) = &mut constraint {
            assert!(constraint.accept(token), "its mask allowed it");
        }
    }
}

/// No token twice in a row modulo 4: a constraint that drafts break now and then.
pub(crate) fn no_twin() -> Box<dyn Constraint> {
    Box::new(ByRule::new(VOCAB, |given, token| given.last().is_none_or(|last| last % 4 != token % 4)))
}
