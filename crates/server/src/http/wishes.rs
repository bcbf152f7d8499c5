//! Tools and forms an answer must have, in OpenAI's words (and those of vLLM and llama.cpp).

use serde_json::{Value, json};

use super::error::{ApiError, ApiResult};
use super::fields::{Fields, kind};
use super::limits::{MAX_NAME_BYTES, MAX_TOOLS};
use crate::output::{ResponseFormat, ToolChoice};

/// Functions a model may call, and the names of what else was offered.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Tools {
    /// `[{"type": "function", "function": {...}}]`
    pub(crate) functions: Vec<Value>,
    pub(crate) ignored: Vec<String>,
}

impl Tools {
    /// OpenAI's list. Kinds of tools we do not run (web search, computers) are left out and named, never refused: agents
    /// offer them to every server.
    pub(crate) fn read(fields: &mut Fields) -> ApiResult<Self> {
        let mut tools = Self::default();
        for (i, tool) in fields.list("tools", MAX_TOOLS)?.unwrap_or_default().into_iter().enumerate() {
            let mut tool = Fields::of_value(tool, format!("tools[{i}]"))?;
            match tool.text("type")?.as_deref() {
                Some("function") | None => {
                    let function =
                        tool.object("function")?.ok_or_else(|| tool.error("function", "is missing"))?;
                    tools.add(function)?;
                }
                Some(_) => tools.ignored.push(format!("tools[{i}]")),
            }
        }
        Ok(tools)
    }

    /// A function's own fields: name, description, parameters, strict.
    pub(crate) fn add(&mut self, mut function: Fields) -> ApiResult<()> {
        let name = function.need_text("name")?;
        check_name(&function, &name)?;
        let description = function.text("description")?;
        let parameters = function.map("parameters")?.map(Value::Object);
        let mut plain = json!({"name": name});
        if let Some(description) = description {
            plain["description"] = description.into();
        }
        plain["parameters"] = parameters.unwrap_or_else(|| json!({"type": "object", "properties": {}}));
        if let Some(strict) = function.bool("strict")? {
            plain["strict"] = strict.into();
        }
        self.functions.push(json!({"type": "function", "function": plain}));
        Ok(())
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.functions.iter().any(|f| f["function"]["name"] == name)
    }

    /// Refuses a choice among tools that are not there.
    pub(crate) fn check_choice(&self, choice: &ToolChoice) -> ApiResult<()> {
        let error = |problem: String| Err(ApiError::field("tool_choice", problem));
        let missing = |name: &&String| !self.has(name);
        match choice {
            ToolChoice::None | ToolChoice::Auto => Ok(()),
            ToolChoice::Required | ToolChoice::Allowed { .. } if self.functions.is_empty() => {
                error("asks for a call, and `tools` has no function".into())
            }
            ToolChoice::Required => Ok(()),
            ToolChoice::Named(name) if self.has(name) => Ok(()),
            ToolChoice::Named(_) => error("names a function that `tools` does not have".into()),
            ToolChoice::Allowed { names, .. } => match names.iter().find(missing) {
                Some(_) => error("allows a function that `tools` does not have".into()),
                None => Ok(()),
            },
        }
    }
}

fn check_name(function: &Fields, name: &str) -> ApiResult<()> {
    if name.is_empty() || name.len() > MAX_NAME_BYTES || name.chars().any(char::is_control) {
        let problem = format!("must have 1 to {MAX_NAME_BYTES} bytes and no control characters");
        return Err(function.error("name", problem));
    }
    Ok(())
}

/// `none`, `auto`, `required`, a function, or some of them.
pub(crate) fn read_tool_choice(fields: &mut Fields) -> ApiResult<ToolChoice> {
    const WANTED: &str = "must be none, auto, required, a function or allowed_tools";
    match fields.take("tool_choice") {
        None => Ok(ToolChoice::Auto),
        Some(Value::String(word)) => match word.as_str() {
            "none" => Ok(ToolChoice::None),
            "auto" => Ok(ToolChoice::Auto),
            "required" => Ok(ToolChoice::Required),
            _ => Err(fields.error("tool_choice", WANTED)),
        },
        Some(object @ Value::Object(_)) => {
            let mut choice = Fields::of_value(object, fields.at("tool_choice"))?;
            match choice.text("type")?.as_deref() {
                // Chat nests the name, the Responses API does not.
                Some("function") => match choice.object("function")? {
                    Some(mut function) => Ok(ToolChoice::Named(function.need_text("name")?)),
                    None => Ok(ToolChoice::Named(choice.need_text("name")?)),
                },
                Some("allowed_tools") => {
                    let mut allowed = match choice.object("allowed_tools")? {
                        Some(nested) => nested,
                        None => choice,
                    };
                    let required = match allowed.text("mode")?.as_deref() {
                        None | Some("auto") => false,
                        Some("required") => true,
                        Some(_) => return Err(allowed.error("mode", "must be auto or required")),
                    };
                    let names = allowed.list("tools", MAX_TOOLS)?.unwrap_or_default();
                    let name = |tool: &Value| {
                        let name = tool.get("name").or_else(|| tool.pointer("/function/name"));
                        name.and_then(Value::as_str).map(str::to_owned)
                    };
                    // Kinds we left out above have no name to allow.
                    Ok(ToolChoice::Allowed { names: names.iter().filter_map(name).collect(), required })
                }
                _ => Err(fields.error("tool_choice", WANTED)),
            }
        }
        Some(other) => Err(fields.error("tool_choice", format!("{WANTED}, not {}", kind(&other)))),
    }
}

