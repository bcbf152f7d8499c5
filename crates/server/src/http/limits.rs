//! How much of anything a request may ask for. Each is far above what real clients send, and bounds what one request
//! can cost before the engine sees it.

/// Choices of one prompt.
pub(crate) const MAX_CHOICES: i64 = 16;
/// Prompts times choices of one completions request.
pub(crate) const MAX_ANSWERS: usize = 128;
pub(crate) const MAX_STOPS: usize = 16;
pub(crate) const MAX_STOP_BYTES: usize = 1024;
pub(crate) const MAX_STOP_IDS: usize = 256;
pub(crate) const MAX_BIASES: usize = 1024;
pub(crate) const MAX_TOP_LOGPROBS: i64 = 20;
pub(crate) const MAX_MESSAGES: usize = 16_384;
/// An agent was seen to send 24.
pub(crate) const MAX_TOOLS: usize = 512;
pub(crate) const MAX_NAME_BYTES: usize = 256;
pub(crate) const MAX_SALT_BYTES: usize = 1024;
/// `x-overdraft-ignored` names so many fields at most; a header must stay small.
pub(crate) const MAX_IGNORED_NAMES: usize = 32;
