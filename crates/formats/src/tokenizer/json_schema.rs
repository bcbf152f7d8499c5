//! `tokenizer.json` as written. Strings are borrowed from the file where it has no escapes in them: a vocabulary is
//! half a million small strings.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::shown;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TokenizerJson<'a> {
    #[serde(rename = "version")]
    _version: Option<IgnoredAny>,
    pub(super) truncation: Option<Value>,
    pub(super) padding: Option<Value>,
    #[serde(borrow, default)]
    pub(super) added_tokens: Vec<AddedToken<'a>>,
    pub(super) normalizer: Option<Value>,
    pub(super) pre_tokenizer: Option<Value>,
    pub(super) post_processor: Option<Value>,
    pub(super) decoder: Option<Value>,
    #[serde(borrow)]
    pub(super) model: Model<'a>,
}

#[derive(Deserialize, Clone)]
#[serde(deny_unknown_fields)]
pub(super) struct AddedToken<'a> {
    /// In `tokenizer_config.json` the id is the key outside.
    #[serde(default)]
    pub(super) id: u32,
    #[serde(borrow)]
    pub(super) content: Cow<'a, str>,
    #[serde(default)]
    pub(super) single_word: bool,
    #[serde(default)]
    pub(super) lstrip: bool,
    #[serde(default)]
    pub(super) rstrip: bool,
    #[serde(default)]
    pub(super) normalized: bool,
    #[serde(default)]
    pub(super) special: bool,
    /// `"AddedToken"`, in configurations of some writers.
    #[serde(rename = "__type", default)]
    _type: Option<IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Model<'a> {
    #[serde(rename = "type")]
    _type: Option<IsBpe>,
    pub(super) dropout: Option<f64>,
    #[serde(rename = "unk_token")]
    _unk_token: Option<IgnoredAny>,
    pub(super) continuing_subword_prefix: Option<String>,
    pub(super) end_of_word_suffix: Option<String>,
    #[serde(rename = "fuse_unk")]
    _fuse_unk: Option<bool>,
    pub(super) byte_fallback: Option<bool>,
    pub(super) ignore_merges: Option<bool>,
    #[serde(borrow)]
    pub(super) vocab: Entries<'a>,
    #[serde(borrow)]
    pub(super) merges: MergeList<'a>,
}

/// Only lets `"BPE"` pass.
struct IsBpe;

impl<'de> Deserialize<'de> for IsBpe {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        if name == "BPE" {
            return Ok(Self);
        }
        Err(de::Error::custom(format_args!("model type `{}` is not supported, only `BPE`", shown(&name))))
    }
}

#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// The vocabulary in the order of the file.
pub(super) struct Entries<'a>(pub(super) Vec<(Cow<'a, str>, u32)>);

impl<'de: 'a, 'a> Deserialize<'de> for Entries<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visit;
        impl<'de> Visitor<'de> for Visit {
            type Value = Entries<'de>;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a map from token to id")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some((Text(token), id)) = map.next_entry()? {
                    entries.push((token, id));
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(Visit)
    }
}

/// Merges in order of rank, from `"left right"` or `["left", "right"]`.
pub(super) struct MergeList<'a>(pub(super) Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl<'de: 'a, 'a> Deserialize<'de> for MergeList<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visit;
        impl<'de> Visitor<'de> for Visit {
            type Value = MergeList<'de>;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a list of merges")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let mut merges = Vec::new();
                while let Some(Pair(left, right)) = seq.next_element()? {
                    merges.push((left, right));
                }
                Ok(MergeList(merges))
            }
        }
        deserializer.deserialize_seq(Visit)
    }
}

struct Pair<'a>(Cow<'a, str>, Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Pair<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visit;
        impl<'de> Visitor<'de> for Visit {
            type Value = Pair<'de>;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a merge, \"left right\" or [\"left\", \"right\"]")
            }

            fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Self::Value, E> {
                let (left, right) = split(text)?;
                Ok(Pair(Cow::Borrowed(left), Cow::Borrowed(right)))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                let (left, right) = split(text)?;
                Ok(Pair(Cow::Owned(left.into()), Cow::Owned(right.into())))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let Some(Text(left)) = seq.next_element()? else {
                    return Err(de::Error::invalid_length(0, &self));
                };
                let Some(Text(right)) = seq.next_element()? else {
                    return Err(de::Error::invalid_length(1, &self));
                };
                match seq.next_element::<IgnoredAny>()? {
                    None => Ok(Pair(left, right)),
                    Some(_) => Err(de::Error::invalid_length(3, &self)),
                }
            }
        }
        deserializer.deserialize_any(Visit)
    }
}

fn split<E: de::Error>(merge: &str) -> Result<(&str, &str), E> {
    match merge.split_once(' ') {
        Some((left, right)) if !right.contains(' ') => Ok((left, right)),
        _ => Err(E::custom(format_args!("merge `{}` is not two parts with a space between", shown(merge)))),
    }
}
