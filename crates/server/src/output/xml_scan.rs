//! A call written as tags: `<function=NAME>`, then `<parameter=KEY>` value `</parameter>` for each argument, then
//! `</function>`. Read from behind the first `=`.

use super::call::MAX_NAME_BYTES;
use super::tag_finder::{Found, TagFinder};
use crate::tools::{ToolSet, is_plain_text, json_from_text};

#[derive(Clone, Debug, Default)]
pub(super) struct XmlScan {
    place: Place,
    name: String,
    /// The arguments as JSON, as far as they are certain and nobody took them.
    args: String,
    has_args: bool,
    /// What has come of the current name, tag or value.
    text: String,
    /// Finds the end of a value.
    finder: TagFinder,
}

#[derive(Clone, Debug, Default)]
enum Place {
    #[default]
    Name,
    BetweenParameters,
    Key,
    Value {
        key: String,
        is_first: bool,
        /// It is text whatever it says, and so certain as it comes.
        is_plain: bool,
    },
}

pub(super) enum XmlStep {
    Open,
    Closed,
    NoCall,
}

const PARAMETER: &str = "<parameter=";
const FUNCTION_END: &str = "</function>";
/// The format has a line break on either side of a value that is not part of it.
const PARAMETER_ENDS: [&str; 2] = ["</parameter>", "\n</parameter>"];

impl XmlScan {
    pub(super) fn push(&mut self, c: char, tools: &ToolSet) -> XmlStep {
        match &mut self.place {
            Place::Name | Place::Key if c != '>' => {
                self.text.push(c);
                let is_bad = c.is_whitespace() || c == '<' || self.text.len() > MAX_NAME_BYTES;
                return if is_bad { XmlStep::NoCall } else { XmlStep::Open };
            }
            Place::Name | Place::Key if self.text.is_empty() => return XmlStep::NoCall,
            Place::Name => {
                self.name = std::mem::take(&mut self.text);
                self.place = Place::BetweenParameters;
            }
            Place::Key => self.begin_value(tools),
            Place::BetweenParameters => {
                if c.is_whitespace() && self.text.is_empty() {
                    return XmlStep::Open;
                }
                self.text.push(c);
                if self.text == FUNCTION_END {
                    self.close();
                    return XmlStep::Closed;
                } else if self.text == PARAMETER {
                    self.text.clear();
                    self.place = Place::Key;
                } else if !PARAMETER.starts_with(&self.text) && !FUNCTION_END.starts_with(&self.text) {
                    return XmlStep::NoCall;
                }
            }
            Place::Value { is_first, .. } => {
                if std::mem::take(is_first) && c == '\n' {
                    return XmlStep::Open;
                }
                let mut found = Some(self.finder.push(c, &PARAMETER_ENDS));
                while let Some(now) = found {
                    match now {
                        Found::Waiting => break,
                        Found::Tag(_) => {
                            self.end_value(tools);
                            break;
                        }
                        Found::Text(c) => self.write_value(c),
                    }
                    found = self.finder.retry(&PARAMETER_ENDS);
                }
            }
        }
        XmlStep::Open
    }

    /// The function's name, once it is whole.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Whether any of the arguments is certain.
    pub(super) fn has_args(&self) -> bool {
        self.has_args
    }

    /// What has become certain of the arguments since this was last asked.
    pub(super) fn take_args(&mut self) -> String {
        std::mem::take(&mut self.args)
    }

    /// Ends the object of the arguments.
    pub(super) fn close(&mut self) {
        self.args.push_str(if self.has_args { "}" } else { "{}" });
    }

    fn begin_value(&mut self, tools: &ToolSet) {
        let key = std::mem::take(&mut self.text);
        let tool = tools.get(&self.name);
        let is_plain = is_plain_text(tool.and_then(|tool| tool.parameter(&key)));
        if is_plain {
            self.write_key(&key);
            self.args.push('"');
        }
        self.place = Place::Value { key, is_first: true, is_plain };
    }

    fn write_key(&mut self, key: &str) {
        self.args.push(if self.has_args { ',' } else { '{' });
        self.has_args = true;
        self.args.push('"');
        push_escaped(&mut self.args, key);
        self.args.push_str("\":");
    }

    fn write_value(&mut self, c: char) {
        if let Place::Value { is_plain: true, .. } = self.place {
            push_escaped(&mut self.args, c.encode_utf8(&mut [0; 4]));
        } else {
            self.text.push(c);
        }
    }

    fn end_value(&mut self, tools: &ToolSet) {
        let Place::Value { key, is_plain, .. } = std::mem::replace(&mut self.place, Place::BetweenParameters)
        else {
            return;
        };
        if is_plain {
            return self.args.push('"');
        }
        let text = std::mem::take(&mut self.text);
        let schema = tools.get(&self.name).and_then(|tool| tool.parameter(&key));
        self.write_key(&key);
        self.args.push_str(&json_from_text(&text, schema).to_string());
    }
}

/// Text as it stands between the quotes of a JSON string.
fn push_escaped(out: &mut String, text: &str) {
    let quoted = serde_json::Value::from(text).to_string();
    out.push_str(&quoted[1..quoted.len() - 1]);
}
