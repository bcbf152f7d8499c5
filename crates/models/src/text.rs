//! The text side of a checkpoint: tokenizer, chat template, and the sampling its makers recommend.

use std::path::Path;

use overdraft_formats::gguf::Gguf;
use overdraft_formats::hf_config::HfConfig;
use overdraft_formats::tokenizer::{SpecialIds, Tokenizer, VocabInput};

use crate::checkpoint::Checkpoint;
use crate::error::{ModelError, Result};

/// Sampling a checkpoint recommends; `None` where it says nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RecommendedSampling {
    pub temperature: Option<f32>,
    pub top_k: Option<u32>,
    pub top_p: Option<f32>,
    pub min_p: Option<f32>,
    pub repetition_penalty: Option<f32>,
}

/// Side files are read whole; none of a real model is near this.
const MAX_SIDE_FILE: u64 = 256 << 20;

impl Checkpoint {
    pub fn tokenizer(&self) -> Result<Tokenizer> {
        match self {
            Self::Gguf(g) => gguf_tokenizer(g),
            Self::HuggingFace { name, .. } => {
                let folder = Path::new(name);
                let json = side_file(folder, "tokenizer.json")?.ok_or_else(|| {
                    let problem = "missing; the folder must hold the tokenizer beside config.json";
                    overdraft_formats::Error::invalid(name.as_str(), "tokenizer.json", problem)
                })?;
                let config = side_file(folder, "tokenizer_config.json")?;
                let generation = match side_file(folder, "generation_config.json")? {
                    Some(g) => Some(g),
                    None => side_file(folder, "config.json")?,
                };
                let file = folder.join("tokenizer.json").display().to_string();
                Ok(Tokenizer::from_tokenizer_json(&file, &json, config.as_deref(), generation.as_deref())?)
            }
        }
    }

    /// The source of the default chat template.
    pub fn chat_template(&self) -> Result<Option<String>> {
        match self {
            Self::Gguf(g) => Ok(g.get_str("tokenizer.chat_template")?.map(String::from)),
            Self::HuggingFace { name, .. } => {
                let folder = Path::new(name);
                if let Some(source) = side_file(folder, "chat_template.jinja")? {
                    return Ok(Some(String::from_utf8_lossy(&source).into_owned()));
                }
                let Some(json) = side_file(folder, "tokenizer_config.json")? else { return Ok(None) };
                let config = HfConfig::from_json("tokenizer_config.json", &json)?;
                // Either a string, or a list of named templates; the list form is too rare to serve here.
                Ok(config.get_str("chat_template").ok().flatten().map(String::from))
            }
        }
    }

    pub fn recommended_sampling(&self) -> Result<RecommendedSampling> {
        match self {
            Self::Gguf(g) => {
                let float = |key: &str| g.get_f32(&format!("general.sampling.{key}"));
                Ok(RecommendedSampling {
                    temperature: float("temp")?,
                    top_k: g.get_i64("general.sampling.top_k")?.map(|k| k.clamp(0, 1 << 30) as u32),
                    top_p: float("top_p")?,
                    min_p: float("min_p")?,
                    repetition_penalty: float("penalty_repeat")?,
                })
            }
            Self::HuggingFace { name, .. } => {
                let Some(json) = side_file(Path::new(name), "generation_config.json")? else {
                    return Ok(RecommendedSampling::default());
                };
                let c = HfConfig::from_json("generation_config.json", &json)?;
                let float = |key: &str| c.get_f64(key).map(|v| v.map(|v| v as f32));
                let greedy = c.get_bool("do_sample")? == Some(false);
                Ok(RecommendedSampling {
                    temperature: if greedy { Some(0.0) } else { float("temperature")? },
                    top_k: c.get_u64("top_k")?.map(|k| k.min(1 << 30) as u32),
                    top_p: float("top_p")?,
                    min_p: float("min_p")?,
                    repetition_penalty: float("repetition_penalty")?,
                })
            }
        }
    }
}

fn side_file(folder: &Path, name: &str) -> Result<Option<Vec<u8>>> {
    let path = folder.join(name);
    let label = path.display().to_string();
    let io = |e| overdraft_formats::Error::io(&label, e);
    match std::fs::metadata(&path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(io(e).into()),
        Ok(m) if m.len() > MAX_SIDE_FILE => {
            Err(ModelError::setting(&label, "size", m.len(), "a side file of a model is far smaller"))
        }
        Ok(_) => Ok(Some(std::fs::read(&path).map_err(io)?)),
    }
}

fn gguf_tokenizer(g: &Gguf) -> Result<Tokenizer> {
    let id = |name: &str| -> Result<Option<u32>> {
        // Out of range or negative is "none", as in llama.cpp; the tokenizer warns of ids past its vocabulary.
        let value = g.get_i64(&format!("tokenizer.ggml.{name}_token_id"))?;
        Ok(value.and_then(|v| u32::try_from(v).ok()))
    };
    let ids = SpecialIds {
        bos: id("bos")?,
        eos: id("eos")?,
        eot: id("eot")?,
        eom: id("eom")?,
        unknown: id("unknown")?,
        separator: id("seperator")?,
        padding: id("padding")?,
        mask: id("mask")?,
        fim_prefix: id("fim_pre")?.or(id("prefix")?),
        fim_suffix: id("fim_suf")?.or(id("suffix")?),
        fim_middle: id("fim_mid")?.or(id("middle")?),
        fim_pad: id("fim_pad")?,
        fim_repository: id("fim_rep")?,
        fim_separator: id("fim_sep")?,
    };
    Ok(Tokenizer::from_vocab(VocabInput {
        file: g.name(),
        model: g.need_str("tokenizer.ggml.model")?,
        pre: g.get_str("tokenizer.ggml.pre")?.unwrap_or("default"),
        tokens: g.need_str_array("tokenizer.ggml.tokens")?.bytes().collect(),
        token_types: g.get_i32_array("tokenizer.ggml.token_type")?,
        merges: g.need_str_array("tokenizer.ggml.merges")?.bytes().collect(),
        ids,
        add_bos: g.get_bool("tokenizer.ggml.add_bos_token")?,
        add_eos: g.get_bool("tokenizer.ggml.add_eos_token")?,
    })?)
}
