//! What a schema or a grammar may be like before anything is compiled. Each cap has an attack against some server behind
//! it: nesting (stack), repetition and enumerations (time and memory), patterns.

use serde_json::Value;

/// Agents send tools of 64 KB in all.
pub(super) const MAX_SOURCE_BYTES: usize = 256 << 10;
const MAX_DEPTH: usize = 64;
const MAX_VALUES: usize = 50_000;
pub(super) const MAX_ENUM: usize = 4_000;
/// Of one object. Each may be there or not: 1000 of them took 1.4 s to compile.
const MAX_PROPERTIES: usize = 256;
pub(super) const MAX_PATTERN_BYTES: usize = 4 << 10;
/// Of characters, items or properties.
const MAX_COUNT: u64 = 100_000;
/// Parentheses within each other.
const MAX_NESTING: usize = 64;

/// Nothing, or what about it is too much.
pub(super) fn check_schema(schema: &Value) -> Result<(), String> {
    let (mut n_values, mut n_bytes) = (0, 0);
    let mut pending = vec![(schema, 1)];
    while let Some((value, depth)) = pending.pop() {
        n_values += 1;
        if depth > MAX_DEPTH {
            return Err(format!("nested deeper than {MAX_DEPTH}"));
        }
        match value {
            Value::String(text) => n_bytes += text.len(),
            Value::Array(items) => pending.extend(items.iter().map(|item| (item, depth + 1))),
            Value::Object(map) => {
                for (key, value) in map {
                    n_bytes += key.len();
                    check_keyword(key, value)?;
                    pending.push((value, depth + 1));
                }
            }
            _ => {}
        }
        if n_values > MAX_VALUES || n_bytes > MAX_SOURCE_BYTES {
            return Err(format!("larger than {MAX_VALUES} values or {MAX_SOURCE_BYTES} bytes"));
        }
    }
    Ok(())
}

fn check_keyword(key: &str, value: &Value) -> Result<(), String> {
    match (key, value) {
        ("enum", Value::Array(values)) if values.len() > MAX_ENUM => {
            Err(format!("`enum` of {} values; at most {MAX_ENUM} are taken", values.len()))
        }
        ("properties", Value::Object(map)) if map.len() > MAX_PROPERTIES => {
            Err(format!("an object of {} properties; at most {MAX_PROPERTIES} are taken", map.len()))
        }
        ("pattern", Value::String(pattern)) => check_pattern(pattern),
        ("patternProperties", Value::Object(map)) => {
            map.keys().try_for_each(|pattern| check_pattern(pattern))
        }
        ("minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties", count) => {
            match count.as_f64() {
                Some(n) if n > MAX_COUNT as f64 => {
                    Err(format!("`{key}` of {count}; at most {MAX_COUNT} is taken"))
                }
                _ => Ok(()),
            }
        }
        _ => Ok(()),
    }
}

pub(super) fn check_pattern(pattern: &str) -> Result<(), String> {
    if pattern.len() > MAX_PATTERN_BYTES {
        return Err(format!("a pattern of {} bytes; at most {MAX_PATTERN_BYTES} are taken", pattern.len()));
    }
    check_nesting(pattern)
}

/// Every bracket counts, wherever it stands: too strict for text inside quotes, which nobody nests 64 deep.
pub(super) fn check_nesting(source: &str) -> Result<(), String> {
    let mut depth = 0usize;
    for c in source.bytes() {
        match c {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_NESTING {
            return Err(format!("brackets nested deeper than {MAX_NESTING}"));
        }
    }
    Ok(())
}
