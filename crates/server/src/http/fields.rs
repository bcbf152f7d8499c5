//! Reading a request's JSON field by field. What is read is honoured or refused by name; what is left at the end was
//! not known to us, and is named as ignored.

use std::fmt::Display;
use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use super::error::{ApiError, ApiResult};
use super::limits::MAX_IGNORED_NAMES;

/// The fields of an object that nobody has read yet. `null` is as good as absent, as in every API here.
#[derive(Debug)]
pub(crate) struct Fields {
    map: Map<String, Value>,
    /// Where the object stands in the request; empty for the request itself.
    path: String,
}

impl Fields {
    pub(crate) fn of_body(body: &[u8]) -> ApiResult<Self> {
        let value: Value = serde_json::from_slice(body).map_err(|e| {
            // Of serde_json's message only where and what kind: it may quote the text.
            let what = if e.is_eof() { "it ends too soon" } else { "it is malformed or nested too deeply" };
            let message = format!("the body is not JSON: {what} (line {}, column {})", e.line(), e.column());
            ApiError::new(super::error::Fault::Invalid, message).code("invalid_json")
        })?;
        match value {
            Value::Object(map) => Ok(Self { map, path: String::new() }),
            other => Err(ApiError::new(
                super::error::Fault::Invalid,
                format!("the body must be a JSON object, not {}", kind(&other)),
            )),
        }
    }

    /// An object inside the request, standing at `path`.
    pub(crate) fn of_value(value: Value, path: impl Into<String>) -> ApiResult<Self> {
        let path = path.into();
        match value {
            Value::Object(map) => Ok(Self { map, path }),
            other => Err(ApiError::field(path, format!("must be an object, not {}", kind(&other)))),
        }
    }

    /// The path of a field, for errors.
    pub(crate) fn at(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    pub(crate) fn error(&self, name: &str, problem: impl Display) -> ApiError {
        ApiError::field(self.at(name), problem)
    }

    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        // Order does not matter to anybody here, and this is the cheap removal.
        self.map.swap_remove(name).filter(|v| !v.is_null())
    }

    /// A look that leaves the field unread.
    pub(crate) fn peek(&self, name: &str) -> Option<&Value> {
        self.map.get(name).filter(|v| !v.is_null())
    }

    fn mismatch<T>(&self, name: &str, wanted: &str, got: &Value) -> ApiResult<T> {
        Err(self.error(name, format!("must be {wanted}, not {}", kind(got))))
    }

    pub(crate) fn bool(&mut self, name: &str) -> ApiResult<Option<bool>> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(b)) => Ok(Some(b)),
            Some(other) => self.mismatch(name, "true or false", &other),
        }
    }

    pub(crate) fn text(&mut self, name: &str) -> ApiResult<Option<String>> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => self.mismatch(name, "a string", &other),
        }
    }

    /// A string of at most so many bytes.
    pub(crate) fn short_text(&mut self, name: &str, most: usize) -> ApiResult<Option<String>> {
        match self.text(name)? {
            Some(text) if text.len() > most => {
                Err(self.error(name, format!("has {} bytes; at most {most} are accepted", text.len())))
            }
            text => Ok(text),
        }
    }

    pub(crate) fn need_text(&mut self, name: &str) -> ApiResult<String> {
        self.text(name)?.ok_or_else(|| self.error(name, "is missing"))
    }

    pub(crate) fn number(&mut self, name: &str, range: RangeInclusive<f64>) -> ApiResult<Option<f32>> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let Some(x) = value.as_f64() else { return self.mismatch(name, "a number", &value) };
        if !range.contains(&x) {
            return Err(
                self.error(name, format!("{x} must be between {} and {}", range.start(), range.end()))
            );
        }
        Ok(Some(x as f32))
    }

    pub(crate) fn integer(&mut self, name: &str, range: RangeInclusive<i64>) -> ApiResult<Option<i64>> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let Some(n) = whole(&value) else { return self.mismatch(name, "a whole number", &value) };
        if !range.contains(&n) {
            return Err(
                self.error(name, format!("{n} must be between {} and {}", range.start(), range.end()))
            );
        }
        Ok(Some(n))
    }

    pub(crate) fn list(&mut self, name: &str, most: usize) -> ApiResult<Option<Vec<Value>>> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Array(list)) if list.len() > most => {
                Err(self.error(name, format!("has {} entries; at most {most} are accepted", list.len())))
            }
            Some(Value::Array(list)) => Ok(Some(list)),
            Some(other) => self.mismatch(name, "a list", &other),
        }
    }

    pub(crate) fn object(&mut self, name: &str) -> ApiResult<Option<Fields>> {
        let path = self.at(name);
        self.take(name).map(|value| Fields::of_value(value, path)).transpose()
    }

    pub(crate) fn map(&mut self, name: &str) -> ApiResult<Option<Map<String, Value>>> {
        Ok(self.object(name)?.map(|fields| fields.map))
    }

    /// A field that would change the text and that we cannot honour: refused unless it says what we do anyway.
    pub(crate) fn refuse_unless(&mut self, name: &str, neutral: &[Value], instead: &str) -> ApiResult<()> {
        match self.take(name) {
            Some(value) if !neutral.iter().any(|n| same(n, &value)) => {
                Err(self.error(name, format!("is not supported; {instead}")).code("unsupported_parameter"))
            }
            _ => Ok(()),
        }
    }

    /// What nobody read: unknown, or known and without effect on the text.
    pub(crate) fn names_left(&self) -> Vec<String> {
        let names = self.map.iter().filter(|(_, v)| !v.is_null()).map(|(name, _)| name);
        names.map(|name| self.at(name)).collect()
    }
}

