//! What a checkpoint declares about itself, the same whether a GGUF or a Hugging Face folder said it.

use overdraft_plan::{
    AttentionState, KvType, LayerState, RecurrentState, Retention, RopeStyle, RouteRule, StateSpec,
};

use crate::arch::Arch;
use crate::error::{ModelError, Result};
use crate::rope::RopeScaling;

/// What mixes positions in a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MixerKind {
    Attention { window: Option<u32> },
    Recurrent,
}

/// Heads of the Gated DeltaNet layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GdnDims {
    pub key_heads: usize,
    pub value_heads: usize,
    pub head_dim: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub struct MoeDims {
    pub experts: usize,
    pub used: usize,
    pub width: usize,
    /// Width of the expert every row visits; 0 where there is none.
    pub shared_width: usize,
    pub rule: RouteRule,
    /// Layers with a dense feed-forward instead.
    pub dense_layers: Vec<usize>,
}

#[derive(Clone, Debug)]
pub struct Hyper {
    /// For messages.
    pub file: String,
    pub arch: Arch,
    pub hidden: usize,
    pub vocab: usize,
    /// Positions the model was trained for.
    pub context: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Width of dense feed-forward layers; 0 where there are none.
    pub ffn: usize,
    pub eps: f32,
    pub attention_scale: f32,
    pub rope_theta: f64,
    pub rotary_dims: usize,
    pub rope_style: RopeStyle,
    pub rope_scaling: RopeScaling,
    pub layers: Vec<MixerKind>,
    pub gdn: Option<GdnDims>,
    pub moe: Option<MoeDims>,
    /// gpt-oss: where its activation is clamped.
    pub glu_limit: f32,
}

/// As llama.cpp's ceilings; real models have a fraction of either.
const MAX_LAYERS: usize = 512;
const MAX_EXPERTS: usize = 1024;
/// Far above any model, low enough that no product of two sizes overflows.
const MAX_SIZE: usize = 1 << 24;

impl Hyper {
    /// Refuses what no model can mean, so that everything after this can trust the numbers.
    pub(crate) fn check(&self) -> Result<()> {
        let sizes = [
            ("hidden size", self.hidden),
            ("vocabulary", self.vocab),
            ("context length", self.context),
            ("attention heads", self.heads),
            ("key/value heads", self.kv_heads),
            ("head size", self.head_dim),
        ];
        let fail = |key: &str, value: String, problem: String| {
            Err(ModelError::Setting { file: self.file.clone(), key: key.into(), value, problem })
        };
        for (key, value) in sizes {
            if value == 0 || value > MAX_SIZE {
                return fail(key, value.to_string(), format!("must be between 1 and {MAX_SIZE}"));
            }
        }
        if self.layers.is_empty() || self.layers.len() > MAX_LAYERS {
            return fail(
                "layers",
                self.layers.len().to_string(),
                format!("must be between 1 and {MAX_LAYERS}"),
            );
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            let problem = format!("is not a multiple of the {} key/value heads", self.kv_heads);
            return fail("attention heads", self.heads.to_string(), problem);
        }
        if self.head_dim > 1024 {
            return fail("head size", self.head_dim.to_string(), "must be at most 1024".into());
        }
        if !self.rotary_dims.is_multiple_of(2) || self.rotary_dims == 0 || self.rotary_dims > self.head_dim {
            let problem = format!("must be even, at least 2 and at most the head size {}", self.head_dim);
            return fail("rotary dimensions", self.rotary_dims.to_string(), problem);
        }
        let positive = [
            ("norm epsilon", self.eps as f64),
            ("rope theta", self.rope_theta),
            ("swiglu limit", self.glu_limit as f64),
        ];
        for (key, value) in positive {
            if !(value.is_finite() && value > 0.0) {
                return fail(key, value.to_string(), "must be a positive number".into());
            }
        }
        self.check_gdn()?;
        self.check_moe()
    }

    fn check_gdn(&self) -> Result<()> {
        let recurrent = self.layers.contains(&MixerKind::Recurrent);
        let Some(g) = &self.gdn else {
            return if recurrent {
                Err(ModelError::setting(&self.file, "recurrent heads", "none", "needed by recurrent layers"))
            } else {
                Ok(())
            };
        };
        let bad = [g.key_heads, g.value_heads, g.head_dim].iter().any(|n| *n == 0 || *n > 65536);
        if bad || !g.value_heads.is_multiple_of(g.key_heads) || g.head_dim > 1024 {
            let value = format!("{} key, {} value, of {}", g.key_heads, g.value_heads, g.head_dim);
            let problem = "value heads must be a multiple of key heads, and heads at most 1024 wide";
            return Err(ModelError::setting(&self.file, "recurrent heads", value, problem));
        }
        Ok(())
    }

    fn check_moe(&self) -> Result<()> {
        if let Some(m) = &self.moe {
            let ok = (1..=MAX_EXPERTS).contains(&m.experts)
                && (1..=m.experts).contains(&m.used)
                && (1..=MAX_SIZE).contains(&m.width)
                && m.shared_width <= MAX_SIZE;
            if !ok {
                let value = format!("{} of {}, {} wide", m.used, m.experts, m.width);
                let problem = format!("must be some of at most {MAX_EXPERTS} experts of positive width");
                return Err(ModelError::setting(&self.file, "experts", value, problem));
            }
        }
        if self.needs_dense() && (self.ffn == 0 || self.ffn > MAX_SIZE) {
            return Err(ModelError::setting(&self.file, "feed-forward width", self.ffn, "must be positive"));
        }
        Ok(())
    }

    fn needs_dense(&self) -> bool {
        self.moe.as_ref().is_none_or(|m| !m.dense_layers.is_empty())
    }

    /// Whether layer `i` has experts.
    pub(crate) fn is_moe_layer(&self, i: usize) -> bool {
        self.moe.as_ref().is_some_and(|m| !m.dense_layers.contains(&i))
    }

    /// The state its sequences keep; page counts are the engine's to fill in.
    pub fn state_spec(&self, kv: KvType) -> StateSpec {
        let mut classes: Vec<Retention> = Vec::new();
        let layers = self
            .layers
            .iter()
            .map(|kind| match kind {
                MixerKind::Attention { window } => {
                    let retention = window.map_or(Retention::Full, Retention::Sliding);
                    let class = classes.iter().position(|c| *c == retention).unwrap_or_else(|| {
                        classes.push(retention);
                        classes.len() - 1
                    });
                    LayerState::Attention(AttentionState {
                        kv_heads: self.kv_heads,
                        head_dim: self.head_dim,
                        class,
                    })
                }
                MixerKind::Recurrent => {
                    let g = self.gdn.expect("checked: recurrent layers have heads");
                    LayerState::Recurrent(RecurrentState {
                        key_heads: g.key_heads,
                        value_heads: g.value_heads,
                        key_dim: g.head_dim,
                        value_dim: g.head_dim,
                    })
                }
            })
            .collect();
        let pages = vec![0; classes.len()];
        StateSpec { layers, classes, pages, slots: 0, kv, tap_width: 0 }
    }
}
