//! [`Hyper`] as GGUF metadata: what `hyper_gguf` reads back.

use overdraft_formats::gguf::{GgufWriter, Value};

use crate::arch::Arch;
use crate::hyper::{Hyper, MixerKind};
use crate::rope::RopeScaling;

pub(super) fn write(h: &Hyper, w: &mut GgufWriter) {
    let arch = h.arch.name();
    let mut set = |key: &str, value: Value| {
        w.set(&format!("{arch}.{key}"), value);
    };
    let size = |n: usize| Value::U32(n as u32);
    let float = |x: f64| Value::F32(x as f32);
    set("block_count", size(h.layers.len()));
    set("context_length", size(h.context));
    set("embedding_length", size(h.hidden));
    if h.ffn > 0 {
        set("feed_forward_length", size(h.ffn));
    }
    set("attention.head_count", size(h.heads));
    set("attention.head_count_kv", size(h.kv_heads));
    set("attention.key_length", size(h.head_dim));
    set("attention.value_length", size(h.head_dim));
    set("attention.layer_norm_rms_epsilon", Value::F32(h.eps));
    set("rope.freq_base", float(h.rope_theta));
    set("rope.dimension_count", size(h.rotary_dims));
    set("vocab_size", size(h.vocab));
    match &h.rope_scaling {
        // Llama 3's goes into the tensor `rope_freqs`.
        RopeScaling::None | RopeScaling::Llama3 { .. } | RopeScaling::Divisors(_) => {}
        RopeScaling::Linear { factor } => {
            set("rope.scaling.type", Value::from("linear"));
            set("rope.scaling.factor", float(*factor));
        }
        RopeScaling::Yarn { factor, beta_fast, beta_slow, original, magnitude, .. } => {
            set("rope.scaling.type", Value::from("yarn"));
            set("rope.scaling.factor", float(*factor));
            set("rope.scaling.original_context_length", size(*original as usize));
            set("rope.scaling.yarn_beta_fast", float(*beta_fast));
            set("rope.scaling.yarn_beta_slow", float(*beta_slow));
            if let Some(m) = magnitude {
                set("rope.scaling.yarn_attn_factor", float(m / (0.1 * factor.ln() + 1.0)));
            }
        }
    }
    if let Some(g) = &h.gdn {
        set("ssm.conv_kernel", size(4));
        set("ssm.state_size", size(g.head_dim));
        set("ssm.group_count", size(g.key_heads));
        set("ssm.time_step_rank", size(g.value_heads));
        set("ssm.inner_size", size(g.value_heads * g.head_dim));
        let full = h.layers.iter().position(|l| *l != MixerKind::Recurrent);
        set("full_attention_interval", size(full.map_or(4, |i| i + 1)));
    }
    if let Some(m) = &h.moe {
        set("expert_count", size(m.experts));
        set("expert_used_count", size(m.used));
        set("expert_feed_forward_length", size(m.width));
        if m.shared_width > 0 {
            set("expert_shared_feed_forward_length", size(m.shared_width));
        }
    }
    let window = h.layers.iter().find_map(|l| match l {
        MixerKind::Attention { window } => *window,
        MixerKind::Recurrent => None,
    });
    if let Some(window) = window {
        set("attention.sliding_window", Value::U32(window));
        if h.arch != Arch::GptOss {
            let flag = |l: &MixerKind| matches!(l, MixerKind::Attention { window: Some(_) });
            let flags: Vec<bool> = h.layers.iter().map(flag).collect();
            set("attention.sliding_window_pattern", Value::from(flags.as_slice()));
        }
    }
}