/// What a value is, in words; never what it says.
pub(crate) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// `1.0` is a whole number too: some clients write floats only.
fn whole(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| {
        let x = value.as_f64()?;
        (x.fract() == 0.0 && x.abs() < 9e15).then_some(x as i64)
    })
}

fn same(a: &Value, b: &Value) -> bool {
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => a == b,
        _ => a == b,
    }
}

/// Names for a header: printable, short, and not too many.
pub(crate) fn header_text(names: &[String]) -> Option<String> {
    let clean = |name: &String| -> String {
        let fits = |c: &char| c.is_ascii_alphanumeric() || "_-.[]".contains(*c);
        name.chars().filter(fits).take(64).collect()
    };
    let mut shown: Vec<String> = names.iter().map(clean).filter(|n| !n.is_empty()).collect();
    shown.sort();
    shown.dedup();
    let more = shown.len().saturating_sub(MAX_IGNORED_NAMES);
    shown.truncate(MAX_IGNORED_NAMES);
    if more > 0 {
        shown.push(format!("and-{more}-more"));
    }
    (!shown.is_empty()).then(|| shown.join(","))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fields(value: Value) -> Fields {
        Fields::of_value(value, "").unwrap()
    }

    #[track_caller]
    fn refused<T: std::fmt::Debug>(result: ApiResult<T>, param: &str, message: &str) {
        let error = result.unwrap_err();
        assert_eq!((error.param.as_deref(), error.message.as_str()), (Some(param), message));
    }

    #[test]
    fn values_of_the_wrong_kind_or_range_are_refused_by_name() {
        refused(fields(json!({"a": "x"})).bool("a"), "a", "`a`: must be true or false, not a string");
        refused(
            fields(json!({"a": 1.5})).integer("a", 0..=9),
            "a",
            "`a`: must be a whole number, not a number",
        );
        refused(fields(json!({"a": -1})).integer("a", 0..=9), "a", "`a`: -1 must be between 0 and 9");
        refused(fields(json!({"a": 2.5})).number("a", 0.0..=2.0), "a", "`a`: 2.5 must be between 0 and 2");
        refused(fields(json!({"a": [1, 2]})).list("a", 1), "a", "`a`: has 2 entries; at most 1 are accepted");
        refused(
            fields(json!({"a": "xyz"})).short_text("a", 2),
            "a",
            "`a`: has 3 bytes; at most 2 are accepted",
        );
        let mut inner = fields(json!({"a": {"b": 7}})).object("a").unwrap().unwrap();
        refused(inner.text("b"), "a.b", "`a.b`: must be a string, not a number");
    }

    #[test]
    fn null_is_absent_and_floats_may_be_whole() {
        let mut f = fields(json!({"a": null, "b": 3.0, "c": 1e300}));
        assert_eq!(f.integer("a", 0..=9), Ok(None));
        assert_eq!(f.integer("b", 0..=9), Ok(Some(3)));
        assert!(f.integer("c", 0..=9).is_err());
        assert!(f.names_left().is_empty());
    }

    #[test]
    fn what_cannot_be_honoured_is_refused_unless_it_asks_for_nothing() {
        for (value, accepted) in
            [(json!(1), true), (json!(1.0), true), (json!(null), true), (json!(2), false)]
        {
            let done = fields(json!({"best_of": value})).refuse_unless("best_of", &[json!(1)], "use n");
            assert_eq!(done.is_ok(), accepted, "{value}");
        }
    }

    #[test]
    fn bodies_that_are_no_objects_say_so_without_quoting_them() {
        for body in ["", "{", "nonsense SECRET", "[1]", "\"SECRET\"", &"[".repeat(100_000)] {
            let error = Fields::of_body(body.as_bytes()).unwrap_err();
            assert!(!error.message.contains("SECRET"), "{}", error.message);
        }
    }

    #[test]
    fn ignored_names_make_a_short_clean_header() {
        let names: Vec<String> = ["b\r\nx: y", "a", "a", "ü"].iter().map(|s| s.to_string()).collect();
        assert_eq!(header_text(&names).as_deref(), Some("a,bxy"));
        assert_eq!(header_text(&[]), None);
        let many: Vec<String> = (0..100).map(|i| format!("field{i:03}{}", "x".repeat(200))).collect();
        assert!(header_text(&many).unwrap().len() < 40 * 66);
    }
}
