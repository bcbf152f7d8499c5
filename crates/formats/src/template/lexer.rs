//! Source into tokens, with the whitespace rules of `trim_blocks` and `lstrip_blocks`: the newline after a block
//! tag goes, and so does the indentation before one.

use std::sync::Arc;

use super::literal;

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Token {
    Text(Arc<str>),
    PrintBegin,
    PrintEnd,
    BlockBegin,
    BlockEnd,
    Name(Arc<str>),
    Str(Arc<str>),
    /// Boxed: in place it would make every token half as large again.
    Int(Box<i128>),
    Float(f64),
    Op(&'static str),
    End,
}

#[derive(Debug)]
pub(crate) struct Lexed {
    pub(crate) token: Token,
    pub(crate) line: u32,
}

/// A problem in the source and its line.
pub(crate) struct SourceFault {
    pub(crate) line: u32,
    pub(crate) problem: String,
}

/// Longest first: `**` must not be read as two `*`.
const OPERATORS: [&str; 25] = [
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}", ">", "<",
    "=", ".", ":", "|", ",",
];

/// Python's `str.isspace`, which also counts the four information separators.
pub(crate) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

pub(crate) fn tokenize(source: &str) -> Result<Vec<Lexed>, SourceFault> {
    let mut normal = source.replace("\r\n", "\n").replace('\r', "\n");
    if normal.ends_with('\n') {
        normal.pop();
    }
    let mut lexer =
        Lexer { source: &normal, at: 0, counted_to: 0, line: 1, at_line_start: true, tokens: Vec::new() };
    lexer.template()?;
    lexer.push(Token::End);
    Ok(lexer.tokens)
}

struct Lexer<'a> {
    source: &'a str,
    at: usize,
    /// `line` is the line of this position.
    counted_to: usize,
    line: u32,
    /// Whether what was read last ended a line: only then is whitespace before a tag indentation.
    at_line_start: bool,
    tokens: Vec<Lexed>,
}

