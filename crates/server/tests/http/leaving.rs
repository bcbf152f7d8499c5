//! Clients that leave, and a server that is asked to.

use std::io::{Read, Write};

use overdraft_server::http::{HttpConfig, Stopped};
use serde_json::json;

use crate::client::{Response, connect, get, post, request};
use crate::server::{Server, engine, until};

const JSON: (&str, &str) = ("content-type", "application/json");

fn endless(stream: bool) -> Vec<u8> {
    json!({"prompt": "x", "max_tokens": 100_000, "ignore_eos": true, "stream": stream, "n": 2})
        .to_string()
        .into_bytes()
}

#[test]
fn whoever_leaves_is_not_written_for() {
    // Its own engine: others' requests would be counted too.
    let server = Server::start(engine(4, 4), HttpConfig::default());
    for (stream, done) in [(true, 2), (false, 4)] {
        let mut client = connect(server.address);
        client
            .write_all(&request(server.address, "POST", "/v1/completions", &[JSON], &endless(stream)))
            .unwrap();
        if stream {
            client.read_exact(&mut [0; 200]).unwrap();
        } else {
            until("it runs", || server.handle.gauges().running == 2);
        }
        drop(client);
        until("both answers are given up", || server.handle.totals().failed.cancelled == done);
        let gauges = server.handle.gauges();
        assert_eq!((gauges.running, gauges.waiting, gauges.slots_used), (0, 0, 0));
    }
    until("all pages are free again", || server.handle.gauges().pages_used == 0);
}

#[test]
fn asked_to_stop_it_finishes_what_it_began() {
    let server = Server::start(engine(2, 4), HttpConfig::default());
    let address = server.address;
    let body =
        json!({"prompt": "def f():", "max_tokens": 40, "ignore_eos": true, "temperature": 0, "stream": true});
    let mut client = connect(address);
    client
        .write_all(&request(address, "POST", "/v1/completions", &[JSON], body.to_string().as_bytes()))
        .unwrap();
    let mut begun = [0; 16];
    client.read_exact(&mut begun).unwrap();
    let handle = server.handle.clone();
    let stopping = server.stop();
    until("it drains", || handle.health() == overdraft_server::handle::Health::Draining);
    // While the stream goes on, probes and newcomers hear it. It may be over by now on a fast machine.
    if let Ok(mut probe) = std::net::TcpStream::connect(address) {
        probe.write_all(&request(address, "GET", "/health", &[], b"")).unwrap();
        let mut answer = Vec::new();
        let _ = probe.read_to_end(&mut answer);
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 503"), "{answer}");
    }
    let mut rest = begun.to_vec();
    client.read_to_end(&mut rest).unwrap();
    let text = String::from_utf8(rest).unwrap();
    assert!(text.contains("data: [DONE]"), "the stream was finished: {text}");
    assert_eq!(stopping.join().unwrap(), Stopped::Drained);
    assert!(std::net::TcpStream::connect(address).is_err(), "the door is closed");
}

#[test]
fn newcomers_are_sent_elsewhere_while_it_drains() {
    let server = Server::start(engine(1, 4), HttpConfig::default());
    server.handle.drain();
    let body = json!({"prompt": "a", "max_tokens": 1});
    let refused: Response = post(server.address, "/v1/completions", &body);
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
    assert_eq!(refused.json()["error"]["code"], "draining");
    for (path, status) in [("/health", 503), ("/ready", 503), ("/live", 200)] {
        assert_eq!(get(server.address, path).status, status, "{path}");
    }
    assert_eq!(get(server.address, "/health").json(), json!({"status": "draining"}));
}
