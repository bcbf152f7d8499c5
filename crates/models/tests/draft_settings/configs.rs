//! Drafts as Hugging Face folders: both generations of `config.json`, and the speculators library's.

use std::path::PathBuf;

use overdraft_models::draft::{DraftLayer, DraftNames, DraftSettings};
use overdraft_models::{Checkpoint, ModelError, RopeScaling};
use serde_json::{Value as Json, json};

use super::dialects::small_gguf;
use super::{FULL, sliding, taps};

/// A folder that is gone when the test is.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

impl Folder {
    /// `config.json` beside bf16 tensors of the shapes it implies. Their data is a hole, so that drafts of real size
    /// take no room.
    pub(crate) fn new(label: &str, config: &Json, change: impl Fn(&mut Vec<(String, Vec<usize>)>)) -> Self {
        let folder = std::env::temp_dir().join(format!("overdraft-draft-{label}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
        let mut tensors = hf_tensors(config);
        change(&mut tensors);
        let (mut header, mut end) = (serde_json::Map::new(), 0);
        for (name, shape) in &tensors {
            let next = end + 2 * shape.iter().product::<usize>();
            header
                .insert(name.clone(), json!({"dtype": "BF16", "shape": shape, "data_offsets": [end, next]}));
            end = next;
        }
        let header = Json::Object(header).to_string();
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        let path = folder.join("model.safetensors");
        std::fs::write(&path, &bytes).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len((bytes.len() + end) as u64).unwrap();
        Self(folder)
    }

    pub(crate) fn read(&self) -> Result<DraftSettings, ModelError> {
        DraftSettings::read(&Checkpoint::open(&self.0)?)
    }
}

pub(crate) fn hf_tensors(config: &Json) -> Vec<(String, Vec<usize>)> {
    let body = config.get("transformer_layer_config").unwrap_or(config);
    let get = |key: &str| body[key].as_u64().unwrap_or(1) as usize;
    let (h, f, d) = (get("hidden_size"), get("intermediate_size"), get("head_dim"));
    let (q, kv) = (get("num_attention_heads") * d, get("num_key_value_heads") * d);
    let taps = ["/dflash_config/target_layer_ids", "/target_layer_ids", "/aux_hidden_state_layer_ids"];
    let taps = taps.iter().find_map(|p| config.pointer(p)?.as_array().map(Vec::len));
    let taps = taps.unwrap_or(get("num_hidden_layers"));
    let mut all = vec![
        ("fc.weight".into(), vec![h, taps * h]),
        ("hidden_norm.weight".into(), vec![h]),
        ("norm.weight".into(), vec![h]),
    ];
    for i in 0..get("num_hidden_layers") {
        #[rustfmt::skip]
        let layer: [(&str, &[usize]); 11] = [
            ("input_layernorm", &[h]), ("post_attention_layernorm", &[h]),
            ("self_attn.q_norm", &[d]), ("self_attn.k_norm", &[d]),
            ("self_attn.q_proj", &[q, h]), ("self_attn.k_proj", &[kv, h]), ("self_attn.v_proj", &[kv, h]),
            ("self_attn.o_proj", &[h, q]),
            ("mlp.gate_proj", &[f, h]), ("mlp.up_proj", &[f, h]), ("mlp.down_proj", &[h, f]),
        ];
        all.extend(layer.map(|(n, shape)| (format!("layers.{i}.{n}.weight"), shape.to_vec())));
        if body["attention_bias"] == true {
            let biases = [("q_proj", q), ("k_proj", kv), ("v_proj", kv), ("o_proj", h)];
            all.extend(biases.map(|(n, len)| (format!("layers.{i}.self_attn.{n}.bias"), vec![len])));
        }
    }
    all
}

/// Qwen3-8B-DFlash-b16 as published.
pub(crate) fn rev_a() -> Json {
    json!({
        "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "auto_map": {"AutoModel": "dflash.DFlash"},
        "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 5, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151_936, "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6, "hidden_act": "silu", "attention_bias": false, "attention_dropout": 0.0,
        "rope_theta": 1_000_000, "rope_scaling": null, "sliding_window": null, "use_sliding_window": false,
        "max_window_layers": 5, "tie_word_embeddings": false, "block_size": 16, "num_target_layers": 36,
        "layer_types": ["full_attention", "full_attention", "full_attention", "full_attention", "full_attention"],
        "dflash_config": {"mask_token_id": 151_669, "target_layer_ids": [1, 9, 17, 25, 33]}
    })
}

/// The 27B draft of the later release: everything nested, eight taps, five sliding layers.
pub(crate) fn rev_b() -> Json {
    json!({
        "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "hidden_size": 5120,
        "intermediate_size": 17408, "num_hidden_layers": 6, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 128, "vocab_size": 248_320, "max_position_embeddings": 262_144, "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_theta": 1e7, "rope_type": "default"}, "sliding_window": 4096,
        "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "sliding_attention",
            "sliding_attention", "full_attention"],
        "dflash_config": {"block_size": 16, "mask_token_id": 248_077,
            "target_layer_ids": [1, 10, 18, 27, 35, 44, 52, 61]}
    })
}

