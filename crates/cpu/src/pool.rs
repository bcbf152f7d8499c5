//! A pool of threads for steps of a few microseconds: workers spin a little, then sleep; tasks are taken from a
//! counter, and the caller takes them too.
//!
//! What makes it safe to hand workers a borrowed closure: the whole protocol lives in one atomic word,
//! `epoch | CALLER_SLEEPS | STOP | OPEN | inside`. A worker enters a job by a compare-and-swap that needs `OPEN`;
//! the caller clears `OPEN` and then waits for `inside` to be zero. So a worker that was descheduled before it
//! entered is not waited for, and one that wakes too late finds the job closed and never sees the closure.

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a thread with nothing to do stays on its core before it offers it to others, and how long it keeps
/// coming back before it sleeps. A wake costs about 5 us at the caller and 50 us until the worker runs; ops of one
/// decode step follow each other within 10 us. Longer spins would eat the time slices of whoever shares the machine.
const SPIN: Duration = Duration::from_micros(20);
const SPIN_AND_YIELD: Duration = Duration::from_micros(50);

const INSIDE: u64 = 0xffff; // workers in the open job
const OPEN: u64 = 1 << 16;
const STOP: u64 = 1 << 17;
const CALLER_SLEEPS: u64 = 1 << 18;
const EPOCH_SHIFT: u32 = 19; // 45 bits: wraps after a year at a million jobs a second, and wrapping only costs a nap

thread_local! {
    /// Set while this thread runs a task, so that a `run` inside it does not wait for the workers it keeps busy.
    static IN_TASK: Cell<bool> = const { Cell::new(false) };
}

/// Threads that run the tasks of one job at a time. `threads` counts the caller.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// One job at a time: a second caller waits its turn here.
    turn: Mutex<()>,
}

type Task = dyn Fn(usize) + Sync;

#[derive(Clone, Copy)]
struct Job {
    task: *const Task,
    n_tasks: usize,
}

// Each on its own cache line: `next` is hit for every task while others poll `state`.
#[repr(align(128))]
struct Line<T>(T);

struct Shared {
    state: Line<AtomicU64>,
    next: Line<AtomicUsize>,
    /// Written by the caller while no worker is inside and the job is not open; read only by workers inside.
    job: UnsafeCell<Job>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    /// Sleeping workers, counted before they look at `state` a last time.
    n_asleep: AtomicUsize,
    sleep: Mutex<()>,
    wake_workers: Condvar,
    wake_caller: Condvar,
}

// SAFETY: `job` is the only part that is not `Sync` by itself. It is written only between jobs (`OPEN` clear,
// `INSIDE` zero, under `turn`) and read only by workers counted in `INSIDE`; both sides order their accesses by
// acquire and release on `state`. The closure behind the pointer is `Sync`.
unsafe impl Sync for Shared {}
// SAFETY: as above; nothing in it belongs to a particular thread.
unsafe impl Send for Shared {}

impl Pool {
    /// A pool of `threads` threads: the caller of [`Pool::run`] and `threads - 1` workers. Where the system refuses
    /// a thread the pool has fewer, which is slower but not wrong; [`Pool::threads`] says how many it got.
    pub fn new(threads: usize) -> Self {
        let idle: &'static Task = &|_| {};
        let shared = Arc::new(Shared {
            state: Line(AtomicU64::new(0)),
            next: Line(AtomicUsize::new(0)),
            job: UnsafeCell::new(Job { task: idle, n_tasks: 0 }),
            panic: Mutex::new(None),
            n_asleep: AtomicUsize::new(0),
            sleep: Mutex::new(()),
            wake_workers: Condvar::new(),
            wake_caller: Condvar::new(),
        });
        let n_workers = threads.saturating_sub(1).min(INSIDE as usize);
        let mut workers = Vec::with_capacity(n_workers);
        for i in 0..n_workers {
            let shared = Arc::clone(&shared);
            let named = std::thread::Builder::new().name(format!("overdraft-{}", i + 1));
            match named.spawn(move || shared.work()) {
                Ok(handle) => workers.push(handle),
                Err(_) => break,
            }
        }
        Self { shared, workers, turn: Mutex::new(()) }
    }

