//! `overdraft inspect` of everything there is to look at.

mod common;

use common::{TempFile, overdraft};
use overdraft_formats::gguf::GgufWriter;
use overdraft_formats::{Bytes, DType};
use serde_json::{Value, json};

#[track_caller]
fn check(args: &[&str], facts: &[(&str, Value)]) {
    let object = overdraft(&[&["inspect", "--json"], args].concat()).ok().json();
    for (pointer, value) in facts {
        assert_eq!(object.pointer(pointer), Some(value), "{args:?} {pointer}");
    }
}

#[test]
#[rustfmt::skip]
fn a_target_is_described() {
    check(&["models/pycoder-q4_k_m.gguf", "--ctx", "1000", "--kv", "f32"], &[
        ("/role", json!("target")), ("/architecture", json!("qwen35")), ("/file_bytes", json!(30_096_480)),
        ("/shape/layers", json!(12)), ("/shape/layers_by_kind", json!("9 recurrent (Gated DeltaNet), 3 attention")),
        ("/shape/hidden", json!(512)), ("/shape/vocabulary", json!(8192)), ("/shape/context", json!(32768)),
        ("/tokenizer/end_ids", json!([0, 2])), ("/tokenizer/special/eos/text", json!("<|im_end|>")),
        ("/chat_template/problem", json!(null)),
        // 3 layers, key and value, 1 head of 256, 4 bytes.
        ("/memory/kv_bytes_per_token", json!(6144)),
        ("/problems", json!([])),
    ]);
}

#[test]
fn a_context_costs_its_tokens_and_little_more() {
    let memory = |ctx: &str| {
        let object =
            overdraft(&["inspect", "--json", "models/pycoder-q4_k_m.gguf", "--ctx", ctx]).ok().json();
        object["memory"]["kv_bytes"].as_u64().unwrap()
    };
    let per_token = 3072;
    // Whole pages of 64 positions, and the page that a step may begin beyond the last.
    assert!((1000 * per_token..=(1024 + 64) * per_token).contains(&memory("1000")), "{}", memory("1000"));
    assert_eq!(memory("3000") - memory("1000"), (3008 - 1024) * per_token);
}

#[test]
#[rustfmt::skip]
fn a_draft_says_what_it_is_for() {
    check(&["models/pycoder-dflash-q8_0.gguf"], &[
        ("/role", json!("draft")), ("/draft/method", json!("DFlash")), ("/draft/block_size", json!(16)),
        ("/draft/taps", json!([1, 5, 9])), ("/draft/mask_id", json!(3)), ("/draft/target_hidden", json!(512)),
        ("/draft/target_vocabulary", json!(8192)), ("/memory", json!(null)),
    ]);
    check(&["tests/fixtures/qwen3_dflash"], &[
        ("/role", json!("draft")), ("/draft/block_size", json!(8)), ("/draft/taps", json!([0, 2])),
        ("/draft/mask_id", json!(383)), ("/draft/target_hidden", json!(128)), ("/draft/target_layers", json!(4)),
    ]);
}

#[test]
#[rustfmt::skip]
fn hugging_face_folders_are_described() {
    check(&["tests/fixtures/qwen3_5"], &[("/role", json!("target")), ("/shape/vocabulary", json!(384))]);
    check(&["tests/fixtures/qwen3_5/model.safetensors"], &[("/role", json!("target"))]);
    check(&["tests/fixtures/qwen3_5_moe"], &[("/shape/experts", json!(8)), ("/shape/experts_used", json!(2))]);
    check(&["tests/fixtures/gpt_oss_mxfp4"], &[("/role", json!("target")), ("/architecture", json!("gpt_oss"))]);
}

