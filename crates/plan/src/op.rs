//! The op vocabulary: coarse and of this domain, so that each backend can fuse.
//!
//! Formulas below are per row `r`. No row's result may depend on which rows stand beside it: the order of every
//! sum is fixed by the op's shape and the row's own position. The definitions are `overdraft-cpu`'s `ops`, run by
//! its `Reference` backend; every other backend is tested against them.

use crate::plan::{Act, Choice};
use crate::weights::{MatrixId, VectorId};

/// `rms(x) = x / sqrt(mean(x²) + eps)`, scaled by `weight` (a checkpoint's `1 + w` is added at load).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsNorm {
    pub weight: VectorId,
    pub eps: f32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeStyle {
    /// Rotates channel `i` with `i + dims / 2`.
    Halves,
    /// Rotates channel `2i` with `2i + 1` (GGUF files of the llama family).
    Pairs,
}

/// One output of a linear op: `out = x Wᵀ + bias`.
#[derive(Clone, Debug)]
pub struct LinearOut {
    pub weight: MatrixId,
    pub bias: Option<VectorId>,
    pub out: Act,
}

/// What a feed-forward layer does to its gate `g` and up `u`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Glu {
    /// `silu(g) · u`
    Swish,
    /// `min(g, limit) · σ(alpha · min(g, limit)) · (clamp(u, ±limit) + 1)`
    Clamped { alpha: f32, limit: f32 },
}

#[derive(Clone, Debug)]
pub enum Op {
    /// `out[r] = table[token[r]]`
    Embed {
        table: MatrixId,
        out: Act,
    },
    /// `out[r] = rms(x[r]) · weight`; a `tap` receives `x[r]` unchanged.
    Norm {
        x: Act,
        norm: RmsNorm,
        out: Act,
        tap: Option<Act>,
    },
    /// Copies the rows whose logits were asked for.
    Select {
        x: Act,
        out: Act,
    },
    /// Several outputs of one input.
    Linear {
        x: Act,
        outs: Vec<LinearOut>,
    },
    /// `stream[r] += x[r] Wᵀ + bias`, the addend scaled by `σ(gate[r])` where there is a gate (`[rows, 1]`).
    LinearAdd {
        x: Act,
        weight: MatrixId,
        bias: Option<VectorId>,
        gate: Option<Act>,
        stream: Act,
    },
    /// `out[r] = glu(x Wgᵀ, x Wuᵀ)`
    LinearGlu {
        x: Act,
        gate: MatrixId,
        up: MatrixId,
        glu: Glu,
        out: Act,
    },
    /// `out[r] = [cos φ | sin φ] · magnitude` with `φ_i = pos[r] · inv_freq[i]`, for all layers that share it.
    Angles {
        inv_freq: VectorId,
        magnitude: f32,
        out: Act,
    },
    AttentionPrepare(AttentionPrepare),
    Attention(Attention),
    RecurrentPrepare(RecurrentPrepare),
    Recurrent(Recurrent),
    /// Per value head: `out = rms(x) · weight · silu(gate)`
    GatedNorm {
        x: Act,
        gate: Act,
        norm: RmsNorm,
        head_dim: usize,
        out: Act,
    },
    Route(Route),
    ExpertGlu(ExpertGlu),
    ExpertAdd(ExpertAdd),
    /// `out[r]` = the kept taps at the row's position, all of them side by side.
    LoadTaps {
        out: Act,
    },
    /// `out[r] = [x_0[r] | x_1[r] | ...]`
    Concat {
        xs: Vec<Act>,
        out: Act,
    },
    /// The `k` largest logits of each row as log-probabilities over the whole row, best first, the lower token first
    /// among equals.
    TopTokens {
        logits: Act,
        choice: Choice,
    },
    /// The token that each row's sequence draws ([`crate::Step::draw`]) at the position behind the row, to the bit as
    /// [`crate::draw::Sampler`] does it, and its distance from the best. Drafted ancestors of the row count as answered.
    /// [`NO_TOKEN`] where no logit is finite.
    Sample {
        logits: Act,
        choice: Choice,
    },
}

/// What [`Op::Sample`] chooses where there is nothing to choose; its distance is infinite.
pub const NO_TOKEN: u32 = u32::MAX;

/// Norms each head of q and k, rotates them, and writes k and v to the layer's pages. In place on `q`, which is absent
/// where rows only enter the context (a draft's).
#[derive(Clone, Debug)]
pub struct AttentionPrepare {
    /// `[rows, heads · head_dim]`, or with `gated` `[rows, heads · 2 · head_dim]`: per head its query, then its gate.
    pub q: Option<Act>,
    pub k: Act,
    pub v: Act,
    pub gated: bool,
    pub q_norm: Option<RmsNorm>,
    pub k_norm: Option<RmsNorm>,
    /// Of [`Op::Angles`]; the first `rotary_dims` channels of each head turn, the rest pass.
    pub angles: Act,
    pub rotary_dims: usize,
    pub style: RopeStyle,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Index into the state's layers.
    pub layer: usize,
}

