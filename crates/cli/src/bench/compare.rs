//! `bench compare`: llama.cpp and we on the same file and threads, by turns.

use std::path::PathBuf;
use std::process::ExitCode;

use overdraft_engine::{Request, Sampling};
use serde_json::{Value, json};

use super::alternate::{ModeRun, Work, write};
use super::args::CompareArgs;
use super::decode::Pair;
use super::mode::BenchMode;
use super::peer::{Peer, Test};
use super::prefill;
use super::spread::{Spread, figures};
use super::table::Table;
use super::{about, check_files, report};
use crate::demo;
use crate::failure::{Failure, Result};
use crate::progress::Progress;
use crate::screen::Screen;

/// One kind of work: rates of both sides, turn by turn.
struct Line {
    work: String,
    test: Test,
    ours: Vec<f64>,
    peers: Vec<f64>,
    /// Texts equal to plain decoding's, where there is something to be equal to.
    identical: Option<(usize, usize)>,
}

impl Line {
    fn new(work: String, test: Test) -> Self {
        Self { work, test, ours: Vec::new(), peers: Vec::new(), identical: None }
    }

    fn ratios(&self) -> Spread {
        Spread::of(self.ours.iter().zip(&self.peers).map(|(ours, peer)| ours / peer))
    }

    fn as_json(&self) -> Value {
        json!({
            "work": self.work,
            "ours_tokens_per_second": self.ours,
            "peer_tokens_per_second": self.peers,
            "ratio": self.ratios().as_json(),
            "identical": self.identical.map(|i| i.0),
            "texts": self.identical.map(|i| i.1),
        })
    }
}

pub(crate) fn compare(args: &CompareArgs) -> Result<ExitCode> {
    check_files(&args.output, None)?;
    let screen = Screen::new(args.output.quiet);
    let pair = Pair::open(&args.pair, &screen)?;
    let work = Work::new(&args.work, 1, &pair.model)?;
    let (written, read) = (work.max_tokens, args.prompt_tokens as usize);
    let machine = pair.machine(&args.pair, work.context().max(read + 1).max(written + 2), &screen)?;
    let file = PeerFile::of(args)?;
    let peer = Peer::find(args.peer.as_deref(), &file.path, machine.threads)?;
    let start = |mode: BenchMode| {
        mode.start(&pair.model, pair.draft.as_ref(), &machine, &screen).map(|e| ModeRun::new(mode, e))
    };
    let mut plain = start(BenchMode::Plain)?;
    let fastest = if pair.draft.is_some() { BenchMode::AUTO } else { BenchMode::Lookup };
    let mut fastest = start(fastest)?;

    let prompt = prefill::tokens(&pair.model, read, &screen)?;
    let depth = work.prompts.iter().map(Vec::len).sum::<usize>() / work.prompts.len();
    let speculation = format!("{} on {}, over their plain decoding", fastest.mode, args.work.prompts);
    let mut lines = [
        Line::new(format!("decode {written}"), Test::Write { tokens: written, depth: 0 }),
        Line::new(format!("prefill {read}"), Test::Read { tokens: read }),
        Line::new(speculation, Test::Write { tokens: written, depth }),
    ];
    let (warmup, repeats) = (args.work.times.warmup as usize, args.work.times.repeats as usize);
    let mut peer_about = Value::Null;
    let mut progress = Progress::new("measuring", &screen);
    let mut identical = 0;
    for turn in 0..warmup + repeats {
        progress.at(turn, warmup + repeats);
        for (i, line) in lines.iter_mut().enumerate() {
            let ours = match i {
                0 => decode(&mut plain, prompt[0], written)?,
                1 => prefill::read(&mut plain.engine.borrow_mut(), &prompt)?.prompt_rate(),
                _ => {
                    let (rate, same) = write_all(&mut plain, &mut fastest, &work)?;
                    identical += if turn < warmup { 0 } else { same };
                    rate
                }
            };
            if turn < warmup {
                continue;
            }
            let (theirs, about) = peer.run(line.test)?;
            line.ours.push(ours);
            line.peers.push(theirs);
            peer_about = about;
        }
    }
    lines[2].identical = Some((identical, repeats * work.prompts.len()));
    progress.clear();
    let json = json!({
        "bench": "compare",
        "about": about::as_json(),
        "model": pair.model.as_json(),
        "draft": pair.draft.as_ref().map(|d| d.name()),
        "device": plain.engine.borrow().describe(),
        "peer": peer_about,
        "repeats": repeats,
        "prompts": args.work.prompts,
        "n_prompts": work.prompts.len(),
        "works": lines.iter().map(Line::as_json).collect::<Vec<Value>>(),
    });
    let build = &json["peer"]["build_number"];
    let (model, device) = (pair.model.checkpoint.name(), plain.engine.borrow().describe());
    let text = format!(
        "{model}: overdraft on {device}, llama.cpp build {build} on {} threads, turns: {repeats}\n\n{}",
        machine.threads,
        table(&lines)
    );
    report(&args.output, &text, &json)?;
    Ok(ExitCode::SUCCESS)
}

