//! The filters of lists, mappings and strings as sequences.

use super::args::{Args, int_of, is_true, required, text_of};
use super::ast::Operator;
use super::filters::{self, no_args};
use super::meter::{ListBuilder, Meter, Outcome, TextBuilder, fault};
use super::ops;
use super::value::{Value, sort_by};
use super::{methods, predicates, print};

/// `None` is an unknown name.
#[inline(never)]
pub(crate) fn apply(meter: &mut Meter, name: &str, value: &Value, args: Args) -> Outcome<Option<Value>> {
    Ok(Some(match name {
        "list" => {
            no_args(name, args)?;
            let items = value.iterate(meter)?;
            Value::list(meter, items)?
        }
        "join" => join(meter, value, args)?,
        "first" | "last" => no_args(name, args).and_then(|()| end(meter, name, value))?,
        "reverse" => no_args(name, args).and_then(|()| reverse(meter, value))?,
        "items" => {
            no_args(name, args)?;
            let items = match value {
                Value::Undefined(_) => Vec::new(),
                Value::Dict(dict) => methods::entries(meter, dict, "items")?,
                _ => return fault(format!("items wants a mapping, not a {}", value.type_name())),
            };
            Value::stream(meter, items)?
        }
        "dictsort" => dictsort(meter, value, args)?,
        "sort" => sort(meter, value, args)?,
        "unique" => unique(meter, value, args)?,
        "min" | "max" => extreme(meter, name, value, args)?,
        "sum" => sum(meter, value, args)?,
        "map" => map(meter, value, args)?,
        "select" | "reject" | "selectattr" | "rejectattr" => select(meter, name, value, args)?,
        "batch" => batch(meter, value, args)?,
        _ => return Ok(None),
    }))
}

#[inline(never)]
fn join(meter: &mut Meter, value: &Value, args: Args) -> Outcome<Value> {
    let [separator, attribute] = args.bind("join", ["d", "attribute"])?;
    let separator = separator.map_or_else(|| meter.text(""), Ok)?;
    let separator = print::to_text(meter, &separator)?;
    let attribute = Path::new(meter, attribute)?;
    let mut out = TextBuilder::default();
    for (at, item) in value.iterate(meter)?.iter().enumerate() {
        if at > 0 {
            out.push(meter, separator.as_str().unwrap_or_default())?;
        }
        let item = attribute.follow(meter, item, None)?;
        print::print(meter, &mut out, &item)?;
    }
    out.into_value(meter)
}

#[inline(never)]
fn end(meter: &mut Meter, which: &str, value: &Value) -> Outcome<Value> {
    let found = match (value, which) {
        (Value::Stream(stream), "first") => stream.take_next(),
        (Value::Stream(_), _) => return fault("last: a generator can't be read from its end"),
        (Value::Dict(dict), "first") => dict.entries.first().map(|(key, _)| key.clone()),
        (Value::Dict(dict), _) => dict.entries.last().map(|(key, _)| key.clone()),
        (Value::Undefined(_), _) => None,
        (_, _) if value.items().is_some() => {
            let items = value.items().unwrap_or(&[]);
            if which == "first" { items.first().cloned() } else { items.last().cloned() }
        }
        (_, "first") => ops::subscript(meter, value, &Value::Int(0))?,
        _ => ops::subscript(meter, value, &Value::Int(-1))?,
    };
    if found.is_none() && !matches!(value, Value::Undefined(_) | Value::Stream(_)) {
        value.length(meter)?;
    }
    Ok(found.unwrap_or_else(|| Value::undefined("an item of an empty sequence")))
}

#[inline(never)]
fn reverse(meter: &mut Meter, value: &Value) -> Outcome<Value> {
    if let Value::Str(_) = value {
        return ops::slice(meter, value, [None, None, Some(Value::Int(-1))]);
    }
    let mut items = value.iterate(meter)?;
    items.reverse();
    match value {
        // Jinja2 copies what has no end to start from.
        Value::Stream(_) => Value::list(meter, items),
        _ => Value::stream(meter, items),
    }
}

/// `attribute='a.b.0'`: keys and indices to follow, or the item itself.
struct Path(Vec<Value>);

impl Path {
    fn new(meter: &mut Meter, attribute: Option<Value>) -> Outcome<Self> {
        let mut parts = ListBuilder::default();
        match attribute {
            None | Some(Value::None) => {}
            Some(Value::Str(path)) => {
                for part in path.text.split('.') {
                    let part = match part.parse::<i128>() {
                        Ok(index) if part.bytes().all(|b| b.is_ascii_digit()) => Value::Int(index),
                        _ => meter.text(part)?,
                    };
                    parts.push(meter, part)?;
                }
            }
            Some(index) => parts.push(meter, index)?,
        }
        Ok(Self(parts.into_items()))
    }

    fn follow(&self, meter: &mut Meter, item: &Value, default: Option<&Value>) -> Outcome<Value> {
        let mut value = item.clone();
        for part in &self.0 {
            value = item_of(meter, &value, part)?;
            if let (Value::Undefined(_), Some(default)) = (&value, default) {
                value = default.clone();
            }
        }
        Ok(value)
    }
}

