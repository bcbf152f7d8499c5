//! Numbers and quoted strings as Python writes them.

use std::sync::Arc;

use super::lexer::Token;

/// Reads the number at the start of `text`: the token and its length. `may_be_float` is false after a dot,
/// where `a.0.1` means two subscripts.
pub(crate) fn number(text: &str, may_be_float: bool) -> Result<(Token, usize), String> {
    let bytes = text.as_bytes();
    if let [b'0', mark, ..] = bytes {
        let radix = match mark.to_ascii_lowercase() {
            b'x' => 16,
            b'o' => 8,
            b'b' => 2,
            _ => 0,
        };
        let digits = text.get(2..).unwrap_or_default();
        let length = run(digits, |c| c.is_digit(radix.max(2)));
        if radix != 0 && length > 0 {
            return Ok((integer(&digits[..length], radix)?, 2 + length));
        }
    }
    let whole = run(text, |c| c.is_ascii_digit());
    if may_be_float {
        let mut end = whole;
        let fraction = text[end..].strip_prefix('.').map_or(0, |rest| run(rest, |c| c.is_ascii_digit()));
        if fraction > 0 {
            end += 1 + fraction;
        }
        let exponent = exponent_length(&text[end..]);
        end += exponent;
        if fraction > 0 || exponent > 0 {
            let digits: String = text[..end].chars().filter(|&c| c != '_').collect();
            let value = digits.parse().map_err(|_| format!("`{digits}` is not a number"))?;
            return Ok((Token::Float(value), end));
        }
    }
    Ok((integer(&text[..whole], 10)?, whole))
}

fn exponent_length(text: &str) -> usize {
    let Some(rest) = text.strip_prefix(['e', 'E']) else { return 0 };
    let digits = rest.strip_prefix(['+', '-']).unwrap_or(rest);
    match run(digits, |c| c.is_ascii_digit()) {
        0 => 0,
        length => text.len() - digits.len() + length,
    }
}

/// Digits with single underscores between them.
fn run(text: &str, is_digit: impl Fn(char) -> bool) -> usize {
    let mut end = 0;
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        if is_digit(c) {
            end = at + 1;
        } else if c != '_' || end == 0 || !chars.peek().is_some_and(|&(_, next)| is_digit(next)) {
            break;
        }
    }
    end
}

fn integer(digits: &str, radix: u32) -> Result<Token, String> {
    let digits: String = digits.chars().filter(|&c| c != '_').collect();
    match i128::from_str_radix(&digits, radix) {
        Ok(value) => Ok(Token::Int(Box::new(value))),
        Err(_) => Err(format!("the integer {digits:.40} is too large")),
    }
}

/// Reads the quoted string at the start of `text`: its value and its length with the quotes.
pub(crate) fn string(text: &str) -> Option<(Arc<str>, usize)> {
    let mut chars = text.char_indices();
    let (_, quote) = chars.next()?;
    let mut value = String::new();
    while let Some((at, c)) = chars.next() {
        match c {
            _ if c == quote => return Some((value.into(), at + 1)),
            '\\' => {
                let (escape_at, escape) = chars.next()?;
                let length = unescape(escape, &text[escape_at + escape.len_utf8()..], &mut value)?;
                for _ in 0..length {
                    chars.next();
                }
            }
            _ => value.push(c),
        }
    }
    None
}

/// Appends what `\escape` stands for; the number of further characters it takes. `None` is a bad escape.
fn unescape(escape: char, rest: &str, value: &mut String) -> Option<usize> {
    let simple = match escape {
        '\n' => return Some(0),
        '\\' | '\'' | '"' => escape,
        'n' => '\n',
        't' => '\t',
        'r' => '\r',
        'a' => '\x07',
        'b' => '\x08',
        'f' => '\x0c',
        'v' => '\x0b',
        '0'..='7' => {
            let more = rest.bytes().take(2).take_while(|b| (b'0'..=b'7').contains(b)).count();
            let code = u32::from_str_radix(&format!("{escape}{}", &rest[..more]), 8).ok()?;
            value.push(char::from_u32(code)?);
            return Some(more);
        }
        'x' | 'u' | 'U' => {
            let digits = match escape {
                'x' => 2,
                'u' => 4,
                _ => 8,
            };
            let code = rest.get(..digits).filter(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit()))?;
            value.push(char::from_u32(u32::from_str_radix(code, 16).ok()?)?);
            return Some(digits);
        }
        _ => {
            value.push('\\');
            escape
        }
    };
    value.push(simple);
    Some(0)
}
