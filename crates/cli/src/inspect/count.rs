//! Parameters and bytes, from what the file says of its tensors.

use overdraft_formats::{DType, StoredType, TensorInfo};
use overdraft_models::Checkpoint;
use serde::Serialize;

use crate::model::tensors;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Parameters {
    pub(crate) total: u64,
    /// Those in experts, of which a token visits only some.
    pub(crate) in_experts: u64,
}

pub(crate) fn count_parameters(checkpoint: &Checkpoint) -> Parameters {
    count(tensors(checkpoint))
}

pub(super) fn count(tensors: &[TensorInfo]) -> Parameters {
    tensors.iter().fold(Parameters::default(), |sum, t| {
        let n = parameters_of(t);
        // `blk.0.ffn_up_exps.weight` in GGUF, `layers.0.mlp.experts.7.up_proj.weight` in Hugging Face files.
        let is_expert = t.name.contains("_exps.") || t.name.contains(".experts.");
        Parameters {
            total: sum.total.saturating_add(n),
            in_experts: sum.in_experts.saturating_add(if is_expert { n } else { 0 }),
        }
    })
}

/// Hugging Face stores MXFP4 as bytes of two numbers, and their scales beside them. Other integers are tables.
fn parameters_of(tensor: &TensorInfo) -> u64 {
    let elements = || tensor.shape.iter().fold(1u64, |n, d| n.saturating_mul(*d as u64));
    match tensor.stored {
        StoredType::Read(DType::U8) if tensor.name.ends_with("_blocks") => elements().saturating_mul(2),
        StoredType::Read(DType::U8 | DType::I8 | DType::I16 | DType::I32 | DType::I64) => 0,
        _ => elements(),
    }
}

/// What is stored in one type.
#[derive(Debug, Serialize)]
pub(super) struct TypeRow {
    #[serde(rename = "type")]
    pub(super) name: String,
    pub(super) tensors: usize,
    pub(super) parameters: u64,
    /// Known sizes only; `bytes_unknown` tensors have none.
    pub(super) bytes: u64,
    pub(super) bytes_unknown: usize,
}

/// By type, the largest first.
pub(super) fn by_type(tensors: &[TensorInfo]) -> Vec<TypeRow> {
    let mut rows: Vec<TypeRow> = Vec::new();
    for tensor in tensors {
        let name = tensor.stored.to_string();
        let at = rows.iter().position(|r| r.name == name).unwrap_or_else(|| {
            rows.push(TypeRow { name, tensors: 0, parameters: 0, bytes: 0, bytes_unknown: 0 });
            rows.len() - 1
        });
        let row = &mut rows[at];
        row.tensors += 1;
        row.parameters = row.parameters.saturating_add(parameters_of(tensor));
        row.bytes = row.bytes.saturating_add(tensor.n_bytes.unwrap_or(0) as u64);
        row.bytes_unknown += usize::from(tensor.n_bytes.is_none());
    }
    rows.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
    rows
}

/// 47.5 M, 27.4 B.
pub(crate) fn short_count(n: u64) -> String {
    let x = n as f64;
    match n {
        0..1_000 => n.to_string(),
        1_000..1_000_000 => format!("{:.1} K", x / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} M", x / 1e6),
        _ => format!("{:.1} B", x / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_read_well() {
        for (n, text) in [(999, "999"), (1500, "1.5 K"), (47_480_000, "47.5 M"), (27_400_000_000, "27.4 B")] {
            assert_eq!(short_count(n), text);
        }
    }
}
