//! [`DraftSettings`]: one form for every dialect, checked so that everything after this can trust the numbers.

use overdraft_plan::MAX_DRAFT_DEPTH;

use super::names::DraftNames;
use super::{from_gguf, from_hf};
use crate::checkpoint::{Checkpoint, Kind};
use crate::error::{ModelError, Result, shown};
use crate::rope::RopeScaling;

/// Layer whose *output* a draft reads, 0-based. Writers disagree (upstream GGUF stores this plus one, the others
/// store this); only the readers in this module know that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TapAfter(pub u16);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraftLayer {
    /// How many positions a row sees, itself included.
    pub window: Option<u32>,
    /// Whether a row of the block sees only the block's earlier rows.
    pub causal: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct DraftSettings {
    /// For messages.
    pub file: String,
    /// Rows of the block the draft was trained on: the anchor and its masks.
    pub block_size: usize,
    /// In the order `fc` takes them, which is ascending.
    pub taps: Vec<TapAfter>,
    pub mask_token: u32,
    pub hidden: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub ffn: usize,
    pub eps: f32,
    pub rope_theta: f64,
    pub rotary_dims: usize,
    pub rope_scaling: RopeScaling,
    pub layers: Vec<DraftLayer>,
    /// Biases on the query, key, value and output projections of every layer.
    pub has_bias: bool,
    /// Layers of the target it was made for, where the file says.
    pub n_target_layers: Option<usize>,
    pub vocab: Option<usize>,
    /// Positions the draft was trained for.
    pub context: usize,
    /// The file holds an embedding or a head of its own; without one the target's is used.
    pub has_embedding: bool,
    pub has_head: bool,
}

/// What the default is when no key says it, in every dialect.
pub(super) const DEFAULT_BLOCK: u64 = 16;
/// Four times the largest block released; a round never drafts deeper than `MAX_DRAFT_DEPTH` anyway.
const MAX_BLOCK: usize = 64;
/// Drafts have 5 to 8 layers; as many as any target keeps a hostile count from being allocated.
pub(super) const MAX_LAYERS: usize = 512;
const MAX_SIZE: usize = 1 << 24;

impl DraftSettings {
    /// What the checkpoint declares, checked against its tensors; errors where it is no DFlash draft, or one that
    /// asks for more than this build does.
    pub fn read(checkpoint: &Checkpoint) -> Result<Self> {
        require_dflash(checkpoint)?;
        let names = DraftNames::of(checkpoint)?;
        let settings = match checkpoint {
            Checkpoint::Gguf(gguf) => from_gguf::read(gguf, &names)?,
            Checkpoint::HuggingFace { name, config, .. } => from_hf::read(config, name, &names)?,
        };
        settings.check()?;
        names.check(&settings)?;
        Ok(settings)
    }

    /// Tokens one round proposes at most.
    pub fn n_drafts(&self) -> usize {
        (self.block_size - 1).min(MAX_DRAFT_DEPTH)
    }

    fn fail<T>(&self, key: &str, value: impl ToString, problem: impl Into<String>) -> Result<T> {
        let (key, value) = (key.into(), value.to_string());
        Err(ModelError::Setting { file: self.file.clone(), key, value, problem: problem.into() })
    }

    fn check(&self) -> Result<()> {
        let sizes = [
            ("hidden size", self.hidden),
            ("attention heads", self.heads),
            ("key/value heads", self.kv_heads),
            ("head size", self.head_dim),
            ("feed-forward width", self.ffn),
            ("context length", self.context),
            ("vocabulary", self.vocab.unwrap_or(1)),
        ];
        for (key, value) in sizes {
            if value == 0 || value > MAX_SIZE {
                return self.fail(key, value, format!("must be between 1 and {MAX_SIZE}"));
            }
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            let problem = format!("is not a multiple of the {} key/value heads", self.kv_heads);
            return self.fail("attention heads", self.heads, problem);
        }
        if self.head_dim > 1024 {
            return self.fail("head size", self.head_dim, "must be at most 1024");
        }
        if !self.rotary_dims.is_multiple_of(2) || self.rotary_dims == 0 || self.rotary_dims > self.head_dim {
            let problem = format!("must be even, at least 2 and at most the head size {}", self.head_dim);
            return self.fail("rotary dimensions", self.rotary_dims, problem);
        }
        self.check_positive()?;
        if !(2..=MAX_BLOCK).contains(&self.block_size) {
            let problem = format!("must be between 2 (the anchor and one mask) and {MAX_BLOCK}");
            return self.fail("block size", self.block_size, problem);
        }
        if let Some(vocab) = self.vocab.filter(|v| self.mask_token as usize >= *v) {
            let problem = format!("is no token of the draft's own vocabulary of {vocab}");
            return self.fail("mask token", self.mask_token, problem);
        }
        self.check_layers()
    }

    fn check_positive(&self) -> Result<()> {
        let mut positive = vec![("norm epsilon", f64::from(self.eps)), ("rope theta", self.rope_theta)];
        match &self.rope_scaling {
            RopeScaling::None => {}
            RopeScaling::Divisors(d) => positive.extend(d.iter().map(|d| ("rope divisor", f64::from(*d)))),
            RopeScaling::Linear { factor } => positive.push(("rope scaling factor", *factor)),
            RopeScaling::Llama3 { factor, low, high, original } => positive.extend([
                ("rope scaling factor", *factor),
                ("low_freq_factor", *low),
                ("high_freq_factor", *high),
                ("original context length", *original),
            ]),
            RopeScaling::Yarn { factor, beta_fast, beta_slow, original, magnitude, .. } => positive.extend([
                ("rope scaling factor", *factor),
                ("beta_fast", *beta_fast),
                ("beta_slow", *beta_slow),
                ("original context length", *original),
                ("rope attention factor", magnitude.unwrap_or(1.0)),
            ]),
        }
        match positive.into_iter().find(|(_, v)| !(v.is_finite() && *v > 0.0)) {
            Some((key, value)) => self.fail(key, value, "must be a positive number"),
            None => Ok(()),
        }
    }

