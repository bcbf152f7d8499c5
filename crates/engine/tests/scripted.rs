//! A drafter that knows the plain text and spoils it where it is told drives every accepted length at every alignment
//! to the grid and to pages, for every family: the bits of every logit stay those of plain decoding.

mod common;

use std::collections::HashSet;
use std::sync::Arc;

use common::script::{finish, keeps_its_bits, plain, request, rounds_for, same, scripted};
use common::{FAMILIES, repository, script};
use overdraft_cpu::Cpu;
use overdraft_engine::{Drawing, Engine, Sampling};
use overdraft_formats::{Bytes, DType};
use overdraft_models::Checkpoint;
use overdraft_plan::{Backend, DefinedRounds, MAX_DRAFT_DEPTH, PAGE};

fn engine(family: &str, dtype: DType, max_seqs: usize, context: usize) -> Engine {
    engine_on(Box::new(Cpu::new(2)), family, dtype, max_seqs, context)
}

fn engine_on(
    backend: Box<dyn Backend>,
    family: &str,
    dtype: DType,
    max_seqs: usize,
    context: usize,
) -> Engine {
    let folder = Checkpoint::open(&repository(&format!("tests/fixtures/{family}"))).unwrap();
    let gguf = overdraft_models::convert::to_gguf(&folder, &|_| dtype).unwrap();
    let bytes = Bytes::from_vec(gguf.to_bytes().unwrap());
    let checkpoint = Checkpoint::from_gguf_bytes(family, bytes).unwrap();
    let demo = Checkpoint::open(&repository("models/pycoder-q4_k_m.gguf")).unwrap();
    let tokenizer = Arc::new(demo.tokenizer().unwrap());
    script::engine(&checkpoint, &tokenizer, backend, max_seqs, context)
}

#[test]
fn every_family_keeps_its_bits_whatever_is_accepted() {
    for family in FAMILIES {
        for dtype in [DType::F32, DType::BF16, DType::Q8_0] {
            keeps_its_bits(&mut engine(family, dtype, 5, 512), &format!("{family} {dtype}")).unwrap();
        }
    }
}

/// Such a backend asks a drafter for what it found, not for its trees.
#[test]
fn a_backend_with_rounds_of_its_own_leaves_a_script_to_the_engine() {
    let backend = Box::new(DefinedRounds::new(Cpu::new(2)));
    keeps_its_bits(&mut engine_on(backend, "qwen3_5", DType::BF16, 5, 512), "rounds").unwrap();
}

#[test]
fn every_accepted_length_falls_on_every_alignment() {
    let prompt: Vec<u32> = (0..9).map(|i| (i * 31 + 5) % 384).collect();
    let sampling = Sampling::from(Drawing { temperature: 1.0, seed: 3, ..Default::default() });
    // The hybrid has both a grid of 16 and pages; the windowed model gives pages back on the way.
    for family in ["qwen3_5", "gpt_oss"] {
        let mut engine = engine(family, DType::BF16, 1, 4096);
        let n = 3000;
        let want = plain(&mut engine, &prompt, n, &sampling);
        let drafter = scripted(&want, prompt.len(), rounds_for(prompt.len(), n));
        let id = engine.admit_with(request(&prompt, n, &sampling), drafter).unwrap();
        let (got, rounds) = finish(&mut engine, &[id], prompt.len());
        same(&got[0], &want, family).unwrap();
        let seen: HashSet<(usize, usize)> = rounds.iter().map(|(root, n)| (root % 16, *n)).collect();
        let pages: HashSet<usize> = rounds.iter().map(|(root, _)| root % PAGE).collect();
        for alignment in 0..16 {
            for accepted in 0..=MAX_DRAFT_DEPTH {
                assert!(
                    seen.contains(&(alignment, accepted)),
                    "{family}: {accepted} accepted at {alignment} mod 16"
                );
            }
        }
        assert_eq!(pages.len(), PAGE, "{family}: roots at every place of a page");
    }
}
