//! Who may be spoken to through a browser. A page from anywhere can make its visitor's browser send requests here, by
//! our address or by a name it points at us (DNS rebinding); `Host` and `Origin` tell such requests from real ones.

use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderValue, Response, header};

use super::error::{ApiError, ApiResult, Fault};

/// What hosts and origins a server answers.
#[derive(Clone, Debug, Default)]
pub struct Origins {
    /// Bound to loopback only: a request under any other name was sent by a trick.
    pub loopback_only: bool,
    /// Names that are ours too, without a port.
    pub hosts: Vec<String>,
    /// Origins whose pages may use the API (`https://app.example`), or `*`.
    pub cors: Vec<String>,
}

impl Origins {
    pub(crate) fn check(&self, headers: &HeaderMap) -> ApiResult<()> {
        let host = headers.get(header::HOST).and_then(|h| h.to_str().ok()).map(name_of);
        let known = |name: &str| is_loopback(name) || self.hosts.iter().any(|h| h.eq_ignore_ascii_case(name));
        // Without names of its own, a server on a public address answers to any.
        if (self.loopback_only || !self.hosts.is_empty()) && !host.is_some_and(known) {
            let message = "the Host header is not one this server answers to; start it with --allow-host NAME if it should be";
            return Err(ApiError::new(Fault::Forbidden, message).code("host_not_allowed"));
        }
        let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
        if self.allows(origin) || is_same(origin, headers.get(header::HOST)) {
            return Ok(());
        }
        let message =
            "pages of this Origin may not use this server; start it with --cors-origin ORIGIN if they should";
        Err(ApiError::new(Fault::Forbidden, message).code("origin_not_allowed"))
    }

    fn allows(&self, origin: &HeaderValue) -> bool {
        self.cors.iter().any(|c| c == "*" || c.as_bytes().eq_ignore_ascii_case(origin.as_bytes()))
    }

    /// Lets the page that asked read the answer, where that was configured.
    pub(crate) fn permit<B>(&self, origin: Option<&HeaderValue>, response: &mut Response<B>) {
        let Some(origin) = origin.filter(|o| self.allows(o)) else { return };
        let headers = response.headers_mut();
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        headers.insert(header::VARY, HeaderValue::from_static("origin"));
        let exposed = HeaderValue::from_static("x-request-id, x-overdraft-ignored, retry-after");
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
    }

    /// The answer to a browser's question before a request, if it may go on.
    pub(crate) fn preflight(&self, headers: &HeaderMap) -> Option<Response<axum::body::Body>> {
        let origin = headers.get(header::ORIGIN).filter(|o| self.allows(o))?;
        headers.get(header::ACCESS_CONTROL_REQUEST_METHOD)?;
        let mut response = Response::new(axum::body::Body::empty());
        *response.status_mut() = axum::http::StatusCode::NO_CONTENT;
        self.permit(Some(origin), &mut response);
        let allowed = response.headers_mut();
        allowed.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, OPTIONS"));
        // What was asked for is ours to give: keys are compared whatever headers come.
        let asked = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
        let asked = asked.unwrap_or_else(|| HeaderValue::from_static("content-type, authorization"));
        allowed.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, asked);
        allowed.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
        Some(response)
    }
}

/// A host without its port.
fn name_of(host: &str) -> &str {
    if let Some(rest) = host.strip_prefix('[') {
        return rest.split_once(']').map_or(rest, |(name, _)| name);
    }
    host.split_once(':').map_or(host, |(name, _)| name)
}

fn is_loopback(name: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name);
    let lower = name.to_ascii_lowercase();
    lower == "localhost"
        || lower.ends_with(".localhost")
        || name.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback())
}

/// The page came from this very server.
fn is_same(origin: &HeaderValue, host: Option<&HeaderValue>) -> bool {
    let (Ok(origin), Some(Ok(host))) = (origin.to_str(), host.map(|h| h.to_str())) else { return false };
    let place = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    place.is_some_and(|place| place.eq_ignore_ascii_case(host))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(host: Option<&str>, origin: Option<&str>) -> HeaderMap {
        let mut map = HeaderMap::new();
        host.map(|h| map.insert(header::HOST, h.parse().unwrap()));
        origin.map(|o| map.insert(header::ORIGIN, o.parse().unwrap()));
        map
    }

    #[track_caller]
    fn check(origins: &Origins, host: Option<&str>, origin: Option<&str>, allowed: bool) {
        assert_eq!(origins.check(&headers(host, origin)).is_ok(), allowed, "{host:?} {origin:?}");
    }

    #[test]
    #[rustfmt::skip]
    fn on_loopback_only_loopback_names_and_our_own_pages_are_answered() {
        let local = Origins { loopback_only: true, ..Origins::default() };
        for host in ["localhost", "LOCALHOST:8080", "127.0.0.1:8080", "127.8.8.8", "[::1]:8080", "app.localhost", "localhost."] {
            check(&local, Some(host), None, true);
        }
        for host in ["evil.example", "evil.example:8080", "localhost.evil.example", "10.0.0.1", "", "[::1", "127.0.0.1.evil.example"] {
            let loopback = host == "[::1";
            check(&local, Some(host), None, loopback);
        }
        check(&local, None, None, false);
        check(&local, Some("localhost:8080"), Some("http://localhost:8080"), true);
        check(&local, Some("localhost:8080"), Some("http://localhost:3000"), false);
        check(&local, Some("localhost:8080"), Some("https://evil.example"), false);
        check(&local, Some("localhost:8080"), Some("null"), false);
    }

    #[test]
    fn names_and_origins_can_be_allowed() {
        let origins = Origins {
            loopback_only: true,
            hosts: vec!["Box.lan".into()],
            cors: vec!["https://app.example".into()],
        };
        check(&origins, Some("box.lan:8080"), Some("https://app.example"), true);
        check(&origins, Some("box.lan:8080"), Some("https://app.example.evil"), false);
        let public = Origins::default();
        check(&public, Some("anything.example"), None, true);
        let any = Origins { cors: vec!["*".into()], ..Origins::default() };
        check(&any, Some("x"), Some("null"), true);
    }

    #[test]
    fn no_page_is_permitted_to_read_unless_configured() {
        let origin = HeaderValue::from_static("https://app.example");
        for (cors, permitted) in [(vec![], false), (vec!["https://app.example".to_string()], true)] {
            let origins = Origins { cors, ..Origins::default() };
            let mut response = Response::new(());
            origins.permit(Some(&origin), &mut response);
            assert_eq!(response.headers().contains_key("access-control-allow-origin"), permitted);
            let mut asks = headers(Some("localhost"), Some("https://app.example"));
            asks.insert("access-control-request-method", HeaderValue::from_static("POST"));
            assert_eq!(origins.preflight(&asks).is_some(), permitted);
        }
    }
}
