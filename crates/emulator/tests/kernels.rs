//! Small kernels with what is hard about a card: lanes that part and meet, blocks that wait for one another, and what must end as an error.

use overdraft_emulator::grid::{Launch, run};
use overdraft_emulator::order::Ahead;
use overdraft_emulator::program::Program;
use overdraft_emulator::space::Space;

/// A module of one kernel `k` with a pointer for a parameter, which lies in `%out`.
fn module(around: &str, limits: &str, body: &str) -> String {
    format!(
        ".version 9.0\n.target sm_90a\n.address_size 64\n{around}\n\
         .visible .entry k(.param .u64 k_param_0)\n{limits}\n{{\n\
         .reg .pred %p<16>;\n.reg .b16 %rs<16>;\n.reg .b32 %r<64>;\n.reg .f32 %f<16>;\n.reg .b64 %rd<32>;\n.reg .b64 %out;\n\
         ld.param.u64 %out, [k_param_0];\n{body}\nret;\n}}\n"
    )
}

struct Ran {
    words: Vec<u32>,
    ended: Result<(), String>,
}

/// With `n` words to write to, which are 0 at first.
fn launch(text: &str, n: usize, blocks: u32, threads: u32, shared_bytes: usize) -> Ran {
    let space = Space::default();
    let program = Program::read(text, &space).unwrap();
    let at = space.alloc(4 * n).unwrap();
    space.write(at, &vec![0; 4 * n]).unwrap();
    let kernel = program.kernels["k"].clone();
    let params = at.to_le_bytes().to_vec();
    let launch = Launch { kernel, grid: [blocks, 1, 1], threads, shared_bytes, params, overlaps: false };
    let ended = run(&launch, &space, &mut Ahead::default());
    let words = (0..n).map(|i| u32::from_le_bytes(space.read(at + 4 * i as u64).unwrap())).collect();
    Ran { words, ended }
}

fn good(text: &str, n: usize, blocks: u32, threads: u32) -> Vec<u32> {
    let ran = launch(text, n, blocks, threads, 0);
    ran.ended.unwrap();
    ran.words
}

fn bad(text: &str, threads: u32) -> String {
    launch(text, 64, 1, threads, 0).ended.unwrap_err()
}

/// `%r0` is the thread's number, `%rd1` the place of its word.
const MINE: &str = "mov.u32 %r0, %tid.x;\nmul.wide.u32 %rd0, %r0, 4;\nadd.s64 %rd1, %out, %rd0;\n";

#[test]
fn lanes_that_part_meet_again() {
    // Odd lanes go round a loop as often as their number says; then the sum of all is everyone's.
    let body = format!(
        "{MINE}
        mov.u32 %r1, 100;
        and.b32 %r2, %r0, 1;
        setp.eq.s32 %p1, %r2, 0;
        @%p1 bra $even;
        mov.u32 %r3, 0;
        $again:
        add.s32 %r1, %r1, 1;
        add.s32 %r3, %r3, 1;
        setp.lt.u32 %p2, %r3, %r0;
        @%p2 bra $again;
        $even:
        mov.u32 %r10, 16;
        $fold:
        shfl.sync.bfly.b32 %r5|%p3, %r1, %r10, 31, -1;
        add.s32 %r1, %r1, %r5;
        shr.u32 %r10, %r10, 1;
        setp.ne.s32 %p4, %r10, 0;
        @%p4 bra $fold;
        st.global.u32 [%rd1], %r1;"
    );
    let sum = 32 * 100 + (1..32).step_by(2).sum::<u32>();
    assert_eq!(good(&module("", "", &body), 32, 1, 32), [sum; 32]);
}

#[test]
fn lanes_that_leave_are_not_waited_for() {
    let body = format!(
        "{MINE}
        setp.ge.u32 %p1, %r0, 16;
        @%p1 bra $end;
        shfl.sync.idx.b32 %r5, %r0, 3, 31, -1;
        st.global.u32 [%rd1], %r5;
        $end:"
    );
    assert_eq!(good(&module("", "", &body), 17, 1, 32), [vec![3; 16], vec![0]].concat());
}

