//! Every element type a tensor can have, with the size of its block.

/// How a tensor's numbers are stored. The quantised types are GGUF's; safetensors uses the plain ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(non_camel_case_types, reason = "the names the files and their users know")]
pub enum DType {
    F32,
    F16,
    BF16,
    F64,
    I8,
    I16,
    I32,
    I64,
    U8,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    IQ4_NL,
    IQ4_XS,
    MXFP4,
}

use DType::*;

/// (type, ggml id, elements per block, bytes per block, name)
#[rustfmt::skip]
const TABLE: [(DType, Option<u32>, usize, usize, &str); 22] = [
    (F32,    Some(0),  1,   4,   "F32"),
    (F16,    Some(1),  1,   2,   "F16"),
    (BF16,   Some(30), 1,   2,   "BF16"),
    (F64,    Some(28), 1,   8,   "F64"),
    (I8,     Some(24), 1,   1,   "I8"),
    (I16,    Some(25), 1,   2,   "I16"),
    (I32,    Some(26), 1,   4,   "I32"),
    (I64,    Some(27), 1,   8,   "I64"),
    (U8,     None,     1,   1,   "U8"),
    (Q4_0,   Some(2),  32,  18,  "Q4_0"),
    (Q4_1,   Some(3),  32,  20,  "Q4_1"),
    (Q5_0,   Some(6),  32,  22,  "Q5_0"),
    (Q5_1,   Some(7),  32,  24,  "Q5_1"),
    (Q8_0,   Some(8),  32,  34,  "Q8_0"),
    (Q2_K,   Some(10), 256, 84,  "Q2_K"),
    (Q3_K,   Some(11), 256, 110, "Q3_K"),
    (Q4_K,   Some(12), 256, 144, "Q4_K"),
    (Q5_K,   Some(13), 256, 176, "Q5_K"),
    (Q6_K,   Some(14), 256, 210, "Q6_K"),
    (IQ4_NL, Some(20), 32,  18,  "IQ4_NL"),
    (IQ4_XS, Some(23), 256, 136, "IQ4_XS"),
    (MXFP4,  Some(39), 32,  17,  "MXFP4"),
];

impl DType {
    fn entry(self) -> &'static (DType, Option<u32>, usize, usize, &'static str) {
        &TABLE[self as usize]
    }

    pub fn all() -> impl Iterator<Item = DType> {
        TABLE.iter().map(|e| e.0)
    }

    /// The type with this id in GGUF files, if we have it.
    pub fn from_ggml(id: u32) -> Option<Self> {
        TABLE.iter().find(|e| e.1 == Some(id)).map(|e| e.0)
    }

    pub fn ggml_id(self) -> Option<u32> {
        self.entry().1
    }

    /// Elements per block.
    pub fn block_len(self) -> usize {
        self.entry().2
    }

    /// Bytes per block.
    pub fn block_bytes(self) -> usize {
        self.entry().3
    }

    pub fn name(self) -> &'static str {
        self.entry().4
    }

    /// F32, F16 or BF16: used with float activations, never rounded to int8.
    pub fn is_float(self) -> bool {
        matches!(self, F32 | F16 | BF16)
    }

    /// Blocks of small integers with scales.
    pub fn is_quantised(self) -> bool {
        self.block_len() > 1
    }

    /// Bytes of a row of `n` elements, or `None` if `n` is not a whole number of blocks or the size overflows.
    pub fn row_bytes(self, n: usize) -> Option<usize> {
        if !n.is_multiple_of(self.block_len()) {
            return None;
        }
        (n / self.block_len()).checked_mul(self.block_bytes())
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_indexed_by_the_enum() {
        for (i, e) in TABLE.iter().enumerate() {
            assert_eq!(e.0 as usize, i, "{}", e.4);
        }
    }
}
