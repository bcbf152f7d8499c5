//! The command line as written. Flags shared by commands are declared once, so they are spelled the same in all.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

pub(crate) use crate::args_sampling::SamplingArgs;
use crate::bench::BenchCommand;
use crate::device::DeviceArg;
use crate::serve::args::ServeArgs;

const EXAMPLES: &str = "\
Examples:
  overdraft run                                      watch the built-in demo model write Python
  overdraft run 'def quicksort(items):'              have it continue your text
  overdraft run -m qwen3-8b.gguf --chat 'Who was Ada Lovelace?'
  git diff | overdraft run -m model.gguf --system 'Summarise this change.'
  overdraft chat -m model.gguf                       talk with a model
  overdraft serve -m model.gguf                      answer OpenAI's and Anthropic's clients
  overdraft inspect model.gguf                       what is in a file, and whether it fits here
  overdraft check -m model.gguf -d draft.gguf        that a draft changes no token and no bit
  overdraft bench decode --plot speed.svg            how fast, against plain decoding, with equal text

Without -m, commands use the demo model inside the binary: a very small one, which writes
plausible, not correct, Python. `overdraft COMMAND --help` explains every flag.";

/// Run large language models from GGUF files and Hugging Face folders.
#[derive(Debug, Parser)]
#[command(name = "overdraft", version, after_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Continue a text, or answer one question, and stop
    Run(Box<RunArgs>),
    /// Talk with a model, line by line
    Chat(Box<ChatArgs>),
    /// Answer requests over HTTP: OpenAI's and Anthropic's APIs, many at once
    Serve(Box<ServeArgs>),
    /// Show what a model file holds and what it needs
    Inspect(InspectArgs),
    /// Show that speculation changes nothing: every token and bit, by a draft and by guesses that know the text
    Check(Box<CheckArgs>),
    /// Measure speed: decoding, prompts, rounds, single ops, this machine, and against llama.cpp
    #[command(subcommand)]
    Bench(Box<BenchCommand>),
}

#[derive(Debug, Args)]
#[command(
    after_help = "The text goes to standard output as it is written; notes and figures go to standard error."
)]
pub(crate) struct RunArgs {
    /// The text to continue, or the question with --chat; `-` or nothing reads standard input [default: a demo
    /// prompt when standard input is a terminal]
    pub(crate) prompt: Option<String>,
    /// Read the prompt from a UTF-8 file, exactly as it is
    #[arg(long, value_name = "PATH", conflicts_with = "prompt")]
    pub(crate) file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) conversation: ConversationArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    /// Write one JSON object at the end instead of streaming text: text, token ids, figures, settings
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
    /// Write no notes, progress or figures to standard error; errors still are
    #[arg(short, long, help_heading = "Output")]
    pub(crate) quiet: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ConversationArgs {
    /// Wrap the prompt as a user's message in the model's chat template [default: --no-chat]
    #[arg(long, overrides_with = "no_chat")]
    pub(crate) chat: bool,
    /// Give the prompt to the model as it is; special tokens written in it count as such
    #[arg(long, overrides_with = "chat", conflicts_with = "system")]
    pub(crate) no_chat: bool,
    /// Begin the conversation with this system message; implies --chat [default: none]
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "At the prompt, /help lists the commands. Ctrl-C stops an answer; at the prompt it leaves."
)]
pub(crate) struct ChatArgs {
    /// Begin the conversation with this system message [default: none]
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    /// Write no notes, progress or figures to standard error; errors still are
    #[arg(short, long, help_heading = "Output")]
    pub(crate) quiet: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Guesses come from the draft, then from a script that knows the text and errs on purpose: it needs no draft, and drives every accepted length at every alignment as far as the texts reach (--prompts humaneval --limit 32 -n 256 reaches all).\nExits with 0 only if every text is the same and every mode accepted something, so was put to the test."
)]
pub(crate) struct CheckArgs {
    /// Prompts to run: humaneval, gsm8k, or a file with a JSON object with `prompt`, or plain text, on each line
    /// [default: four built in]
    #[arg(long, value_name = "SET-OR-FILE")]
    pub(crate) prompts: Option<String>,
    /// The first so many prompts of it [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), allow_negative_numbers = true)]
    pub(crate) limit: Option<u32>,
    /// Tokens to write after each prompt, 1 to 4096
    #[arg(short = 'n', long = "max-tokens", value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096), allow_negative_numbers = true)]
    pub(crate) tokens: u32,
    /// Instead: so many texts at once, 1 to 64, such as 1,5,16. Requests with stop texts, limits, log-probabilities and
    /// prompts of up to 300 tokens come, wait and go at random; each must write what it writes alone without a draft
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=64), allow_negative_numbers = true)]
    pub(crate) streams: Vec<u32>,
    /// With --streams: decides who comes and goes when
    #[arg(long, value_name = "N", default_value_t = 1, requires = "streams")]
    pub(crate) seed: u64,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Write one JSON object
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
    /// Write no notes or progress to standard error; errors still are
    #[arg(short, long, help_heading = "Output")]
    pub(crate) quiet: bool,
}

