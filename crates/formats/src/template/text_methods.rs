//! The methods of strings. Characters are code points, as in Python.

use super::args::{Args, int_of, required, text_of};
use super::brace_format;
use super::lexer::is_space;
use super::meter::{ListBuilder, Meter, Outcome, TextBuilder, fault};
use super::ops::mark;
use super::value::{Text, Value};

/// Every method of Python's `str`: looking one up finds it, calling may still be refused.
pub(crate) const NAMES: [&str; 47] = [
    "capitalize",
    "casefold",
    "center",
    "count",
    "encode",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "format_map",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "maketrans",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "translate",
    "upper",
    "zfill",
];

pub(crate) fn call(meter: &mut Meter, text: &Text, method: &str, args: Args) -> Outcome<Value> {
    meter.scan(text.text.len())?;
    let this = &*text.text;
    let keep = |value: Outcome<Value>| mark(value?, text.safe);
    match method {
        "upper" => none(method, args).and_then(|()| keep(upper(meter, this))),
        "lower" | "casefold" => none(method, args).and_then(|()| keep(lower(meter, this))),
        "title" => none(method, args).and_then(|()| keep(title(meter, this))),
        "capitalize" => none(method, args).and_then(|()| keep(capitalize(meter, this))),
        "swapcase" => none(method, args).and_then(|()| keep(swapcase(meter, this))),
        "strip" | "lstrip" | "rstrip" => {
            let [chars] = args.bind(method, ["chars"])?;
            keep(strip(meter, this, method, chars))
        }
        "split" | "rsplit" => split(meter, text, method, args),
        "splitlines" => {
            let [keepends] = args.bind(method, ["keepends"])?;
            let keepends = keepends.is_some_and(|keep| keep.is_true());
            let mut lines = ListBuilder::default();
            for line in lines_of(this, keepends) {
                let line = mark(meter.text(line)?, text.safe)?;
                lines.push(meter, line)?;
            }
            lines.into_list(meter)
        }
        "partition" | "rpartition" => partition(meter, text, method, args),
        "startswith" | "endswith" => affix(meter, this, method, args),
        "removeprefix" | "removesuffix" => {
            let [affix] = args.bind(method, ["affix"])?;
            let affix = required(method, "affix", affix)?;
            let affix = text_of(method, &affix)?;
            let cut = match method {
                "removeprefix" => this.strip_prefix(affix),
                _ => this.strip_suffix(affix),
            };
            keep(meter.text(cut.unwrap_or(this)))
        }
        "replace" => {
            let [old, new, count] = args.bind(method, ["old", "new", "count"])?;
            let (old, new) = (required(method, "old", old)?, required(method, "new", new)?);
            let count = count.map_or(Ok(-1), |count| int_of(method, &count))?;
            keep(replace(meter, this, text_of(method, &old)?, text_of(method, &new)?, count))
        }
        "find" | "rfind" | "index" | "rindex" | "count" => search(meter, this, method, args),
        "join" => {
            let [items] = args.bind(method, ["iterable"])?;
            let items = required(method, "iterable", items)?.iterate(meter)?;
            let mut out = TextBuilder::default();
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    out.push(meter, this)?;
                }
                out.push(meter, text_of("join", item)?)?;
            }
            keep(out.into_value(meter))
        }
        "format" => brace_format::format(meter, text, &args),
        "zfill" | "ljust" | "rjust" | "center" => keep(pad(meter, this, method, args)),
        _ if method.starts_with("is") => {
            none(method, args)?;
            predicate(this, method)
        }
        _ => fault(format!("the method `{method}` of strings is not supported")),
    }
}

fn none(method: &str, args: Args) -> Outcome<()> {
    args.bind::<0>(method, [])?;
    Ok(())
}

pub(crate) fn upper(meter: &mut Meter, text: &str) -> Outcome<Value> {
    // Three bytes can become nine, and the result is copied once.
    meter.bytes(text.len().saturating_mul(3))?;
    meter.text(&text.to_uppercase())
}

pub(crate) fn lower(meter: &mut Meter, text: &str) -> Outcome<Value> {
    meter.bytes(text.len().saturating_mul(3))?;
    meter.text(&text.to_lowercase())
}

pub(crate) fn capitalize(meter: &mut Meter, text: &str) -> Outcome<Value> {
    let mut chars = text.chars();
    let first: String = chars.next().into_iter().flat_map(char::to_uppercase).collect();
    meter.bytes(chars.as_str().len().saturating_mul(6))?;
    meter.text(&(first + &chars.as_str().to_lowercase()))
}

fn title(meter: &mut Meter, text: &str) -> Outcome<Value> {
    let mut out = TextBuilder::default();
    let mut inside_word = false;
    meter.steps(text.len() as u64 / 8)?;
    for c in text.chars() {
        let cased = c.is_lowercase() || c.is_uppercase();
        if inside_word {
            for lower in c.to_lowercase() {
                out.push_char(meter, lower)?;
            }
        } else {
            for upper in c.to_uppercase() {
                out.push_char(meter, upper)?;
            }
        }
        inside_word = cased;
    }
    out.into_value(meter)
}

