//! The values a template works on, with Python's truth, equality and order.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering as Atomic};

use super::ast::MacroDef;
use super::meter::{Meter, Outcome, fault};

/// A string. `safe` is Jinja's `Markup`: adding to it escapes the other side, even in chat templates.
#[derive(Debug, Clone)]
pub(crate) struct Text {
    pub(crate) text: Arc<str>,
    pub(crate) safe: bool,
}

impl Text {
    pub(crate) fn plain(text: &str) -> Self {
        Self { text: text.into(), safe: false }
    }
}

/// Items, and how deep they nest: bounded when built, so that comparing, printing and dropping can recurse.
#[derive(Debug)]
pub(crate) struct Seq {
    pub(crate) items: Vec<Value>,
    depth: usize,
}

/// A mapping in the order of insertion.
#[derive(Debug, Default)]
pub(crate) struct Dict {
    pub(crate) entries: Vec<(Value, Value)>,
    by_text: HashMap<Arc<str>, usize>,
    depth: usize,
}

/// A Python iterator: always true, has no length, and is empty once read.
#[derive(Debug)]
pub(crate) struct Stream {
    seq: Seq,
    next: AtomicUsize,
}

#[derive(Debug)]
pub(crate) struct MacroValue {
    pub(crate) def: Arc<MacroDef>,
    /// Index and identity of the scope the macro was defined in: its free names are looked up there.
    pub(crate) scope: (usize, u64),
}

