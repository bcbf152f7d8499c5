//! The ways checkpoints store experts, brought to stacks of `[experts · rows, cols]`.

use overdraft_formats::Tensor;
use overdraft_formats::{Bytes, DType};
use overdraft_plan::MatrixId;

use crate::arch::Arch;
use crate::error::{ModelError, Result};
use crate::hyper::{Hyper, MoeDims};
use crate::loader::{Loader, Rows};

/// Every expert's rows of one projection.
pub(crate) struct Stack {
    name: String,
    dtype: DType,
    rows: usize,
    cols: usize,
    parts: Vec<Bytes>,
}

impl Stack {
    /// All experts' rows together, copied only where they lie in several parts.
    pub(crate) fn rows(&self) -> Rows {
        let bytes = match self.parts.as_slice() {
            [one] => one.clone(),
            many => Bytes::from_vec(many.iter().flat_map(|p| p.iter().copied()).collect()),
        };
        Rows { name: self.name.clone(), dtype: self.dtype, cols: self.cols, bytes }
    }

    pub(crate) fn add(self, l: &mut Loader<'_>) -> MatrixId {
        l.add_stack(self.name, self.dtype, self.rows, self.cols, self.parts)
    }
}

pub(crate) struct ExpertFiles {
    pub(crate) gate: Stack,
    /// `None`: in the gate's stack, from row `up_row` of each expert's share.
    pub(crate) up: Option<Stack>,
    pub(crate) up_row: usize,
    /// Rows of an expert's share of the gate stack (and of the up stack).
    pub(crate) stride: usize,
    pub(crate) gate_bias: Option<Vec<f32>>,
    pub(crate) up_bias: Option<Vec<f32>>,
    pub(crate) down: Stack,
    pub(crate) down_bias: Option<Vec<f32>>,
}

pub(crate) fn expert_files(l: &Loader<'_>, h: &Hyper, m: &MoeDims, layer: usize) -> Result<ExpertFiles> {
    if l.checkpoint.is_gguf() {
        return gguf(l, h, m, layer);
    }
    let prefix = format!("{}layers.{layer}.mlp.experts", l.checkpoint.prefix());
    match h.arch {
        Arch::GptOss => gpt_oss(l, h, m, &prefix),
        _ if l.checkpoint.tensor_called(&format!("{prefix}.gate_up_proj"))?.is_some() => {
            packed(l, h, m, &prefix)
        }
        _ => one_by_one(l, h, m, &prefix),
    }
}

fn stack(l: &Loader<'_>, t: Tensor, experts: usize, rows: usize, cols: usize) -> Result<Stack> {
    l.check_shape(&t, &[experts, rows, cols])?;
    let r = l.as_rows(t, cols)?;
    Ok(Stack { name: r.name, dtype: r.dtype, rows: experts * rows, cols, parts: vec![r.bytes] })
}

