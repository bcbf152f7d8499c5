//! Standard error: notes, errors and colours. Nothing here can fail or panic; a closed standard error loses notes.

use std::io::{IsTerminal, Write};

/// What may be shown beside the text itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Screen {
    /// Standard error is a terminal, so a person reads along.
    pub(crate) terminal: bool,
    colour: bool,
    quiet: bool,
}

impl Screen {
    pub(crate) fn new(quiet: bool) -> Self {
        Self { terminal: std::io::stderr().is_terminal(), colour: colour(), quiet }
    }

    /// Something the user should know, also when standard error goes to a file.
    pub(crate) fn note(&self, text: &str) {
        if !self.quiet {
            line(&format!("{}: {text}", self.paint("note", "1")));
        }
    }

    /// A line for a person at the terminal only.
    pub(crate) fn greet(&self, text: &str) {
        if self.is_chatty() {
            line(&self.paint(text, "2"));
        }
    }

    /// The line of figures.
    pub(crate) fn figures(&self, text: &str) {
        if !self.quiet {
            line(&self.paint(text, "2"));
        }
    }

    /// Text without a line's end, as it is.
    pub(crate) fn echo(&self, text: &str) {
        if self.is_chatty() {
            put(&self.paint(&printable(text), "2"));
        }
    }

    /// A person reads along and did not ask for silence.
    pub(crate) fn is_chatty(&self) -> bool {
        self.terminal && !self.quiet
    }

    fn paint(&self, text: &str, code: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.into() }
    }
}

/// `error: ...`, and `hint: ...` where there is a remedy.
pub(crate) fn error(message: &str, hint: Option<&str>) {
    let (red, bold, off) = if colour() { ("\x1b[1;31m", "\x1b[1m", "\x1b[0m") } else { ("", "", "") };
    line(&format!("{red}error{off}: {}", printable(message)));
    if let Some(hint) = hint {
        line(&format!("{bold}hint{off}: {}", printable(hint)));
    }
}

/// A line on standard error, whether or not anybody asked for silence.
pub(crate) fn line(text: &str) {
    put(&format!("{text}\n"));
}

fn put(text: &str) {
    let mut stderr = std::io::stderr().lock();
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}

/// <https://no-color.org>: any value but the empty one means none.
pub(crate) fn colour() -> bool {
    let unwanted = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|v| v == "dumb");
    std::io::stderr().is_terminal() && !unwanted && !dumb
}

/// Text that cannot drive a terminal: control characters but tab and line feed become U+FFFD. What models and files
/// say is theirs, and an escape sequence in it could retitle the window or worse.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if is_printable(c) { c } else { char::REPLACEMENT_CHARACTER }).collect()
}

fn is_printable(c: char) -> bool {
    matches!(c, '\n' | '\t') || !c.is_control()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_sequences_never_reach_the_terminal() {
        assert_eq!(printable("a\tb\nc é ✓"), "a\tb\nc é ✓");
        assert_eq!(
            printable("\x1b]0;title\x07\r\u{9b}2J\u{7f}"),
            "\u{fffd}]0;title\u{fffd}\u{fffd}\u{fffd}2J\u{fffd}"
        );
    }
}
