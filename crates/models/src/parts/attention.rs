//! Softmax attention: projections, head norms, rotary, pages, output.

use overdraft_plan::{
    Act, Attention, AttentionPrepare, LinearOut, MatrixId, Op, Recorder, RmsNorm, RopeStyle, VectorId,
};

use crate::error::Result;
use crate::hyper::Hyper;
use crate::loader::{Loader, Rows};

/// Rotary settings all attention layers of a model share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rotary {
    pub(crate) inv_freq: VectorId,
    pub(crate) magnitude: f32,
    pub(crate) dims: usize,
    pub(crate) style: RopeStyle,
}

/// A projection and its bias, where the checkpoint has one.
#[derive(Clone, Copy, Debug)]
struct Projection {
    weight: MatrixId,
    bias: Option<VectorId>,
}

impl Projection {
    fn to(self, out: Act) -> LinearOut {
        LinearOut { weight: self.weight, bias: self.bias, out }
    }
}

/// What an attention layer is, whoever it belongs to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttentionShape {
    pub(crate) hidden: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) scale: f32,
    /// Queries come with an output gate.
    pub(crate) gated: bool,
    /// Epsilon of the norms of each head of q and k, where there are any.
    pub(crate) head_norms: Option<f32>,
    /// Hugging Face stores those norms less one.
    pub(crate) norms_less_one: bool,
    pub(crate) window: Option<u32>,
    pub(crate) see_ahead: bool,
    /// Index among the state's layers.
    pub(crate) state_layer: usize,
}

impl AttentionShape {
    pub(crate) fn of_target(h: &Hyper, layer: usize, window: Option<u32>) -> Self {
        Self {
            hidden: h.hidden,
            heads: h.heads,
            kv_heads: h.kv_heads,
            head_dim: h.head_dim,
            scale: h.attention_scale,
            gated: h.arch.is_hybrid(),
            head_norms: h.arch.has_head_norms().then_some(h.eps),
            norms_less_one: h.arch.is_hybrid(),
            window,
            see_ahead: false,
            state_layer: layer,
        }
    }
}

#[derive(Debug)]
pub(crate) struct AttentionPart {
    q: Projection,
    k: Projection,
    v: Projection,
    o: Projection,
    q_norm: Option<RmsNorm>,
    k_norm: Option<RmsNorm>,
    sinks: Option<VectorId>,
    shape: AttentionShape,
}

/// A layer's keys and values.
#[derive(Clone, Copy)]
pub(crate) struct ContextActs {
    k: Act,
    v: Act,
}

/// Buffers that attention layers reuse.
#[derive(Clone, Copy)]
pub(crate) struct AttentionActs {
    q: Act,
    context: ContextActs,
    out: Act,
}

