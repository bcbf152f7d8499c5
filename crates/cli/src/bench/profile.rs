//! `--accept-profile`: rounds in which so many tokens are accepted whatever the target would have chosen.

use overdraft_engine::Engine;
use overdraft_engine::spec::forced::Forced;

use super::mode::BenchMode;
use crate::failure::{Failure, Result};

/// What stands below a table with such rounds in it.
pub(crate) const NOTE: &str = "\nForced: draft, verify and commit ran, and as many guesses were accepted as --accept-profile says, \
                               whatever the target would have chosen. The draft is taken to be 78 % sure of its best guess at \
                               every depth, which auto has to find out about. Such text is not the model's; the time is.\n";

/// A number of tokens a round, as written.
pub(crate) fn parse(text: &str) -> std::result::Result<f64, String> {
    let tokens = text.parse::<f64>().ok().filter(|tokens| Forced::new(*tokens).is_some());
    tokens.ok_or_else(|| {
        format!("a round writes 1 to {} tokens; a fraction such as 2.5 is met on average", Forced::MOST)
    })
}

/// The patterns a mode runs with: each asked for where it drafts, none where it does not.
pub(crate) fn of_mode(mode: BenchMode, asked: &[f64]) -> Result<Vec<Option<Forced>>> {
    match mode {
        _ if asked.is_empty() => Ok(vec![None]),
        BenchMode::Plain | BenchMode::Ready => Ok(vec![None]),
        BenchMode::Drafting(..) => Ok(asked.iter().map(|tokens| Forced::new(*tokens)).collect()),
        BenchMode::Lookup => {
            Err(Failure::input("--accept-profile: mode lookup has no draft whose guesses could be accepted")
                .hint("use the modes auto, chain:N and tree:N"))
        }
    }
}

/// Refuses what the mode's trees cannot hold.
pub(crate) fn check(mode: BenchMode, forced: Option<Forced>, engine: &Engine) -> Result<()> {
    let Some(tokens) = forced.map(|f| f.tokens_a_round()) else { return Ok(()) };
    let block = engine.draft().map_or(0, |d| d.settings.n_drafts());
    let depth = engine.config().budget.map_or(block, |budget| budget.min(block));
    let most = depth + 1;
    if tokens.ceil() as usize > most {
        return Err(Failure::input(format!(
            "--accept-profile {tokens}: a round of {mode} writes {most} tokens at most, its {depth} guesses and the target's own"
        ))
        .hint(format!("the draft guesses {block} tokens ahead; ask for fewer tokens, or for a mode with more guesses")));
    }
    Ok(())
}
