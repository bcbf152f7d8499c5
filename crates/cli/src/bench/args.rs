//! The flags of `overdraft bench`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::mode::BenchMode;
use super::profile;
use crate::args::{ComputeArgs, KvArg, PairArgs};

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Text after prompts, in several modes by turns: tok/s, ratio to plain decoding, tokens a round, equal text
    Decode(DecodeArgs),
    /// Reading a prompt: tok/s by its length
    Prefill(PrefillArgs),
    /// Where the time of a round goes: propose, verify, accept, commit
    Round(DecodeArgs),
    /// One op by itself: GB/s, GFLOP/s and its share of what this machine can do
    Op(OpArgs),
    /// What this machine can do: read bandwidth and int8 multiply-adds by threads
    Machine(MachineArgs),
    /// The same file in llama.cpp's llama-bench and here, by turns, and the ratios
    Compare(CompareArgs),
    /// A server and its clients: tok/s, time to the first token and between tokens by streams, speculation auto against off
    Serve(ServeArgs),
}

#[derive(Debug, Args)]
#[command(
    after_help = "Modes take turns prompt by prompt, so that whatever else the machine does hits all alike. The last \
                  column counts texts that are, token for token, those of plain decoding."
)]
pub(crate) struct DecodeArgs {
    /// Modes to compare with plain decoding: plain (no draft), ready (a draft that is kept up and never asked), auto,
    /// auto:N, chain:N, tree:N with N guesses a round, lookup (no draft, guesses from the text)
    /// [default: auto, or lookup where there is no draft]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) modes: Vec<BenchMode>,
    /// Also chain and tree at these numbers of rows a round, 2 to 64, such as 16,24,48; a chain goes no deeper than its
    /// draft's block
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(2..=64), allow_negative_numbers = true)]
    pub(crate) rows: Vec<u32>,
    /// Texts written at once, 1 to 64, each after a prompt of its own; whoever is done with its prompt waits for the
    /// others. Prompts that fill no batch are left out
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64), allow_negative_numbers = true)]
    pub(crate) streams: u32,
    /// Accept guesses until a round writes so many tokens, 1 to 17, whatever the target would have chosen: each mode that
    /// drafts runs with each of these, such as 1,3,5,8 or 2.5. For models with random weights, of which no guess comes
    /// true: the time is real, the text is not
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = profile::parse, allow_negative_numbers = true, conflicts_with = "stop_at_eos")]
    pub(crate) accept_profile: Vec<f64>,
    #[command(flatten)]
    pub(crate) work: WorkArgs,
    #[command(flatten)]
    pub(crate) pair: PairArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    #[command(flatten)]
    pub(crate) picture: PlotArgs,
}

/// What is written.
#[derive(Debug, Args)]
pub(crate) struct WorkArgs {
    /// humaneval, gsm8k, random:N for N random tokens, or a file: on each line a JSON object with `prompt`, `question` or
    /// `text`, or plain text
    #[arg(long, value_name = "SET-OR-FILE", default_value = "humaneval")]
    pub(crate) prompts: String,
    /// The first so many prompts of it
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..), allow_negative_numbers = true)]
    pub(crate) limit: u32,
    /// Tokens to write after each, 2 to 65536; past an end token too, so that all do equal work
    #[arg(short = 'n', long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(2..=65536), allow_negative_numbers = true)]
    pub(crate) max_tokens: u32,
    /// Stop at the model's end tokens all the same
    #[arg(long)]
    pub(crate) stop_at_eos: bool,
    /// Wrap each prompt as a user's message in the model's chat template
    #[arg(long)]
    pub(crate) chat: bool,
    /// How boldly to choose, 0 to 100; 0 takes the likeliest token each time
    #[arg(long, value_name = "T", default_value_t = 0.0, allow_negative_numbers = true)]
    pub(crate) temperature: f32,
    #[command(flatten)]
    pub(crate) times: TimesArgs,
}

/// How often.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct TimesArgs {
    /// Times to measure everything, 1 to 1000
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000), allow_negative_numbers = true)]
    pub(crate) repeats: u32,
    /// Runs before that do not count, 0 to 1000
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=1000), allow_negative_numbers = true)]
    pub(crate) warmup: u32,
}

#[derive(Debug, Args)]
pub(crate) struct PrefillArgs {
    /// Lengths of prompts in tokens
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [32, 128, 512], value_parser = clap::value_parser!(u32).range(1..=1 << 20), allow_negative_numbers = true)]
    pub(crate) lengths: Vec<u32>,
    #[command(flatten)]
    pub(crate) times: TimesArgs,
    #[command(flatten)]
    pub(crate) pair: PairArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    #[command(flatten)]
    pub(crate) picture: PlotArgs,
}

