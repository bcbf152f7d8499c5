//! [`DraftSettings`] from the metadata of a GGUF file, in any of the three dialects.

use overdraft_formats::gguf::{Gguf, PerLayer, Value};

use super::names::{Dialect, DraftNames};
use super::refuse;
use super::settings::{DEFAULT_BLOCK, DraftLayer, DraftSettings, MAX_LAYERS, TapAfter, layer, size, taps};
use crate::error::{ModelError, Result};
use crate::hyper_gguf::rope_scaling;

/// Keys below the architecture's name that are read here, or that cannot change what the draft computes.
const KNOWN: [&str; 34] = [
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "vocab_size",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "attention.scale",
    "attention.causal",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "rope.freq_base",
    "rope.dimension_count",
    // Streams of positions for pictures; for text they all carry the same one.
    "rope.dimension_sections",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.attn_factor",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "rope.scaling.finetuned",
    "block_size",
    "target_layers",
    "logit_scale",
    "dflash.block_size",
    "dflash.mask_token_id",
    "dflash.target_layer_ids",
    "dflash.n_target_layers",
    "dflash.n_target_features",
    // Which file of the target it was trained with; says nothing that can be checked here.
    "target_checkpoint_sha256",
];

struct Keys<'a> {
    gguf: &'a Gguf,
    prefix: &'a str,
    upstream: bool,
}

impl Keys<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.prefix)
    }

    /// A key that upstream has right below the architecture's name, the others below `dflash.`.
    fn own_key(&self, upstream: &str, others: &str) -> String {
        self.key(if self.upstream { upstream } else { others })
    }

    fn size(&self, name: &str) -> Result<Option<usize>> {
        Ok(self.gguf.get_u64(&self.key(name))?.map(size))
    }

    fn need_size(&self, name: &str) -> Result<usize> {
        Ok(size(self.gguf.need_u64(&self.key(name))?))
    }

    /// A number, or one per layer that is the same everywhere.
    fn per_layer(&self, name: &str) -> Result<Option<usize>> {
        let key = self.key(name);
        match self.gguf.get_u64_per_layer(&key)? {
            Some(PerLayer::Same(v)) => Ok(Some(size(v))),
            Some(PerLayer::Each(all)) if all.windows(2).all(|pair| pair[0] == pair[1]) => {
                Ok(all.first().map(|v| size(*v)))
            }
            Some(PerLayer::Each(_)) => {
                let problem = "layers of unlike size are not supported";
                Err(self.fail(name, "several values", problem))
            }
            None => Ok(None),
        }
    }

    fn fail(&self, name: &str, value: impl ToString, problem: impl Into<String>) -> ModelError {
        ModelError::setting(self.gguf.name(), &self.key(name), value, problem)
    }
}

pub(super) fn read(gguf: &Gguf, names: &DraftNames) -> Result<DraftSettings> {
    let prefix = gguf.need_str("general.architecture")?;
    let upstream = Dialect::of_architecture(prefix) == Some(Dialect::Upstream);
    let keys = Keys { gguf, prefix, upstream };
    refuse_unknown(&keys)?;
    let hidden = keys.need_size("embedding_length")?;
    let heads = keys.per_layer("attention.head_count")?.unwrap_or(0);
    let head_dim = match keys.size("attention.key_length")? {
        Some(d) => d,
        None => hidden.checked_div(heads).unwrap_or(0),
    };
    check_plain_attention(&keys, head_dim)?;
    let rotary_dims = keys.size("rope.dimension_count")?.unwrap_or(head_dim);
    let taps = read_taps(&keys, names, hidden)?;
    let block_key = keys.own_key("block_size", "dflash.block_size");
    let mask_key =
        if upstream { "tokenizer.ggml.mask_token_id".into() } else { keys.key("dflash.mask_token_id") };
    let mask = gguf.need_u64(&mask_key)?;
    Ok(DraftSettings {
        file: gguf.name().into(),
        block_size: size(gguf.get_u64(&block_key)?.unwrap_or(DEFAULT_BLOCK)),
        taps,
        mask_token: u32::try_from(mask)
            .map_err(|_| ModelError::setting(gguf.name(), &mask_key, mask, "no token has so large an id"))?,
        hidden,
        heads,
        kv_heads: keys.per_layer("attention.head_count_kv")?.unwrap_or(heads),
        head_dim,
        ffn: keys.per_layer("feed_forward_length")?.unwrap_or(0),
        eps: gguf.need_f32(&keys.key("attention.layer_norm_rms_epsilon"))?,
        rope_theta: gguf.get_f32(&keys.key("rope.freq_base"))?.map_or(10_000.0, f64::from),
        rotary_dims,
        rope_scaling: rope_scaling(gguf, prefix, rotary_dims, true)?,
        layers: layers(&keys)?,
        has_bias: names.any_bias().is_some(),
        n_target_layers: None,
        vocab: vocab(&keys, names)?,
        context: keys.need_size("context_length")?,
        has_embedding: names.has("token_embd.weight"),
        has_head: names.has("output.weight"),
    })
}

