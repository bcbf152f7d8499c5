//! Writing allocates nothing: not plain decoding, and not rounds with a draft.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use common::repository;
use overdraft_cpu::Cpu;
use overdraft_engine::spec::policy::Mode;
use overdraft_engine::{Drawing, Engine, EngineConfig, Events, Request, Sampling};
use overdraft_formats::tokenizer::Specials;
use overdraft_models::{Checkpoint, Decoder, Draft};

struct Counting;

static COUNTING: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);
static HAS_BEGUN: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Of the test runner: the thread with which the process begins. It prints, and allocates, when a test takes a minute.
    static IS_RUNNERS: Cell<bool> = const { Cell::new(false) };
}

fn count() {
    if !HAS_BEGUN.load(SeqCst) && !HAS_BEGUN.swap(true, SeqCst) {
        IS_RUNNERS.set(true);
    }
    if COUNTING.load(SeqCst) && !IS_RUNNERS.get() {
        ALLOCATIONS.fetch_add(1, SeqCst);
    }
}

// SAFETY: every call goes to the system allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) }
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of all threads but the test runner's while `work` runs.
fn allocations<R>(work: impl FnOnce() -> R) -> (usize, R) {
    ALLOCATIONS.store(0, SeqCst);
    COUNTING.store(true, SeqCst);
    let result = work();
    COUNTING.store(false, SeqCst);
    (ALLOCATIONS.load(SeqCst), result)
}

/// Over the ends of a page and of grids.
const TOKENS: usize = 90;

/// One test in this binary, so that nobody else allocates meanwhile.
#[test]
fn no_step_that_writes_allocates() {
    // With `--test-threads 1` the runner's thread is the test's own.
    IS_RUNNERS.set(false);
    assert_eq!(allocations(|| std::hint::black_box(vec![0u8; 100])).0, 1, "what is counted");
    let warm = Sampling::from(Drawing { temperature: 0.8, top_p: 0.95, seed: 7, ..Default::default() });
    let penalised = Sampling::from(Drawing { repetition_penalty: 1.1, ..Default::default() });
    for (mode, sampling, case) in [
        (Mode::Off, Sampling::default(), "greedy"),
        (Mode::Off, warm, "sampled"),
        (Mode::Off, penalised, "penalised"),
        (Mode::Chain, Sampling::default(), "chains"),
        (Mode::Tree, Sampling::default(), "trees"),
    ] {
        check(mode, &sampling, case);
    }
}

fn check(mode: Mode, sampling: &Sampling, case: &str) {
    let checkpoint = Checkpoint::open(&repository("models/pycoder-q4_k_m.gguf")).unwrap();
    let tokenizer = Arc::new(checkpoint.tokenizer().unwrap());
    let mut decoder = Decoder::load(&checkpoint, |_, _| {}).unwrap();
    let draft = (mode != Mode::Off).then(|| {
        let file = Checkpoint::open(&repository("models/pycoder-dflash-q8_0.gguf")).unwrap();
        Draft::load(&file, &mut decoder).unwrap()
    });
    let config = EngineConfig { context: 512, draft_mode: mode, budget: Some(12), ..Default::default() };
    let mut engine = Engine::new(decoder, draft, tokenizer, Box::new(Cpu::new(2)), config).unwrap();
    let prompt =
        engine.tokenizer().encode("class FileCache:\n    def __init__(self, path):\n", Specials::Parse);
    let mut events = Events::default();
    // The first answer makes every buffer and plan; the second is what is counted.
    for counted in [false, true] {
        let request = Request {
            prompt: prompt.clone(),
            max_tokens: TOKENS,
            sampling: sampling.clone(),
            stop_ids: Vec::new(),
            stop_strings: Vec::new(),
        };
        engine.admit(request).unwrap();
        let (mut tokens, mut steps) = (0, 0);
        while !engine.is_idle() {
            let (n, outcome) = allocations(|| engine.step_into(&mut events));
            outcome.unwrap();
            // The prompt's step, with which the answer begins, may allocate, and the last rounds, whose smaller trees take
            // plans of their own.
            let steady = counted && tokens > 0 && tokens + 17 < TOKENS;
            assert!(!steady || n == 0, "{case}: {n} allocations in step {steps}");
            tokens += events.len();
            steps += 1;
        }
        assert_eq!(tokens, TOKENS);
    }
}
