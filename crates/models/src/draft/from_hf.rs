//! [`DraftSettings`] from a Hugging Face `config.json`: both generations of it, and the speculators library's.
//!
//! Rev A has `block_size` and `rope_theta` at the top and taps and mask in `dflash_config`; rev B nests the rest as
//! well; speculators puts the layers' sizes into `transformer_layer_config` and counts taps from 1.

use std::path::Path;

use overdraft_formats::hf_config::HfConfig;

use super::names::DraftNames;
use super::refuse;
use super::settings::{DEFAULT_BLOCK, DraftLayer, DraftSettings, MAX_LAYERS, TapAfter, layer, size, taps};
use crate::error::{ModelError, Result, shown};
use crate::hyper_hf::rope_settings;
use crate::rope::RopeScaling;

struct Config<'a> {
    file: &'a str,
    top: &'a HfConfig,
    /// The layers' sizes.
    body: HfConfig,
    /// `dflash_config`.
    dflash: Option<HfConfig>,
}

/// All of `dflash_config` that is read. Anything else there is about the method, so it cannot be ignored.
const DFLASH_KEYS: [&str; 7] = [
    "block_size",
    "mask_token_id",
    "target_layer_ids",
    "causal",
    "use_swa",
    "swa_window_size",
    "n_target_features",
];

pub(super) fn read(top: &HfConfig, file: &str, names: &DraftNames) -> Result<DraftSettings> {
    let body = object(top, "transformer_layer_config")?.unwrap_or_else(|| top.text());
    let c = Config { file, top, body, dflash: object(top, "dflash_config")? };
    c.refuse_methods()?;
    let hidden = c.need_size("hidden_size")?;
    let heads = c.need_size("num_attention_heads")?;
    let head_dim = c.size("head_dim")?.unwrap_or(hidden.checked_div(heads).unwrap_or(0));
    let (rope_theta, rope_scaling, rotary_dims) = c.rope(head_dim)?;
    let n_layers = c.need_size("num_hidden_layers")?;
    let n_target_layers = c.size("num_target_layers")?;
    let mask = c.first_u64("mask_token_id")?;
    let mask =
        mask.ok_or_else(|| top.invalid("dflash_config.mask_token_id", "missing, and a draft needs it"))?;
    let s = DraftSettings {
        file: file.into(),
        block_size: size(c.first_u64("block_size")?.unwrap_or(DEFAULT_BLOCK)),
        taps: c.taps(n_layers, n_target_layers)?,
        mask_token: u32::try_from(mask)
            .map_err(|_| ModelError::setting(file, "mask_token_id", mask, "no token has so large an id"))?,
        hidden,
        heads,
        kv_heads: c.size("num_key_value_heads")?.unwrap_or(heads),
        head_dim,
        ffn: c.need_size("intermediate_size")?,
        eps: c.body.need_f64("rms_norm_eps")? as f32,
        rope_theta,
        rotary_dims,
        rope_scaling,
        layers: c.layers(n_layers)?,
        has_bias: c.has_bias(names)?,
        n_target_layers,
        vocab: c.size("vocab_size")?.or(names.own_vocab()),
        context: c.size("max_position_embeddings")?.unwrap_or(4096),
        has_embedding: names.has("token_embd.weight"),
        has_head: names.has("output.weight"),
    };
    c.refuse_other_sizes(&s)?;
    Ok(s)
}

/// The section; something else under its name is an error rather than no section.
fn object(c: &HfConfig, key: &str) -> Result<Option<HfConfig>> {
    match c.section(key) {
        None if c.has(key) => Err(c.invalid(key, format!("is {}, expected an object", c.shown(key))).into()),
        section => Ok(section),
    }
}

/// Writers spell "not there" as null, false or 0.
fn is_off(c: &HfConfig, key: &str) -> bool {
    matches!(c.get_bool(key), Ok(None | Some(false))) || matches!(c.get_f64(key), Ok(Some(0.0)))
}

