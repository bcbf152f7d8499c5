//! GBNF, the grammars of llama.cpp, into Lark.
//!
//! `root ::= "a" [0-9]+ (item | "b"){2,3}` with comments after `#`. Rules become `r_NAME`, the rule `root` becomes
//! `start`, classes of characters become regular expressions.

use std::iter::Peekable;
use std::str::Chars;

/// Lark has no such sign.
pub(super) fn is_gbnf(source: &str) -> bool {
    source.contains("::=")
}

pub(super) fn to_lark(source: &str) -> Result<String, String> {
    let mut out = String::new();
    let mut has_root = false;
    for (name, expression) in rules(source)? {
        has_root |= name == "root";
        out += &format!("{}: {}\n", rule_name(&name), translated(&expression, &name)?);
    }
    if has_root { Ok(out) } else { Err("a GBNF grammar needs a rule `root`".into()) }
}

/// Names with their expressions: a rule goes on until the next `name ::=`.
fn rules(source: &str) -> Result<Vec<(String, String)>, String> {
    let mut rules: Vec<(String, String)> = Vec::new();
    for line in source.lines() {
        let line = without_comment(line);
        match head(line) {
            Some((name, rest)) => rules.push((name.into(), rest.into())),
            None if line.trim().is_empty() => {}
            None => match rules.last_mut() {
                Some((_, expression)) => {
                    expression.push(' ');
                    expression.push_str(line);
                }
                None => return Err(format!("`{}` stands before the first rule", line.trim())),
            },
        }
    }
    Ok(rules)
}

/// `name ::=` in front of a line.
fn head(line: &str) -> Option<(&str, &str)> {
    let (name, rest) = line.split_once("::=")?;
    let name = name.trim();
    let is_name =
        !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'));
    is_name.then_some((name, rest))
}

fn without_comment(line: &str) -> &str {
    let (mut quote, mut escaped) = (None, false);
    for (at, c) in line.char_indices() {
        match (quote, c) {
            _ if escaped => escaped = false,
            (Some(_), '\\') => escaped = true,
            (Some(end), c) if c == end => quote = None,
            (None, '"') => quote = Some('"'),
            (None, '[') => quote = Some(']'),
            (None, '#') => return &line[..at],
            _ => {}
        }
    }
    line
}

fn rule_name(name: &str) -> String {
    if name == "root" {
        return "start".into();
    }
    // `a-b` and `a_b` are two rules there. Lark takes names in lower case for rules.
    let mut out = String::from("r_");
    for c in name.chars() {
        match c {
            '-' => out.push_str("__"),
            c if c.is_ascii_uppercase() => {
                out.push('_');
                out.push(c.to_ascii_lowercase());
                out.push('_');
            }
            c => out.push(c),
        }
    }
    out
}

fn translated(expression: &str, rule: &str) -> Result<String, String> {
    let bad = |problem: &str| format!("GBNF rule `{rule}`: {problem}");
    let mut out = String::new();
    let mut chars = expression.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' => {
                out +=
                    &super::lark::quoted(&quoted_text(&mut chars).ok_or_else(|| bad("a text without end"))?)
            }
            '[' => out += &format!("/[{}]/", class(&mut chars).ok_or_else(|| bad("a class without end"))?),
            '.' => out += "/(?s:.)/",
            '(' | ')' | '|' | '*' | '+' | '?' => out.push(c),
            '{' => {
                let count: String = chars.by_ref().take_while(|c| *c != '}').collect();
                if count.is_empty() || !count.chars().all(|c| c.is_ascii_digit() || c == ',' || c == ' ') {
                    return Err(bad("a repetition is `{m}`, `{m,}` or `{m,n}`"));
                }
                out += &format!("{{{}}}", count.replace(' ', ""));
            }
            c if c.is_whitespace() => out.push(' '),
            c if c.is_ascii_alphanumeric() || c == '_' => {
                let mut name = String::from(c);
                while let Some(c) = chars.next_if(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_')) {
                    name.push(c);
                }
                out += &rule_name(&name);
            }
            c => return Err(bad(&format!("`{c}` means nothing here"))),
        }
        // Parts that touch are parts all the same.
        if chars.peek().is_some_and(|next| !matches!(next, '*' | '+' | '?' | '{')) && !matches!(c, '(' | ' ')
        {
            out.push(' ');
        }
    }
    if out.trim().is_empty() { Ok("\"\"".into()) } else { Ok(out) }
}

fn quoted_text(chars: &mut Peekable<Chars<'_>>) -> Option<String> {
    let mut text = String::new();
    loop {
        match chars.next()? {
            '"' => return Some(text),
            '\\' => text.push(escape(chars)?),
            c => text.push(c),
        }
    }
}

/// The inside of a class, as a regular expression has it.
fn class(chars: &mut Peekable<Chars<'_>>) -> Option<String> {
    let mut out = String::new();
    if chars.next_if_eq(&'^').is_some() {
        out.push('^');
    }
    loop {
        let (c, is_escaped) = match chars.next()? {
            ']' => return Some(out),
            '\\' => (escape(chars)?, true),
            c => (c, false),
        };
        match c {
            '-' if !is_escaped => out.push('-'),
            c if c.is_ascii_alphanumeric() => out.push(c),
            c => out += &format!("\\x{{{:x}}}", c as u32),
        }
    }
}

fn escape(chars: &mut Peekable<Chars<'_>>) -> Option<char> {
    let n_digits = match chars.next()? {
        'n' => return Some('\n'),
        'r' => return Some('\r'),
        't' => return Some('\t'),
        'x' => 2,
        'u' => 4,
        'U' => 8,
        c => return Some(c),
    };
    let digits: String = chars.by_ref().take(n_digits).collect();
    char::from_u32(u32::from_str_radix(&digits, 16).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip]
    fn gbnf_becomes_lark() {
        for (gbnf, lark) in [
            ("root ::= \"a\" [0-9]+", "start: \"a\" /[0-9]/+"),
            ("root ::= x-y? # why\nx-y ::= \"#\" | [^\"\\n\\]]{2,3}\n  | .", "start: r_x__y? r_x__y: \"#\" | /[^\\x{22}\\x{a}\\x{5d}]/{2,3} | /(?s:.)/"),
            ("root::=(\"\\x41\"A)*", "start: (\"A\" r__a_ )*"),
            ("root ::=", "start: \"\""),
        ] {
            let got = to_lark(gbnf).unwrap();
            let words = |text: &str| text.split_whitespace().map(String::from).collect::<Vec<_>>();
            assert_eq!(words(&got), words(lark), "{gbnf}");
        }
        for (gbnf, problem) in [
            ("a ::= \"b\"",        "a GBNF grammar needs a rule `root`"),
            ("root ::= \"b",       "GBNF rule `root`: a text without end"),
            ("root ::= [b",        "GBNF rule `root`: a class without end"),
            ("root ::= a{x}",      "GBNF rule `root`: a repetition is `{m}`, `{m,}` or `{m,n}`"),
            ("root ::= a & b",     "GBNF rule `root`: `&` means nothing here"),
            ("\"x\"\nroot ::= a",  "`\"x\"` stands before the first rule"),
        ] {
            assert_eq!(to_lark(gbnf).unwrap_err(), problem, "{gbnf}");
        }
    }
}
