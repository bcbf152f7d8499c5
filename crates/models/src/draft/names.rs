//! Which tensor of the file is which. Drafts go by the names of upstream GGUF files; here are everyone's.

use std::collections::BTreeMap;

use overdraft_formats::TensorInfo;

use super::refuse;
use crate::checkpoint::Checkpoint;
use crate::error::{ModelError, Result, shown};

/// How a file spells keys and tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    /// GGUF `dflash`, as llama.cpp's converter writes it.
    Upstream,
    /// GGUF `dflash-draft`, of forks that were there before.
    DflashDraft,
    /// GGUF `qwen35-dflash-draft`, of Lucebox.
    Qwen35DflashDraft,
    HuggingFace,
}

impl Dialect {
    pub(super) fn of_architecture(name: &str) -> Option<Self> {
        match name {
            "dflash" => Some(Self::Upstream),
            "dflash-draft" => Some(Self::DflashDraft),
            "qwen35-dflash-draft" => Some(Self::Qwen35DflashDraft),
            _ => None,
        }
    }
}

/// Upstream, `dflash-draft`, `qwen35-dflash-draft`, Hugging Face: in the order of [`Dialect`].
#[rustfmt::skip]
const GLOBAL: [[&str; 4]; 6] = [
    ["fc.weight",              "dflash_fc.weight",          "dflash.fc.weight",          "fc.weight"],
    ["enc.output_norm.weight", "dflash_hidden_norm.weight", "dflash.hidden_norm.weight", "hidden_norm.weight"],
    ["output_norm.weight",     "output_norm.weight",        "output_norm.weight",        "norm.weight"],
    ["token_embd.weight",      "token_embd.weight",         "token_embd.weight",         "embed_tokens.weight"],
    ["output.weight",          "output.weight",             "output.weight",             "lm_head.weight"],
    // Divisors of the rotary frequencies; Hugging Face files put them into the settings.
    ["rope_freqs.weight",      "rope_freqs.weight",         "rope_freqs.weight",         ""],
];

/// Upstream's name within a layer, and Hugging Face's. The other dialects spell as upstream but for one norm.
const LAYER: [(&str, &str); 15] = [
    ("attn_norm.weight", "input_layernorm.weight"),
    ("attn_q.weight", "self_attn.q_proj.weight"),
    ("attn_k.weight", "self_attn.k_proj.weight"),
    ("attn_v.weight", "self_attn.v_proj.weight"),
    ("attn_output.weight", "self_attn.o_proj.weight"),
    ("attn_q.bias", "self_attn.q_proj.bias"),
    ("attn_k.bias", "self_attn.k_proj.bias"),
    ("attn_v.bias", "self_attn.v_proj.bias"),
    ("attn_output.bias", "self_attn.o_proj.bias"),
    ("attn_q_norm.weight", "self_attn.q_norm.weight"),
    ("attn_k_norm.weight", "self_attn.k_norm.weight"),
    ("ffn_norm.weight", "post_attention_layernorm.weight"),
    ("ffn_gate.weight", "mlp.gate_proj.weight"),
    ("ffn_up.weight", "mlp.up_proj.weight"),
    ("ffn_down.weight", "mlp.down_proj.weight"),
];

/// The name upstream has for a file's tensor, and its layer.
fn logical(dialect: Dialect, name: &str) -> Option<(String, Option<usize>)> {
    let hugging_face = dialect == Dialect::HuggingFace;
    let bare = if hugging_face { name.strip_prefix("model.").unwrap_or(name) } else { name };
    let column = dialect as usize;
    if let Some(row) = GLOBAL.iter().find(|row| row[column] == bare && !bare.is_empty()) {
        return Some((row[0].into(), None));
    }
    let rest = bare.strip_prefix(if hugging_face { "layers." } else { "blk." })?;
    let (number, stem) = rest.split_once('.')?;
    // Written back as `007` it would be another tensor's name.
    let layer: usize = number.parse().ok().filter(|n: &usize| n.to_string() == number)?;
    let stem = match (dialect, stem) {
        (Dialect::DflashDraft, "post_attention_norm.weight") => "ffn_norm.weight",
        (Dialect::DflashDraft, "ffn_norm.weight") => return None,
        (Dialect::HuggingFace, stem) => LAYER.iter().find(|(_, hf)| *hf == stem)?.0,
        (_, stem) => LAYER.iter().find(|(gguf, _)| *gguf == stem)?.0,
    };
    Some((format!("blk.{layer}.{stem}"), Some(layer)))
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) in_file: String,
    pub(super) shape: Vec<usize>,
    pub(super) layer: Option<usize>,
}