fn gguf(l: &Loader<'_>, h: &Hyper, m: &MoeDims, layer: usize) -> Result<ExpertFiles> {
    let name = |stem: &str| format!("blk.{layer}.{stem}");
    let get = |stem: &str, rows: usize, cols: usize| -> Result<Option<Stack>> {
        let full = name(&format!("{stem}.weight"));
        if l.opt_floats(&name(&format!("{stem}.scale")), &[m.experts])?.is_some() {
            let problem = "per-expert scales are not supported";
            return Err(ModelError::setting(&l.file(), &name(&format!("{stem}.scale")), "present", problem));
        }
        l.checkpoint.tensor(&full)?.map(|t| stack(l, t, m.experts, rows, cols)).transpose()
    };
    let need = |stem: &str, rows: usize, cols: usize| {
        get(stem, rows, cols)?.ok_or_else(|| l.missing(&name(&format!("{stem}.weight"))))
    };
    let bias = |stem: &str, n: usize| l.opt_floats(&name(&format!("{stem}.bias")), &[m.experts, n]);
    let down = need("ffn_down_exps", h.hidden, m.width)?;
    let down_bias = bias("ffn_down_exps", h.hidden)?;
    if let Some(both) = get("ffn_gate_up_exps", 2 * m.width, h.hidden)? {
        let both_bias = bias("ffn_gate_up_exps", 2 * m.width)?;
        let half = |second: usize| {
            both_bias.as_ref().map(|b| {
                b.chunks_exact(2 * m.width).flat_map(|e| &e[second * m.width..][..m.width]).copied().collect()
            })
        };
        let (gate_bias, up_bias) = (half(0), half(1));
        let (up_row, stride) = (m.width, 2 * m.width);
        return Ok(ExpertFiles { gate: both, up: None, up_row, stride, gate_bias, up_bias, down, down_bias });
    }
    Ok(ExpertFiles {
        gate: need("ffn_gate_exps", m.width, h.hidden)?,
        up: Some(need("ffn_up_exps", m.width, h.hidden)?),
        up_row: 0,
        stride: m.width,
        gate_bias: bias("ffn_gate_exps", m.width)?,
        up_bias: bias("ffn_up_exps", m.width)?,
        down,
        down_bias,
    })
}

/// `gate_up_proj [E, 2I, H]` (gate rows, then up rows) and `down_proj [E, H, I]`.
fn packed(l: &Loader<'_>, h: &Hyper, m: &MoeDims, prefix: &str) -> Result<ExpertFiles> {
    let get = |name: &str, rows: usize, cols: usize| {
        let name = format!("{prefix}.{name}");
        let t = l.checkpoint.tensor_called(&name)?.ok_or_else(|| l.missing(&name))?;
        stack(l, t, m.experts, rows, cols)
    };
    Ok(ExpertFiles {
        gate: get("gate_up_proj", 2 * m.width, h.hidden)?,
        up: None,
        up_row: m.width,
        stride: 2 * m.width,
        gate_bias: None,
        up_bias: None,
        down: get("down_proj", h.hidden, m.width)?,
        down_bias: None,
    })
}

/// A tensor per expert and projection.
fn one_by_one(l: &Loader<'_>, h: &Hyper, m: &MoeDims, prefix: &str) -> Result<ExpertFiles> {
    let get = |projection: &str, rows: usize, cols: usize| -> Result<Stack> {
        let mut parts = Vec::with_capacity(m.experts);
        let mut dtype = None;
        for e in 0..m.experts {
            let name = format!("{prefix}.{e}.{projection}.weight");
            let t = l.checkpoint.tensor_called(&name)?.ok_or_else(|| l.missing(&name))?;
            l.check_shape(&t, &[rows, cols])?;
            let r = l.as_rows(t, cols)?;
            if *dtype.get_or_insert(r.dtype) != r.dtype {
                let problem = "experts of one layer have unlike types";
                return Err(ModelError::setting(&l.file(), &name, r.dtype, problem));
            }
            parts.push(r.bytes);
        }
        let dtype = dtype.expect("at least one expert is checked with the settings");
        Ok(Stack { name: format!("{prefix}.{projection}"), dtype, rows: m.experts * rows, cols, parts })
    };
    Ok(ExpertFiles {
        gate: get("gate_proj", m.width, h.hidden)?,
        up: Some(get("up_proj", m.width, h.hidden)?),
        up_row: 0,
        stride: m.width,
        gate_bias: None,
        up_bias: None,
        down: get("down_proj", h.hidden, m.width)?,
        down_bias: None,
    })
}

