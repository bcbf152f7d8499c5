//! The filters of one value; those of sequences are in `seq_filters`.

use super::args::{Args, int_of, is_true, required, text_of};
use super::meter::{Meter, Outcome, TextBuilder, fault};
use super::ops::{self, mark};
use super::value::{Text, Value};
use super::{json, lexer, methods, percent, print, seq_filters, text_methods};

#[inline(never)]
pub(crate) fn apply(meter: &mut Meter, name: &str, value: &Value, args: Args) -> Outcome<Value> {
    meter.steps(1)?;
    match name {
        "tojson" => json::tojson(meter, value, args),
        "string" => no_args(name, args).and_then(|()| print::to_text(meter, value)),
        "safe" => {
            no_args(name, args)?;
            let text = print::to_text(meter, value)?;
            mark(text, true)
        }
        "escape" | "e" => no_args(name, args).and_then(|()| escape(meter, value)),
        "trim" | "upper" | "lower" | "capitalize" | "title" => text_filter(meter, name, value, args),
        "replace" => replace(meter, value, args),
        "indent" => indent(meter, value, args),
        "format" => format(meter, value, args),
        "int" => int(value, args),
        "float" => {
            let [default] = args.bind(name, ["default"])?;
            if let Value::Undefined(name) = value {
                return fault(format!("`{name}` is undefined"));
            }
            Ok(ops::to_float(value).map_or_else(|| default.unwrap_or(Value::Float(0.0)), Value::Float))
        }
        "abs" => {
            no_args(name, args)?;
            match value {
                Value::Float(f) => Ok(Value::Float(f.abs())),
                _ if value.as_int().is_some_and(|i| i < 0) => ops::negate(value),
                _ => Ok(Value::Int(int_of(name, value)?)),
            }
        }
        "round" => round(meter, value, args),
        "default" | "d" => {
            let [default, boolean] = args.bind(name, ["default_value", "boolean"])?;
            let missing = match value {
                Value::Undefined(_) => true,
                _ => is_true(boolean) && !value.is_true(),
            };
            if !missing {
                return Ok(value.clone());
            }
            match default {
                Some(default) => Ok(default),
                None => meter.text(""),
            }
        }
        "length" | "count" => {
            no_args(name, args)?;
            Ok(Value::Int(value.length(meter)? as i128))
        }
        "attr" => {
            let [attribute] = args.bind(name, ["name"])?;
            let attribute = required(name, "name", attribute)?;
            let Value::Str(attribute) = attribute else { return fault("attr wants a string") };
            // Unlike `x.y`, this filter never looks for a key.
            let found = match value {
                Value::Undefined(name) => return fault(format!("`{name}` is undefined")),
                Value::Dict(_) => methods::find(value, &attribute.text).map(Value::Method),
                _ => methods::attribute(meter, value, &attribute.text)?,
            };
            Ok(found.unwrap_or(Value::Undefined(attribute.text)))
        }
        _ => match seq_filters::apply(meter, name, value, args)? {
            Some(value) => Ok(value),
            None => fault(format!("unknown filter `{name}`")),
        },
    }
}

pub(crate) fn no_args(name: &str, args: Args) -> Outcome<()> {
    args.bind::<0>(name, [])?;
    Ok(())
}

pub(crate) fn escape(meter: &mut Meter, value: &Value) -> Outcome<Value> {
    let text = print::to_text(meter, value)?;
    let Value::Str(text) = text else { return Ok(text) };
    if text.safe {
        return Ok(Value::Str(text));
    }
    let mut out = TextBuilder::default();
    print::escape(meter, &mut out, &text.text)?;
    mark(out.into_value(meter)?, true)
}

#[inline(never)]
fn text_filter(meter: &mut Meter, name: &str, value: &Value, args: Args) -> Outcome<Value> {
    let printed = print::to_text(meter, value)?;
    let Value::Str(Text { text, safe }) = &printed else { return Ok(printed) };
    meter.scan(text.len())?;
    if name == "trim" {
        let [chars] = args.bind(name, ["chars"])?;
        return mark(text_methods::strip(meter, text, name, chars)?, *safe);
    }
    no_args(name, args)?;
    let result = match name {
        "upper" => text_methods::upper(meter, text)?,
        "lower" => text_methods::lower(meter, text)?,
        "capitalize" => text_methods::capitalize(meter, text)?,
        _ => title(meter, text)?,
    };
    mark(result, *safe)
}

/// Unlike the method, the filter starts words only after space and opening brackets.
fn title(meter: &mut Meter, text: &str) -> Outcome<Value> {
    let mut out = TextBuilder::default();
    let mut starts = true;
    meter.steps(text.len() as u64 / 8)?;
    for c in text.chars() {
        if starts {
            for upper in c.to_uppercase() {
                out.push_char(meter, upper)?;
            }
        } else {
            for lower in c.to_lowercase() {
                out.push_char(meter, lower)?;
            }
        }
        starts = lexer::is_space(c) || "-({[<".contains(c);
    }
    out.into_value(meter)
}