#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// A GGUF file (the first, if it is split), a safetensors file or a Hugging Face folder [default: the demo pair
    /// inside the binary]
    #[arg(value_name = "FILE-OR-FOLDER")]
    pub(crate) path: Option<PathBuf>,
    /// List every tensor: name, type, shape, bytes
    #[arg(long)]
    pub(crate) tensors: bool,
    /// Write one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) memory: MemoryArgs,
}

/// Which model, what runs it, and when it drafts.
#[derive(Debug, Args)]
pub(crate) struct ModelArgs {
    #[command(flatten)]
    pub(crate) pair: PairArgs,
    #[command(flatten)]
    pub(crate) drafting: DraftArgs,
}

/// Which model and draft, and what runs them.
#[derive(Debug, Args)]
#[command(next_help_heading = "Model and machine")]
pub(crate) struct PairArgs {
    /// A GGUF file (the first, if it is split) or a Hugging Face folder [default: the demo model inside the binary]
    #[arg(short, long, value_name = "FILE-OR-FOLDER")]
    pub(crate) model: Option<PathBuf>,
    /// A DFlash draft made for the model, GGUF or folder [default: the demo model's own, or one in the model's folder
    /// that fits]
    #[arg(short, long, value_name = "FILE-OR-FOLDER")]
    pub(crate) draft: Option<PathBuf>,
    /// Positions that the draft looks back at most, 64 to 16777216; fewer take less memory [default: as many as the
    /// context]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(64..=1 << 24), allow_negative_numbers = true)]
    pub(crate) draft_window: Option<u32>,
    /// Read prompts by the arithmetic that writes, several times slower on CUDA; on the CPU it is the same and this
    /// changes nothing [default: on CUDA prompts have an arithmetic of their own]
    #[arg(long)]
    pub(crate) exact: bool,
    #[command(flatten)]
    pub(crate) memory: MemoryArgs,
    #[command(flatten)]
    pub(crate) computing: ComputeArgs,
}

/// What computes.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct ComputeArgs {
    /// Threads to compute with, 1 to 1024; the text is the same with any number [default: the cores of this machine]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024), allow_negative_numbers = true)]
    pub(crate) threads: Option<u16>,
    /// What computes: auto, cpu, cuda, cuda:N, or cpu-reference, which is slow and exact, for comparisons
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub(crate) device: DeviceArg,
}

/// Speculative decoding: when to guess ahead, and how far. The text is the same with any of these.
#[derive(Clone, Copy, Debug, Default, Args)]
#[command(next_help_heading = "Speculative decoding (changes the speed, never the text)")]
pub(crate) struct DraftArgs {
    /// When to guess ahead: as it pays, never, always in one line, always in a tree
    #[arg(long, value_enum, default_value_t = DraftModeArg::Auto)]
    pub(crate) draft_mode: DraftModeArg,
    /// Guesses to check in one pass: with auto at most, with chain and tree exactly; 0 is off, 63 the most
    /// [default: as many as pay]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32), allow_negative_numbers = true)]
    pub(crate) budget: Option<u32>,
    /// Neither use nor keep what earlier runs learned of this machine's speed [default: kept in the user's cache folder]
    #[arg(long)]
    pub(crate) no_cost_cache: bool,
    /// Colour the text by where it came from: accepted guesses green, corrected ones yellow
    #[arg(long)]
    pub(crate) show_draft: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum DraftModeArg {
    #[default]
    Auto,
    Off,
    Chain,
    Tree,
}

/// What decides how much memory a sequence takes.
#[derive(Debug, Args)]
pub(crate) struct MemoryArgs {
    /// Tokens of prompt and answer together, 2 to 16777216 [default: what the model was trained for, at most 32768,
    /// less if memory is short]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=1 << 24), allow_negative_numbers = true)]
    pub(crate) ctx: Option<u32>,
    /// How the context's keys and values are stored; f32 takes twice the memory
    #[arg(long, value_enum, default_value_t = KvArg::F16)]
    pub(crate) kv: KvArg,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum KvArg {
    F16,
    Bf16,
    F32,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        super::Cli::command().debug_assert();
    }

    #[test]
    fn every_flag_explains_itself() {
        let cli = super::Cli::command();
        for command in cli.get_subcommands().flat_map(|c| std::iter::once(c).chain(c.get_subcommands())) {
            for arg in command.get_arguments() {
                assert!(arg.get_help().is_some(), "{} {}", command.get_name(), arg.get_id());
            }
        }
    }
}