fn swapcase(meter: &mut Meter, text: &str) -> Outcome<Value> {
    let mut out = TextBuilder::default();
    meter.steps(text.len() as u64 / 8)?;
    for c in text.chars() {
        if c.is_uppercase() {
            for lower in c.to_lowercase() {
                out.push_char(meter, lower)?;
            }
        } else {
            for upper in c.to_uppercase() {
                out.push_char(meter, upper)?;
            }
        }
    }
    out.into_value(meter)
}

pub(crate) fn strip(meter: &mut Meter, text: &str, method: &str, chars: Option<Value>) -> Outcome<Value> {
    let chars = match &chars {
        None | Some(Value::None) => None,
        Some(chars) => Some(text_of(method, chars)?),
    };
    if let Some(chars) = chars {
        // Each stripped character is looked for among `chars`.
        meter.steps((chars.len() as u64 / 8).saturating_mul(1 + text.len() as u64 / 8))?;
    }
    let strips = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    let mut rest = text;
    if method != "rstrip" {
        rest = rest.trim_start_matches(strips);
    }
    if method != "lstrip" {
        rest = rest.trim_end_matches(strips);
    }
    meter.text(rest)
}

fn split(meter: &mut Meter, text: &Text, method: &str, args: Args) -> Outcome<Value> {
    let [separator, most] = args.bind(method, ["sep", "maxsplit"])?;
    let most = most.map_or(Ok(-1), |most| int_of(method, &most))?;
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let from_right = method == "rsplit";
    let mut rest = &*text.text;
    let mut parts = ListBuilder::default();
    let separator = match &separator {
        None | Some(Value::None) => None,
        Some(separator) => Some(text_of(method, separator)?),
    };
    if separator == Some("") {
        return fault(format!("{method}: the separator is empty"));
    }
    let trim = |text| if separator.is_none() { trim_side(text, from_right) } else { text };
    rest = trim(rest);
    for _ in 0..most {
        let found = match (separator, from_right) {
            (Some(separator), false) => rest.split_once(separator),
            (Some(separator), true) => rest.rsplit_once(separator).map(|(left, right)| (right, left)),
            (None, false) => rest.split_once(is_space),
            (None, true) => rest.rsplit_once(is_space).map(|(left, right)| (right, left)),
        };
        let Some((part, left)) = found else { break };
        let part = mark(meter.text(part)?, text.safe)?;
        parts.push(meter, part)?;
        rest = trim(left);
    }
    // Splitting at whitespace gives no empty parts; what the limit leaves over keeps its far side.
    if separator.is_some() || !rest.is_empty() {
        let part = mark(meter.text(rest)?, text.safe)?;
        parts.push(meter, part)?;
    }
    let mut parts = parts.into_items();
    if from_right {
        parts.reverse();
    }
    Value::list(meter, parts)
}

fn trim_side(text: &str, from_right: bool) -> &str {
    if from_right { text.trim_end_matches(is_space) } else { text.trim_start_matches(is_space) }
}

/// Lines, without their ends unless asked. A last line that is empty is none.
pub(crate) fn lines_of(text: &str, keep_ends: bool) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let is_end = |c: char| {
            matches!(c, '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}')
        };
        let at = rest.find(is_end).unwrap_or(rest.len());
        let end = if rest[at..].starts_with("\r\n") {
            at + 2
        } else {
            at + rest[at..].chars().next().map_or(0, char::len_utf8)
        };
        let line = &rest[..if keep_ends { end } else { at }];
        rest = &rest[end..];
        Some(line)
    })
}

fn partition(meter: &mut Meter, text: &Text, method: &str, args: Args) -> Outcome<Value> {
    let [separator] = args.bind(method, ["sep"])?;
    let separator = required(method, "sep", separator)?;
    let separator = text_of(method, &separator)?;
    if separator.is_empty() {
        return fault(format!("{method}: the separator is empty"));
    }
    let this = &*text.text;
    let parts = match method {
        "partition" => this.split_once(separator).map_or([this, "", ""], |(a, b)| [a, separator, b]),
        _ => this.rsplit_once(separator).map_or(["", "", this], |(a, b)| [a, separator, b]),
    };
    let mut items = Vec::with_capacity(3);
    for part in parts {
        items.push(mark(meter.text(part)?, text.safe)?);
    }
    Value::tuple(meter, items)
}

fn affix(meter: &mut Meter, text: &str, method: &str, args: Args) -> Outcome<Value> {
    let [affix] = args.bind(method, ["affix"])?;
    let affix = required(method, "affix", affix)?;
    let is_affix = |affix: &str| match method {
        "startswith" => text.starts_with(affix),
        _ => text.ends_with(affix),
    };
    let Value::Tuple(seq) = &affix else {
        return Ok(Value::Bool(is_affix(text_of(method, &affix)?)));
    };
    for affix in &seq.items {
        meter.scan(text.len())?;
        if is_affix(text_of(method, affix)?) {
            return Ok(Value::Bool(true));
        }
    }
    Ok(Value::Bool(false))
}

