//! Every family against Hugging Face's float32 logits and hidden states.

mod common;

use common::{FAMILIES, Runner, fixture, golden, load, max_difference, relative_difference};
use overdraft_cpu::Cpu;
use overdraft_models::Checkpoint;
use overdraft_plan::{Backend, KvType};

/// The bounds: logits absolute, each layer's hidden state relative.
const LOGITS: f32 = 2e-3;
const HIDDEN: f64 = 1e-3;

#[track_caller]
fn check(name: &str, backend: Box<dyn Backend>, chunk: usize) {
    let what = format!("{name} on {}, chunks of {chunk}", backend.describe());
    let golden = golden(name);
    let checkpoint = Checkpoint::open(&fixture(name)).unwrap();
    let mut runner = Runner::new(load(&checkpoint), backend, KvType::F32, 1, 128);
    let out = runner.prefill(0, &golden.ids, chunk);
    let rows = golden.ids.len() * runner.decoder.hyper.hidden;
    for (layer, hidden) in out.hidden.iter().enumerate() {
        let want = &golden.hidden[(layer + 1) * rows..(layer + 2) * rows];
        let error = relative_difference(hidden, want);
        assert!(error < HIDDEN, "{what}: hidden state after layer {layer} is {error:.2e} off");
    }
    let error = max_difference(&out.logits, &golden.logits);
    assert!(error < LOGITS, "{what}: logits are {error:.2e} off");
}

#[test]
fn definitions_meet_the_float32_reference() {
    for name in FAMILIES {
        for chunk in [80, 7, 1] {
            check(name, Box::new(Cpu::reference()), chunk);
        }
    }
}

#[test]
fn fast_float_kernels_meet_the_float32_reference() {
    // MXFP4 experts meet int8 activations on the fast path; their closeness is measured in `quantised.rs`.
    for name in FAMILIES.iter().filter(|n| **n != "gpt_oss_mxfp4") {
        for chunk in [80, 7, 1] {
            check(name, Box::new(Cpu::new(2)), chunk);
        }
    }
}