#[test]
fn experts_that_a_token_does_not_visit_are_not_active() {
    let count = |folder: &str| {
        let object = overdraft(&["inspect", "--json", folder]).ok().json();
        (object["parameters"].as_u64().unwrap(), object["active_parameters"].as_u64())
    };
    let (total, active) = count("tests/fixtures/qwen3_5_moe");
    assert!(active.unwrap() < total);
    assert_eq!(count("tests/fixtures/qwen3_5").1, None);
    assert_eq!(
        count("tests/fixtures/gpt_oss_mxfp4"),
        count("tests/fixtures/gpt_oss"),
        "MXFP4 stores as many"
    );
}

#[test]
fn every_family_is_described_for_people() {
    for family in ["gpt_oss", "llama", "qwen2", "qwen3", "qwen3_5", "qwen3_5_moe", "qwen3_moe", "qwen3_next"]
    {
        let ran = overdraft(&["inspect", &format!("tests/fixtures/{family}")]).ok();
        for label in [
            "file",
            "architecture",
            "kind            target: run it with -m",
            "parameters",
            "memory needed",
            "type",
        ] {
            assert!(ran.out.lines().any(|l| l.starts_with(label)), "{family}: {label}\n{}", ran.out);
        }
    }
}

#[test]
fn tensors_are_listed() {
    let ran = overdraft(&["inspect", "--tensors", "models/pycoder-q4_k_m.gguf"]).ok();
    let line = ran.out.lines().find(|l| l.starts_with("token_embd.weight")).expect("it is listed");
    let words: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(words[1..4], ["Q6_K", "[8192,", "512]"]);
    let list = overdraft(&["inspect", "--tensors", "--json", "models/pycoder-q4_k_m.gguf"]).ok().json();
    assert_eq!(list["tensors"].as_array().unwrap().len(), 161);
}

#[test]
fn what_cannot_run_can_still_be_seen() {
    let floats = |n: usize| Bytes::from_vec(vec![0; n * 4]);
    let mut writer = GgufWriter::new("mamba7");
    writer.set("general.name", "Bad \u{1b}[31m name\nwith lines");
    writer.set("mamba7.block_count", 7u32);
    writer.tensor("a.weight", DType::F32, &[2, 256], floats(512));
    let file = TempFile::new("mamba7.gguf", &writer.to_bytes().unwrap());
    check(
        &[file.path()],
        &[
            ("/role", json!("unknown")),
            ("/architecture", json!("mamba7")),
            ("/shape/layers", json!(7)),
            ("/parameters", json!(512)),
        ],
    );
    let ran = overdraft(&["inspect", file.path()]).ok();
    assert!(ran.out.contains("not one this build has; it has llama, qwen2"), "{}", ran.out);
    assert!(ran.out.contains("name⏎with"), "one fact is one line: {}", ran.out);

    // The same file with its tensor in a type this build does not read: 16 is IQ2_XXS, 66 bytes for 256 numbers.
    let mut bytes = writer.to_bytes().unwrap();
    let name = bytes.windows(8).position(|w| w == b"a.weight").unwrap();
    let type_at = name + 8 + 4 + 2 * 8;
    bytes[type_at..type_at + 4].copy_from_slice(&16u32.to_le_bytes());
    let file = TempFile::new("unread.gguf", &bytes);
    check(
        &["--tensors", file.path()],
        &[
            ("/types/0/type", json!("IQ2_XXS (ggml type 16)")),
            ("/tensors/0/shape", json!([2, 256])),
            ("/tensors/0/bytes", json!(132)),
        ],
    );

    check(
        &["tests/fixtures/pycoder/golden.safetensors"],
        &[("/role", json!("unknown")), ("/n_tensors", json!(3))],
    );
}

#[cfg(feature = "demo")]
#[test]
fn the_demo_pair_is_the_default() {
    check(&[], &[("/role", json!("target")), ("/embedded_draft/role", json!("draft"))]);
    let ran = overdraft(&["inspect"]).ok();
    assert!(
        ran.out.contains("embedded demo model") && ran.out.contains("embedded demo draft"),
        "{}",
        ran.out
    );
}
