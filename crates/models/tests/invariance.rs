//! A row's bits depend on its own sequence alone: not on chunks, neighbours, threads or instruction sets.

mod common;

use common::{FAMILIES, Output, Runner, as_gguf, golden, load};
use overdraft_cpu::Cpu;
use overdraft_cpu::linear::Isa;
use overdraft_formats::DType;
use overdraft_plan::KvType;

fn runner(name: &str, dtype: DType, backend: Cpu, seqs: usize) -> Runner {
    Runner::new(load(&as_gguf(name, dtype)), Box::new(backend), KvType::F16, seqs, 192)
}

fn bits(out: &Output) -> Vec<u32> {
    out.logits.iter().chain(out.hidden.iter().flatten()).map(|x| x.to_bits()).collect()
}

#[test]
fn chunks_threads_and_instruction_sets_change_no_bit() {
    for name in FAMILIES {
        let ids = golden(name).ids;
        for dtype in [DType::BF16, DType::Q8_0] {
            let want = bits(&runner(name, dtype, Cpu::new(1), 1).prefill(0, &ids, 80));
            for chunk in [1, 7, 16, 33, 64] {
                let got = bits(&runner(name, dtype, Cpu::new(2), 1).prefill(0, &ids, chunk));
                assert!(got == want, "{name} {dtype}: chunks of {chunk} on two threads");
            }
            for isa in Isa::available() {
                let got = bits(&runner(name, dtype, Cpu::with_isa(3, isa), 1).prefill(0, &ids, 27));
                assert!(got == want, "{name} {dtype}: {} on three threads", isa.name());
            }
        }
    }
}

#[test]
fn sequences_in_one_step_give_what_each_gives_alone() {
    for name in FAMILIES {
        let ids = golden(name).ids;
        let other: Vec<u32> = ids.iter().rev().map(|t| (t * 7 + 3) % 384).collect();
        let third: Vec<u32> = ids.iter().map(|t| (t * 11 + 5) % 384).collect();
        for dtype in [DType::BF16, DType::Q8_0] {
            let alone = |ids: &[u32]| bits(&runner(name, dtype, Cpu::new(1), 1).prefill(0, ids, 80));
            let want = [alone(&ids), alone(&other), alone(&third)];
            for interleave in [false, true] {
                let mut shared = runner(name, dtype, Cpu::new(2), 3);
                let mut got = [(); 3].map(|()| Output { logits: vec![], hidden: vec![] });
                // Unlike lengths in every step, ending together.
                let cuts: [&[usize]; 3] = [&[0, 30, 31, 40, 80], &[0, 1, 50, 80, 80], &[0, 0, 17, 79, 80]];
                for s in 0..4 {
                    let parts: Vec<(usize, &[u32])> = [&ids, &other, &third]
                        .iter()
                        .enumerate()
                        .map(|(i, t)| (i, &t[cuts[i][s]..cuts[i][s + 1]]))
                        .filter(|(_, t)| !t.is_empty())
                        .collect();
                    for ((seq, _), out) in parts.iter().zip(shared.step(&parts, interleave)) {
                        got[*seq].logits.extend(out.logits);
                        got[*seq].hidden.resize(out.hidden.len(), vec![]);
                        got[*seq].hidden.iter_mut().zip(out.hidden).for_each(|(a, o)| a.extend(o));
                    }
                }
                for (seq, (got, want)) in got.iter().zip(&want).enumerate() {
                    assert!(bits(got) == *want, "{name} {dtype}: sequence {seq}, interleaved: {interleave}");
                }
            }
        }
    }
}
