//! Drafts as GGUF, in the three dialects.

use overdraft_formats::gguf::{GgufWriter, Value};
use overdraft_formats::{Bytes, DType};
use overdraft_models::draft::{DraftNames, DraftSettings, TapAfter};
use overdraft_models::{Checkpoint, ModelError};

use super::{FULL, sliding};

/// A small draft, in the dialect with this architecture string.
pub(crate) fn small_gguf(arch: &str) -> Small {
    let own = if arch == "dflash" { "" } else { "dflash." };
    let key = |name: &str| format!("{arch}.{name}");
    let mut keys: Vec<(String, Value)> = vec![
        (key("block_count"), 2u32.into()),
        (key("context_length"), 4096u32.into()),
        (key("embedding_length"), 32u32.into()),
        (key("feed_forward_length"), 48u32.into()),
        (key("vocab_size"), 64u32.into()),
        (key("attention.head_count"), 4u32.into()),
        (key("attention.head_count_kv"), 2u32.into()),
        (key("attention.key_length"), 16u32.into()),
        (key("attention.value_length"), 16u32.into()),
        (key("attention.layer_norm_rms_epsilon"), 1e-6f32.into()),
        (key("attention.sliding_window"), 128u32.into()),
        (key("attention.sliding_window_pattern"), [1u32, 0].as_slice().into()),
        (key("rope.freq_base"), 1e6f32.into()),
        (key("rope.scaling.type"), "yarn".into()),
        (key("rope.scaling.factor"), 32f32.into()),
        (key("rope.scaling.original_context_length"), 4096u32.into()),
        (key(&format!("{own}block_size")), 8u32.into()),
    ];
    let mut tensors = small_tensors();
    let rename = |tensors: &mut Vec<(String, Vec<usize>)>, from: &str, to: &str| {
        tensors.iter_mut().for_each(|(n, _)| *n = n.replace(from, to));
    };
    match arch {
        "dflash" => keys.extend([
            (key("target_layers"), [2u32, 4, 7].as_slice().into()),
            ("tokenizer.ggml.mask_token_id".into(), 63u32.into()),
        ]),
        _ => keys.extend([
            (key("dflash.target_layer_ids"), [1u32, 3, 6].as_slice().into()),
            (key("dflash.mask_token_id"), 63u32.into()),
        ]),
    }
    match arch {
        "dflash-draft" => {
            keys.push((key("dflash.n_target_features"), 96u32.into()));
            rename(&mut tensors, "enc.output_norm", "dflash_hidden_norm");
            rename(&mut tensors, "fc.weight", "dflash_fc.weight");
            rename(&mut tensors, "ffn_norm", "post_attention_norm");
        }
        "qwen35-dflash-draft" => {
            keys.push((key("dflash.n_target_layers"), 3u32.into()));
            rename(&mut tensors, "enc.output_norm", "dflash.hidden_norm");
            rename(&mut tensors, "fc.weight", "dflash.fc.weight");
        }
        _ => {}
    }
    Small { arch: arch.into(), keys, tensors }
}

/// By upstream's names: 2 layers, hidden 32, 4 heads of 16 on 2, feed-forward 48, 3 taps.
#[rustfmt::skip]
pub(crate) fn small_tensors() -> Vec<(String, Vec<usize>)> {
    let layer: [(&str, &[usize]); 11] = [
        ("attn_norm", &[32]), ("ffn_norm", &[32]), ("attn_q_norm", &[16]), ("attn_k_norm", &[16]),
        ("attn_q", &[64, 32]), ("attn_k", &[32, 32]), ("attn_v", &[32, 32]), ("attn_output", &[32, 64]),
        ("ffn_gate", &[48, 32]), ("ffn_up", &[48, 32]), ("ffn_down", &[32, 48]),
    ];
    let mut all = vec![
        ("fc.weight".into(), vec![32, 96]),
        ("enc.output_norm.weight".into(), vec![32]),
        ("output_norm.weight".into(), vec![32]),
    ];
    for i in 0..2 {
        all.extend(layer.map(|(n, shape)| (format!("blk.{i}.{n}.weight"), shape.to_vec())));
    }
    all
}

#[derive(Clone)]
pub(crate) struct Small {
    arch: String,
    pub(crate) keys: Vec<(String, Value)>,
    pub(crate) tensors: Vec<(String, Vec<usize>)>,
}

impl Small {
    pub(crate) fn set(mut self, key: &str, value: impl Into<Value>) -> Self {
        self = self.unset(key);
        self.keys.push((key.into(), value.into()));
        self
    }

    pub(crate) fn unset(mut self, key: &str) -> Self {
        self.keys.retain(|(k, _)| k != key);
        self
    }

    pub(crate) fn tensor(mut self, name: &str, shape: &[usize]) -> Self {
        self.tensors.retain(|(n, _)| n != name);
        self.tensors.push((name.into(), shape.to_vec()));
        self
    }

    pub(crate) fn without(mut self, name: &str) -> Self {
        self.tensors.retain(|(n, _)| n != name);
        self
    }

