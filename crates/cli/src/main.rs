//! The `overdraft` command: parse, dispatch, exit code.

mod args;
mod args_sampling;
mod bench;
mod chat;
mod check;
mod config;
mod cost_cache;
mod demo;
mod device;
mod draft;
mod failure;
mod figures;
mod generate;
mod input;
mod inspect;
mod interrupt;
mod model;
mod output;
mod progress;
mod prompt;
mod prompt_set;
mod run;
mod screen;
mod serve;

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use args::{Cli, Command};
use failure::Failure;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => return usage(e),
    };
    let done = match cli.command {
        Command::Run(args) => run::run(&args),
        Command::Chat(args) => chat::chat(&args),
        Command::Inspect(args) => inspect::inspect(&args),
        Command::Check(args) => check::check(&args),
        Command::Serve(args) => serve::serve(*args),
        Command::Bench(command) => bench::bench(&command),
    };
    done.unwrap_or_else(|failure| report(&failure))
}

fn report(failure: &Failure) -> ExitCode {
    screen::error(&failure.message, failure.hint.as_deref());
    ExitCode::from(failure.code)
}

/// `--help` and `--version` come this way too.
fn usage(error: clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // A reader that left early is not our failure.
            let _ = error.print();
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            ExitCode::from(2)
        }
        _ => report(&Failure::from(error)),
    }
}
