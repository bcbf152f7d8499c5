//! The op table on the device.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use overdraft_cpu::conformance::{self, Arithmetic, Case, Distance, Failure, Kind, Tolerances};
use overdraft_cuda::{Cuda, Device};
use overdraft_formats::DType;
use overdraft_plan::{Backend, KvType};

use super::options::{flag, value};

/// Sums are in f32; other exponentials and orders of sums than the CPU's, and quantised weights are rounded to f16 as they are decoded.
const CUDA: Tolerances = Tolerances {
    copy: Distance { rms: 0.0, max: 0.0 },
    elementwise: Distance { rms: 2e-6, max: 2e-5 },
    // Inputs meet quantised weights as f16 with a power of two per 128 columns, float weights as two f16 each.
    weights: |dtype: DType| match dtype {
        // A group's scale and offset are rounded to f16 too, and an offset is larger than most of its weights.
        DType::Q2_K | DType::Q4_K | DType::Q5_K => Distance { rms: 1e-3, max: 6e-3 },
        _ if dtype.is_quantised() => Distance { rms: 6e-4, max: 4e-3 },
        _ => Distance { rms: 1e-6, max: 1e-5 },
    },
    // A key whose last bit differs can fall on the other side of a half float's edge, which moves it by a 2000th.
    // Measured 1.6e-5 and 2.2e-4 with f16 at most, by any kernels so far, 6.7e-7 and 2.5e-5 with f32.
    attention: |kv: KvType| match kv {
        KvType::F16 => Distance { rms: 3e-5, max: 4e-4 },
        // The same edge is eight times wider, and queries and weights go in as two numbers of 8 bits.
        KvType::Bf16 => Distance { rms: 2.4e-4, max: 3e-3 },
        KvType::F32 => Distance { rms: 2e-6, max: 4e-5 },
    },
    recurrent: Distance { rms: 2e-6, max: 4e-5 },
};

/// Rows of prompts: f16 with one power of two a row, for float weights too. Measured 7.4e-4 and 3.6e-3, both of Q4_K, as of written
/// rows: it is the rounding of decoded weights to f16.
const PROMPTS: Tolerances = Tolerances { weights: |_| Distance { rms: 1e-3, max: 5e-3 }, ..CUDA };

/// Whose launches follow on each other and have blocks that wait for one another: two queues with such could each hold multiprocessors that the
/// other's blocks need, so they have the device to themselves.
fn is_chain(case: &Case) -> bool {
    case.kind == Kind::LinearAdd
}

/// Ops that follow from one another, so small that all of a device has less than a stage each and runs them one by one. A few of its multiprocessors run them
/// as a large model's are run, many stages a block.
fn is_layer(case: &Case) -> bool {
    matches!(case.arithmetic, Arithmetic::Chain(_))
}

/// Positions from which on attention's chunks are longer than a page, and may be cut by what is committed.
const LONG: usize = 2048;

#[derive(Clone, Copy, Debug)]
enum Check {
    Near,
    Company,
    Chunks,
    Trees,
    Beside,
}

struct Task<'a> {
    case: &'a Case,
    nth: usize,
    check: Check,
    device: &'a Arc<Device>,
    /// Of the device, behind the case's name.
    named: &'static str,
}

struct Outcome {
    kind: Kind,
    is_prompt: bool,
    found: Distance,
    failures: Vec<String>,
    checks: usize,
}

