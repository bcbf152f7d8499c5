//! The functions of one request.

use serde_json::Value;

use super::ToolChoice;
use crate::output::Refusal;

/// Agents in use send up to 24 functions; each is rendered, and compiled when calls are forced.
const MAX_TOOLS: usize = 512;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tool {
    pub(crate) name: String,
    /// A JSON schema; of any object where the request gives none.
    pub(crate) parameters: Value,
    /// Whether its arguments have to fit them.
    pub(crate) is_strict: bool,
}

impl Tool {
    /// The schema of one argument.
    pub(crate) fn parameter(&self, name: &str) -> Option<&Value> {
        self.parameters.get("properties")?.get(name)
    }
}

/// The functions that may be called.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ToolSet {
    pub(crate) tools: Vec<Tool>,
}

impl ToolSet {
    /// Those of `listed`, in OpenAI's shape, that `choice` allows; and the same as JSON, for the template.
    pub(crate) fn choose(listed: &[Value], choice: &ToolChoice) -> Result<(Self, Vec<Value>), Refusal> {
        if listed.len() > MAX_TOOLS {
            return Err(Refusal::new(
                "tools",
                format!("{} tools; at most {MAX_TOOLS} are taken", listed.len()),
            ));
        }
        let mut all = Vec::with_capacity(listed.len());
        for (at, json) in listed.iter().enumerate() {
            let function = &json["function"];
            let name = function["name"].as_str().filter(|name| is_name(name)).ok_or_else(|| {
                let problem =
                    "needs a `function.name` of 1 to 256 bytes without spaces, quotes and angle brackets";
                Refusal::new("tools", format!("tools[{at}] {problem}"))
            })?;
            let parameters = match &function["parameters"] {
                Value::Null => serde_json::json!({"type": "object", "properties": {}}),
                schema @ Value::Object(_) => schema.clone(),
                _ => {
                    let problem = format!(
                        "tools[{at}].function.parameters (`{name}`) must be a JSON schema, an object"
                    );
                    return Err(Refusal::new("tools", problem));
                }
            };
            let is_strict = function["strict"] == true;
            all.push((Tool { name: name.into(), parameters, is_strict }, json));
        }
        let names: Option<&[String]> = match choice {
            ToolChoice::None => Some(&[]),
            ToolChoice::Auto | ToolChoice::Required => None,
            ToolChoice::Named(name) => Some(std::slice::from_ref(name)),
            ToolChoice::Allowed { names, .. } => Some(names),
        };
        if let Some(unknown) =
            names.and_then(|names| names.iter().find(|n| all.iter().all(|(t, _)| t.name != **n)))
        {
            return Err(Refusal::new("tool_choice", format!("`{unknown}` is not among the tools")));
        }
        all.retain(|(tool, _)| names.is_none_or(|names| names.contains(&tool.name)));
        if choice.must_call() && all.is_empty() {
            return Err(Refusal::new("tool_choice", "a call is required, but there is no tool to call"));
        }
        let (tools, json) = all.into_iter().map(|(tool, json)| (tool, json.clone())).unzip();
        Ok((Self { tools }, json))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tools.is_empty()
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Tool> {
        self.tools.iter().find(|tool| tool.name == name)
    }
}

/// Names stand inside quotes and tags in what models write.
fn is_name(name: &str) -> bool {
    let is_plain = |c: char| !c.is_whitespace() && !c.is_control() && !matches!(c, '<' | '>' | '"' | '\\');
    !name.is_empty() && name.len() <= 256 && name.chars().all(is_plain)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_functions_that_may_be_called_are_left() {
        let listed = ["a", "b"].map(|name| json!({"type": "function", "function": {"name": name}}));
        let allowed = |names: &[&str], required| ToolChoice::Allowed {
            names: names.iter().map(|n| n.to_string()).collect(),
            required,
        };
        for (choice, names) in [
            (ToolChoice::Auto, &["a", "b"][..]),
            (ToolChoice::Required, &["a", "b"]),
            (ToolChoice::None, &[]),
            (ToolChoice::Named("b".into()), &["b"]),
            (allowed(&["b"], false), &["b"]),
        ] {
            let (set, json) = ToolSet::choose(&listed, &choice).unwrap();
            assert_eq!(set.tools.iter().map(|t| t.name.as_str()).collect::<Vec<_>>(), names, "{choice:?}");
            assert_eq!(json.len(), names.len());
        }
        for (choice, listed, param) in [
            (ToolChoice::Named("c".into()), &listed[..], "tool_choice"),
            (allowed(&["a", "c"], true), &listed, "tool_choice"),
            (ToolChoice::Required, &[], "tool_choice"),
            (ToolChoice::Auto, &[json!({"function": {}})], "tools"),
            (ToolChoice::Auto, &[json!({"function": {"name": "a b"}})], "tools"),
            (ToolChoice::Auto, &[json!({"function": {"name": "a", "parameters": [1]}})], "tools"),
        ] {
            assert_eq!(ToolSet::choose(listed, &choice).unwrap_err().param, param, "{choice:?}");
        }
    }
}
