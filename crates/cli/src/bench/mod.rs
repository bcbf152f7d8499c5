//! `overdraft bench`: how fast, against what, and with equal work shown.

mod about;
mod alternate;
mod args;
mod compare;
mod decode;
mod machine;
mod memory;
mod mode;
mod op;
mod peer;
mod plot;
mod prefill;
mod profile;
mod round;
mod serve;
mod spread;
mod table;
mod together;

use std::path::Path;
use std::process::ExitCode;

use serde_json::Value;

pub(crate) use args::BenchCommand;
use args::{OutputArgs, PlotArgs};

use crate::failure::{Failure, Result};
use crate::interrupt;
use crate::output::Output;

pub(crate) fn bench(command: &BenchCommand) -> Result<ExitCode> {
    interrupt::listen();
    match command {
        BenchCommand::Decode(args) => decode::decode(args, decode::Report::Decode),
        BenchCommand::Round(args) => decode::decode(args, decode::Report::Round),
        BenchCommand::Prefill(args) => prefill::prefill(args),
        BenchCommand::Op(args) => op::op(args),
        BenchCommand::Machine(args) => machine::machine(args),
        BenchCommand::Compare(args) => compare::compare(args),
        BenchCommand::Serve(args) => serve::serve(args),
    }
}

/// Writes a report: for a person a headline and a table, for a program one JSON object.
fn report(args: &OutputArgs, text: &str, json: &Value) -> Result<()> {
    let object = format!("{json}\n");
    if let Some(path) = &args.save {
        write_file("--save", path, &object)?;
    }
    Output::new().write(if args.json { &object } else { text })?;
    Ok(())
}

/// Draws the picture where one was asked for.
fn draw(args: &PlotArgs, picture: impl FnOnce() -> String) -> Result<()> {
    args.plot.as_ref().map_or(Ok(()), |path| write_file("--plot", path, &picture()))
}

fn write_file(flag: &str, path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).map_err(|e| Failure::input(format!("{flag} {}: {e}", path.display())))
}

/// Before anything is measured for minutes: a file that cannot be written.
fn check_files(output: &OutputArgs, plot: Option<&PlotArgs>) -> Result<()> {
    for (flag, path) in [("--save", output.save.as_ref()), ("--plot", plot.and_then(|p| p.plot.as_ref()))] {
        let Some(path) = path else { continue };
        let opened = std::fs::OpenOptions::new().create(true).append(true).open(path);
        opened.map_err(|e| Failure::input(format!("{flag} {}: {e}", path.display())))?;
    }
    Ok(())
}
