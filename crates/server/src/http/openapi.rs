//! `/openapi.json`: what can be asked, in OpenAPI 3.1. Fields that are accepted and ignored are not listed.

use serde_json::{Map, Value, json};

use super::door::{Answered, json as answer};
use super::limits::*;
use super::routes::routes;

/// What a route takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    Chat,
    Completions,
    Responses,
    Messages,
    CountTokens,
    Tokenize,
    Detokenize,
    ApplyTemplate,
}

pub(crate) async fn document() -> Answered {
    answer(&description())
}

pub(crate) fn description() -> Value {
    let mut paths = Map::new();
    for route in routes() {
        let mut operation = json!({"summary": route.about, "responses": responses(route.path)});
        let method = match route.body {
            None => "get",
            Some(body) => {
                operation["requestBody"] =
                    json!({"required": true, "content": {"application/json": {"schema": schema(body)}}});
                "post"
            }
        };
        if let Some((_, name)) = route.path.split_once('{') {
            let name = name.trim_matches(['*', '}']);
            operation["parameters"] =
                json!([{"name": name, "in": "path", "required": true, "schema": {"type": "string"}}]);
        }
        let path = route.path.replace("{*name}", "{name}");
        paths.insert(path, json!({method: operation}));
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Overdraft",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Unknown fields are accepted and named in the header x-overdraft-ignored.",
            "license": {"name": "MIT OR Apache-2.0"},
        },
        "paths": paths,
        "components": {"securitySchemes": {
            "bearer": {"type": "http", "scheme": "bearer"},
            "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
        }},
        "security": [{}, {"bearer": []}, {"key": []}],
    })
}

fn responses(path: &str) -> Value {
    let refused = |about: &str| json!({"description": about, "content": {"application/json": {"schema": {"type": "object"}}}});
    let content = match path {
        "/metrics" => json!({"text/plain": {}}),
        "/" => json!({"text/html": {}}),
        "/page/{file}" => json!({"text/css": {}, "text/javascript": {}, "image/svg+xml": {}}),
        _ => json!({"application/json": {"schema": {"type": "object"}}, "text/event-stream": {}}),
    };
    json!({
        "200": {"description": "the answer, or with `stream` its events", "content": content},
        "400": refused("a field that can't be honoured; `param` names it"),
        "401": refused("a key is needed"),
        "403": refused("this host or origin may not ask"),
        "404": refused("no such route or model"),
        "408": refused("the body, or the answer, took too long"),
        "413": refused("the body is too large"),
        "415": refused("the content type must be application/json"),
        "429": refused("the queue is full; retry-after says when to try again"),
        "500": refused("no token could be chosen"),
        "503": refused("draining, or the engine has stopped"),
    })
}

