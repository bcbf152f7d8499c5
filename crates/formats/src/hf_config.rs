//! `config.json` of a Hugging Face folder: typed access by key, lenient where writers differ, with errors that name
//! the file, the full key and what was found.

use std::path::Path;

use serde_json::{Map, Value};

use crate::error::quoted;
use crate::{Bytes, Error, Result};

/// Published ones have a few kilobytes. A parsed value takes up to 16 times its text.
const MAX_BYTES: usize = 4 << 20;

/// A configuration, or a section of one.
#[derive(Clone, Debug)]
pub struct HfConfig {
    file: String,
    /// `rope_parameters.` in that section, empty at the top.
    prefix: String,
    object: Map<String, Value>,
}

/// Numbers beyond this are not exact in the `f64` that JSON readers use.
const MAX_EXACT: f64 = (1u64 << 53) as f64;

fn as_u64(v: &Value) -> Option<u64> {
    v.as_u64().or_else(|| {
        let v = v.as_f64()?;
        ((0.0..=MAX_EXACT).contains(&v) && v.fract() == 0.0).then_some(v as u64)
    })
}

/// A value in words, short.
fn describe(v: &Value) -> String {
    match v {
        Value::Null => "null".into(),
        Value::Bool(v) => v.to_string(),
        Value::Number(v) => v.to_string(),
        Value::String(v) => format!("string {}", quoted(v)),
        Value::Array(v) => format!("a list of {}", v.len()),
        Value::Object(_) => "an object".into(),
    }
}

impl HfConfig {
    /// Reads `config.json` in `folder`.
    pub fn open(folder: &Path) -> Result<Self> {
        let path = folder.join("config.json");
        Self::from_json(&path.display().to_string(), &Bytes::map(&path)?)
    }

    pub fn from_json(name: &str, json: &[u8]) -> Result<Self> {
        let invalid = |problem: String| Error::invalid(name, "JSON", problem);
        if json.len() > MAX_BYTES {
            return Err(invalid(format!("{} bytes long; at most {MAX_BYTES} are read", json.len())));
        }
        match serde_json::from_slice(json) {
            Ok(Value::Object(object)) => Ok(Self { file: name.into(), prefix: String::new(), object }),
            Ok(other) => Err(invalid(format!("is {}, expected an object", describe(&other)))),
            Err(e) => Err(invalid(quoted(&e.to_string()).trim_matches('`').to_owned())),
        }
    }

    /// The file, for messages.
    pub fn name(&self) -> &str {
        &self.file
    }

    /// The nested object `key`, None when absent or something else.
    pub fn section(&self, key: &str) -> Option<Self> {
        let object = self.object.get(key)?.as_object()?.clone();
        Some(Self { file: self.file.clone(), prefix: format!("{}{key}.", self.prefix), object })
    }

    /// The part that describes the language model: `text_config` of a multimodal model, else all of it.
    pub fn text(&self) -> Self {
        self.section("text_config").unwrap_or_else(|| self.clone())
    }

    /// Whether the key is there and not null.
    pub fn has(&self, key: &str) -> bool {
        self.value(key).is_some()
    }