/// `few`: the same with only a few multiprocessors, where layers are to run too; but not attention if the run `is_raced`: a block then has several
/// rows' tails, and racecheck, which goes by how many barriers a warp has come to, takes one role's writes of a tail and another's reads of the last
/// for a race, whole-block barriers between them or not.
pub(crate) fn run(
    device: &Arc<Device>,
    few: Option<&Arc<Device>>,
    is_raced: bool,
    args: &[String],
) -> Result<bool, String> {
    let mut args = args.to_vec();
    let (is_quick, is_small) = (flag(&mut args, "--quick"), flag(&mut args, "--small"));
    let threads = value(&mut args, "--threads")?.unwrap_or(8);
    let only: Option<String> = value(&mut args, "--only")?;
    let like: String = value(&mut args, "--case")?.unwrap_or_default();
    if let Some(unknown) = args.first() {
        return Err(format!("ops does not know `{unknown}`: --quick, --small, --threads, --only, --case"));
    }
    let started = Instant::now();
    let outcomes: Mutex<Vec<Outcome>> = Mutex::new(
        Kind::ALL
            .into_iter()
            .flat_map(|kind| [(kind, false), (kind, true)])
            .map(|(kind, is_prompt)| Outcome {
                kind,
                is_prompt,
                found: Distance::default(),
                failures: Vec::new(),
                checks: 0,
            })
            .collect(),
    );
    let cases: Vec<(Case, usize)> = Kind::ALL
        .into_iter()
        .filter(|kind| only.as_ref().is_none_or(|o| format!("{kind:?}") == *o))
        .flat_map(|kind| {
            let is_linear = matches!(kind, Kind::Linear | Kind::LinearAdd | Kind::LinearGlu);
            let has_prompts = is_linear || kind.has_state();
            let prompts = if has_prompts { conformance::cases(kind) } else { Vec::new() };
            conformance::cases(kind)
                .into_iter()
                .enumerate()
                .chain(prompts.into_iter().map(Case::as_prompt).enumerate())
        })
        .filter(|(nth, case)| (!is_quick || nth % 7 == 0) && case.name.contains(&like))
        .map(|(nth, case)| (case, nth))
        .collect();
    if cases.is_empty() {
        let of = only.as_deref().unwrap_or("any op");
        return Err(format!("no case of {of} has `{like}` in its name; ops are {:?}", Kind::ALL));
    }
    let cases = if is_small { smallest(cases) } else { cases };
    let tasks: Vec<Task<'_>> = cases
        .iter()
        .flat_map(|(case, nth)| {
            let mut checks = vec![Check::Near];
            if !case.depends_on_steps && !is_small {
                checks.push(Check::Company);
                match (case.kind.has_state(), case.is_prompt) {
                    (true, false) => checks.extend([Check::Chunks, Check::Trees]),
                    (false, true) => checks.push(Check::Beside),
                    _ => {}
                }
            }
            let attends = !case.layers.is_empty();
            let few = few
                .filter(|_| is_layer(case) && !(is_raced && attends))
                .map(|few| (few, ", few multiprocessors"));
            [(device, "")].into_iter().chain(few).flat_map(move |(device, named)| {
                let task = move |check| Task { case, nth: *nth, check, device, named };
                checks.clone().into_iter().map(task)
            })
        })
        .collect();
    let next = AtomicUsize::new(0);
    let alone = RwLock::new(());
    let under_way = UnderWay { begun: Mutex::default(), workers: AtomicUsize::new(threads) };
    std::thread::scope(|scope| {
        scope.spawn(|| under_way.report());
        for _ in 0..threads {
            scope.spawn(|| {
                let worker = Worker(&under_way);
                while let Some(Task { case, nth, check, device, named }) =
                    tasks.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    let result = {
                        let _alone = is_chain(case).then(|| alone.write().unwrap());
                        let _beside = (!is_chain(case)).then(|| alone.read().unwrap());
                        worker.begin(format!("{check:?} of {case}{named}"));
                        let result = one(device, case, *nth, *check, is_quick);
                        worker.end();
                        result
                    };
                    let mut all = outcomes.lock().unwrap();
                    let outcome = all
                        .iter_mut()
                        .find(|o| (o.kind, o.is_prompt) == (case.kind, case.is_prompt))
                        .unwrap();
                    outcome.checks += 1;
                    match result {
                        Ok(found) => {
                            outcome.found.rms = outcome.found.rms.max(found.rms);
                            outcome.found.max = outcome.found.max.max(found.max);
                        }
                        Err(e) => outcome.failures.push(format!("{e}{named}")),
                    }
                }
            });
        }
    });
    let outcomes = outcomes.into_inner().unwrap();
    for outcome in &outcomes {
        for failure in outcome.failures.iter().take(4) {
            println!("FAILED {failure}");
        }
    }
    println!("{:<20} {:>6} {:>6} {:>9} {:>9}", "op", "checks", "failed", "rms", "max");
    for o in outcomes.iter().filter(|o| o.checks > 0) {
        let failed = o.failures.len();
        let kind = format!("{:?}{}", o.kind, if o.is_prompt { ", prompt" } else { "" });
        println!("{kind:<20} {:>6} {failed:>6} {:>9.1e} {:>9.1e}", o.checks, o.found.rms, o.found.max);
    }
    let failed: usize = outcomes.iter().map(|o| o.failures.len()).sum();
    println!("op table: {} checks, {failed} failed, {:.1} s", tasks.len(), started.elapsed().as_secs_f32());
    Ok(failed == 0)
}

