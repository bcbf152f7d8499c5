//! A call written as tags: `<function=NAME>`, then `<parameter=KEY>` value `</parameter>` for each argument, then
//! `</function>`. Read from behind the first `=`.

use serde_json::{Map, Value};

use super::call::{Call, MAX_NAME_BYTES};
use crate::tools::{ToolSet, json_from_text};

#[derive(Clone, Debug, Default)]
pub(super) struct XmlScan {
    place: Place,
    name: String,
    params: Vec<(String, String)>,
    /// What has come of the current name, tag or value.
    text: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Name,
    BetweenParameters,
    Key,
    Value,
}

pub(super) enum XmlStep {
    Open,
    Closed,
    NoCall,
}

const PARAMETER: &str = "<parameter=";
const PARAMETER_END: &str = "</parameter>";
const FUNCTION_END: &str = "</function>";

impl XmlScan {
    pub(super) fn push(&mut self, c: char) -> XmlStep {
        match self.place {
            Place::Name | Place::Key => {
                if c != '>' {
                    self.text.push(c);
                    let is_bad = c.is_whitespace() || c == '<' || self.text.len() > MAX_NAME_BYTES;
                    return if is_bad { XmlStep::NoCall } else { XmlStep::Open };
                }
                if self.text.is_empty() {
                    return XmlStep::NoCall;
                }
                let text = std::mem::take(&mut self.text);
                if self.place == Place::Name {
                    self.name = text;
                    self.place = Place::BetweenParameters;
                } else {
                    self.params.push((text, String::new()));
                    self.place = Place::Value;
                }
            }
            Place::BetweenParameters => {
                if c.is_whitespace() && self.text.is_empty() {
                    return XmlStep::Open;
                }
                self.text.push(c);
                if self.text == FUNCTION_END {
                    return XmlStep::Closed;
                } else if self.text == PARAMETER {
                    self.text.clear();
                    self.place = Place::Key;
                } else if !PARAMETER.starts_with(&self.text) && !FUNCTION_END.starts_with(&self.text) {
                    return XmlStep::NoCall;
                }
            }
            Place::Value => {
                self.text.push(c);
                if let Some(value) = self.text.strip_suffix(PARAMETER_END) {
                    // The format has a line break on either side that is not part of the value.
                    let value = value.strip_prefix('\n').unwrap_or(value);
                    let value = value.strip_suffix('\n').unwrap_or(value);
                    if let Some(last) = self.params.last_mut() {
                        last.1 = value.into();
                    }
                    self.text.clear();
                    self.place = Place::BetweenParameters;
                }
            }
        }
        XmlStep::Open
    }

    /// After [`XmlStep::Closed`]: the call, its values as the function's schema types them.
    pub(super) fn into_call(self, tools: &ToolSet) -> Call {
        let tool = tools.get(&self.name);
        let typed = |(key, text): (String, String)| {
            let value = json_from_text(&text, tool.and_then(|tool| tool.parameter(&key)));
            (key, value)
        };
        let args: Map<String, Value> = self.params.into_iter().map(typed).collect();
        Call { name: self.name, args: Value::Object(args).to_string() }
    }
}
