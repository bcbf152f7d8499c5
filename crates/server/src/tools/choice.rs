//! What the request says about calls.

/// Which functions the answer may or must call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// None is called, and the model is not told of any.
    None,
    #[default]
    Auto,
    Required,
    Named(String),
    /// Only these; at least one of them, if `required`.
    Allowed {
        names: Vec<String>,
        required: bool,
    },
}

impl ToolChoice {
    pub(crate) fn must_call(&self) -> bool {
        matches!(self, Self::Required | Self::Named(_) | Self::Allowed { required: true, .. })
    }
}