#[derive(Debug)]
pub(crate) struct LoopState {
    pub(crate) items: Seq,
    pub(crate) index: AtomicUsize,
    pub(crate) depth: usize,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Range {
    pub(crate) start: i128,
    pub(crate) stop: i128,
    pub(crate) step: i128,
    pub(crate) len: usize,
}

impl Range {
    pub(crate) fn get(&self, index: usize) -> Value {
        Value::Int(self.start.saturating_add(self.step.saturating_mul(index as i128)))
    }
}

#[derive(Debug, Clone)]
pub(crate) enum Value {
    /// The name that was looked up in vain.
    Undefined(Arc<str>),
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(Text),
    List(Arc<Seq>),
    Tuple(Arc<Seq>),
    Dict(Arc<Dict>),
    /// `dict_keys`, `dict_values` or `dict_items`, by that name.
    View(&'static str, Arc<Seq>),
    Range(Range),
    Stream(Arc<Stream>),
    /// Index into the render's namespaces: by number, so that a namespace holding itself is no leak.
    Namespace(usize),
    Macro(Arc<MacroValue>),
    Loop(Arc<LoopState>),
    /// A global function, by name.
    Function(&'static str),
    /// A method looked up but not called; `defined` and true, and nothing else can be done with it.
    Method(&'static str),
}

impl Seq {
    pub(crate) fn new(meter: &mut Meter, items: Vec<Value>) -> Outcome<Self> {
        let depth = 1 + items.iter().map(Value::depth).max().unwrap_or(0);
        check_depth(meter, depth)?;
        Ok(Self { items, depth })
    }
}

fn check_depth(meter: &mut Meter, depth: usize) -> Outcome<()> {
    if depth > meter.max_depth() {
        return fault(format!("lists and mappings nest more than {} deep", meter.max_depth()));
    }
    Ok(())
}

impl Dict {
    pub(crate) fn new(meter: &mut Meter, pairs: Vec<(Value, Value)>) -> Outcome<Self> {
        // The index costs about as much again as the entries.
        meter.bytes(pairs.len().saturating_mul(4 * size_of::<Value>()))?;
        let mut dict = Self { entries: Vec::with_capacity(pairs.len()), ..Self::default() };
        for (key, value) in pairs {
            meter.steps(1)?;
            let (key_depth, value_depth) = (key.depth(), value.depth());
            dict.depth = dict.depth.max(1 + key_depth).max(1 + value_depth);
            if let Some(at) = dict.find(meter, &key)? {
                dict.entries[at].1 = value;
                continue;
            }
            match &key {
                Value::Str(text) => {
                    dict.by_text.insert(text.text.clone(), dict.entries.len());
                }
                _ => key.check_hashable()?,
            }
            dict.entries.push((key, value));
        }
        check_depth(meter, dict.depth)?;
        Ok(dict)
    }

    fn find(&self, meter: &mut Meter, key: &Value) -> Outcome<Option<usize>> {
        if let Value::Str(text) = key {
            meter.scan(text.text.len())?;
            return Ok(self.by_text.get(&text.text).copied());
        }
        if self.by_text.len() == self.entries.len() {
            return Ok(None);
        }
        for (at, (have, _)) in self.entries.iter().enumerate() {
            if !matches!(have, Value::Str(_)) && have.equals(meter, key)? {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    pub(crate) fn get(&self, meter: &mut Meter, key: &Value) -> Outcome<Option<&Value>> {
        Ok(self.find(meter, key)?.map(|at| &self.entries[at].1))
    }

    pub(crate) fn get_text(&self, key: &str) -> Option<&Value> {
        self.by_text.get(key).map(|&at| &self.entries[at].1)
    }
}

impl Stream {
    pub(crate) fn take_next(&self) -> Option<Value> {
        let at = self.next.fetch_add(1, Atomic::Relaxed);
        self.seq.items.get(at).cloned()
    }

    fn take_rest(&self) -> &[Value] {
        let at = self.next.swap(self.seq.items.len(), Atomic::Relaxed);
        self.seq.items.get(at..).unwrap_or(&[])
    }
}

impl Value {
    pub(crate) fn undefined(name: &str) -> Self {
        Self::Undefined(name.into())
    }

    pub(crate) fn list(meter: &mut Meter, items: Vec<Value>) -> Outcome<Self> {
        Ok(Self::List(Arc::new(Seq::new(meter, items)?)))
    }

    pub(crate) fn tuple(meter: &mut Meter, items: Vec<Value>) -> Outcome<Self> {
        meter.bytes(items.len() * size_of::<Self>())?;
        Ok(Self::Tuple(Arc::new(Seq::new(meter, items)?)))
    }

    pub(crate) fn stream(meter: &mut Meter, items: Vec<Value>) -> Outcome<Self> {
        Ok(Self::Stream(Arc::new(Stream { seq: Seq::new(meter, items)?, next: AtomicUsize::new(0) })))
    }

    fn depth(&self) -> usize {
        match self {
            Self::List(seq) | Self::Tuple(seq) | Self::View(_, seq) => seq.depth,
            Self::Dict(dict) => dict.depth,
            Self::Stream(stream) => stream.seq.depth,
            Self::Loop(state) => state.items.depth,
            _ => 0,
        }
    }

    /// Whether Python would take it as a key.
    pub(crate) fn check_hashable(&self) -> Outcome<()> {
        match self {
            Self::Tuple(seq) => seq.items.iter().try_for_each(Self::check_hashable),
            Self::List(_) | Self::Dict(_) | Self::View(..) => {
                fault(format!("a {} can't be a key of a mapping", self.type_name()))
            }
            _ => Ok(()),
        }
    }

    /// What Python calls the type.
    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Self::Undefined(_) => "Undefined",
            Self::None => "NoneType",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Float(_) => "float",
            Self::Str(_) => "str",
            Self::List(_) => "list",
            Self::Tuple(_) => "tuple",
            Self::Dict(_) => "dict",
            Self::View(name, _) => name,
            Self::Range(_) => "range",
            Self::Stream(_) => "generator",
            Self::Namespace(_) => "Namespace",
            Self::Macro(_) => "Macro",
            Self::Loop(_) => "LoopContext",
            Self::Function(_) => "function",
            Self::Method(_) => "method",
        }
    }

    pub(crate) fn is_true(&self) -> bool {
        match self {
            Self::Undefined(_) | Self::None => false,
            Self::Bool(b) => *b,
            Self::Int(i) => *i != 0,
            Self::Float(f) => *f != 0.0,
            Self::Str(text) => !text.text.is_empty(),
            Self::List(seq) | Self::Tuple(seq) | Self::View(_, seq) => !seq.items.is_empty(),
            Self::Dict(dict) => !dict.entries.is_empty(),
            Self::Range(range) => range.len != 0,
            _ => true,
        }
    }

    pub(crate) fn as_str(&self) -> Option<&str> {
        match self {
            Self::Str(text) => Some(&text.text),
            _ => None,
        }
    }

    /// Integers and booleans, which Python counts among them.
    pub(crate) fn as_int(&self) -> Option<i128> {
        match self {
            Self::Int(i) => Some(*i),
            Self::Bool(b) => Some(i128::from(*b)),
            _ => None,
        }
    }

    pub(crate) fn as_float(&self) -> Option<f64> {
        match self {
            Self::Float(f) => Some(*f),
            _ => self.as_int().map(|i| i as f64),
        }
    }

    pub(crate) fn items(&self) -> Option<&[Value]> {
        match self {
            Self::List(seq) | Self::Tuple(seq) | Self::View(_, seq) => Some(&seq.items),
            _ => None,
        }
    }

    pub(crate) fn length(&self, meter: &mut Meter) -> Outcome<usize> {
        Ok(match self {
            Self::Undefined(_) => 0,
            Self::Str(text) => {
                meter.scan(text.text.len())?;
                text.text.chars().count()
            }
            Self::Dict(dict) => dict.entries.len(),
            Self::Range(range) => range.len,
            Self::Loop(state) => state.items.items.len(),
            _ => match self.items() {
                Some(items) => items.len(),
                None => return fault(format!("a {} has no length", self.type_name())),
            },
        })
    }

    /// All items, as Python's `list(x)` gives them. Reading a stream empties it.
    pub(crate) fn iterate(&self, meter: &mut Meter) -> Outcome<Vec<Value>> {
        let count = match self {
            Self::Undefined(_) => return Ok(Vec::new()),
            Self::Str(text) => text.text.len(),
            Self::Stream(stream) => stream.seq.items.len(),
            _ => {
                self.length(meter).or_else(|_| fault(format!("a {} can't be iterated", self.type_name())))?
            }
        };
        meter.steps(count as u64)?;
        meter.bytes(count.saturating_mul(size_of::<Value>()))?;
        Ok(match self {
            Self::Str(text) => {
                // A shared string of one character takes 16 bytes of counters beside its text.
                meter.bytes(text.text.len().saturating_mul(24))?;
                let mut buffer = [0; 4];
                text.text
                    .chars()
                    .map(|c| Self::Str(Text { text: Arc::from(&*c.encode_utf8(&mut buffer)), safe: false }))
                    .collect()
            }
            Self::Dict(dict) => dict.entries.iter().map(|(key, _)| key.clone()).collect(),
            Self::Range(range) => (0..range.len).map(|at| range.get(at)).collect(),
            Self::Stream(stream) => stream.take_rest().to_vec(),
            Self::Loop(_) => return fault("`loop` can't be iterated"),
            _ => self.items().unwrap_or(&[]).to_vec(),
        })
    }

    pub(crate) fn equals(&self, meter: &mut Meter, other: &Value) -> Outcome<bool> {
        meter.steps(1)?;
        if let (Some(a), Some(b)) = (self.as_int(), other.as_int()) {
            return Ok(a == b);
        }
        if let (Some(a), Some(b)) = (self.as_float(), other.as_float()) {
            return Ok(a == b);
        }
        Ok(match (self, other) {
            (Self::Undefined(_), Self::Undefined(_)) | (Self::None, Self::None) => true,
            (Self::Str(a), Self::Str(b)) => {
                if a.text.len() == b.text.len() {
                    meter.scan(a.text.len())?;
                }
                a.text == b.text
            }
            (Self::List(a), Self::List(b)) | (Self::Tuple(a), Self::Tuple(b)) => {
                if a.items.len() != b.items.len() {
                    return Ok(false);
                }
                for (x, y) in a.items.iter().zip(&b.items) {
                    if !x.equals(meter, y)? {
                        return Ok(false);
                    }
                }
                true
            }
            (Self::Dict(a), Self::Dict(b)) => {
                if a.entries.len() != b.entries.len() {
                    return Ok(false);
                }
                for (key, value) in &a.entries {
                    match b.get(meter, key)? {
                        Some(other) if value.equals(meter, other)? => {}
                        _ => return Ok(false),
                    }
                }
                true
            }
            (Self::Range(a), Self::Range(b)) => a == b,
            (Self::Namespace(a), Self::Namespace(b)) => a == b,
            (Self::Function(a), Self::Function(b)) => a == b,
            (Self::Macro(a), Self::Macro(b)) => Arc::ptr_eq(a, b),
            (Self::Loop(a), Self::Loop(b)) => Arc::ptr_eq(a, b),
            (Self::Stream(a), Self::Stream(b)) => Arc::ptr_eq(a, b),
            _ => false,
        })
    }

    /// Python's `<` and its kin; values of different kinds have no order.
    pub(crate) fn compare(&self, meter: &mut Meter, other: &Value) -> Outcome<Option<Ordering>> {
        meter.steps(1)?;
        if let (Some(a), Some(b)) = (self.as_int(), other.as_int()) {
            return Ok(Some(a.cmp(&b)));
        }
        if let (Some(a), Some(b)) = (self.as_float(), other.as_float()) {
            return Ok(a.partial_cmp(&b));
        }
        match (self, other) {
            (Self::Str(a), Self::Str(b)) => {
                meter.scan(a.text.len().min(b.text.len()))?;
                Ok(Some(a.text.cmp(&b.text)))
            }
            (Self::List(a), Self::List(b)) | (Self::Tuple(a), Self::Tuple(b)) => {
                for (x, y) in a.items.iter().zip(&b.items) {
                    if !x.equals(meter, y)? {
                        return x.compare(meter, y);
                    }
                }
                Ok(Some(a.items.len().cmp(&b.items.len())))
            }
            _ => fault(format!("a {} and a {} have no order", self.type_name(), other.type_name())),
        }
    }
}

/// A stable merge sort whose comparison may fail; the standard sort may panic when an order is inconsistent,
/// and NaN or an exhausted budget make it so.
pub(crate) fn sort_by<T: Clone>(
    items: &mut [T],
    less: &mut impl FnMut(&T, &T) -> Outcome<bool>,
) -> Outcome<()> {
    if items.len() < 2 {
        return Ok(());
    }
    let (left, right) = items.split_at_mut(items.len() / 2);
    sort_by(left, less)?;
    sort_by(right, less)?;
    let (left, right) = (left.to_vec(), right.to_vec());
    let (mut l, mut r) = (left.into_iter().peekable(), right.into_iter().peekable());
    for slot in items {
        let take_right = match (l.peek(), r.peek()) {
            (Some(a), Some(b)) => less(b, a)?,
            (None, _) => true,
            (_, None) => false,
        };
        if let Some(item) = if take_right { r.next() } else { l.next() } {
            *slot = item;
        }
    }
    Ok(())
}
