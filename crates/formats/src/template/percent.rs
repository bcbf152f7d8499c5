//! `'%s has %d' % (name, count)`.

use super::meter::{Meter, Outcome, TextBuilder, fault};
use super::number_format::{self, Cursor, Spec};
use super::ops::{self, mark};
use super::print;
use super::value::{Text, Value};

pub(crate) fn format(meter: &mut Meter, format: &Text, values: &Value) -> Outcome<Value> {
    let mut source = Source { values, next: 0 };
    let mut out = TextBuilder::default();
    let mut chars = Cursor(&format.text);
    while let Some((before, after)) = chars.0.split_once('%') {
        meter.steps(1)?;
        out.push(meter, before)?;
        chars.0 = after;
        if chars.next_if_eq(&'%').is_some() {
            out.push(meter, "%")?;
            continue;
        }
        let key = key(&mut chars)?;
        let spec = spec(&mut chars, &mut source)?;
        let value = match key {
            Some(key) => source.by_key(meter, &key)?,
            None => source.take()?,
        };
        field(meter, &mut out, spec, value, format.safe)?;
    }
    out.push(meter, chars.0)?;
    source.finish()?;
    mark(out.into_value(meter)?, format.safe)
}

/// Where the values come from: a tuple by position, a mapping by name, or one value alone.
struct Source<'v> {
    values: &'v Value,
    next: usize,
}

impl<'v> Source<'v> {
    fn take(&mut self) -> Outcome<&'v Value> {
        let at = self.next;
        self.next += 1;
        let value = match self.values {
            Value::Tuple(seq) => seq.items.get(at),
            one => (at == 0).then_some(one),
        };
        match value {
            Some(value) => Ok(value),
            None => fault("not enough values for the `%` in the string"),
        }
    }

    fn by_key(&self, meter: &mut Meter, key: &str) -> Outcome<&'v Value> {
        let Value::Dict(dict) = self.values else {
            return fault(format!("`%({key})` wants a mapping, not a {}", self.values.type_name()));
        };
        meter.scan(key.len())?;
        match dict.get_text(key) {
            Some(value) => Ok(value),
            None => fault(format!("`%({key})`: the mapping has no such key")),
        }
    }

    fn finish(&self) -> Outcome<()> {
        let given = match self.values {
            Value::Tuple(seq) => seq.items.len(),
            Value::Dict(_) | Value::List(_) | Value::Range(_) | Value::Undefined(_) => 0,
            _ => 1,
        };
        if self.next < given {
            return fault("more values than `%` in the string");
        }
        Ok(())
    }
}

fn key(chars: &mut Cursor<'_>) -> Outcome<Option<String>> {
    if chars.next_if_eq(&'(').is_none() {
        return Ok(None);
    }
    match chars.0.split_once(')') {
        Some((key, after)) if key.len() <= 256 => {
            chars.0 = after;
            Ok(Some(key.to_string()))
        }
        _ => fault("a key after `%(` is not closed"),
    }
}

fn spec(chars: &mut Cursor<'_>, source: &mut Source<'_>) -> Outcome<Spec> {
    let mut spec = Spec::default();
    let mut zero = false;
    while let Some(flag) = chars.next_if(|c| "-+ #0".contains(*c)) {
        match flag {
            '-' => spec.align = Some('<'),
            '0' => zero = true,
            '#' => spec.alternate = true,
            '+' => spec.sign = Some('+'),
            _ if spec.sign.is_none() => spec.sign = Some(' '),
            _ => {}
        }
    }
    let width = count(chars, source)?.unwrap_or(0);
    if width < 0 {
        spec.align = Some('<');
    }
    spec.width = usize::try_from(width.unsigned_abs()).unwrap_or(usize::MAX);
    if chars.next_if_eq(&'.').is_some() {
        let precision = count(chars, source)?.unwrap_or(0).max(0);
        spec.precision = Some(usize::try_from(precision).unwrap_or(usize::MAX));
    }
    while chars.next_if(|c| "hlL".contains(*c)).is_some() {}
    spec.kind = chars.next();
    if zero && spec.align.is_none() && !matches!(spec.kind, Some('s' | 'r' | 'a' | 'c')) {
        spec.fill = '0';
        spec.align = Some('=');
    }
    Ok(spec)
}

fn count(chars: &mut Cursor<'_>, source: &mut Source<'_>) -> Outcome<Option<i128>> {
    if chars.next_if_eq(&'*').is_some() {
        return Ok(Some(super::args::int_of("`*` in a format", source.take()?)?));
    }
    Ok(chars.number().map(|count| count as i128))
}

fn field(meter: &mut Meter, out: &mut TextBuilder, spec: Spec, value: &Value, safe: bool) -> Outcome<()> {
    // `Spec` has no default alignment of its own for text: `%5s` pads on the left.
    let text_spec = Spec { align: spec.align.or(Some('>')), ..spec.clone() };
    match spec.kind {
        Some('s') => {
            let printed = print::to_text(meter, value)?;
            let printed = printed.as_str().unwrap_or_default();
            if safe && !matches!(value, Value::Str(text) if text.safe) {
                let mut escaped = TextBuilder::default();
                print::escape(meter, &mut escaped, printed)?;
                return number_format::text(meter, out, &text_spec, &escaped.into_string());
            }
            number_format::text(meter, out, &text_spec, printed)
        }
        Some('r' | 'a') => {
            let mut shown = TextBuilder::default();
            print::repr(meter, &mut shown, value)?;
            number_format::text(meter, out, &text_spec, &shown.into_string())
        }
        Some('c') => {
            let c = match value {
                Value::Str(text) if text.text.chars().count() == 1 => text.text.chars().next(),
                _ => value.as_int().and_then(|i| u32::try_from(i).ok()).and_then(char::from_u32),
            };
            match c {
                Some(c) => number_format::text(meter, out, &text_spec, c.encode_utf8(&mut [0; 4])),
                None => fault("`%c` wants one character"),
            }
        }
        Some('d' | 'i' | 'u') => match value {
            Value::Float(_) => match ops::to_int(value, 10) {
                Some(i) => number_format::number(meter, out, &spec, &Value::Int(i)),
                None => fault("`%d` wants a finite number"),
            },
            _ => number_format::number(meter, out, &spec, value),
        },
        Some('x' | 'X' | 'o' | 'e' | 'E' | 'f' | 'F' | 'g' | 'G') => {
            number_format::number(meter, out, &spec, value)
        }
        Some(other) => fault(format!("unknown format `%{other}`")),
        None => fault("the string ends after `%`"),
    }
}
