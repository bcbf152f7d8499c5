//! [`Hyper`] from GGUF metadata.

use overdraft_formats::gguf::{Gguf, PerLayer};
use overdraft_plan::{RopeStyle, RouteRule};

use crate::arch::Arch;
use crate::error::{ModelError, Result};
use crate::hyper::{GdnDims, Hyper, MixerKind, MoeDims};
use crate::rope::RopeScaling;

/// Keys below the architecture's name.
struct Keys<'a> {
    gguf: &'a Gguf,
    arch: Arch,
}

impl Keys<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.arch.name())
    }

    fn size(&self, name: &str) -> Result<Option<usize>> {
        // Sizes past usize or u32 are nonsense that `Hyper::check` then names.
        Ok(self.gguf.get_u64(&self.key(name))?.map(|v| v.min(u32::MAX as u64) as usize))
    }

    fn need_size(&self, name: &str) -> Result<usize> {
        let v = self.gguf.need_u64(&self.key(name))?;
        Ok(v.min(u32::MAX as u64) as usize)
    }

    fn float(&self, name: &str) -> Result<Option<f64>> {
        Ok(self.gguf.get_f32(&self.key(name))?.map(f64::from))
    }

    /// A number, or a list of one per layer that must agree wherever it is not 0 (layers without attention).
    fn per_layer(&self, name: &str) -> Result<Option<usize>> {
        let key = self.key(name);
        let values = match self.gguf.get_u64_per_layer(&key)? {
            Some(PerLayer::Same(v)) => vec![v],
            Some(PerLayer::Each(v)) => v,
            None => return Ok(None),
        };
        let mut found = None;
        for v in values.into_iter().filter(|v| *v != 0) {
            if found.is_some_and(|f| f != v) {
                let problem = "layers of unlike size are not supported";
                return Err(ModelError::setting(self.gguf.name(), &key, format!("{v} and others"), problem));
            }
            found = Some(v);
        }
        Ok(found.map(|v| v.min(u32::MAX as u64) as usize))
    }
}

pub(crate) fn read(gguf: &Gguf, arch: Arch) -> Result<Hyper> {
    let keys = Keys { gguf, arch };
    let file = gguf.name().to_string();
    let blocks = keys.need_size("block_count")?;
    // Trailing blocks that predict further tokens belong to a drafter, not to the target.
    let n_layers = blocks.saturating_sub(keys.size("nextn_predict_layers")?.unwrap_or(0));
    let hidden = keys.need_size("embedding_length")?;
    let heads = keys.per_layer("attention.head_count")?.unwrap_or(0);
    let head_dim = match keys.size("attention.key_length")? {
        Some(d) => d,
        None => hidden.checked_div(heads).unwrap_or(0),
    };
    if let Some(v) = keys.size("attention.value_length")?.filter(|v| *v != head_dim) {
        let problem = format!("differs from the key length {head_dim}, which is not supported");
        return Err(ModelError::setting(&file, &keys.key("attention.value_length"), v, problem));
    }
    let vocab = match gguf.tensor("token_embd.weight")? {
        Some(t) if t.shape.len() == 2 => t.shape[0],
        _ => 0,
    };
    if let Some(declared) = keys.size("vocab_size")?.filter(|n| *n != vocab) {
        let problem = format!("but `token_embd.weight` has {vocab} rows");
        return Err(ModelError::setting(&file, &keys.key("vocab_size"), declared, problem));
    }
    let (gdn, layers) = (gdn(&keys)?, layer_kinds(&keys, n_layers)?);
    let rotary_dims = keys.size("rope.dimension_count")?.unwrap_or(head_dim);
    Ok(Hyper {
        arch,
        hidden,
        vocab,
        context: keys.need_size("context_length")?,
        heads,
        kv_heads: keys.per_layer("attention.head_count_kv")?.unwrap_or(heads),
        head_dim,
        ffn: keys.per_layer("feed_forward_length")?.unwrap_or(0),
        eps: gguf.need_f32(&keys.key("attention.layer_norm_rms_epsilon"))?,
        attention_scale: match keys.float("attention.scale")? {
            Some(s) if s != 0.0 => s as f32,
            _ => (head_dim as f32).sqrt().recip(),
        },
        rope_theta: keys.float("rope.freq_base")?.unwrap_or(10_000.0),
        rotary_dims,
        rope_style: if arch == Arch::Llama { RopeStyle::Pairs } else { RopeStyle::Halves },
        // gpt-oss is defined without rounding the corner frequencies; its GGUF files cannot say so.
        rope_scaling: rope_scaling(gguf, arch.name(), rotary_dims, arch != Arch::GptOss)?,
        layers,
        gdn,
        moe: moe(&keys)?,
        glu_limit: 7.0,
        file,
    })
}

fn gdn(keys: &Keys<'_>) -> Result<Option<GdnDims>> {
    if !keys.arch.is_hybrid() {
        return Ok(None);
    }
    let dims = GdnDims {
        key_heads: keys.need_size("ssm.group_count")?,
        value_heads: keys.need_size("ssm.time_step_rank")?,
        head_dim: keys.need_size("ssm.state_size")?,
    };
    let fail = |name: &str, value: usize, problem: String| {
        Err(ModelError::setting(keys.gguf.name(), &keys.key(name), value, problem))
    };
    let kernel = keys.need_size("ssm.conv_kernel")?;
    if kernel != 4 {
        return fail("ssm.conv_kernel", kernel, "only 4 is supported".into());
    }
    let (inner, expected) =
        (keys.need_size("ssm.inner_size")?, dims.value_heads.saturating_mul(dims.head_dim));
    if inner != expected {
        return fail("ssm.inner_size", inner, format!("should be value heads times head size, {expected}"));
    }
    Ok(Some(dims))
}