pub(crate) fn replace(meter: &mut Meter, text: &str, old: &str, new: &str, count: i128) -> Outcome<Value> {
    let mut left = usize::try_from(count).unwrap_or(usize::MAX);
    let mut out = TextBuilder::default();
    if old.is_empty() {
        for c in text.chars() {
            if left > 0 {
                left -= 1;
                out.push(meter, new)?;
            }
            out.push_char(meter, c)?;
        }
        if left > 0 {
            out.push(meter, new)?;
        }
        return out.into_value(meter);
    }
    let mut rest = text;
    while left > 0
        && let Some((before, after)) = rest.split_once(old)
    {
        meter.steps(1)?;
        out.push(meter, before)?;
        out.push(meter, new)?;
        rest = after;
        left -= 1;
    }
    out.push(meter, rest)?;
    out.into_value(meter)
}

fn search(meter: &mut Meter, text: &str, method: &str, args: Args) -> Outcome<Value> {
    let [part, start, end] = args.bind(method, ["sub", "start", "end"])?;
    let part = required(method, "sub", part)?;
    let part = text_of(method, &part)?;
    let length = text.chars().count();
    let bound = |value: Option<Value>, missing: usize| -> Outcome<usize> {
        match value {
            None | Some(Value::None) => Ok(missing),
            Some(value) => {
                let at = int_of(method, &value)?;
                let at = if at < 0 { at.saturating_add(length as i128).max(0) } else { at };
                Ok(usize::try_from(at).unwrap_or(usize::MAX))
            }
        }
    };
    let (start, end) = (bound(start, 0)?, bound(end, length)?.min(length));
    let byte = |n: usize| text.char_indices().nth(n).map_or(text.len(), |(at, _)| at);
    let found = if start > end {
        None
    } else {
        let window = &text[byte(start)..byte(end)];
        if method == "count" {
            meter.steps(window.len() as u64 / 8)?;
            let count = if part.is_empty() { end - start + 1 } else { window.matches(part).count() };
            return Ok(Value::Int(count as i128));
        }
        let at = if method.starts_with('r') { window.rfind(part) } else { window.find(part) };
        at.map(|at| start + window[..at].chars().count())
    };
    match found {
        Some(at) => Ok(Value::Int(at as i128)),
        None if method == "count" => Ok(Value::Int(0)),
        None if method.ends_with("index") => fault(format!("{method}: the text is not there")),
        None => Ok(Value::Int(-1)),
    }
}

fn pad(meter: &mut Meter, text: &str, method: &str, args: Args) -> Outcome<Value> {
    let [width, fill] = args.bind(method, ["width", "fillchar"])?;
    let width = int_of(method, &required(method, "width", width)?)?;
    let mut fill_with = if method == "zfill" { '0' } else { ' ' };
    if let Some(fill) = fill {
        let mut chars = text_of(method, &fill)?.chars();
        match (chars.next(), chars.next()) {
            (Some(c), None) => fill_with = c,
            _ => return fault(format!("{method}: the fill is not one character")),
        }
    }
    let length = text.chars().count();
    let padding =
        usize::try_from(width).unwrap_or(if width < 0 { 0 } else { usize::MAX }).saturating_sub(length);
    let mut out = TextBuilder::default();
    let (sign, digits) = match text.strip_prefix(['-', '+']) {
        Some(digits) if method == "zfill" => text.split_at(text.len() - digits.len()),
        _ => ("", text),
    };
    // Python's `center` puts the odd space left when the width is odd.
    let before = match method {
        "ljust" => 0,
        "center" => padding / 2 + (padding & usize::try_from(width).unwrap_or(0) & 1),
        _ => padding,
    };
    out.push(meter, sign)?;
    out.repeat(meter, fill_with, before)?;
    out.push(meter, digits)?;
    out.repeat(meter, fill_with, padding - before)?;
    out.into_value(meter)
}

fn predicate(text: &str, method: &str) -> Outcome<Value> {
    let all = |test: fn(char) -> bool| !text.is_empty() && text.chars().all(test);
    let has_cased = || text.chars().any(|c| c.is_lowercase() || c.is_uppercase());
    Ok(Value::Bool(match method {
        "isdigit" | "isdecimal" | "isnumeric" => all(char::is_numeric),
        "isalpha" => all(char::is_alphabetic),
        "isalnum" => all(char::is_alphanumeric),
        "isspace" => all(is_space),
        "isascii" => text.is_ascii(),
        "islower" => has_cased() && !text.chars().any(char::is_uppercase),
        "isupper" => has_cased() && !text.chars().any(char::is_lowercase),
        "isidentifier" => {
            all(|c| c.is_alphanumeric() || c == '_') && !text.starts_with(|c: char| c.is_numeric())
        }
        _ => return fault(format!("the method `{method}` of strings is not supported")),
    }))
}
