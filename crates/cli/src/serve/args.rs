//! The flags of `serve`, as written. Each is also a key of the file given with `--config`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use overdraft_server::http::trace::Endpoint;

use crate::args::ModelArgs;

#[derive(Debug, Args)]
#[command(after_help = "\
Every flag but --config can stand in a TOML file under its long name: `port = 9000`, `alias = [\"a\", \"b\"]`,
`no-cost-cache = true`. What the command line says wins. Keys may also come from OVERDRAFT_API_KEYS, one on each
line or separated by commas.")]
pub(crate) struct ServeArgs {
    /// Read flags from a TOML file [default: none]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) address: AddressArgs,
    #[command(flatten)]
    pub(crate) load: LoadArgs,
    #[command(flatten)]
    pub(crate) safety: SafetyArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// How log lines look: text, or one JSON object a line
    #[arg(long, value_enum, default_value_t = LogArg::Text, help_heading = "Output")]
    pub(crate) log_format: LogArg,
    /// Send a span of each request to an OpenTelemetry collector, such as http://127.0.0.1:4318 [default: none]
    #[arg(long, value_name = "URL", help_heading = "Output")]
    pub(crate) otlp_endpoint: Option<Endpoint>,
    /// Write no log, notes or progress to standard error; errors still are
    #[arg(short, long, help_heading = "Output")]
    pub(crate) quiet: bool,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Address")]
pub(crate) struct AddressArgs {
    /// Address to listen at; 0.0.0.0 lets other machines in
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub(crate) host: String,
    /// Port to listen at; 0 takes a free one
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    pub(crate) port: u16,
    /// Another name of the model in requests; repeatable; `*` answers to any [default: the file's name alone]
    #[arg(long, value_name = "NAME")]
    pub(crate) alias: Vec<String>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Load")]
pub(crate) struct LoadArgs {
    /// Requests that run at once, 1 to 64; fewer if memory is short
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=64), allow_negative_numbers = true)]
    pub(crate) max_streams: u16,
    /// Requests that may wait beyond those; then comes 429
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(0..=1_000_000), allow_negative_numbers = true)]
    pub(crate) queue: u32,
    /// Memory for the contexts of all streams, such as 8GiB [default: what is there]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) kv_memory: Option<usize>,
    /// Memory for prefixes that later requests may begin with; 0 keeps none
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = size_or_none)]
    pub(crate) cache_memory: usize,
    /// Read prompts in pieces that keep the time between tokens of running texts below so many milliseconds
    #[arg(long, value_name = "MS", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=60_000), allow_negative_numbers = true)]
    pub(crate) token_gap: u32,
    /// Give up a request after so many seconds [default: never]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..), allow_negative_numbers = true)]
    pub(crate) request_timeout: Option<u32>,
    /// When asked to stop, let running requests finish for so many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub(crate) drain_timeout: u32,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Who may ask")]
pub(crate) struct SafetyArgs {
    /// Demand one of the keys in this file, one on each line [default: no key is needed]
    #[arg(long, value_name = "FILE")]
    pub(crate) api_key_file: Option<PathBuf>,
    /// Answer to this name in the Host header too; repeatable [default: on loopback its names only, else any]
    #[arg(long, value_name = "NAME")]
    pub(crate) allow_host: Vec<String>,
    /// Let pages of this origin use the server, such as https://app.example; repeatable; `*` is any [default: none]
    #[arg(long, value_name = "ORIGIN")]
    pub(crate) cors_origin: Vec<String>,
    /// Largest request body
    #[arg(long, value_name = "SIZE", default_value = "8MiB", value_parser = size)]
    pub(crate) max_body: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogArg {
    Text,
    Json,
}

/// A size, or 0.
fn size_or_none(text: &str) -> Result<usize, String> {
    if text == "0" { Ok(0) } else { size(text) }
}

/// Bytes: 1000, 8GiB, 1.5 GB.
fn size(text: &str) -> Result<usize, String> {
    const UNITS: [(&str, f64); 10] = [
        ("KiB", 1024.0),
        ("MiB", 1_048_576.0),
        ("GiB", 1_073_741_824.0),
        ("TiB", 1_099_511_627_776.0),
        ("KB", 1e3),
        ("MB", 1e6),
        ("GB", 1e9),
        ("TB", 1e12),
        ("B", 1.0),
        ("", 1.0),
    ];
    let expected = || "expected a size such as 8GiB, 512MiB or 1000000".to_owned();
    let (number, factor) = UNITS
        .iter()
        .find_map(|(unit, factor)| text.strip_suffix(unit).map(|number| (number.trim(), factor)))
        .ok_or_else(expected)?;
    let bytes = number.parse::<f64>().map_err(|_| expected())? * factor;
    if bytes.is_finite() && (1.0..1e18).contains(&bytes) { Ok(bytes as usize) } else { Err(expected()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_or_without_a_unit() {
        for (text, bytes) in
            [("1000", 1000), ("8GiB", 8 << 30), ("1.5 KiB", 1536), ("2MB", 2_000_000), ("7B", 7)]
        {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for bad in ["", "GiB", "-1", "0", "many", "1e99", "nan", "8 gibs"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }
}
