//! Arithmetic, membership, subscripts and slices, as Python does them.

use std::sync::Arc;

use super::ast::{Comparison, Operator};
use super::meter::{ListBuilder, Meter, Outcome, TextBuilder, fault};
use super::print;
use super::value::{Range, Seq, Text, Value};
use super::{number_format, percent};

#[inline(never)]
pub(crate) fn arithmetic(
    meter: &mut Meter,
    operator: Operator,
    left: &Value,
    right: &Value,
) -> Outcome<Value> {
    for side in [left, right] {
        // `'%s' % undefined` prints nothing instead of failing.
        if let Value::Undefined(name) = side
            && !(operator == Operator::Modulo && matches!(left, Value::Str(_)))
        {
            return fault(format!("`{name}` is undefined"));
        }
    }
    match (operator, left, right) {
        (Operator::Add, Value::Str(a), Value::Str(b)) => return add_text(meter, a, b),
        (Operator::Add, Value::List(a), Value::List(b)) => return join(meter, a, b)?.into_list(meter),
        (Operator::Add, Value::Tuple(a), Value::Tuple(b)) => {
            let items = join(meter, a, b)?.into_items();
            return Value::tuple(meter, items);
        }
        (Operator::Multiply, Value::Str(_) | Value::List(_) | Value::Tuple(_), _)
            if right.as_int().is_some() =>
        {
            return repeat(meter, left, right.as_int().unwrap_or(0));
        }
        (Operator::Multiply, _, Value::Str(_) | Value::List(_) | Value::Tuple(_))
            if left.as_int().is_some() =>
        {
            return repeat(meter, right, left.as_int().unwrap_or(0));
        }
        (Operator::Modulo, Value::Str(format), _) => return percent::format(meter, format, right),
        _ => {}
    }
    if let (Some(a), Some(b)) = (left.as_int(), right.as_int()) {
        return integers(operator, a, b);
    }
    if let (Some(a), Some(b)) = (left.as_float(), right.as_float()) {
        return floats(operator, a, b);
    }
    fault(format!("{} does not work on a {} and a {}", sign(operator), left.type_name(), right.type_name()))
}

fn sign(operator: Operator) -> &'static str {
    match operator {
        Operator::Add => "`+`",
        Operator::Subtract => "`-`",
        Operator::Multiply => "`*`",
        Operator::Divide => "`/`",
        Operator::FloorDivide => "`//`",
        Operator::Modulo => "`%`",
        Operator::Power => "`**`",
    }
}

fn add_text(meter: &mut Meter, a: &Text, b: &Text) -> Outcome<Value> {
    let mut out = TextBuilder::with_room(meter, a.text.len() + b.text.len())?;
    let safe = a.safe || b.safe;
    for part in [a, b] {
        if safe && !part.safe {
            print::escape(meter, &mut out, &part.text)?;
        } else {
            out.push(meter, &part.text)?;
        }
    }
    mark(out.into_value(meter)?, safe)
}

/// The string again, as `Markup` or not.
pub(crate) fn mark(value: Value, safe: bool) -> Outcome<Value> {
    Ok(match value {
        Value::Str(text) => Value::Str(Text { safe, ..text }),
        other => other,
    })
}

fn join(meter: &mut Meter, a: &Seq, b: &Seq) -> Outcome<ListBuilder> {
    let mut joined = ListBuilder::default();
    for item in a.items.iter().chain(&b.items) {
        joined.push(meter, item.clone())?;
    }
    Ok(joined)
}

fn repeat(meter: &mut Meter, value: &Value, times: i128) -> Outcome<Value> {
    let times = usize::try_from(times.max(0)).unwrap_or(usize::MAX);
    if let Value::Str(text) = value {
        meter.bytes(text.text.len().saturating_mul(times))?;
        return mark(meter.text(&text.text.repeat(times))?, text.safe);
    }
    let items = value.items().unwrap_or(&[]);
    let count = items.len().saturating_mul(times);
    meter.steps(count as u64)?;
    meter.bytes(count.saturating_mul(size_of::<Value>()))?;
    let mut all = Vec::with_capacity(count);
    while all.len() < count {
        all.extend_from_slice(items);
    }
    match value {
        Value::Tuple(_) => Value::tuple(meter, all),
        _ => Value::list(meter, all),
    }
}

