//! A client of any OpenAI-compatible server on this machine: one streamed completion, and when its parts came.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// A server that says nothing for so long is taken for dead.
const PATIENCE: Duration = Duration::from_secs(300);
/// Longer lines and bodies are no answer to what is asked here.
const MAX_LINE: u64 = 1 << 20;
const MAX_BODY: u64 = 16 << 20;

/// What is sent.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) model: String,
    pub(crate) prompt: String,
    pub(crate) max_tokens: usize,
    /// Whether to draft, where the server understands.
    pub(crate) speculative: Option<bool>,
    /// So that no answer comes from an earlier one's prefix.
    pub(crate) salt: String,
}

/// What came back.
#[derive(Clone, Debug, Default)]
pub(crate) struct Told {
    pub(crate) text: String,
    pub(crate) tokens: usize,
    /// From sending to the first text.
    pub(crate) first: Duration,
    /// Between parts of the text that came apart.
    pub(crate) gaps: Vec<Duration>,
}

type Answer<T> = Result<T, String>;

impl Ask {
    fn body(&self) -> Value {
        let mut body = json!({
            "model": self.model, "prompt": self.prompt, "max_tokens": self.max_tokens, "temperature": 0, "seed": 1,
            "ignore_eos": true, "stream": true, "stream_options": {"include_usage": true},
            "cache_prompt": false, "cache_salt": self.salt,
        });
        if let Some(speculative) = self.speculative {
            body["speculative"] = speculative.into();
        }
        body
    }

    pub(crate) fn send(&self, address: SocketAddr) -> Answer<Told> {
        let mut told = Told::default();
        let began = Instant::now();
        let mut last = None;
        let mut parts = 0;
        let mut reader = open(address, "POST", "/v1/completions", self.body().to_string().as_bytes())?;
        while let Some(data) = reader.event()? {
            if let Some(message) = data.pointer("/error/message").and_then(Value::as_str) {
                return Err(message.to_owned());
            }
            let now = Instant::now();
            if let Some(n) = data.pointer("/usage/completion_tokens").and_then(Value::as_u64) {
                told.tokens = n as usize;
            }
            let text = data.pointer("/choices/0/text").and_then(Value::as_str).unwrap_or_default();
            if text.is_empty() {
                continue;
            }
            parts += 1;
            told.text.push_str(text);
            match last.replace(now) {
                None => told.first = now - began,
                Some(before) => told.gaps.push(now - before),
            }
        }
        // A server that does not count sends a token a part.
        told.tokens = if told.tokens == 0 { parts } else { told.tokens };
        if parts == 0 { Err("it wrote nothing".into()) } else { Ok(told) }
    }
}

/// The JSON of a small answer.
pub(crate) fn get(address: SocketAddr, path: &str) -> Answer<Value> {
    let mut reader = open(address, "GET", path, b"")?;
    let mut body = Vec::new();
    while let Some(piece) = reader.piece()? {
        body.extend_from_slice(&piece);
        if body.len() as u64 > MAX_BODY {
            return Err(format!("{path}: more than {MAX_BODY} bytes"));
        }
    }
    serde_json::from_slice(&body).map_err(|e| format!("{path}: not JSON ({e})"))
}

/// The body of an answer.
struct Reader {
    stream: BufReader<TcpStream>,
    framing: Framing,
    /// Bytes of an event that is not whole yet.
    pending: Vec<u8>,
}

enum Framing {
    Chunked,
    /// Bytes left.
    Length(u64),
    ToTheEnd,
}

fn open(address: SocketAddr, method: &str, path: &str, body: &[u8]) -> Answer<Reader> {
    let failed = |e: std::io::Error| e.to_string();
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).map_err(failed)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(failed)?;
    stream.set_nodelay(true).map_err(failed)?;
    let n = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {n}\r\n\r\n"
    );
    stream.write_all(&[head.as_bytes(), body].concat()).map_err(failed)?;
    let mut stream = BufReader::new(stream);
    let status = line(&mut stream)?;
    let code = status.split(' ').nth(1).and_then(|c| c.parse::<u16>().ok());
    let code = code.ok_or_else(|| "the answer is not HTTP".to_string())?;
    let mut framing = Framing::ToTheEnd;
    loop {
        let header = line(&mut stream)?.to_ascii_lowercase();
        match header.split_once(':').map(|(name, value)| (name, value.trim())) {
            None if header.is_empty() => break,
            Some(("transfer-encoding", "chunked")) => framing = Framing::Chunked,
            Some(("content-length", n)) => {
                framing = Framing::Length(n.parse().map_err(|_| format!("content-length {n}"))?);
            }
            _ => {}
        }
    }
    let mut reader = Reader { stream, framing, pending: Vec::new() };
    if code == 200 {
        return Ok(reader);
    }
    let said = reader.piece().ok().flatten().unwrap_or_default();
    let said = String::from_utf8_lossy(&said[..said.len().min(300)]).into_owned();
    Err(format!("{path}: status {code}: {said}"))
}

/// A line without its end.
fn line(stream: &mut impl BufRead) -> Answer<String> {
    let mut bytes = Vec::new();
    stream.take(MAX_LINE).read_until(b'\n', &mut bytes).map_err(|e| e.to_string())?;
    if bytes.pop() != Some(b'\n') {
        return Err("the answer breaks off".into());
    }
    if bytes.last() == Some(&b'\r') {
        bytes.pop();
    }
    String::from_utf8(bytes).map_err(|_| "the answer is not UTF-8".into())
}

