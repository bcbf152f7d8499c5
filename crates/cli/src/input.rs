//! Where the prompt of `run` comes from.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::args::RunArgs;
use crate::demo;
use crate::failure::{Failure, Result};

/// Sixteen million tokens, the longest context there is, of four bytes each.
const MAX_PROMPT_BYTES: u64 = 64 << 20;

pub(crate) struct PromptText {
    pub(crate) text: String,
    /// The user sees it at hand: shown again before its continuation. Files and pipes are not.
    pub(crate) is_shown: bool,
    pub(crate) is_demo: bool,
}

/// The prompt from the argument, the file or standard input; the demo prompt where a person gave none.
pub(crate) fn prompt(args: &RunArgs, model_is_demo: bool) -> Result<PromptText> {
    let given = |text: String| PromptText { text, is_shown: false, is_demo: false };
    let prompt = if let Some(path) = &args.file {
        given(read_file(path)?)
    } else {
        match args.prompt.as_deref() {
            Some("-") => given(read_stdin()?),
            Some(text) => PromptText { text: text.into(), is_shown: true, is_demo: false },
            None if stdin_has_text() => given(read_stdin()?),
            None if model_is_demo && !args.conversation.wants_chat() => {
                PromptText { text: demo::PROMPT.into(), is_shown: true, is_demo: true }
            }
            None => return Err(no_prompt("no prompt given")),
        }
    };
    if prompt.text.is_empty() {
        return Err(no_prompt("the prompt is empty"));
    }
    Ok(prompt)
}

fn no_prompt(problem: &str) -> Failure {
    Failure::input(problem).hint("overdraft run 'some text', or --file PATH, or text on standard input")
}

/// A pipe or a file is text for us. A terminal is a person, and `/dev/null` or a closed input is nobody.
fn stdin_has_text() -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        // No such file or no permission: reading tells.
        std::fs::metadata("/dev/stdin").map_or(true, |m| !m.file_type().is_char_device())
    }
    #[cfg(not(unix))]
    {
        use std::io::IsTerminal;
        !std::io::stdin().is_terminal()
    }
}

fn read_stdin() -> Result<String> {
    read("standard input", std::io::stdin().lock())
}

pub(crate) fn read_file(path: &Path) -> Result<String> {
    let name = path.display().to_string();
    let fail = |e: std::io::Error| Failure::input(format!("{name}: {e}"));
    let file = File::open(path).map_err(fail)?;
    if file.metadata().map_err(fail)?.is_dir() {
        return Err(Failure::input(format!("{name}: is a folder, expected a text file")));
    }
    read(&name, file)
}

fn read(name: &str, from: impl Read) -> Result<String> {
    let mut bytes = Vec::new();
    let read = from.take(MAX_PROMPT_BYTES + 1).read_to_end(&mut bytes);
    read.map_err(|e| Failure::input(format!("{name}: {e}")))?;
    if bytes.len() as u64 > MAX_PROMPT_BYTES {
        return Err(Failure::input(format!("{name}: more than {} MiB of prompt", MAX_PROMPT_BYTES >> 20)));
    }
    utf8(name, bytes)
}

pub(crate) fn utf8(name: &str, bytes: Vec<u8>) -> Result<String> {
    String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        Failure::input(format!("{name}: not UTF-8 text at byte {at} (0x{:02x})", e.as_bytes()[at]))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_is_not_utf8_is_refused_with_its_place() {
        assert_eq!(utf8("f", b"caf\xc3\xa9".to_vec()).unwrap(), "café");
        for (bytes, place) in [(&b"ab\xffc"[..], "byte 2 (0xff)"), (b"caf\xc3", "byte 3 (0xc3)")] {
            let failure = utf8("p.txt", bytes.to_vec()).unwrap_err();
            assert_eq!(failure.message, format!("p.txt: not UTF-8 text at {place}"));
        }
    }
}