impl AttentionPart {
    /// The attention tensors of block `block` of the checkpoint.
    pub(crate) fn load(l: &mut Loader<'_>, block: usize, shape: AttentionShape) -> Result<Self> {
        let name = |stem: &str| format!("blk.{block}.{stem}");
        let AttentionShape { hidden, heads, kv_heads, head_dim, .. } = shape;
        let (n_q, n_kv) = (heads * head_dim * if shape.gated { 2 } else { 1 }, kv_heads * head_dim);
        let [q, k, v] = qkv(l, block, [n_q, n_kv, n_kv], hidden)?;
        let o = l.rows(&name("attn_output.weight"), hidden, heads * head_dim)?;
        let mut head_norm = |stem: &str| -> Result<Option<RmsNorm>> {
            let Some(eps) = shape.head_norms else { return Ok(None) };
            l.norm(&name(stem), head_dim, eps, shape.norms_less_one).map(Some)
        };
        let (q_norm, k_norm) = (head_norm("attn_q_norm.weight")?, head_norm("attn_k_norm.weight")?);
        let o_bias = l.opt_floats(&name("attn_output.bias"), &[hidden])?;
        let project = |l: &mut Loader<'_>, (rows, bias): (Rows, Option<Vec<f32>>)| Projection {
            weight: l.add(rows),
            bias: bias.map(|b| l.weights.add_vector(b)),
        };
        Ok(Self {
            q: project(l, q),
            k: project(l, k),
            v: project(l, v),
            o: project(l, (o, o_bias)),
            q_norm,
            k_norm,
            sinks: l.opt_vector(&name("attn_sinks.weight"), &[heads])?,
            shape,
        })
    }

    /// How many positions a row sees, itself included.
    pub(crate) fn set_window(&mut self, window: Option<u32>) {
        self.shape.window = window;
    }

    /// Rows that enter the context without attending, a draft's features: their keys and values in all of `layers`, which are of one shape, by
    /// one op. By one for each layer a pass over a few rows was half launches.
    pub(crate) fn record_context<'a>(
        layers: impl Iterator<Item = &'a Self> + Clone,
        r: &mut Recorder,
        x: Act,
        acts: &[ContextActs],
        angles: Act,
        rotary: &Rotary,
    ) {
        let outs =
            layers.clone().zip(acts).flat_map(|(layer, acts)| [layer.k.to(acts.k), layer.v.to(acts.v)]);
        r.push(Op::Linear { x, outs: outs.collect() });
        layers.zip(acts).for_each(|(layer, acts)| r.push(layer.prepare(None, *acts, angles, rotary)));
    }

    /// For rows that do not attend.
    pub(crate) fn context_acts(&self, r: &mut Recorder) -> ContextActs {
        let n_kv = self.shape.kv_heads * self.shape.head_dim;
        ContextActs { k: r.act(n_kv), v: r.act(n_kv) }
    }

    fn prepare(&self, q: Option<Act>, acts: ContextActs, angles: Act, rotary: &Rotary) -> Op {
        Op::AttentionPrepare(AttentionPrepare {
            q,
            k: acts.k,
            v: acts.v,
            gated: self.shape.gated,
            q_norm: self.q_norm,
            k_norm: self.k_norm,
            angles,
            rotary_dims: rotary.dims,
            style: rotary.style,
            heads: self.shape.heads,
            kv_heads: self.shape.kv_heads,
            head_dim: self.shape.head_dim,
            layer: self.shape.state_layer,
        })
    }

    pub(crate) fn acts(&self, r: &mut Recorder) -> AttentionActs {
        let n = self.shape.heads * self.shape.head_dim;
        AttentionActs {
            q: r.act(if self.shape.gated { 2 * n } else { n }),
            context: self.context_acts(r),
            out: r.act(n),
        }
    }

    pub(crate) fn record(
        &self,
        r: &mut Recorder,
        x: Act,
        acts: AttentionActs,
        angles: Act,
        rotary: &Rotary,
        stream: Act,
    ) {
        let ContextActs { k, v } = acts.context;
        r.push(Op::Linear { x, outs: vec![self.q.to(acts.q), self.k.to(k), self.v.to(v)] });
        r.push(self.prepare(Some(acts.q), acts.context, angles, rotary));
        r.push(Op::Attention(Attention {
            q: acts.q,
            out: acts.out,
            gated: self.shape.gated,
            heads: self.shape.heads,
            kv_heads: self.shape.kv_heads,
            head_dim: self.shape.head_dim,
            scale: self.shape.scale,
            window: self.shape.window,
            see_ahead: self.shape.see_ahead,
            sinks: self.sinks,
            layer: self.shape.state_layer,
        }));
        r.push(Op::LinearAdd { x: acts.out, weight: self.o.weight, bias: self.o.bias, gate: None, stream });
    }
}

/// q, k and v with their biases: three tensors, or one with the rows of all three.
fn qkv(
    l: &Loader<'_>,
    layer: usize,
    rows: [usize; 3],
    hidden: usize,
) -> Result<[(Rows, Option<Vec<f32>>); 3]> {
    let total: usize = rows.iter().sum();
    let fused = format!("blk.{layer}.attn_qkv");
    if l.checkpoint.is_gguf()
        && let Some(all) = l.opt_rows(&format!("{fused}.weight"), total, hidden)?
    {
        let bias = l.opt_floats(&format!("{fused}.bias"), &[total])?;
        let mut first = 0;
        return Ok(rows.map(|n| {
            let part = (all.slice(first, n), bias.as_ref().map(|b| b[first..first + n].to_vec()));
            first += n;
            part
        }));
    }
    let load = |stem: &str, n: usize| -> Result<_> {
        let weight = l.rows(&format!("blk.{layer}.{stem}.weight"), n, hidden)?;
        let bias = l.opt_floats(&format!("blk.{layer}.{stem}.bias"), &[n])?;
        Ok((weight, bias))
    };
    Ok([load("attn_q", rows[0])?, load("attn_k", rows[1])?, load("attn_v", rows[2])?])
}