fn layer_kinds(keys: &Keys<'_>, n: usize) -> Result<Vec<MixerKind>> {
    // `Hyper::check` names the limit; this keeps a hostile count from being allocated before it.
    let n = n.min(1 << 16);
    let full = MixerKind::Attention { window: None };
    if keys.arch.is_hybrid() {
        let key = keys.key("attention.recurrent_layers");
        if let Some(flags) = keys.gguf.get_u64_array(&key)? {
            let kind = |i| if flags.get(i) == Some(&0) { full } else { MixerKind::Recurrent };
            return Ok((0..n).map(kind).collect());
        }
        let interval = keys.size("full_attention_interval")?.unwrap_or(4);
        if interval == 0 {
            let key = keys.key("full_attention_interval");
            return Err(ModelError::setting(keys.gguf.name(), &key, interval, "must be positive"));
        }
        let kind = |i: usize| if (i + 1).is_multiple_of(interval) { full } else { MixerKind::Recurrent };
        return Ok((0..n).map(kind).collect());
    }
    let window = keys.size("attention.sliding_window")?.filter(|w| *w > 0);
    let Some(window) = window else { return Ok(vec![full; n]) };
    let windowed = MixerKind::Attention { window: Some(window as u32) };
    let key = keys.key("attention.sliding_window_pattern");
    let flags: Vec<bool> = match keys.gguf.get_u64_per_layer(&key)? {
        // A scalar is a period whose last layer is full; gpt-oss files leave out its 2.
        Some(PerLayer::Same(period)) if period > 0 => (1..=n as u64).map(|i| i % period != 0).collect(),
        None if keys.arch == Arch::GptOss => (0..n).map(|i| i % 2 == 0).collect(),
        Some(PerLayer::Each(flags)) if flags.len() >= n => flags[..n].iter().map(|f| *f != 0).collect(),
        _ => {
            let problem = "a window without a usable sliding_window_pattern is not supported";
            return Err(ModelError::setting(
                keys.gguf.name(),
                &keys.key("attention.sliding_window"),
                window,
                problem,
            ));
        }
    };
    Ok(flags.into_iter().map(|w| if w { windowed } else { full }).collect())
}

fn moe(keys: &Keys<'_>) -> Result<Option<MoeDims>> {
    let experts = keys.size("expert_count")?.unwrap_or(0);
    if !keys.arch.has_experts() {
        return if experts == 0 {
            Ok(None)
        } else {
            let problem = "experts in this architecture are not supported";
            Err(ModelError::setting(keys.gguf.name(), &keys.key("expert_count"), experts, problem))
        };
    }
    let used = keys.need_size("expert_used_count")?;
    let ffn = keys.per_layer("feed_forward_length")?.unwrap_or(0);
    let width = match keys.size("expert_feed_forward_length")? {
        Some(w) => w,
        None => ffn.checked_div(used).unwrap_or(0),
    };
    let shared = matches!(keys.arch, Arch::Qwen3Next | Arch::Qwen35Moe);
    let shared_width =
        if shared { keys.size("expert_shared_feed_forward_length")?.unwrap_or(ffn) } else { 0 };
    let rule =
        if keys.arch == Arch::GptOss { RouteRule::TopThenSoftmax } else { RouteRule::SoftmaxRenormalised };
    Ok(Some(MoeDims { experts, used, width, shared_width, rule, dense_layers: Vec::new() }))
}

/// The rotary scaling below `prefix`. `truncate`: YaRN rounds its corner frequencies.
pub(crate) fn rope_scaling(
    gguf: &Gguf,
    prefix: &str,
    rotary_dims: usize,
    truncate: bool,
) -> Result<RopeScaling> {
    let file = gguf.name();
    let key = |name: &str| format!("{prefix}.rope.scaling.{name}");
    let float = |name: &str| -> Result<Option<f64>> { Ok(gguf.get_f32(&key(name))?.map(f64::from)) };
    if let Some(t) = gguf.tensor("rope_freqs.weight")? {
        let wrong = || ModelError::Shape {
            file: file.into(),
            tensor: t.name.clone(),
            found: t.shape.clone(),
            expected: vec![rotary_dims / 2],
        };
        let divisors = t.to_f32().map_err(|_| wrong())?;
        if divisors.len() != rotary_dims / 2 {
            return Err(wrong());
        }
        return Ok(RopeScaling::Divisors(divisors));
    }
    let positive = |name: &str, v: f64| {
        if v.is_finite() && v > 0.0 {
            Ok(v)
        } else {
            Err(ModelError::setting(file, &key(name), v, "must be positive"))
        }
    };
    let factor = positive("factor", float("factor")?.unwrap_or(1.0))?;
    match gguf.get_str(&key("type"))?.unwrap_or("linear") {
        "none" => Ok(RopeScaling::None),
        "linear" if factor == 1.0 => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear { factor }),
        "yarn" => {
            let extra = float("yarn_attn_factor")?.or(float("attn_factor")?);
            let original = match float("original_context_length")? {
                Some(v) => v,
                None => gguf.need_u64(&format!("{prefix}.context_length"))? as f64,
            };
            Ok(RopeScaling::Yarn {
                factor,
                beta_fast: positive("yarn_beta_fast", float("yarn_beta_fast")?.unwrap_or(32.0))?,
                beta_slow: positive("yarn_beta_slow", float("yarn_beta_slow")?.unwrap_or(1.0))?,
                original: positive("original_context_length", original)?,
                truncate,
                magnitude: extra.map(|e| e * (0.1 * factor.ln() + 1.0)),
            })
        }
        other => Err(ModelError::setting(file, &key("type"), other, "this build has none, linear and yarn")),
    }
}
