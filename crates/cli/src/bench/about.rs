//! What a reader needs to repeat a measurement: version, time, command, machine.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

pub(crate) fn as_json() -> Value {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    json!({
        "overdraft": env!("CARGO_PKG_VERSION"),
        "unix_time": time,
        "command": command(),
        "cpu": cpu(),
        "cores": std::thread::available_parallelism().map_or(1, |n| n.get()),
    })
}

/// The command line as it could be typed again.
fn command() -> String {
    let args = std::env::args_os().skip(1).map(|a| {
        let a = a.to_string_lossy().into_owned();
        let plain = !a.is_empty() && a.chars().all(|c| c.is_alphanumeric() || "-_./:,=".contains(c));
        if plain { a } else { format!("'{}'", a.replace('\'', "'\\''")) }
    });
    std::iter::once("overdraft".to_string()).chain(args).collect::<Vec<_>>().join(" ")
}

/// The processor's name, where the system tells.
pub(crate) fn cpu() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let value = |line: &str| line.split_once(':').map(|(_, v)| v.trim().to_string());
    text.lines().find(|l| l.starts_with("model name")).and_then(value)
}