    /// The keys that are not null.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.object.iter().filter(|(_, v)| !v.is_null()).map(|(k, _)| k.as_str())
    }

    /// The value in words, short enough for a message.
    pub fn shown(&self, key: &str) -> String {
        self.object.get(key).map_or_else(|| "missing".into(), describe)
    }

    /// An error about a key of this section, for checks made elsewhere.
    pub fn invalid(&self, key: &str, problem: impl Into<String>) -> Error {
        Error::invalid(&self.file, format!("key {}", quoted(&format!("{}{key}", self.prefix))), problem)
    }

    fn value(&self, key: &str) -> Option<&Value> {
        self.object.get(key).filter(|v| !v.is_null())
    }

    fn get<'a, T>(
        &'a self,
        key: &str,
        wanted: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let unfit = || self.invalid(key, format!("is {}, expected {wanted}", describe(value)));
        read(value).map(Some).ok_or_else(unfit)
    }

    fn get_list<T>(
        &self,
        key: &str,
        wanted: &str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<Vec<T>>> {
        let wanted_list = format!("a list of {wanted}s");
        let Some(list) = self.get(key, &wanted_list, Value::as_array)? else { return Ok(None) };
        let unfit = |(i, v): (usize, _)| {
            self.invalid(key, format!("entry {i} is {}, expected a {wanted}", describe(v)))
        };
        let entries = list.iter().enumerate().map(|(i, v)| read(v).ok_or_else(|| unfit((i, v))));
        entries.collect::<Result<_>>().map(Some)
    }

    fn need<T>(&self, key: &str, found: Option<T>) -> Result<T> {
        found.ok_or_else(|| self.invalid(key, "missing, and this model needs it"))
    }

    /// A whole number; 4096.0 is one.
    pub fn get_u64(&self, key: &str) -> Result<Option<u64>> {
        self.get(key, "a whole number that is not negative", as_u64)
    }

    pub fn need_u64(&self, key: &str) -> Result<u64> {
        self.need(key, self.get_u64(key)?)
    }

    pub fn get_f64(&self, key: &str) -> Result<Option<f64>> {
        self.get(key, "a number", Value::as_f64)
    }

    pub fn need_f64(&self, key: &str) -> Result<f64> {
        self.need(key, self.get_f64(key)?)
    }

    pub fn get_bool(&self, key: &str) -> Result<Option<bool>> {
        self.get(key, "true or false", Value::as_bool)
    }

    pub fn need_bool(&self, key: &str) -> Result<bool> {
        self.need(key, self.get_bool(key)?)
    }

    pub fn get_str(&self, key: &str) -> Result<Option<&str>> {
        self.get(key, "a string", Value::as_str)
    }

    pub fn need_str(&self, key: &str) -> Result<&str> {
        self.need(key, self.get_str(key)?)
    }

    pub fn get_u64_list(&self, key: &str) -> Result<Option<Vec<u64>>> {
        self.get_list(key, "whole number", as_u64)
    }

    pub fn need_u64_list(&self, key: &str) -> Result<Vec<u64>> {
        self.need(key, self.get_u64_list(key)?)
    }

    pub fn get_str_list(&self, key: &str) -> Result<Option<Vec<String>>> {
        self.get_list(key, "string", |v| v.as_str().map(str::to_owned))
    }

    pub fn need_str_list(&self, key: &str) -> Result<Vec<String>> {
        self.need(key, self.get_str_list(key)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QWEN: &[u8] = br#"{
        "architectures": ["Qwen3_5ForConditionalGeneration"], "torch_dtype": null, "hidden_size": 4096.0,
        "text_config": {"hidden_size": 512, "eps": 1e-6, "tied": true, "act": "silu", "eos_token_id": [1, 2.0],
            "rope_parameters": {"factor": "eight", "list": [1, "two"], "whole": 3, "half": 0.5, "below": -1}}
    }"#;

    fn config() -> HfConfig {
        HfConfig::from_json("config.json", QWEN).unwrap()
    }

    #[test]
    fn values_are_read_leniently_and_null_counts_as_absent() {
        let (top, text) = (config(), config().text());
        assert_eq!(top.need_u64("hidden_size").unwrap(), 4096);
        assert_eq!(top.get_str("torch_dtype").unwrap(), None);
        assert!(!top.has("torch_dtype") && top.has("hidden_size"));
        assert!(top.keys().any(|k| k == "hidden_size") && top.keys().all(|k| k != "torch_dtype"));
        assert_eq!((text.shown("act"), text.shown("absent")), ("string `silu`".into(), "missing".into()));
        assert_eq!(top.need_str_list("architectures").unwrap(), ["Qwen3_5ForConditionalGeneration"]);
        assert_eq!(text.need_u64("hidden_size").unwrap(), 512);
        assert_eq!(text.need_f64("eps").unwrap(), 1e-6);
        assert_eq!(text.need_f64("hidden_size").unwrap(), 512.0);
        assert!(text.need_bool("tied").unwrap());
        assert_eq!(text.need_str("act").unwrap(), "silu");
        assert_eq!(text.need_u64_list("eos_token_id").unwrap(), [1, 2]);
        assert_eq!(text.text().need_u64("hidden_size").unwrap(), 512, "text of text is itself");
        assert!(text.section("absent").is_none() && text.section("act").is_none());
    }

    #[test]
    fn errors_name_the_file_the_whole_key_and_what_was_found() {
        let rope = config().text().section("rope_parameters").unwrap();
        let at = "config.json: key `text_config.rope_parameters.";
        for (error, said) in [
            (rope.get_f64("factor").unwrap_err(), "factor`: is string `eight`, expected a number"),
            (
                rope.get_u64("half").unwrap_err(),
                "half`: is 0.5, expected a whole number that is not negative",
            ),
            (rope.get_u64("below").unwrap_err(), "below`: is -1, expected a whole number"),
            (
                rope.get_u64_list("list").unwrap_err(),
                "list`: entry 1 is string `two`, expected a whole number",
            ),
            (rope.get_str_list("whole").unwrap_err(), "whole`: is 3, expected a list of strings"),
            (rope.get_bool("whole").unwrap_err(), "whole`: is 3, expected true or false"),
            (rope.need_u64("absent").unwrap_err(), "absent`: missing, and this model needs it"),
        ] {
            let error = error.to_string();
            assert!(error.starts_with(&format!("{at}{said}")), "{error}");
        }
    }

    #[test]
    fn hostile_configurations_are_errors() {
        let deep = "[".repeat(1_000_000);
        let wide = format!("[{}1]", "1,".repeat(MAX_BYTES));
        for json in ["", "[]", "{", "nul", "{\"a\": 1e999}", "\"x\"", &deep, &wide, "{\"a\":\"\u{0}\"}"] {
            assert!(HfConfig::from_json("config.json", json.as_bytes()).is_err());
        }
        let big =
            HfConfig::from_json("c", br#"{"n": 18446744073709551616, "m": 1e17, "ok": 9007199254740992.0}"#);
        let big = big.unwrap();
        assert!(big.get_u64("n").is_err() && big.get_u64("m").is_err());
        assert_eq!(big.need_u64("ok").unwrap(), 1 << 53);
    }
}
