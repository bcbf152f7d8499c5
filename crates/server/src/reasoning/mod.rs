//! Where a model's thoughts begin: with the prompt, with the answer, or not at all.

/// The state of the thoughts where the prompt ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Thinking {
    /// This model has no tags for them.
    Never,
    /// The answer may begin with them.
    Possible,
    /// The prompt has opened them.
    Open,
    /// The prompt has closed them (`enable_thinking` is false): the answer has none.
    Closed,
}

const OPEN: &str = "<think>";
const CLOSED: &str = "</think>";

impl Thinking {
    /// `prompt` was rendered by `template`; the answer goes on behind it.
    pub(crate) fn at_end_of(prompt: &str, template: &str) -> Self {
        let end = prompt.trim_end();
        if !template.contains(CLOSED) {
            Self::Never
        } else if end.ends_with(OPEN) {
            Self::Open
        } else if end.ends_with(CLOSED) {
            Self::Closed
        } else {
            Self::Possible
        }
    }

    /// Within an answer that was begun with `text` and is to be continued.
    pub(crate) fn within(text: &str, template: &str) -> Self {
        if !template.contains(CLOSED) {
            return Self::Never;
        }
        match (text.rfind(OPEN), text.rfind(CLOSED)) {
            (Some(open), Some(closed)) if closed > open => Self::Closed,
            (Some(_), _) => Self::Open,
            (None, Some(_)) => Self::Closed,
            (None, None) if text.trim().is_empty() => Self::Possible,
            (None, None) => Self::Closed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip]
    fn the_end_of_the_prompt_says_whether_the_model_thinks() {
        let template = "... <think> ... </think> ...";
        for (prompt, template, expected) in [
            ("<|im_start|>assistant\n",                         "no thoughts", Thinking::Never),
            ("<|im_start|>assistant\n",                         template,      Thinking::Possible),
            ("<|im_start|>assistant\n<think>\n",                template,      Thinking::Open),
            ("<|im_start|>assistant\n<think>\n\n</think>\n\n",  template,      Thinking::Closed),
            ("user: <think> what?\nassistant:",                 template,      Thinking::Possible),
        ] {
            assert_eq!(Thinking::at_end_of(prompt, template), expected, "{prompt}");
        }
        for (begun, expected) in [
            ("<think>\nhm",                 Thinking::Open),
            ("<think>\nhm</think>\n\nSo",   Thinking::Closed),
            ("So",                          Thinking::Closed),
            ("",                            Thinking::Possible),
        ] {
            assert_eq!(Thinking::within(begun, template), expected, "{begun}");
        }
    }
}
