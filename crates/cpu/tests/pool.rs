//! What the pool promises, under stress: these run with more threads than cores on purpose.

use overdraft_cpu::pool::Pool;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// Every index below `n` ran exactly once.
#[track_caller]
fn check_each_once(pool: &Pool, n: usize) {
    let counts: Vec<AtomicU8> = (0..n).map(|_| AtomicU8::new(0)).collect();
    pool.run(n, &|i| {
        counts[i].fetch_add(1, Relaxed);
    });
    let wrong: Vec<_> = counts.iter().enumerate().filter(|(_, c)| c.load(Relaxed) != 1).collect();
    assert!(wrong.is_empty(), "{} threads, {n} tasks: {wrong:?}", pool.threads());
}

#[test]
fn every_task_runs_exactly_once() {
    for threads in [0, 1, 2, 3, 8] {
        let pool = Pool::new(threads);
        assert_eq!(pool.threads(), threads.max(1));
        for n in [0, 1, 2, 3, 7, 64, 1000, 20_000] {
            check_each_once(&pool, n);
        }
    }
}

#[test]
fn a_pool_can_be_used_a_hundred_thousand_times() {
    let pool = Pool::new(4);
    let total = AtomicUsize::new(0);
    for round in 0..100_000 {
        let n = round % 6;
        pool.run(n, &|i| {
            total.fetch_add(i + 1, Relaxed);
        });
    }
    // 1 + .. + n for n = 0..=5 is 0 + 1 + 3 + 6 + 10 + 15; the last 4 rounds have n = 0..=3.
    assert_eq!(total.load(Relaxed), 100_000 / 6 * 35 + 10);
}

#[test]
fn what_tasks_wrote_is_seen_when_run_returns() {
    let pool = Pool::new(3);
    let mut cells = vec![0u64; 257];
    for round in 1..=2000 {
        let base = cells.as_mut_ptr() as usize;
        pool.run(cells.len(), &|i| {
            // SAFETY: each task owns one element, and `cells` outlives the call.
            unsafe { *(base as *mut u64).add(i) += round };
        });
        let want = round * (round + 1) / 2;
        assert!(cells.iter().all(|&c| c == want), "round {round}");
    }
}

#[test]
fn sleeping_workers_wake_for_the_next_job() {
    let pool = Pool::new(4);
    for pause_us in [0, 10, 40, 60, 100, 1000, 5000] {
        for _ in 0..20 {
            std::thread::sleep(Duration::from_micros(pause_us));
            check_each_once(&pool, 16);
        }
    }
}

#[test]
fn a_panic_reaches_the_caller_and_leaves_the_pool_usable() {
    let pool = Pool::new(4);
    for bad in [0, 1, 17, 99] {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            pool.run(100, &|i| {
                if i == bad {
                    panic!("task {i} is bad");
                }
            });
        }));
        let payload = outcome.expect_err("the panic was lost");
        assert_eq!(
            payload.downcast_ref::<String>().map(String::as_str),
            Some(&*format!("task {bad} is bad"))
        );
        check_each_once(&pool, 100);
    }
    let all = catch_unwind(AssertUnwindSafe(|| pool.run(8, &|_| panic!("every task"))));
    assert!(all.is_err());
    check_each_once(&pool, 8);
}

#[test]
fn a_run_inside_a_task_runs_in_place() {
    let (outer, other) = (Pool::new(3), Pool::new(2));
    let ran = AtomicUsize::new(0);
    outer.run(8, &|_| {
        let me = std::thread::current().id();
        for pool in [&outer, &other] {
            pool.run(5, &|_| {
                assert_eq!(std::thread::current().id(), me);
                ran.fetch_add(1, Relaxed);
            });
        }
    });
    assert_eq!(ran.load(Relaxed), 80);
}

#[test]
fn two_pools_and_two_callers_of_one_pool_do_not_mix() {
    let (a, b) = (Pool::new(3), Pool::new(3));
    std::thread::scope(|scope| {
        for pool in [&a, &b, &a] {
            scope.spawn(move || (0..500).for_each(|n| check_each_once(pool, n % 40)));
        }
    });
}

#[test]
fn an_idle_pool_drops_whether_its_workers_spin_or_sleep() {
    for pause_us in [0, 30, 5000] {
        for _ in 0..50 {
            let pool = Pool::new(4);
            check_each_once(&pool, 4);
            std::thread::sleep(Duration::from_micros(pause_us));
            drop(pool);
        }
        drop(Pool::new(4));
    }
}

#[test]
fn on_every_thread_reaches_each_thread_once() {
    for threads in [1, 2, 3, 8] {
        let pool = Pool::new(threads);
        for _ in 0..20 {
            let seen = std::sync::Mutex::new(Vec::new());
            pool.on_every_thread(&|| seen.lock().unwrap().push(std::thread::current().id()));
            let mut seen = seen.into_inner().unwrap();
            assert_eq!(seen.len(), threads);
            seen.sort_by_key(|id| format!("{id:?}"));
            seen.dedup();
            assert_eq!(seen.len(), threads, "every time another thread");
        }
    }
}