fn table(lines: &[Line]) -> Table {
    let mut table = Table::new(&[
        "work",
        "overdraft, tok/s (quartiles)",
        "llama.cpp, tok/s (quartiles)",
        "ratio, median (least..most)",
        "text as plain",
    ]);
    for line in lines {
        let ratios = line.ratios();
        table.row(vec![
            line.work.clone(),
            Spread::of(line.ours.iter().copied()).to_string(),
            Spread::of(line.peers.iter().copied()).to_string(),
            format!("{} ({}..{})", figures(ratios.median), figures(ratios.min), figures(ratios.max)),
            line.identical.map_or_else(|| "-".into(), |(same, of)| format!("{same} of {of}")),
        ]);
    }
    table
}

/// Tokens a second as llama-bench counts them: from a context of one token.
fn decode(plain: &mut ModeRun, token: u32, tokens: usize) -> Result<f64> {
    let request = Request {
        prompt: vec![token],
        // The first comes with the prompt and is not counted.
        max_tokens: tokens + 1,
        sampling: Sampling::default(),
        stop_ids: Vec::new(),
        stop_strings: Vec::new(),
    };
    Ok(write(&mut plain.engine.borrow_mut(), request, &Screen::new(true))?.1.generation_rate())
}

/// Every prompt in both modes; the second's rate over the whole set, and how many texts were the same.
fn write_all(plain: &mut ModeRun, other: &mut ModeRun, work: &Work) -> Result<(f64, usize)> {
    let silent = Screen::new(true);
    let mut same = 0;
    other.samples.clear();
    for prompt in 0..work.prompts.len() {
        let (wanted, _) = write(&mut plain.engine.borrow_mut(), work.request(prompt), &silent)?;
        let (tokens, stats) = write(&mut other.engine.borrow_mut(), work.request(prompt), &silent)?;
        other.samples.push(stats.into());
        same += usize::from(tokens == wanted);
    }
    Ok((other.rate(), same))
}

/// The file the peer opens: the model's own, or a copy of the embedded one that goes away again.
struct PeerFile {
    path: PathBuf,
    is_ours: bool,
}

impl PeerFile {
    fn of(args: &CompareArgs) -> Result<Self> {
        match &args.pair.model {
            Some(path) if path.is_dir() => {
                Err(Failure::input(format!("{}: llama.cpp reads no Hugging Face folder", path.display()))
                    .hint("name a GGUF file"))
            }
            Some(path) => Ok(Self { path: path.clone(), is_ours: false }),
            None => {
                let path = std::env::temp_dir().join(format!("overdraft-demo-{}.gguf", std::process::id()));
                std::fs::write(&path, demo::target_bytes()?)
                    .map_err(|e| Failure::input(format!("{}: {e}", path.display())))?;
                Ok(Self { path, is_ours: true })
            }
        }
    }
}

impl Drop for PeerFile {
    fn drop(&mut self) {
        if self.is_ours {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