/// The draft's tensors by upstream's GGUF names: `fc.weight`, `enc.output_norm.weight`, `blk.0.attn_q.weight`.
#[derive(Debug)]
pub struct DraftNames {
    file: String,
    entries: BTreeMap<String, Entry>,
}

impl DraftNames {
    /// Every tensor of the file, each under its one name; errors at the first that no DFlash draft has.
    pub fn of(checkpoint: &Checkpoint) -> Result<Self> {
        let file = checkpoint.name();
        match checkpoint {
            Checkpoint::Gguf(gguf) => {
                let arch = gguf.need_str("general.architecture")?;
                let dialect = Dialect::of_architecture(arch).ok_or_else(|| ModelError::NotADraft {
                    file: file.into(),
                    what: format!("architecture `{}`", shown(arch)),
                })?;
                Self::collect(file, dialect, gguf.tensors())
            }
            Checkpoint::HuggingFace { tensors, .. } => {
                Self::collect(file, Dialect::HuggingFace, tensors.tensors())
            }
        }
    }

    fn collect(file: &str, dialect: Dialect, tensors: &[TensorInfo]) -> Result<Self> {
        let mut entries = BTreeMap::new();
        for t in tensors {
            let (name, layer) = logical(dialect, &t.name).ok_or_else(|| refuse::tensor(file, &t.name))?;
            let entry = Entry { in_file: t.name.clone(), shape: t.shape.clone(), layer };
            if let Some(other) = entries.insert(name, entry) {
                let problem = format!("says the same as `{}`; the file must hold one", shown(&t.name));
                return Err(ModelError::setting(file, &other.in_file, "present", problem));
            }
        }
        Ok(Self { file: file.into(), entries })
    }

    /// What the file calls the tensor; None where it has none.
    pub fn in_file(&self, name: &str) -> Option<&str> {
        self.entries.get(name).map(|e| e.in_file.as_str())
    }

    pub fn has(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.entries.get(name).map(|e| e.shape.as_slice())
    }

    /// Rows of the embedding or head the file holds itself.
    pub(super) fn own_vocab(&self) -> Option<usize> {
        let own = self.shape("token_embd.weight").or_else(|| self.shape("output.weight"));
        own.and_then(|shape| shape.first().copied())
    }

    pub(super) fn file(&self) -> &str {
        &self.file
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values()
    }

    pub(super) fn any_bias(&self) -> Option<&Entry> {
        self.entries.iter().find(|(name, _)| name.ends_with(".bias")).map(|(_, e)| e)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip]
    fn every_dialect_ends_in_upstreams_names() {
        use Dialect::*;
        let cases = [
            (Upstream,          "fc.weight",                                 Some("fc.weight")),
            (DflashDraft,       "dflash_fc.weight",                          Some("fc.weight")),
            (Qwen35DflashDraft, "dflash.fc.weight",                          Some("fc.weight")),
            (HuggingFace,       "fc.weight",                                 Some("fc.weight")),
            (HuggingFace,       "model.hidden_norm.weight",                  Some("enc.output_norm.weight")),
            (DflashDraft,       "blk.3.post_attention_norm.weight",          Some("blk.3.ffn_norm.weight")),
            (Qwen35DflashDraft, "blk.3.ffn_norm.weight",                     Some("blk.3.ffn_norm.weight")),
            (HuggingFace,       "layers.12.self_attn.o_proj.bias",           Some("blk.12.attn_output.bias")),
            (HuggingFace,       "model.layers.0.mlp.down_proj.weight",       Some("blk.0.ffn_down.weight")),
            (Upstream,          "blk.3.post_attention_norm.weight",          None),
            (Upstream,          "model.fc.weight",                           None),
            (Upstream,          "blk.03.ffn_norm.weight",                    None),
            (Upstream,          "blk.99999999999999999999.ffn_norm.weight",  None),
            (HuggingFace,       "",                                          None),
            (HuggingFace,       "model.",                                    None),
        ];
        for (dialect, name, want) in cases {
            assert_eq!(logical(dialect, name).map(|(n, _)| n).as_deref(), want, "{dialect:?} {name}");
        }
    }
}
