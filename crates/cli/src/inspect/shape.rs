//! Sizes of a model: checked ones where we have the family, else whatever the usual keys say.

use overdraft_formats::gguf::Gguf;
use overdraft_formats::hf_config::HfConfig;
use overdraft_models::{Checkpoint, Hyper, MixerKind, RopeScaling};
use serde::Serialize;

/// `None` where the file does not say.
#[derive(Debug, Default, Serialize)]
pub(super) struct Shape {
    pub(super) layers: Option<u64>,
    /// "9 recurrent (Gated DeltaNet), 3 attention"
    pub(super) layers_by_kind: Option<String>,
    pub(super) hidden: Option<u64>,
    pub(super) feed_forward: Option<u64>,
    pub(super) heads: Option<u64>,
    pub(super) kv_heads: Option<u64>,
    pub(super) head_dim: Option<u64>,
    pub(super) experts: Option<u64>,
    pub(super) experts_used: Option<u64>,
    pub(super) vocabulary: Option<u64>,
    pub(super) context: Option<u64>,
    pub(super) rope: Option<String>,
}

impl Shape {
    pub(super) fn of(hyper: &Hyper) -> Self {
        let some = |n: usize| Some(n as u64);
        let moe = hyper.moe.as_ref();
        Self {
            layers: some(hyper.layers.len()),
            layers_by_kind: Some(layers_by_kind(hyper)),
            hidden: some(hyper.hidden),
            feed_forward: some(moe.map_or(hyper.ffn, |m| m.width)),
            heads: some(hyper.heads),
            kv_heads: some(hyper.kv_heads),
            head_dim: some(hyper.head_dim),
            experts: moe.map(|m| m.experts as u64),
            experts_used: moe.map(|m| m.used as u64),
            vocabulary: some(hyper.vocab),
            context: some(hyper.context),
            rope: Some(rope(hyper)),
        }
    }

    /// For drafts and for families this build does not have.
    pub(super) fn guess(checkpoint: &Checkpoint) -> Self {
        match checkpoint {
            Checkpoint::Gguf(gguf) => Self::guess_gguf(gguf),
            Checkpoint::HuggingFace { config, .. } => Self::guess_hf(config),
        }
    }

    fn guess_gguf(gguf: &Gguf) -> Self {
        let Ok(Some(arch)) = gguf.get_str("general.architecture") else { return Self::default() };
        let number = |key: &str| gguf.get_u64(&format!("{arch}.{key}")).ok().flatten();
        let tokens = gguf.get_str_array("tokenizer.ggml.tokens").ok().flatten().map(|t| t.len() as u64);
        let theta = gguf.get_f32(&format!("{arch}.rope.freq_base")).ok().flatten();
        Self {
            layers: number("block_count"),
            hidden: number("embedding_length"),
            feed_forward: number("feed_forward_length"),
            heads: number("attention.head_count"),
            kv_heads: number("attention.head_count_kv"),
            head_dim: number("attention.key_length"),
            experts: number("expert_count"),
            experts_used: number("expert_used_count"),
            vocabulary: number("vocab_size").or(tokens),
            context: number("context_length"),
            rope: theta.map(|t| format!("theta {t}")),
            ..Self::default()
        }
    }

    fn guess_hf(config: &HfConfig) -> Self {
        let config = config.text();
        let number = |key: &str| config.get_u64(key).ok().flatten();
        let nested = config.section("rope_parameters").and_then(|r| r.get_f64("rope_theta").ok().flatten());
        let theta = nested.or(config.get_f64("rope_theta").ok().flatten());
        Self {
            layers: number("num_hidden_layers"),
            hidden: number("hidden_size"),
            feed_forward: number("intermediate_size"),
            heads: number("num_attention_heads"),
            kv_heads: number("num_key_value_heads"),
            head_dim: number("head_dim"),
            experts: number("num_experts").or(number("num_local_experts")),
            experts_used: number("num_experts_per_tok"),
            vocabulary: number("vocab_size"),
            context: number("max_position_embeddings"),
            rope: theta.map(|t| format!("theta {t}")),
            ..Self::default()
        }
    }
}

fn layers_by_kind(hyper: &Hyper) -> String {
    let count = |wanted: &dyn Fn(&MixerKind) -> bool| hyper.layers.iter().filter(|l| wanted(l)).count();
    let recurrent = count(&|l| *l == MixerKind::Recurrent);
    let full = count(&|l| *l == MixerKind::Attention { window: None });
    let mut parts = Vec::new();
    if recurrent > 0 {
        parts.push(format!("{recurrent} recurrent (Gated DeltaNet)"));
    }
    if full > 0 {
        parts.push(format!("{full} attention"));
    }
    let mut windows: Vec<u32> = hyper
        .layers
        .iter()
        .filter_map(|l| match l {
            MixerKind::Attention { window } => *window,
            MixerKind::Recurrent => None,
        })
        .collect();
    windows.sort_unstable();
    for same in windows.chunk_by(|a, b| a == b) {
        parts.push(format!("{} attention over {} tokens", same.len(), same[0]));
    }
    parts.join(", ")
}

fn rope(hyper: &Hyper) -> String {
    let scaling = match &hyper.rope_scaling {
        RopeScaling::None => String::new(),
        RopeScaling::Linear { factor } => format!(", linear scaling by {factor}"),
        RopeScaling::Llama3 { factor, original, .. } => {
            format!(", llama 3 scaling by {factor} from {original}")
        }
        RopeScaling::Yarn { factor, original, .. } => format!(", YaRN scaling by {factor} from {original}"),
        RopeScaling::Divisors(_) => ", scaled by a table in the file".into(),
    };
    format!("theta {}, {} of {} dimensions{scaling}", hyper.rope_theta, hyper.rotary_dims, hyper.head_dim)
}
