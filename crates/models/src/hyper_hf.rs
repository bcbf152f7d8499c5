//! [`Hyper`] from a Hugging Face `config.json`.

use overdraft_formats::hf_config::HfConfig;
use overdraft_plan::{RopeStyle, RouteRule};

use crate::arch::Arch;
use crate::error::{ModelError, Result};
use crate::hyper::{GdnDims, Hyper, MixerKind, MoeDims};
use crate::rope::RopeScaling;

pub(crate) fn read(config: &HfConfig, arch: Arch, file: &str) -> Result<Hyper> {
    refuse_unknown(config, arch, file)?;
    let c = &config.text();
    let hidden = size(c, "hidden_size")?;
    let heads = size(c, "num_attention_heads")?;
    let head_dim = opt_size(c, "head_dim")?.unwrap_or(hidden.checked_div(heads).unwrap_or(0));
    let n_layers = size(c, "num_hidden_layers")?;
    let moe = if arch.has_experts() { Some(moe(c, arch, n_layers)?) } else { None };
    let rope = c.section("rope_parameters");
    let rotary_fraction = match &rope {
        Some(r) => r.get_f64("partial_rotary_factor")?,
        None => None,
    }
    .or(c.get_f64("partial_rotary_factor")?)
    .unwrap_or(if arch.is_hybrid() { 0.25 } else { 1.0 });
    let (rope_theta, rope_scaling) = rope_settings(c, rope, file)?;
    Ok(Hyper {
        file: file.into(),
        arch,
        hidden,
        vocab: size(c, "vocab_size")?,
        context: opt_size(c, "max_position_embeddings")?.unwrap_or(4096),
        heads,
        kv_heads: opt_size(c, "num_key_value_heads")?.unwrap_or(heads),
        head_dim,
        ffn: opt_size(c, "intermediate_size")?.unwrap_or(0),
        eps: c.need_f64("rms_norm_eps")? as f32,
        attention_scale: (head_dim as f32).sqrt().recip(),
        rope_theta,
        rotary_dims: (head_dim as f64 * rotary_fraction) as usize,
        rope_style: RopeStyle::Halves,
        rope_scaling,
        layers: layer_kinds(c, arch, n_layers, file)?,
        gdn: if arch.is_hybrid() { Some(gdn(c, file)?) } else { None },
        moe,
        glu_limit: c.get_f64("swiglu_limit")?.unwrap_or(7.0) as f32,
    })
}

/// Sizes past u32 are nonsense that `Hyper::check` then names.
fn size(c: &HfConfig, key: &str) -> Result<usize> {
    Ok(c.need_u64(key)?.min(u32::MAX as u64) as usize)
}

fn opt_size(c: &HfConfig, key: &str) -> Result<Option<usize>> {
    Ok(c.get_u64(key)?.map(|v| v.min(u32::MAX as u64) as usize))
}

/// Settings that change the arithmetic and are not implemented.
fn refuse_unknown(config: &HfConfig, arch: Arch, file: &str) -> Result<()> {
    let c = config.text();
    if let Some(act) = c.get_str("hidden_act")?.filter(|a| *a != "silu") {
        return Err(ModelError::setting(file, "hidden_act", act, "only silu is supported"));
    }
    let quantised = config.section("quantization_config").or_else(|| c.section("quantization_config"));
    if let Some(q) = quantised {
        let method = q.get_str("quant_method")?.unwrap_or_default();
        if !(method == "mxfp4" && arch == Arch::GptOss) {
            let problem = "only mxfp4 of gpt-oss is supported in safetensors; other quantised models as GGUF";
            return Err(ModelError::setting(file, "quantization_config.quant_method", method, problem));
        }
    }
    for key in ["final_logit_softcapping", "attn_logit_softcapping", "embedding_multiplier", "logits_scaling"]
    {
        if let Some(v) = c.get_f64(key)? {
            return Err(ModelError::setting(file, key, v, "not supported"));
        }
    }
    Ok(())
}

fn gdn(c: &HfConfig, file: &str) -> Result<GdnDims> {
    let (key, value) = (size(c, "linear_key_head_dim")?, size(c, "linear_value_head_dim")?);
    if key != value {
        let problem = format!("differs from linear_value_head_dim = {value}, which is not supported");
        return Err(ModelError::setting(file, "linear_key_head_dim", key, problem));
    }
    let kernel = opt_size(c, "linear_conv_kernel_dim")?.unwrap_or(4);
    if kernel != 4 {
        return Err(ModelError::setting(file, "linear_conv_kernel_dim", kernel, "only 4 is supported"));
    }
    Ok(GdnDims {
        key_heads: size(c, "linear_num_key_heads")?,
        value_heads: size(c, "linear_num_value_heads")?,
        head_dim: key,
    })
}