fn schema(body: Body) -> Value {
    match body {
        Body::Chat => object(
            &["messages"],
            [
                conversation(),
                generation(),
                openai_streaming(),
                json!({
                    "max_tokens": length(),
                    "max_completion_tokens": length(),
                    "n": {"type": "integer", "minimum": 1, "maximum": MAX_CHOICES, "default": 1},
                    "logprobs": {"type": "boolean"},
                    "top_logprobs": {"type": "integer", "minimum": 0, "maximum": MAX_TOP_LOGPROBS},
                    "stop": stops(),
                }),
            ],
        ),
        Body::Completions => object(
            &["prompt"],
            [
                generation(),
                openai_streaming(),
                json!({
                    "prompt": {"anyOf": [
                        {"type": "string"},
                        {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": MAX_ANSWERS},
                        {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1},
                        {"type": "array", "items": {"type": "array", "items": {"type": "integer", "minimum": 0}}, "minItems": 1, "maxItems": MAX_ANSWERS},
                    ]},
                    "max_tokens": {"type": "integer", "minimum": 0, "default": 16, "description": "0 only scores or echoes the prompt."},
                    "n": {"type": "integer", "minimum": 1, "maximum": MAX_CHOICES, "default": 1},
                    "echo": {"type": "boolean", "description": "The answer begins with the prompt, with `logprobs` also of its tokens."},
                    "logprobs": {"type": "integer", "minimum": 0, "maximum": MAX_TOP_LOGPROBS},
                    "prompt_logprobs": {"type": "integer", "minimum": 0, "maximum": MAX_TOP_LOGPROBS},
                    "stop": stops(),
                    "add_special_tokens": {"type": "boolean", "default": true},
                }),
            ],
        ),
        Body::Responses => object(
            &["input"],
            [
                generation(),
                json!({
                    "input": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}, "minItems": 1}]},
                    "instructions": {"type": "string"},
                    "max_output_tokens": length(),
                    "tools": {"type": "array", "items": {"type": "object"}, "maxItems": MAX_TOOLS},
                    "tool_choice": {"type": ["string", "object"]},
                    "parallel_tool_calls": {"type": "boolean"},
                    "reasoning": {"type": "object", "properties": {"effort": effort()}},
                    "text": {"type": "object", "properties": {"format": {"type": "object"}}},
                    "top_logprobs": {"type": "integer", "minimum": 0, "maximum": MAX_TOP_LOGPROBS},
                    "include": {"type": "array", "items": {"type": "string"}},
                    "stream": {"type": "boolean"},
                }),
            ],
        ),
        Body::Messages => object(
            &["messages", "max_tokens"],
            [
                messages_conversation(),
                generation(),
                json!({
                    "max_tokens": {"type": "integer", "minimum": 1},
                    "stop_sequences": stops(),
                    "stream": {"type": "boolean"},
                }),
            ],
        ),
        Body::CountTokens => object(&["messages"], [messages_conversation()]),
        Body::Tokenize => object(
            &[],
            [json!({
                "content": {"type": "string"},
                "prompt": {"type": "string"},
                "messages": messages(),
                "add_special": {"type": "boolean", "default": false},
                "with_pieces": {"type": "boolean"},
                "return_token_strs": {"type": "boolean"},
            })],
        ),
        Body::Detokenize => object(
            &["tokens"],
            [json!({"tokens": {"type": "array", "items": {"type": "integer", "minimum": 0}}})],
        ),
        Body::ApplyTemplate => object(&["messages"], [conversation()]),
    }
}

/// An object with a model's name and all of these properties.
fn object<const N: usize>(required: &[&str], groups: [Value; N]) -> Value {
    let mut properties = Map::new();
    properties.insert("model".into(), json!({"type": "string"}));
    for group in groups {
        if let Value::Object(group) = group {
            properties.extend(group);
        }
    }
    json!({"type": "object", "required": required, "properties": properties})
}

fn length() -> Value {
    json!({"type": "integer", "minimum": 1, "description": "more than the context leaves is clamped"})
}

fn stops() -> Value {
    let text = json!({"type": "string", "maxLength": MAX_STOP_BYTES / 4});
    json!({"anyOf": [text, {"type": "array", "items": text, "maxItems": MAX_STOPS}]})
}

fn effort() -> Value {
    json!({"enum": ["none", "minimal", "low", "medium", "high", "xhigh", "max"]})
}

