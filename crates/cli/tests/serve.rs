//! `overdraft serve` as its users start it.
#![cfg(all(feature = "demo", unix))]

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command};

use common::{TempFile, overdraft, start};

struct Serving {
    child: Child,
    address: String,
}

impl Serving {
    /// Starts it on a free port and waits until it says where.
    fn start(args: &[&str]) -> Self {
        let args = [&["serve", "--port", "0", "--ctx", "256", "--max-streams", "2"], args].concat();
        let mut child = start(&args);
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.split("http://").nth(1).unwrap_or_else(|| panic!("{line}"));
        let address = address.split(' ').next().unwrap().to_owned();
        Self { child, address }
    }

    fn ask(&self, head: &str, body: &str) -> String {
        ask(&self.address, head, body)
    }

    /// SIGTERM; the exit code and what stood in the log.
    fn stop(mut self) -> (Option<i32>, String) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        let code = self.child.wait().unwrap().code();
        let mut log = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        (code, log)
    }
}

fn ask(address: &str, head: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let n = body.len();
    let request = format!(
        "{head}\r\nhost: {address}\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {n}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn it_says_where_it_is_answers_and_goes_when_asked() {
    let serving = Serving::start(&["--alias", "other"]);
    assert!(serving.ask("GET /health HTTP/1.1", "").starts_with("HTTP/1.1 200"));
    let body = r#"{"model": "other", "prompt": "def f():", "max_tokens": 4, "temperature": 0}"#;
    let answer = serving.ask("POST /v1/completions HTTP/1.1", body);
    assert!(answer.contains("\"completion_tokens\":4"), "{answer}");

    let port = serving.address.rsplit(':').next().unwrap();
    let second = overdraft(&["serve", "--port", port]);
    assert_eq!(second.code, Some(2));
    assert!(
        second.err.starts_with(&format!("error: port {port} is taken: another program listens")),
        "{}",
        second.err
    );
    assert!(second.err.contains("hint: stop that one, or take another port"), "{}", second.err);

    let (code, log) = serving.stop();
    assert_eq!(code, Some(0), "{log}");
    assert!(
        log.contains("route=/v1/completions status=200") && log.contains("stopped drained=true"),
        "{log}"
    );
}

#[test]
fn flags_come_from_a_file_and_keys_from_another() {
    let keys = TempFile::new("keys", b"# ours\nthe-key-of-this-test\n");
    let config = format!("api-key-file = '{}'\nlog-format = 'json'\nmax-body = 100\n", keys.path());
    let config = TempFile::new("serve.toml", config.as_bytes());
    let serving = Serving::start(&["--config", config.path()]);
    assert!(serving.ask("GET /live HTTP/1.1", "").starts_with("HTTP/1.1 200"));
    assert!(serving.ask("GET /v1/models HTTP/1.1", "").starts_with("HTTP/1.1 401"));
    let with_key = "authorization: Bearer the-key-of-this-test";
    assert!(serving.ask(&format!("GET /v1/models HTTP/1.1\r\n{with_key}"), "").starts_with("HTTP/1.1 200"));
    let large = serving.ask(&format!("POST /tokenize HTTP/1.1\r\n{with_key}"), &" ".repeat(101));
    assert!(large.starts_with("HTTP/1.1 413"), "{large}");
    let (code, log) = serving.stop();
    assert_eq!(code, Some(0));
    assert!(log.lines().any(|l| l.starts_with('{') && l.contains("\"status\":401")), "{log}");
    assert!(!log.contains("the-key-of-this-test"));
}

#[test]
fn what_is_wrong_is_said_before_anything_is_loaded() {
    let (empty, short) = (TempFile::new("empty-keys", b"\n"), TempFile::new("short-keys", b"abc\n"));
    let typo = TempFile::new("typo.toml", b"prot = 9");
    let table = TempFile::new("table.toml", b"[serve]\nport = 9");
    for (args, message) in [
        (vec!["--api-key-file", "no-such-file"], "no-such-file: "),
        (vec!["--api-key-file", empty.path()], "there is no key in it"),
        (vec!["--api-key-file", short.path()], "key 1 has fewer than 8 characters"),
        (vec!["--config", "no-such-file"], "no-such-file: "),
        (vec!["--config", typo.path()], "there is no setting `prot`; the nearest is `port`"),
        (vec!["--config", table.path()], "there is no setting `serve`"),
        (vec!["--host", "no such host"], "--host no such host: is no address of this machine"),
        (vec!["--port", "70000"], "--port"),
        (vec!["--max-streams", "0"], "0 is not in 1..=64"),
        (vec!["--kv-memory", "much"], "expected a size such as 8GiB"),
        (vec!["--port", "0", "--kv-memory", "1KiB"], "--kv-memory 1.0 KiB is less than the"),
        (vec!["--otlp-endpoint", "https://collector:4318"], "https is not supported"),
        (vec!["--show-draft"], "--show-draft: a server has no terminal to colour"),
        (vec!["--port", "0", "-m", "no-such-model.gguf"], "no-such-model.gguf: "),
    ] {
        let ran = overdraft(&[&["serve"], args.as_slice()].concat());
        assert_eq!(ran.code, Some(2), "{args:?}: {}", ran.err);
        assert!(ran.err.starts_with("error: ") && ran.err.contains(message), "{args:?}: {}", ran.err);
        assert_eq!(ran.out, "", "{args:?}");
    }
}

#[test]
fn asked_to_go_in_mid_load_it_finishes_what_it_took_on() {
    let serving = Serving::start(&["--queue", "64"]);
    let clients: Vec<_> = (0..12)
        .map(|i| {
            let address = serving.address.clone();
            let stream = i % 2 == 0;
            let body = format!(
                r#"{{"prompt": "def f{i}():", "max_tokens": 24, "temperature": 0, "ignore_eos": true, "stream": {stream}}}"#
            );
            std::thread::spawn(move || ask(&address, "POST /v1/completions HTTP/1.1", &body))
        })
        .collect();
    // All are taken on: running or in the queue, or over already.
    let count = |metrics: &str, name: &str| -> f64 {
        let values = metrics.lines().filter(|l| l.starts_with(name)).filter_map(|l| l.rsplit(' ').next());
        values.filter_map(|v| v.parse::<f64>().ok()).sum()
    };
    loop {
        let metrics = serving.ask("GET /metrics HTTP/1.1", "");
        let names = ["vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:request_success_total"];
        if names.iter().map(|name| count(&metrics, name)).sum::<f64>() >= 12.0 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let (code, log) = serving.stop();
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("stopped drained=true"), "{log}");
    let mut finished = 0;
    for (i, client) in clients.into_iter().enumerate() {
        let answer = client.join().unwrap();
        let whole = if i % 2 == 0 { "data: [DONE]" } else { "\"completion_tokens\":24" };
        let is_whole = answer.starts_with("HTTP/1.1 200") && answer.contains(whole);
        // One that finished between two figures is counted twice, and then another may come too late.
        let is_sent_away = answer.starts_with("HTTP/1.1 503") && answer.contains("draining");
        assert!(is_whole || is_sent_away, "{i}: {answer}");
        finished += usize::from(is_whole);
    }
    assert!(finished >= 10, "{finished} of 12 were taken on and finished");
}
