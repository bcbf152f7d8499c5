//! Files of the repository that tests read, and the demo pair made of them.
#![allow(dead_code, unused_imports, unused_macros, reason = "each test program uses a part")]

#[path = "../../../models/tests/common/families.rs"]
mod families;
pub(crate) mod script;

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

/// What a test's own backend leaves to the one behind it.
macro_rules! passes_on {
    ($to:ident: $($what:ident),* $(,)?) => { $(passes_on!(@ $what $to);)* };
    (@ describe $to:ident) => {
        fn describe(&self) -> String {
            self.$to.describe()
        }
    };
    (@ load $to:ident) => {
        fn load(&mut self, weights: std::sync::Arc<overdraft_plan::Weights>) -> Result<(), overdraft_plan::BackendError> {
            self.$to.load(weights)
        }
    };
    (@ allocate $to:ident) => {
        fn allocate(&mut self, spec: &overdraft_plan::StateSpec) -> Result<overdraft_plan::StateId, overdraft_plan::BackendError> {
            self.$to.allocate(spec)
        }
    };
    (@ slots $to:ident) => {
        fn reset_slot(&mut self, state: overdraft_plan::StateId, slot: usize) {
            self.$to.reset_slot(state, slot);
        }
        fn copy_slot(&mut self, state: overdraft_plan::StateId, from: usize, to: usize) {
            self.$to.copy_slot(state, from, to);
        }
    };
    (@ prepare $to:ident) => {
        fn prepare(&mut self, plan: overdraft_plan::Plan) -> Result<overdraft_plan::PlanId, overdraft_plan::BackendError> {
            self.$to.prepare(plan)
        }
    };
    (@ commit $to:ident) => {
        fn commit(&mut self, plan: overdraft_plan::PlanId, state: overdraft_plan::StateId, step: &overdraft_plan::Step, paths: &[Vec<u32>]) {
            self.$to.commit(plan, state, step, paths);
        }
    };
    (@ read $to:ident) => {
        fn read(&self, plan: overdraft_plan::PlanId, act: overdraft_plan::Act) -> &[f32] {
            self.$to.read(plan, act)
        }
    };
    (@ read_choices $to:ident) => {
        fn read_choices(&self, plan: overdraft_plan::PlanId, choice: overdraft_plan::Choice) -> &[(u32, f32)] {
            self.$to.read_choices(plan, choice)
        }
    };
}
pub(crate) use passes_on;