impl Config<'_> {
    /// Sizes stand in the body; speculators keeps `num_target_layers` and its like at the top.
    fn size(&self, key: &str) -> Result<Option<usize>> {
        let value = match self.body.get_u64(key)? {
            Some(v) => Some(v),
            None => self.top.get_u64(key)?,
        };
        Ok(value.map(size))
    }

    fn need_size(&self, key: &str) -> Result<usize> {
        match self.size(key)? {
            Some(v) => Ok(v),
            None => Ok(size(self.body.need_u64(key)?)),
        }
    }

    /// `dflash_config` first, then the top.
    fn first_u64(&self, key: &str) -> Result<Option<u64>> {
        match &self.dflash {
            Some(d) if d.has(key) => Ok(d.get_u64(key)?),
            _ => Ok(self.top.get_u64(key)?),
        }
    }

    fn refuse_methods(&self) -> Result<()> {
        for c in [Some(self.top), Some(&self.body), self.dflash.as_ref()].into_iter().flatten() {
            for key in c.keys().filter(|k| refuse::foreign(k).is_some()) {
                let neutral = match key {
                    // Compared with the vocabulary once that is known.
                    "draft_vocab_size" => true,
                    _ if key.contains("neox") => c.get_bool(key)? == Some(true),
                    _ if key.contains("scal") || key.contains("multiplier") => c.get_f64(key)? == Some(1.0),
                    _ => is_off(c, key),
                };
                if !neutral {
                    return Err(refuse::key(self.file, key, &c.shown(key)));
                }
            }
        }
        if let Some(d) = &self.dflash
            && let Some(key) = d.keys().find(|k| !DFLASH_KEYS.contains(k) && !is_off(d, k))
        {
            return Err(refuse::key(self.file, &format!("dflash_config.{key}"), &d.shown(key)));
        }
        if let Some(act) = self.body.get_str("hidden_act")?.filter(|a| *a != "silu") {
            return Err(ModelError::setting(self.file, "hidden_act", act, "only silu is supported"));
        }
        if let Some(c) = [self.top, &self.body].into_iter().find(|c| c.has("quantization_config")) {
            let value = c.shown("quantization_config");
            let problem = "quantised safetensors are not supported for drafts; use a GGUF";
            return Err(ModelError::setting(self.file, "quantization_config", value, problem));
        }
        if Path::new(self.file).join("mask_embedding.pt").exists() {
            return Err(refuse::tensor(self.file, "mask_embedding.pt"));
        }
        Ok(())
    }

    fn refuse_other_sizes(&self, s: &DraftSettings) -> Result<()> {
        if let Some(v) = self.size("draft_vocab_size")?.filter(|v| Some(*v) != s.vocab) {
            let vocab = s.vocab.map_or("no vocab_size".into(), |v| format!("vocab_size {v}"));
            return Err(refuse::key(self.file, "draft_vocab_size", &format!("{v} beside {vocab}")));
        }
        if let Some(v) = self.size("target_hidden_size")?.filter(|v| *v != s.hidden) {
            let problem = format!("differs from hidden_size = {}, which is not supported", s.hidden);
            return Err(ModelError::setting(self.file, "target_hidden_size", v, problem));
        }
        let features = match &self.dflash {
            Some(d) => d.get_u64("n_target_features")?.map(size),
            None => None,
        };
        if let Some(v) = features.filter(|v| Some(*v) != s.taps.len().checked_mul(s.hidden)) {
            let problem = format!("but there are {} taps of hidden size {}", s.taps.len(), s.hidden);
            return Err(ModelError::setting(self.file, "dflash_config.n_target_features", v, problem));
        }
        Ok(())
    }

    fn taps(&self, n_layers: usize, n_target_layers: Option<usize>) -> Result<Vec<TapAfter>> {
        let outputs = match &self.dflash {
            Some(d) if d.has("target_layer_ids") => d.get_u64_list("target_layer_ids")?,
            _ => self.top.get_u64_list("target_layer_ids")?,
        };
        let outputs = outputs.map(|ids| taps(self.file, "target_layer_ids", &ids, 0)).transpose()?;
        let mut found = outputs;
        // Numbered by the layer whose input is read, as vLLM counts.
        for key in ["aux_hidden_state_layer_ids", "eagle_aux_hidden_state_layer_ids"] {
            let Some(ids) = self.top.get_u64_list(key)? else { continue };
            let inputs = taps(self.file, key, &ids, 1)?;
            if found.as_ref().is_some_and(|f| *f != inputs) {
                let problem = "must be target_layer_ids, each plus 1";
                return Err(ModelError::setting(self.file, key, format!("{ids:?}"), problem));
            }
            found = Some(inputs);
        }
        match (found, n_target_layers) {
            (Some(taps), _) => Ok(taps),
            (None, Some(n)) => Ok(default_taps(n_layers, n)),
            (None, None) => {
                let problem = "which layers of the target are read is not said, nor num_target_layers to derive it from";
                Err(ModelError::setting(self.file, "dflash_config.target_layer_ids", "missing", problem))
            }
        }
    }

    fn layers(&self, n: usize) -> Result<Vec<DraftLayer>> {
        let n = n.min(MAX_LAYERS + 1);
        let full = layer(None, self.causal(false)?);
        let window = self.window()?;
        let Some(types) = self.body.get_str_list("layer_types")? else {
            if self.body.get_bool("use_sliding_window")? == Some(true) || self.uses_swa()? {
                let problem = "which layers slide is not said; only explicit layer_types are supported";
                return Err(ModelError::setting(self.file, "layer_types", "missing", problem));
            }
            return Ok(vec![full; n]);
        };
        if types.len() != n {
            let (found, problem) = (format!("{} entries", types.len()), format!("num_hidden_layers = {n}"));
            return Err(ModelError::setting(self.file, "layer_types", found, problem));
        }
        let causal = self.causal(true)?;
        let kind = |t: &String| match (t.as_str(), window) {
            ("full_attention", _) => Ok(full),
            ("sliding_attention", Some(_)) => Ok(layer(window, causal)),
            ("sliding_attention", None) => {
                let problem = "needed by the sliding_attention layers";
                Err(ModelError::setting(self.file, "sliding_window", "missing", problem))
            }
            (other, _) => {
                let problem = "a draft has full_attention and sliding_attention";
                Err(ModelError::setting(self.file, "layer_types", other, problem))
            }
        };
        types.iter().map(kind).collect()
    }

    fn uses_swa(&self) -> Result<bool> {
        Ok(match &self.dflash {
            Some(d) => d.get_bool("use_swa")?.unwrap_or(false),
            None => false,
        })
    }

    fn window(&self) -> Result<Option<u32>> {
        let narrow = |w: u64| u32::try_from(w).unwrap_or(u32::MAX);
        let usual = self.body.get_u64("sliding_window")?;
        let swa = match &self.dflash {
            // Exporters leave it without `use_swa`, too; the layers' types say whether it counts.
            Some(d) => d.get_u64("swa_window_size")?,
            None => None,
        };
        match (usual, swa) {
            (Some(a), Some(b)) if a != b && self.uses_swa()? => {
                let problem = format!("but sliding_window = {a}");
                Err(ModelError::setting(self.file, "dflash_config.swa_window_size", b, problem))
            }
            (a, b) => Ok(a.or(b).map(narrow)),
        }
    }

    /// What the file says about rows of the block seeing later ones, for sliding or for full layers.
    fn causal(&self, sliding: bool) -> Result<Option<bool>> {
        if let Some(v) = self.top.get_bool("is_causal")? {
            return Ok(Some(v));
        }
        if let Some(d) = &self.dflash
            && let Some(v) = d.get_bool("causal")?
        {
            return Ok(Some(v));
        }
        // Speculators' word for it, which never concerns full layers.
        let both_ways = self.top.get_bool("sliding_window_non_causal")?;
        Ok(both_ways.filter(|_| sliding).map(|b| !b))
    }

    fn rope(&self, head_dim: usize) -> Result<(f64, RopeScaling, usize)> {
        let parameters = object(&self.body, "rope_parameters")?;
        object(&self.body, "rope_scaling")?;
        let per_kind = ["full_attention", "sliding_attention"];
        if let Some(key) = per_kind.into_iter().find(|k| parameters.as_ref().is_some_and(|r| r.has(k))) {
            let key = format!("rope_parameters.{key}");
            let problem = "a rotary embedding for each kind of layer is not supported";
            return Err(ModelError::setting(self.file, &key, "present", problem));
        }
        let fraction = match &parameters {
            Some(r) => r.get_f64("partial_rotary_factor")?,
            None => None,
        };
        let fraction = fraction.or(self.body.get_f64("partial_rotary_factor")?).unwrap_or(1.0);
        let (theta, scaling) = rope_settings(&self.body, parameters, self.file)?;
        Ok((theta, scaling, (head_dim as f64 * fraction) as usize))
    }

    fn has_bias(&self, names: &DraftNames) -> Result<bool> {
        let declared = self.body.get_bool("attention_bias")?;
        let found = names.any_bias();
        if let (Some(false), Some(e)) = (declared, found) {
            let problem = format!("but there is a tensor `{}`", shown(&e.in_file));
            return Err(ModelError::setting(self.file, "attention_bias", false, problem));
        }
        Ok(declared == Some(true) || found.is_some())
    }
}

