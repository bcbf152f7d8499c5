//! `bench machine`: the limits that ops are judged by.

use std::process::ExitCode;

use overdraft_cpu::linear::Isa;
use overdraft_cpu::machine::{int8_peak, read_bandwidth};
use serde_json::{Value, json};

use super::args::MachineArgs;
use super::spread::figures;
use super::table::Table;
use super::{about, check_files, report};
use crate::failure::Result;

/// What some threads can do at most.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) threads: usize,
    pub(crate) bytes_per_second: f64,
    pub(crate) int8_per_second: f64,
}

impl Limits {
    pub(crate) fn measure(threads: usize) -> Self {
        Self {
            threads,
            bytes_per_second: read_bandwidth(threads),
            int8_per_second: int8_peak(threads, Isa::detect()),
        }
    }

    pub(crate) fn as_json(&self) -> Value {
        json!({
            "threads": self.threads,
            "read_bytes_per_second": self.bytes_per_second,
            "int8_multiply_adds_per_second": self.int8_per_second,
        })
    }
}

pub(crate) fn machine(args: &MachineArgs) -> Result<ExitCode> {
    check_files(&args.output, None)?;
    let mut threads: Vec<usize> = args.threads.iter().map(|n| usize::from(*n)).collect();
    if threads.is_empty() {
        threads = vec![1, std::thread::available_parallelism().map_or(1, |n| n.get())];
        threads.dedup();
    }
    let limits: Vec<Limits> = threads.iter().map(|n| Limits::measure(*n)).collect();
    let isa = Isa::detect().name();
    let cpu = about::cpu().unwrap_or_else(|| "this machine".into());
    let mut table = Table::new(&["threads", "read, GB/s", "int8 multiply-adds, G/s"]);
    for l in &limits {
        let (read, int8) = (figures(l.bytes_per_second / 1e9), figures(l.int8_per_second / 1e9));
        table.row(vec![l.threads.to_string(), read, int8]);
    }
    let rows: Vec<Value> = limits.iter().map(Limits::as_json).collect();
    let json = json!({ "bench": "machine", "about": about::as_json(), "isa": isa, "limits": rows });
    report(&args.output, &format!("{cpu}, {isa}: the best of eight passes\n\n{table}"), &json)?;
    Ok(ExitCode::SUCCESS)
}
