//! Attributes: keys of mappings, fields of `loop` and namespaces, and the methods of Python's types.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::args::{Args, required};
use super::meter::{Meter, Outcome, fault};
use super::text_methods;
use super::value::{Dict, LoopState, Seq, Text, Value};

const DICT_METHODS: [&str; 5] = ["get", "items", "keys", "values", "copy"];
const LIST_METHODS: [&str; 3] = ["copy", "count", "index"];
/// Jinja2's immutable sandbox hides what changes a value, also behind a key of that name.
const DICT_MUTATORS: [&str; 5] = ["clear", "pop", "popitem", "setdefault", "update"];

/// The method of that name, if values of this type have it.
pub(crate) fn find(value: &Value, name: &str) -> Option<&'static str> {
    let names: &[&'static str] = match value {
        Value::Str(_) => &text_methods::NAMES,
        Value::Dict(_) => &DICT_METHODS,
        Value::List(_) => &LIST_METHODS,
        Value::Tuple(_) | Value::Range(_) => &LIST_METHODS[1..],
        Value::Loop(_) => &["cycle"],
        _ => &[],
    };
    names.iter().find(|have| **have == name).copied()
}

/// `value.name` for what is neither a namespace nor undefined; `None` where Python has no attribute.
#[inline(never)]
pub(crate) fn attribute(meter: &mut Meter, value: &Value, name: &Arc<str>) -> Outcome<Option<Value>> {
    if let Some(method) = find(value, name) {
        return Ok(Some(Value::Method(method)));
    }
    match value {
        Value::Dict(_) if DICT_MUTATORS.contains(&&**name) => Ok(None),
        Value::Dict(dict) => {
            meter.scan(name.len())?;
            Ok(dict.get_text(name).cloned())
        }
        Value::Loop(state) => Ok(loop_field(state, name)),
        Value::Macro(value) if &**name == "name" => Ok(Some(Value::Str(Text::from(&value.def.name)))),
        _ => Ok(None),
    }
}

fn loop_field(state: &LoopState, name: &str) -> Option<Value> {
    let items = &state.items.items;
    let index = state.index.load(Ordering::Relaxed);
    let int = |value: usize| Some(Value::Int(value as i128));
    match name {
        "index" => int(index + 1),
        "index0" => int(index),
        "revindex" => int(items.len() - index),
        "revindex0" => int(items.len() - index - 1),
        "first" => Some(Value::Bool(index == 0)),
        "last" => Some(Value::Bool(index + 1 == items.len())),
        "length" => int(items.len()),
        "depth" => int(state.depth),
        "depth0" => int(state.depth - 1),
        "previtem" => index
            .checked_sub(1)
            .map(|at| items[at].clone())
            .or_else(|| Some(Value::undefined("loop.previtem"))),
        "nextitem" => items.get(index + 1).cloned().or_else(|| Some(Value::undefined("loop.nextitem"))),
        _ => None,
    }
}

/// Calls `value.name(args)`.
#[inline(never)]
pub(crate) fn call(meter: &mut Meter, value: &Value, name: &str, mut args: Args) -> Outcome<Value> {
    match value {
        Value::Str(text) => {
            if text.safe && !matches!(name, "startswith" | "endswith" | "find" | "count" | "split" | "rsplit")
            {
                escape_args(meter, &mut args)?;
            }
            text_methods::call(meter, text, name, args)
        }
        Value::Dict(dict) => call_dict(meter, dict, name, args),
        Value::Loop(state) => match args.positional.len() {
            0 => fault("loop.cycle: no items for cycling given"),
            count => Ok(args.positional.swap_remove(state.index.load(Ordering::Relaxed) % count)),
        },
        _ => {
            if name == "copy" {
                return Ok(value.clone());
            }
            let [wanted] = args.bind(name, ["value"])?;
            let wanted = required(name, "value", wanted)?;
            let items = value.iterate(meter)?;
            let mut count = 0;
            for (at, item) in items.iter().enumerate() {
                if item.equals(meter, &wanted)? {
                    if name == "index" {
                        return Ok(Value::Int(at as i128));
                    }
                    count += 1;
                }
            }
            if name == "index" { fault("index: the value is not there") } else { Ok(Value::Int(count)) }
        }
    }
}

/// A method of `Markup` escapes the strings it is given.
fn escape_args(meter: &mut Meter, args: &mut Args) -> Outcome<()> {
    let all = args.positional.iter_mut().chain(args.named.iter_mut().map(|(_, value)| value));
    for value in all {
        if let Value::Str(text) = value
            && !text.safe
        {
            *value = super::filters::escape(meter, value)?;
        }
    }
    Ok(())
}

fn call_dict(meter: &mut Meter, dict: &Arc<Dict>, name: &str, args: Args) -> Outcome<Value> {
    if name == "get" {
        let [key, default] = args.bind(name, ["key", "default"])?;
        let key = required(name, "key", key)?;
        key.check_hashable()?;
        return Ok(match dict.get(meter, &key)? {
            Some(value) => value.clone(),
            None => default.unwrap_or(Value::None),
        });
    }
    args.bind::<0>(name, [])?;
    let view = match name {
        "keys" => "dict_keys",
        "values" => "dict_values",
        "items" => "dict_items",
        _ => return Ok(Value::Dict(dict.clone())),
    };
    let items = entries(meter, dict, name)?;
    Ok(Value::View(view, Arc::new(Seq::new(meter, items)?)))
}

/// The keys, values or pairs of a mapping.
pub(crate) fn entries(meter: &mut Meter, dict: &Dict, which: &str) -> Outcome<Vec<Value>> {
    meter.steps(dict.entries.len() as u64)?;
    meter.bytes(dict.entries.len().saturating_mul(size_of::<Value>()))?;
    let mut items = Vec::with_capacity(dict.entries.len());
    for (key, value) in &dict.entries {
        items.push(match which {
            "keys" => key.clone(),
            "values" => value.clone(),
            _ => {
                // The pair's own vector and counters.
                meter.bytes(64)?;
                Value::tuple(meter, vec![key.clone(), value.clone()])?
            }
        });
    }
    Ok(items)
}
