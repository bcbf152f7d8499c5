//! What an answer is made of, as it is handed on.

/// A part of an answer. Text of one kind may come in several pieces; joined, they do not depend on how the model's text
/// was cut on its way here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    Reasoning(String),
    Content(String),
    /// A call comes out whole: its start, one piece of arguments and its end follow each other at once, when the last
    /// bracket has been written. What turns out to be no call can then still be content.
    CallStart {
        index: usize,
        id: String,
        name: String,
    },
    /// The text of a JSON object.
    CallArgs {
        index: usize,
        text: String,
    },
    CallEnd {
        index: usize,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prose {
    Reasoning,
    Content,
}

/// Appends text, to the last piece if that is of the same kind.
pub(super) fn append(out: &mut Vec<Piece>, prose: Prose, text: &str) {
    if text.is_empty() {
        return;
    }
    match (prose, out.last_mut()) {
        (Prose::Reasoning, Some(Piece::Reasoning(last))) | (Prose::Content, Some(Piece::Content(last))) => {
            last.push_str(text);
        }
        (Prose::Reasoning, _) => out.push(Piece::Reasoning(text.into())),
        (Prose::Content, _) => out.push(Piece::Content(text.into())),
    }
}
