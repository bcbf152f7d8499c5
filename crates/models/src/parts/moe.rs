//! Mixture of experts: router, chosen experts, and the shared expert where there is one.

use overdraft_formats::{Bytes, DType};
use overdraft_plan::{
    Act, Choice, ExpertAdd, ExpertGlu, Glu, LinearOut, MatrixId, Op, Recorder, Route, RouteRule, VectorId,
};

use super::DensePart;
use super::moe_files::{ExpertFiles, expert_files};
use crate::arch::Arch;
use crate::error::Result;
use crate::hyper::{Hyper, MoeDims};
use crate::loader::{Loader, Rows};

#[derive(Debug)]
pub(crate) struct MoePart {
    router: MatrixId,
    router_bias: Option<VectorId>,
    gate: MatrixId,
    up: MatrixId,
    up_row: usize,
    stride: usize,
    gate_bias: Option<VectorId>,
    up_bias: Option<VectorId>,
    down: MatrixId,
    down_bias: Option<VectorId>,
    shared: Option<(MatrixId, DensePart)>,
    glu: Glu,
    rule: RouteRule,
    dims: (usize, usize, usize, usize),
}

/// Buffers that expert layers reuse.
#[derive(Clone, Copy)]
pub(crate) struct MoeActs {
    logits: Act,
    choice: Choice,
    h: Act,
    parts: Act,
    shared: Option<(Act, Act)>,
}

impl MoePart {
    pub(crate) fn load(l: &mut Loader<'_>, h: &Hyper, m: &MoeDims, layer: usize) -> Result<Self> {
        let (router, bias) = router(l, h, m, layer)?;
        let ExpertFiles { gate, up, up_row, stride, gate_bias, up_bias, down, down_bias } =
            expert_files(l, h, m, layer)?;
        let shared = if m.shared_width > 0 {
            let gate = l.need_floats(&format!("blk.{layer}.ffn_gate_inp_shexp.weight"), &[h.hidden])?;
            let gate = l.add(f32_rows("shared expert gate", gate, h.hidden));
            Some((gate, DensePart::load(l, layer, "_shexp", h.hidden, m.shared_width)?))
        } else {
            None
        };
        let glu = match h.arch {
            Arch::GptOss => Glu::Clamped { alpha: 1.702, limit: h.glu_limit },
            _ => Glu::Swish,
        };
        let gate = gate.add(l);
        let mut vector = |v: Option<Vec<f32>>| v.map(|v| l.weights.add_vector(v));
        let (router_bias, gate_bias, up_bias, down_bias) =
            (vector(bias), vector(gate_bias), vector(up_bias), vector(down_bias));
        Ok(Self {
            router: l.add(f32_rows("router", router, h.hidden)),
            router_bias,
            gate,
            // One stack that holds both is one matrix.
            up: up.map_or(gate, |up| up.add(l)),
            up_row,
            stride,
            gate_bias,
            up_bias,
            down: down.add(l),
            down_bias,
            shared,
            glu,
            rule: m.rule,
            dims: (m.experts, m.used, m.width, h.hidden),
        })
    }

    pub(crate) fn acts(&self, r: &mut Recorder, shared_width: usize) -> MoeActs {
        let (experts, used, width, hidden) = self.dims;
        MoeActs {
            logits: r.act(experts),
            choice: r.choice(used),
            h: r.act(used * width),
            parts: r.act(used * hidden),
            shared: self.shared.as_ref().map(|_| (r.act(1), r.act(shared_width))),
        }
    }

    pub(crate) fn record(&self, r: &mut Recorder, x: Act, acts: MoeActs, stream: Act) {
        let (experts, _, width, _) = self.dims;
        let mut outs = vec![LinearOut { weight: self.router, bias: self.router_bias, out: acts.logits }];
        if let (Some((gate, _)), Some((gate_act, _))) = (&self.shared, acts.shared) {
            outs.push(LinearOut { weight: *gate, bias: None, out: gate_act });
        }
        r.push(Op::Linear { x, outs });
        r.push(Op::Route(Route {
            logits: acts.logits,
            rule: self.rule,
            n_experts: experts,
            choice: acts.choice,
        }));
        r.push(Op::ExpertGlu(ExpertGlu {
            x,
            choice: acts.choice,
            gate: self.gate,
            up: self.up,
            up_row: self.up_row,
            stride: self.stride,
            gate_bias: self.gate_bias,
            up_bias: self.up_bias,
            glu: self.glu,
            width,
            out: acts.h,
        }));
        r.push(Op::ExpertAdd(ExpertAdd {
            h: acts.h,
            choice: acts.choice,
            down: self.down,
            bias: self.down_bias,
            parts: acts.parts,
            stream,
        }));
        if let (Some((_, dense)), Some((gate, h))) = (&self.shared, acts.shared) {
            dense.record(r, x, h, Some(gate), stream);
        }
    }
}

/// The router is small and its ties decide: always `f32`, whatever the file has.
pub(crate) fn router(
    l: &Loader<'_>,
    h: &Hyper,
    m: &MoeDims,
    layer: usize,
) -> Result<(Vec<f32>, Option<Vec<f32>>)> {
    let name = format!("blk.{layer}.ffn_gate_inp");
    let shape = [m.experts, h.hidden];
    let bias = l.opt_floats(&format!("{name}.bias"), &[m.experts])?;
    if let Some(w) = l.opt_floats(&format!("{name}.weight"), &shape)? {
        return Ok((w, bias));
    }
    let hf = format!("{}layers.{layer}.mlp.router", l.checkpoint.prefix());
    let get = |suffix: &str, shape: &[usize]| -> Result<Option<Vec<f32>>> {
        let Some(t) = l.checkpoint.tensor_called(&format!("{hf}.{suffix}"))? else { return Ok(None) };
        l.check_shape(&t, shape)?;
        l.floats(&t).map(Some)
    };
    let w = get("weight", &shape)?.ok_or_else(|| l.missing(&format!("{name}.weight")))?;
    Ok((w, get("bias", &[m.experts])?))
}

fn f32_rows(name: &str, values: Vec<f32>, cols: usize) -> Rows {
    let bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    Rows { name: name.into(), dtype: DType::F32, cols, bytes: Bytes::from_vec(bytes) }
}
