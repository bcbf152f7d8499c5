//! What `bench/instructions` counts under callgrind: every hot op and whole steps, each inside one call of [`counted`],
//! on one thread with AVX2 (which is what valgrind knows). Prints the names in the order they are run.

#![allow(clippy::print_stdout, reason = "its output is its purpose")]

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use overdraft_cpu::Cpu;
use overdraft_cpu::linear::Isa;
use overdraft_cpu::workload::{Runner, Size, Workload, find};
use overdraft_engine::spec::policy::Mode;
use overdraft_engine::{Engine, EngineConfig, Request, Sampling};
use overdraft_formats::DType;
use overdraft_models::{Checkpoint, Decoder, Draft};
use overdraft_plan::KvType;

type Res<T> = Result<T, Box<dyn Error>>;

/// (op, type, dimensions, rows, steps). A recurrent layer's work repeats after 16 positions. Small, since valgrind takes
/// fifty times as long.
#[rustfmt::skip]
const OPS: &[(&str, DType, &[usize], usize, usize)] = &[
    ("linear",            DType::Q8_0, &[512, 512],   1,  2),
    ("linear",            DType::Q8_0, &[512, 512],   4,  1),
    ("linear",            DType::Q8_0, &[512, 512],   16, 1),
    ("linear",            DType::Q4_K, &[512, 512],   1,  2),
    ("linear",            DType::Q4_K, &[512, 512],   4,  1),
    ("linear",            DType::Q4_K, &[512, 512],   16, 1),
    ("linear",            DType::Q6_K, &[512, 512],   1,  2),
    ("linear",            DType::F16,  &[512, 512],   1,  2),
    ("linear-glu",        DType::Q8_0, &[512, 512],   1,  2),
    ("linear-add",        DType::Q8_0, &[512, 512],   1,  2),
    ("attention",         DType::F32,  &[8, 2, 64],   1,  4),
    ("attention",         DType::F32,  &[8, 2, 64],   16, 1),
    ("attention",         DType::F32,  &[8, 2, 64],   64, 1),
    ("recurrent",         DType::F32,  &[2, 4, 64],   1,  16),
    ("recurrent",         DType::F32,  &[2, 4, 64],   16, 4),
    ("recurrent",         DType::F32,  &[2, 4, 64],   64, 1),
    ("recurrent-prepare", DType::F32,  &[2, 4, 64],   1,  4),
    ("norm",              DType::F32,  &[1024],       1,  4),
    ("top-tokens",        DType::F32,  &[8192, 16],   15, 1),
];

/// Callgrind counts while in here, and writes what it counted on leaving. Never inlined: it is found by its name.
#[inline(never)]
fn counted(work: &mut dyn FnMut() -> Res<()>) -> Res<()> {
    let done = work();
    // A last call that were a jump would leave this function before its work begins.
    std::hint::black_box(&done);
    done
}

fn main() -> Res<()> {
    let isa = Isa::available().find(|isa| isa.name() == "avx2").ok_or("this CPU has no AVX2")?;
    for (name, dtype, dims, rows, steps) in OPS {
        let (kv, dims) = (KvType::F16, dims.to_vec());
        let size = Size { dims, dtype: *dtype, kv, depth: 256, working_set: 0, most_copies: 1 };
        let op = find(name).ok_or("no such op")?;
        let workload = Workload::new(op, &size)?;
        let mut runner = Runner::new(&workload, Box::new(Cpu::with_isa(1, isa)), *rows)?;
        runner.run()?;
        counted(&mut || (0..*steps).try_for_each(|_| Ok(runner.run()?)))?;
        let of_type = if op.has_type { format!("-{}", dtype.name().to_lowercase()) } else { String::new() };
        println!("{name}{of_type}-rows-{rows}");
    }
    whole_steps(isa)
}

/// The demo pair: reading a prompt, writing plainly, writing with a chain of guesses.
fn whole_steps(isa: Isa) -> Res<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models");
    let target = Checkpoint::open(&folder.join("pycoder-q4_k_m.gguf"))?;
    let draft = Checkpoint::open(&folder.join("pycoder-dflash-q8_0.gguf"))?;
    let tokenizer = Arc::new(target.tokenizer()?);
    for (mode, name, rounds) in [(Mode::Off, "decode-step", 4), (Mode::Chain, "round-chain-15", 2)] {
        let mut decoder = Decoder::load(&target, |_, _| {})?;
        let draft = (mode != Mode::Off).then(|| Draft::load(&draft, &mut decoder)).transpose()?;
        let budget = Some(15);
        let config = EngineConfig { context: 256, draft_mode: mode, budget, ..EngineConfig::default() };
        let backend = Box::new(Cpu::with_isa(1, isa));
        let mut engine = Engine::new(decoder, draft, tokenizer.clone(), backend, config)?;
        let request = Request {
            prompt: (0..32).map(|i| 300 + i * 37 % 500).collect(),
            max_tokens: 128,
            sampling: Sampling::default(),
            stop_ids: Vec::new(),
            stop_strings: Vec::new(),
        };
        engine.admit(request)?;
        if mode == Mode::Off {
            counted(&mut || engine.step().map(|_| ()).map_err(Into::into))?;
            println!("prefill-32");
        } else {
            engine.step()?;
        }
        // The first round records its plans.
        engine.step()?;
        counted(&mut || (0..rounds).try_for_each(|_| engine.step().map(|_| ()).map_err(Into::into)))?;
        println!("{name}");
    }
    Ok(())
}