    pub(crate) fn open(&self) -> Checkpoint {
        let mut writer = GgufWriter::new(&self.arch);
        for (key, value) in &self.keys {
            writer.set(key, value.clone());
        }
        for (name, shape) in &self.tensors {
            let bytes = Bytes::from_vec(vec![0; shape.iter().product::<usize>() * 4]);
            writer.tensor(name, DType::F32, shape, bytes);
        }
        Checkpoint::from_gguf_bytes("draft.gguf", Bytes::from_vec(writer.to_bytes().unwrap())).unwrap()
    }

    pub(crate) fn read(&self) -> Result<DraftSettings, ModelError> {
        DraftSettings::read(&self.open())
    }
}

pub(crate) const ARCHES: [&str; 3] = ["dflash", "dflash-draft", "qwen35-dflash-draft"];

#[test]
fn all_dialects_of_one_draft_read_the_same() {
    let upstream = small_gguf("dflash").read().unwrap();
    assert_eq!(upstream.taps, [1, 3, 6].map(TapAfter), "upstream counts inputs, so one less");
    assert_eq!(upstream.layers, [sliding(128, true), FULL]);
    for arch in ARCHES {
        let small = small_gguf(arch);
        assert_eq!(small.read().unwrap(), upstream, "{arch}");
        let checkpoint = small.open();
        let names = DraftNames::of(&checkpoint).unwrap();
        for (name, shape) in small_tensors() {
            assert_eq!(names.shape(&name), Some(shape.as_slice()), "{arch}: {name}");
            let in_file = names.in_file(&name).unwrap();
            assert!(small.tensors.iter().any(|(n, _)| n == in_file), "{arch}: {in_file}");
        }
    }
}

#[test]
fn keys_and_tensors_decide_causality_biases_vocabulary_and_defaults() {
    let small = small_gguf("dflash");
    let both_ways = small.clone().set("dflash.attention.causal", false).read().unwrap();
    assert_eq!(both_ways.layers, [sliding(128, false), FULL]);
    let plain = small.clone().unset("dflash.attention.sliding_window");
    assert!(plain.read().unwrap_err().to_string().contains("dflash.attention.sliding_window"));
    let plain =
        plain.unset("dflash.attention.sliding_window_pattern").unset("dflash.block_size").read().unwrap();
    assert_eq!((plain.layers.as_slice(), plain.block_size), ([FULL; 2].as_slice(), 16));

    let mut biased = small.clone();
    for i in 0..2 {
        for (n, width) in [("attn_q", 64), ("attn_k", 32), ("attn_v", 32), ("attn_output", 32)] {
            biased = biased.tensor(&format!("blk.{i}.{n}.bias"), &[width]);
        }
    }
    assert!(biased.read().unwrap().has_bias);
    let said = biased.without("blk.1.attn_v.bias").read().unwrap_err().to_string();
    assert!(said.contains("`blk.1.attn_v.bias` is missing"), "{said}");

    let own = small.clone().tensor("token_embd.weight", &[64, 32]).tensor("output.weight", &[64, 32]);
    let own = own.unset("dflash.vocab_size").read().unwrap();
    assert_eq!((own.vocab, own.has_embedding, own.has_head), (Some(64), true, true));
    let tokens = Value::strings((0..70).map(|i| i.to_string()));
    let counted = small.unset("dflash.vocab_size").set("tokenizer.ggml.tokens", tokens).read().unwrap();
    assert_eq!(counted.vocab, Some(70));
}

