//! Element and block types of tensors: sizes, names, and the codecs between blocks and `f32`.
//!
//! The decoders are the scalar definitions: every faster kernel is tested against them, so they favour plainness.
//! Products are formed in ggml's order, (block scale · sub-block scale) · code, so decoded weights agree with its
//! reference bit for bit.

mod blocks32;
mod codebook;
mod dtype;
mod encode;
mod encode_k;
mod floats;
mod kquants;
mod unread;

pub use codebook::{IQ4_VALUES, MXFP4_VALUES, mxfp4_scale};
pub use dtype::DType;
pub use kquants::scale_and_min;
pub(crate) use unread::{describe_ggml_type, ggml_type_size};

/// Why a row could not be converted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    #[error("{0} cannot be decoded to f32")]
    NotDecodable(DType),
    #[error("{0} cannot be encoded from f32")]
    NotEncodable(DType),
    #[error("{elements} elements of {dtype} are not whole blocks of {}", dtype.block_len())]
    PartialBlock { dtype: DType, elements: usize },
    #[error("{elements} elements of {dtype} take {expected} bytes, found {found}")]
    Length { dtype: DType, elements: usize, expected: usize, found: usize },
    /// Block types have no code for NaN or infinity, and a scale made from one would spoil its whole block.
    #[error("element {index} is {value}, which {dtype} cannot hold")]
    NotFinite { dtype: DType, index: usize, value: String },
    /// The block's scale, a half float, would overflow.
    #[error("element {index} is {value}, beyond the range of {dtype}")]
    TooLarge { dtype: DType, index: usize, value: String },
}

/// Cuts a row into blocks of `BYTES` bytes and `LEN` values. Lengths were checked by `decode_row`.
fn blocks<'a, const BYTES: usize, const LEN: usize>(
    bytes: &'a [u8],
    out: &'a mut [f32],
) -> impl Iterator<Item = (&'a [u8; BYTES], &'a mut [f32; LEN])> {
    bytes.as_chunks().0.iter().zip(out.as_chunks_mut().0)
}

