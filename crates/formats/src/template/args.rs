//! The arguments of a call, and their matching to parameters.

use std::sync::Arc;

use super::meter::{Outcome, fault};
use super::value::Value;

#[derive(Debug, Default)]
pub(crate) struct Args {
    pub(crate) positional: Vec<Value>,
    pub(crate) named: Vec<(Arc<str>, Value)>,
}

impl Args {
    /// One slot a parameter, filled by position or name.
    pub(crate) fn bind<const N: usize>(self, what: &str, params: [&str; N]) -> Outcome<[Option<Value>; N]> {
        if self.positional.len() > N {
            return fault(format!(
                "{what} takes at most {N} arguments, {} were given",
                self.positional.len()
            ));
        }
        let mut slots = [const { None }; N];
        for (slot, value) in slots.iter_mut().zip(self.positional) {
            *slot = Some(value);
        }
        for (name, value) in self.named {
            match params.iter().position(|param| *param == &*name) {
                Some(at) if slots[at].is_none() => slots[at] = Some(value),
                Some(_) => return fault(format!("{what}: the argument `{name}` is given twice")),
                None => return fault(format!("{what} has no argument `{name}`")),
            }
        }
        Ok(slots)
    }
}

/// The argument, which has to be there.
pub(crate) fn required(what: &str, name: &str, value: Option<Value>) -> Outcome<Value> {
    match value {
        Some(value) => Ok(value),
        None => fault(format!("{what}: the argument `{name}` is missing")),
    }
}

pub(crate) fn is_true(value: Option<Value>) -> bool {
    value.is_some_and(|value| value.is_true())
}

pub(crate) fn text_of<'v>(what: &str, value: &'v Value) -> Outcome<&'v str> {
    match value.as_str() {
        Some(text) => Ok(text),
        None => fault(format!("{what} wants a string, not a {}", value.type_name())),
    }
}

pub(crate) fn int_of(what: &str, value: &Value) -> Outcome<i128> {
    match value.as_int() {
        Some(value) => Ok(value),
        None => fault(format!("{what} wants an integer, not a {}", value.type_name())),
    }
}