/// `out = softmax(scale · q kᵀ) v` over the row's committed positions and ancestors, in position order, reduced in
/// groups of [`crate::PAGE`] aligned to absolute position. A sink is one more logit per head, with no value.
#[derive(Clone, Debug)]
pub struct Attention {
    pub q: Act,
    pub out: Act,
    /// The output is multiplied by `σ(gate)`, the gate lying in `q` as above.
    pub gated: bool,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub scale: f32,
    /// A key is visible to a row at most `window - 1` positions later.
    pub window: Option<u32>,
    /// A row also sees its sequence's later sure rows of the step: the block of a diffusion draft.
    pub see_ahead: bool,
    pub sinks: Option<VectorId>,
    pub layer: usize,
}

/// Which key head a value head reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyHeadRule {
    /// `h / (value_heads / key_heads)`: Hugging Face's order, and GGUF's for qwen3next.
    Grouped,
    /// `h mod key_heads`: GGUF's order for qwen35.
    Tiled,
}

impl KeyHeadRule {
    pub fn key_head(self, value_head: usize, key_heads: usize, value_heads: usize) -> usize {
        match self {
            KeyHeadRule::Grouped => value_head / (value_heads / key_heads),
            KeyHeadRule::Tiled => value_head % key_heads,
        }
    }
}

/// Depthwise convolution of width 4 along the row's path, SiLU, q and k normalised to length one (q also scaled by
/// `key_dim^-½`), and the gates `g = decay · softplus(a + dt_bias)`, `beta = σ(b)`.
#[derive(Clone, Debug)]
pub struct RecurrentPrepare {
    /// `[rows, conv_width]`: all q, all k, all v, before the convolution.
    pub qkv: Act,
    pub b: Act,
    pub a: Act,
    /// `[conv_width, 4]`, the last tap for the row itself.
    pub conv: VectorId,
    /// `-exp(A_log)` per value head.
    pub decay: VectorId,
    pub dt_bias: VectorId,
    /// Convolved and normalised, as `qkv`.
    pub out: Act,
    /// `[rows, 2 · value_heads]`: all g, all beta.
    pub gates: Act,
    pub layer: usize,
}

/// The gated delta rule from the grid state and window. With `b_i` the sum of g from the grid `G` along the path,
/// per value head:
/// ```text
/// delta_i = beta_i (v_i - e^{b_i} Sᵀ k_i - Σ_{G≤j<i} e^{b_i-b_j} (k_j·k_i) delta_j)
/// o_i     =               e^{b_i} Sᵀ q_i + Σ_{G≤j≤i} e^{b_i-b_j} (k_j·q_i) delta_j
/// S_{G+16} = e^{b_{G+15}} S_G + Σ_{G≤j<G+16} e^{b_{G+15}-b_j} k_j delta_jᵀ
/// ```
/// Sure rows also enter the kept window, and `S` moves to the grid of the last of them.
#[derive(Clone, Debug)]
pub struct Recurrent {
    /// Of [`RecurrentPrepare`], with its input for the pre-convolution rows to keep.
    pub prepared: Act,
    pub preconv: Act,
    pub gates: Act,
    /// `[rows, value_heads · value_dim]`
    pub delta: Act,
    pub out: Act,
    pub rule: KeyHeadRule,
    pub layer: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteRule {
    /// Softmax over all experts, the k best, divided by their sum.
    SoftmaxRenormalised,
    /// Softmax over all experts, the k best, as they are.
    Softmax,
    /// The k best logits, softmax over those (gpt-oss).
    TopThenSoftmax,
}

/// Chooses `k` experts per row, best first, the lower index first among equals.
#[derive(Clone, Debug)]
pub struct Route {
    /// `[rows, n_experts]`
    pub logits: Act,
    pub rule: RouteRule,
    pub n_experts: usize,
    pub choice: Choice,
}

/// `out[r, j] = glu(x Wgᵀ + bg, x Wuᵀ + bu)` by the row's j-th expert. Matrices are stacks of experts.
#[derive(Clone, Debug)]
pub struct ExpertGlu {
    pub x: Act,
    pub choice: Choice,
    pub gate: MatrixId,
    pub up: MatrixId,
    /// First row of an expert's share inside its share of the stack: files that fuse gate and up hold both in one.
    pub up_row: usize,
    /// Rows an expert takes in the gate and up stacks.
    pub stride: usize,
    pub gate_bias: Option<VectorId>,
    pub up_bias: Option<VectorId>,
    pub glu: Glu,
    pub width: usize,
    /// `[rows, k · width]`
    pub out: Act,
}

/// `stream[r] += Σ_j weight_j (h[r, j] Wdᵀ + bd)`, j in the order of the choice.
#[derive(Clone, Debug)]
pub struct ExpertAdd {
    pub h: Act,
    pub choice: Choice,
    pub down: MatrixId,
    pub bias: Option<VectorId>,
    /// `[rows, k · hidden]`: the experts' outputs before they are summed.
    pub parts: Act,
    pub stream: Act,
}
