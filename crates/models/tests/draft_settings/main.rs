//! What drafts declare: read alike from every dialect, refused by name where it is more than this build does, and
//! checked against the target.

mod any_value;
mod configs;
mod dialects;

use std::path::{Path, PathBuf};

use overdraft_models::Checkpoint;
use overdraft_models::draft::{DraftLayer, DraftSettings, TapAfter, check_fit};

fn at_root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn fixture(name: &str) -> PathBuf {
    at_root("tests/fixtures").join(name)
}

fn demo(name: &str) -> Checkpoint {
    Checkpoint::open(&at_root("models").join(name)).unwrap()
}

fn taps(of: &DraftSettings) -> Vec<u16> {
    of.taps.iter().map(|t| t.0).collect()
}

const FULL: DraftLayer = DraftLayer { window: None, causal: false };

const fn sliding(window: u32, causal: bool) -> DraftLayer {
    DraftLayer { window: Some(window), causal }
}

#[test]
fn the_demo_draft_fits_the_demo_target() {
    let checkpoint = demo("pycoder-dflash-q8_0.gguf");
    let draft = DraftSettings::read(&checkpoint).unwrap();
    assert_eq!(taps(&draft), [1, 5, 9]);
    assert_eq!((draft.block_size, draft.n_drafts(), draft.mask_token), (16, 15, 3));
    assert_eq!(
        (draft.hidden, draft.heads, draft.kv_heads, draft.head_dim, draft.ffn),
        (512, 4, 2, 128, 1024)
    );
    assert_eq!((draft.eps, draft.rope_theta, draft.rotary_dims), (1e-6, 1e6, 128));
    assert_eq!((draft.layers.as_slice(), draft.has_bias), ([FULL; 3].as_slice(), false));
    assert_eq!((draft.vocab, draft.context), (Some(8192), 32768));
    assert!(!draft.has_embedding && !draft.has_head);
    check_fit(&draft, &demo("pycoder-q4_k_m.gguf").hyper().unwrap()).unwrap();
    let said: Vec<_> = draft.describe();
    assert!(said.contains(&("taps", "outputs of target layers 1, 5, 9".into())), "{said:?}");
    assert!(said.contains(&("layers", "3 full".into())), "{said:?}");
}

#[test]
fn the_fixtures_fit_their_targets_and_no_other() {
    for (name, other) in [("qwen3", "qwen3_5"), ("qwen3_5", "qwen3")] {
        let draft = Checkpoint::open(&fixture(&format!("{name}_dflash"))).unwrap();
        let draft = DraftSettings::read(&draft).unwrap();
        assert_eq!(
            (taps(&draft).as_slice(), draft.block_size, draft.mask_token),
            ([0, 2].as_slice(), 8, 383)
        );
        assert_eq!(draft.n_target_layers, Some(4));
        let target = |name: &str| Checkpoint::open(&fixture(name)).unwrap().hyper().unwrap();
        check_fit(&draft, &target(name)).unwrap();
        let said = check_fit(&draft, &target(other)).unwrap_err().to_string();
        assert!(said.contains("hidden size is") && said.contains("\nhint: "), "{said}");
    }
}

#[test]
fn a_draft_for_another_target_is_refused_with_both_values_and_the_remedy() {
    let target = Checkpoint::open(&fixture("qwen3")).unwrap().hyper().unwrap();
    let mut draft = DraftSettings::read(&Checkpoint::open(&fixture("qwen3_dflash")).unwrap()).unwrap();
    draft.file = "the draft".into();
    let with = |change: &dyn Fn(&mut DraftSettings)| {
        let mut changed = draft.clone();
        change(&mut changed);
        changed
    };
    let blind = |d: &mut DraftSettings| d.n_target_layers = None;
    let cases = [
        (with(&|d| d.hidden = 5120), "its hidden size is 5120, the target's 128", "of hidden size 5120"),
        (
            with(&|d| d.vocab = Some(151_936)),
            "its vocabulary has 151936 tokens, the target's 384",
            "of 151936 tokens",
        ),
        (
            with(&|d| d.n_target_layers = Some(36)),
            "a target of 36 layers, and this one has 4",
            "of 36 layers",
        ),
        (
            with(&|d| (blind(d), d.taps.push(TapAfter(u16::MAX))).1),
            "reads the output of layer 65535 (counted from 0), but the target has 4 layers",
            "of at least 65536 layers",
        ),
        (
            with(&|d| (d.mask_token = u32::MAX, d.vocab = None).1),
            "its mask token is 4294967295, but the target has 384 tokens",
            "of at least 4294967296 tokens",
        ),
    ];
    for (draft, problem, remedy) in cases {
        let said = check_fit(&draft, &target).unwrap_err().to_string();
        assert!(said.starts_with("the draft does not fit ") && said.contains(problem), "{said}");
        let hint = said.split_once("\nhint: ").unwrap().1;
        assert!(hint.contains(remedy) && hint.contains("-m"), "{hint}");
    }
    let last = with(&|d| d.taps = vec![TapAfter(0), TapAfter(3)]);
    check_fit(&last, &target).unwrap();
}