#[test]
fn lanes_that_mean_others_are_refused() {
    let why = bad(&module("", "", "mov.u32 %r0, %tid.x;\nredux.sync.add.u32 %r1, %r0, 255;"), 32);
    assert!(why.contains("lanes 0xffffffff meet, not all of which mean lanes 0xff"), "{why}");
}

#[test]
fn a_lane_that_waits_for_another_of_its_warp_lets_it_run() {
    let body = format!(
        "{MINE}
        setp.ne.s32 %p1, %r0, 0;
        @%p1 bra $tell;
        $wait:
        ld.volatile.global.u32 %r1, [%out+4];
        setp.eq.s32 %p2, %r1, 0;
        @%p2 bra $wait;
        st.global.u32 [%out], %r1;
        bra $end;
        $tell:
        st.global.u32 [%rd1], 7;
        $end:"
    );
    assert_eq!(good(&module("", "", &body), 3, 1, 3), [7, 7, 7]);
}

#[test]
fn blocks_that_wait_for_one_another_all_run() {
    let body = "
        mov.u32 %r1, %nctaid.x;
        atom.global.add.u32 %r2, [%out], 1;
        $wait:
        ld.acquire.gpu.global.u32 %r3, [%out];
        setp.lt.u32 %p1, %r3, %r1;
        @%p1 bra $wait;";
    assert_eq!(good(&module("", "", body), 1, 8, 1), [8]);
}

#[test]
fn a_function_is_called_from_several_places() {
    let function = "
        .func (.param .b32 twice_result) twice(.param .b32 twice_param_0)
        {
            .reg .b32 %r<4>;
            .reg .pred %p<2>;
            ld.param.u32 %r1, [twice_param_0];
            st.param.b32 [twice_result+0], %r1;
            setp.gt.u32 %p1, %r1, 9;
            @%p1 ret;
            add.s32 %r2, %r1, %r1;
            st.param.b32 [twice_result+0], %r2;
            ret;
        }";
    let call = |result: &str, argument: &str| {
        format!(
            "{{ .param .b32 param0; st.param.b32 [param0+0], {argument}; .param .b32 retval0;
            call.uni (retval0), twice, (param0); ld.param.b32 {result}, [retval0+0]; }}"
        )
    };
    let body = format!("{MINE}{}{}st.global.u32 [%rd1], %r2;", call("%r1", "%r0"), call("%r2", "%r1"));
    let want: Vec<u32> = (0..12)
        .map(|n| {
            if n > 9 {
                n
            } else if n > 4 {
                2 * n
            } else {
                4 * n
            }
        })
        .collect();
    assert_eq!(good(&module(function, "", &body), 12, 1, 12), want);
}

#[test]
fn a_copy_tells_its_barrier_and_a_cluster_shares_its_memory() {
    // Block 0 of the pair has 16 bytes copied to itself and counted at its barrier; block 1 reads them from there.
    let body = "
        .shared .align 16 .b8 data[16];
        .shared .align 8 .b8 bar[8];
        mov.u32 %r0, data;
        mov.u32 %r1, bar;
        mov.u32 %r2, %ctaid.x;
        setp.ne.s32 %p1, %r2, 0;
        @%p1 bra $meet;
        mbarrier.init.shared.b64 [%r1], 1;
        { .reg .b64 t; mbarrier.arrive.expect_tx.shared.b64 t, [%r1], 16; }
        cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%out], 16, [%r1];
        { .reg .pred p;
        again: mbarrier.try_wait.parity.shared.b64 p, [%r1], 0;
        @!p bra again; }
        $meet:
        barrier.cluster.arrive.release.aligned;
        barrier.cluster.wait.acquire.aligned;
        @!%p1 bra $end;
        mapa.shared::cluster.u32 %r3, %r0, 0;
        ld.shared::cluster.u32 %r4, [%r3+4];
        st.global.u32 [%out+16], %r4;
        $end:
        barrier.cluster.arrive.release.aligned;
        barrier.cluster.wait.acquire.aligned;";
    let text = module("", ".reqnctapercluster 2, 1, 1", &format!("st.global.u32 [%out+4], 5;{body}"));
    assert_eq!(good(&text, 5, 2, 1), [0, 5, 0, 0, 5]);
}

