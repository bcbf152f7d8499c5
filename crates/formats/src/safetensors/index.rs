//! `model.safetensors.index.json`: which shard holds which tensor.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, Visitor};

use crate::error::quoted;
use crate::tensor::TensorIndex;
use crate::{Bytes, Error, Result};

/// Some 100 bytes for each of the 140 000 tensors of the largest models.
const MAX_BYTES: usize = 64 << 20;
const MAX_TENSORS: usize = 1 << 18;

pub(super) struct Index {
    pub(super) file: String,
    /// File names, in order, each once.
    pub(super) shards: BTreeSet<String>,
    tensors: Vec<String>,
}

impl Index {
    pub(super) fn open(path: &Path) -> Result<Self> {
        Self::from_json(path.display().to_string(), &Bytes::map(path)?)
    }

    fn from_json(file: String, json: &[u8]) -> Result<Self> {
        if json.len() > MAX_BYTES {
            let problem = format!("{} bytes long; at most {MAX_BYTES} are read", json.len());
            return Err(Error::invalid(file, "index", problem));
        }
        let parsed: IndexJson = serde_json::from_slice(json).map_err(|e| {
            let message = quoted(&e.to_string());
            Error::invalid(&file, "index", format!("not as expected: {}", message.trim_matches('`')))
        })?;
        let WeightMap { shards, tensors } = parsed.weight_map;
        for shard in &shards {
            if !is_plain_file_name(shard) {
                return Err(Error::invalid(
                    file,
                    format!("shard {}", quoted(shard)),
                    "a shard must be the name of a file beside the index",
                ));
            }
        }
        Ok(Self { file, shards, tensors })
    }

    /// Every tensor the index names must have been found in some shard.
    pub(super) fn check(&self, found: &TensorIndex) -> Result<()> {
        match self.tensors.iter().find(|name| found.find(name).is_none()) {
            Some(name) => {
                let at = format!("tensor {}", quoted(name));
                Err(Error::invalid(&self.file, at, "is listed, but no shard holds it"))
            }
            None => Ok(()),
        }
    }
}

/// No way out of the folder on any system: no separators, drives, streams or dots alone.
fn is_plain_file_name(name: &str) -> bool {
    let dots_only = name.chars().all(|c| c == '.');
    !dots_only && !name.chars().any(|c| matches!(c, '/' | '\\' | ':') || c.is_control())
}

#[derive(Deserialize)]
struct IndexJson {
    weight_map: WeightMap,
}

struct WeightMap {
    shards: BTreeSet<String>,
    tensors: Vec<String>,
}

impl<'de> Deserialize<'de> for WeightMap {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = WeightMap;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a map from tensors to shards")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<WeightMap, A::Error> {
                let mut out = WeightMap { shards: BTreeSet::new(), tensors: Vec::new() };
                while let Some((tensor, shard)) = map.next_entry::<String, String>()? {
                    if out.tensors.len() == MAX_TENSORS {
                        return Err(de::Error::custom(format!("more than {MAX_TENSORS} tensors")));
                    }
                    out.tensors.push(tensor);
                    out.shards.insert(shard);
                }
                Ok(out)
            }
        }
        d.deserialize_map(V)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip]
    fn a_shard_cannot_lie_outside_the_folder() {
        for (name, allowed) in [
            ("model-00001-of-00002.safetensors", true),
            ("..hidden",                         true),
            ("",                                 false),
            (".",                                false),
            ("..",                               false),
            ("../model.safetensors",             false),
            ("sub/model.safetensors",            false),
            ("/etc/passwd",                      false),
            ("..\\\\model.safetensors",          false),
            ("C:model.safetensors",              false),
            ("model\\u0000.safetensors",         false),
        ] {
            let json = format!(r#"{{"weight_map": {{"t": "{name}"}}}}"#);
            let index = Index::from_json("index".into(), json.as_bytes());
            assert_eq!(index.is_ok(), allowed, "{name}");
        }
    }

    #[test]
    fn an_index_of_another_form_is_refused() {
        for json in ["", "[]", "{}", r#"{"weight_map": []}"#, r#"{"weight_map": {"t": 1}}"#, "[[[["] {
            assert!(Index::from_json("index".into(), json.as_bytes()).is_err(), "{json}");
        }
        let deep = "[".repeat(100_000);
        let json = format!(r#"{{"metadata": {deep}"#);
        assert!(Index::from_json("index".into(), json.as_bytes()).is_err());
    }
}
