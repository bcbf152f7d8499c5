//! Values as Python's `str` and `repr` show them.

use unicode_general_category::{GeneralCategory, get_general_category};

use super::meter::{Meter, Outcome, TextBuilder};
use super::value::{Seq, Value};

/// `str(value)`, appended.
pub(crate) fn print(meter: &mut Meter, out: &mut TextBuilder, value: &Value) -> Outcome<()> {
    match value {
        Value::Undefined(_) => Ok(()),
        Value::Str(text) => out.push(meter, &text.text),
        _ => repr(meter, out, value),
    }
}

/// `str(value)` as a string value; strings stay what they are.
pub(crate) fn to_text(meter: &mut Meter, value: &Value) -> Outcome<Value> {
    if let Value::Str(_) = value {
        return Ok(value.clone());
    }
    let mut out = TextBuilder::default();
    print(meter, &mut out, value)?;
    out.into_value(meter)
}

pub(crate) fn repr(meter: &mut Meter, out: &mut TextBuilder, value: &Value) -> Outcome<()> {
    meter.steps(1)?;
    match value {
        Value::Undefined(_) => out.push(meter, "Undefined"),
        Value::None => out.push(meter, "None"),
        Value::Bool(b) => out.push(meter, if *b { "True" } else { "False" }),
        Value::Int(i) => out.push(meter, &i.to_string()),
        Value::Float(f) => out.push(meter, &float(*f)),
        Value::Str(text) if text.safe => {
            out.push(meter, "Markup(")?;
            quoted(meter, out, &text.text)?;
            out.push(meter, ")")
        }
        Value::Str(text) => quoted(meter, out, &text.text),
        Value::List(seq) => items(meter, out, "[", seq, "]"),
        Value::Tuple(seq) => items(meter, out, "(", seq, if seq.items.len() == 1 { ",)" } else { ")" }),
        Value::View(name, seq) => {
            out.push(meter, name)?;
            items(meter, out, "([", seq, "])")
        }
        Value::Dict(dict) => {
            out.push(meter, "{")?;
            for (at, (key, value)) in dict.entries.iter().enumerate() {
                if at > 0 {
                    out.push(meter, ", ")?;
                }
                repr(meter, out, key)?;
                out.push(meter, ": ")?;
                repr(meter, out, value)?;
            }
            out.push(meter, "}")
        }
        Value::Range(range) => {
            let step = if range.step == 1 { String::new() } else { format!(", {}", range.step) };
            out.push(meter, &format!("range({}, {}{step})", range.start, range.stop))
        }
        Value::Macro(value) => out.push(meter, &format!("<Macro '{}'>", value.def.name)),
        Value::Stream(_) | Value::Namespace(_) | Value::Loop(_) | Value::Function(_) | Value::Method(_) => {
            out.push(meter, &format!("<{} object>", value.type_name()))
        }
    }
}

fn items(meter: &mut Meter, out: &mut TextBuilder, open: &str, seq: &Seq, close: &str) -> Outcome<()> {
    out.push(meter, open)?;
    for (at, item) in seq.items.iter().enumerate() {
        if at > 0 {
            out.push(meter, ", ")?;
        }
        repr(meter, out, item)?;
    }
    out.push(meter, close)
}

fn quoted(meter: &mut Meter, out: &mut TextBuilder, text: &str) -> Outcome<()> {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push_char(meter, quote)?;
    out.push_escaped(meter, text, |c, escaped| match c {
        '\n' => escaped.push_str("\\n"),
        '\r' => escaped.push_str("\\r"),
        '\t' => escaped.push_str("\\t"),
        '\\' => escaped.push_str("\\\\"),
        _ if c == quote => escaped.extend(['\\', c]),
        ' '..='~' => {}
        _ if is_printable(c) => {}
        _ => {
            let (mark, digits) = match u32::from(c) {
                0..=0xff => ("\\x", 2),
                0x100..=0xffff => ("\\u", 4),
                _ => ("\\U", 8),
            };
            escaped.push_str(mark);
            push_hex(escaped, u32::from(c), digits);
        }
    })?;
    out.push_char(meter, quote)
}

/// `code` in that many hexadecimal digits; a third of the time `format!` takes.
pub(crate) fn push_hex(out: &mut String, code: u32, digits: u32) {
    for at in (0..digits).rev() {
        out.extend(char::from_digit(code >> (4 * at) & 15, 16));
    }
}

fn is_printable(c: char) -> bool {
    use GeneralCategory::{
        Control, Format, LineSeparator, ParagraphSeparator, PrivateUse, SpaceSeparator, Surrogate, Unassigned,
    };
    c == ' '
        || !matches!(
            get_general_category(c),
            Control
                | Format
                | LineSeparator
                | ParagraphSeparator
                | PrivateUse
                | SpaceSeparator
                | Surrogate
                | Unassigned
        )
}

/// `repr(float)`: the shortest digits that read back the same, with an exponent below 1e-4 and from 1e16.
pub(crate) fn float(value: f64) -> String {
    if value.is_nan() {
        return "nan".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf".into() } else { "-inf".into() };
    }
    if value != 0.0 && !(1e-4..1e16).contains(&value.abs()) {
        let scientific = format!("{value:e}");
        // Rust writes 1e-7 and 1e20 where Python writes 1e-07 and 1e+20.
        let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
        let (sign, digits) = match exponent.strip_prefix('-') {
            Some(digits) => ('-', digits),
            None => ('+', exponent),
        };
        return format!("{mantissa}e{sign}{digits:0>2}");
    }
    let plain = format!("{value}");
    if plain.contains('.') { plain } else { plain + ".0" }
}

/// What `markupsafe.escape` does to a string.
pub(crate) fn escape(meter: &mut Meter, out: &mut TextBuilder, text: &str) -> Outcome<()> {
    out.push_escaped(meter, text, |c, escaped| match c {
        '&' => escaped.push_str("&amp;"),
        '<' => escaped.push_str("&lt;"),
        '>' => escaped.push_str("&gt;"),
        '"' => escaped.push_str("&#34;"),
        '\'' => escaped.push_str("&#39;"),
        _ => {}
    })
}
