//! Where spans go.

use std::fmt;
use std::str::FromStr;

/// A collector's address: `http://HOST[:PORT][/PATH]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub(super) host: String,
    pub(super) port: u16,
    /// With what OpenTelemetry appends for traces.
    pub(super) path: String,
}

/// OpenTelemetry's own for HTTP.
const DEFAULT_PORT: u16 = 4318;

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || format!("{text}: expected an address such as http://127.0.0.1:{DEFAULT_PORT}");
        if text.starts_with("https://") {
            return Err(format!(
                "{text}: https is not supported; send to a collector on this machine or network by http, which may \
                 send on by https"
            ));
        }
        let rest = text.strip_prefix("http://").ok_or_else(expected)?;
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        // The last colon is the port's, unless it stands inside the brackets of an IPv6 address.
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (host, port.parse().map_err(|_| expected())?),
            _ => (authority, DEFAULT_PORT),
        };
        let fits = |text: &str| text.bytes().all(|b| b.is_ascii_graphic() && !b"@?#\"<>\\".contains(&b));
        if host.is_empty() || !fits(host) || !fits(path) || port == 0 {
            return Err(expected());
        }
        let path = path.trim_end_matches('/');
        let path = if path.is_empty() { "/v1/traces".into() } else { format!("/{path}/v1/traces") };
        Ok(Self { host: host.into(), port, path })
    }
}

impl Endpoint {
    /// As a resolver wants it.
    pub(super) fn bare_host(&self) -> &str {
        self.host.trim_start_matches('[').trim_end_matches(']')
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}:{}{}", self.host, self.port, self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip]
    fn an_address_is_read_or_refused_by_name() {
        for (text, expected) in [
            ("http://127.0.0.1:4318",       "http://127.0.0.1:4318/v1/traces"),
            ("http://collector",            "http://collector:4318/v1/traces"),
            ("http://collector:80/otlp/",   "http://collector:80/otlp/v1/traces"),
            ("http://[::1]:9",              "http://[::1]:9/v1/traces"),
            ("http://[::1]",                "http://[::1]:4318/v1/traces"),
            ("https://x:4318",              "https is not supported"),
            ("127.0.0.1:4318",              "expected an address such as"),
            ("http://",                     "expected an address such as"),
            ("http://a:b",                  "expected an address such as"),
            ("http://a:99999",              "expected an address such as"),
            ("http://user@a:1",             "expected an address such as"),
            ("http://a:1/x y",              "expected an address such as"),
            ("http://a\r\nx: y",            "expected an address such as"),
        ] {
            let shown = text.parse::<Endpoint>().map_or_else(|problem| problem, |e| e.to_string());
            assert!(shown.contains(expected), "{text}: {shown}");
        }
    }
}
