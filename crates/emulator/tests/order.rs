//! Launches that may overlap: who reads what the one ahead writes has to wait for it, and is named if he does not.

use overdraft_emulator::grid::{Launch, run};
use overdraft_emulator::order::Ahead;
use overdraft_emulator::program::Program;
use overdraft_emulator::space::Space;

const WORDS: usize = 256;
const THREADS: u32 = 64;

/// One after the other, each on the same words and allowed to begin before the one ahead has ended. `%mine` is the place of the thread's word.
fn series(bodies: &[&str]) -> Result<(), String> {
    let space = Space::default();
    let at = space.alloc(4 * WORDS).unwrap();
    space.write(at, &[0; 4 * WORDS]).unwrap();
    let mut ahead = Ahead::default();
    bodies.iter().try_for_each(|body| {
        let text = format!(
            ".version 9.0\n.target sm_90a\n.address_size 64\n.visible .entry k(.param .u64 k_param_0)\n{{\n\
             .reg .pred %p<4>;\n.reg .b32 %r<8>;\n.reg .b64 %rd<8>;\n.reg .b64 %out;\n.reg .b64 %mine;\n\
             ld.param.u64 %out, [k_param_0];\nmov.u32 %r0, %tid.x;\nmul.wide.u32 %rd0, %r0, 4;\nadd.s64 %mine, %out, %rd0;\n\
             setp.ge.u32 %p0, %r0, 32;\n{body}\nret;\n}}\n"
        );
        let kernel = Program::read(&text, &space)?.kernels["k"].clone();
        let params = at.to_le_bytes().to_vec();
        let launch =
            Launch { kernel, grid: [2, 1, 1], threads: THREADS, shared_bytes: 0, params, overlaps: true };
        run(&launch, &space, &mut ahead)
    })
}

const WRITES: &str = "griddepcontrol.wait;\nst.global.u32 [%mine], 7;";
const NEXT: &str = "griddepcontrol.launch_dependents;\n";
const WAIT: &str = "griddepcontrol.wait;\n";
const READS: &str = "ld.global.u32 %r1, [%mine];\n";
/// What no other launch writes.
const READS_ELSEWHERE: &str = "ld.global.u32 %r1, [%mine+512];\n";

#[test]
fn who_reads_what_the_launch_ahead_writes_has_to_wait() {
    assert_eq!(series(&[WRITES, &format!("{WAIT}{READS}")]), Ok(()));
    assert_eq!(series(&[WRITES, &format!("{READS_ELSEWHERE}{WAIT}{READS}")]), Ok(()));
    let early = series(&[WRITES, &format!("{READS}{WAIT}")]).unwrap_err();
    assert!(early.contains("are read before anybody has waited") && early.contains("line 1"), "{early}");
    // The first has nobody ahead.
    assert_eq!(series(&[READS, WRITES]), Ok(()));
}

#[test]
fn who_writes_has_to_wait() {
    let early = series(&[READS, &format!("st.global.u32 [%mine+512], 7;\n{WAIT}")]).unwrap_err();
    assert!(early.contains("are written before anybody has waited"), "{early}");
}

#[test]
fn a_warp_hears_at_a_barrier_that_another_has_waited() {
    // The second warp waits, the first reads.
    let roles = |barrier: &str| format!("@%p0 bra $wait;\n{barrier}{READS}ret;\n$wait:\n{WAIT}{barrier}");
    assert_eq!(series(&[WRITES, &roles("bar.sync 0;\n")]), Ok(()));
    assert_eq!(series(&[WRITES, &roles("bar.sync 3, 64;\n")]), Ok(()));
    let early = series(&[WRITES, &roles("")]).unwrap_err();
    assert!(early.contains("before anybody has waited"), "{early}");
}

#[test]
fn a_launch_in_which_nobody_waits_ends_before_the_one_ahead_may() {
    let none = series(&[WRITES, READS_ELSEWHERE]).unwrap_err();
    assert!(none.starts_with("nobody in it waits"), "{none}");
}

#[test]
fn launches_further_ahead_have_ended_where_the_next_is_let_in_late() {
    let late = format!("{WAIT}{NEXT}");
    let soon = format!("{NEXT}{WAIT}");
    let reads = format!("{READS}{WAIT}");
    assert_eq!(series(&[WRITES, &late, &reads]), Ok(()), "whoever is let in then comes behind the first");
    assert_eq!(series(&[WRITES, WAIT, &reads]), Ok(()), "as whoever is let in by its end");
    let early = series(&[WRITES, &soon, &reads]).unwrap_err();
    assert!(early.contains("before anybody has waited"), "{early}");
    // One block that lets in late is enough: all have to.
    let one = format!("mov.u32 %r2, %ctaid.x;\nsetp.eq.u32 %p1, %r2, 0;\n@%p1 {NEXT}{WAIT}{NEXT}");
    assert_eq!(series(&[WRITES, &one, &reads]), Ok(()));
}

#[test]
fn words_that_the_launch_itself_has_written_are_its_own() {
    // The second warp waits, writes all words and says so by the word behind them, which is no barrier's business.
    let roles = format!(
        "@%p0 bra $write;\n$again:\nld.global.u32 %r1, [%out+768];\nsetp.ne.u32 %p1, %r1, 9;\n@%p1 bra $again;\n{READS}ret;\n\
         $write:\n{WAIT}st.global.u32 [%mine+-128], 8;\nst.global.u32 [%out+768], 9;\n"
    );
    assert_eq!(series(&[WRITES, &roles]), Ok(()));
}