fn layer_kinds(c: &HfConfig, arch: Arch, n: usize, file: &str) -> Result<Vec<MixerKind>> {
    // `Hyper::check` names the limit; this keeps a hostile count from being allocated before it.
    let n = n.min(1 << 16);
    let full = MixerKind::Attention { window: None };
    let window = opt_size(c, "sliding_window")?.map(|w| w as u32);
    if let Some(types) = c.get_str_list("layer_types")? {
        if types.len() != n {
            let problem = format!("lists {} layers of num_hidden_layers = {n}", types.len());
            return Err(ModelError::setting(file, "layer_types", "[..]", problem));
        }
        return types
            .iter()
            .map(|t| match t.as_str() {
                "full_attention" => Ok(full),
                "linear_attention" if arch.is_hybrid() => Ok(MixerKind::Recurrent),
                "sliding_attention" if window.is_some_and(|w| w > 0) => Ok(MixerKind::Attention { window }),
                "sliding_attention" => Err(ModelError::setting(
                    file,
                    "sliding_window",
                    "none",
                    "needed by sliding_attention layers",
                )),
                other => {
                    Err(ModelError::setting(file, "layer_types", other, "not a layer type this model has"))
                }
            })
            .collect();
    }
    if arch.is_hybrid() {
        let interval = opt_size(c, "full_attention_interval")?.unwrap_or(4).max(1);
        let kind = |i: usize| if (i + 1).is_multiple_of(interval) { full } else { MixerKind::Recurrent };
        return Ok((0..n).map(kind).collect());
    }
    // Qwen2 and Qwen3 carry a window that counts only when switched on, from a given layer up.
    if c.get_bool("use_sliding_window")?.unwrap_or(false) && window.is_some() {
        let first = opt_size(c, "max_window_layers")?.unwrap_or(0);
        return Ok((0..n).map(|i| if i < first { full } else { MixerKind::Attention { window } }).collect());
    }
    if arch == Arch::GptOss {
        let window = window.filter(|w| *w > 0).or(Some(128));
        return Ok((0..n).map(|i| if i % 2 == 0 { MixerKind::Attention { window } } else { full }).collect());
    }
    Ok(vec![full; n])
}

fn moe(c: &HfConfig, arch: Arch, n_layers: usize) -> Result<MoeDims> {
    let oss = arch == Arch::GptOss;
    let experts = size(c, if oss { "num_local_experts" } else { "num_experts" })?;
    let width = size(c, if oss { "intermediate_size" } else { "moe_intermediate_size" })?;
    let shared_width = match arch {
        Arch::Qwen3Next | Arch::Qwen35Moe => size(c, "shared_expert_intermediate_size")?,
        _ => 0,
    };
    let rule = match arch {
        Arch::GptOss => RouteRule::TopThenSoftmax,
        Arch::Qwen3Moe | Arch::Qwen3Next if c.get_bool("norm_topk_prob")? == Some(false) => {
            RouteRule::Softmax
        }
        _ => RouteRule::SoftmaxRenormalised,
    };
    let sparse_step = opt_size(c, "decoder_sparse_step")?.unwrap_or(1).max(1);
    let only_dense = c.get_u64_list("mlp_only_layers")?.unwrap_or_default();
    let is_dense = |i: &usize| only_dense.contains(&(*i as u64)) || !(i + 1).is_multiple_of(sparse_step);
    let dense_layers = (0..n_layers.min(1 << 16)).filter(is_dense).collect();
    Ok(MoeDims { experts, used: size(c, "num_experts_per_tok")?, width, shared_width, rule, dense_layers })
}

/// Both generations: `rope_parameters`, or `rope_theta` with `rope_scaling`.
pub(crate) fn rope_settings(
    c: &HfConfig,
    parameters: Option<HfConfig>,
    file: &str,
) -> Result<(f64, RopeScaling)> {
    let section = parameters.or_else(|| c.section("rope_scaling"));
    let top = c.get_f64("rope_theta")?;
    let Some(r) = section else { return Ok((top.unwrap_or(10_000.0), RopeScaling::None)) };
    let theta = r.get_f64("rope_theta")?.or(top).unwrap_or(10_000.0);
    let kind = r.get_str("rope_type")?.or(r.get_str("type")?).unwrap_or("default");
    let need = |key: &str| -> Result<f64> {
        let v = r.need_f64(key)?;
        if v.is_finite() && v > 0.0 {
            Ok(v)
        } else {
            Err(ModelError::setting(file, key, v, "must be positive"))
        }
    };
    let scaling = match kind {
        "default" | "mrope" => RopeScaling::None,
        "linear" => RopeScaling::Linear { factor: need("factor")? },
        "llama3" => RopeScaling::Llama3 {
            factor: need("factor")?,
            low: need("low_freq_factor")?,
            high: need("high_freq_factor")?,
            original: need("original_max_position_embeddings")?,
        },
        "yarn" => {
            let ratio = match (r.get_f64("mscale")?, r.get_f64("mscale_all_dim")?) {
                (Some(a), Some(b)) if a != 0.0 && b != 0.0 => {
                    let scale = |m: f64, f: f64| if f <= 1.0 { 1.0 } else { 0.1 * m * f.ln() + 1.0 };
                    let factor = need("factor")?;
                    Some(scale(a, factor) / scale(b, factor))
                }
                _ => None,
            };
            let original = match r.get_f64("original_max_position_embeddings")? {
                Some(v) => v,
                None => c.need_f64("max_position_embeddings")?,
            };
            RopeScaling::Yarn {
                factor: need("factor")?,
                beta_fast: r.get_f64("beta_fast")?.unwrap_or(32.0),
                beta_slow: r.get_f64("beta_slow")?.unwrap_or(1.0),
                original,
                truncate: r.get_bool("truncate")?.unwrap_or(true),
                magnitude: r.get_f64("attention_factor")?.or(ratio),
            }
        }
        other => {
            let problem = "this build has default, linear, llama3 and yarn";
            return Err(ModelError::setting(file, "rope_type", other, problem));
        }
    };
    Ok((theta, scaling))
}
