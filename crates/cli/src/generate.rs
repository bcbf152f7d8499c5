//! Drives one request through the engine to its end, or to Ctrl-C.

use overdraft_engine::{Engine, Event, Finish, Request, Stats};

use crate::config::Answering;
use crate::failure::Result;
use crate::interrupt;
use crate::output::Reader;
use crate::progress::Progress;
use crate::screen::Screen;

/// Why an answer is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Finished(Finish),
    Interrupted,
    /// Whoever read standard output left.
    ReaderGone,
}

impl Ended {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Ended::Finished(finish) => finish.name(),
            Ended::Interrupted => "interrupted",
            Ended::ReaderGone => "closed-pipe",
        }
    }
}

pub(crate) struct Answer {
    pub(crate) text: String,
    /// All that were chosen, the one that ended the text included.
    pub(crate) tokens: Vec<u32>,
    pub(crate) stats: Stats,
    pub(crate) ended: Ended,
}

/// A request for `prompt` under these settings.
pub(crate) fn request(prompt: Vec<u32>, answering: &Answering) -> Request {
    Request {
        prompt,
        max_tokens: answering.max_tokens,
        sampling: answering.sampling.clone(),
        stop_ids: answering.stop_ids.clone(),
        stop_strings: answering.stop_strings.clone(),
    }
}

/// Runs the engine until the request ends, handing each piece of text to `give` as it comes.
pub(crate) fn generate(
    engine: &mut Engine,
    request: Request,
    screen: &Screen,
    mut give: impl FnMut(&Event) -> Result<Reader>,
) -> Result<Answer> {
    let id = engine.admit(request)?;
    let generating = interrupt::generating();
    let mut progress = Progress::new("reading the prompt", screen);
    let (mut text, mut tokens) = (String::new(), Vec::new());
    loop {
        let events = engine.step()?;
        if let Some((done, of)) = engine.prompt_progress(id)
            && done < of
        {
            progress.at(done, of);
        }
        for event in events {
            progress.clear();
            tokens.push(event.token);
            text.push_str(&event.text);
            let reader = give(&event)?;
            if let Some((finish, stats)) = event.finish {
                return Ok(Answer { text, tokens, stats, ended: Ended::Finished(finish) });
            }
            if reader == Reader::Gone {
                let stats = engine.cancel(id).unwrap_or_default();
                return Ok(Answer { text, tokens, stats, ended: Ended::ReaderGone });
            }
        }
        if generating.asked_to_stop() {
            let read = engine.prompt_progress(id).map_or(0, |(done, _)| done);
            let mut stats = engine.cancel(id).unwrap_or_default();
            // Figures are of what was done, not of what was asked.
            stats.prompt_tokens = read;
            return Ok(Answer { text, tokens, stats, ended: Ended::Interrupted });
        }
    }
}
