//! The CPU backend against the table: near the definitions, and every row's bits its own.

use overdraft_cpu::Cpu;
use overdraft_cpu::conformance::{self, Case, Distance, Kind, Tolerances};
use overdraft_cpu::linear::Isa;
use overdraft_plan::Backend;

fn cpu(threads: usize) -> Box<dyn Backend> {
    Box::new(Cpu::new(threads))
}

fn cases(kind: Kind) -> impl Iterator<Item = Case> {
    let cases = conformance::cases(kind);
    assert!(!cases.is_empty() && cases.iter().all(|c| c.kind == kind), "{kind:?} has no rows of its own");
    cases.into_iter()
}

fn with_state() -> impl Iterator<Item = Case> {
    Kind::ALL.into_iter().filter(|k| k.has_state()).flat_map(cases).filter(|c| !c.depends_on_steps)
}

/// Near the definitions. Prints what was measured, for the comments beside the bounds.
fn check_closeness(kind: Kind) {
    let mut measured: Vec<(String, Distance)> = Vec::new();
    for case in cases(kind) {
        let group = format!("{:?}", case.arithmetic);
        let found = conformance::check(&case, cpu(2), &Tolerances::CPU).unwrap_or_else(|e| panic!("{e}"));
        match measured.iter_mut().find(|m| m.0 == group) {
            Some((_, d)) => *d = Distance { rms: d.rms.max(found.rms), max: d.max.max(found.max) },
            None => measured.push((group, found)),
        }
    }
    for (group, distance) in measured {
        eprintln!("{kind:?} {group}: rms {:.2e}, max {:.2e}", distance.rms, distance.max);
    }
}

/// Every count to 64 for some rows of the table, and for all what lies around tiles and buckets.
fn row_counts(nth: usize) -> Vec<usize> {
    let mut counts: Vec<usize> = if nth.is_multiple_of(12) {
        (1..=64).collect()
    } else {
        vec![1, 2, 3, 5, 8, 9, 15, 16, 17, 33, 63, 64]
    };
    counts.extend([100, 272]);
    counts
}

/// On one, two and three threads in turn; every kind has rows enough for each.
fn check_company(kind: Kind) {
    let cases: Vec<Case> = cases(kind).collect();
    for (nth, case) in cases.iter().enumerate().filter(|(_, c)| !c.depends_on_steps) {
        let threads = if cases.len() < 12 { 1..=3 } else { 1 + nth % 3..=1 + nth % 3 };
        let together = threads.map(cpu).collect();
        conformance::check_company(case, cpu(1), together, &row_counts(nth))
            .unwrap_or_else(|e| panic!("{e}"));
    }
}

/// Whatever the instruction set, the bits are those of plain Rust; so one of them may stand in for all above.
fn check_instruction_sets(kind: Kind) {
    for case in cases(kind).filter(|c| !c.depends_on_steps) {
        for isa in Isa::available() {
            let scalar = Box::new(Cpu::with_isa(1, Isa::SCALAR));
            let other: Vec<Box<dyn Backend>> = vec![Box::new(Cpu::with_isa(1, isa))];
            conformance::check_company(&case, scalar, other, &[1, 5, 16, 19])
                .unwrap_or_else(|e| panic!("{e}"));
        }
    }
}

macro_rules! every_op {
    ($($name:ident: $kind:ident,)*) => {
        $(mod $name {
            use super::*;

            #[test]
            fn is_near_the_definition() {
                check_closeness(Kind::$kind);
            }

            #[test]
            fn gives_a_row_the_same_bits_in_any_company() {
                check_company(Kind::$kind);
            }

            #[test]
            fn gives_the_same_bits_on_every_instruction_set() {
                check_instruction_sets(Kind::$kind);
            }
        })*

        #[test]
        fn every_op_is_listed_above_and_stands_in_its_plans() {
            assert_eq!(Kind::ALL, [$(Kind::$kind),*]);
            for kind in Kind::ALL {
                for case in cases(kind) {
                    let (plan, _) = case.record(1);
                    assert!(plan.ops.iter().any(|op| Kind::of(op) == kind), "{case}");
                }
            }
        }
    };
}

every_op! {
    embed: Embed,
    norm: Norm,
    select: Select,
    linear: Linear,
    linear_add: LinearAdd,
    linear_glu: LinearGlu,
    angles: Angles,
    attention_prepare: AttentionPrepare,
    attention: Attention,
    recurrent_prepare: RecurrentPrepare,
    recurrent: Recurrent,
    gated_norm: GatedNorm,
    route: Route,
    expert_glu: ExpertGlu,
    expert_add: ExpertAdd,
    load_taps: LoadTaps,
    concat: Concat,
    top_tokens: TopTokens,
    sample: Sample,
}

#[test]
fn a_prompt_gives_the_same_bits_in_chunks_of_any_size() {
    for case in with_state() {
        conformance::check_chunks(&case, &mut || cpu(2), 200).unwrap_or_else(|e| panic!("{e}"));
    }
}

#[test]
fn every_path_of_a_draft_tree_has_the_bits_of_decoding_it_alone() {
    for case in with_state() {
        // Around the grid of recurrent layers and the pages of attention.
        let roots = [0, 1, 15, 31, 47, 55, 63, 64, 100];
        conformance::check_trees(&case, cpu(1), cpu(2), roots.into_iter()).unwrap_or_else(|e| panic!("{e}"));
    }
}