pub(crate) fn gpt_oss() -> Json {
    json!({
        "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "hidden_size": 2880,
        "intermediate_size": 7680, "num_hidden_layers": 8, "num_attention_heads": 64, "num_key_value_heads": 8,
        "head_dim": 64, "vocab_size": 201_088, "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5,
        "attention_bias": true, "block_size": 8, "num_target_layers": 24, "rope_theta": 150_000,
        "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096,
            "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false},
        "dflash_config": {"mask_token_id": 200_000, "target_layer_ids": [1, 6, 11, 16, 21]}
    })
}

/// A small draft as the speculators library writes it.
pub(crate) fn speculators() -> Json {
    json!({
        "architectures": ["DFlashDraftModel"], "speculators_model_type": "dflash", "block_size": 8,
        "mask_token_id": 63, "draft_vocab_size": 64, "target_hidden_size": null, "max_anchors": 3072,
        "aux_hidden_state_layer_ids": [2, 4, 7], "sliding_window_non_causal": false,
        "transformer_layer_config": {"model_type": "qwen3", "hidden_size": 32, "intermediate_size": 48,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
            "vocab_size": 64, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "sliding_window": 128,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {"rope_theta": 1e6, "rope_type": "yarn", "factor": 32.0,
                "original_max_position_embeddings": 4096}}
    })
}

pub(crate) fn same(_: &mut Vec<(String, Vec<usize>)>) {}

#[test]
fn both_generations_of_config_are_read_at_their_real_sizes() {
    let a = Folder::new("rev-a", &rev_a(), same).read().unwrap();
    assert_eq!((taps(&a), a.block_size, a.mask_token), (vec![1, 9, 17, 25, 33], 16, 151_669));
    assert_eq!((a.rope_theta, &a.rope_scaling, a.eps), (1e6, &RopeScaling::None, 1e-6));
    assert_eq!((a.layers.as_slice(), a.n_target_layers), ([FULL; 5].as_slice(), Some(36)));

    let b = Folder::new("rev-b", &rev_b(), same).read().unwrap();
    assert_eq!((taps(&b).len(), b.block_size, b.mask_token), (8, 16, 248_077));
    let mut layers = vec![sliding(4096, true); 5];
    layers.push(FULL);
    assert_eq!((b.layers.clone(), b.rope_theta), (layers, 1e7));
    let said = b.describe();
    assert!(said.contains(&("layers", "5 sliding of 4096 (causal), 1 full".into())), "{said:?}");

    let oss = Folder::new("gpt-oss", &gpt_oss(), same).read().unwrap();
    let yarn = RopeScaling::Yarn {
        factor: 32.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        original: 4096.0,
        truncate: false,
        magnitude: None,
    };
    assert_eq!((oss.rope_scaling, oss.has_bias, oss.block_size, oss.eps), (yarn, true, 8, 1e-5));

    let mut spec = Folder::new("speculators", &speculators(), same).read().unwrap();
    spec.file = "draft.gguf".into();
    assert_eq!(spec, small_gguf("dflash").read().unwrap(), "the same draft as the GGUF ones");
}

/// The document with one place set to another value.
fn with(mut config: Json, pointer: &str, value: Json) -> Json {
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    config.pointer_mut(parent).unwrap().as_object_mut().unwrap().insert(key.into(), value);
    config
}

fn without(mut config: Json, pointer: &str) -> Json {
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    config.pointer_mut(parent).unwrap().as_object_mut().unwrap().remove(key);
    config
}

