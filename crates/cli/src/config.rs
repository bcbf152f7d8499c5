//! Settings as run: built once from the flags, what the model recommends and this machine. No `Option`s are left.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use overdraft_engine::spec::policy::Mode;
use overdraft_engine::{Drawing, Sampling, Witness};
use overdraft_models::RecommendedSampling;
use overdraft_plan::KvType;
use serde_json::{Value, json};

use crate::args::{ComputeArgs, DraftArgs, DraftModeArg, KvArg, ModelArgs, PairArgs, SamplingArgs};
use crate::device::Device;
use crate::failure::{Failure, Result};
use crate::model::Model;
use crate::screen::Screen;

/// A context that suits a laptop; more is there for the asking.
const LONGEST_DEFAULT: usize = 32_768;
/// Raw text rarely ends by itself.
const RAW_TOKENS: usize = 256;

/// What runs the model.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    pub(crate) context: usize,
    /// The user named the context: what does not fit is refused. Otherwise it shrinks to what does.
    pub(crate) context_is_asked: bool,
    pub(crate) threads: usize,
    pub(crate) device: Device,
    pub(crate) kv: KvType,
    pub(crate) draft_mode: Mode,
    pub(crate) budget: Option<usize>,
    /// Positions that the draft looks back at most.
    pub(crate) draft_window: Option<u32>,
    /// Use and keep what runs learn of this machine's speed.
    pub(crate) cost_cache: bool,
    /// Texts written at once.
    pub(crate) streams: usize,
    /// Bytes for the contexts of all of them; `None` is what memory holds.
    pub(crate) kv_memory: Option<usize>,
    /// Bytes for prefixes that later requests may begin with.
    pub(crate) cache_memory: usize,
    /// Between tokens of a text, at most, while others' prompts are read; `None` for nobody beside it.
    pub(crate) token_gap: Option<Duration>,
    /// Guesses are the draft's alone, also where looking in the text costs nothing.
    pub(crate) draft_only: bool,
    /// Prompts are read by the arithmetic that writes.
    pub(crate) exact: bool,
    /// What the engine shows of its logits, for `check`.
    pub(crate) witness: Witness,
}

impl Machine {
    pub(crate) fn resolve(args: &ModelArgs, trained_context: usize, screen: &Screen) -> Result<Self> {
        Ok(Self::of_pair(&args.pair, trained_context, screen)?.drafting(&args.drafting))
    }

    /// The machine for a pair, drafting as it pays by what this run learns.
    pub(crate) fn of_pair(args: &PairArgs, trained_context: usize, screen: &Screen) -> Result<Self> {
        let (device, threads) = computing(&args.computing, screen)?;
        Ok(Self {
            context: default_context(args.memory.ctx, trained_context),
            context_is_asked: args.memory.ctx.is_some(),
            threads,
            device,
            kv: kv_type(args.memory.kv),
            draft_mode: Mode::Auto,
            budget: None,
            draft_window: args.draft_window,
            cost_cache: false,
            streams: 1,
            kv_memory: None,
            cache_memory: 0,
            token_gap: None,
            draft_only: false,
            exact: args.exact,
            witness: Witness::None,
        })
    }

    fn drafting(self, args: &DraftArgs) -> Self {
        let budget = args.budget.map(|n| n as usize);
        let cost_cache = !args.no_cost_cache;
        Self { draft_mode: draft_mode(args.draft_mode), budget, cost_cache, ..self }
    }
}

/// The device and its threads.
pub(crate) fn computing(args: &ComputeArgs, screen: &Screen) -> Result<(Device, usize)> {
    let device = Device::resolve(args.device, screen)?;
    let cores = || std::thread::available_parallelism().map_or(1, |n| n.get());
    let threads = match (device, args.threads) {
        (Device::Cpu | Device::Cuda(_), asked) => asked.map_or_else(cores, usize::from),
        (Device::CpuReference, None | Some(1)) => 1,
        (Device::CpuReference, Some(n)) => {
            return Err(Failure::input(format!("--threads {n}: cpu-reference computes on one thread"))
                .hint("leave out --threads, or use --device cpu"));
        }
    };
    Ok((device, threads))
}

pub(crate) fn default_context(asked: Option<u32>, trained: usize) -> usize {
    // At least 2: a file may say it was trained for 1.
    asked.map_or(trained.clamp(2, LONGEST_DEFAULT), |n| n as usize)
}

fn draft_mode(arg: DraftModeArg) -> Mode {
    match arg {
        DraftModeArg::Auto => Mode::Auto,
        DraftModeArg::Off => Mode::Off,
        DraftModeArg::Chain => Mode::Chain,
        DraftModeArg::Tree => Mode::Tree,
    }
}

pub(crate) fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Auto => "auto",
        Mode::Off => "off",
        Mode::Chain => "chain",
        Mode::Tree => "tree",
    }
}

pub(crate) fn kv_type(arg: KvArg) -> KvType {
    match arg {
        KvArg::F16 => KvType::F16,
        KvArg::Bf16 => KvType::Bf16,
        KvArg::F32 => KvType::F32,
    }
}

pub(crate) fn kv_name(kv: KvType) -> &'static str {
    match kv {
        KvType::F16 => "f16",
        KvType::Bf16 => "bf16",
        KvType::F32 => "f32",
    }
}

/// How to answer.
#[derive(Clone, Debug)]
pub(crate) struct Answering {
    pub(crate) sampling: Sampling,
    pub(crate) max_tokens: usize,
    pub(crate) stop_ids: Vec<u32>,
    pub(crate) stop_strings: Vec<String>,
    ignore_eos: bool,
}