/// `value[key]`, falling back to the attribute, as Jinja2's `getitem` does.
pub(crate) fn item_of(meter: &mut Meter, value: &Value, key: &Value) -> Outcome<Value> {
    if let Value::Undefined(name) = value {
        return fault(format!("`{name}` is undefined"));
    }
    if let Some(found) = ops::subscript(meter, value, key)? {
        return Ok(found);
    }
    if let Value::Str(name) = key {
        let found = match value {
            Value::Dict(_) => methods::find(value, &name.text).map(Value::Method),
            _ => methods::attribute(meter, value, &name.text)?,
        };
        return Ok(found.unwrap_or_else(|| Value::Undefined(name.text.clone())));
    }
    Ok(Value::undefined("an item"))
}

/// What sorting compares: strings without case, unless asked.
fn sort_key(meter: &mut Meter, value: Value, case_sensitive: bool) -> Outcome<Value> {
    match value.as_str() {
        Some(text) if !case_sensitive => super::text_methods::lower(meter, text),
        _ => Ok(value),
    }
}

/// Sorts by key: (key, item) pairs in, items out.
fn sort_pairs(meter: &mut Meter, mut pairs: Vec<(Value, Value)>, reverse: bool) -> Outcome<Value> {
    // Merging copies the pairs once more.
    meter.bytes(pairs.len().saturating_mul(4 * size_of::<Value>()))?;
    if reverse {
        // Twice reversed, so that equal items keep their order as in Python.
        pairs.reverse();
    }
    sort_by(&mut pairs, &mut |a, b| Ok(a.0.compare(meter, &b.0)?.is_some_and(|order| order.is_lt())))?;
    if reverse {
        pairs.reverse();
    }
    Value::list(meter, pairs.into_iter().map(|(_, item)| item).collect())
}

#[inline(never)]
fn sort(meter: &mut Meter, value: &Value, args: Args) -> Outcome<Value> {
    let [reverse, case_sensitive, attribute] =
        args.bind("sort", ["reverse", "case_sensitive", "attribute"])?;
    let case_sensitive = is_true(case_sensitive);
    let mut paths = Vec::new();
    match attribute {
        Some(Value::Str(all)) => {
            for path in all.text.split(',') {
                let path = meter.text(path)?;
                paths.push(Path::new(meter, Some(path))?);
            }
        }
        other => paths.push(Path::new(meter, other)?),
    }
    let mut pairs = Vec::new();
    for item in value.iterate(meter)? {
        meter.bytes(4 * size_of::<Value>())?;
        let mut keys = Vec::with_capacity(paths.len());
        for path in &paths {
            let key = path.follow(meter, &item, None)?;
            keys.push(sort_key(meter, key, case_sensitive)?);
        }
        // A tuple also for one key: equal keys without an order, such as two undefined ones, are then in order.
        pairs.push((Value::tuple(meter, keys)?, item));
    }
    sort_pairs(meter, pairs, is_true(reverse))
}

#[inline(never)]
fn dictsort(meter: &mut Meter, value: &Value, args: Args) -> Outcome<Value> {
    let [case_sensitive, by, reverse] = args.bind("dictsort", ["case_sensitive", "by", "reverse"])?;
    let Value::Dict(dict) = value else {
        return fault(format!("dictsort wants a mapping, not a {}", value.type_name()));
    };
    let by = by.map_or(Ok(0), |by| match by.as_str() {
        Some("key") => Ok(0),
        Some("value") => Ok(1),
        _ => fault("dictsort: `by` is `key` or `value`"),
    })?;
    let case_sensitive = is_true(case_sensitive);
    let mut pairs = Vec::new();
    for entry in methods::entries(meter, dict, "items")? {
        meter.bytes(4 * size_of::<Value>())?;
        let key = entry.items().and_then(|pair| pair.get(by)).cloned().unwrap_or(Value::None);
        pairs.push((sort_key(meter, key, case_sensitive)?, entry));
    }
    sort_pairs(meter, pairs, is_true(reverse))
}

#[inline(never)]
fn unique(meter: &mut Meter, value: &Value, args: Args) -> Outcome<Value> {
    let [case_sensitive, attribute] = args.bind("unique", ["case_sensitive", "attribute"])?;
    let case_sensitive = is_true(case_sensitive);
    let path = Path::new(meter, attribute)?;
    let (mut seen, mut kept) = (ListBuilder::default(), ListBuilder::default());
    let mut seen_items: Vec<Value> = Vec::new();
    for item in value.iterate(meter)? {
        let key = path.follow(meter, &item, None)?;
        let key = sort_key(meter, key, case_sensitive)?;
        key.check_hashable()?;
        let mut known = false;
        for old in &seen_items {
            known = known || old.equals(meter, &key)?;
        }
        if !known {
            // `seen` only pays for what `seen_items` holds.
            seen.push(meter, Value::None)?;
            seen_items.push(key);
            kept.push(meter, item)?;
        }
    }
    let items = kept.into_items();
    Value::stream(meter, items)
}

