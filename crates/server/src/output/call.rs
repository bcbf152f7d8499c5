//! A call as a model wrote it in JSON.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

/// The longest name a function has; OpenAI's own limit is 64.
pub(super) const MAX_NAME_BYTES: usize = 256;

/// A function's name and its arguments, the text of a JSON object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) name: String,
    pub(super) args: String,
}

/// The calls in `text`, an object or a list of them: `{"name": .., "arguments": {..}}`, `parameters` instead of
/// `arguments`, or all of it one level down under `function`.
pub(super) fn read(text: &str) -> Option<Vec<Call>> {
    read_strictly(text).or_else(|| read_strictly(&with_escapes(text)?))
}

/// The function that is called by a text that ends with the brace that opens its arguments, and that `closing` would
/// close. `None` where that cannot be known yet, as where the name comes behind the arguments.
pub(super) fn read_head(text: &str, closing: &str) -> Option<String> {
    // Those in use are below 100 bytes.
    const MAX_HEAD_BYTES: usize = 1 << 10;
    if text.len() > MAX_HEAD_BYTES {
        return None;
    }
    let before = text.strip_suffix('{')?.trim_end().strip_suffix(':')?.trim_end();
    ["\"arguments\"", "\"parameters\""].iter().find(|key| before.ends_with(**key))?;
    // Read as a call with arguments that are known again, so that no other object is taken for them.
    let known = "\"?\": 0}";
    let mut calls = read(&format!("{text}{known}{}", closing.strip_prefix('}')?))?;
    let call = calls.pop().filter(|call| calls.is_empty() && call.args.strip_prefix('{') == Some(known))?;
    Some(call.name)
}

/// Text that has to be the arguments themselves.
pub(super) fn read_args(text: &str) -> Option<String> {
    let text = text.trim();
    if text.is_empty() {
        return Some("{}".into());
    }
    let strictly = |text: &str| args_of(serde_json::from_str::<&RawValue>(text).ok()?);
    strictly(text).or_else(|| strictly(&with_escapes(text)?))
}

fn read_strictly(text: &str) -> Option<Vec<Call>> {
    if text.trim_start().starts_with('[') {
        let list: Vec<&RawValue> = serde_json::from_str(text).ok()?;
        let calls: Option<Vec<Call>> = list.into_iter().map(|call| read_one(call.get())).collect();
        return calls.filter(|calls| !calls.is_empty());
    }
    Some(vec![read_one(text)?])
}

type Fields<'a> = BTreeMap<String, &'a RawValue>;

fn read_one(text: &str) -> Option<Call> {
    let mut fields: Fields<'_> = serde_json::from_str(text).ok()?;
    if let Some(function) = fields.get("function").filter(|f| f.get().starts_with('{')) {
        fields = serde_json::from_str(function.get()).ok()?;
    }
    let name: String =
        serde_json::from_str(fields.get("name").or_else(|| fields.get("function"))?.get()).ok()?;
    if name.is_empty() || name.len() > MAX_NAME_BYTES {
        return None;
    }
    let args = match fields.get("arguments").or_else(|| fields.get("parameters")) {
        Some(args) => args_of(args)?,
        None => "{}".into(),
    };
    Some(Call { name, args })
}

/// Some models write the object as a string once more.
fn args_of(args: &RawValue) -> Option<String> {
    let text = args.get();
    match text.as_bytes().first()? {
        b'{' => Some(text.into()),
        b'"' => {
            let inner: String = serde_json::from_str(text).ok()?;
            let is_object = inner.trim_start().starts_with('{');
            (is_object && serde_json::from_str::<&RawValue>(inner.trim()).is_ok())
                .then(|| inner.trim().into())
        }
        _ if text == "null" => Some("{}".into()),
        _ => None,
    }
}

/// Line breaks and tabs inside strings as JSON wants them: models leave the backslash out now and then. `None` when
/// there was nothing to mend.
fn with_escapes(text: &str) -> Option<String> {
    let mut out = String::with_capacity(text.len() + 16);
    let (mut in_string, mut escaped) = (false, false);
    for c in text.chars() {
        push_mended(&mut out, c, in_string);
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = in_string,
            '"' => in_string = !in_string,
            _ => {}
        }
    }
    (out.len() > text.len()).then_some(out)
}