fn integers(operator: Operator, a: i128, b: i128) -> Outcome<Value> {
    let result = match operator {
        Operator::Add => a.checked_add(b),
        Operator::Subtract => a.checked_sub(b),
        Operator::Multiply => a.checked_mul(b),
        Operator::Divide | Operator::FloorDivide | Operator::Modulo if b == 0 => {
            return fault("division by zero");
        }
        Operator::Divide => return Ok(Value::Float(a as f64 / b as f64)),
        Operator::FloorDivide => a
            .checked_div(b)
            .map(|quotient| if a % b != 0 && (a < 0) != (b < 0) { quotient - 1 } else { quotient }),
        Operator::Modulo => {
            a.checked_rem(b).map(|rest| if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest })
        }
        Operator::Power if b < 0 => return floats(operator, a as f64, b as f64),
        Operator::Power => u32::try_from(b).ok().and_then(|b| a.checked_pow(b)),
    };
    match result {
        Some(value) => Ok(Value::Int(value)),
        None => fault(format!("{a} {} {b} is too large an integer", sign(operator))),
    }
}

fn floats(operator: Operator, a: f64, b: f64) -> Outcome<Value> {
    if b == 0.0 && matches!(operator, Operator::Divide | Operator::FloorDivide | Operator::Modulo) {
        return fault("division by zero");
    }
    Ok(Value::Float(match operator {
        Operator::Add => a + b,
        Operator::Subtract => a - b,
        Operator::Multiply => a * b,
        Operator::Divide => a / b,
        Operator::FloorDivide => floor_modulo(a, b).0,
        Operator::Modulo => floor_modulo(a, b).1,
        Operator::Power if a == 0.0 && b < 0.0 => return fault("zero to a negative power"),
        Operator::Power if a < 0.0 && b.fract() != 0.0 => {
            return fault("a negative number to a broken power");
        }
        Operator::Power => a.powf(b),
    }))
}

/// Python's `divmod` of floats, signs of zero included.
fn floor_modulo(a: f64, b: f64) -> (f64, f64) {
    let mut modulo = a % b;
    let mut quotient = (a - modulo) / b;
    if modulo == 0.0 {
        modulo = 0_f64.copysign(b);
    } else if (modulo < 0.0) != (b < 0.0) {
        modulo += b;
        quotient -= 1.0;
    }
    (if quotient == 0.0 { 0_f64.copysign(a / b) } else { quotient.round() }, modulo)
}

pub(crate) fn negate(value: &Value) -> Outcome<Value> {
    match (value, value.as_int()) {
        (Value::Float(f), _) => Ok(Value::Float(-f)),
        (_, Some(i)) => match i.checked_neg() {
            Some(i) => Ok(Value::Int(i)),
            None => fault(format!("-{i} is too large an integer")),
        },
        (Value::Undefined(name), _) => fault(format!("`{name}` is undefined")),
        _ => fault(format!("a {} has no negative", value.type_name())),
    }
}

#[inline(never)]
pub(crate) fn compare(meter: &mut Meter, how: Comparison, left: &Value, right: &Value) -> Outcome<bool> {
    Ok(match how {
        Comparison::Equal => left.equals(meter, right)?,
        Comparison::NotEqual => !left.equals(meter, right)?,
        Comparison::In => contains(meter, right, left)?,
        Comparison::NotIn => !contains(meter, right, left)?,
        _ => {
            for side in [left, right] {
                if let Value::Undefined(name) = side {
                    return fault(format!("`{name}` is undefined"));
                }
            }
            let order = left.compare(meter, right)?;
            match how {
                Comparison::Less => order.is_some_and(|o| o.is_lt()),
                Comparison::LessEqual => order.is_some_and(|o| o.is_le()),
                Comparison::Greater => order.is_some_and(|o| o.is_gt()),
                _ => order.is_some_and(|o| o.is_ge()),
            }
        }
    })
}