#[test]
fn tensors_may_carry_the_models_prefix() {
    let prefix =
        |all: &mut Vec<(String, Vec<usize>)>| all.iter_mut().for_each(|(n, _)| *n = format!("model.{n}"));
    let folder = Folder::new("prefix", &rev_a(), prefix);
    let mut prefixed = folder.read().unwrap();
    let names = DraftNames::of(&Checkpoint::open(&folder.0).unwrap()).unwrap();
    assert_eq!(names.in_file("enc.output_norm.weight"), Some("model.hidden_norm.weight"));
    let plain = Folder::new("no-prefix", &rev_a(), same);
    prefixed.file = plain.0.display().to_string();
    assert_eq!(prefixed, plain.read().unwrap());
    let twice = |all: &mut Vec<(String, Vec<usize>)>| all.push(("model.fc.weight".into(), vec![4096, 20480]));
    let said = Folder::new("twice", &rev_a(), twice).read().unwrap_err().to_string();
    assert!(said.contains("says the same as"), "{said}");
}

#[test]
fn windows_and_causality_follow_the_keys_in_order() {
    let base = || without(rev_b(), "/sliding_window");
    let swa = with(
        with(base(), "/dflash_config/use_swa", json!(true)),
        "/dflash_config/swa_window_size",
        json!(512),
    );
    #[rustfmt::skip]
    let cases = [
        (rev_b(),                                                          sliding(4096, true),  FULL),
        (swa.clone(),                                                      sliding(512, true),   FULL),
        (with(rev_b(), "/is_causal", json!(false)),                        sliding(4096, false), FULL),
        (with(rev_b(), "/is_causal", json!(true)),                         sliding(4096, true),  DraftLayer { causal: true, ..FULL }),
        (with(rev_b(), "/dflash_config/causal", json!(false)),             sliding(4096, false), FULL),
        (with(with(rev_b(), "/is_causal", json!(false)), "/dflash_config/causal", json!(true)), sliding(4096, false), FULL),
        (with(rev_b(), "/sliding_window_non_causal", json!(true)),         sliding(4096, false), FULL),
        (with(rev_b(), "/sliding_window_non_causal", json!(false)),        sliding(4096, true),  FULL),
    ];
    for (i, (config, first, last)) in cases.into_iter().enumerate() {
        let draft = Folder::new(&format!("window-{i}"), &config, same).read().unwrap();
        assert_eq!((draft.layers[0], draft.layers[5]), (first, last), "case {i}");
    }
    #[rustfmt::skip]
    let refused = [
        (base(),                                             "`sliding_window` = missing"),
        (with(swa.clone(), "/sliding_window", json!(4096)),  "`dflash_config.swa_window_size` = 512: but sliding_window = 4096"),
        (without(swa, "/layer_types"),                       "`layer_types` = missing"),
        (with(rev_b(), "/sliding_window", json!(0)),         "sliding window = 0"),
        (with(rev_b(), "/layer_types", json!(["full_attention"])), "`layer_types` = 1 entries"),
    ];
    for (i, (config, part)) in refused.into_iter().enumerate() {
        let said = Folder::new(&format!("no-window-{i}"), &config, same).read().unwrap_err().to_string();
        assert!(said.contains(part), "{said}, not {part}");
    }
}

#[test]
fn taps_come_from_any_of_their_places_and_must_agree() {
    let flat = with(without(rev_a(), "/dflash_config"), "/target_layer_ids", json!([1, 9, 17, 25, 33]));
    let flat = with(flat, "/mask_token_id", json!(151_669));
    let default = without(rev_a(), "/dflash_config/target_layer_ids");
    let aux = with(rev_a(), "/aux_hidden_state_layer_ids", json!([2, 10, 18, 26, 34]));
    for (i, config) in [flat, default.clone(), aux.clone()].iter().enumerate() {
        let draft = Folder::new(&format!("taps-{i}"), config, same).read().unwrap();
        assert_eq!(taps(&draft), [1, 9, 17, 25, 33], "case {i}");
        assert_eq!(draft.mask_token, 151_669);
    }
    #[rustfmt::skip]
    let refused = [
        (without(default, "/num_target_layers"),                                        "target_layer_ids` = missing"),
        (with(aux, "/aux_hidden_state_layer_ids", json!([1, 9, 17, 25, 33])),           "`aux_hidden_state_layer_ids` = [1, 9"),
        (with(rev_a(), "/dflash_config/target_layer_ids", json!([1, 9, 17, 25])),       "4 taps of a target of hidden size 4096 make it [4096, 16384]"),
        (without(rev_a(), "/dflash_config/mask_token_id"),                              "mask_token_id"),
    ];
    for (i, (config, part)) in refused.into_iter().enumerate() {
        let five = |all: &mut Vec<(String, Vec<usize>)>| all[0].1 = vec![4096, 20480];
        let said = Folder::new(&format!("no-taps-{i}"), &config, five).read().unwrap_err().to_string();
        assert!(said.contains(part), "{said}, not {part}");
    }
}