impl<'a> Lexer<'a> {
    fn rest(&self) -> &'a str {
        &self.source[self.at..]
    }

    fn update_line(&mut self) {
        let newlines = self.source[self.counted_to..self.at].bytes().filter(|&b| b == b'\n').count();
        self.line += newlines as u32;
        self.counted_to = self.at;
    }

    fn push(&mut self, token: Token) {
        self.update_line();
        self.tokens.push(Lexed { token, line: self.line });
    }

    fn fail<T>(&mut self, problem: impl Into<String>) -> Result<T, SourceFault> {
        self.update_line();
        Err(SourceFault { line: self.line, problem: problem.into() })
    }

    fn eat(&mut self, text: &str) -> bool {
        let found = self.rest().starts_with(text);
        if found {
            self.at += text.len();
        }
        found
    }

    fn eat_space(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start_matches(is_space).len();
    }

    fn template(&mut self) -> Result<(), SourceFault> {
        loop {
            let Some(start) = find_tag(self.rest()) else {
                let text = self.rest();
                self.push_text(text);
                self.at = self.source.len();
                return Ok(());
            };
            let text = &self.rest()[..start];
            let kind = self.rest().as_bytes()[start + 1];
            let sign = self.rest().as_bytes().get(start + 2).copied();
            self.push_text(self.strip_before(text, sign, kind != b'{'));
            self.at += start + 2;
            if matches!(sign, Some(b'-' | b'+')) {
                self.at += 1;
            }
            match kind {
                b'{' => self.inside(Token::PrintBegin, Token::PrintEnd)?,
                b'%' if self.raw_begin() => self.raw()?,
                b'%' => self.inside(Token::BlockBegin, Token::BlockEnd)?,
                _ => self.comment()?,
            }
        }
    }

    fn push_text(&mut self, text: &str) {
        if !text.is_empty() {
            self.push(Token::Text(text.into()));
        }
    }

    fn strip_before<'t>(&self, text: &'t str, sign: Option<u8>, strips_indent: bool) -> &'t str {
        match sign {
            Some(b'-') => return text.trim_end_matches(is_space),
            Some(b'+') => return text,
            _ => {}
        }
        let line = text.rfind('\n').map_or(0, |at| at + 1);
        let is_indent = text[line..].chars().all(is_space) && (line > 0 || self.at_line_start);
        if strips_indent && is_indent { &text[..line] } else { text }
    }

    /// `-%}` and the space after it, `+%}`, or `%}` and one newline. Whether the tag ends here.
    fn tag_end(&mut self, delimiter: &str, trims_newline: bool) -> bool {
        let start = self.at;
        if self.rest().strip_prefix('-').is_some_and(|rest| rest.starts_with(delimiter)) {
            self.at += 1 + delimiter.len();
            self.eat_space();
        } else if trims_newline
            && self.rest().strip_prefix('+').is_some_and(|rest| rest.starts_with(delimiter))
        {
            self.at += 1 + delimiter.len();
        } else if self.eat(delimiter) {
            if trims_newline {
                self.eat("\n");
            }
        } else {
            return false;
        }
        self.at_line_start = self.source[start..self.at].ends_with('\n');
        true
    }

    fn comment(&mut self) -> Result<(), SourceFault> {
        loop {
            let Some(end) = self.rest().find("#}") else {
                return self.fail("a comment is not closed with `#}`");
            };
            let signed = matches!(self.rest().as_bytes()[..end].last(), Some(b'-' | b'+'));
            self.at += end - usize::from(signed);
            if self.tag_end("#}", true) {
                return Ok(());
            }
        }
    }

    /// After `{%`: consumes the rest of `{% raw %}` if that is what stands here.
    fn raw_begin(&mut self) -> bool {
        let start = self.at;
        self.eat_space();
        if self.eat("raw") {
            self.eat_space();
            if self.rest().starts_with("%}") {
                self.at += 2;
                self.at_line_start = false;
                return true;
            }
            if self.rest().starts_with("-%}") && self.tag_end("%}", false) {
                return true;
            }
        }
        self.at = start;
        false
    }

    fn raw(&mut self) -> Result<(), SourceFault> {
        let begin = self.at;
        let mut search = begin;
        while let Some(found) = self.source[search..].find("{%") {
            let tag = search + found;
            self.at = tag + 2;
            let sign = self.rest().bytes().next();
            if matches!(sign, Some(b'-' | b'+')) {
                self.at += 1;
            }
            self.eat_space();
            if self.eat("endraw") {
                self.eat_space();
                let was_line_start = self.at_line_start;
                if self.tag_end("%}", true) {
                    let now_line_start = std::mem::replace(&mut self.at_line_start, was_line_start);
                    let text = self.strip_before(&self.source[begin..tag], sign, true);
                    self.at_line_start = now_line_start;
                    self.push_text(text);
                    return Ok(());
                }
            }
            search = tag + 2;
        }
        self.at = begin;
        self.fail("`{% raw %}` is not closed with `{% endraw %}`")
    }

    /// The tokens of one `{{ .. }}` or `{% .. %}`.
    fn inside(&mut self, begin: Token, end: Token) -> Result<(), SourceFault> {
        self.push(begin);
        let (delimiter, trims_newline) = if end == Token::PrintEnd { ("}}", false) } else { ("%}", true) };
        let mut open: Vec<&'static str> = Vec::new();
        loop {
            self.eat_space();
            if open.is_empty() && self.tag_end(delimiter, trims_newline) {
                self.push(end);
                return Ok(());
            }
            let Some(c) = self.rest().chars().next() else {
                return self.fail(format!("a tag is not closed with `{delimiter}`"));
            };
            if c.is_ascii_digit() {
                let after_dot = self.source[..self.at].ends_with('.');
                let (token, length) = match literal::number(self.rest(), !after_dot) {
                    Ok(read) => read,
                    Err(problem) => return self.fail(problem),
                };
                self.push(token);
                self.at += length;
            } else if c.is_alphabetic() || c == '_' {
                let rest = self.rest();
                let length = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
                self.push(Token::Name(rest[..length].into()));
                self.at += length;
            } else if c == '"' || c == '\'' {
                let Some((text, length)) = literal::string(self.rest()) else {
                    return self.fail("a string is not closed, or holds a bad escape");
                };
                self.push(Token::Str(text));
                self.at += length;
            } else {
                self.operator(c, &mut open)?;
            }
        }
    }

    fn operator(&mut self, c: char, open: &mut Vec<&'static str>) -> Result<(), SourceFault> {
        let Some(op) = OPERATORS.iter().find(|op| self.rest().starts_with(**op)) else {
            return self.fail(format!("unexpected character {c:?}"));
        };
        match *op {
            "(" => open.push(")"),
            "[" => open.push("]"),
            "{" => open.push("}"),
            ")" | "]" | "}" => {
                let wanted = open.pop();
                if wanted != Some(op) {
                    return self.fail(match wanted {
                        Some(wanted) => format!("unexpected `{op}`, `{wanted}` is open"),
                        None => format!("unexpected `{op}`, nothing is open"),
                    });
                }
            }
            _ => {}
        }
        self.push(Token::Op(op));
        self.at += op.len();
        Ok(())
    }
}

fn find_tag(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    (0..bytes.len().saturating_sub(1))
        .find(|&at| bytes[at] == b'{' && matches!(bytes[at + 1], b'{' | b'%' | b'#'))
}