impl Answering {
    /// `is_chat`: an answer ends by itself, raw text need not.
    pub(crate) fn resolve(args: &SamplingArgs, model: &Model, is_chat: bool) -> Result<Self> {
        let vocab = model.hyper.vocab;
        let sampling = sampling(args, &model.checkpoint.recommended_sampling()?);
        sampling.check(vocab)?;
        if let Some(id) = args.stop_id.iter().find(|id| **id as usize >= vocab) {
            return Err(Failure::input(format!("--stop-id {id}: the vocabulary has {vocab} tokens")));
        }
        let ends: &[u32] = if args.ignore_eos { &[] } else { model.tokenizer.end_ids() };
        let unset = if is_chat { usize::MAX } else { RAW_TOKENS };
        Ok(Self {
            sampling,
            max_tokens: args.max_tokens.map_or(unset, |n| n as usize),
            stop_ids: [ends, &args.stop_id].concat(),
            stop_strings: args.stop.clone(),
            ignore_eos: args.ignore_eos,
        })
    }
}

/// Flags first, then what the model recommends, then greedy.
fn sampling(args: &SamplingArgs, model: &RecommendedSampling) -> Sampling {
    let off = Drawing::default();
    let varied = args.top_k.is_some() || args.top_p.is_some() || args.min_p.is_some() || args.seed.is_some();
    let temperature = args.temperature.or(model.temperature);
    let temperature = temperature.unwrap_or(if varied { 1.0 } else { off.temperature });
    let new_seed = || if temperature > 0.0 { fresh_seed() } else { off.seed };
    let drawing = Drawing {
        temperature,
        top_k: args.top_k.or(model.top_k).unwrap_or(off.top_k),
        top_p: args.top_p.or(model.top_p).unwrap_or(off.top_p),
        min_p: args.min_p.or(model.min_p).unwrap_or(off.min_p),
        repetition_penalty: args
            .repetition_penalty
            .or(model.repetition_penalty)
            .unwrap_or(off.repetition_penalty),
        frequency_penalty: args.frequency_penalty.unwrap_or(off.frequency_penalty),
        presence_penalty: args.presence_penalty.unwrap_or(off.presence_penalty),
        seed: args.seed.unwrap_or_else(new_seed),
        choice: off.choice,
    };
    Sampling { drawing, bias: args.logit_bias.clone() }
}

/// Kept below 2^32 so that it is exact in every JSON reader and easy to type again.
fn fresh_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (now.as_nanos() as u64 ^ (u64::from(std::process::id()) << 16)) & 0xffff_ffff
}

/// Everything that decided the text and its speed, for programs.
pub(crate) fn as_json(machine: &Machine, answering: &Answering, context: usize, chat: bool) -> Value {
    let Sampling { drawing: s, bias } = &answering.sampling;
    let bias: Vec<Value> = bias
        .iter()
        // JSON has no infinity.
        .map(|(id, v)| json!([id, if v.is_finite() { json!(v) } else { json!(v.to_string()) }]))
        .collect();
    json!({
        "context": context,
        "kv": kv_name(machine.kv),
        "device": machine.device.name(),
        "threads": machine.threads,
        "draft_mode": mode_name(machine.draft_mode),
        "budget": machine.budget,
        "draft_window": machine.draft_window,
        "chat": chat,
        "max_tokens": answering.max_tokens.min(context),
        "temperature": s.temperature,
        "top_k": s.top_k,
        "top_p": s.top_p,
        "min_p": s.min_p,
        "repetition_penalty": s.repetition_penalty,
        "frequency_penalty": s.frequency_penalty,
        "presence_penalty": s.presence_penalty,
        "logit_bias": bias,
        "seed": s.seed,
        "stop": answering.stop_strings,
        "stop_ids": answering.stop_ids,
        "ignore_eos": answering.ignore_eos,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip]
    fn flags_beat_recommendations_and_recommendations_beat_greedy() {
        let none = RecommendedSampling::default();
        let some = RecommendedSampling { temperature: Some(0.7), top_p: Some(0.8), ..none };
        let flags = |temperature, top_k| SamplingArgs { temperature, top_k, seed: None, ..Default::default() };
        //    flags                      model  temperature  top_k  top_p
        check(flags(None, None),         &none, 0.0,         0,     1.0, "greedy");
        check(flags(None, None),         &some, 0.7,         0,     0.8, "the model's word");
        check(flags(Some(0.0), None),    &some, 0.0,         0,     0.8, "a flag's word");
        check(flags(None, Some(40)),     &none, 1.0,         40,    1.0, "top-k would mean nothing when greedy");
        check(flags(None, Some(40)),     &some, 0.7,         40,    0.8, "both");
    }

    #[track_caller]
    fn check(
        args: SamplingArgs,
        model: &RecommendedSampling,
        temperature: f32,
        top_k: u32,
        top_p: f32,
        case: &str,
    ) {
        let s = sampling(&args, model).drawing;
        assert_eq!((s.temperature, s.top_k, s.top_p), (temperature, top_k, top_p), "{case}");
        assert!(temperature > 0.0 || s.seed == 0, "{case}: greedy has no seed");
    }

    #[test]
    fn the_context_follows_the_flag_then_the_model() {
        for (asked, trained, context) in
            [(None, 4096, 4096), (None, 262_144, 32_768), (Some(100_000), 4096, 100_000), (None, 1, 2)]
        {
            assert_eq!(default_context(asked, trained), context, "{asked:?} {trained}");
        }
    }
}
