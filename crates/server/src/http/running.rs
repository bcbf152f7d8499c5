//! Answers on their way: several streams of one request, each with what its text means.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use overdraft_engine::{Finish, Logprobs, Speculative};

use super::chat::response::finish_reason;
use super::error::{ApiError, ApiResult, Fault};
use super::figures::Figures;
use super::stops::Stops;
use crate::handle::{FailKind, Stream, TokenOut, Update};
use crate::output::{OutputParser, Piece};

/// One answer that the engine has taken on.
pub(crate) struct Taken {
    pub(crate) stream: Stream,
    /// `None` where text is only text.
    pub(crate) parser: Option<OutputParser>,
    pub(crate) stops: Stops,
    /// Tokens the client named as ends, beside the model's own.
    pub(crate) own_stop_ids: Vec<u32>,
    /// Its prompt alone is wanted; the one token that comes with it is not told.
    pub(crate) is_silent: bool,
}

/// What happened to one of the answers.
#[derive(Debug)]
pub(crate) enum Happening {
    /// Its prompt is being read.
    Started {
        choice: usize,
    },
    /// Its prompt was read for this, of all tokens but the first. Comes before anything else of it.
    Scored {
        choice: usize,
        scores: Vec<Logprobs>,
    },
    /// More of it: what it means, and the tokens it came from. Either may be empty.
    More {
        choice: usize,
        pieces: Vec<Piece>,
        tokens: Vec<TokenOut>,
    },
    Ended {
        choice: usize,
        end: End,
    },
}

/// How an answer ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct End {
    pub(crate) finish: Finish,
    /// It called a tool.
    pub(crate) called: bool,
    pub(crate) stop: Option<Stop>,
}

/// What the client named and the text met.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Stop {
    Text(String),
    Token(u32),
}

pub(crate) struct Running {
    choices: Vec<Choice>,
    /// Whose turn it is to be looked at first.
    turn: usize,
    ready: VecDeque<Happening>,
    pub(crate) figures: Figures,
    has_started: bool,
}

struct Choice {
    /// `None` once it is over.
    stream: Option<Stream>,
    parser: Option<OutputParser>,
    stops: Stops,
    own_stop_ids: Vec<u32>,
    is_silent: bool,
    last_token: Option<u32>,
    called: bool,
    /// Tokens whose text has not come out yet, so that it is not known what they were for.
    undecided: usize,
}

impl Running {
    pub(crate) fn new(taken: Vec<Taken>, prompt_tokens: usize, asked: Speculative, seed: u64) -> Self {
        let choice = |t: Taken| Choice {
            stream: Some(t.stream),
            parser: t.parser,
            stops: t.stops,
            own_stop_ids: t.own_stop_ids,
            is_silent: t.is_silent,
            last_token: None,
            called: false,
            undecided: 0,
        };
        Self {
            choices: taken.into_iter().map(choice).collect(),
            turn: 0,
            ready: VecDeque::new(),
            figures: Figures { prompt_tokens, asked, seed, ..Figures::default() },
            has_started: false,
        }
    }

    pub(crate) fn n_choices(&self) -> usize {
        self.choices.len()
    }

    /// What happened next; `None` when all answers are over. After an error nothing comes: what still runs is
    /// cancelled with this.
    pub(crate) async fn next(&mut self) -> Option<ApiResult<Happening>> {
        loop {
            if let Some(happening) = self.ready.pop_front() {
                return Some(Ok(happening));
            }
            let (choice, update) = self.update().await?;
            if let Err(error) = self.take(choice, update) {
                self.choices.clear();
                return Some(Err(error));
            }
        }
    }

    /// The next update of any answer, in turns.
    async fn update(&mut self) -> Option<(usize, Option<Update>)> {
        let n = self.choices.len();
        poll_fn(|cx| {
            let mut is_over = true;
            for i in (0..n).map(|i| (self.turn + i) % n) {
                let Some(stream) = &mut self.choices[i].stream else { continue };
                is_over = false;
                if let Poll::Ready(update) = pin!(stream.next()).poll(cx) {
                    self.turn = (i + 1) % n;
                    return Poll::Ready(Some((i, update)));
                }
            }
            if is_over { Poll::Ready(None) } else { Poll::Pending }
        })
        .await
    }