#[inline(never)]
fn extreme(meter: &mut Meter, name: &str, value: &Value, args: Args) -> Outcome<Value> {
    let [case_sensitive, attribute] = args.bind(name, ["case_sensitive", "attribute"])?;
    let case_sensitive = is_true(case_sensitive);
    let path = Path::new(meter, attribute)?;
    let mut best: Option<(Value, Value)> = None;
    for item in value.iterate(meter)? {
        let key = path.follow(meter, &item, None)?;
        let key = sort_key(meter, key, case_sensitive)?;
        let better = match &best {
            None => true,
            Some((old, _)) => {
                let order = key.compare(meter, old)?;
                order.is_some_and(|order| if name == "min" { order.is_lt() } else { order.is_gt() })
            }
        };
        if better {
            best = Some((key, item));
        }
    }
    Ok(best.map_or_else(|| Value::undefined("an item of an empty sequence"), |(_, item)| item))
}

#[inline(never)]
fn sum(meter: &mut Meter, value: &Value, args: Args) -> Outcome<Value> {
    let [attribute, start] = args.bind("sum", ["attribute", "start"])?;
    let path = Path::new(meter, attribute)?;
    let mut total = start.unwrap_or(Value::Int(0));
    for item in value.iterate(meter)? {
        let item = path.follow(meter, &item, None)?;
        total = ops::arithmetic(meter, Operator::Add, &total, &item)?;
    }
    Ok(total)
}

#[inline(never)]
fn map(meter: &mut Meter, value: &Value, mut args: Args) -> Outcome<Value> {
    let mut mapped = ListBuilder::default();
    // Jinja2 looks at the value's truth before it iterates, here and in `select`: `none|map(..)` is empty.
    if !value.is_true() {
        return Value::stream(meter, Vec::new());
    }
    if args.positional.is_empty() {
        let [attribute, default] = args.bind("map", ["attribute", "default"])?;
        let path = Path::new(meter, Some(required("map", "attribute", attribute)?))?;
        for item in value.iterate(meter)? {
            let item = path.follow(meter, &item, default.as_ref())?;
            mapped.push(meter, item)?;
        }
    } else {
        let filter = args.positional.remove(0);
        let filter = text_of("map", &filter)?;
        for item in value.iterate(meter)? {
            meter.steps(args.positional.len() as u64)?;
            let args = Args { positional: args.positional.clone(), named: args.named.clone() };
            // A filter named here may be `map` again, and applying one takes the stack of three levels.
            for _ in 0..3 {
                meter.enter()?;
            }
            let item = filters::apply(meter, filter, &item, args)?;
            for _ in 0..3 {
                meter.leave();
            }
            mapped.push(meter, item)?;
        }
    }
    let items = mapped.into_items();
    Value::stream(meter, items)
}

#[inline(never)]
fn select(meter: &mut Meter, name: &str, value: &Value, mut args: Args) -> Outcome<Value> {
    let mut path = Path(Vec::new());
    if !value.is_true() {
        return Value::stream(meter, Vec::new());
    }
    if name.ends_with("attr") {
        if args.positional.is_empty() {
            return fault(format!("{name}: the attribute is missing"));
        }
        path = Path::new(meter, Some(args.positional.remove(0)))?;
    }
    let test = if args.positional.is_empty() { None } else { Some(args.positional.remove(0)) };
    let wanted = name.starts_with("select");
    let mut kept = ListBuilder::default();
    for item in value.iterate(meter)? {
        let subject = path.follow(meter, &item, None)?;
        let holds = match &test {
            None => subject.is_true(),
            Some(test) => {
                meter.steps(args.positional.len() as u64)?;
                let args = Args { positional: args.positional.clone(), named: args.named.clone() };
                predicates::test(meter, text_of(name, test)?, &subject, args)?
            }
        };
        if holds == wanted {
            kept.push(meter, item)?;
        }
    }
    let items = kept.into_items();
    Value::stream(meter, items)
}

#[inline(never)]
fn batch(meter: &mut Meter, value: &Value, args: Args) -> Outcome<Value> {
    let [size, fill] = args.bind("batch", ["linecount", "fill_with"])?;
    let size = int_of("batch", &required("batch", "linecount", size)?)?;
    let Some(size) = usize::try_from(size).ok().filter(|&size| size > 0) else {
        return fault("batch: the size is not positive");
    };
    let mut batches = ListBuilder::default();
    for chunk in value.iterate(meter)?.chunks(size) {
        let mut items = ListBuilder::default();
        for item in chunk {
            items.push(meter, item.clone())?;
        }
        if let Some(fill) = fill.as_ref().filter(|fill| !matches!(fill, Value::None)) {
            for _ in chunk.len()..size {
                items.push(meter, fill.clone())?;
            }
        }
        let items = items.into_list(meter)?;
        batches.push(meter, items)?;
    }
    let items = batches.into_items();
    Value::stream(meter, items)
}
