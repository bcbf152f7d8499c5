//! A model on disk: a GGUF file (or its shards), or a Hugging Face folder.

use std::path::Path;

use overdraft_formats::Tensor;
use overdraft_formats::gguf::Gguf;
use overdraft_formats::hf_config::HfConfig;
use overdraft_formats::safetensors::SafeTensors;
use overdraft_formats::{Bytes, Error};

use crate::arch::Arch;
use crate::error::{ModelError, Result};
use crate::hyper::Hyper;
use crate::names;

/// An opened checkpoint; tensors are mapped, not read.
pub enum Checkpoint {
    Gguf(Box<Gguf>),
    HuggingFace { name: String, config: HfConfig, tensors: Box<SafeTensors>, prefix: &'static str },
}

/// What a checkpoint is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    Target(Arch),
    /// A draft, with the name of its method.
    Draft(String),
    Unknown(String),
}

const DRAFT_ARCHES: [(&str, &str); 4] = [
    ("dflash", "DFlash"),
    ("dflash-draft", "DFlash"),
    ("qwen35-dflash-draft", "DFlash"),
    ("eagle3", "EAGLE-3"),
];

/// Parts of the class names that drafts have in `architectures`.
const DRAFT_CLASSES: [&str; 4] = ["Draft", "Eagle", "DFlash", "DSpark"];

/// Where Hugging Face checkpoints keep the text model.
const PREFIXES: [&str; 3] = ["model.language_model.", "model.", ""];

impl Checkpoint {
    /// Opens a GGUF file, the first of its shards, a folder with `config.json` and safetensors, or a folder that
    /// holds one GGUF.
    pub fn open(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        let is_folder = std::fs::metadata(path).map_err(|e| Error::io(&name, e))?.is_dir();
        if is_folder {
            return if path.join("config.json").exists() {
                Self::open_hf(path)
            } else {
                Self::open_only_gguf(path)
            };
        }
        if path.extension().is_some_and(|e| e.eq_ignore_ascii_case("safetensors")) {
            let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
            return Self::open_hf(folder);
        }
        Ok(Self::Gguf(Box::new(Gguf::open(path)?)))
    }

    /// A GGUF in memory, such as the one inside the binary.
    pub fn from_gguf_bytes(name: &str, bytes: Bytes) -> Result<Self> {
        Ok(Self::Gguf(Box::new(Gguf::from_bytes(name, bytes)?)))
    }

    fn open_hf(folder: &Path) -> Result<Self> {
        let config = HfConfig::open(folder)?;
        let tensors = SafeTensors::open(folder)?;
        let has = |p: &&str| {
            ["embed_tokens.weight", "fc.weight", "norm.weight"]
                .iter()
                .any(|t| tensors.tensor_info(&format!("{p}{t}")).is_some())
        };
        let prefix = PREFIXES.into_iter().find(|p| has(p)).unwrap_or("model.");
        Ok(Self::HuggingFace {
            name: folder.display().to_string(),
            config,
            tensors: Box::new(tensors),
            prefix,
        })
    }

