//! Whether a draft was made for this target.

use super::settings::DraftSettings;
use crate::error::{ModelError, Result};
use crate::hyper::Hyper;

/// Errors with the reason where the draft cannot have been made for the target. One made for another model of the
/// same sizes passes: it would still write the target's text, at low acceptance.
pub fn check_fit(draft: &DraftSettings, target: &Hyper) -> Result<()> {
    let n_layers = target.layers.len();
    let misfit = |problem: String, hint: String| {
        Err(ModelError::Misfit { draft: draft.file.clone(), target: target.file.clone(), problem, hint })
    };
    let other =
        |what: String| format!("this draft was made for a target {what}; pass that one with -m, or drop -d");
    if draft.hidden != target.hidden {
        return misfit(
            format!("its hidden size is {}, the target's {}", draft.hidden, target.hidden),
            other(format!("of hidden size {}", draft.hidden)),
        );
    }
    if let Some(vocab) = draft.vocab.filter(|v| *v != target.vocab) {
        return misfit(
            format!("its vocabulary has {vocab} tokens, the target's {}", target.vocab),
            other(format!("of {vocab} tokens")),
        );
    }
    if let Some(n) = draft.n_target_layers.filter(|n| *n != n_layers) {
        return misfit(
            format!("it declares a target of {n} layers, and this one has {n_layers}"),
            other(format!("of {n} layers")),
        );
    }
    if let Some(tap) = draft.taps.iter().find(|t| usize::from(t.0) >= n_layers) {
        return misfit(
            format!(
                "it reads the output of layer {} (counted from 0), but the target has {n_layers} layers",
                tap.0
            ),
            other(format!("of at least {} layers", u32::from(tap.0) + 1)),
        );
    }
    if draft.mask_token as usize >= target.vocab {
        return misfit(
            format!("its mask token is {}, but the target has {} tokens", draft.mask_token, target.vocab),
            other(format!("of at least {} tokens", u64::from(draft.mask_token) + 1)),
        );
    }
    Ok(())
}