/// Checks that run now, by their threads: a kernel that does not end is known by its name.
struct UnderWay {
    begun: Mutex<HashMap<ThreadId, (String, Instant)>>,
    workers: AtomicUsize,
}

impl UnderWay {
    const LONG: Duration = Duration::from_secs(10);

    /// Says what runs for long, once each, until no worker is left.
    fn report(&self) {
        let mut said = HashSet::new();
        while self.workers.load(Ordering::Relaxed) > 0 {
            std::thread::sleep(Duration::from_millis(50));
            for (what, begun) in self.begun.lock().unwrap().values() {
                if begun.elapsed() > Self::LONG && said.insert(what.clone()) {
                    println!("{} s and not over: {what}", Self::LONG.as_secs());
                }
            }
        }
    }
}

/// A thread that checks, until it has nothing to do or panics.
struct Worker<'a>(&'a UnderWay);

impl Worker<'_> {
    fn begin(&self, what: String) {
        self.0.begun.lock().unwrap().insert(std::thread::current().id(), (what, Instant::now()));
    }

    fn end(&self) {
        self.0.begun.lock().unwrap().remove(&std::thread::current().id());
    }
}

impl Drop for Worker<'_> {
    fn drop(&mut self) {
        self.end();
        self.0.workers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Enough to run every kernel, and little enough for `compute-sanitizer`: of cases that differ in size only the smallest, and
/// none with a long context.
fn smallest(cases: Vec<(Case, usize)>) -> Vec<(Case, usize)> {
    let mut seen: Vec<String> = Vec::new();
    let mut small: Vec<_> = cases.into_iter().filter(|(case, _)| case.prompt <= 260).collect();
    small.sort_by_key(|(case, _)| case.weights.n_bytes().0);
    small.retain(|(case, _)| {
        // Sizes decide which kernels these take.
        let sizes = if case.layers.is_empty() { "" } else { &case.name };
        let like = format!("{:?} {:?} {} {sizes}", case.kind, case.arithmetic, case.is_prompt);
        let is_new = !seen.contains(&like);
        seen.push(like);
        is_new
    });
    small
}

fn one(
    device: &Arc<Device>,
    case: &Case,
    nth: usize,
    check: Check,
    is_quick: bool,
) -> Result<Distance, Failure> {
    let cuda = || -> Box<dyn Backend> {
        Box::new(Cuda::new(device.clone()).unwrap_or_else(|e| panic!("the device stopped answering: {e}")))
    };
    let none = Distance::default();
    match check {
        Check::Near => conformance::check(case, cuda(), if case.is_prompt { &PROMPTS } else { &CUDA }),
        Check::Beside => conformance::check_beside(case, &mut || cuda()).map(|()| none),
        Check::Company => {
            let mut counts: Vec<usize> = if nth.is_multiple_of(12) && !is_quick {
                (1..=64).collect()
            } else {
                vec![1, 2, 3, 5, 8, 9, 15, 16, 17, 33, 63, 64]
            };
            if !is_quick {
                counts.extend([100, 272]);
            }
            conformance::check_company(case, cuda(), vec![cuda()], &counts).map(|()| none)
        }
        Check::Chunks => {
            let len = if case.prompt > LONG { case.prompt } else { 200 };
            conformance::check_chunks(case, &mut || cuda(), len).map(|()| none)
        }
        Check::Trees => {
            let roots: &[usize] = match is_quick {
                true => &[31],
                false if case.prompt > LONG => &[100, 2300, 2367, 2430],
                false => &[0, 1, 15, 31, 47, 55, 63, 64, 100],
            };
            conformance::check_trees(case, cuda(), cuda(), roots.iter().copied()).map(|()| none)
        }
    }
}
