//! A request as OpenTelemetry tells it.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::http::HeaderMap;
use serde_json::{Value, json};

/// A request's place in a trace.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Span {
    trace_id: String,
    parent_id: Option<String>,
    id: String,
    operation: &'static str,
    model: String,
    began: SystemTime,
}

/// What is known of it at its end.
pub(crate) struct Ended<'a> {
    pub(crate) method: &'a str,
    pub(crate) route: &'a str,
    pub(crate) request_id: &'a str,
    /// `None` if the client left before there was an answer.
    pub(crate) status: Option<u16>,
    pub(crate) is_complete: bool,
    pub(crate) took: Duration,
    /// What the journal noted, by our own names.
    pub(crate) notes: &'a [(&'static str, Value)],
}

impl Span {
    /// `None` for routes that no model answers, and where whoever asks does not want this request traced.
    pub(crate) fn begin(route: &str, model: &str, headers: &HeaderMap) -> Option<Self> {
        let operation = match route {
            "/v1/chat/completions" | "/v1/responses" | "/v1/messages" => "chat",
            "/v1/completions" => "text_completion",
            _ => return None,
        };
        let given = headers.get("traceparent").and_then(|v| v.to_str().ok()).and_then(parse_parent);
        let (trace_id, parent_id) = match given {
            Some(parent) if !parent.is_sampled => return None,
            Some(parent) => (parent.trace_id, Some(parent.id)),
            None => (random_hex() + &random_hex(), None),
        };
        let (id, model) = (random_hex(), model.to_owned());
        Some(Self { trace_id, parent_id, id, operation, model, began: SystemTime::now() })
    }

    /// OTLP's JSON of it.
    pub(crate) fn end(self, ended: &Ended<'_>) -> Value {
        let began = self.began.duration_since(UNIX_EPOCH).unwrap_or_default();
        let nanos = |time: Duration| time.as_nanos().to_string();
        let mut attributes = vec![
            attribute("gen_ai.operation.name", &self.operation.into()),
            attribute("gen_ai.provider.name", &"overdraft".into()),
            attribute("gen_ai.request.model", &self.model.as_str().into()),
            attribute("gen_ai.response.model", &self.model.as_str().into()),
            attribute("http.request.method", &ended.method.into()),
            attribute("http.route", &ended.route.into()),
            attribute("overdraft.request_id", &ended.request_id.into()),
        ];
        attributes.extend(ended.status.map(|s| attribute("http.response.status_code", &s.into())));
        attributes.extend(ended.notes.iter().map(|(name, value)| attribute(&known_name(name), value)));
        if !ended.is_complete {
            attributes.push(attribute("error.type", &"client_left".into()));
        }
        let is_fault = ended.status.is_none_or(|s| s >= 500) || ended.notes.iter().any(|n| n.0 == "failed");
        let mut span = json!({
            "traceId": self.trace_id,
            "spanId": self.id,
            "name": format!("{} {}", self.operation, self.model),
            "kind": 2,
            "startTimeUnixNano": nanos(began),
            "endTimeUnixNano": nanos(began + ended.took),
            "attributes": attributes,
            "status": if is_fault { json!({"code": 2}) } else { json!({}) },
        });
        if let Some(parent) = self.parent_id {
            span["parentSpanId"] = parent.into();
        }
        span
    }
}

/// The conventions' name for what our log calls otherwise.
fn known_name(note: &str) -> String {
    match note {
        "prompt_tokens" => "gen_ai.usage.input_tokens",
        "completion_tokens" => "gen_ai.usage.output_tokens",
        "cached_tokens" => "gen_ai.usage.cache_read.input_tokens",
        "finish" => "gen_ai.response.finish_reasons",
        "temperature" => "gen_ai.request.temperature",
        "top_p" => "gen_ai.request.top_p",
        "top_k" => "gen_ai.request.top_k",
        "max_tokens" => "gen_ai.request.max_tokens",
        "seed" => "gen_ai.request.seed",
        "choices" => "gen_ai.request.choice.count",
        "failed" | "refused" => "error.type",
        other => return format!("overdraft.{other}"),
    }
    .into()
}

