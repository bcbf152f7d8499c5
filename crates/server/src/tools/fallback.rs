//! Calls with a template that has no place for them: described in the system message, written as Hermes models do.

use serde_json::Value;

/// What the model is told.
pub(super) fn description(tools: &[Value]) -> String {
    let mut text =
        String::from("# Tools\n\nYou can call these functions, one JSON object on each line:\n<tools>\n");
    for tool in tools {
        text += &format!("{tool}\n");
    }
    text + "</tools>\n\nTo call one, write its name and arguments as a JSON object inside these tags, and nothing after the last:\n\
            <tool_call>\n{\"name\": \"NAME\", \"arguments\": {\"KEY\": \"VALUE\"}}\n</tool_call>"
}

/// Calls of an earlier answer, in OpenAI's shape.
pub(super) fn calls(calls: &[Value]) -> String {
    let written = |call: &Value| {
        let function = &call["function"];
        let arguments = function["arguments"].as_str().unwrap_or("{}");
        format!("<tool_call>\n{{\"name\": {}, \"arguments\": {arguments}}}\n</tool_call>", function["name"])
    };
    calls.iter().map(written).collect::<Vec<_>>().join("\n")
}

pub(super) fn result(text: &str) -> String {
    format!("<tool_response>\n{text}\n</tool_response>")
}
