//! The Gated DeltaNet mixer.

use overdraft_plan::{
    Act, KeptRows, KeyHeadRule, LinearOut, MatrixId, Op, Recorder, Recurrent, RecurrentPrepare, RmsNorm,
    VectorId,
};

use crate::arch::Arch;
use crate::error::{ModelError, Result};
use crate::hyper::{GdnDims, Hyper};
use crate::loader::{Loader, Rows};

#[derive(Debug)]
pub(crate) struct GdnPart {
    qkv: MatrixId,
    z: MatrixId,
    b: MatrixId,
    a: MatrixId,
    out: MatrixId,
    conv: VectorId,
    decay: VectorId,
    dt_bias: VectorId,
    norm: RmsNorm,
    rule: KeyHeadRule,
    dims: GdnDims,
    layer: usize,
}

/// Buffers that recurrent layers reuse.
#[derive(Clone, Copy)]
pub(crate) struct GdnActs {
    qkv: Act,
    z: Act,
    b: Act,
    a: Act,
    prepared: Act,
    gates: Act,
    delta: Act,
    out: Act,
    gated: Act,
}

impl GdnDims {
    fn keys(&self) -> usize {
        self.key_heads * self.head_dim
    }

    fn values(&self) -> usize {
        self.value_heads * self.head_dim
    }

    fn conv_width(&self) -> usize {
        2 * self.keys() + self.values()
    }
}

/// The projections in our order: q, k, v together; z; b; a.
pub(crate) struct GdnInputs {
    pub(crate) qkv: Rows,
    pub(crate) z: Rows,
    pub(crate) b: Rows,
    pub(crate) a: Rows,
}

impl GdnPart {
    pub(crate) fn load(l: &mut Loader<'_>, h: &Hyper, dims: GdnDims, layer: usize) -> Result<Self> {
        let name = |stem: &str| format!("blk.{layer}.{stem}");
        let GdnInputs { qkv, z, b, a } = gdn_inputs(l, h, &dims, layer)?;
        let conv = l.need_floats(&name("ssm_conv1d.weight"), &[dims.conv_width(), 4])?;
        let mut decay = l.need_floats(&name("ssm_a"), &[dims.value_heads])?;
        if !l.checkpoint.is_gguf() {
            decay.iter_mut().for_each(|x| *x = -x.exp());
        }
        let dt_bias = l.need_floats(&name("ssm_dt.bias"), &[dims.value_heads])?;
        let tiled = l.checkpoint.is_gguf() && matches!(h.arch, Arch::Qwen35 | Arch::Qwen35Moe);
        Ok(Self {
            out: l.matrix(&name("ssm_out.weight"), h.hidden, dims.values())?,
            norm: l.norm(&name("ssm_norm.weight"), dims.head_dim, h.eps, false)?,
            qkv: l.add(qkv),
            z: l.add(z),
            b: l.add(b),
            a: l.add(a),
            conv: l.weights.add_vector(conv),
            decay: l.weights.add_vector(decay),
            dt_bias: l.weights.add_vector(dt_bias),
            rule: if tiled { KeyHeadRule::Tiled } else { KeyHeadRule::Grouped },
            dims,
            layer,
        })
    }

    pub(crate) fn acts(&self, r: &mut Recorder) -> GdnActs {
        let d = &self.dims;
        GdnActs {
            qkv: r.act(d.conv_width()),
            z: r.act(d.values()),
            b: r.act(d.value_heads),
            a: r.act(d.value_heads),
            prepared: r.act(d.conv_width()),
            gates: r.act(2 * d.value_heads),
            delta: r.act(d.values()),
            out: r.act(d.values()),
            gated: r.act(d.values()),
        }
    }

    /// What a commit needs of the rows this layer computed.
    pub(crate) fn kept(&self, acts: &GdnActs) -> KeptRows {
        KeptRows {
            layer: self.layer,
            prepared: acts.prepared,
            preconv: acts.qkv,
            gates: acts.gates,
            delta: acts.delta,
        }
    }

