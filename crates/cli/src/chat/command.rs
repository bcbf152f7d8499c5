//! What a line of the user means.

pub(super) const HELP: &str = "\
/clear         forget the conversation, keep the system message
/system TEXT   set the system message; without TEXT remove it
/stats         figures of the last answer, tokens and memory in use
/help          this list
/exit          leave; so do Ctrl-D and Ctrl-C
A line that ends in \\ goes on in the next. Ctrl-C during an answer stops that answer.";

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Command<'a> {
    Say(&'a str),
    Clear,
    System(&'a str),
    Stats,
    Help,
    Exit,
    Unknown(&'a str),
    Nothing,
}

impl<'a> Command<'a> {
    /// Only `/word` is a command: a path such as `/etc/hosts` is something to talk about.
    pub(super) fn parse(line: &'a str) -> Self {
        let text = line.trim();
        if text.is_empty() {
            return Self::Nothing;
        }
        let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        match word.strip_prefix('/') {
            Some(name) if !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphabetic()) => match name {
                "clear" => Self::Clear,
                "system" => Self::System(rest.trim()),
                "stats" => Self::Stats,
                "help" => Self::Help,
                "exit" | "quit" => Self::Exit,
                _ => Self::Unknown(name),
            },
            _ => Self::Say(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip]
    fn lines_mean_what_they_say() {
        for (line, command) in [
            ("hello there ",         Command::Say("hello there")),
            ("",                     Command::Nothing),
            ("  \t",                 Command::Nothing),
            ("/clear",               Command::Clear),
            (" /exit ",              Command::Exit),
            ("/system  Be brief. ",  Command::System("Be brief.")),
            ("/system",              Command::System("")),
            ("/stats",               Command::Stats),
            ("/help me",             Command::Help),
            ("/bogus",               Command::Unknown("bogus")),
            ("/etc/hosts, what is?", Command::Say("/etc/hosts, what is?")),
            ("/",                    Command::Say("/")),
            ("1/2",                  Command::Say("1/2")),
        ] {
            assert_eq!(Command::parse(line), command, "{line:?}");
        }
    }
}
