//! Spans, as a collector gets them.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use overdraft_server::http::HttpConfig;
use overdraft_server::http::log::Log;
use overdraft_server::http::trace::{Exporter, Tracer};
use serde_json::{Value, json};

use crate::client::{get, post, send};
use crate::server::with;

/// A collector that says 200 and hands on every span.
fn collector() -> (SocketAddr, Receiver<Value>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (spans, received) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let (mut head, mut length) = (Vec::new(), 0);
            loop {
                let mut line = String::new();
                stream.read_line(&mut line).unwrap();
                if let Some(n) = line.strip_prefix("content-length: ") {
                    length = n.trim().parse().unwrap();
                }
                if line == "\r\n" {
                    break;
                }
                head.push(line);
            }
            assert_eq!(head[0], "POST /v1/traces HTTP/1.1\r\n");
            assert!(head.contains(&"content-type: application/json\r\n".to_owned()));
            let mut body = vec![0; length];
            stream.read_exact(&mut body).unwrap();
            stream.get_mut().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").unwrap();
            let message: Value = serde_json::from_slice(&body).unwrap();
            let resource = &message["resourceSpans"][0];
            assert_eq!(resource["resource"]["attributes"][0]["value"]["stringValue"], "overdraft");
            for span in resource["scopeSpans"][0]["spans"].as_array().unwrap() {
                // The test may have seen enough.
                let _ = spans.send(span.clone());
            }
        }
    });
    (address, received)
}

fn tracing(address: SocketAddr) -> (HttpConfig, Exporter) {
    let endpoint = format!("http://{address}").parse().unwrap();
    let (tracer, exporter): (Tracer, Exporter) = Exporter::start(endpoint, Log::none()).unwrap();
    (HttpConfig { tracer, ..HttpConfig::default() }, exporter)
}

fn attribute<'a>(span: &'a Value, key: &str) -> &'a Value {
    let all = span["attributes"].as_array().unwrap();
    all.iter().find(|a| a["key"] == key).map_or(&Value::Null, |a| &a["value"])
}

#[test]
fn every_request_that_the_model_answers_is_a_span_with_its_figures() {
    let (address, spans) = collector();
    let (config, exporter) = tracing(address);
    let server = with(config);
    let (trace, parent) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
    let next = || spans.recv_timeout(Duration::from_secs(60)).unwrap();
    let body = json!({"prompt": "def SECRET():", "max_tokens": 5, "temperature": 0.5, "seed": 9, "n": 2, "ignore_eos": true});
    let ask = |flags: &str, body: &Value| {
        let parent = format!("00-{trace}-{parent}-{flags}");
        let headers =
            [("content-type", "application/json"), ("traceparent", &parent), ("x-request-id", "r-1")];
        send(server.address, "POST", "/v1/completions", &headers, body.to_string().as_bytes())
    };
    assert_eq!(ask("01", &body).status, 200);
    let span = next();
    assert_eq!((&span["traceId"], &span["parentSpanId"]), (&json!(trace), &json!(parent)));
    assert_eq!((&span["name"], &span["kind"]), (&json!("text_completion demo"), &json!(2)));
    for (key, value) in [
        ("gen_ai.operation.name", json!({"stringValue": "text_completion"})),
        ("gen_ai.request.model", json!({"stringValue": "demo"})),
        ("gen_ai.request.temperature", json!({"doubleValue": 0.5})),
        ("gen_ai.request.max_tokens", json!({"intValue": "5"})),
        ("gen_ai.request.seed", json!({"intValue": "9"})),
        ("gen_ai.usage.output_tokens", json!({"intValue": "10"})),
        (
            "gen_ai.response.finish_reasons",
            json!({"arrayValue": {"values": [{"stringValue": "length"}, {"stringValue": "length"}]}}),
        ),
        ("http.response.status_code", json!({"intValue": "200"})),
        ("overdraft.request_id", json!({"stringValue": "r-1"})),
        ("error.type", Value::Null),
    ] {
        assert_eq!(attribute(&span, key), &value, "{key}");
    }
    let nanos = |key: &str| span[key].as_str().unwrap().parse::<u128>().unwrap();
    assert!(nanos("endTimeUnixNano") > nanos("startTimeUnixNano"));
    assert!(!span.to_string().contains("SECRET"), "nothing of the prompt");

    // Not wanted by whoever began the trace, and not answered by the model: no spans of these.
    assert_eq!(ask("00", &body).status, 200);
    assert_eq!(get(server.address, "/v1/models").status, 200);
    let streamed = json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 3, "stream": true});
    post(server.address, "/v1/chat/completions", &streamed).events();
    let span = next();
    assert_eq!((&span["name"], span.get("parentSpanId")), (&json!("chat demo"), None));
    assert_eq!(attribute(&span, "gen_ai.usage.output_tokens"), &json!({"intValue": "3"}));
    assert_eq!(ask("01", &json!({"prompt": "x", "temperature": -1})).status, 400);
    let span = next();
    assert_eq!(attribute(&span, "http.response.status_code"), &json!({"intValue": "400"}));
    assert!(!attribute(&span, "error.type").is_null() && span["status"] == json!({}), "the client's fault");
    assert!(get(server.address, "/metrics").text().contains("\noverdraft_trace_spans_dropped_total 0\n"));
    exporter.finish(Duration::from_secs(60));
}

#[test]
fn a_collector_that_is_gone_costs_spans_and_nothing_else() {
    // Nobody listens there any more.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (config, exporter) = tracing(address);
    let server = with(config);
    for _ in 0..3 {
        post(server.address, "/v1/completions", &json!({"prompt": "x", "max_tokens": 1})).ok();
    }
    exporter.finish(Duration::from_secs(60));
    let text = get(server.address, "/metrics").text().to_owned();
    assert!(text.contains("\noverdraft_trace_spans_exported_total 0\n"), "{text}");
    assert!(text.contains("\noverdraft_trace_spans_dropped_total 3\n"));
}