#[test]
fn a_barrier_that_not_all_come_to_is_an_error_and_says_where_they_are() {
    let body =
        format!("{MINE}setp.lt.u32 %p1, %r0, 32;\n@%p1 bra $end;\nbar.sync 0, 64;\n$end:\nbar.sync 1, 64;");
    let why = bad(&module("", "", &body), 64);
    assert!(why.starts_with("nothing has happened for long"), "{why}");
    assert!(why.contains("warp 0: lanes 0xffffffff at line 22 (Barrier { id: 1"), "{why}");
    assert!(why.contains("warp 1: lanes 0xffffffff at line 20 (Barrier { id: 0"), "{why}");
}

#[test]
fn memory_that_is_not_there_or_not_aligned_is_an_error() {
    let beyond = bad(&module("", "", "st.global.u32 [%out+256], 1;"), 1);
    assert!(beyond.contains("nobody allocated (256 bytes into one of 256)"), "{beyond}");
    let crooked = bad(&module("", "", "ld.global.u32 %r1, [%out+2];"), 1);
    assert!(crooked.contains("is no multiple of 4 bytes"), "{crooked}");
    let shared =
        bad(&module("", "", ".shared .align 4 .b8 a[8];\nmov.u32 %r1, a;\nst.shared.u32 [%r1+8], 1;"), 1);
    assert!(shared.contains("Shared memory of 8 bytes"), "{shared}");
    let barrier = bad(
        &module(
            "",
            "",
            ".shared .align 8 .b8 a[8];\nmov.u32 %r1, a;\nmbarrier.arrive.shared.b64 %rd1, [%r1];",
        ),
        1,
    );
    assert!(barrier.contains("nobody made one there"), "{barrier}");
}

#[test]
fn what_is_not_known_is_named_with_its_line() {
    let space = Space::default();
    let read = |body| Program::read(&module("", "", body), &space).map(|_| ()).unwrap_err();
    assert_eq!(read("tex.1d.v4.f32.f32 %f1, [a, %f2];"), "k: line 15: `]` was expected, not Some(Mark(44))");
    assert_eq!(read("frobnicate.b32 %r1;"), "k: line 15: `frobnicate.b32` is not known");
    assert_eq!(read("bra $nowhere;"), "k: line 15: there is no label `$nowhere`");
    assert_eq!(read("add.s32 %r99, %r1, 1;"), "k: line 15: `%r99` is not declared");
}

#[test]
fn a_short_register_has_nothing_above_it() {
    let minus = "mov.b16 %rs1, -1;\nsetp.eq.s16 %p1, %rs1, -1;\nshr.u16 %rs2, %rs1, 8;\ncvt.u32.u16 %r1, %rs2;\n\
                 selp.u32 %r1, %r1, 0, %p1;\nst.global.u32 [%out], %r1;";
    assert_eq!(good(&module("", "", minus), 1, 1, 1), [0xff]);
    let body = "st.global.u8 [%out], 254;\nld.global.s8 %rs1, [%out];\nshr.u16 %rs2, %rs1, 1;\ncvt.u32.u16 %r1, %rs2;\n\
                st.global.u32 [%out+4], %r1;";
    assert_eq!(good(&module("", "", body), 2, 1, 1), [254, 0x7fff]);
}

#[test]
fn registers_are_shared_only_by_what_is_not_alive_together() {
    // 40 values made first and summed last need their own places; loop-carried ones keep theirs.
    let make: String = (0..40).map(|n| format!("add.s32 %r{}, %r0, {n};\n", n + 1)).collect();
    let sum: String = (0..40).map(|n| format!("add.s32 %r50, %r50, %r{};\n", n + 1)).collect();
    let body = format!(
        "{MINE}mov.u32 %r50, 0;\n{make}mov.u32 %r51, 0;\n$again:\n{sum}add.s32 %r51, %r51, 1;\n\
         setp.lt.u32 %p1, %r51, 3;\n@%p1 bra $again;\nst.global.u32 [%rd1], %r50;"
    );
    let want: Vec<u32> = (0..32).map(|l| 3 * (40 * l + (0..40).sum::<u32>())).collect();
    assert_eq!(good(&module("", "", &body), 32, 1, 32), want);
}
