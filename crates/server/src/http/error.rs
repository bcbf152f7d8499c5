//! What a request is refused with: whose fault, which field, in the shape its API's clients read.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use serde_json::{Value, json};

/// What a refusal is called in the log: one of our own words, carried beside the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refused(pub(crate) &'static str);

/// Whose errors a route speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    OpenAi,
    Anthropic,
}

impl Shape {
    /// Also of requests that never reach a route.
    pub(crate) fn of_path(path: &str) -> Self {
        if path.starts_with("/v1/messages") { Self::Anthropic } else { Self::OpenAi }
    }
}

/// Whose fault it is, and so which status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Invalid,
    Unauthorized,
    Forbidden,
    NotFound,
    Method,
    Timeout,
    TooLarge,
    MediaType,
    Busy,
    Internal,
    Unavailable,
}

impl Fault {
    pub fn status(self) -> StatusCode {
        match self {
            Self::Invalid => StatusCode::BAD_REQUEST,
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
            Self::Forbidden => StatusCode::FORBIDDEN,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::Timeout => StatusCode::REQUEST_TIMEOUT,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::MediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::Busy => StatusCode::TOO_MANY_REQUESTS,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    fn openai(self) -> &'static str {
        match self {
            Self::Unauthorized => "authentication_error",
            Self::Forbidden => "permission_error",
            Self::NotFound => "not_found_error",
            Self::Busy => "rate_limit_error",
            Self::Internal | Self::Unavailable => "server_error",
            Self::Invalid | Self::Method | Self::Timeout | Self::TooLarge | Self::MediaType => {
                "invalid_request_error"
            }
        }
    }

    fn anthropic(self) -> &'static str {
        match self {
            Self::Unauthorized => "authentication_error",
            Self::Forbidden => "permission_error",
            Self::NotFound => "not_found_error",
            Self::TooLarge => "request_too_large",
            Self::Busy => "rate_limit_error",
            Self::Unavailable => "overloaded_error",
            Self::Internal => "api_error",
            Self::Invalid | Self::Method | Self::Timeout | Self::MediaType => "invalid_request_error",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    pub fault: Fault,
    pub message: String,
    /// The field that is at fault, as a path: `messages[2].content`.
    pub param: Option<String>,
    /// What programs tell cases apart by.
    pub code: Option<&'static str>,
    pub retry_after: Option<Duration>,
}

/// `Basic` makes a browser ask its user, who gives the key as a password; programs use `Bearer`.
const CHALLENGE: &str = "Basic realm=\"overdraft\", Bearer";

pub type ApiResult<T> = Result<T, ApiError>;

impl ApiError {
    pub fn new(fault: Fault, message: impl Into<String>) -> Self {
        Self { fault, message: message.into(), param: None, code: None, retry_after: None }
    }

    /// A field that cannot be honoured.
    pub fn field(param: impl Into<String>, problem: impl std::fmt::Display) -> Self {
        let param = param.into();
        let message = format!("`{param}`: {problem}");
        Self { param: Some(param), ..Self::new(Fault::Invalid, message) }
    }

    pub fn code(self, code: &'static str) -> Self {
        Self { code: Some(code), ..self }
    }

    pub fn retry_after(self, wait: Duration) -> Self {
        Self { retry_after: Some(wait), ..self }
    }

    /// The body, also of an error event in a stream.
    pub fn body(&self, shape: Shape) -> Value {
        match shape {
            Shape::OpenAi => json!({"error": {
                "message": self.message,
                "type": self.fault.openai(),
                "param": self.param,
                "code": self.code,
            }}),
            Shape::Anthropic => json!({"type": "error", "error": {
                "type": self.fault.anthropic(),
                "message": self.message,
            }}),
        }
    }

    pub fn response(&self, shape: Shape) -> Response<Body> {
        let mut response = Response::new(Body::from(self.body(shape).to_string()));
        *response.status_mut() = self.fault.status();
        response.extensions_mut().insert(Refused(self.code.unwrap_or(self.fault.openai())));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(wait) = self.retry_after {
            // Whole seconds by the standard, rounded up; the clients' own header has milliseconds.
            let seconds = wait.as_millis().div_ceil(1000).clamp(1, 3600) as u64;
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
            headers.insert("retry-after-ms", HeaderValue::from(wait.as_millis().clamp(1, 3_600_000) as u64));
        }
        if self.fault == Fault::Unauthorized {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static(CHALLENGE));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_api_gets_its_own_shape() {
        let error = ApiError::field("temperature", "must be a number");
        assert_eq!(
            error.body(Shape::OpenAi),
            json!({"error": {"message": "`temperature`: must be a number", "type": "invalid_request_error",
                             "param": "temperature", "code": null}})
        );
        assert_eq!(
            error.body(Shape::Anthropic),
            json!({"type": "error", "error": {"type": "invalid_request_error", "message": "`temperature`: must be a number"}})
        );
        for (path, shape) in [
            ("/v1/messages", Shape::Anthropic),
            ("/v1/messages/count_tokens", Shape::Anthropic),
            ("/v1/chat/completions", Shape::OpenAi),
            ("/", Shape::OpenAi),
        ] {
            assert_eq!(Shape::of_path(path), shape, "{path}");
        }
    }

    #[test]
    fn waiting_is_told_in_whole_seconds_and_in_milliseconds() {
        for (ms, seconds) in [(0, "1"), (10, "1"), (1000, "1"), (1001, "2"), (99_999_999, "3600")] {
            let error = ApiError::new(Fault::Busy, "later")
                .retry_after(Duration::from_millis(ms))
                .response(Shape::OpenAi);
            assert_eq!(error.status(), 429);
            assert_eq!(error.headers()["retry-after"], seconds, "{ms}");
        }
    }
}