/// The one form that is asked for, under whatever name.
pub(crate) fn read_format(fields: &mut Fields) -> ApiResult<ResponseFormat> {
    let mut found: Option<(&'static str, ResponseFormat)> = None;
    let mut take = |name: &'static str, format: Option<ResponseFormat>| match (format, &found) {
        (None | Some(ResponseFormat::Text), _) => Ok(()),
        (Some(_), Some((first, _))) => {
            Err(ApiError::field(name, format!("can't be given together with `{first}`")))
        }
        (Some(format), None) => {
            found = Some((name, format));
            Ok(())
        }
    };
    let response_format = fields.object("response_format")?.map(read_response_format).transpose()?;
    take("response_format", response_format)?;
    take("grammar", fields.text("grammar")?.filter(|g| !g.is_empty()).map(ResponseFormat::Grammar))?;
    for name in ["json_schema", "guided_json"] {
        take(name, fields.take(name).map(|v| schema(v, &fields.at(name))).transpose()?)?;
    }
    take("guided_regex", fields.text("guided_regex")?.map(ResponseFormat::Regex))?;
    take("guided_grammar", fields.text("guided_grammar")?.map(ResponseFormat::Grammar))?;
    take("guided_choice", read_choices(fields, "guided_choice")?)?;
    if let Some(mut outputs) = fields.object("structured_outputs")? {
        take(
            "structured_outputs.json",
            outputs.take("json").map(|v| schema(v, &outputs.at("json"))).transpose()?,
        )?;
        take(
            "structured_outputs.json_object",
            outputs.bool("json_object")?.filter(|b| *b).map(|_| ResponseFormat::JsonObject),
        )?;
        take("structured_outputs.regex", outputs.text("regex")?.map(ResponseFormat::Regex))?;
        take("structured_outputs.grammar", outputs.text("grammar")?.map(ResponseFormat::Grammar))?;
        take("structured_outputs.choice", read_choices(&mut outputs, "choice")?)?;
        outputs.refuse_unless("structural_tag", &[], "use tools, or a grammar")?;
    }
    Ok(found.map_or(ResponseFormat::Text, |(_, format)| format))
}

fn read_response_format(mut format: Fields) -> ApiResult<ResponseFormat> {
    match format.need_text("type")?.as_str() {
        "text" => Ok(ResponseFormat::Text),
        // llama.cpp takes a schema here too.
        "json_object" => match format.take("schema") {
            Some(value) => schema(value, &format.at("schema")),
            None => Ok(ResponseFormat::JsonObject),
        },
        "json_schema" => {
            // The Responses API has the schema's fields here, chat completions one level down.
            let mut inner = match format.object("json_schema")? {
                Some(inner) => inner,
                None => format,
            };
            let strict = inner.bool("strict")?.unwrap_or(false);
            let value = inner.take("schema").ok_or_else(|| inner.error("schema", "is missing"))?;
            match schema(value, &inner.at("schema"))? {
                ResponseFormat::JsonSchema { schema, .. } => {
                    Ok(ResponseFormat::JsonSchema { schema, strict })
                }
                other => Ok(other),
            }
        }
        _ => Err(format.error("type", "must be text, json_object or json_schema")),
    }
}

/// A schema as an object, or as JSON text.
fn schema(value: Value, path: &str) -> ApiResult<ResponseFormat> {
    let value = match value {
        Value::String(text) => {
            serde_json::from_str(&text).map_err(|_| ApiError::field(path, "is a string that is not JSON"))?
        }
        other => other,
    };
    match value {
        Value::Object(_) | Value::Bool(_) => Ok(ResponseFormat::JsonSchema { schema: value, strict: true }),
        other => Err(ApiError::field(path, format!("must be a JSON schema, not {}", kind(&other)))),
    }
}

