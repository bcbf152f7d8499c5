//! Tensors in GGUF order and names.

use overdraft_formats::gguf::GgufWriter;
use overdraft_formats::{Bytes, DType};

use crate::arch::Arch;
use crate::checkpoint::Checkpoint;
use crate::error::{ModelError, Result};
use crate::hyper::{GdnDims, Hyper, MixerKind, MoeDims};
use crate::loader::{Loader, Rows};
use crate::parts::{expert_files, gdn_inputs, router};
use crate::rope::{RopeScaling, frequencies};

struct Out<'a> {
    l: Loader<'a>,
    h: &'a Hyper,
    quantise: &'a dyn Fn(&str) -> DType,
    w: &'a mut GgufWriter,
}

pub(super) fn write(
    checkpoint: &Checkpoint,
    h: &Hyper,
    quantise: &dyn Fn(&str) -> DType,
    w: &mut GgufWriter,
) -> Result<()> {
    let mut out = Out { l: Loader::new(checkpoint), h, quantise, w };
    out.plain("token_embd.weight", h.vocab, h.hidden)?;
    out.norm("output_norm.weight", h.hidden)?;
    if let Some(rows) = out.l.opt_rows("output.weight", h.vocab, h.hidden)? {
        out.matrix("output.weight", &rows)?;
    }
    if matches!(h.rope_scaling, RopeScaling::Llama3 { .. }) {
        let plain = frequencies(h.rope_theta, h.rotary_dims, &RopeScaling::None).0;
        let scaled = frequencies(h.rope_theta, h.rotary_dims, &h.rope_scaling).0;
        let divisors: Vec<f32> = plain.iter().zip(&scaled).map(|(p, s)| p / s).collect();
        out.vector("rope_freqs.weight", &[divisors.len()], &divisors);
    }
    for (i, kind) in h.layers.iter().enumerate() {
        out.norm(&format!("blk.{i}.attn_norm.weight"), h.hidden)?;
        let post =
            if h.arch.is_hybrid() || h.arch == Arch::GptOss { "post_attention_norm" } else { "ffn_norm" };
        out.norm(&format!("blk.{i}.{post}.weight"), h.hidden)?;
        match (kind, &h.gdn) {
            (MixerKind::Recurrent, Some(g)) => out.gdn(i, g)?,
            _ => out.attention(i)?,
        }
        match &h.moe {
            Some(m) if h.is_moe_layer(i) => out.experts(i, m)?,
            _ => out.dense(i, "", h.ffn)?,
        }
    }
    Ok(())
}