    /// Threads that can be at work at once, the caller among them.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `task(i)` once for every `i < n_tasks` and returns when all are done. Allocates nothing. Inside a task
    /// of any pool it runs the tasks in place. If a task panics, tasks not yet taken are dropped and the panic goes
    /// on in the caller; the pool stays usable.
    pub fn run(&self, n_tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        if n_tasks <= 1 || self.workers.is_empty() || IN_TASK.get() {
            return (0..n_tasks).for_each(task);
        }
        let turn = lock(&self.turn);
        // SAFETY: only the lifetime changes. `close_and_wait` below returns after the last worker that could hold
        // the pointer has left, and nothing between here and there can unwind past it.
        let task: *const Task = unsafe { std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), _>(task) };
        self.shared.open(Job { task, n_tasks });
        self.shared.take_tasks(Job { task, n_tasks });
        self.shared.close_and_wait();
        let panicked = lock(&self.shared.panic).take();
        drop(turn);
        if let Some(payload) = panicked {
            resume_unwind(payload);
        }
    }

    /// Runs `task` once on each of the pool's threads, the caller among them: for what each must own, such as buffers.
    ///
    /// # Panics
    /// Inside a task, which keeps a thread that would have to be waited for.
    pub fn on_every_thread(&self, task: &(dyn Fn() + Sync)) {
        assert!(!IN_TASK.get(), "on_every_thread inside a task would wait for itself");
        let everybody = Barrier::new(self.threads());
        self.run(self.threads(), &|_| {
            // Nobody takes a second task while the first has not met all others.
            everybody.wait();
            task();
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.state.0.fetch_or(STOP, Ordering::SeqCst);
        self.shared.wake(usize::MAX);
        for worker in self.workers.drain(..) {
            // A worker catches its tasks' panics, so joining fails only if the pool itself is broken; a panic
            // while dropping would abort, which helps nobody.
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// Publishes a job. The caller holds `turn` and the last job is closed and empty.
    fn open(&self, job: Job) {
        let n_tasks = job.n_tasks;
        // SAFETY: no worker is inside and none can enter before `OPEN` is set below, so this is the only access.
        unsafe { *self.job.get() = job };
        self.next.0.store(0, Ordering::Relaxed);
        // Only the caller and `drop` (which excludes the caller) change the word while it is closed and empty.
        let next_epoch = (self.state.0.load(Ordering::Relaxed) >> EPOCH_SHIFT).wrapping_add(1) << EPOCH_SHIFT;
        // Sequentially consistent, as is the count of sleepers: either we see the sleeper, or it sees the job.
        self.state.0.store(next_epoch | OPEN, Ordering::SeqCst);
        self.wake(n_tasks - 1);
    }

    /// Wakes up to `wanted` sleeping workers; free when none sleeps.
    fn wake(&self, wanted: usize) {
        let n_asleep = self.n_asleep.load(Ordering::SeqCst);
        if n_asleep == 0 {
            return;
        }
        let _guard = lock(&self.sleep);
        if wanted >= n_asleep {
            self.wake_workers.notify_all();
        } else {
            (0..wanted).for_each(|_| self.wake_workers.notify_one());
        }
    }

    /// Runs tasks until none is left, keeping the first panic for the caller.
    fn take_tasks(&self, job: Job) {
        IN_TASK.set(true);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            loop {
                // Cannot wrap: every thread stops at the first number past the end.
                let i = self.next.0.fetch_add(1, Ordering::Relaxed);
                if i >= job.n_tasks {
                    break;
                }
                // SAFETY: the caller of `run` keeps the closure alive until the job is closed and everybody left.
                unsafe { (*job.task)(i) };
            }
        }));
        IN_TASK.set(false);
        if let Err(payload) = outcome {
            self.next.0.store(job.n_tasks, Ordering::Relaxed);
            lock(&self.panic).get_or_insert(payload);
        }
    }

    /// Lets no more workers in and waits for those inside, each of which has at most one task to finish.
    fn close_and_wait(&self) {
        let mut state = self.state.0.fetch_and(!OPEN, Ordering::AcqRel) & !OPEN;
        let mut patience = Patience::new();
        while state & INSIDE != 0 {
            if patience.wait() {
                state = self.state.0.load(Ordering::Acquire);
                continue;
            }
            let mut guard = lock(&self.sleep);
            state = self.state.0.fetch_or(CALLER_SLEEPS, Ordering::AcqRel);
            while state & INSIDE != 0 {
                guard = self.wake_caller.wait(guard).unwrap_or_else(PoisonError::into_inner);
                state = self.state.0.load(Ordering::Acquire);
            }
        }
    }

    /// The life of a worker.
    fn work(&self) {
        let mut last_epoch = 0;
        while let Some(state) = self.wait_for_job(last_epoch) {
            // Entering needs the very word we saw: if the job was closed (or another opened) meanwhile, look again.
            if self.state.0.compare_exchange(state, state + 1, Ordering::Acquire, Ordering::Relaxed).is_err()
            {
                continue;
            }
            last_epoch = state >> EPOCH_SHIFT;
            // SAFETY: we are counted in `INSIDE`, so the caller does not write the job until we leave, and the
            // acquire above pairs with the store that opened it.
            let job = unsafe { *self.job.get() };
            self.take_tasks(job);
            // Release: what our tasks wrote is visible to the caller that sees us gone.
            let before = self.state.0.fetch_sub(1, Ordering::AcqRel);
            if before & CALLER_SLEEPS != 0 && before & INSIDE == 1 {
                // Under the lock, so that the caller is either before its last look at the word or in its wait.
                let _guard = lock(&self.sleep);
                self.wake_caller.notify_all();
            }
        }
    }

    /// The state word of an open job newer than `last_epoch`, or `None` when the pool is dropped.
    fn wait_for_job(&self, last_epoch: u64) -> Option<u64> {
        let fresh = |state: u64| state & OPEN != 0 && state >> EPOCH_SHIFT != last_epoch;
        let mut patience = Patience::new();
        loop {
            let state = self.state.0.load(Ordering::Acquire);
            if state & STOP != 0 {
                return None;
            }
            if fresh(state) {
                return Some(state);
            }
            if patience.wait() {
                continue;
            }
            let guard = lock(&self.sleep);
            self.n_asleep.fetch_add(1, Ordering::SeqCst);
            let state = self.state.0.load(Ordering::SeqCst);
            if !fresh(state) && state & STOP == 0 {
                drop(self.wake_workers.wait(guard).unwrap_or_else(PoisonError::into_inner));
            }
            self.n_asleep.fetch_sub(1, Ordering::SeqCst);
            patience = Patience::new();
        }
    }
}

/// Bounded spinning: first with pauses, then giving the core away each time, then no more.
struct Patience {
    polls: u32,
    since: Option<Instant>,
    waited: Duration,
}

impl Patience {
    fn new() -> Self {
        Self { polls: 0, since: None, waited: Duration::ZERO }
    }

    /// Waits a moment. False when it is time to sleep instead.
    fn wait(&mut self) -> bool {
        self.polls += 1;
        // Reading the clock costs as much as a pause or two, so only now and then.
        if self.polls.is_multiple_of(16) {
            self.waited = self.since.get_or_insert_with(Instant::now).elapsed();
        }
        if self.waited < SPIN {
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
        self.waited < SPIN_AND_YIELD
    }
}

/// A lock whose holder cannot leave anything half done, so a poisoned one is as good as any.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