/// The half float at byte `at` of a block.
fn f16_at(block: &[u8], at: usize) -> f32 {
    half::f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

impl DType {
    /// Decodes whole blocks: `bytes` must be exactly the bytes of `out.len()` elements.
    pub fn decode_row(self, bytes: &[u8], out: &mut [f32]) -> Result<(), CodecError> {
        use DType::*;
        let elements = out.len();
        let expected = self.row_bytes(elements).ok_or(CodecError::PartialBlock { dtype: self, elements })?;
        if bytes.len() != expected {
            return Err(CodecError::Length { dtype: self, elements, expected, found: bytes.len() });
        }
        match self {
            F32 => floats::decode_f32(bytes, out),
            F16 => floats::decode_f16(bytes, out),
            BF16 => floats::decode_bf16(bytes, out),
            F64 => floats::decode_f64(bytes, out),
            Q4_0 => blocks32::decode_q4_0(bytes, out),
            Q4_1 => blocks32::decode_q4_1(bytes, out),
            Q5_0 => blocks32::decode_q5_0(bytes, out),
            Q5_1 => blocks32::decode_q5_1(bytes, out),
            Q8_0 => blocks32::decode_q8_0(bytes, out),
            Q2_K => kquants::decode_q2_k(bytes, out),
            Q3_K => kquants::decode_q3_k(bytes, out),
            Q4_K => kquants::decode_q4_k(bytes, out),
            Q5_K => kquants::decode_q5_k(bytes, out),
            Q6_K => kquants::decode_q6_k(bytes, out),
            IQ4_NL => codebook::decode_iq4_nl(bytes, out),
            IQ4_XS => codebook::decode_iq4_xs(bytes, out),
            MXFP4 => codebook::decode_mxfp4(bytes, out),
            I8 | I16 | I32 | I64 | U8 => return Err(CodecError::NotDecodable(self)),
        }
        Ok(())
    }

    /// Whether `decode_row` knows this type.
    pub fn is_decodable(self) -> bool {
        !matches!(self, DType::I8 | DType::I16 | DType::I32 | DType::I64 | DType::U8)
    }

    /// Appends the encoded blocks of `values` to `out`. On an error `out` is left as it was.
    ///
    /// F16 and BF16 round to nearest even and keep infinities and NaN. Block types refuse values that are not
    /// finite or whose scale would overflow; scales that underflow make a block of zeros.
    pub fn encode_row(self, values: &[f32], out: &mut Vec<u8>) -> Result<(), CodecError> {
        use DType::*;
        let elements = values.len();
        let n_bytes = self.row_bytes(elements).ok_or(CodecError::PartialBlock { dtype: self, elements })?;
        if let Some(largest) = self.largest_encodable() {
            encode::check_range(self, values, largest)?;
        }
        let start = out.len();
        match self {
            F32 => floats::encode_f32(values, out),
            F16 => floats::encode_f16(values, out),
            BF16 => floats::encode_bf16(values, out),
            Q8_0 => encode::encode_q8_0(values, out),
            Q4_0 => encode::encode_q4_0(values, out),
            MXFP4 => encode::encode_mxfp4(values, out),
            Q4_K => encode_k::encode_q4_k(values, out),
            Q6_K => encode_k::encode_q6_k(values, out),
            _ => return Err(CodecError::NotEncodable(self)),
        }
        debug_assert_eq!(out.len() - start, n_bytes);
        Ok(())
    }

    /// Greatest magnitude a block type takes: above it the half-float scale could overflow. None: no limit.
    fn largest_encodable(self) -> Option<f32> {
        const F16_MAX: f32 = 65504.0;
        match self {
            DType::Q8_0 => Some(127.0 * F16_MAX),
            DType::Q4_0 => Some(8.0 * F16_MAX),
            // A sub-block's step is at most 2·|x|/15 and must fit 63 times the half-float scale; its minimum,
            // at most |x|, likewise.
            DType::Q4_K => Some(63.0 * F16_MAX),
            DType::Q6_K => Some(127.0 * 31.0 * F16_MAX),
            DType::MXFP4 => Some(f32::MAX),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Block byte i is 37·i + 11, with the half-float fields set to 1/16 and 1/32.
    fn patterned_block(dtype: DType, d_at: usize, m_at: Option<usize>) -> Vec<u8> {
        let mut block: Vec<u8> = (0..dtype.block_bytes()).map(|i| (37 * i + 11) as u8).collect();
        if dtype == DType::MXFP4 {
            block[0] = 125;
        } else {
            block[d_at..d_at + 2].copy_from_slice(&0x2C00u16.to_le_bytes());
        }
        if let Some(at) = m_at {
            block[at..at + 2].copy_from_slice(&0x2800u16.to_le_bytes());
        }
        block
    }

    #[test]
    #[rustfmt::skip]
    fn decoders_give_the_known_answers_exactly() {
        use DType::*;
        //            d    m         y_0        y_17      y_last    sum        weighted sum
        check(Q4_0,   0,   None,     -0.1875,   -0.0625,  0.0,      -1.3125,   -32.375);
        check(Q4_1,   0,   Some(2),  0.96875,   0.78125,  0.78125,  16.3125,   265.4375);
        check(Q5_0,   0,   None,     0.5625,    0.0,      0.0625,   0.9375,    7.0);
        check(Q5_1,   0,   Some(2),  1.21875,   0.34375,  0.34375,  32.5625,   510.3125);
        check(Q8_0,   0,   None,     5.3125,    -3.375,   -3.0,     -11.0,     -505.0);
        check(IQ4_NL, 0,   None,     -2.1875,   -0.625,   0.0625,   -16.0625,  -432.4375);
        check(MXFP4,  0,   None,     0.0,       0.75,     0.75,     3.125,     79.75);
        check(Q2_K,   80,  Some(82), 2.0625,    -0.09375, 0.28125,  128.6875,  15195.625);
        check(Q3_K,   108, None,     5.0625,    8.0,      2.625,    59.875,    11071.5625);
        check(Q4_K,   0,   Some(2),  19.71875,  -1.59375, 3.03125,  3402.5,    473302.5);
        check(Q5_K,   0,   Some(2),  50.71875,  -1.59375, 6.78125,  7263.5,    1001715.5);
        check(Q6_K,   208, None,     -89.4375,  32.0,     -3.75,    288.25,    49026.25);
        check(IQ4_XS, 0,   None,     4.0625,    2.1875,   -1.0,     -687.8125, -130695.875);
    }

    #[track_caller]
    #[allow(clippy::too_many_arguments, reason = "columns of the table above")]
    fn check(
        d: DType,
        d_at: usize,
        m_at: Option<usize>,
        y0: f32,
        y17: f32,
        last: f32,
        sum: f64,
        weighted: f64,
    ) {
        // Two blocks, so that the step from one to the next is tested as well.
        let block = patterned_block(d, d_at, m_at);
        let mut y = vec![f32::NAN; 2 * d.block_len()];
        d.decode_row(&[block.clone(), block].concat(), &mut y).unwrap();
        let (first, second) = y.split_at(d.block_len());
        assert_eq!(first, second, "{d}");
        assert_eq!((first[0], first[17], *first.last().unwrap()), (y0, y17, last), "{d}");
        assert_eq!(first.iter().map(|&v| v as f64).sum::<f64>(), sum, "{d}");
        let found: f64 = first.iter().enumerate().map(|(e, &v)| (e + 1) as f64 * v as f64).sum();
        assert_eq!(found, weighted, "{d}");
    }

    #[test]
    fn lengths_that_disagree_are_errors_for_every_type() {
        for d in DType::all() {
            let (len, bytes) = (d.block_len(), vec![0u8; 2 * d.block_bytes()]);
            let mut y = vec![0.0; len + 1];
            let short = d.decode_row(&bytes, &mut y[..len]);
            assert!(matches!(short, Err(CodecError::Length { .. })), "{d}: {short:?}");
            if len > 1 {
                assert_eq!(
                    d.decode_row(&bytes, &mut y),
                    Err(CodecError::PartialBlock { dtype: d, elements: len + 1 })
                );
                let mut out = vec![7];
                assert_eq!(
                    d.encode_row(&y, &mut out),
                    Err(CodecError::PartialBlock { dtype: d, elements: len + 1 })
                );
                assert_eq!(out, [7]);
            }
        }
    }

    #[test]
    fn every_type_decodes_or_says_that_it_does_not() {
        for d in DType::all() {
            let mut y = vec![f32::NAN; d.block_len()];
            match d.decode_row(&vec![0; d.block_bytes()], &mut y) {
                Ok(()) => assert!(d.is_decodable() && y.iter().all(|&v| v == 0.0), "{d}: {y:?}"),
                Err(e) => assert_eq!((e, d.is_decodable()), (CodecError::NotDecodable(d), false)),
            }
        }
    }
}