    fn take(&mut self, choice: usize, update: Option<Update>) -> ApiResult<()> {
        match update {
            Some(Update::Started { cached_tokens, .. }) => {
                // The prompt is counted once; of several readings of it the first is the one that cost.
                if !self.has_started {
                    self.figures.cached_tokens = cached_tokens;
                }
                self.has_started = true;
                self.ready.push_back(Happening::Started { choice });
            }
            Some(Update::Scored(scores)) => self.ready.push_back(Happening::Scored { choice, scores }),
            Some(Update::Tokens(_)) if self.choices[choice].is_silent => {}
            Some(Update::Tokens(tokens)) => {
                let pieces = self.choices[choice].read(&tokens, &mut self.figures.reasoning_tokens);
                self.ready.push_back(Happening::More { choice, pieces, tokens });
            }
            Some(Update::Finished { mut finish, mut stats, timings }) => {
                let of = &mut self.choices[choice];
                if of.is_silent {
                    (finish, stats.generated_tokens) = (Finish::MaxTokens, 0);
                }
                of.stream = None;
                let rest = of.finish();
                self.figures.add(&stats, &timings);
                if !rest.is_empty() {
                    self.ready.push_back(Happening::More { choice, pieces: rest, tokens: Vec::new() });
                }
                let of = &self.choices[choice];
                let end = End { finish, called: of.called, stop: of.stop(finish) };
                self.figures.finished.push(finish_reason(&end));
                self.ready.push_back(Happening::Ended { choice, end });
            }
            Some(Update::Failed { message, kind }) => return Err(failed(kind, message)),
            // The thread is gone without a word; it says why in the log.
            None => return Err(failed(FailKind::Engine, String::new())),
        }
        Ok(())
    }
}

impl Choice {
    /// What these tokens mean. Those whose text comes out as reasoning are counted.
    fn read(&mut self, tokens: &[TokenOut], reasoning_tokens: &mut usize) -> Vec<Piece> {
        let mut pieces = Vec::new();
        self.last_token = tokens.last().map(|t| t.id).or(self.last_token);
        for token in tokens {
            self.stops.push(token.id);
            let before = pieces.len();
            match &mut self.parser {
                Some(parser) => parser.push(&token.text, &mut pieces),
                None if token.text.is_empty() => {}
                None => pieces.push(Piece::Content(token.text.clone())),
            }
            self.undecided += 1;
            if let Some(last) = pieces[before..].last() {
                if matches!(last, Piece::Reasoning(_)) {
                    *reasoning_tokens += self.undecided;
                }
                self.undecided = 0;
            }
            self.called |= pieces[before..].iter().any(|p| matches!(p, Piece::CallStart { .. }));
        }
        joined(pieces)
    }

    fn finish(&mut self) -> Vec<Piece> {
        let mut pieces = Vec::new();
        if let Some(parser) = &mut self.parser {
            parser.finish(&mut pieces);
        }
        self.called |= pieces.iter().any(|p| matches!(p, Piece::CallStart { .. }));
        joined(pieces)
    }

    fn stop(&self, finish: Finish) -> Option<Stop> {
        match finish {
            Finish::StopString => self.stops.met().map(|text| Stop::Text(text.to_owned())),
            Finish::EndToken => self.last_token.filter(|t| self.own_stop_ids.contains(t)).map(Stop::Token),
            _ => None,
        }
    }
}

/// Neighbours of one kind as one piece: a chunk for each step, not for each token.
fn joined(pieces: Vec<Piece>) -> Vec<Piece> {
    let mut out: Vec<Piece> = Vec::with_capacity(pieces.len());
    for piece in pieces {
        match (out.last_mut(), piece) {
            (Some(Piece::Content(text)), Piece::Content(more)) => text.push_str(&more),
            (Some(Piece::Reasoning(text)), Piece::Reasoning(more)) => text.push_str(&more),
            (Some(Piece::CallArgs { index, text }), Piece::CallArgs { index: i, text: more })
                if *index == i =>
            {
                text.push_str(&more);
            }
            (_, piece) => out.push(piece),
        }
    }
    out
}

/// Whose fault it was. What a device said is not for strangers.
fn failed(kind: FailKind, message: String) -> ApiError {
    match kind {
        FailKind::Request => ApiError::new(Fault::Internal, message).code("no_token"),
        FailKind::Deadline => ApiError::new(Fault::Timeout, message).code("deadline_exceeded"),
        FailKind::SlowReader => ApiError::new(Fault::Timeout, message).code("slow_reader"),
        FailKind::Engine => {
            ApiError::new(Fault::Unavailable, "the engine has stopped").code("engine_stopped")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_of_a_kind_are_joined_and_others_kept_apart() {
        let (c, r) = (|t: &str| Piece::Content(t.into()), |t: &str| Piece::Reasoning(t.into()));
        let args = |index, t: &str| Piece::CallArgs { index, text: t.into() };
        assert_eq!(
            joined(vec![r("a"), r("b"), c("c"), c("d"), args(0, "{"), args(0, "}"), args(1, "{}"), c("e")]),
            [r("ab"), c("cd"), args(0, "{}"), args(1, "{}"), c("e")]
        );
    }
}
