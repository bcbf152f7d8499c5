//! Who comes in: keys, hosts, origins, kinds of bodies, methods.

use overdraft_server::http::HttpConfig;
use overdraft_server::http::keys::Keys;
use serde_json::json;

use crate::client::{get, post, send};
use crate::server::{plain, with};

const JSON: (&str, &str) = ("content-type", "application/json");

#[test]
fn every_route_but_probes_and_the_page_s_files_needs_a_key() {
    let keys = Keys::from_lines("first-key-1\nsecond-key-2").unwrap();
    let address = with(HttpConfig { keys, ..HttpConfig::default() }).address;
    let described =
        send(address, "GET", "/openapi.json", &[("authorization", "Bearer first-key-1")], b"").ok();
    let paths = described["paths"].as_object().unwrap();
    assert!(paths.len() >= 18);
    for (path, methods) in paths {
        let path = path.replace("{name}", "demo").replace("{file}", "app.mjs");
        let method = if methods.get("post").is_some() { "POST" } else { "GET" };
        let status = |headers: &[(&str, &str)]| {
            send(address, method, &path, &[headers, &[JSON]].concat(), b"{}").status
        };
        let open = ["/live", "/health", "/", "/page/app.mjs"].contains(&path.as_str());
        assert_eq!(status(&[]) == 401, !open, "{path} without a key");
        assert_eq!(
            status(&[("authorization", "Bearer first-key-2")]) == 401,
            !open,
            "{path} with a wrong key"
        );
        for right in [("authorization", "Bearer first-key-1"), ("x-api-key", "second-key-2")] {
            assert_ne!(status(&[right]), 401, "{path} with {right:?}");
        }
    }
    let unknown = send(address, "GET", "/nowhere", &[], b"");
    assert_eq!(unknown.status, 401, "strangers do not learn what is there");
    for hidden in ["/page", "/page/", "/page/app.mjs/more", "/page/../props", "//", "/index.html"] {
        assert_eq!(send(address, "GET", hidden, &[], b"").status, 401, "{hidden}");
    }
    assert_eq!(unknown.header("www-authenticate"), Some("Basic realm=\"overdraft\", Bearer"));
}

#[test]
#[rustfmt::skip]
fn pages_of_others_cannot_ask() {
    let body = json!({"prompt": "a", "max_tokens": 1}).to_string();
    let host = plain().to_string();
    let own = format!("http://{host}");
    for (headers, status, case) in [
        (vec![JSON],                                                        200, "a plain client"),
        (vec![JSON, ("host", "localhost:1")],                               200, "another name of loopback"),
        (vec![JSON, ("host", "evil.example")],                              403, "a name that points at us"),
        (vec![JSON, ("origin", "https://evil.example")],                    403, "a foreign page"),
        (vec![JSON, ("origin", "null")],                                    403, "a page from nowhere"),
        (vec![JSON, ("origin", own.as_str())],                              200, "our own page"),
        (vec![("content-type", "text/plain")],                              415, "what a page may send without asking"),
        (vec![("content-type", "application/x-www-form-urlencoded")],       415, "a form"),
        (vec![],                                                            415, "nothing said"),
        (vec![("content-type", "application/json; charset=utf-8")],         200, "JSON with a character set"),
    ] {
        let answer = send(plain(), "POST", "/v1/completions", &headers, body.as_bytes());
        assert_eq!(answer.status, status, "{case}: {}", answer.text());
        assert_eq!(answer.header("access-control-allow-origin"), None, "{case}");
    }
    let preflight = [("origin", "https://evil.example"), ("access-control-request-method", "POST")];
    assert_eq!(send(plain(), "OPTIONS", "/v1/completions", &preflight, b"").status, 403);
}

#[test]
fn pages_that_were_named_can() {
    let mut config = HttpConfig::default();
    config.origins.cors = vec!["https://app.example".into()];
    let address = with(config).address;
    let preflight = [
        ("origin", "https://app.example"),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "authorization"),
    ];
    let answer = send(address, "OPTIONS", "/v1/completions", &preflight, b"");
    assert_eq!((answer.status, answer.header("access-control-allow-headers")), (204, Some("authorization")));
    let answer = send(address, "GET", "/v1/models", &[("origin", "https://app.example")], b"");
    assert_eq!(answer.header("access-control-allow-origin"), Some("https://app.example"));
    assert_eq!(send(address, "GET", "/v1/models", &[("origin", "https://other.example")], b"").status, 403);
}