fn read_choices(fields: &mut Fields, name: &str) -> ApiResult<Option<ResponseFormat>> {
    let Some(list) = fields.list(name, 10_000)? else { return Ok(None) };
    let texts: Option<Vec<String>> = list.iter().map(|v| v.as_str().map(str::to_owned)).collect();
    match texts {
        Some(texts) if !texts.is_empty() => Ok(Some(ResponseFormat::Choice(texts))),
        _ => Err(fields.error(name, "must be a list of one or more strings")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(value: Value) -> Fields {
        Fields::of_value(value, "").unwrap()
    }

    #[test]
    fn functions_are_kept_and_other_tools_named() {
        let list = json!([
            {"type": "function", "function": {"name": "f", "description": "does f", "parameters": {"type": "object"}, "strict": true, "x": 1}},
            {"type": "web_search"},
            {"type": "namespace", "name": "n"},
            {"type": "function", "function": {"name": "g"}},
        ]);
        let tools = Tools::read(&mut fields(json!({"tools": list}))).unwrap();
        assert_eq!(tools.ignored, ["tools[1]", "tools[2]"]);
        assert!(tools.has("f") && tools.has("g") && !tools.has("n"));
        assert_eq!(
            tools.functions[0],
            json!({"type": "function", "function": {"name": "f", "description": "does f", "parameters": {"type": "object"}, "strict": true}})
        );
        for (bad, param) in [
            (json!("f"), "tools"),
            (json!([1]), "tools[0]"),
            (json!([{"type": "function"}]), "tools[0].function"),
            (json!([{"type": "function", "function": {}}]), "tools[0].function.name"),
            (json!([{"type": "function", "function": {"name": ""}}]), "tools[0].function.name"),
            (
                json!([{"type": "function", "function": {"name": "a", "parameters": 3}}]),
                "tools[0].function.parameters",
            ),
            (json!(vec![json!({}); 600]), "tools"),
        ] {
            let error = Tools::read(&mut fields(json!({"tools": bad}))).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(param));
        }
    }

    #[test]
    fn choices_are_read_in_both_spellings() {
        let read = |v: Value| read_tool_choice(&mut fields(json!({"tool_choice": v})));
        assert_eq!(read(json!(null)), Ok(ToolChoice::Auto));
        assert_eq!(read(json!("required")), Ok(ToolChoice::Required));
        for named in
            [json!({"type": "function", "function": {"name": "f"}}), json!({"type": "function", "name": "f"})]
        {
            assert_eq!(read(named), Ok(ToolChoice::Named("f".into())));
        }
        let allowed = json!({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "f"}}]}});
        assert_eq!(read(allowed), Ok(ToolChoice::Allowed { names: vec!["f".into()], required: true }));
        for bad in [json!("maybe"), json!(1), json!({"type": "custom"})] {
            assert_eq!(read(bad).unwrap_err().param.as_deref(), Some("tool_choice"));
        }
        let none = Tools::default();
        assert!(none.check_choice(&ToolChoice::Auto).is_ok());
        assert!(none.check_choice(&ToolChoice::Required).is_err());
        assert!(none.check_choice(&ToolChoice::Named("f".into())).is_err());
    }

    #[test]
    fn one_form_is_taken_and_two_are_refused() {
        let read = |v: Value| read_format(&mut fields(v));
        let of_schema = |strict| ResponseFormat::JsonSchema { schema: json!({"type": "object"}), strict };
        let s = json!({"type": "object"});
        for (value, format) in [
            (json!({}), ResponseFormat::Text),
            (
                json!({"response_format": {"type": "text"}, "grammar": "root ::= \"a\""}),
                ResponseFormat::Grammar("root ::= \"a\"".into()),
            ),
            (json!({"response_format": {"type": "json_object"}}), ResponseFormat::JsonObject),
            (
                json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": s, "strict": false}}}),
                of_schema(false),
            ),
            (json!({"json_schema": s}), of_schema(true)),
            (json!({"guided_json": s.to_string()}), of_schema(true)),
            (
                json!({"structured_outputs": {"choice": ["a", "b"]}}),
                ResponseFormat::Choice(vec!["a".into(), "b".into()]),
            ),
            (json!({"guided_regex": "a+"}), ResponseFormat::Regex("a+".into())),
        ] {
            assert_eq!(read(value.clone()), Ok(format), "{value}");
        }
        for (bad, param) in [
            (json!({"response_format": {"type": "xml"}}), "response_format.type"),
            (json!({"response_format": {"type": "json_schema"}}), "response_format.schema"),
            (json!({"response_format": "json"}), "response_format"),
            (json!({"guided_json": "{"}), "guided_json"),
            (json!({"guided_choice": []}), "guided_choice"),
            (json!({"guided_regex": "a", "grammar": "b"}), "guided_regex"),
        ] {
            assert_eq!(read(bad.clone()).unwrap_err().param.as_deref(), Some(param), "{bad}");
        }
    }
}
