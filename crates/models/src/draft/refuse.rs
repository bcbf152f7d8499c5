//! What other drafters have and plain DFlash does not. A field that changes the arithmetic and is not implemented is
//! refused by name: ignored, it would still write perfect text, at low acceptance.

use crate::error::{ModelError, shown};

/// Parts of key and tensor names, and what they belong to. The first that matches speaks.
const FOREIGN: &[(&str, &str)] = &[
    ("markov", "the Markov head of DSpark"),
    ("dspark", "a part of DSpark"),
    ("confidence", "the confidence head of DSpark"),
    ("conf_proj", "the confidence head of DSpark"),
    ("sample_from_anchor", "the shifted block of DSpark"),
    ("shift_label", "the shifted block of DSpark"),
    ("domino", "a part of Domino"),
    ("selector", "the selector of DFlash 2"),
    ("conv", "the convolutions of DFlash 2"),
    ("hyper_connection", "a DeepSeek-V4 body"),
    ("hc_", "a DeepSeek-V4 body"),
    ("lora_rank", "latent attention (a DeepSeek body)"),
    ("decoder_arch", "a body of another kind (Laguna)"),
    ("attn_gate", "gated attention (Laguna)"),
    ("g_proj", "gated attention (Laguna)"),
    ("aux_hidden_norm", "a norm for each tap before `fc`"),
    ("fc_layernorm", "a norm for each tap before `fc`"),
    ("fc_norm", "a norm for each tap before `fc`"),
    ("d2t", "a reduced vocabulary"),
    ("t2d", "a reduced vocabulary"),
    ("draft_vocab", "a reduced vocabulary"),
    ("sink", "attention sinks"),
    ("mask_emb", "a mask embedding of its own"),
    ("softcap", "capped logits"),
    ("logit_scale", "scaled logits"),
    ("logits_scaling", "scaled logits"),
    ("output_multiplier", "scaled logits"),
    ("embedding_scale", "scaled embeddings"),
    ("embedding_multiplier", "scaled embeddings"),
    ("residual_multiplier", "scaled residuals"),
    ("attention_multiplier", "scaled attention"),
    ("norm_before", "a part of EAGLE-3"),
    ("norm_output", "a part of EAGLE-3"),
    ("midlayer", "a part of EAGLE-3"),
    ("interleave", "rotary embedding of interleaved pairs"),
    ("neox", "rotary embedding of another style"),
    ("exps", "experts"),
    ("expert", "experts"),
    (".scale", "a per-tensor scale"),
    ("mlp_bias", "biases on the feed-forward layer"),
];

/// What a name belongs to, where it is known to be of another method.
pub(super) fn foreign(name: &str) -> Option<&'static str> {
    FOREIGN.iter().find(|(part, _)| name.contains(part)).map(|(_, method)| *method)
}

pub(super) fn key(file: &str, key: &str, value: &str) -> ModelError {
    method(file, format!("key `{}` = {value}", shown(key)), key)
}

pub(super) fn tensor(file: &str, name: &str) -> ModelError {
    method(file, format!("tensor `{}`", shown(name)), name)
}

fn method(file: &str, at: String, name: &str) -> ModelError {
    let method = foreign(name).unwrap_or("no part of a DFlash draft as this build knows it");
    ModelError::DraftMethod { file: file.into(), at, method: method.into() }
}
