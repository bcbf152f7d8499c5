//! Records what the demo draft says at every position of texts that the demo target writes, for the policy's tests:
//!
//! ```text
//! cargo run --release -p overdraft-engine --example record_drafts -- OUT.safetensors \
//!     code=humaneval.jsonl:6:0 prose=gsm8k.jsonl:4:0.8
//! ```
//!
//! Each set is NAME=FILE:COUNT:TEMPERATURE, a JSON object with `prompt` on each line of the file. A draft's candidates
//! depend on the text alone, so any policy can be played over what is recorded here.

#![allow(clippy::print_stdout, reason = "its output is its purpose")]

use std::path::Path;
use std::sync::{Arc, Mutex};

use overdraft_cpu::Cpu;
use overdraft_engine::spec::accept::Verdict;
use overdraft_engine::spec::budget::{Forecast, Growth};
use overdraft_engine::spec::drafter::{Candidates, Drafter, ProposeInput};
use overdraft_engine::spec::policy::Mode;
use overdraft_engine::spec::tree::TokenTree;
use overdraft_engine::{Drawing, Engine, EngineConfig, Request};
use overdraft_formats::safetensors::SafeTensorsWriter;
use overdraft_formats::tokenizer::Specials;
use overdraft_formats::{Bytes, DType};
use overdraft_models::{Checkpoint, Decoder, Draft};

const TOKENS: usize = 128;
/// Ranks kept of each depth: trees of 48 nodes hardly reach past the fourth.
const RANKS: usize = 4;
/// Steps of a nat that a log-probability is kept to.
const STEPS: f32 = 16.0;

type Seen = Vec<Vec<(u32, f32)>>;

/// Proposes nothing and writes down what it was offered: the text is written token by token.
struct Listener(Arc<Mutex<Vec<Seen>>>);

impl Drafter for Listener {
    fn wants_forward(&self) -> bool {
        true
    }

    fn proposes_unaided(&self) -> bool {
        false
    }

    fn propose(&mut self, input: &ProposeInput<'_>, growth: &Growth<'_>, tree: &mut TokenTree) -> Forecast {
        if let Candidates::Depths(depths) = input.candidates {
            let seen = depths.iter().map(|d| d[..RANKS].to_vec()).collect();
            self.0.lock().expect("one thread").push(seen);
        }
        growth.settle(tree)
    }

    fn learn(&mut self, _: &TokenTree, _: &Verdict) {}

    fn committed(&mut self, _: u32) {}
}

fn prompts(path: &str, n: usize) -> Result<Vec<String>, Box<dyn std::error::Error>> {
    let text = std::fs::read_to_string(path)?;
    let prompt = |line: &str| -> Result<String, Box<dyn std::error::Error>> {
        let object: serde_json::Value = serde_json::from_str(line)?;
        Ok(object["prompt"].as_str().ok_or("a line without `prompt`")?.to_owned())
    };
    text.lines().take(n).map(prompt).collect()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let out = args.next().ok_or("give a file to write")?;
    let target = Checkpoint::open(Path::new("models/pycoder-q4_k_m.gguf"))?;
    let tokenizer = Arc::new(target.tokenizer()?);
    let mut decoder = Decoder::load(&target, |_, _| {})?;
    let draft = Draft::load(&Checkpoint::open(Path::new("models/pycoder-dflash-q8_0.gguf"))?, &mut decoder)?;
    let depths = draft.settings.n_drafts();
    let config =
        EngineConfig { context: 1024, draft_mode: Mode::Tree, budget: Some(1), ..EngineConfig::default() };
    let mut engine = Engine::new(decoder, Some(draft), tokenizer.clone(), Box::new(Cpu::new(2)), config)?;
    let mut writer = SafeTensorsWriter::new();
    for set in args {
        let (name, rest) = set.split_once('=').ok_or("NAME=FILE:COUNT:TEMPERATURE")?;
        let parts: Vec<&str> = rest.rsplitn(3, ':').collect();
        let [temperature, n, file] = parts[..] else { return Err("NAME=FILE:COUNT:TEMPERATURE".into()) };
        let temperature: f32 = temperature.parse()?;
        for (i, prompt) in prompts(file, n.parse()?)?.iter().enumerate() {
            let prompt = tokenizer.encode(prompt, Specials::Parse);
            let seen = Arc::new(Mutex::new(Vec::new()));
            let request = Request {
                prompt: prompt.clone(),
                max_tokens: TOKENS + depths + 2,
                sampling: Drawing { temperature, top_p: 0.9, seed: i as u64, ..Drawing::GREEDY }.into(),
                stop_ids: vec![],
                stop_strings: vec![],
            };
            engine.admit_with(request, Box::new(Listener(seen.clone())))?;
            let mut text = Vec::new();
            while !engine.is_idle() {
                text.extend(engine.step()?.iter().map(|e| e.token));
            }
            // The first token comes with the prompt; the draft is asked from then on.
            let seen = seen.lock().expect("one thread");
            let mut bytes = Vec::new();
            let mut right = vec![0; depths];
            for (at, block) in seen.iter().take(TOKENS).enumerate() {
                let mut all = true;
                for (depth, ranked) in block.iter().enumerate() {
                    let true_rank = ranked.iter().position(|c| c.0 == text[at + 1 + depth]);
                    bytes.push(true_rank.map_or(u8::MAX, |r| r as u8));
                    bytes.extend(ranked.iter().map(|c| (-c.1 * STEPS).round().clamp(0.0, 255.0) as u8));
                    all &= true_rank == Some(0);
                    right[depth] += usize::from(all);
                }
            }
            let per_round = 1.0 + right.iter().sum::<usize>() as f64 / TOKENS as f64;
            println!("{name}.{i}: a chain of {depths} would bring {per_round:.2} tokens a round");
            let ids = |tokens: &[u32]| Bytes::from_vec(tokens.iter().flat_map(|t| t.to_le_bytes()).collect());
            let mut add = |what: &str, dtype, shape: &[usize], bytes| {
                writer.tensor(&format!("{name}.{i}.{what}"), dtype, shape, bytes);
            };
            add("prompt", DType::I32, &[prompt.len()], ids(&prompt));
            add("text", DType::I32, &[text.len()], ids(&text));
            add("candidates", DType::U8, &[TOKENS, depths, 1 + RANKS], Bytes::from_vec(bytes));
        }
    }
    std::fs::write(out, writer.to_bytes()?)?;
    let learned = engine.plain_seconds();
    println!("a plain step took {learned:?} s");
    Ok(())
}