/// Where the drafts' own code puts as many taps as the draft has layers when the settings list none.
fn default_taps(n_taps: usize, n_target_layers: usize) -> Vec<TapAfter> {
    let n_taps = n_taps.min(MAX_LAYERS);
    let last = n_target_layers.min(usize::from(u16::MAX)) as f64;
    let tap = |i: usize| {
        let after = match n_taps {
            1 => (last / 2.0).floor(),
            n => (1.0 + i as f64 * (last - 4.0).max(0.0) / (n - 1) as f64).round_ties_even(),
        };
        TapAfter(after as u16)
    };
    (0..n_taps).map(tap).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip]
    fn default_taps_are_those_of_the_released_drafts() {
        let cases: [(usize, usize, &[u16]); 6] = [
            (5, 36, &[1, 9, 17, 25, 33]),
            (5, 32, &[1, 8, 15, 22, 29]),
            (5, 64, &[1, 16, 31, 46, 61]),
            (5, 40, &[1, 10, 19, 28, 37]),
            (5, 48, &[1, 12, 23, 34, 45]),
            (1, 12, &[6]),
        ];
        for (n_taps, n_target_layers, want) in cases {
            let found: Vec<u16> = default_taps(n_taps, n_target_layers).iter().map(|t| t.0).collect();
            assert_eq!(found, want, "{n_taps} taps over {n_target_layers} layers");
        }
    }
}