#[test]
fn what_configs_ask_for_beyond_plain_dflash_is_refused_by_name() {
    #[rustfmt::skip]
    let keys = [
        ("/markov_rank",                       json!(256),       "DSpark"),
        ("/sample_from_anchor",                json!(true),      "DSpark"),
        ("/enable_confidence_head",            json!(true),      "DSpark"),
        ("/selector_rank",                     json!(256),       "DFlash 2"),
        ("/conv_kernel_size",                  json!(2),         "DFlash 2"),
        ("/hc_mult",                           json!(4),         "DeepSeek-V4"),
        ("/decoder_arch",                      json!("laguna"),  "Laguna"),
        ("/fc_layernorm",                      json!(true),      "norm for each tap"),
        ("/aux_hidden_norms",                  json!(true),      "norm for each tap"),
        ("/draft_vocab_size",                  json!(32_000),    "reduced vocabulary"),
        ("/target_hidden_size",                json!(2048),      "hidden_size = 4096"),
        ("/attention_sink_bias",               json!(true),      "sinks"),
        ("/mask_embed",                        json!("file"),    "mask embedding"),
        ("/final_logit_softcapping",           json!(30.0),      "capped logits"),
        ("/output_multiplier",                 json!(0.5),       "scaled logits"),
        ("/input_embedding_scale",             json!(64.0),      "scaled embeddings"),
        ("/rope_interleaved",                  json!(true),      "interleaved pairs"),
        ("/rope_is_neox_style",                json!(false),     "another style"),
        ("/norm_before_residual",              json!(true),      "EAGLE-3"),
        ("/num_experts",                       json!(8),         "experts"),
        ("/mlp_bias",                          json!(true),      "feed-forward"),
        ("/hidden_act",                        json!("gelu"),    "silu"),
        ("/quantization_config",               json!({}),        "GGUF"),
        ("/rope_scaling",                      json!({"rope_type": "longrope"}), "rope_type"),
        ("/attention_bias",                    json!(true),      "is missing"),
        ("/dflash_config/domino_rank",         json!(64),        "Domino"),
        ("/dflash_config/attention_sink_bias", json!(true),      "sinks"),
        ("/dflash_config/projector_type",      json!("gated"),   "no part of a DFlash draft"),
    ];
    let tensors = |config: Json| Folder::new("refused", &config, |all| *all = hf_tensors(&rev_a()));
    for (pointer, value, method) in keys {
        let key = pointer.rsplit('/').next().unwrap();
        let said = tensors(with(rev_a(), pointer, value)).read().unwrap_err().to_string();
        let named = said.contains(key)
            || key == "attention_bias" && said.contains("attn_q.bias")
            || key == "rope_scaling";
        assert!(named && said.contains(method), "{pointer}: {said}");
    }
    let off = [
        ("/markov_rank", json!(0)),
        ("/sample_from_anchor", json!(false)),
        ("/final_logit_softcapping", Json::Null),
        ("/output_multiplier", json!(1.0)),
        ("/draft_vocab_size", json!(151_936)),
        ("/target_hidden_size", json!(4096)),
        ("/rope_is_neox_style", json!(true)),
        ("/dflash_config/attention_sink_bias", json!(false)),
    ];
    let config = off.into_iter().fold(rev_a(), |c, (pointer, value)| with(c, pointer, value));
    tensors(config).read().unwrap();

    for name in [
        "mask_embed",
        "d2t",
        "markov_head.w1.weight",
        "layers.0.self_attn.sinks",
        "fc.bias",
        "layers.5.mlp.up_proj.weight",
    ] {
        let said = Folder::new("tensor", &rev_a(), |all| all.push((name.into(), vec![2])))
            .read()
            .unwrap_err()
            .to_string();
        assert!(said.contains(name), "{said}");
    }
    let beside = Folder::new("beside", &rev_a(), same);
    std::fs::write(beside.0.join("mask_embedding.pt"), "x").unwrap();
    assert!(beside.read().unwrap_err().to_string().contains("mask_embedding.pt"));
    for class in ["DFlash2DraftModel", "Qwen3DSparkModel", "LlamaForCausalLMEagle3", "Qwen3ForCausalLM"] {
        let error = tensors(with(rev_a(), "/architectures", json!([class]))).read().unwrap_err();
        assert!(matches!(error, ModelError::NotADraft { .. }), "{class}: {error}");
    }
}