    fn open_only_gguf(folder: &Path) -> Result<Self> {
        let name = folder.display().to_string();
        let entries = std::fs::read_dir(folder).map_err(|e| Error::io(&name, e))?;
        let mut files: Vec<_> = entries
            .filter_map(|e| e.ok().map(|e| e.path()))
            .filter(|p| p.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf")))
            .filter(|p| !is_later_shard(p))
            .collect();
        files.sort();
        match files.as_slice() {
            [one] => Ok(Self::Gguf(Box::new(Gguf::open(one)?))),
            [] => Err(Error::invalid(name, "folder", "holds neither config.json nor a .gguf file").into()),
            many => {
                let list: Vec<_> = many.iter().map(|p| p.display().to_string()).collect();
                Err(Error::invalid(
                    name,
                    "folder",
                    format!("holds several models; name one of: {}", list.join(", ")),
                )
                .into())
            }
        }
    }

    pub fn name(&self) -> &str {
        match self {
            Self::Gguf(g) => g.name(),
            Self::HuggingFace { name, .. } => name,
        }
    }

    /// Target, draft or unknown, from the file's own word.
    pub fn kind(&self) -> Result<Kind> {
        match self {
            Self::Gguf(g) => {
                let arch = g.need_str("general.architecture")?;
                if let Some((_, what)) = DRAFT_ARCHES.iter().find(|(a, _)| *a == arch) {
                    return Ok(Kind::Draft((*what).into()));
                }
                Ok(Arch::from_gguf(arch).map_or_else(|| Kind::Unknown(arch.into()), Kind::Target))
            }
            Self::HuggingFace { config, .. } => {
                let classes = config.get_str_list("architectures")?.unwrap_or_default();
                // `Qwen3DSparkModel` and its like have a target's `model_type`, so the class is asked first.
                let is_draft = |c: &&String| DRAFT_CLASSES.iter().any(|part| c.contains(part));
                if let Some(class) = classes.iter().find(is_draft) {
                    let dflash = class.contains("DFlash") && !class.contains("DFlash2");
                    return Ok(Kind::Draft(if dflash { "DFlash".into() } else { class.clone() }));
                }
                // A multimodal file says its text model's type in `text_config`.
                let text = config.text();
                let model_type =
                    text.get_str("model_type")?.or(config.get_str("model_type")?).unwrap_or_default();
                Ok(Arch::from_hf(model_type)
                    .map_or_else(|| Kind::Unknown(model_type.to_string()), Kind::Target))
            }
        }
    }

    /// The family, or why this cannot be run as a target.
    pub fn target_arch(&self) -> Result<Arch> {
        match self.kind()? {
            Kind::Target(arch) => Ok(arch),
            Kind::Draft(what) => Err(ModelError::Draft { file: self.name().into(), what }),
            Kind::Unknown(found) => {
                Err(ModelError::UnknownArch { file: self.name().into(), found, known: Arch::known() })
            }
        }
    }

    /// What the file declares, checked.
    pub fn hyper(&self) -> Result<Hyper> {
        let arch = self.target_arch()?;
        let hyper = match self {
            Self::Gguf(g) => crate::hyper_gguf::read(g, arch)?,
            Self::HuggingFace { config, .. } => crate::hyper_hf::read(config, arch, self.name())?,
        };
        hyper.check()?;
        Ok(hyper)
    }

    pub(crate) fn is_gguf(&self) -> bool {
        matches!(self, Self::Gguf(_))
    }

    /// The tensor with this GGUF name, under whatever name the file has it.
    pub(crate) fn tensor(&self, gguf_name: &str) -> Result<Option<Tensor>> {
        match self {
            Self::Gguf(g) => Ok(g.tensor(gguf_name)?),
            Self::HuggingFace { prefix, .. } => match names::hugging_face(gguf_name, prefix) {
                Some(name) => self.tensor_called(&name),
                None => Ok(None),
            },
        }
    }

    /// The tensor with this very name.
    pub(crate) fn tensor_called(&self, name: &str) -> Result<Option<Tensor>> {
        match self {
            Self::Gguf(g) => Ok(g.tensor(name)?),
            Self::HuggingFace { tensors, .. } => Ok(tensors.tensor(name)?),
        }
    }

    /// `prefix` of a Hugging Face checkpoint's tensors, for the few that have no GGUF twin.
    pub(crate) fn prefix(&self) -> &'static str {
        match self {
            Self::Gguf(_) => "",
            Self::HuggingFace { prefix, .. } => prefix,
        }
    }
}

fn is_later_shard(path: &Path) -> bool {
    let stem = path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
    stem.rsplit_once("-of-")
        .and_then(|(front, _)| front.rsplit_once('-'))
        .is_some_and(|(_, n)| n.len() == 5 && n.bytes().all(|b| b.is_ascii_digit()) && n != "00001")
}