    pub(crate) fn record(&self, r: &mut Recorder, x: Act, acts: GdnActs, stream: Act) {
        let out = |weight: MatrixId, out: Act| LinearOut { weight, bias: None, out };
        let outs =
            vec![out(self.qkv, acts.qkv), out(self.z, acts.z), out(self.b, acts.b), out(self.a, acts.a)];
        r.push(Op::Linear { x, outs });
        r.push(Op::RecurrentPrepare(RecurrentPrepare {
            qkv: acts.qkv,
            b: acts.b,
            a: acts.a,
            conv: self.conv,
            decay: self.decay,
            dt_bias: self.dt_bias,
            out: acts.prepared,
            gates: acts.gates,
            layer: self.layer,
        }));
        r.push(Op::Recurrent(Recurrent {
            prepared: acts.prepared,
            preconv: acts.qkv,
            gates: acts.gates,
            delta: acts.delta,
            out: acts.out,
            rule: self.rule,
            layer: self.layer,
        }));
        r.push(Op::GatedNorm {
            x: acts.out,
            gate: acts.z,
            norm: self.norm,
            head_dim: self.dims.head_dim,
            out: acts.gated,
        });
        r.push(Op::LinearAdd { x: acts.gated, weight: self.out, bias: None, gate: None, stream });
    }
}

pub(crate) fn gdn_inputs(l: &Loader<'_>, h: &Hyper, d: &GdnDims, layer: usize) -> Result<GdnInputs> {
    let name = |stem: &str| format!("blk.{layer}.{stem}.weight");
    if h.arch != Arch::Qwen3Next {
        return Ok(GdnInputs {
            qkv: l.rows(&name("attn_qkv"), d.conv_width(), h.hidden)?,
            z: l.rows(&name("attn_gate"), d.values(), h.hidden)?,
            b: l.rows(&name("ssm_beta"), d.value_heads, h.hidden)?,
            a: l.rows(&name("ssm_alpha"), d.value_heads, h.hidden)?,
        });
    }
    // qwen3next keeps b and a together, per key head: its share of b, then its share of a.
    let ba = l.rows(&name("ssm_ba"), 2 * d.value_heads, h.hidden)?;
    let share = d.value_heads / d.key_heads;
    let half = |second: usize| {
        ba.pick((0..d.value_heads).map(|v| v / share * 2 * share + second * share + v % share))
    };
    let (b, a) = (half(0), half(1));
    if l.checkpoint.is_gguf()
        && let Some(qkv) = l.opt_rows(&name("attn_qkv"), d.conv_width(), h.hidden)?
    {
        return Ok(GdnInputs { qkv, z: l.rows(&name("attn_gate"), d.values(), h.hidden)?, b, a });
    }
    let (qkv, z) = split_qkvz(&fused_qkvz(l, layer, d, h.hidden)?, d);
    Ok(GdnInputs { qkv, z, b, a })
}

/// Hugging Face's fused projection, which early GGUF files kept as `ssm_in`.
fn fused_qkvz(l: &Loader<'_>, layer: usize, d: &GdnDims, hidden: usize) -> Result<Rows> {
    let rows = 2 * d.keys() + 2 * d.values();
    if l.checkpoint.is_gguf() {
        let all = l.opt_rows(&format!("blk.{layer}.ssm_in.weight"), rows, hidden)?;
        return all.ok_or_else(|| ModelError::MissingTensor {
            file: l.file(),
            tensor: format!("blk.{layer}.attn_qkv.weight"),
            hint: ", and so is the `ssm_in` of early files".into(),
        });
    }
    let name = format!("{}layers.{layer}.linear_attn.in_proj_qkvz.weight", l.checkpoint.prefix());
    let t = l.checkpoint.tensor_called(&name)?.ok_or_else(|| l.missing(&name))?;
    l.check_shape(&t, &[rows, hidden])?;
    l.as_rows(t, hidden)
}

/// Per key head: q, k, its value heads, their gates. Into all q, all k, all v; and all z.
fn split_qkvz(all: &Rows, d: &GdnDims) -> (Rows, Rows) {
    let n = d.head_dim;
    let values = d.value_heads / d.key_heads * n;
    let group = 2 * n + 2 * values;
    let part = |offset: usize, len: usize| {
        (0..d.key_heads).flat_map(move |g| (0..len).map(move |i| g * group + offset + i))
    };
    let qkv = all.pick(part(0, n).chain(part(n, n)).chain(part(2 * n, values)));
    (qkv, all.pick(part(2 * n + values, values)))
}