pub(crate) fn contains(meter: &mut Meter, container: &Value, item: &Value) -> Outcome<bool> {
    match (container, item) {
        (Value::Str(text), Value::Str(part)) => {
            meter.scan(text.text.len() + part.text.len())?;
            Ok(text.text.contains(&*part.text))
        }
        (Value::Str(_), _) => fault(format!("a {} can't be in a string", item.type_name())),
        (Value::Dict(dict), _) => {
            item.check_hashable()?;
            Ok(dict.get(meter, item)?.is_some())
        }
        (Value::Range(range), _) => {
            let distance = item.as_int().and_then(|i| i.checked_sub(range.start));
            let steps = distance.filter(|d| d % range.step == 0).map(|d| d / range.step);
            Ok(steps.is_some_and(|steps| (0..range.len as i128).contains(&steps)))
        }
        _ => match container.items() {
            Some(items) => any_equal(meter, items, item),
            None => {
                let items = container.iterate(meter)?;
                any_equal(meter, &items, item)
            }
        },
    }
}

fn any_equal(meter: &mut Meter, items: &[Value], wanted: &Value) -> Outcome<bool> {
    for item in items {
        if item.equals(meter, wanted)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// `container[index]`, or `None` where Python raises a lookup error.
pub(crate) fn subscript(meter: &mut Meter, container: &Value, index: &Value) -> Outcome<Option<Value>> {
    if let Value::Dict(dict) = container {
        return Ok(dict.get(meter, index)?.cloned());
    }
    let Some(index) = index.as_int() else { return Ok(None) };
    let length = match container {
        Value::Str(_) | Value::List(_) | Value::Tuple(_) | Value::Range(_) => container.length(meter)?,
        _ => return Ok(None),
    };
    let at = if index < 0 { index.saturating_add(length as i128) } else { index };
    let Ok(at) = usize::try_from(at) else { return Ok(None) };
    if at >= length {
        return Ok(None);
    }
    Ok(match container {
        Value::Str(text) => match text.text.chars().nth(at) {
            Some(c) => Some(mark(meter.text(c.encode_utf8(&mut [0; 4]))?, text.safe)?),
            None => None,
        },
        Value::Range(range) => Some(range.get(at)),
        _ => container.items().and_then(|items| items.get(at)).cloned(),
    })
}

/// `container[start:stop:step]`; a bound that is `None` is absent.
#[inline(never)]
pub(crate) fn slice(meter: &mut Meter, container: &Value, bounds: [Option<Value>; 3]) -> Outcome<Value> {
    if let Value::Undefined(name) = container {
        return fault(format!("`{name}` is undefined"));
    }
    let [start, stop, step] = bounds;
    let bound = |value: Option<Value>| match value {
        None | Some(Value::None) => Ok(None),
        Some(value) => match value.as_int() {
            Some(i) => Ok(Some(i)),
            None => fault(format!("a slice bound is a {}", value.type_name())),
        },
    };
    let step = bound(step)?.unwrap_or(1);
    if step == 0 {
        return fault("the step of a slice is zero");
    }
    let length = match container {
        Value::Str(_) | Value::List(_) | Value::Tuple(_) | Value::Range(_) => {
            container.length(meter)? as i128
        }
        Value::Stream(_) | Value::View(..) => {
            return fault(format!("a {} can't be sliced", container.type_name()));
        }
        _ => return Ok(Value::undefined("slice")),
    };
    // Where a missing or too large bound lands depends on the direction.
    let (lowest, highest) = if step > 0 { (0, length) } else { (-1, length - 1) };
    let clamp = |value: Option<i128>, missing: i128| match value {
        None => missing,
        Some(i) if i < 0 => i.saturating_add(length).max(lowest),
        Some(i) => i.min(highest),
    };
    let (first, last) = if step > 0 { (lowest, highest) } else { (highest, lowest) };
    let start = clamp(bound(start)?, first);
    let stop = clamp(bound(stop)?, last);
    let distance = if step > 0 { stop - start } else { start - stop };
    let stride = step.unsigned_abs();
    let count = if distance <= 0 { 0 } else { (distance as u128).div_ceil(stride) as usize };
    let picked = (0..count).map(|n| (start + n as i128 * step) as usize);
    meter.steps(count as u64)?;
    match container {
        Value::Str(text) => slice_text(meter, text, step, start.max(0) as usize, count, picked),
        Value::Range(range) => {
            let at = |index: i128| range.start.saturating_add(range.step.saturating_mul(index));
            let step = range.step.saturating_mul(step);
            Ok(Value::Range(Range { start: at(start), stop: at(stop), step, len: count }))
        }
        _ => {
            let items = container.items().unwrap_or(&[]);
            meter.bytes(count.saturating_mul(size_of::<Value>()))?;
            let picked = picked.filter_map(|at| items.get(at).cloned()).collect();
            match container {
                Value::Tuple(_) => Value::tuple(meter, picked),
                _ => Value::list(meter, picked),
            }
        }
    }
}

fn slice_text(
    meter: &mut Meter,
    text: &Text,
    step: i128,
    start: usize,
    count: usize,
    picked: impl Iterator<Item = usize>,
) -> Outcome<Value> {
    let mut out = TextBuilder::default();
    if step == 1 {
        let begin = nth_char(&text.text, start);
        let rest = &text.text[begin..];
        out.push(meter, &rest[..nth_char(rest, count)])?;
    } else {
        meter.bytes(text.text.len().saturating_mul(size_of::<char>()))?;
        let chars: Vec<char> = text.text.chars().collect();
        for c in picked.filter_map(|at| chars.get(at)) {
            out.push_char(meter, *c)?;
        }
    }
    mark(out.into_value(meter)?, text.safe)
}

/// The byte where the n-th character starts, or the end.
fn nth_char(text: &str, n: usize) -> usize {
    text.char_indices().nth(n).map_or(text.len(), |(at, _)| at)
}

pub(crate) fn range(args: &[Value]) -> Outcome<Value> {
    let mut bounds = [0, 0, 1];
    match args {
        [stop] => bounds[1] = super::args::int_of("range", stop)?,
        [_, _] | [_, _, _] => {
            for (bound, arg) in bounds.iter_mut().zip(args) {
                *bound = super::args::int_of("range", arg)?;
            }
        }
        _ => return fault("range takes one to three integers"),
    }
    let [start, stop, step] = bounds;
    let distance = match step.signum() {
        1 => stop.checked_sub(start),
        -1 => start.checked_sub(stop),
        _ => return fault("the step of a range is zero"),
    };
    let len = distance.map(|distance| (distance.max(0) as u128).div_ceil(step.unsigned_abs()));
    match len {
        // Jinja2's sandbox stops at the same number.
        Some(len) if len <= 100_000 => Ok(Value::Range(Range { start, stop, step, len: len as usize })),
        _ => fault("a range holds at most 100000 numbers"),
    }
}

/// The number in a string, or the integer part of a float.
pub(crate) fn to_int(value: &Value, base: u32) -> Option<i128> {
    match value {
        Value::Float(f) => float_to_int(*f),
        // No number that fits is longer.
        Value::Str(text) if text.text.len() > 512 => None,
        Value::Str(text) => {
            let digits = text.text.trim_matches(super::lexer::is_space).replace('_', "");
            number_format::parse_int(&digits, base).or_else(|| float_to_int(to_float(value)?))
        }
        _ => value.as_int(),
    }
}

fn float_to_int(value: f64) -> Option<i128> {
    (value.is_finite() && value.abs() < 1e38).then_some(value as i128)
}

pub(crate) fn to_float(value: &Value) -> Option<f64> {
    match value {
        Value::Str(text) if text.text.len() > 512 => None,
        Value::Str(text) => text.text.trim_matches(super::lexer::is_space).replace('_', "").parse().ok(),
        _ => value.as_float(),
    }
}

pub(crate) fn text_value(text: &Arc<str>) -> Value {
    Value::Str(Text::from(text))
}
