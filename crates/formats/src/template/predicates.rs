//! The tests of `x is ..`.

use super::args::Args;
use super::ast::{Comparison, Operator};
use super::meter::{Meter, Outcome, fault};
use super::ops;
use super::value::Value;

#[inline(never)]
pub(crate) fn test(meter: &mut Meter, name: &str, value: &Value, mut args: Args) -> Outcome<bool> {
    meter.steps(1)?;
    let comparison = match name {
        "eq" | "==" | "equalto" => Some(Comparison::Equal),
        "ne" | "!=" => Some(Comparison::NotEqual),
        "lt" | "<" | "lessthan" => Some(Comparison::Less),
        "le" | "<=" => Some(Comparison::LessEqual),
        "gt" | ">" | "greaterthan" => Some(Comparison::Greater),
        "ge" | ">=" => Some(Comparison::GreaterEqual),
        "in" => Some(Comparison::In),
        _ => None,
    };
    if comparison.is_some() || matches!(name, "divisibleby" | "sameas") {
        let Some(other) = args.positional.pop().filter(|_| args.positional.is_empty()) else {
            return fault(format!("the test `{name}` takes one argument"));
        };
        return match comparison {
            Some(how) => ops::compare(meter, how, value, &other),
            None if name == "sameas" => {
                Ok(value.type_name() == other.type_name() && value.equals(meter, &other)?)
            }
            None => has_remainder(meter, value, &other, 0),
        };
    }
    args.bind::<0>(&format!("the test `{name:.40}`"), [])?;
    Ok(match name {
        "defined" => !matches!(value, Value::Undefined(_)),
        "undefined" => matches!(value, Value::Undefined(_)),
        "none" => matches!(value, Value::None),
        "true" => matches!(value, Value::Bool(true)),
        "false" => matches!(value, Value::Bool(false)),
        "boolean" => matches!(value, Value::Bool(_)),
        "integer" => matches!(value, Value::Int(_)),
        "float" => matches!(value, Value::Float(_)),
        "number" => value.as_float().is_some(),
        "string" => matches!(value, Value::Str(_)),
        "mapping" => matches!(value, Value::Dict(_)),
        "sequence" => matches!(
            value,
            Value::Undefined(_)
                | Value::Str(_)
                | Value::List(_)
                | Value::Tuple(_)
                | Value::Dict(_)
                | Value::Range(_)
        ),
        "iterable" => matches!(
            value,
            Value::Undefined(_)
                | Value::Str(_)
                | Value::List(_)
                | Value::Tuple(_)
                | Value::Dict(_)
                | Value::View(..)
                | Value::Range(_)
                | Value::Stream(_)
                | Value::Loop(_)
        ),
        "callable" => {
            matches!(value, Value::Macro(_) | Value::Function(_) | Value::Method(_) | Value::Undefined(_))
        }
        "odd" => has_remainder(meter, value, &Value::Int(2), 1)?,
        "even" => has_remainder(meter, value, &Value::Int(2), 0)?,
        "escaped" => matches!(value, Value::Str(text) if text.safe),
        "lower" | "upper" => {
            let text = super::print::to_text(meter, value)?;
            let method = if name == "lower" { "islower" } else { "isupper" };
            let Value::Str(text) = text else { return Ok(false) };
            super::text_methods::call(meter, &text, method, Args::default())?.is_true()
        }
        _ => return fault(format!("unknown test `{name}`")),
    })
}

fn has_remainder(meter: &mut Meter, value: &Value, by: &Value, wanted: i128) -> Outcome<bool> {
    ops::arithmetic(meter, Operator::Modulo, value, by)?.equals(meter, &Value::Int(wanted))
}
