//! Steps allocate nothing: not the first after a plan is prepared, and not a verify of deep drafts. And a sequence
//! keeps no more than was promised, counted where it is allocated.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicUsize, Ordering::SeqCst};

use common::{fixture, load};
use overdraft_cpu::Cpu;
use overdraft_models::{Checkpoint, RecordOptions};
use overdraft_plan::{Backend, KvType, LayerState, NO_PARENT, RecurrentState, StateSpec, Step, grid_of};

struct Counting;

static COUNTING: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

/// Allocated less freed.
static BYTES: AtomicIsize = AtomicIsize::new(0);

fn count(bytes: isize) {
    if COUNTING.load(SeqCst) {
        ALLOCATIONS.fetch_add(1, SeqCst);
        BYTES.fetch_add(bytes, SeqCst);
    }
}

// SAFETY: every call goes to the system allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        if COUNTING.load(SeqCst) {
            BYTES.fetch_sub(layout.size() as isize, SeqCst);
        }
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) }
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of all threads while `work` runs.
fn allocations(work: impl FnOnce()) -> usize {
    ALLOCATIONS.store(0, SeqCst);
    BYTES.store(0, SeqCst);
    COUNTING.store(true, SeqCst);
    work();
    COUNTING.store(false, SeqCst);
    ALLOCATIONS.load(SeqCst)
}

/// One test in this binary, so that nobody else allocates meanwhile.
#[test]
fn no_step_allocates_and_a_sequence_keeps_what_was_promised() {
    beyond_s_a_27b_sequence_keeps_at_most_80_mib();
    for family in ["llama", "qwen3_5", "qwen3_5_moe", "gpt_oss_mxfp4"] {
        for threads in [1, 3] {
            check(family, threads);
        }
    }
}

/// On a sixteenth of the layers. The backend allocates for one sequence and for three: half the difference is what
/// one more costs, whatever is shared.
fn beyond_s_a_27b_sequence_keeps_at_most_80_mib() {
    let (layers, scaled) = (48, 16);
    let (key_heads, value_heads, dim) = (16, 48, 128);
    let shape = RecurrentState { key_heads, value_heads, key_dim: dim, value_dim: dim };
    let spec = |slots: usize| StateSpec {
        layers: vec![LayerState::Recurrent(shape); layers / scaled],
        classes: vec![],
        pages: vec![],
        slots,
        kv: KvType::F16,
        tap_width: 0,
    };
    let allocated = |slots: usize| {
        let mut cpu = Cpu::new(2);
        allocations(|| {
            cpu.allocate(&spec(slots)).unwrap();
        });
        BYTES.load(SeqCst) as usize
    };
    // The first also sets up buffers of this thread, which stay.
    allocated(1);
    let sequence = (allocated(3) - allocated(1)) / 2 * scaled;
    let s = layers * value_heads * dim * dim * 4;
    assert!(sequence > s, "{sequence} bytes do not even hold S of {s}");
    assert!(sequence - s <= 80 << 20, "{} bytes beyond S", sequence - s);
}

#[track_caller]
fn check(family: &str, threads: usize) {
    let decoder = load(&Checkpoint::open(&fixture(family)).unwrap());
    let mut cpu = Cpu::new(threads);
    let mut spec = decoder.state_spec(KvType::F16);
    (spec.slots, spec.pages) = (1, vec![4; spec.classes.len()]);
    cpu.load(decoder.weights.clone()).unwrap();
    let state = cpu.allocate(&spec).unwrap();
    let plans = [1, 24].map(|bucket| {
        let options = RecordOptions { bucket, logit_rows: bucket, taps: &[], speculative: bucket > 1 };
        cpu.prepare(decoder.record(options)).unwrap()
    });
    let pages = [0, 1, 2, 3];
    let mut step = Step::default();
    // Over the ends of pages and grids.
    for pos in 0..140u32 {
        for (plan, drafts) in plans.iter().zip([0, 16]) {
            if drafts > 0 && pos % 7 != 0 {
                continue;
            }
            step.clear();
            let grid = if drafts > 0 || pos == 0 { grid_of(pos) } else { grid_of(pos - 1) };
            let tables = spec.classes.iter().map(|_| pages.as_slice());
            let seq = step.add_seq(0, pos, 1, grid, tables);
            let mut parent = NO_PARENT;
            for token in 0..1 + drafts {
                parent = step.push(seq, 1 + (pos + token) % 50, parent);
            }
            step.want_logits(parent);
            let n = allocations(|| cpu.run(*plan, state, &step).unwrap());
            assert_eq!(n, 0, "{family}, {threads} threads, position {pos}, {drafts} drafts");
        }
    }
}