#[inline(never)]
fn replace(meter: &mut Meter, value: &Value, args: Args) -> Outcome<Value> {
    let [old, new, count] = args.bind("replace", ["old", "new", "count"])?;
    let text = print::to_text(meter, value)?;
    let old = print::to_text(meter, &required("replace", "old", old)?)?;
    let new = print::to_text(meter, &required("replace", "new", new)?)?;
    let count = match count {
        None | Some(Value::None) => -1,
        Some(count) => int_of("replace", &count)?,
    };
    let text = text.as_str().unwrap_or_default();
    meter.scan(text.len())?;
    text_methods::replace(
        meter,
        text,
        old.as_str().unwrap_or_default(),
        new.as_str().unwrap_or_default(),
        count,
    )
}

#[inline(never)]
fn indent(meter: &mut Meter, value: &Value, args: Args) -> Outcome<Value> {
    let [width, first, blank] = args.bind("indent", ["width", "first", "blank"])?;
    let text = text_of("indent", value)?;
    meter.scan(text.len())?;
    let (fill, times) = match &width {
        None => (" ", 4),
        Some(Value::Str(text)) => (&*text.text, 1),
        Some(width) => (" ", usize::try_from(int_of("indent", width)?.max(0)).unwrap_or(usize::MAX)),
    };
    let (first, blank) = (is_true(first), is_true(blank));
    let mut out = TextBuilder::default();
    let pad = |meter: &mut Meter, out: &mut TextBuilder| -> Outcome<()> {
        if times == 1 { out.push(meter, fill) } else { out.repeat(meter, ' ', times) }
    };
    if first {
        pad(meter, &mut out)?;
    }
    // Jinja2 adds a newline so that a trailing one counts as an empty line.
    let padded = TextBuilder::with_room(meter, text.len() + 1).and_then(|mut padded| {
        padded.push(meter, text)?;
        padded.push(meter, "\n")?;
        Ok(padded.into_string())
    })?;
    for (at, line) in text_methods::lines_of(&padded, false).enumerate() {
        if at > 0 {
            out.push(meter, "\n")?;
            if blank || !line.is_empty() {
                pad(meter, &mut out)?;
            }
        }
        out.push(meter, line)?;
    }
    let safe = matches!(value, Value::Str(text) if text.safe);
    mark(out.into_value(meter)?, safe)
}

#[inline(never)]
fn format(meter: &mut Meter, value: &Value, args: Args) -> Outcome<Value> {
    let text = print::to_text(meter, value)?;
    let Value::Str(text) = &text else { return Ok(text) };
    let values = match (args.positional, args.named) {
        (positional, named) if named.is_empty() => Value::tuple(meter, positional)?,
        (positional, named) if positional.is_empty() => {
            let pairs = named.iter().map(|(name, value)| (ops::text_value(name), value.clone())).collect();
            Value::Dict(std::sync::Arc::new(super::value::Dict::new(meter, pairs)?))
        }
        _ => return fault("format takes values by position or by name, not both"),
    };
    percent::format(meter, text, &values)
}

#[inline(never)]
fn int(value: &Value, args: Args) -> Outcome<Value> {
    let [default, base] = args.bind("int", ["default", "base"])?;
    let base = base.map_or(Ok(10), |base| int_of("int", &base))?;
    if let Value::Undefined(name) = value {
        return fault(format!("`{name}` is undefined"));
    }
    Ok(match ops::to_int(value, u32::try_from(base).unwrap_or(0)) {
        Some(i) => Value::Int(i),
        None => default.unwrap_or(Value::Int(0)),
    })
}

#[inline(never)]
fn round(meter: &mut Meter, value: &Value, args: Args) -> Outcome<Value> {
    let [precision, method] = args.bind("round", ["precision", "method"])?;
    let precision = precision.map_or(Ok(0), |precision| int_of("round", &precision))?;
    let method = method.unwrap_or(meter.text("common")?);
    let Some(float) = value.as_float() else {
        return fault(format!("a {} can't be rounded", value.type_name()));
    };
    // A double has no digit further from the point than these.
    let Some(places) = i32::try_from(precision).ok().filter(|places| places.abs() <= 330) else {
        return fault(format!("round to {precision} digits"));
    };
    let scale = 10_f64.powi(places);
    match text_of("round", &method)? {
        "ceil" => Ok(Value::Float((float * scale).ceil() / scale)),
        "floor" => Ok(Value::Float((float * scale).floor() / scale)),
        "common" if !matches!(value, Value::Float(_)) && places >= 0 => {
            Ok(Value::Int(int_of("round", value)?))
        }
        "common" if places >= 0 => {
            Ok(Value::Float(format!("{float:.*}", places as usize).parse().unwrap_or(float)))
        }
        "common" => {
            let rounded = (float * scale).round_ties_even() / scale;
            match value {
                Value::Float(_) => Ok(Value::Float(rounded)),
                _ => Ok(Value::Int(rounded as i128)),
            }
        }
        _ => fault("round: the method is `common`, `ceil` or `floor`"),
    }
}
