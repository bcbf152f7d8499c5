//! What is too large, too slow or too much.

use std::io::{Read, Write};
use std::time::Duration;

use overdraft_server::http::HttpConfig;
use serde_json::{Value, json};

use crate::client::{connect, get, post, read, request, send};
use crate::server::{Server, engine, until, with};

const JSON: (&str, &str) = ("content-type", "application/json");

#[test]
fn large_bodies_are_refused_announced_or_not() {
    let address = with(HttpConfig { max_body_bytes: 1000, ..HttpConfig::default() }).address;
    let body = json!({"prompt": "a".repeat(2000)}).to_string();
    assert_eq!(send(address, "POST", "/v1/completions", &[JSON], body.as_bytes()).status, 413);
    let mut stream = connect(address);
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    for _ in 0..3 {
        // The server may have answered and closed by now.
        let _ = stream.write_all(format!("200\r\n{}\r\n", "a".repeat(0x200)).as_bytes());
    }
    assert_eq!(read(stream).status, 413);
}

#[test]
fn all_bodies_together_have_a_bound() {
    let address = with(HttpConfig { max_bodies_bytes: 4000, ..HttpConfig::default() }).address;
    let answer = post(address, "/v1/completions", &json!({"prompt": "a".repeat(5000)}));
    assert_eq!((answer.status, answer.header("retry-after")), (429, Some("1")));
    let small = json!({"prompt": "a", "max_tokens": 1});
    assert_eq!(post(address, "/v1/completions", &small).status, 200, "what was taken is given back");
    assert_eq!(post(address, "/v1/completions", &small).status, 200);
}

#[test]
fn who_does_not_send_is_not_waited_for() {
    let short = Duration::from_millis(200);
    let config = HttpConfig { body_timeout: short, head_timeout: short, ..HttpConfig::default() };
    let address = with(config).address;
    let mut slow_body = connect(address);
    let head = request(address, "POST", "/v1/completions", &[JSON, ("content-length", "100")], b"");
    slow_body.write_all(&head).unwrap();
    slow_body.write_all(b"{\"pro").unwrap();
    assert_eq!(read(slow_body).status, 408);
    let mut slow_head = connect(address);
    slow_head.write_all(b"POST /v1/compl").unwrap();
    let mut rest = Vec::new();
    // Closed by the server, with or without a word.
    let _ = slow_head.read_to_end(&mut rest);
    assert!(!String::from_utf8_lossy(&rest).contains("200 OK"));
    assert_eq!(get(address, "/live").status, 200);
}

#[test]
fn long_heads_are_refused() {
    let address = with(HttpConfig::default()).address;
    let long = "x".repeat(64 << 10);
    let answer = send(address, "GET", "/live", &[("x-long", &long)], b"");
    assert_eq!(answer.status, 431);
    let many: Vec<(String, String)> = (0..200).map(|i| (format!("x-{i}"), "y".into())).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
    assert_eq!(send(address, "GET", "/live", &many, b"").status, 431);
}

#[test]
fn a_full_house_sends_away_with_a_time_and_recovers() {
    let server = Server::start(engine(1, 0), HttpConfig::default());
    let endless =
        json!({"prompt": "a", "max_tokens": 100_000, "ignore_eos": true, "stream": true}).to_string();
    let mut first = connect(server.address);
    first
        .write_all(&request(server.address, "POST", "/v1/completions", &[JSON], endless.as_bytes()))
        .unwrap();
    first.read_exact(&mut [0; 12]).unwrap();
    let small = json!({"prompt": "a", "max_tokens": 1});
    for path in ["/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses"] {
        let body = match path {
            "/v1/completions" => small.clone(),
            "/v1/responses" => json!({"input": "a"}),
            _ => json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}),
        };
        let answer = post(server.address, path, &body);
        assert_eq!(answer.status, 429, "{path}: {}", answer.text());
        assert!(answer.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
    }
    drop(first);
    // On a busy machine it may not even have begun.
    until("the one that left makes room", || {
        let gauges = server.handle.gauges();
        gauges.running + gauges.waiting == 0
    });
    assert_eq!(post(server.address, "/v1/completions", &small).status, 200);
    assert_eq!(server.handle.totals().failed.refused_busy, 4);
}

#[test]
fn a_request_is_over_when_its_time_is() {
    let config = HttpConfig { request_timeout: Some(Duration::from_millis(300)), ..HttpConfig::default() };
    let address = with(config).address;
    let endless = json!({"prompt": "a", "max_tokens": 100_000, "ignore_eos": true});
    let whole = post(address, "/v1/completions", &endless);
    // On a fast machine the context may end it first.
    if whole.status != 200 {
        assert_eq!((whole.status, &whole.json()["error"]["code"]), (408, &json!("deadline_exceeded")));
    }
    let mut streamed = endless;
    streamed["stream"] = true.into();
    let events = post(address, "/v1/completions", &streamed).events();
    assert_eq!(events.last().unwrap().1, "[DONE]");
    let before = &events[events.len() - 2].1;
    let code: &Value = &before["error"]["code"];
    assert!(*code == "deadline_exceeded" || before["choices"][0]["finish_reason"] == "length", "{before}");
}