#[test]
fn unknown_routes_and_methods_are_answered_in_json() {
    for (method, path, status) in [
        ("GET", "/nowhere", 404),
        ("GET", "/v1/chat/completions", 405),
        ("POST", "/health", 405),
        ("DELETE", "/v1/models/demo", 405),
        ("GET", "/../../etc/passwd", 404),
        ("GET", "/v1/messages/nothing", 404),
    ] {
        let answer = send(plain(), method, path, &[], b"");
        assert_eq!(answer.status, status, "{method} {path}");
        assert!(answer.json()["error"]["message"].is_string(), "{method} {path}");
    }
    let head = send(plain(), "HEAD", "/", &[], b"");
    assert_eq!((head.status, head.body.len()), (200, 0), "an agent's first question");
}

#[test]
fn the_page_comes_with_a_policy_that_lets_nothing_else_in() {
    for (path, kind) in [
        ("/", "text/html; charset=utf-8"),
        ("/page/app.mjs", "text/javascript; charset=utf-8"),
        ("/page/page.css", "text/css; charset=utf-8"),
    ] {
        let answer = get(plain(), path);
        assert_eq!((answer.status, answer.header("content-type")), (200, Some(kind)));
        let policy = answer.header("content-security-policy").unwrap();
        assert!(policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self'"), "{policy}");
        assert!(!policy.contains("unsafe") && !policy.contains('*'), "{policy}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(answer.header("cache-control"), Some("no-cache"));
        let tag = answer.header("etag").unwrap();
        let again = send(plain(), "GET", path, &[("if-none-match", tag)], b"");
        assert_eq!((again.status, again.body.len()), (304, 0), "{path}");
    }
    assert_eq!(get(plain(), "/page/nothing.mjs").status, 404);
    // A key would not be the page's to give to a name that was pointed at us.
    for path in ["/", "/page/app.mjs"] {
        assert_eq!(send(plain(), "GET", path, &[("host", "evil.example")], b"").status, 403, "{path}");
    }
}

#[test]
fn a_request_keeps_its_name() {
    let answer = send(plain(), "GET", "/live", &[("x-request-id", "mine-1")], b"");
    assert_eq!(answer.header("x-request-id"), Some("mine-1"));
    let answer = send(plain(), "GET", "/live", &[("x-request-id", "no good")], b"");
    assert!(answer.header("x-request-id").unwrap().starts_with("req_"));
}

#[test]
fn fields_that_do_nothing_are_named_and_those_that_would_are_refused() {
    let answer = post(
        plain(),
        "/v1/completions",
        &json!({"prompt": "a", "max_tokens": 1, "zeta": 1, "alpha": {"b": 2}}),
    );
    assert_eq!((answer.status, answer.header("x-overdraft-ignored")), (200, Some("alpha,zeta")));
    for (field, value) in [
        ("mirostat", json!(2)),
        ("use_beam_search", json!(true)),
        ("min_tokens", json!(3)),
        ("chat_template", json!("x")),
    ] {
        let answer = post(plain(), "/v1/completions", &json!({"prompt": "a", "max_tokens": 1, field: value}));
        let error = answer.json();
        assert_eq!((answer.status, &error["error"]["param"]), (400, &json!(field)));
        assert_eq!(error["error"]["type"], "invalid_request_error");
    }
}

#[test]
fn bodies_that_are_not_what_they_say_are_refused() {
    let deep = format!("{{\"messages\": {}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
    for body in ["", "{", "[]", "null", "\"x\"", "{\"messages\": [{]}", "\u{0}", &deep, "{\"a\": 1e999}"] {
        for path in ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/tokenize"] {
            let answer = send(plain(), "POST", path, &[JSON], body.as_bytes());
            assert_eq!(answer.status, 400, "{path}: {}", answer.text());
        }
    }
    assert_eq!(get(plain(), "/live").status, 200);
}
