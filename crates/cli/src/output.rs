//! Standard output: the text and nothing else.

use std::io::{ErrorKind, IsTerminal, Write};

use overdraft_engine::{Event, Origin};

use crate::failure::{Failure, Result};
use crate::screen::{self, printable};

/// Whether whoever reads standard output still does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    There,
    Gone,
}

pub(crate) struct Output {
    pub(crate) is_terminal: bool,
    ends_line: bool,
    show_draft: bool,
}

impl Output {
    pub(crate) fn new() -> Self {
        Self { is_terminal: std::io::stdout().is_terminal(), ends_line: true, show_draft: false }
    }

    /// Colours tokens by where they came from, on a terminal.
    pub(crate) fn show_draft(self, show: bool) -> Self {
        Self { show_draft: show && self.is_terminal && screen::colour(), ..self }
    }

    /// The text of a token.
    pub(crate) fn write_event(&mut self, event: &Event) -> Result<Reader> {
        let colour = match event.origin {
            Origin::Accepted => "32",
            Origin::Corrected => "33",
            Origin::Plain => "0",
        };
        if !self.show_draft || event.text.is_empty() || event.origin == Origin::Plain {
            return self.write(&event.text);
        }
        self.ends_line = event.text.ends_with('\n');
        self.put(&format!("\x1b[{colour}m{}\x1b[0m", printable(&event.text)))
    }

    /// Writes and flushes, so that text shows as it comes. A pipe that was closed (`| head`) is no error: its reader
    /// has seen enough.
    pub(crate) fn write(&mut self, text: &str) -> Result<Reader> {
        if text.is_empty() {
            return Ok(Reader::There);
        }
        self.ends_line = text.ends_with('\n');
        // A file gets the model's bytes as they are; a terminal only what cannot drive it.
        self.put(&if self.is_terminal { printable(text) } else { text.to_owned() })
    }

    fn put(&self, shown: &str) -> Result<Reader> {
        let mut out = std::io::stdout().lock();
        match out.write_all(shown.as_bytes()).and_then(|()| out.flush()) {
            Ok(()) => Ok(Reader::There),
            Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(Reader::Gone),
            Err(e) => Err(Failure::output(&e)),
        }
    }

    /// Ends the line where a person's next prompt would stand in it.
    pub(crate) fn end_line(&mut self) -> Result<()> {
        if !self.ends_line {
            self.write("\n")?;
        }
        Ok(())
    }
}