    fn check_layers(&self) -> Result<()> {
        if self.layers.is_empty() || self.layers.len() > MAX_LAYERS {
            let problem = format!("must be between 1 and {MAX_LAYERS}");
            return self.fail("draft layers", self.layers.len(), problem);
        }
        if self.layers.iter().any(|l| l.window == Some(0)) {
            return self.fail("sliding window", 0, "must be positive, as a row sees at least itself");
        }
        let taps = self.taps_in_words();
        if self.taps.is_empty() {
            return self.fail("tapped layers", "none", "a draft reads at least one layer of its target");
        }
        if self.taps.windows(2).any(|pair| pair[0] >= pair[1]) {
            let problem = "must ascend: `fc` takes the taps in the order of the target's layers";
            return self.fail("tapped layers", taps, problem);
        }
        Ok(())
    }

    fn taps_in_words(&self) -> String {
        self.taps.iter().map(|t| t.0.to_string()).collect::<Vec<_>>().join(", ")
    }

    /// What there is to know, as (label, value) lines for people.
    pub fn describe(&self) -> Vec<(&'static str, String)> {
        let borrowed = |own: bool| if own { "its own" } else { "the target's" };
        let mut lines = vec![
            ("method", format!("DFlash, blocks of {}: {} drafts a round", self.block_size, self.n_drafts())),
            ("taps", format!("outputs of target layers {}", self.taps_in_words())),
            ("mask token", self.mask_token.to_string()),
            ("layers", self.layers_in_words()),
            ("hidden size", format!("{}, feed-forward {}", self.hidden, self.ffn)),
            ("attention", {
                let biases = if self.has_bias { ", with biases" } else { "" };
                format!(
                    "{} heads of {} on {} key/value heads{biases}",
                    self.heads, self.head_dim, self.kv_heads
                )
            }),
            ("rope", self.rope_in_words()),
            ("context", self.context.to_string()),
            ("embedding, head", format!("{}, {}", borrowed(self.has_embedding), borrowed(self.has_head))),
        ];
        lines.extend(self.vocab.map(|v| ("vocabulary", v.to_string())));
        lines.extend(self.n_target_layers.map(|n| ("made for", format!("a target of {n} layers"))));
        lines
    }

    /// Runs of like layers: `5 sliding of 4096 (causal), 1 full`.
    fn layers_in_words(&self) -> String {
        let runs = self.layers.chunk_by(|a, b| a == b).map(|run| {
            let kind = match run[0].window {
                Some(w) => format!("sliding of {w}"),
                None => "full".into(),
            };
            format!("{} {kind}{}", run.len(), if run[0].causal { " (causal)" } else { "" })
        });
        runs.collect::<Vec<_>>().join(", ")
    }

    fn rope_in_words(&self) -> String {
        let scaling = match &self.rope_scaling {
            RopeScaling::None => String::new(),
            RopeScaling::Linear { factor } => format!(", linear by {factor}"),
            RopeScaling::Llama3 { factor, original, .. } => format!(", llama3 by {factor} from {original}"),
            RopeScaling::Yarn { factor, original, .. } => format!(", YaRN by {factor} from {original}"),
            RopeScaling::Divisors(_) => ", frequencies divided by `rope_freqs.weight`".into(),
        };
        format!(
            "theta {} over {} of {} dimensions{scaling}",
            self.rope_theta, self.rotary_dims, self.head_dim
        )
    }
}

fn require_dflash(checkpoint: &Checkpoint) -> Result<()> {
    let what = match checkpoint.kind()? {
        Kind::Draft(what) if what == "DFlash" => return Ok(()),
        Kind::Draft(what) => format!("a draft of another method, {}", shown(&what)),
        Kind::Target(arch) => format!("a target ({})", arch.name()),
        Kind::Unknown(what) => format!("something unknown ({})", shown(&what)),
    };
    Err(ModelError::NotADraft { file: checkpoint.name().into(), what })
}

/// Sizes past u32 are nonsense that `check` then names.
pub(super) fn size(value: u64) -> usize {
    value.min(u64::from(u32::MAX)) as usize
}

/// Layer ids as a file lists them, each `shift` above the layer whose output it means.
pub(super) fn taps(file: &str, key: &str, ids: &[u64], shift: u64) -> Result<Vec<TapAfter>> {
    let tap = |id: &u64| {
        let layer = id.checked_sub(shift).and_then(|l| u16::try_from(l).ok());
        layer.map(TapAfter).ok_or_else(|| {
            let problem = if *id < shift {
                "the embedding's output cannot be tapped; ids here count layers whose input is read, from 1"
            } else {
                "no model has so many layers"
            };
            ModelError::setting(file, key, id, problem)
        })
    };
    if ids.len() > MAX_LAYERS {
        let value = format!("{} entries", ids.len());
        return Err(ModelError::setting(file, key, value, format!("at most {MAX_LAYERS} are read")));
    }
    ids.iter().map(tap).collect()
}

/// One layer by the rule that holds where no key says it: windowed layers are causal inside the block, full ones see
/// all of it (as drafts are trained; llama.cpp alone runs windowed layers both ways and loses acceptance).
pub(super) fn layer(window: Option<u32>, causal: Option<bool>) -> DraftLayer {
    DraftLayer { window, causal: causal.unwrap_or(window.is_some()) }
}
