//! What an answer is made of, as it is handed on.

/// A part of an answer. Text of one kind may come in several pieces; joined, they do not depend on how the model's text
/// was cut on its way here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    Reasoning(String),
    Content(String),
    /// A function is called. It has to be known by name, and its arguments have to have begun, before this is said of
    /// text that is not whole yet: up to then it may turn out to be content.
    CallStart {
        index: usize,
        id: String,
        name: String,
    },
    /// More of the text of a JSON object; nothing else comes before the end of the call.
    CallArgs {
        index: usize,
        text: String,
    },
    /// The arguments are whole. Missing where the answer was cut off in them.
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

/// Appends to the arguments of a call.
pub(super) fn append_args(out: &mut Vec<Piece>, index: usize, more: &str) {
    match out.last_mut() {
        Some(Piece::CallArgs { index: last, text }) if *last == index => text.push_str(more),
        _ if more.is_empty() => {}
        _ => out.push(Piece::CallArgs { index, text: more.into() }),
    }
}