/// gpt-oss interleaves gate and up, and stores float experts `[E, in, out]`; both are undone here.
fn gpt_oss(l: &Loader<'_>, h: &Hyper, m: &MoeDims, prefix: &str) -> Result<ExpertFiles> {
    let bias = |name: &str, n: usize| -> Result<Vec<f32>> {
        let name = format!("{prefix}.{name}_bias");
        let t = l.checkpoint.tensor_called(&name)?.ok_or_else(|| l.missing(&name))?;
        l.check_shape(&t, &[m.experts, n])?;
        l.floats(&t)
    };
    let both = bias("gate_up_proj", 2 * m.width)?;
    let every_other = |odd: usize| both.iter().skip(odd).step_by(2).copied().collect::<Vec<f32>>();
    let (gate, up) = (
        gpt_oss_stack(l, m.experts, prefix, "gate_up_proj", (m.width, 2, 0), h.hidden)?,
        gpt_oss_stack(l, m.experts, prefix, "gate_up_proj", (m.width, 2, 1), h.hidden)?,
    );
    Ok(ExpertFiles {
        gate,
        up: Some(up),
        up_row: 0,
        stride: m.width,
        gate_bias: Some(every_other(0)),
        up_bias: Some(every_other(1)),
        down: gpt_oss_stack(l, m.experts, prefix, "down_proj", (h.hidden, 1, 0), m.width)?,
        down_bias: Some(bias("down_proj", h.hidden)?),
    })
}

/// Rows `first, first + step, ...` of each expert's `step · rows`.
fn gpt_oss_stack(
    l: &Loader<'_>,
    experts: usize,
    prefix: &str,
    name: &str,
    (rows, step, first): (usize, usize, usize),
    cols: usize,
) -> Result<Stack> {
    let name = format!("{prefix}.{name}");
    let picked = (0..experts).flat_map(|e| (0..rows).map(move |r| (e, r * step + first)));
    let (dtype, bytes) = if let Some(t) = l.checkpoint.tensor_called(&name)? {
        l.check_shape(&t, &[experts, cols, rows * step])?;
        let all = l.floats(&t)?;
        let mut bytes = Vec::with_capacity(experts * rows * cols * 2);
        for (e, out) in picked {
            for i in 0..cols {
                let x = all[(e * cols + i) * rows * step + out];
                bytes.extend_from_slice(&half::bf16::from_f32(x).to_le_bytes());
            }
        }
        (DType::BF16, bytes)
    } else {
        let get = |suffix: &str, shape: &[usize]| -> Result<Tensor> {
            let name = format!("{name}_{suffix}");
            let t = l.checkpoint.tensor_called(&name)?.ok_or_else(|| l.missing(&name))?;
            if t.dtype != DType::U8 {
                let (file, dtype) = (l.file(), t.dtype.to_string());
                return Err(ModelError::WeightType { file, tensor: t.name, dtype });
            }
            l.check_shape(&t, shape)?;
            Ok(t)
        };
        let blocks_per_row = cols / 32;
        if blocks_per_row * 32 != cols {
            return Err(ModelError::setting(
                &l.file(),
                &name,
                cols,
                "MXFP4 rows must be a multiple of 32 long",
            ));
        }
        let blocks = get("blocks", &[experts, rows * step, blocks_per_row, 16])?;
        let scales = get("scales", &[experts, rows * step, blocks_per_row])?;
        let mut bytes = Vec::with_capacity(experts * rows * blocks_per_row * 17);
        for (e, out) in picked {
            for b in 0..blocks_per_row {
                let at = (e * rows * step + out) * blocks_per_row + b;
                bytes.push(scales.bytes[at]);
                bytes.extend(repack_mxfp4(&blocks.bytes[at * 16..(at + 1) * 16]));
            }
        }
        (DType::MXFP4, bytes)
    };
    Ok(Stack { name, dtype, rows: experts * rows, cols, parts: vec![Bytes::from_vec(bytes)] })
}

/// Nibbles from neighbours in a byte (2k, 2k + 1) to halves of the block (k, k + 16), as GGUF keeps them.
fn repack_mxfp4(block: &[u8]) -> [u8; 16] {
    let element = |e: usize| block[e / 2] >> (4 * (e % 2)) & 15;
    std::array::from_fn(|k| element(k) | element(k + 16) << 4)
}
