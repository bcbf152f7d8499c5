//! What `check` tries speculation with: who guesses, in which shape, how many a round.

use overdraft_engine::spec::drafter::Drafter;
use overdraft_engine::spec::policy::Mode;
use overdraft_engine::spec::scripted::{Curriculum, Scripted, ScriptedRound};
use overdraft_engine::spec::tree::MAX_DRAFTS;
use overdraft_plan::MAX_DRAFT_DEPTH;

use crate::config::mode_name;

/// Who guesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guesser {
    Draft,
    /// One that knows the text and errs where it is told to: every length is accepted at every alignment to the grid of recurrent layers, as far as the
    /// texts reach. It needs no draft.
    Script,
}

/// What speculation is tried with: guesses a round, if they are not left to the engine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trial {
    pub(crate) guesser: Guesser,
    pub(crate) mode: Mode,
    pub(crate) budget: Option<usize>,
}

impl Trial {
    pub(crate) fn name(&self) -> String {
        let mode = mode_name(self.mode);
        match (self.guesser, self.budget) {
            (Guesser::Script, _) => format!("script, {mode}"),
            (Guesser::Draft, Some(n)) => format!("{mode} {n}"),
            (Guesser::Draft, None) => mode.into(),
        }
    }
}

pub(crate) const TRIALS: [Trial; 7] = [
    Trial { guesser: Guesser::Draft, mode: Mode::Chain, budget: Some(7) },
    Trial { guesser: Guesser::Draft, mode: Mode::Chain, budget: Some(15) },
    Trial { guesser: Guesser::Draft, mode: Mode::Tree, budget: Some(22) },
    Trial { guesser: Guesser::Draft, mode: Mode::Tree, budget: Some(48) },
    Trial { guesser: Guesser::Draft, mode: Mode::Auto, budget: None },
    Trial { guesser: Guesser::Script, mode: Mode::Chain, budget: Some(MAX_DRAFT_DEPTH) },
    Trial { guesser: Guesser::Script, mode: Mode::Tree, budget: Some(MAX_DRAFTS) },
];

/// What a script is to drive, and has driven.
#[derive(Default)]
pub(crate) struct Script {
    curriculum: Curriculum,
    /// Guesses that it means to have accepted.
    pub(crate) accepted: usize,
}

impl Script {
    /// A drafter for a text of which the prompt's pass writes the first token.
    pub(crate) fn drafter(
        &mut self,
        text: Vec<u32>,
        prompt: usize,
        vocab: usize,
        mode: Mode,
    ) -> Box<dyn Drafter + Send> {
        let rounds = self.curriculum.rounds(prompt, text.len().saturating_sub(1), mode == Mode::Tree);
        self.accepted += rounds.iter().map(ScriptedRound::accepts).sum::<usize>();
        Box::new(Scripted::new(text, prompt, vocab as u32, rounds))
    }

    /// Pairs of an alignment and an accepted length that it has driven.
    pub(crate) fn driven(&self) -> usize {
        Curriculum::ALL - self.curriculum.left()
    }
}