#[test]
fn early_files_without_taps_say_how_many_must_be_named() {
    let said = small_gguf("dflash").unset("dflash.target_layers").read().unwrap_err().to_string();
    for part in ["draft.gguf", "dflash.target_layers", "`fc.weight` tells that there are 3", "plus 1"] {
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn what_gguf_drafts_ask_for_beyond_plain_dflash_is_refused_by_name() {
    let refused = |small: Small, named: &str, method: &str| {
        let said = small.read().unwrap_err().to_string();
        assert!(said.contains(named) && said.contains(method), "{named}: {said}");
        assert!(said.starts_with("draft.gguf: "), "{said}");
    };
    #[rustfmt::skip]
    let keys: [(&str, Value, &str); 14] = [
        ("dflash.sample_from_anchor",        true.into(),        "DSpark"),
        ("dflash.has_confidence_head",       true.into(),        "DSpark"),
        ("dflash.selector_top_k",            16u32.into(),       "DFlash 2"),
        ("dflash.conv_kernel_size",          2u32.into(),        "DFlash 2"),
        ("dflash.hyper_connection.count",    4u32.into(),        "DeepSeek-V4"),
        ("dflash.decoder_arch",              "laguna".into(),    "Laguna"),
        ("dflash.logit_scale",               0.5f32.into(),      "scaled logits"),
        ("dflash.final_logit_softcapping",   30f32.into(),       "capped logits"),
        ("dflash.expert_count",              8u32.into(),        "experts"),
        ("dflash.norm_before_fc",            true.into(),        "EAGLE-3"),
        ("dflash.something_new",             1u32.into(),        "no part of a DFlash draft"),
        ("dflash.attention.scale",           0.5f32.into(),      "only 0.25"),
        ("dflash.attention.value_length",    8u32.into(),        "key length 16"),
        ("dflash.rope.scaling.type",         "longrope".into(),  "none, linear and yarn"),
    ];
    for (key, value, method) in keys {
        refused(small_gguf("dflash").set(key, value), key, method);
    }
    let lucebox = small_gguf("qwen35-dflash-draft");
    refused(
        lucebox.clone().set("qwen35-dflash-draft.dflash.domino.enabled", 1u32),
        "domino.enabled",
        "Domino",
    );
    refused(lucebox.set("qwen35-dflash-draft.dflash.dspark.markov_rank", 64u32), "markov_rank", "DSpark");
    #[rustfmt::skip]
    let tensors = [
        ("markov_w1.weight",              "DSpark"),
        ("conf_proj.weight",              "DSpark"),
        ("selector_hidden.weight",        "DFlash 2"),
        ("blk.0.attn_conv_base",          "DFlash 2"),
        ("d2t",                           "reduced vocabulary"),
        ("blk.0.attn_sinks.weight",       "sinks"),
        ("blk.0.attn_gate.weight",        "Laguna"),
        ("dflash.aux_hidden_norm.0",      "norm for each tap"),
        ("dflash.domino.start",           "Domino"),
        ("fc.scale",                      "per-tensor scale"),
        ("fc.bias",                       "no part of a DFlash draft"),
        ("blk.0.ffn_gate_exps.weight",    "experts"),
        ("blk.0.post_attention_norm.weight", "no part of a DFlash draft"),
        ("blk.2.attn_q.weight",           "declares 2 layers"),
    ];
    for (name, method) in tensors {
        refused(small_gguf("dflash").tensor(name, &[4]), name, method);
    }
    // Off is not asking for anything.
    let off = small_gguf("dflash")
        .set("dflash.selector_top_k", 0u32)
        .set("dflash.sample_from_anchor", false)
        .set("dflash.logit_scale", 1f32);
    assert_eq!(off.read().unwrap(), small_gguf("dflash").read().unwrap());
    for arch in ["eagle3", "qwen3", "gemma4-dflash-draft"] {
        let other = Small { arch: arch.into(), ..small_gguf("dflash") };
        let error = other.read().unwrap_err();
        assert!(matches!(error, ModelError::NotADraft { .. }), "{arch}: {error}");
    }
}

#[test]
fn files_that_contradict_themselves_are_errors_that_say_where() {
    let small = || small_gguf("dflash");
    let other = || small_gguf("dflash-draft");
    #[rustfmt::skip]
    let cases = [
        (small().tensor("fc.weight", &[32, 128]),                                "`fc.weight` = [32, 128]: 3 taps of"),
        (small().without("enc.output_norm.weight"),                              "`enc.output_norm.weight` is missing"),
        (small().tensor("blk.1.attn_k.weight", &[64, 32]),                       "`blk.1.attn_k.weight` is [64, 32]"),
        (small().tensor("token_embd.weight", &[60, 32]),                         "`token_embd.weight` is [60, 32]"),
        (small().set("dflash.target_layers", [2u32, 2, 7].as_slice()),           "1, 1, 6: must ascend"),
        (small().set("dflash.target_layers", [7u32, 4, 2].as_slice()),           "6, 3, 1: must ascend"),
        (small().set("dflash.target_layers", [0u32, 4, 7].as_slice()),           "embedding's output cannot be tapped"),
        (small().set("dflash.target_layers", [1u32, 4, 70_000].as_slice()),      "no model has so many layers"),
        (small().set("dflash.block_size", 1u32),                                 "block size = 1: must be between 2"),
        (small().set("dflash.block_size", 65u32),                                "block size = 65: must be between 2"),
        (small().set("tokenizer.ggml.mask_token_id", 64u32),                     "mask token = 64: is no token"),
        (small().unset("tokenizer.ggml.mask_token_id"),                          "`tokenizer.ggml.mask_token_id`: missing"),
        (small().unset("dflash.attention.sliding_window_pattern"),               "which layers slide"),
        (small().set("dflash.attention.sliding_window_pattern", [1u32].as_slice()), "one entry for each of the 2"),
        (small().set("dflash.block_count", u32::MAX),                            "entry for each of the 513"),
        (other().set("dflash-draft.dflash.n_target_features", 128u32),           "n_target_features` = 128: but"),
        (other().tensor("dflash_fc.weight", &[96, 32]),                          "`dflash_fc.weight` = [96, 32]"),
    ];
    for (small, part) in cases {
        let said = small.read().unwrap_err().to_string();
        assert!(said.contains(part), "{said}, not {part}");
    }
}

#[test]
fn larger_blocks_are_read_but_drafted_at_most_sixteen_deep() {
    for (block, n_drafts) in [(2, 1), (8, 7), (16, 15), (17, 16), (64, 16)] {
        let draft = small_gguf("dflash").set("dflash.block_size", block).read().unwrap();
        assert_eq!((draft.block_size, draft.n_drafts()), (block as usize, n_drafts));
    }
}
