//! The one error of this crate: which file, where in it, what was expected and what was found.

/// What can go wrong with a file. `at` names the key, tensor or part ("header", "key `x`", "tensor `y`").
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{file}: {source}")]
    Io { file: String, source: std::io::Error },
    /// The bytes break the format's rules: damaged, truncated or hostile.
    #[error("{file}: {at}: {problem}")]
    Invalid { file: String, at: String, problem: String },
    /// The bytes are fine but ask for something this build does not have.
    #[error("{file}: {at}: {problem}")]
    Unsupported { file: String, at: String, problem: String },
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub fn io(file: impl Into<String>, source: std::io::Error) -> Self {
        Self::Io { file: file.into(), source }
    }

    pub fn invalid(file: impl Into<String>, at: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Invalid { file: file.into(), at: at.into(), problem: problem.into() }
    }

    pub fn unsupported(file: impl Into<String>, at: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Unsupported { file: file.into(), at: at.into(), problem: problem.into() }
    }
}

/// A name out of a file, fit for a message: quoted, control characters escaped, cut when absurdly long.
pub(crate) fn quoted(name: &str) -> String {
    const SHOWN: usize = 120;
    let (shown, more) = match name.char_indices().nth(SHOWN) {
        Some((end, _)) => (&name[..end], "…"),
        None => (name, ""),
    };
    // Quotes are harmless and common in templates; `escape_debug` would escape them too.
    let mut escaped = String::with_capacity(shown.len());
    for c in shown.chars() {
        if matches!(c, '\'' | '"') { escaped.push(c) } else { escaped.extend(c.escape_debug()) }
    }
    format!("`{escaped}{more}`")
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn names_in_messages_cannot_flood_or_drive_a_terminal() {
        assert_eq!(quoted("blk.0.attn_q.weight"), "`blk.0.attn_q.weight`");
        assert_eq!(quoted("it's \"so\""), "`it's \"so\"`");
        assert_eq!(quoted("a\u{1b}[2Jb\n"), "`a\\u{1b}[2Jb\\n`");
        assert_eq!(quoted(&"é".repeat(10_000)).chars().count(), 123);
    }
}
