//! JSON into values, and values into JSON as Python's `json.dumps` writes it.

use std::sync::Arc;

use super::args::Args;
use super::meter::{Meter, Outcome, TextBuilder, fault};
use super::print;
use super::value::{Dict, Text, Value, sort_by};

/// The input is paid for like everything else, so a render never holds more than its budget.
pub(crate) fn from_json(meter: &mut Meter, json: &serde_json::Value, depth: usize) -> Outcome<Value> {
    use serde_json::Value as Json;
    meter.steps(1)?;
    if depth > meter.max_depth() {
        return fault(format!("the input nests more than {} deep", meter.max_depth()));
    }
    Ok(match json {
        Json::Null => Value::None,
        Json::Bool(b) => Value::Bool(*b),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(i), _) => Value::Int(i.into()),
            (None, Some(u)) => Value::Int(u.into()),
            _ => Value::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => meter.text(text)?,
        Json::Array(items) => {
            meter.bytes(items.len() * size_of::<Value>())?;
            let items: Outcome<Vec<Value>> =
                items.iter().map(|item| from_json(meter, item, depth + 1)).collect();
            Value::list(meter, items?)?
        }
        Json::Object(map) => {
            let mut pairs = Vec::new();
            for (key, item) in map {
                meter.bytes(4 * size_of::<Value>())?;
                pairs.push((meter.text(key)?, from_json(meter, item, depth + 1)?));
            }
            Value::Dict(Arc::new(Dict::new(meter, pairs)?))
        }
    })
}

/// `tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
#[inline(never)]
pub(crate) fn tojson(meter: &mut Meter, value: &Value, args: Args) -> Outcome<Value> {
    let [ensure_ascii, indent, separators, sort_keys] =
        args.bind("tojson", ["ensure_ascii", "indent", "separators", "sort_keys"])?;
    let indent = match indent {
        None | Some(Value::None) => None,
        Some(Value::Str(text)) => Some(text.text),
        Some(Value::Int(width)) if width <= 64 => {
            Some(" ".repeat(usize::try_from(width).unwrap_or(0)).into())
        }
        Some(Value::Bool(one)) => Some(" ".repeat(usize::from(one)).into()),
        Some(other) => return fault(format!("tojson: indent is a {} or more than 64", other.type_name())),
    };
    let (between, colon) = match separators.as_ref().and_then(Value::items) {
        Some([Value::Str(between), Value::Str(colon)]) => (between.text.clone(), colon.text.clone()),
        Some(_) => return fault("tojson: separators are not two strings"),
        None if indent.is_some() => (",".into(), ": ".into()),
        None => (", ".into(), ": ".into()),
    };
    let mut writer = Writer {
        meter,
        out: TextBuilder::default(),
        ensure_ascii: ensure_ascii.is_some_and(|value| value.is_true()),
        sort_keys: sort_keys.is_some_and(|value| value.is_true()),
        indent,
        between,
        colon,
    };
    writer.value(value, 1)?;
    let Writer { out, .. } = writer;
    out.into_value(meter)
}

struct Writer<'m> {
    meter: &'m mut Meter,
    out: TextBuilder,
    ensure_ascii: bool,
    sort_keys: bool,
    indent: Option<Arc<str>>,
    between: Arc<str>,
    colon: Arc<str>,
}

impl Writer<'_> {
    fn push(&mut self, text: &str) -> Outcome<()> {
        self.out.push(self.meter, text)
    }

    fn line(&mut self, level: usize) -> Outcome<()> {
        if let Some(indent) = self.indent.clone() {
            self.push("\n")?;
            for _ in 0..level {
                self.push(&indent)?;
            }
        }
        Ok(())
    }

    fn value(&mut self, value: &Value, level: usize) -> Outcome<()> {
        self.meter.steps(1)?;
        match value {
            Value::None => self.push("null"),
            Value::Bool(b) => self.push(if *b { "true" } else { "false" }),
            Value::Int(i) => self.push(&i.to_string()),
            Value::Float(f) => self.push(&number(*f)),
            Value::Str(text) => self.string(&text.text),
            Value::List(seq) | Value::Tuple(seq) => {
                if seq.items.is_empty() {
                    return self.push("[]");
                }
                self.push("[")?;
                for (at, item) in seq.items.iter().enumerate() {
                    self.separate(at, level)?;
                    self.value(item, level + 1)?;
                }
                self.line(level - 1)?;
                self.push("]")
            }
            Value::Dict(dict) => self.dict(dict, level),
            Value::Undefined(name) => fault(format!("tojson: `{name}` is undefined")),
            other => fault(format!("tojson: a {} can't be written as JSON", other.type_name())),
        }
    }

    fn separate(&mut self, at: usize, level: usize) -> Outcome<()> {
        if at > 0 {
            let between = self.between.clone();
            self.push(&between)?;
        }
        self.line(level)
    }

    fn dict(&mut self, dict: &Dict, level: usize) -> Outcome<()> {
        if dict.entries.is_empty() {
            return self.push("{}");
        }
        self.meter.bytes(dict.entries.len() * 3 * size_of::<usize>())?;
        let mut order: Vec<&(Value, Value)> = dict.entries.iter().collect();
        if self.sort_keys {
            let meter = &mut *self.meter;
            sort_by(&mut order, &mut |a, b| Ok(a.0.compare(meter, &b.0)?.is_some_and(|o| o.is_lt())))?;
        }
        self.push("{")?;
        for (at, (key, value)) in order.into_iter().enumerate() {
            self.separate(at, level)?;
            match key {
                Value::Str(text) => self.string(&text.text)?,
                Value::Int(_) | Value::Float(_) | Value::Bool(_) | Value::None => {
                    self.push("\"")?;
                    self.value(key, level)?;
                    self.push("\"")?;
                }
                other => return fault(format!("tojson: a {} can't be a key", other.type_name())),
            }
            let colon = self.colon.clone();
            self.push(&colon)?;
            self.value(value, level + 1)?;
        }
        self.line(level - 1)?;
        self.push("}")
    }

    fn string(&mut self, text: &str) -> Outcome<()> {
        self.push("\"")?;
        let ensure_ascii = self.ensure_ascii;
        self.out.push_escaped(self.meter, text, |c, escaped| match c {
            '"' => escaped.push_str("\\\""),
            '\\' => escaped.push_str("\\\\"),
            '\n' => escaped.push_str("\\n"),
            '\r' => escaped.push_str("\\r"),
            '\t' => escaped.push_str("\\t"),
            '\x08' => escaped.push_str("\\b"),
            '\x0c' => escaped.push_str("\\f"),
            '\0'..='\x1f' => {
                escaped.push_str("\\u");
                print::push_hex(escaped, u32::from(c), 4);
            }
            _ if ensure_ascii && c > '\x7e' => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    escaped.push_str("\\u");
                    print::push_hex(escaped, u32::from(*unit), 4);
                }
            }
            _ => {}
        })?;
        self.push("\"")
    }
}

fn number(value: f64) -> String {
    if value.is_nan() {
        "NaN".into()
    } else if value.is_infinite() {
        if value > 0.0 { "Infinity".into() } else { "-Infinity".into() }
    } else {
        print::float(value)
    }
}

impl From<&Arc<str>> for Text {
    fn from(text: &Arc<str>) -> Self {
        Self { text: text.clone(), safe: false }
    }
}
