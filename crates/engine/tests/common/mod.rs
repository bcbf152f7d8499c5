//! Files of the repository that tests read, and the demo pair made of them.
#![allow(dead_code, unused_imports, reason = "each test program uses a part")]

#[path = "../../../models/tests/common/families.rs"]
mod families;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use overdraft_cpu::Cpu;
use overdraft_engine::{Engine, EngineConfig};
use overdraft_models::{Checkpoint, Decoder, Draft};
use overdraft_plan::Backend;

pub(crate) use families::FAMILIES;

pub(crate) fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum DemoPair {
    TargetAlone,
    WithDraft,
}

pub(crate) fn demo_pair(pair: DemoPair, config: EngineConfig) -> Engine {
    demo_pair_on(Box::new(Cpu::new(2)), pair, config)
}

pub(crate) fn demo_pair_on(backend: Box<dyn Backend>, pair: DemoPair, config: EngineConfig) -> Engine {
    let checkpoint = Checkpoint::open(&repository("models/pycoder-q4_k_m.gguf")).unwrap();
    let tokenizer = Arc::new(checkpoint.tokenizer().unwrap());
    let mut decoder = Decoder::load(&checkpoint, |_, _| {}).unwrap();
    let draft = (pair == DemoPair::WithDraft).then(|| {
        let draft = Checkpoint::open(&repository("models/pycoder-dflash-q8_0.gguf")).unwrap();
        Draft::load(&draft, &mut decoder).unwrap()
    });
    Engine::new(decoder, draft, tokenizer, backend, config).unwrap()
}