/// Appends `c`, escaped if it is a control character inside a string.
pub(super) fn push_mended(out: &mut String, c: char, in_string: bool) {
    match c {
        '\n' if in_string => out.push_str("\\n"),
        '\r' if in_string => out.push_str("\\r"),
        '\t' if in_string => out.push_str("\\t"),
        c if in_string && c < ' ' => out.push_str(&format!("\\u{:04x}", c as u32)),
        c => out.push(c),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip]
    fn calls_are_read_in_every_spelling_in_use() {
        for (text, expected) in [
            (r#"{"name": "f", "arguments": {"a": 1.0, "b": 1e400}}"#,       Some(r#"f {"a": 1.0, "b": 1e400}"#)),
            (r#"{"parameters": {"a": []}, "type": "function", "name":"f"}"#, Some(r#"f {"a": []}"#)),
            (r#"{"type": "function", "function": {"name": "f", "parameters": {}}}"#, Some("f {}")),
            (r#"{"function": "f", "arguments": {}}"#,                       Some("f {}")),
            (r#"{"name": "f", "arguments": "{\"a\": 1}"}"#,                 Some(r#"f {"a": 1}"#)),
            (r#"{"name": "f"}"#,                                            Some("f {}")),
            (r#"{"name": "f", "arguments": null}"#,                         Some("f {}")),
            ("{\"name\": \"f\", \"arguments\": {\"a\": \"x\n\ty\"}}",       Some(r#"f {"a": "x\n\ty"}"#)),
            (r#"[{"name": "f"}, {"name": "g", "arguments": {}}]"#,          Some("f {};g {}")),
            (r#"{"name": "f", "arguments": [1]}"#,                          None),
            (r#"{"name": "f", "arguments": {"a":}}"#,                       None),
            (r#"{"name": "", "arguments": {}}"#,                            None),
            (r#"{"name": 3, "arguments": {}}"#,                             None),
            (r#"{"answer": 42}"#,                                           None),
            (r#"[]"#,                                                       None),
        ] {
            let got = read(text).map(|calls| calls.iter().map(|c| format!("{} {}", c.name, c.args)).collect::<Vec<_>>().join(";"));
            assert_eq!(got.as_deref(), expected, "{text}");
        }
    }

    #[test]
    #[rustfmt::skip]
    fn a_call_is_known_where_its_arguments_open_if_its_name_stands_before_them() {
        for (text, closing, expected) in [
            (r#"{"name": "f", "arguments": {"#,                                  "}}",   Some("f")),
            ("{\"name\":\"f\",\n \"parameters\" :\n{",                         "}}",   Some("f")),
            (r#"{"type": "function", "function": {"name": "f", "parameters": {"#, "}}}",  Some("f")),
            (r#"[{"name": "f", "arguments": {"#,                                 "}}]",  Some("f")),
            (r#"{"name": "f", "x": {"#,                                          "}}",   None),
            (r#"{"name": "f", "x": {"arguments": {"#,                            "}}}",  None),
            (r#"{"arguments": {"#,                                               "}}",   None),
            (r#"{"arguments": {"name": "f", "arguments": {"#,                    "}}}",  None),
            (r#"[{"name": "f"}, {"name": "g", "arguments": {"#,                  "}}]",  None),
            (r#"{"name": 1, "arguments": {"#,                                    "}}",   None),
        ] {
            assert_eq!(read_head(text, closing).as_deref(), expected, "{text}");
        }
    }

    #[test]
    #[rustfmt::skip]
    fn arguments_alone_are_an_object_or_nothing() {
        for (text, expected) in [
            (" {\"a\": 1}\n", Some("{\"a\": 1}")), ("", Some("{}")), ("[1]", None), ("{", None), ("print(1)", None),
        ] {
            assert_eq!(read_args(text).as_deref(), expected, "{text}");
        }
    }
}
