//! Arguments written as plain text between tags, back into JSON by the function's schema.

use serde_json::Value;

/// Whether [`json_from_text`] gives text whatever it says.
pub(crate) fn is_plain_text(schema: Option<&Value>) -> bool {
    let mut types = Vec::new();
    if let Some(schema) = schema {
        allowed_types(schema, 0, &mut types);
    }
    types.is_empty() || (types.contains(&"string") && !types.contains(&"null"))
}

/// The value that `text` stands for where the schema asks for `schema`. Text stays text wherever that is allowed or
/// nothing else fits.
pub(crate) fn json_from_text(text: &str, schema: Option<&Value>) -> Value {
    let mut types = Vec::new();
    if let Some(schema) = schema {
        allowed_types(schema, 0, &mut types);
    }
    let trimmed = text.trim();
    let is = |name: &str| types.contains(&name);
    if trimmed == "null" && is("null") {
        return Value::Null;
    }
    if types.is_empty() || is("string") {
        return Value::String(text.into());
    }
    if is("boolean") {
        // Python's spelling is the commonest slip.
        match trimmed {
            "true" | "True" => return Value::Bool(true),
            "false" | "False" => return Value::Bool(false),
            _ => {}
        }
    }
    match serde_json::from_str::<Value>(trimmed) {
        Ok(value) if types.iter().any(|name| has_type(&value, name)) => value,
        _ => Value::String(text.into()),
    }
}

fn has_type(value: &Value, name: &str) -> bool {
    match value {
        Value::Null => name == "null",
        Value::Bool(_) => name == "boolean",
        Value::Number(_) => matches!(name, "number" | "integer"),
        Value::String(_) => name == "string",
        Value::Array(_) => name == "array",
        Value::Object(_) => name == "object",
    }
}

/// The names under `type`, also of the variants of a union.
fn allowed_types<'s>(schema: &'s Value, depth: usize, types: &mut Vec<&'s str>) {
    // Deeper unions are not written by people; text is what is then left.
    const MAX_DEPTH: usize = 4;
    match &schema["type"] {
        Value::String(name) => types.push(name),
        Value::Array(names) => types.extend(names.iter().filter_map(Value::as_str)),
        _ => {}
    }
    if schema["enum"].as_array().is_some_and(|values| values.iter().any(Value::is_string)) {
        types.push("string");
    }
    for union in ["anyOf", "oneOf"] {
        for variant in schema[union].as_array().into_iter().flatten().filter(|_| depth < MAX_DEPTH) {
            allowed_types(variant, depth + 1, types);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    #[rustfmt::skip]
    fn text_becomes_what_the_schema_asks_for() {
        for (text, schema, expected) in [
            ("3",          json!({"type": "integer"}),                              json!(3)),
            ("3",          json!({"type": "string"}),                               json!("3")),
            ("3",          json!({}),                                               json!("3")),
            (" 2.5 ",      json!({"type": "number"}),                               json!(2.5)),
            ("True",       json!({"type": "boolean"}),                              json!(true)),
            ("[1, \"a\"]", json!({"type": "array"}),                                json!([1, "a"])),
            ("{\"a\": 1}", json!({"type": "object"}),                               json!({"a": 1})),
            ("not json",   json!({"type": "object"}),                               json!("not json")),
            ("null",       json!({"type": ["string", "null"]}),                     json!(null)),
            ("null",       json!({"type": "string"}),                               json!("null")),
            ("7",          json!({"anyOf": [{"type": "integer"}, {"type": "null"}]}), json!(7)),
            (" a\n b ",    json!({"enum": [" a\n b ", 1]}),                         json!(" a\n b ")),
            ("\"quoted\"", json!({"type": "array"}),                                json!("\"quoted\"")),
        ] {
            assert_eq!(json_from_text(text, Some(&schema)), expected, "{text} as {schema}");
            if is_plain_text(Some(&schema)) {
                assert!(expected.is_string(), "{schema}");
            }
        }
        assert_eq!(json_from_text("1", None), json!("1"));
    }
}
