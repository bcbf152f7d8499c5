//! What a draft says of itself and of the target it was made for. Four writers, four spellings.

use overdraft_formats::gguf::Gguf;
use overdraft_formats::hf_config::HfConfig;
use overdraft_models::Checkpoint;
use serde::Serialize;

use super::shape::Shape;
use super::source::Source;

/// `None` where the file does not say.
#[derive(Debug, Default, PartialEq, Serialize)]
pub(super) struct DraftFacts {
    pub(super) method: String,
    pub(super) block_size: Option<u64>,
    /// Target layers, counted from 0, whose outputs it reads.
    pub(super) taps: Option<Vec<u64>>,
    pub(super) mask_id: Option<u64>,
    pub(super) target_hidden: Option<u64>,
    pub(super) target_layers: Option<u64>,
    pub(super) target_vocabulary: Option<u64>,
    /// It has a head over fewer tokens than the target.
    pub(super) own_vocabulary: Option<u64>,
}

/// Block length of a DFlash draft that does not say.
const DFLASH_BLOCK: u64 = 16;

impl DraftFacts {
    pub(super) fn gather(source: &Source, checkpoint: &Checkpoint, method: &str, shape: &Shape) -> Self {
        let mut facts = match checkpoint {
            Checkpoint::Gguf(gguf) => from_gguf(gguf),
            Checkpoint::HuggingFace { config, .. } => from_config(config),
        };
        facts.method = variant(source, method);
        if facts.method.starts_with("DFlash") {
            facts.block_size = facts.block_size.or(Some(DFLASH_BLOCK));
        }
        // Fusion takes all taps side by side, so its width tells the target's.
        let fused = ["fc.weight", "model.fc.weight", "dflash_fc.weight", "dflash.fc.weight"]
            .iter()
            .find_map(|name| tensor_shape(source, name))
            .and_then(|shape| shape.last().map(|n| *n as u64));
        let n_taps = facts.taps.as_ref().map(|t| t.len() as u64).filter(|n| *n > 0);
        let by_fusion = fused.zip(n_taps).filter(|(w, n)| w.is_multiple_of(*n)).map(|(w, n)| w / n);
        facts.target_hidden = facts.target_hidden.or(by_fusion).or(shape.hidden);
        facts.target_vocabulary = shape.vocabulary;
        let own = ["d2t", "model.d2t"].iter().find_map(|name| tensor_shape(source, name));
        facts.own_vocabulary = own.and_then(|shape| shape.first().map(|n| *n as u64));
        facts
    }
}

fn tensor_shape<'a>(source: &'a Source, name: &str) -> Option<&'a [usize]> {
    source.tensors().iter().find(|t| t.name == name).map(|t| t.shape.as_slice())
}

/// The DFlash family shares its architecture's name; tensors tell its members apart.
fn variant(source: &Source, method: &str) -> String {
    let has = |part: &str| source.tensors().iter().any(|t| t.name.contains(part));
    if method != "DFlash" {
        method.into()
    } else if has("markov_w1") || has("dspark.markov") {
        "DSpark (DFlash with a Markov head)".into()
    } else if has("selector_hidden") || has("selector.hidden_proj") {
        "DFlash2".into()
    } else {
        method.into()
    }
}

fn from_gguf(gguf: &Gguf) -> DraftFacts {
    let arch = gguf.get_str("general.architecture").ok().flatten().unwrap_or_default();
    let number = |key: String| gguf.get_u64(&key).ok().flatten();
    let list = |key: String| gguf.get_u64_array(&key).ok().flatten();
    // The first two spellings count the layer whose input is read, which is the output of the one before.
    let before = |layers: Vec<u64>| layers.into_iter().map(|n| n.saturating_sub(1)).collect();
    let is_input_numbered = matches!(arch, "dflash" | "eagle3");
    DraftFacts {
        block_size: number(format!("{arch}.block_size")).or(number(format!("{arch}.dflash.block_size"))),
        taps: if is_input_numbered {
            list(format!("{arch}.target_layers")).map(before)
        } else {
            list(format!("{arch}.dflash.target_layer_ids"))
        },
        mask_id: number(format!("{arch}.dflash.mask_token_id"))
            .or(number("tokenizer.ggml.mask_token_id".into())),
        target_hidden: number(format!("{arch}.target_hidden_size")),
        target_layers: number(format!("{arch}.dflash.n_target_layers")).filter(|_| !is_input_numbered),
        ..DraftFacts::default()
    }
}

fn from_config(config: &HfConfig) -> DraftFacts {
    let own = config.section("dflash_config");
    let number = |key: &str| {
        let nested = own.as_ref().and_then(|c| c.get_u64(key).ok().flatten());
        nested.or(config.get_u64(key).ok().flatten())
    };
    let nested = own.as_ref().and_then(|c| c.get_u64_list("target_layer_ids").ok().flatten());
    DraftFacts {
        block_size: number("block_size"),
        taps: nested.or(config.get_u64_list("target_layer_ids").ok().flatten()),
        mask_id: number("mask_token_id"),
        target_hidden: config.get_u64("target_hidden_size").ok().flatten(),
        target_layers: number("num_target_layers"),
        ..DraftFacts::default()
    }
}

#[cfg(test)]
mod tests {
    use overdraft_formats::Bytes;
    use overdraft_formats::gguf::{GgufWriter, Value};

    use super::*;

    #[test]
    #[rustfmt::skip]
    fn every_dialect_taps_the_same_layers() {
        //    architecture           prefix of keys                 taps key            taps       mask key
        check("dflash",              "dflash.",                     "target_layers",    &[2, 6],   "tokenizer.ggml.mask_token_id");
        check("dflash-draft",        "dflash-draft.dflash.",        "target_layer_ids", &[1, 5],   "dflash-draft.dflash.mask_token_id");
        check("qwen35-dflash-draft", "qwen35-dflash-draft.dflash.", "target_layer_ids", &[1, 5],   "qwen35-dflash-draft.dflash.mask_token_id");
    }

    #[track_caller]
    fn check(arch: &str, prefix: &str, taps_key: &str, taps: &[u32], mask_key: &str) {
        let mut writer = GgufWriter::new(arch);
        writer.set(&format!("{prefix}block_size"), 8u32);
        writer.set(&format!("{prefix}{taps_key}"), Value::from(taps));
        writer.set(mask_key, 77u32);
        let gguf = Gguf::from_bytes("draft", Bytes::from_vec(writer.to_bytes().unwrap())).unwrap();
        let facts = from_gguf(&gguf);
        assert_eq!((facts.block_size, facts.taps, facts.mask_id), (Some(8), Some(vec![1, 5]), Some(77)));
    }
}
