//! Whole answers, for clients that wait for them.

use overdraft_engine::Logprobs;

use super::error::ApiResult;
use super::figures::Figures;
use super::running::{End, Happening, Running};
use crate::handle::TokenOut;
use crate::output::Piece;

#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) reasoning: String,
    pub(crate) content: String,
    pub(crate) calls: Vec<Call>,
    pub(crate) tokens: Vec<TokenOut>,
    /// Of the prompt's tokens from the second on, where they were asked for.
    pub(crate) scores: Vec<Logprobs>,
    pub(crate) end: Option<End>,
}

#[derive(Debug, Default, PartialEq)]
pub(crate) struct Call {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) arguments: String,
}

impl Answer {
    pub(crate) fn add(&mut self, piece: Piece) {
        match piece {
            Piece::Reasoning(text) => self.reasoning.push_str(&text),
            Piece::Content(text) => self.content.push_str(&text),
            Piece::CallStart { id, name, .. } => self.calls.push(Call { id, name, arguments: String::new() }),
            Piece::CallArgs { text, .. } => {
                if let Some(call) = self.calls.last_mut() {
                    call.arguments.push_str(&text);
                }
            }
            Piece::CallEnd { .. } => {}
        }
    }
}

/// Waits for all answers. Dropped halfway, it cancels them.
pub(crate) async fn collect(mut running: Running, keep_tokens: bool) -> ApiResult<(Vec<Answer>, Figures)> {
    let mut answers: Vec<Answer> = (0..running.n_choices()).map(|_| Answer::default()).collect();
    while let Some(happening) = running.next().await {
        match happening? {
            Happening::Started { .. } => {}
            Happening::Scored { choice, scores } => answers[choice].scores = scores,
            Happening::More { choice, pieces, tokens } => {
                pieces.into_iter().for_each(|piece| answers[choice].add(piece));
                if keep_tokens {
                    answers[choice].tokens.extend(tokens);
                }
            }
            Happening::Ended { choice, end } => answers[choice].end = Some(end),
        }
    }
    Ok((answers, running.figures))
}