fn refuse_unknown(keys: &Keys<'_>) -> Result<()> {
    // Writers spell "not there" as 0, false or nothing.
    let off = |value: &Value| {
        value.as_float() == Some(0.0)
            || value.as_bool() == Some(false)
            || value.as_str() == Some("")
            || value.as_array().is_some_and(|a| a.is_empty())
    };
    for (key, value) in keys.gguf.keys() {
        let Some(name) = key.strip_prefix(keys.prefix).and_then(|rest| rest.strip_prefix('.')) else {
            continue;
        };
        let is_known = KNOWN.contains(&name) && !(name == "logit_scale" && value.as_float() != Some(1.0));
        if !is_known && !off(value) {
            return Err(refuse::key(keys.gguf.name(), key, &value.to_string()));
        }
    }
    Ok(())
}

fn check_plain_attention(keys: &Keys<'_>, head_dim: usize) -> Result<()> {
    if let Some(v) = keys.size("attention.value_length")?.filter(|v| *v != head_dim) {
        let problem = format!("differs from the key length {head_dim}, which is not supported");
        return Err(keys.fail("attention.value_length", v, problem));
    }
    let usual = (head_dim as f32).sqrt().recip();
    match keys.gguf.get_f32(&keys.key("attention.scale"))? {
        Some(s) if s != 0.0 && (s.is_nan() || (s / usual - 1.0).abs() > 1e-3) => {
            Err(keys.fail("attention.scale", s, format!("only {usual} (from the head size) is supported")))
        }
        _ => Ok(()),
    }
}

/// Upstream numbers the layers whose *input* is read, the others those whose *output* is.
fn read_taps(keys: &Keys<'_>, names: &DraftNames, hidden: usize) -> Result<Vec<TapAfter>> {
    let file = keys.gguf.name();
    let key = keys.own_key("target_layers", "dflash.target_layer_ids");
    let Some(ids) = keys.gguf.get_u64_array(&key)? else {
        let fused = names.shape("fc.weight").and_then(|s| s.last()).and_then(|cols| cols.checked_div(hidden));
        let known = fused
            .map_or_else(String::new, |n| format!("; `fc.weight` tells that there are {n}, but not which"));
        let plus = if keys.upstream { " plus 1" } else { "" };
        let problem = format!(
            "which layers of the target are read is not said{known}\nhint: convert the draft again, or \
             add the key: the draft's target_layer_ids{plus}"
        );
        return Err(ModelError::setting(file, &key, "missing", problem));
    };
    let taps = taps(file, &key, &ids, u64::from(keys.upstream))?;
    if let Some(n) = keys.size("dflash.n_target_layers")?.filter(|n| *n != taps.len()) {
        let problem = format!("but `{key}` lists {} layers", taps.len());
        return Err(keys.fail("dflash.n_target_layers", n, problem));
    }
    if let Some(n) =
        keys.size("dflash.n_target_features")?.filter(|n| Some(*n) != taps.len().checked_mul(hidden))
    {
        let problem = format!("but `{key}` lists {} layers of hidden size {hidden}", taps.len());
        return Err(keys.fail("dflash.n_target_features", n, problem));
    }
    Ok(taps)
}

fn layers(keys: &Keys<'_>) -> Result<Vec<DraftLayer>> {
    // `check` names the limit; this keeps a hostile count from being allocated before it.
    let n = keys.need_size("block_count")?.min(MAX_LAYERS + 1);
    let causal = keys.gguf.get_bool(&keys.key("attention.causal"))?;
    let window = keys.gguf.get_u64(&keys.key("attention.sliding_window"))?.filter(|w| *w > 0);
    let pattern = keys.gguf.get_u64_per_layer(&keys.key("attention.sliding_window_pattern"))?;
    let windowed: Vec<bool> = match pattern {
        Some(PerLayer::Each(flags)) if flags.len() == n => flags.iter().map(|f| *f != 0).collect(),
        Some(PerLayer::Each(flags)) => {
            let problem = format!("must have one entry for each of the {n} layers");
            return Err(keys.fail(
                "attention.sliding_window_pattern",
                format!("{} entries", flags.len()),
                problem,
            ));
        }
        // A scalar is a period whose last layer is full.
        Some(PerLayer::Same(period)) if period > 0 => (1..=n as u64).map(|i| i % period != 0).collect(),
        _ if window.is_none() => vec![false; n],
        _ => {
            let problem = "which layers slide is not said: `attention.sliding_window_pattern` is missing";
            return Err(keys.fail("attention.sliding_window", window.unwrap_or(0), problem));
        }
    };
    let Some(window) = window else {
        return if windowed.contains(&true) {
            let problem = "needed by the layers that slide";
            Err(keys.fail("attention.sliding_window", "missing", problem))
        } else {
            Ok(vec![layer(None, causal); n])
        };
    };
    let window = u32::try_from(window).unwrap_or(u32::MAX);
    Ok(windowed.into_iter().map(|w| layer(w.then_some(window), causal)).collect())
}

fn vocab(keys: &Keys<'_>, names: &DraftNames) -> Result<Option<usize>> {
    let tokens = keys.gguf.get_str_array("tokenizer.ggml.tokens")?.map(|t| t.len());
    Ok(keys.size("vocab_size")?.or(names.own_vocab()).or(tokens))
}
