//! Everything that can be checked and timed on a device, in one run: the op table, the fixtures of every family.
//!
//!   cuda_conformance ops [--quick] [--threads N]     the table: near the definitions, rows invariant
//!   cuda_conformance ops --small [--only Op] [--case part of a name]   every kernel a few times, for compute-sanitizer
//!   cuda_conformance fixtures [--only family]        every family against Hugging Face's float32 numbers
//!   cuda_conformance scripts [--only family]         every family, drafted for by a script: bits as without
//!   cuda_conformance nodes [--only family | FILES]   kernels a layer of a step's graph: at most 8, of more than 32 rows 9
//!   cuda_conformance rounds TARGET.gguf DRAFT.gguf   whole rounds: texts, trees and times
//!   cuda_conformance steps MODEL.gguf [contexts] [sequences] [kinds]   time of a step for each bucket, and its graph's nodes
//!   cuda_conformance steps MODEL.gguf [contexts] --seconds 4 [--rows 1,16,32]   the same steps on and on, and what power they take
//!
//! With `--as 86` first, as a card of compute capability 8.6: its kernels and its shared memory, whatever card is there. With `--apart`
//! first no launch overlaps another and lanes speak for themselves, as racecheck wants it (and `--threads 1`). With `--multiprocessors 2` first, work is
//! dealt to that many.
//!
//! Exits with 1 if anything is not as promised.

#![allow(clippy::print_stdout, reason = "a program that reports")]

mod card;
#[path = "../../../models/tests/common/mod.rs"]
mod common;
mod fixtures;
mod nodes;
mod ops;
mod options;
mod rounds;
#[path = "../../../engine/tests/common/script.rs"]
mod script;
mod scripts;
mod steps;

use std::process::ExitCode;
use std::sync::Arc;

use overdraft_cuda::{Device, Pretence};

fn main() -> ExitCode {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let mut pretence = Pretence::default();
    loop {
        match &args[..] {
            [flag, ..] if flag == "--apart" => {
                pretence.apart = true;
                args.drain(..1);
            }
            [flag, sm, ..] if flag == "--as" && sm.parse::<u32>().is_ok() => {
                pretence.sm = sm.parse().ok();
                args.drain(..2);
            }
            [flag, n, ..] if flag == "--multiprocessors" && n.parse::<usize>().is_ok_and(|n| n > 0) => {
                pretence.multiprocessors = n.parse().ok();
                args.drain(..2);
            }
            _ => break,
        }
    }
    match run(pretence, &args) {
        Ok(true) => return ExitCode::SUCCESS,
        Ok(false) => {}
        Err(unclear) => println!("{unclear}"),
    }
    ExitCode::FAILURE
}

fn run(pretence: Pretence, args: &[String]) -> Result<bool, String> {
    let open = |pretence| Device::open_as(0, pretence).map_err(|e| e.to_string());
    let device: Arc<Device> = open(pretence)?;
    match args.first().map(String::as_str) {
        Some("ops") => {
            let few = Pretence { multiprocessors: Some(2), ..pretence };
            let few = pretence.multiprocessors.is_none().then(|| open(few)).transpose()?;
            ops::run(&device, few.as_ref(), pretence.apart, &args[1..])
        }
        Some("fixtures") => fixtures::run(&device, &args[1..]),
        Some("scripts") => scripts::run(&device, &args[1..]),
        Some("nodes") => nodes::run(&device, &args[1..]),
        Some("rounds") => Ok(rounds::run(&device, &args[1..])),
        Some("steps") => steps::run(&device, &args[1..]),
        _ => Err("one of: ops, fixtures, scripts, nodes, rounds, steps".into()),
    }
}