fn attribute(key: &str, value: &Value) -> Value {
    json!({"key": key, "value": typed(value)})
}

/// OTLP names the type of every value, and writes 64-bit numbers as text.
fn typed(value: &Value) -> Value {
    match value {
        Value::Bool(b) => json!({"boolValue": b}),
        Value::Number(n) if n.is_f64() => json!({"doubleValue": n}),
        Value::Number(n) => json!({"intValue": n.to_string()}),
        Value::Array(list) => json!({"arrayValue": {"values": list.iter().map(typed).collect::<Vec<_>>()}}),
        Value::String(text) => json!({"stringValue": text}),
        other => json!({"stringValue": other.to_string()}),
    }
}

#[derive(Debug, PartialEq)]
struct Parent {
    trace_id: String,
    id: String,
    is_sampled: bool,
}

/// W3C's `traceparent`: version, trace, span and flags. Later versions may have more behind.
fn parse_parent(text: &str) -> Option<Parent> {
    let mut parts = text.trim().split('-');
    let mut hex = |digits: usize| {
        let part = parts.next()?;
        let is_hex = part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        (part.len() == digits && is_hex).then_some(part)
    };
    let (version, trace_id, id, flags) = (hex(2)?, hex(32)?, hex(16)?, hex(2)?);
    let is_zero = |text: &str| text.bytes().all(|b| b == b'0');
    if version == "ff" || is_zero(trace_id) || is_zero(id) || (version == "00" && parts.next().is_some()) {
        return None;
    }
    let is_sampled = u8::from_str_radix(flags, 16).ok()? & 1 == 1;
    Some(Parent { trace_id: trace_id.into(), id: id.into(), is_sampled })
}

/// 16 digits, not all of them 0.
fn random_hex() -> String {
    format!("{:016x}", RandomState::new().hash_one(0).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip]
    fn a_callers_trace_goes_on_if_it_is_one() {
        let (trace, id) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
        let headers = |text: &str| HeaderMap::from_iter([(axum::http::HeaderName::from_static("traceparent"), text.parse().unwrap())]);
        for (text, goes_on) in [
            (format!("00-{trace}-{id}-01"),          Some(true)),
            (format!("00-{trace}-{id}-00"),          None),
            (format!("01-{trace}-{id}-01-more"),     Some(true)),
            (format!("00-{trace}-{id}-01-more"),     Some(false)),
            (format!("ff-{trace}-{id}-01"),          Some(false)),
            (format!("00-{}-{id}-01", "0".repeat(32)), Some(false)),
            (format!("00-{}-{id}-01", trace.to_uppercase()), Some(false)),
            ("nonsense".into(),                      Some(false)),
            (String::new(),                          Some(false)),
        ] {
            let span = Span::begin("/v1/completions", "m", &headers(&text));
            assert_eq!(span.as_ref().map(|s| s.trace_id == trace && s.parent_id.as_deref() == Some(id)), goes_on, "{text}");
            assert!(span.is_none_or(|s| s.trace_id.len() == 32 && s.id.len() == 16 && s.id != id));
        }
        assert_eq!(Span::begin("/metrics", "m", &HeaderMap::new()), None, "no model answers that");
    }

    #[test]
    fn values_have_the_types_that_otlp_gives_them() {
        for (value, typed_value) in [
            (json!(3), json!({"intValue": "3"})),
            (json!(0.5), json!({"doubleValue": 0.5})),
            (json!("x"), json!({"stringValue": "x"})),
            (json!(["stop"]), json!({"arrayValue": {"values": [{"stringValue": "stop"}]}})),
        ] {
            assert_eq!(typed(&value), typed_value);
        }
    }
}
