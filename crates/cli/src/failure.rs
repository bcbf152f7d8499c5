//! What ends a command early: one line, perhaps a remedy, and the exit code.

use overdraft_engine::EngineError;
use overdraft_models::ModelError;

/// Wrong flags, missing or unfit files, prompts that do not fit: the user can do something about it.
const INPUT: u8 = 2;
/// It is our doing, or the machine's.
const INTERNAL: u8 = 1;

#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
}

pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    pub(crate) fn input(message: impl Into<String>) -> Self {
        Self { code: INPUT, message: message.into(), hint: None }
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self { code: INTERNAL, message: message.into(), hint: None }
    }

    pub(crate) fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// Standard output could not be written (a pipe whose reader left is not a failure; see `Output`).
    pub(crate) fn output(error: &std::io::Error) -> Self {
        Self::internal(format!("standard output: {error}"))
    }
}

impl From<ModelError> for Failure {
    fn from(error: ModelError) -> Self {
        let text = error.to_string();
        match text.split_once("\nhint: ") {
            Some((message, hint)) => Self::input(message).hint(hint),
            None => Self::input(text),
        }
    }
}

impl From<overdraft_formats::Error> for Failure {
    fn from(error: overdraft_formats::Error) -> Self {
        Self::input(error.to_string())
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        match &error {
            EngineError::Backend(_) | EngineError::Logits { .. } => Self::internal(error.to_string()),
            // The engine knows fields, the user knows flags.
            EngineError::Parameter { name, value, allowed } if !name.starts_with("--") => {
                Self::input(format!("--{} {value}: {allowed}", name.replace('_', "-")))
            }
            EngineError::Parameter { name, value, allowed } => {
                Self::input(format!("{name} {value}: {allowed}"))
            }
            _ => Self::input(error.to_string()),
        }
    }
}

/// Clap's answer to wrong flags, cut down to the line that matters and its tip.
impl From<clap::Error> for Failure {
    fn from(error: clap::Error) -> Self {
        let text = error.render().to_string();
        let mut paragraphs = text.split("\n\n").map(|p| p.split_whitespace().collect::<Vec<_>>().join(" "));
        let first = paragraphs.next().unwrap_or_default();
        let message = first.strip_prefix("error: ").unwrap_or(&first).to_owned();
        let tip = paragraphs.find_map(|p| p.strip_prefix("tip: ").map(str::to_owned));
        Self::input(message).hint(tip.unwrap_or_else(|| "--help lists every flag with its values".into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engine_fields_are_named_as_flags() {
        let bad = EngineError::Parameter { name: "top_p", value: "2".into(), allowed: "must be less" };
        let failure = Failure::from(bad);
        assert_eq!((failure.code, failure.message.as_str()), (2, "--top-p 2: must be less"));
        assert_eq!(
            Failure::from(EngineError::Logits { seq: overdraft_engine::SeqId(0), position: 3 }).code,
            1
        );
    }
}