impl Out<'_> {
    fn vector(&mut self, name: &str, shape: &[usize], values: &[f32]) {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.w.tensor(name, DType::F32, shape, Bytes::from_vec(bytes));
    }

    fn floats(&mut self, name: &str, shape: &[usize]) -> Result<()> {
        let values = self.l.need_floats(name, shape)?;
        self.vector(name, shape, &values);
        Ok(())
    }

    fn opt_floats(&mut self, name: &str, shape: &[usize]) -> Result<()> {
        if let Some(values) = self.l.opt_floats(name, shape)? {
            self.vector(name, shape, &values);
        }
        Ok(())
    }

    fn norm(&mut self, name: &str, n: usize) -> Result<()> {
        let mut values = self.l.need_floats(name, &[n])?;
        if self.h.arch.is_hybrid() {
            values.iter_mut().for_each(|v| *v += 1.0);
        }
        self.vector(name, &[n], &values);
        Ok(())
    }

    fn plain(&mut self, name: &str, rows: usize, cols: usize) -> Result<()> {
        let rows = self.l.rows(name, rows, cols)?;
        self.matrix(name, &rows)
    }

    fn matrix(&mut self, name: &str, rows: &Rows) -> Result<()> {
        let shape = [rows.n_rows(), rows.cols];
        self.stacked(name, rows, &shape)
    }

    /// A matrix under its name, in the type asked for or the float type that holds it.
    fn stacked(&mut self, name: &str, rows: &Rows, shape: &[usize]) -> Result<()> {
        let asked = (self.quantise)(name);
        let dtype = if asked.row_bytes(rows.cols).is_some() { asked } else { DType::F16 };
        if dtype == rows.dtype || rows.dtype.is_quantised() {
            self.w.tensor(name, rows.dtype, shape, rows.bytes.clone());
            return Ok(());
        }
        let fail = |e: overdraft_formats::quant::CodecError| {
            ModelError::setting(self.h.file.as_str(), name, dtype, e.to_string())
        };
        let (mut values, mut bytes) = (vec![0.0f32; rows.cols], Vec::new());
        for r in 0..rows.n_rows() {
            rows.dtype.decode_row(rows.row(r), &mut values).map_err(fail)?;
            dtype.encode_row(&values, &mut bytes).map_err(fail)?;
        }
        self.w.tensor(name, dtype, shape, Bytes::from_vec(bytes));
        Ok(())
    }

    fn dense(&mut self, layer: usize, suffix: &str, width: usize) -> Result<()> {
        let hidden = self.h.hidden;
        for (stem, rows, cols) in
            [("ffn_gate", width, hidden), ("ffn_up", width, hidden), ("ffn_down", hidden, width)]
        {
            self.plain(&format!("blk.{layer}.{stem}{suffix}.weight"), rows, cols)?;
        }
        Ok(())
    }

    fn attention(&mut self, layer: usize) -> Result<()> {
        let h = self.h;
        let gated = if h.arch.is_hybrid() { 2 } else { 1 };
        let (n_q, n_kv) = (h.heads * h.head_dim, h.kv_heads * h.head_dim);
        for (stem, n, heads) in
            [("attn_q", gated * n_q, h.heads), ("attn_k", n_kv, h.kv_heads), ("attn_v", n_kv, 0)]
        {
            let name = format!("blk.{layer}.{stem}.weight");
            let bias = format!("blk.{layer}.{stem}.bias");
            let rows = self.l.rows(&name, n, h.hidden)?;
            if h.arch == Arch::Llama && heads > 0 {
                let order: Vec<usize> = (0..n).map(|row| interleaved(row, h.head_dim)).collect();
                self.matrix(&name, &rows.pick(order.iter().copied()))?;
                if let Some(b) = self.l.opt_floats(&bias, &[n])? {
                    let b: Vec<f32> = order.iter().map(|row| b[*row]).collect();
                    self.vector(&bias, &[n], &b);
                }
            } else {
                self.matrix(&name, &rows)?;
                self.opt_floats(&bias, &[n])?;
            }
        }
        self.plain(&format!("blk.{layer}.attn_output.weight"), h.hidden, n_q)?;
        self.opt_floats(&format!("blk.{layer}.attn_output.bias"), &[h.hidden])?;
        self.opt_floats(&format!("blk.{layer}.attn_sinks.weight"), &[h.heads])?;
        if h.arch.has_head_norms() {
            self.norm(&format!("blk.{layer}.attn_q_norm.weight"), h.head_dim)?;
            self.norm(&format!("blk.{layer}.attn_k_norm.weight"), h.head_dim)?;
        }
        Ok(())
    }

    fn gdn(&mut self, layer: usize, g: &GdnDims) -> Result<()> {
        let h = self.h;
        let name = |stem: &str| format!("blk.{layer}.{stem}");
        let inputs = gdn_inputs(&self.l, h, g, layer)?;
        let tiled = h.arch != Arch::Qwen3Next;
        // Value heads in the order of the file: as they are, or tiled over the key heads.
        let head = |new: usize| {
            if tiled { new % g.key_heads * (g.value_heads / g.key_heads) + new / g.key_heads } else { new }
        };
        let element = |i: usize| head(i / g.head_dim) * g.head_dim + i % g.head_dim;
        let (keys, values) = (2 * g.key_heads * g.head_dim, g.value_heads * g.head_dim);
        let with_keys = |i: usize| if i < keys { i } else { keys + element(i - keys) };
        self.matrix(&name("attn_qkv.weight"), &inputs.qkv.pick((0..keys + values).map(with_keys)))?;
        self.matrix(&name("attn_gate.weight"), &inputs.z.pick((0..values).map(element)))?;
        if tiled {
            self.matrix(&name("ssm_beta.weight"), &inputs.b.pick((0..g.value_heads).map(head)))?;
            self.matrix(&name("ssm_alpha.weight"), &inputs.a.pick((0..g.value_heads).map(head)))?;
        } else {
            self.plain(&name("ssm_ba.weight"), 2 * g.value_heads, h.hidden)?;
        }
        let conv = self.l.need_floats(&name("ssm_conv1d.weight"), &[keys + values, 4])?;
        let conv: Vec<f32> =
            (0..keys + values).flat_map(|i| conv[with_keys(i) * 4..][..4].to_vec()).collect();
        self.vector(&name("ssm_conv1d.weight"), &[keys + values, 4], &conv);
        let a_log = self.l.need_floats(&name("ssm_a"), &[g.value_heads])?;
        let a: Vec<f32> = (0..g.value_heads).map(|i| -a_log[head(i)].exp()).collect();
        self.vector(&name("ssm_a"), &[g.value_heads], &a);
        let dt = self.l.need_floats(&name("ssm_dt.bias"), &[g.value_heads])?;
        let dt: Vec<f32> = (0..g.value_heads).map(|i| dt[head(i)]).collect();
        self.vector(&name("ssm_dt.bias"), &[g.value_heads], &dt);
        self.floats(&name("ssm_norm.weight"), &[g.head_dim])?;
        let out = self.l.rows(&name("ssm_out.weight"), h.hidden, values)?;
        let out = out.pick_columns(element).ok_or_else(|| {
            ModelError::setting(
                &h.file,
                "ssm_out",
                out.dtype,
                "columns of quantised tensors cannot be reordered",
            )
        })?;
        self.matrix(&name("ssm_out.weight"), &out)
    }

    fn experts(&mut self, layer: usize, m: &MoeDims) -> Result<()> {
        let h = self.h;
        let name = |stem: &str| format!("blk.{layer}.{stem}");
        let (weights, bias) = router(&self.l, h, m, layer)?;
        self.vector(&name("ffn_gate_inp.weight"), &[m.experts, h.hidden], &weights);
        if let Some(b) = bias {
            self.vector(&name("ffn_gate_inp.bias"), &[m.experts], &b);
        }
        let files = expert_files(&self.l, h, m, layer)?;
        let share = |e: usize, first: usize| (0..m.width).map(move |r| e * files.stride + first + r);
        let gate = files.gate.rows();
        let up = files.up.as_ref().map_or_else(|| files.gate.rows(), |s| s.rows());
        let shape = [m.experts, m.width, h.hidden];
        let (gate, up) = (
            gate.pick((0..m.experts).flat_map(|e| share(e, 0))),
            up.pick((0..m.experts).flat_map(|e| share(e, files.up_row))),
        );
        self.stacked(&name("ffn_gate_exps.weight"), &gate, &shape)?;
        self.stacked(&name("ffn_up_exps.weight"), &up, &shape)?;
        self.stacked(&name("ffn_down_exps.weight"), &files.down.rows(), &[m.experts, h.hidden, m.width])?;
        let biases = [
            ("ffn_gate_exps.bias", m.width, &files.gate_bias),
            ("ffn_up_exps.bias", m.width, &files.up_bias),
            ("ffn_down_exps.bias", h.hidden, &files.down_bias),
        ];
        for (stem, n, bias) in biases {
            if let Some(b) = bias {
                self.vector(&name(stem), &[m.experts, n], b);
            }
        }
        if m.shared_width > 0 {
            self.floats(&name("ffn_gate_inp_shexp.weight"), &[h.hidden])?;
            self.dense(layer, "_shexp", m.shared_width)?;
        }
        Ok(())
    }
}

/// Which half-split row comes to `row` when a head's pairs lie side by side.
fn interleaved(row: usize, head_dim: usize) -> usize {
    let (head, i) = (row / head_dim, row % head_dim);
    head * head_dim + i % 2 * (head_dim / 2) + i / 2
}