/// How tokens are chosen; the same everywhere.
fn generation() -> Value {
    json!({
        "temperature": {"type": "number", "minimum": 0, "maximum": 100},
        "top_p": {"type": "number", "minimum": 0, "maximum": 1},
        "top_k": {"type": "integer", "minimum": -1, "maximum": u32::MAX},
        "min_p": {"type": "number", "minimum": 0, "maximum": 1},
        "repetition_penalty": {"type": "number", "minimum": 0.01, "maximum": 100},
        "frequency_penalty": {"type": "number", "minimum": -100, "maximum": 100},
        "presence_penalty": {"type": "number", "minimum": -100, "maximum": 100},
        "logit_bias": {"type": "object", "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100}, "maxProperties": MAX_BIASES},
        "seed": {"type": "integer"},
        "stop_token_ids": {"type": "array", "items": {"type": "integer", "minimum": 0}, "maxItems": MAX_STOP_IDS},
        "ignore_eos": {"type": "boolean"},
        "skip_special_tokens": {"type": "boolean", "default": true},
        "speculative": {
            "description": "false turns every drafter off; an object bounds a round. The text is the same with any value.",
            "anyOf": [{"type": "boolean"}, {"type": "object", "additionalProperties": false, "properties": {
                "max_depth": {"type": "integer", "minimum": 0, "maximum": u32::MAX},
                "max_nodes": {"type": "integer", "minimum": 0, "maximum": u32::MAX},
            }}],
        },
        "token_origins": {"type": "boolean", "description": "chunks also say how each token came to be"},
        "cache_salt": {"type": "string", "maxLength": MAX_SALT_BYTES / 4},
    })
}

fn openai_streaming() -> Value {
    json!({
        "stream": {"type": "boolean"},
        "stream_options": {"type": "object", "properties": {
            "include_usage": {"type": "boolean"},
            "continuous_usage_stats": {"type": "boolean"},
        }},
        "response_format": {"type": "object", "required": ["type"], "properties": {
            "type": {"enum": ["text", "json_object", "json_schema"]},
            "json_schema": {"type": "object"},
        }},
        "grammar": {"type": "string"},
        "structured_outputs": {"type": "object"},
    })
}

fn messages() -> Value {
    json!({"type": "array", "minItems": 1, "maxItems": MAX_MESSAGES, "items": {
        "type": "object",
        "required": ["role"],
        "properties": {
            "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
            "content": {"anyOf": [{"type": "string"}, {"type": "null"}, {"type": "array", "items": {
                "type": "object",
                "required": ["type", "text"],
                "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
            }}]},
            "tool_calls": {"type": "array", "items": {"type": "object"}},
            "tool_call_id": {"type": "string"},
            "reasoning_content": {"type": "string"},
        },
    }})
}

fn conversation() -> Value {
    json!({
        "messages": messages(),
        "tools": {"type": "array", "items": {"type": "object"}, "maxItems": MAX_TOOLS},
        "tool_choice": {"type": ["string", "object"]},
        "parallel_tool_calls": {"type": "boolean"},
        "reasoning_effort": effort(),
        "enable_thinking": {"type": "boolean"},
        "chat_template_kwargs": {"type": "object"},
        "add_generation_prompt": {"type": "boolean"},
        "continue_final_message": {"type": "boolean"},
    })
}

fn messages_conversation() -> Value {
    json!({
        "messages": {"type": "array", "minItems": 1, "maxItems": MAX_MESSAGES, "items": {
            "type": "object",
            "required": ["role", "content"],
            "properties": {
                "role": {"enum": ["user", "assistant"]},
                "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]},
            },
        }},
        "system": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]},
        "tools": {"type": "array", "items": {"type": "object"}, "maxItems": MAX_TOOLS},
        "tool_choice": {"type": "object", "properties": {"type": {"enum": ["auto", "any", "tool", "none"]}}},
        "thinking": {"type": "object", "properties": {"type": {"enum": ["enabled", "disabled", "adaptive"]}}},
        "output_config": {"type": "object"},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_is_described() {
        let description = description();
        let paths = description["paths"].as_object().unwrap();
        for route in routes() {
            let path = route.path.replace("{*name}", "{name}");
            let method = if route.body.is_some() { "post" } else { "get" };
            assert!(paths[&path][method]["summary"].is_string(), "{path}");
        }
        assert_eq!(paths.len(), routes().len());
    }

    /// A field that is described is one that is read: with a value of the wrong kind it is refused by its name.
    #[test]
    fn every_field_that_is_described_is_read() {
        use crate::http::fields::Fields;
        use crate::http::settings::Defaults;
        let defaults = Defaults { vocab: 100, end_ids: vec![], recommended: Default::default() };
        // Words under `include` that are not known are ignored; no other field is a list of lists of lists.
        let wrong = |name: &str| (name != "include").then(|| json!([[[]]]));
        for body in [Body::Chat, Body::Completions, Body::Responses, Body::Messages] {
            let schema = schema(body);
            for name in schema["properties"].as_object().unwrap().keys() {
                let mut request = match body {
                    Body::Chat => json!({"messages": [{"role": "user", "content": "x"}], "logprobs": true}),
                    Body::Completions => json!({"prompt": "x"}),
                    Body::Responses => json!({"input": "x"}),
                    _ => json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 3}),
                };
                let Some(value) = wrong(name) else { continue };
                request[name] = value;
                let fields = Fields::of_value(request, "").unwrap();
                let error = match body {
                    Body::Chat => super::super::chat::request::ChatRequest::read(fields, &defaults).err(),
                    Body::Completions => {
                        super::super::completions::request::CompletionRequest::read(fields, &defaults).err()
                    }
                    Body::Responses => {
                        super::super::responses::request::ResponsesRequest::read(fields, &defaults).err()
                    }
                    _ => super::super::messages::request::MessagesRequest::read(fields, &defaults).err(),
                };
                let param = error.and_then(|e| e.param);
                assert!(
                    param.as_deref().is_some_and(|p| p.starts_with(name.as_str())),
                    "{body:?} {name}: {param:?}"
                );
            }
        }
    }
}
