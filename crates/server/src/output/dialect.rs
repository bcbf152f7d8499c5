//! How a model writes, told from its chat template.

use super::tagged::CallStyle;

/// The form of a model's answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    Tagged(CallStyle),
    /// Messages on channels: gpt-oss.
    Harmony,
}

impl Dialect {
    /// Of a template that says nothing of calls, Hermes: that is how [`crate::tools`] then describes them.
    pub(crate) fn of_template(source: &str) -> Self {
        let has = |text: &str| source.contains(text);
        if has("<|channel|>") && has("<|message|>") {
            Self::Harmony
        } else if has("<function=") && has("<parameter=") {
            Self::Tagged(CallStyle::Xml)
        } else if has("<tool_call>") {
            Self::Tagged(CallStyle::Hermes)
        } else if (has("<|start_header_id|>") && has("tool_calls")) || has("[TOOL_CALLS]") {
            Self::Tagged(CallStyle::LeadingJson)
        } else {
            Self::Tagged(CallStyle::Hermes)
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tagged(CallStyle::Hermes) => "hermes",
            Self::Tagged(CallStyle::Xml) => "qwen-xml",
            Self::Tagged(CallStyle::LeadingJson) => "llama3-json",
            Self::Harmony => "harmony",
        }
    }
}
