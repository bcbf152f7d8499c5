//! PTX as words: names with their dots, numbers, and single marks.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token<'a> {
    /// Registers, labels, directives, and opcodes with all their suffixes.
    Name(&'a str),
    /// Its bits, of a float (`0f`, `0d`) too.
    Number(u64),
    Text(&'a str),
    Mark(u8),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Placed<'a> {
    pub(super) token: Token<'a>,
    pub(super) line: u32,
}

/// A half of a doubled colon is part of a name (`shared::cluster`), a single colon ends a label.
fn name_length(text: &[u8]) -> usize {
    let mut n = 0;
    while n < text.len() {
        n += match text[n] {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'$' | b'%' | b'.' => 1,
            b':' if text.get(n + 1) == Some(&b':') => 2,
            _ => break,
        };
    }
    n
}

fn number(word: &str) -> Option<u64> {
    let radix = |digits: &str, radix| u64::from_str_radix(digits, radix).ok();
    let word = word.strip_suffix('U').unwrap_or(word);
    match word.as_bytes() {
        [b'0', b'x' | b'X', ..] => radix(&word[2..], 16),
        [b'0', b'f' | b'F' | b'd' | b'D', ..] => radix(&word[2..], 16),
        _ => word.parse().ok(),
    }
}

/// The text up to its first zero.
pub(super) fn tokens(text: &str) -> Result<Vec<Placed<'_>>, String> {
    let bytes = text.as_bytes();
    let (mut at, mut line, mut found) = (0, 1, Vec::new());
    while let Some(&c) = bytes.get(at).filter(|c| **c != 0) {
        let rest = &text[at..];
        let (token, n) = match c {
            b'\n' => {
                (line, at) = (line + 1, at + 1);
                continue;
            }
            b' ' | b'\t' | b'\r' => {
                at += 1;
                continue;
            }
            b'/' if rest.starts_with("//") => {
                at += rest.find('\n').unwrap_or(rest.len());
                continue;
            }
            b'"' => {
                let end = rest[1..].find('"').ok_or(format!("line {line}: a text without an end"))?;
                (Token::Text(&rest[1..=end]), end + 2)
            }
            b'0'..=b'9' => {
                let n = name_length(rest.as_bytes());
                let word = &rest[..n];
                // A version.
                let is_text = word.contains('.');
                let value = number(word).map(Token::Number).or(is_text.then_some(Token::Text(word)));
                (value.ok_or(format!("line {line}: `{word}` is no number"))?, n)
            }
            _ => match name_length(rest.as_bytes()) {
                0 => (Token::Mark(c), 1),
                n => (Token::Name(&rest[..n]), n),
            },
        };
        found.push(Placed { token, line });
        at += n;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_keep_their_dots_and_double_colons_and_labels_do_not_keep_theirs() {
        let read = |text| tokens(text).unwrap().into_iter().map(|t| t.token).collect::<Vec<_>>();
        assert_eq!(
            read("again: ld.shared::cluster.u64 %rd1, [%r2+-8]; // not this\n@!%p3 bra $L_4;"),
            [
                Token::Name("again"),
                Token::Mark(b':'),
                Token::Name("ld.shared::cluster.u64"),
                Token::Name("%rd1"),
                Token::Mark(b','),
                Token::Mark(b'['),
                Token::Name("%r2"),
                Token::Mark(b'+'),
                Token::Mark(b'-'),
                Token::Number(8),
                Token::Mark(b']'),
                Token::Mark(b';'),
                Token::Mark(b'@'),
                Token::Mark(b'!'),
                Token::Name("%p3"),
                Token::Name("bra"),
                Token::Name("$L_4"),
                Token::Mark(b';'),
            ]
        );
        assert_eq!(
            read("0f3F800000 0x1F 12 0d3FF0000000000000\0 junk"),
            [
                Token::Number(0x3f80_0000),
                Token::Number(0x1f),
                Token::Number(12),
                Token::Number(0x3ff0_0000_0000_0000)
            ]
        );
        assert!(tokens("ld 1x;").is_err());
    }
}