#[derive(Debug, Args)]
pub(crate) struct OpArgs {
    /// The op, such as linear or attention; without one all are listed with their dimensions
    pub(crate) name: Option<String>,
    /// Types of its weights, such as q8_0,q4_k [default: q8_0]
    #[arg(long = "type", value_name = "LIST", value_delimiter = ',', default_value = "q8_0")]
    pub(crate) types: Vec<String>,
    /// Numbers of rows, 1 to 512; up to 16 are a root and guesses below it, more a chunk of a prompt
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [1, 4, 16], value_parser = clap::value_parser!(u32).range(1..=512), allow_negative_numbers = true)]
    pub(crate) rows: Vec<u32>,
    /// Its dimensions, such as 4096x4096 [default: the op's, which the list shows]
    #[arg(long, value_name = "AxB")]
    pub(crate) shape: Option<String>,
    /// Positions of context before the rows, for attention
    #[arg(long, value_name = "N", default_value_t = 1024)]
    pub(crate) depth: u32,
    /// How keys and values are stored, for attention
    #[arg(long, value_enum, default_value_t = KvArg::F16)]
    pub(crate) kv: KvArg,
    /// MiB of weights that copies of the op take turns with, so that they come from memory as in a model, at most 4096;
    /// 0 for one matrix that stays in the cache
    #[arg(long, value_name = "MIB", default_value_t = 192, value_parser = clap::value_parser!(u32).range(0..=4096), allow_negative_numbers = true)]
    pub(crate) working_set: u32,
    #[command(flatten)]
    pub(crate) times: OpTimesArgs,
    #[command(flatten)]
    pub(crate) computing: ComputeArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    #[command(flatten)]
    pub(crate) picture: PlotArgs,
}

#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct OpTimesArgs {
    /// Times to measure each, 1 to 100000
    #[arg(long, value_name = "N", default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..=100_000), allow_negative_numbers = true)]
    pub(crate) repeats: u32,
    /// Do not measure this machine's limits first
    #[arg(long)]
    pub(crate) no_limits: bool,
}

#[derive(Debug, Args)]
pub(crate) struct MachineArgs {
    /// Numbers of threads, 1 to 1024 [default: 1 and the cores of this machine]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=1024), allow_negative_numbers = true)]
    pub(crate) threads: Vec<u16>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "bench/fetch-llama.sh puts llama-bench, as Debian packages it, into a folder. Both sides take turns: a run \
                  of theirs, a run of ours. Decoding starts from an empty context on both sides; speculation is compared \
                  with their plain decoding after a prompt of the same length."
)]
pub(crate) struct CompareArgs {
    /// llama.cpp's llama-bench [default: llama-bench on the PATH]
    #[arg(long, value_name = "PATH")]
    pub(crate) peer: Option<PathBuf>,
    /// Tokens of the prompt to read
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=1 << 20), allow_negative_numbers = true)]
    pub(crate) prompt_tokens: u32,
    #[command(flatten)]
    pub(crate) work: WorkArgs,
    #[command(flatten)]
    pub(crate) pair: PairArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Every client has its next request as soon as its last is answered; with and without speculation take \
                  turns. Time runs from sending a request, so prompts count. A server at --url that is not ours is \
                  measured as it is."
)]
pub(crate) struct ServeArgs {
    /// A server on this machine that speaks OpenAI's API [default: our own, inside this process]
    #[arg(long, value_name = "URL")]
    pub(crate) url: Option<String>,
    /// Numbers of clients at once, 1 to 64
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [1, 4, 16], value_parser = clap::value_parser!(u32).range(1..=64), allow_negative_numbers = true)]
    pub(crate) streams: Vec<u32>,
    /// humaneval, gsm8k, or a file: on each line a JSON object with `prompt`, `question` or `text`, or plain text
    #[arg(long, value_name = "SET-OR-FILE", default_value = "humaneval")]
    pub(crate) prompts: String,
    /// Requests of a turn at the least; twice the clients if that is more
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=10_000), allow_negative_numbers = true)]
    pub(crate) requests: u32,
    /// Tokens to write for each, 2 to 65536; past an end token too, so that all do equal work
    #[arg(short = 'n', long, value_name = "N", default_value_t = 96, value_parser = clap::value_parser!(u32).range(2..=65536), allow_negative_numbers = true)]
    pub(crate) max_tokens: u32,
    /// Turns that count, 1 to 1000; one before them does not
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000), allow_negative_numbers = true)]
    pub(crate) repeats: u32,
    #[command(flatten)]
    pub(crate) pair: PairArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct OutputArgs {
    /// Write one JSON object instead of a table
    #[arg(long)]
    pub(crate) json: bool,
    /// Write the JSON object to a file as well
    #[arg(long, value_name = "FILE")]
    pub(crate) save: Option<PathBuf>,
    /// Write no notes or progress to standard error; errors still are
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct PlotArgs {
    /// Draw the result as an SVG picture
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) plot: Option<PathBuf>,
}
