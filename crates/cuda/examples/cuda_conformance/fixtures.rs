//! Every family on the device against Hugging Face's float32 logits and hidden states, as HF checkpoints and at Q8_0.

use std::sync::Arc;

use overdraft_cpu::Cpu;
use overdraft_cuda::{Cuda, Device};
use overdraft_formats::DType;
use overdraft_models::Checkpoint;
use overdraft_plan::{Backend, KvType};

use crate::common::{
    FAMILIES, Runner, as_gguf, closeness, fixture, golden, load, max_difference, relative_difference,
};

/// The bounds of the CPU's own test.
const LOGITS: f32 = 2e-3;
const HIDDEN: f64 = 1e-3;

pub(crate) fn run(device: &Arc<Device>) -> bool {
    let cuda = || -> Box<dyn Backend> { Box::new(Cuda::new(device.clone()).unwrap()) };
    let mut passed = true;
    println!("{:<14} {:>9} {:>9} {:>10} {:>10}", "family", "logits", "hidden", "KL cuda q8", "KL cpu q8");
    for name in FAMILIES {
        let golden = golden(name);
        let checkpoint = Checkpoint::open(&fixture(name)).unwrap();
        let (mut logits, mut hidden) = (0.0f32, 0.0f64);
        let mut bits: Option<Vec<u32>> = None;
        for chunk in [80, 7, 1] {
            let mut runner = Runner::new(load(&checkpoint), cuda(), KvType::F32, 1, 128);
            let out = runner.prefill(0, &golden.ids, chunk);
            let rows = golden.ids.len() * runner.decoder.hyper.hidden;
            for (layer, found) in out.hidden.iter().enumerate() {
                let want = &golden.hidden[(layer + 1) * rows..(layer + 2) * rows];
                hidden = hidden.max(relative_difference(found, want));
            }
            logits = logits.max(max_difference(&out.logits, &golden.logits));
            let found: Vec<u32> = out.logits.iter().map(|x| x.to_bits()).collect();
            if *bits.get_or_insert_with(|| found.clone()) != found {
                println!("FAILED {name}: chunks of {chunk} give other bits");
                passed = false;
            }
        }
        let quantised = |backend: Box<dyn Backend>| {
            let mut runner = Runner::new(load(&as_gguf(name, DType::Q8_0)), backend, KvType::F16, 1, 128);
            let vocab = runner.decoder.hyper.vocab;
            closeness(&runner.prefill(0, &golden.ids, 80).logits, &golden.logits, vocab).mean_kl
        };
        let (on_cuda, on_cpu) = (quantised(cuda()), quantised(Box::new(Cpu::new(4))));
        println!("{name:<14} {logits:>9.1e} {hidden:>9.1e} {on_cuda:>10.4} {on_cpu:>10.4}");
        if !(logits < LOGITS && hidden < HIDDEN) {
            println!("FAILED {name}: bounds are {LOGITS} and {HIDDEN}");
            passed = false;
        }
    }
    passed
}