impl Reader {
    /// More of the body, as it came; `None` at its end.
    fn piece(&mut self) -> Answer<Option<Vec<u8>>> {
        let failed = |e: std::io::Error| e.to_string();
        match &mut self.framing {
            Framing::Chunked => {
                let size = line(&mut self.stream)?;
                let digits = size.split(';').next().unwrap_or_default().trim();
                let size = u64::from_str_radix(digits, 16).ok().filter(|n| *n <= MAX_BODY);
                let size = size.ok_or_else(|| format!("a chunk of {digits} bytes"))?;
                if size == 0 {
                    return Ok(None);
                }
                let mut piece = vec![0; size as usize];
                self.stream.read_exact(&mut piece).map_err(failed)?;
                line(&mut self.stream)?;
                Ok(Some(piece))
            }
            Framing::Length(0) => Ok(None),
            Framing::Length(left) => {
                let n = (*left).min(MAX_LINE) as usize;
                let mut piece = vec![0; n];
                self.stream.read_exact(&mut piece).map_err(failed)?;
                *left -= n as u64;
                Ok(Some(piece))
            }
            Framing::ToTheEnd => {
                let piece = self.stream.fill_buf().map_err(failed)?.to_vec();
                self.stream.consume(piece.len());
                Ok(Some(piece).filter(|p| !p.is_empty()))
            }
        }
    }

    /// The next event's data; `None` after the last. Comments and names are passed over.
    fn event(&mut self) -> Answer<Option<Value>> {
        loop {
            while let Some(at) = self.pending.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.pending.drain(..=at).collect();
                let line = String::from_utf8_lossy(&line);
                let Some(data) = line.strip_prefix("data:").map(str::trim) else { continue };
                if data == "[DONE]" {
                    return Ok(None);
                }
                return serde_json::from_str(data)
                    .map(Some)
                    .map_err(|e| format!("an event is not JSON ({e})"));
            }
            if self.pending.len() as u64 > MAX_LINE {
                return Err("an event of more than a mebibyte".into());
            }
            match self.piece()? {
                Some(piece) => self.pending.extend_from_slice(&piece),
                None => return Err("the stream breaks off before its end".into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that says `answer` to whoever comes first.
    fn saying(answer: String) -> SocketAddr {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            let _ = client.read(&mut [0; 4096]);
            let _ = client.write_all(answer.as_bytes());
        });
        address
    }

    fn ask(answer: &str) -> Answer<Told> {
        let ask = Ask {
            model: "m".into(),
            prompt: "p".into(),
            max_tokens: 2,
            speculative: Some(false),
            salt: "s".into(),
        };
        ask.send(saying(answer.to_owned()))
    }

    #[test]
    fn streams_of_any_framing_are_read() {
        let body = "data: {\"choices\":[{\"text\":\"a\"}]}\n\n: ping\n\ndata: {\"choices\":[{\"text\":\"b\"}]}\n\ndata: [DONE]\n\n";
        let whole = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        let to_the_end = format!("HTTP/1.1 200 OK\r\n\r\n{body}");
        // Cut in the midst of an event.
        let (one, two) = body.split_at(40);
        let chunked = format!(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{one}\r\n{:X};x=y\r\n{two}\r\n0\r\n\r\n",
            one.len(),
            two.len()
        );
        for answer in [whole, to_the_end, chunked] {
            let told = ask(&answer).unwrap_or_else(|e| panic!("{answer}: {e}"));
            assert_eq!((told.text.as_str(), told.tokens, told.gaps.len()), ("ab", 2, 1), "{answer}");
        }
        let counted = "HTTP/1.1 200 OK\r\n\r\ndata: {\"choices\":[{\"text\":\"ab\"}]}\n\ndata: {\"choices\":[],\"usage\":{\"completion_tokens\":2}}\n\ndata: [DONE]\n\n";
        assert_eq!(ask(counted).unwrap().tokens, 2);
    }

    #[test]
    fn what_is_no_answer_is_an_error_and_never_a_panic() {
        for (answer, message) in [
            ("", "breaks off"),
            ("220 smtp\r\n", "not HTTP"),
            ("HTTP/1.1 404 Not Found\r\n\r\nno such route", "status 404: no such route"),
            (
                "HTTP/1.1 200 OK\r\n\r\ndata: {\"choices\":[{\"text\":\"a\"}]}\n\n",
                "breaks off before its end",
            ),
            ("HTTP/1.1 200 OK\r\n\r\ndata: nonsense\n\n", "not JSON"),
            ("HTTP/1.1 200 OK\r\n\r\ndata: {\"error\":{\"message\":\"no room\"}}\n\n", "no room"),
            ("HTTP/1.1 200 OK\r\n\r\ndata: [DONE]\n\n", "wrote nothing"),
            (
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffffffffffff\r\n",
                "a chunk of ffffffffffff",
            ),
            ("HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n", "content-length -1"),
        ] {
            let error = ask(answer).unwrap_err();
            assert!(error.contains(message), "{answer:?}: {error}");
        }
    }
}
