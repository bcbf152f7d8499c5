//! A request that cannot be served as it is.

/// The client's to mend: which field, and what about it. Fit to be shown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{param}: {message}")]
pub struct Refusal {
    pub param: &'static str,
    pub message: String,
}

impl Refusal {
    pub(crate) fn new(param: &'static str, message: impl Into<String>) -> Self {
        Self { param, message: message.into() }
    }
}
