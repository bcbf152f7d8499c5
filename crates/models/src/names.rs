//! One name per tensor. Inside this crate tensors go by their GGUF names; this table knows what Hugging Face calls
//! them.

/// GGUF stem within a layer, and Hugging Face's. `.weight` and `.bias` follow unless the pair already ends whole.
const LAYER: [(&str, &str); 28] = [
    ("attn_norm", "input_layernorm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("post_attention_norm", "post_attention_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("attn_sinks.weight", "self_attn.sinks"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("ffn_gate_inp", "mlp.gate"),
    ("ffn_gate_inp_shexp", "mlp.shared_expert_gate"),
    ("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_expert.up_proj"),
    ("ffn_down_shexp", "mlp.shared_expert.down_proj"),
    ("attn_qkv", "linear_attn.in_proj_qkv"),
    ("attn_gate", "linear_attn.in_proj_z"),
    ("ssm_alpha", "linear_attn.in_proj_a"),
    ("ssm_beta", "linear_attn.in_proj_b"),
    ("ssm_conv1d", "linear_attn.conv1d"),
    ("ssm_dt.bias", "linear_attn.dt_bias"),
    ("ssm_a", "linear_attn.A_log"),
    ("ssm_norm", "linear_attn.norm"),
    ("ssm_out", "linear_attn.out_proj"),
    ("ssm_ba", "linear_attn.in_proj_ba"),
];

const GLOBAL: [(&str, &str); 2] =
    [("token_embd.weight", "embed_tokens.weight"), ("output_norm.weight", "norm.weight")];

/// The Hugging Face name of a GGUF tensor, below `prefix` (`model.` or `model.language_model.`).
pub(crate) fn hugging_face(gguf: &str, prefix: &str) -> Option<String> {
    if gguf == "output.weight" {
        return Some("lm_head.weight".into());
    }
    if let Some((_, hf)) = GLOBAL.iter().find(|(g, _)| *g == gguf) {
        return Some(format!("{prefix}{hf}"));
    }
    let (layer, stem) = gguf.strip_prefix("blk.")?.split_once('.')?;
    if let Some((_, hf)) = LAYER.iter().find(|(g, _)| *g == stem) {
        return Some(format!("{prefix}layers.{layer}.{hf}"));
    }
    let (stem, suffix) = stem.rsplit_once('.')?;
    let (_, hf) = LAYER.iter().find(|(g, _)| *g == stem)?;
    Some(format!("{prefix}layers.{layer}.{hf}.{suffix}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip]
    fn tensors_are_found_under_either_name() {
        let cases = [
            ("token_embd.weight",       "model.embed_tokens.weight"),
            ("output.weight",           "lm_head.weight"),
            ("blk.3.attn_q.bias",       "model.layers.3.self_attn.q_proj.bias"),
            ("blk.0.attn_sinks.weight", "model.layers.0.self_attn.sinks"),
            ("blk.7.ssm_a",             "model.layers.7.linear_attn.A_log"),
            ("blk.7.ssm_dt.bias",       "model.layers.7.linear_attn.dt_bias"),
        ];
        for (gguf, hf) in cases {
            assert_eq!(hugging_face(gguf, "model.").as_deref(), Some(hf));
        }
        assert_eq!(hugging_face("blk.1.unheard_of.weight", "model."), None);
    }
}
