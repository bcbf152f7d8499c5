//! A client of a few lines: what goes over the wire is what a test wrote, and nothing is mended on the way.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Response {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.as_str())
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }

    /// The JSON of an answer that must have gone well.
    #[track_caller]
    pub(crate) fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text());
        self.json()
    }

    /// Events of a stream: their names where they have one, and their data.
    #[track_caller]
    pub(crate) fn events(&self) -> Vec<(String, Value)> {
        assert_eq!(self.status, 200, "{}", self.text());
        assert_eq!(self.header("content-type"), Some("text/event-stream; charset=utf-8"));
        let event = |text: &str| {
            let field = |name: &str| text.lines().find_map(|l| l.strip_prefix(name)).map(str::to_owned);
            let data = field("data: ")?;
            let value =
                if data == "[DONE]" { Value::String(data) } else { serde_json::from_str(&data).unwrap() };
            Some((field("event: ").unwrap_or_default(), value))
        };
        self.text().split_terminator("\n\n").filter_map(event).collect()
    }
}

pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    // So that a server that says nothing fails a test instead of holding it up for ever.
    stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    stream
}

pub(crate) fn get(address: SocketAddr, path: &str) -> Response {
    send(address, "GET", path, &[], b"")
}

pub(crate) fn post(address: SocketAddr, path: &str, body: &Value) -> Response {
    send(address, "POST", path, &[("content-type", "application/json")], body.to_string().as_bytes())
}

pub(crate) fn send(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Response {
    let mut stream = connect(address);
    stream.write_all(&request(address, method, path, headers, body)).unwrap();
    read(stream)
}

/// The bytes of a request; a `host` among the headers takes the place of the true one.
pub(crate) fn request(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Vec<u8> {
    let mut head = format!("{method} {path} HTTP/1.1\r\nconnection: close\r\n");
    if !headers.iter().any(|(name, _)| *name == "host") {
        head.push_str(&format!("host: {address}\r\n"));
    }
    headers.iter().for_each(|(name, value)| head.push_str(&format!("{name}: {value}\r\n")));
    if !body.is_empty() {
        head.push_str(&format!("content-length: {}\r\n", body.len()));
    }
    [head.as_bytes(), b"\r\n", body].concat()
}

/// Reads until the server closes.
pub(crate) fn read(mut stream: TcpStream) -> Response {
    let mut bytes = Vec::new();
    // A connection that is reset after its answer has still answered.
    let _ = stream.read_to_end(&mut bytes);
    let at = bytes.windows(4).position(|w| w == b"\r\n\r\n").unwrap_or_else(|| {
        panic!("no answer: {:?}", String::from_utf8_lossy(&bytes));
    });
    let head = std::str::from_utf8(&bytes[..at]).unwrap();
    let mut lines = head.split("\r\n");
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let pair = |l: &str| l.split_once(": ").map(|(n, v)| (n.to_owned(), v.to_owned()));
    let headers: Vec<(String, String)> = lines.filter_map(pair).collect();
    let chunked = headers.iter().any(|(n, v)| n == "transfer-encoding" && v == "chunked");
    let rest = &bytes[at + 4..];
    let body = if chunked { unchunk(rest) } else { rest.to_vec() };
    Response { status, headers, body }
}

fn unchunk(mut bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    while let Some(at) = bytes.windows(2).position(|w| w == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&bytes[..at]).unwrap(), 16).unwrap();
        if size == 0 {
            return out;
        }
        out.extend_from_slice(&bytes[at + 2..at + 2 + size]);
        bytes = &bytes[at + 4 + size..];
    }
    panic!("the last chunk is missing")
}
