//! A request on its way: its tokens, what is committed of them, its pages and its text.

use crate::logprobs::Logprobs;
use crate::memory::PageTable;
use crate::request::{Finish, Request, SeqId};
use crate::sampling::History;
use crate::stats::Stats;
use crate::stop::TextStream;

pub(crate) struct Sequence {
    pub(crate) id: SeqId,
    pub(crate) slot: u32,
    pub(crate) request: Request,
    /// Prompt and answer. The last one is not committed until the step after it was chosen.
    pub(crate) tokens: Vec<u32>,
    /// Tokens whose keys, values and recurrent rows are kept.
    pub(crate) committed: usize,
    /// The grid at which the slot's recurrent state stands.
    pub(crate) stored_grid: u32,
    pub(crate) tables: Vec<PageTable>,
    pub(crate) cache_salt: u64,
    /// Positions of the prompt where reading pauses for its state to be kept; 0 is none.
    pub(crate) keep_at: [usize; 2],
    pub(crate) history: History,
    pub(crate) text: TextStream,
    pub(crate) stats: Stats,
    /// Positions it may fill: the context, or less if it asked for less.
    pub(crate) limit: usize,
    /// The most likely tokens that are named beside each chosen one; `None`: not even its own log-probability.
    pub(crate) logprobs: Option<usize>,
    /// The same for the prompt's tokens, and what was found of them.
    pub(crate) prompt_logprobs: Option<usize>,
    pub(crate) scores: Option<Vec<Logprobs>>,
    /// Takes part in no step for now.
    pub(crate) is_paused: bool,
    /// Takes no part in the step at hand.
    pub(crate) rests: bool,
}

impl Sequence {
    pub(crate) fn in_prompt(&self) -> bool {
        self.committed < self.request.prompt.len()
    }

    /// Its prompt is read for the log-probabilities of its tokens.
    pub(crate) fn is_scored(&self) -> bool {
        self.prompt_logprobs.is_some() && self.in_prompt()
    }

    /// Has prompt to be read in the next step.
    pub(crate) fn is_reading(&self) -> bool {
        self.in_prompt() && !self.is_paused && !self.rests
    }

    /// Has text to be written in the next step.
    pub(crate) fn is_writing(&self) -> bool {
        !self.in_prompt() && !self.is_paused && !self.rests
    }

    /// What is left of the prompt, up to where reading it pauses for its state to be kept.
    pub(crate) fn prompt_left(&self) -> usize {
        let pause = self.keep_at.iter().copied().filter(|at| *at > self.committed).min();
        pause.unwrap_or(self.request.prompt.len()).saturating_sub(self.committed)
    }

    /// Takes a chosen token: appends the text it makes certain, and says whether it ends the sequence. `is_last`: nothing
    /// may follow it.
    pub(crate) fn accept(
        &mut self,
        token: u32,
        is_last: bool,
        tokenizer: &overdraft_formats::tokenizer::Tokenizer,
        text: &mut String,
    ) -> Option<Finish> {
        self.stats.generated_tokens += 1;
        self.history.answer(token);
        self.tokens.push(token);
        if self.request.stop_ids.contains(&token) {
            self.text.finish(text);
            return Some(Finish::EndToken);
        }
        self.text.push(tokenizer, token, text);
        let finish = if self.text.is_stopped() {
            Some(Finish::StopString)
        } else if is_last {
            Some(Finish::Constraint)
        } else if self.stats.generated_tokens >= self.request.max_tokens {
            Some(Finish::MaxTokens)
        } else if self.tokens.len() >= self.limit {
            Some(Finish::Context)
        } else {
            None
        };
        if finish.is_some() {
            self.text.finish(text);
        }
        finish
    }
}
