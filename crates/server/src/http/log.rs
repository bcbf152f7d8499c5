//! Log lines: a time, what happened, and `key=value` pairs; or one JSON object a line. There is no way to log free text
//! of a request: values are numbers, names from our own code, and ids that were checked.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};

/// How lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}

/// Where lines go; cheap to clone.
#[derive(Clone)]
pub struct Log {
    to: Arc<Mutex<dyn Write + Send>>,
    format: LogFormat,
}

impl Log {
    pub fn new(to: impl Write + Send + 'static, format: LogFormat) -> Self {
        Self { to: Arc::new(Mutex::new(to)), format }
    }

    pub fn to_stderr(format: LogFormat) -> Self {
        Self::new(std::io::stderr(), format)
    }

    /// Nothing is kept.
    pub fn none() -> Self {
        Self::new(std::io::sink(), LogFormat::Text)
    }

    /// One line. A log that cannot be written loses lines and stops nobody.
    pub fn line(&self, event: &str, pairs: &[(&str, Value)]) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let time = timestamp(now.as_secs(), now.subsec_millis());
        let text = match self.format {
            LogFormat::Json => {
                let mut object = Map::new();
                object.insert("time".into(), time.into());
                object.insert("event".into(), event.into());
                object.extend(pairs.iter().map(|(k, v)| ((*k).to_owned(), v.clone())));
                format!("{}\n", Value::Object(object))
            }
            LogFormat::Text => {
                let mut line = format!("{time} {event}");
                for (key, value) in pairs.iter().filter(|(_, v)| !v.is_null()) {
                    // A string stands bare if nothing in it could be taken for the next pair.
                    match value.as_str().filter(|s| s.bytes().all(|b| b.is_ascii_graphic() && b != b'"')) {
                        Some(bare) if !bare.is_empty() => line.push_str(&format!(" {key}={bare}")),
                        _ => line.push_str(&format!(" {key}={value}")),
                    }
                }
                line.push('\n');
                line
            }
        };
        // A writer that panicked left the lock poisoned; the line can still be written.
        let mut to = self.to.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let _ = to.write_all(text.as_bytes()).and_then(|()| to.flush());
    }
}

/// ISO 8601 in UTC: days counted by the civil calendar's 400-year cycle.
fn timestamp(seconds: u64, millis: u32) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Years are counted from 1 March of year 0, so that a leap day is a year's last.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let march_month = (5 * day + 2) / 153;
    let day = day - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let (h, m, s) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}.{millis:03}Z")
}

/// Where a log goes that tests read again.
#[derive(Clone, Default)]
pub struct Kept(pub Arc<Mutex<Vec<u8>>>);

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    #[test]
    fn days_are_told_as_the_calendar_has_them() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (1_709_251_199, "2024-02-29T23:59:59.000Z"),
            (1_735_689_600, "2025-01-01T00:00:00.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(timestamp(seconds, 0), text);
        }
    }

    #[test]
    fn a_value_cannot_pretend_to_be_the_next_pair() {
        for (format, expected) in [
            (LogFormat::Text, "request id=a-1 odd=\"x y=\\\"\\n\" n=3\n"),
            (
                LogFormat::Json,
                "\"event\":\"request\",\"id\":\"a-1\",\"odd\":\"x y=\\\"\\n\",\"none\":null,\"n\":3}\n",
            ),
        ] {
            let kept = Kept::default();
            let log = Log::new(kept.clone(), format);
            log.line(
                "request",
                &[("id", "a-1".into()), ("odd", "x y=\"\n".into()), ("none", Value::Null), ("n", 3.into())],
            );
            let text = String::from_utf8(kept.0.lock().unwrap().clone()).unwrap();
            assert!(text.ends_with(expected), "{text}");
        }
    }
}
