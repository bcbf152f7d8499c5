//! What a step brings: tokens, with their text and all that was asked of them.

use crate::logprobs::Logprobs;
use crate::request::{Finish, SeqId};
use crate::stats::Stats;

/// What events carry of the logits their tokens were drawn from: how tests and `check` see that no bit differs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Witness {
    #[default]
    None,
    Fingerprints,
    /// The logits themselves, before any adjustment: a vocabulary of floats a token.
    Logits,
}

/// How a token came to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nothing was drafted for its place.
    Plain,
    /// Drafted, and what the target chose.
    Accepted,
    /// Chosen by the target where the draft had guessed otherwise.
    Corrected,
}

/// What a step brought for one sequence; a round brings several.
#[derive(Clone, Debug)]
pub struct Event {
    pub seq: SeqId,
    pub token: u32,
    pub origin: Origin,
    /// Of the bits of the logits it was drawn from, where the engine was asked for it.
    pub fingerprint: Option<u64>,
    pub logits: Option<Vec<f32>>,
    /// Where the request asked for them.
    pub logprobs: Option<Logprobs>,
    /// Of the prompt's tokens from the second on, with the first token that is written, where the request asked.
    pub prompt_logprobs: Option<Vec<Logprobs>>,
    /// Text that is now certain; whole characters, and nothing of a stop string.
    pub text: String,
    pub finish: Option<(Finish, Stats)>,
}

/// What a step brought, in a buffer that can be kept and refilled: its texts are written where those before them were.
#[derive(Default)]
pub struct Events {
    pub(crate) list: Vec<Event>,
    /// Of earlier events, emptied.
    texts: Vec<String>,
}

impl Events {
    pub(crate) fn clear(&mut self) {
        self.texts.extend(self.list.drain(..).map(|event| event.text));
        self.texts.iter_mut().for_each(String::clear);
    }

    /// An empty text, with room for nearly any token's.
    pub(crate) fn text(&mut self) -> String {
        self.texts.pop().unwrap_or_else(|| String::with_capacity(64))
    }
}

impl std::ops::Deref for Events {
    type Target = [Event];

    fn deref(&self) -> &[Event] {
        &self.list
    }
}
