//! `'{} has {count:>4}'.format(name, count=3)`.

use super::args::Args;
use super::meter::{Meter, Outcome, TextBuilder, fault};
use super::number_format::{self, Cursor, Spec};
use super::ops::{mark, subscript};
use super::print;
use super::value::{Text, Value};

pub(crate) fn format(meter: &mut Meter, text: &Text, args: &Args) -> Outcome<Value> {
    let mut out = TextBuilder::default();
    let mut automatic = 0;
    let mut rest = &*text.text;
    while let Some(at) = rest.find(['{', '}']) {
        out.push(meter, &rest[..at])?;
        meter.steps(1)?;
        let brace = &rest[at..=at];
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix(brace) {
            out.push(meter, brace)?;
            rest = after;
            continue;
        }
        if brace == "}" {
            return fault("format: a single `}` in the string");
        }
        let Some(end) = field_end(rest) else {
            return fault("format: `{` is not closed");
        };
        meter.scan(end)?;
        field(meter, &mut out, &rest[..end], args, &mut automatic)?;
        rest = &rest[end + 1..];
    }
    out.push(meter, rest)?;
    mark(out.into_value(meter)?, text.safe)
}

/// The brace that closes the field, past the pairs inside its format.
fn field_end(text: &str) -> Option<usize> {
    let mut open = 0_usize;
    for (at, c) in text.char_indices() {
        match c {
            '{' => open += 1,
            '}' if open == 0 => return Some(at),
            '}' => open -= 1,
            _ => {}
        }
    }
    None
}

fn field(
    meter: &mut Meter,
    out: &mut TextBuilder,
    field: &str,
    args: &Args,
    automatic: &mut usize,
) -> Outcome<()> {
    let (head, format) = field.split_once(':').unwrap_or((field, ""));
    let (path, conversion) = match head.split_once('!') {
        Some((path, conversion)) => (path, Some(conversion)),
        None => (head, None),
    };
    let mut value = lookup(meter, path, args, automatic)?;
    // A format may hold fields itself, `{:>{width}}`, one level deep.
    let mut expanded = TextBuilder::default();
    let mut rest = format;
    while let Some((before, after)) = rest.split_once('{') {
        expanded.push(meter, before)?;
        let Some((inner, after)) = after.split_once('}') else {
            return fault("format: `{` is not closed");
        };
        let inner = lookup(meter, inner, args, automatic)?;
        print::print(meter, &mut expanded, &inner)?;
        rest = after;
    }
    expanded.push(meter, rest)?;
    let format = expanded.into_string();
    let mut spec = spec(&format)?;
    match conversion {
        None => {}
        Some("s") => value = print::to_text(meter, &value)?,
        Some("r" | "a") => {
            let mut shown = TextBuilder::default();
            print::repr(meter, &mut shown, &value)?;
            value = shown.into_value(meter)?;
        }
        Some(other) => return fault(format!("format: unknown conversion `!{other}`")),
    }
    let misfit = || fault(format!("format: `{format:.40}` does not fit a {}", value.type_name()));
    match &value {
        // Nothing asked for: `str(value)`, whatever it is.
        _ if format.is_empty() => print::print(meter, out, &value),
        Value::Int(_) | Value::Bool(_) if spec.precision.is_some() && spec.kind.is_none() => misfit(),
        Value::Int(_) | Value::Bool(_) | Value::Float(_) => number_format::number(meter, out, &spec, &value),
        Value::Str(text) => {
            let for_numbers = spec.sign.is_some() || spec.alternate || spec.grouping.is_some();
            if for_numbers
                || !matches!(spec.kind, None | Some('s'))
                || (spec.align == Some('=') && !spec.zero)
            {
                return misfit();
            }
            if spec.zero {
                spec.align = Some('<');
            }
            number_format::text(meter, out, &spec, &text.text)
        }
        _ => misfit(),
    }
}

/// `0`, `name`, `name.attribute` or `name[key]`; nothing is the next positional argument.
fn lookup(meter: &mut Meter, path: &str, args: &Args, automatic: &mut usize) -> Outcome<Value> {
    let first_end = path.find(['.', '[']).unwrap_or(path.len());
    let (first, mut rest) = path.split_at(first_end);
    let found = if first.is_empty() {
        *automatic += 1;
        args.positional.get(*automatic - 1)
    } else if let Ok(at) = first.parse::<usize>() {
        args.positional.get(at)
    } else {
        args.named.iter().find(|(name, _)| &**name == first).map(|(_, value)| value)
    };
    let Some(mut value) = found.cloned() else {
        return fault(format!("format: no argument for `{{{path:.40}}}`"));
    };
    while !rest.is_empty() {
        let (key, after) = match rest.strip_prefix('[') {
            Some(inner) => match inner.split_once(']') {
                Some((key, after)) => (key, after),
                None => return fault("format: `[` is not closed"),
            },
            None => {
                let name = rest.strip_prefix('.').unwrap_or(rest);
                name.split_at(name.find(['.', '[']).unwrap_or(name.len()))
            }
        };
        let index = match key.parse::<i128>() {
            Ok(at) => Value::Int(at),
            Err(_) => meter.text(key)?,
        };
        match subscript(meter, &value, &index)? {
            Some(next) => value = next,
            None => return fault(format!("format: `{path:.40}` does not lead to a value")),
        }
        rest = after;
    }
    Ok(value)
}

fn spec(text: &str) -> Outcome<Spec> {
    let mut spec = Spec::default();
    let mut chars = Cursor(text);
    let mut ahead = text.chars();
    let (first, second) = (ahead.next(), ahead.next());
    if let (Some(fill), Some(align @ ('<' | '>' | '^' | '='))) = (first, second) {
        spec.fill = fill;
        spec.align = Some(align);
        chars.next();
        chars.next();
    } else {
        spec.align = chars.next_if(|c| "<>^=".contains(*c));
    }
    if let Some(sign) = chars.next_if(|c| "+- ".contains(*c)) {
        spec.sign = Some(sign);
    }
    spec.alternate = chars.next_if_eq(&'#').is_some();
    if chars.next_if_eq(&'0').is_some() && spec.align.is_none() {
        spec.fill = '0';
        spec.align = Some('=');
        spec.zero = true;
    }
    spec.width = chars.number().unwrap_or(0);
    spec.grouping = chars.next_if(|c| ",_".contains(*c));
    if chars.next_if_eq(&'.').is_some() {
        spec.precision = Some(chars.number().unwrap_or(0));
    }
    spec.kind = chars.next();
    if chars.next().is_some() {
        return fault(format!("format: `{text:.40}` is not a format"));
    }
    Ok(spec)
}
