//! Many at once, some of them badly behaved. `OVERDRAFT_LOAD` is the number of streams, 200 unless told.

use std::io::{Read, Write};
use std::time::Duration;

use overdraft_server::handle::Health;
use overdraft_server::http::{HttpConfig, Stopped};
use serde_json::{Value, json};

use crate::client::{connect, get, post, read, request};
use crate::server::{Server, engine, until};

const JSON: (&str, &str) = ("content-type", "application/json");
/// Different requests; more streams than these write the same texts at once.
const KINDS: usize = 20;

fn load() -> usize {
    std::env::var("OVERDRAFT_LOAD").ok().and_then(|n| n.parse().ok()).unwrap_or(200)
}

fn body(i: usize) -> Value {
    let i = i % KINDS;
    let temperature = if i.is_multiple_of(2) { 0.0 } else { 0.7 };
    json!({"prompt": format!("def f{i}(x):\n"), "max_tokens": 6 + i % 5, "temperature": temperature, "seed": i,
        "ignore_eos": true, "stream": true})
}

fn text(events: &[(String, Value)]) -> String {
    events.iter().filter_map(|(_, chunk)| chunk["choices"][0]["text"].as_str()).collect()
}

fn begin(server: &Server, body: &Value) -> std::net::TcpStream {
    let mut client = connect(server.address);
    let bytes = request(server.address, "POST", "/v1/completions", &[JSON], body.to_string().as_bytes());
    client.write_all(&bytes).unwrap();
    client
}

#[test]
fn with_a_third_leaving_nothing_leaks_and_everyone_gets_what_one_alone_gets() {
    let server = Server::start(engine(16, load()), HttpConfig::default());
    let alone: Vec<String> =
        (0..KINDS).map(|i| text(&post(server.address, "/v1/completions", &body(i)).events())).collect();
    assert!(alone.iter().all(|text| !text.is_empty()));
    until("connections are closed", || server.tasks.metrics().num_alive_tasks() == 0);
    let finished: usize = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..load())
            .map(|i| {
                let (server, alone) = (&server, &alone);
                scope.spawn(move || {
                    let mut client = begin(server, &body(i));
                    if i.is_multiple_of(3) {
                        // In the midst of a stream: the head and a part of the first chunk.
                        client.read_exact(&mut [0; 300]).unwrap();
                        return 0;
                    }
                    let events = read(client).events();
                    assert_eq!(text(&events), alone[i % KINDS], "{i}");
                    assert_eq!(events.last().map(|e| &e.1), Some(&json!("[DONE]")), "{i}");
                    1
                })
            })
            .collect();
        clients.into_iter().map(|c| c.join().unwrap()).sum()
    });
    assert_eq!(finished, load() - load().div_ceil(3));
    until("nothing is left", || {
        let gauges = server.handle.gauges();
        let held = (gauges.running, gauges.waiting, gauges.pages_used, gauges.slots_used);
        held == (0, 0, 0, 0) && server.tasks.metrics().num_alive_tasks() == 0
    });
    let totals = server.handle.totals();
    eprintln!(
        "{} streams: {} tokens in {} steps, {} finished, {} left",
        load(),
        totals.generated_tokens,
        totals.steps,
        finished,
        totals.failed.cancelled
    );
    assert_eq!(server.stop().join().unwrap(), Stopped::Drained);
}

#[test]
fn a_burst_is_served_or_sent_away_and_the_house_recovers() {
    let server = Server::start(engine(2, 4), HttpConfig::default());
    let (mut served, mut sent_away) = (0, 0);
    std::thread::scope(|scope| {
        let ask = |i: usize| {
            let server = &server;
            scope.spawn(move || read(begin(server, &body(i))))
        };
        let clients: Vec<_> = (0..40).map(ask).collect();
        for client in clients {
            let answer = client.join().unwrap();
            match answer.status {
                200 => served += usize::from(answer.text().ends_with("data: [DONE]\n\n")),
                429 => {
                    assert!(answer.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
                    assert_eq!(answer.json()["error"]["type"], "rate_limit_error");
                    sent_away += 1;
                }
                other => panic!("{other}: {}", answer.text()),
            }
        }
    });
    assert!(served >= 6 && served + sent_away == 40, "{served} served, {sent_away} sent away");
    assert_eq!(server.handle.totals().failed.refused_busy, sent_away as u64);
    assert_eq!(post(server.address, "/v1/completions", &body(1)).status, 200);
}

#[test]
fn a_client_that_never_reads_loses_its_connection_and_nobody_else_notices() {
    let config = HttpConfig { write_timeout: Duration::from_millis(300), ..HttpConfig::default() };
    let server = Server::start(engine(2, 4), config);
    let whole = get(server.address, "/tokenizer_info").body.len();
    // More than sockets hold: the system's buffers grow to some megabytes.
    let n = (64 << 20) / whole;
    let mut deaf = connect(server.address);
    let one = format!("GET /tokenizer_info HTTP/1.1\r\nhost: {}\r\n\r\n", server.address);
    // The server reads on only as it answers, so not all of this may go out; on another thread, it may wait.
    let mut writer = deaf.try_clone().unwrap();
    writer.set_write_timeout(Some(Duration::from_secs(60))).unwrap();
    let sending = std::thread::spawn(move || (0..n).all(|_| writer.write_all(one.as_bytes()).is_ok()));
    assert_eq!(post(server.address, "/v1/completions", &body(0)).status, 200, "others go on");
    until("it is given up", || server.tasks.metrics().num_alive_tasks() == 0);
    sending.join().unwrap();
    let mut rest = Vec::new();
    // Closed or reset, and far from all of it was kept for it.
    let _ = deaf.read_to_end(&mut rest);
    assert!(rest.len() < n * whole, "{} of {}", rest.len(), n * whole);
    assert_eq!(server.handle.health(), Health::Ready);
    assert_eq!(post(server.address, "/v1/completions", &body(0)).status, 200);
}
