//! The user's lines: edited on a terminal, or read from a pipe.

use std::io::{BufRead, BufReader, IsTerminal, Read, Stdin};

use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

use crate::failure::{Failure, Result};
use crate::input::utf8;

/// More than any context holds.
const MAX_LINE_BYTES: usize = 64 << 20;

pub(super) enum Lines {
    /// History lasts as long as the conversation; nothing is written to disk.
    Terminal(Box<DefaultEditor>),
    Pipe {
        from: BufReader<Stdin>,
        n_lines: usize,
    },
}

impl Lines {
    pub(super) fn open() -> Result<Self> {
        if std::io::stdin().is_terminal() {
            let editor = DefaultEditor::new().map_err(|e| Failure::internal(format!("terminal: {e}")))?;
            Ok(Self::Terminal(Box::new(editor)))
        } else {
            Ok(Self::Pipe { from: BufReader::new(std::io::stdin()), n_lines: 0 })
        }
    }

    pub(super) fn is_terminal(&self) -> bool {
        matches!(self, Self::Terminal(_))
    }

    /// The next line, continued while it ends in a backslash; `None` when the user leaves.
    pub(super) fn next(&mut self) -> Result<Option<String>> {
        let Some(mut text) = self.one("> ")? else { return Ok(None) };
        while let Some(front) = text.strip_suffix('\\') {
            let Some(more) = self.one("… ")? else { break };
            text = format!("{front}\n{more}");
            if text.len() > MAX_LINE_BYTES {
                return Err(too_long());
            }
        }
        if let Self::Terminal(editor) = self {
            // A line that cannot be remembered can still be answered.
            let _ = editor.add_history_entry(&text);
        }
        Ok(Some(text))
    }

    fn one(&mut self, prompt: &str) -> Result<Option<String>> {
        match self {
            Self::Terminal(editor) => match editor.readline(prompt) {
                Ok(line) => Ok(Some(line)),
                Err(ReadlineError::Eof | ReadlineError::Interrupted) => Ok(None),
                Err(e) => Err(Failure::internal(format!("terminal: {e}"))),
            },
            Self::Pipe { from, n_lines } => {
                let mut bytes = Vec::new();
                let read = from.take(MAX_LINE_BYTES as u64 + 1).read_until(b'\n', &mut bytes);
                read.map_err(|e| Failure::input(format!("standard input: {e}")))?;
                if bytes.is_empty() {
                    return Ok(None);
                }
                if bytes.len() > MAX_LINE_BYTES {
                    return Err(too_long());
                }
                *n_lines += 1;
                let line = utf8(&format!("standard input, line {n_lines}"), bytes)?;
                Ok(Some(line.trim_end_matches(['\r', '\n']).to_owned()))
            }
        }
    }
}

fn too_long() -> Failure {
    Failure::input(format!("standard input: a line of more than {} MiB", MAX_LINE_BYTES >> 20))
}
