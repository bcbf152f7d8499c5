//! The definition of the quantised product in plain Rust. Every other path is tested against it, bit for bit.

use super::activations::{BLOCK, PlainRow};
use super::decode::{CHUNK, CodeForm, Decoded, Format, Kind, half, offset_log2};
use super::kernel::Job;

#[derive(Clone, Copy)]
pub(crate) struct Scalar;

impl CodeForm for Scalar {
    const FULL_IS_UNSIGNED: bool = false;
    type B = [u8; 32];

    fn load(self, bytes: &[u8; 32]) -> [u8; 32] {
        *bytes
    }
    fn store(self, v: [u8; 32], codes: &mut [u8; 32]) {
        *codes = v;
    }
    fn split_nibbles(self, bytes: &[u8; 16]) -> [u8; 32] {
        std::array::from_fn(|e| if e < 16 { bytes[e] & 15 } else { bytes[e - 16] >> 4 })
    }
    fn bits(self, v: [u8; 32], shift: u32, mask: u8) -> [u8; 32] {
        v.map(|v| (v >> shift) & mask)
    }
    fn shl(self, v: [u8; 32], shift: u32) -> [u8; 32] {
        v.map(|v| v << shift)
    }
    fn or(self, a: [u8; 32], b: [u8; 32]) -> [u8; 32] {
        std::array::from_fn(|e| a[e] | b[e])
    }
    fn xor(self, a: [u8; 32], b: u8) -> [u8; 32] {
        a.map(|a| a ^ b)
    }
    fn add(self, a: [u8; 32], b: u8) -> [u8; 32] {
        a.map(|a| a + b)
    }
    fn look_up(self, table: &[u8; 16], v: [u8; 32]) -> [u8; 32] {
        v.map(|i| table[usize::from(i & 15)])
    }
    fn spread_bits(self, bits: u32, value: u8) -> [u8; 32] {
        std::array::from_fn(|e| if bits >> e & 1 == 1 { value } else { 0 })
    }
    fn half(self, bits: u16) -> f32 {
        half(bits)
    }
    fn prefetch(self, _: *const u8) {}
    fn scale_eight(self, factor: f32, small: [i8; 8]) -> [f32; 8] {
        small.map(|s| factor * f32::from(s))
    }
}

pub(crate) fn tile<F: Format>(job: Job<'_>) {
    let n_rows = job.rows.len();
    let chunk_bytes = CHUNK / F::LEN * F::BYTES;
    let mut w = Decoded::ZERO;
    for (weights, out) in job.weights.chunks_exact(job.row_bytes).zip(job.tile.chunks_exact_mut(n_rows)) {
        out.fill(0.0);
        for (chunk, bytes) in weights.chunks(chunk_bytes).enumerate() {
            w.decode_row::<F, _>(Scalar, 0, bytes);
            for (row, acc) in job.rows.clone().zip(out.iter_mut()) {
                *acc = dot::<F::Kind>(&w, job.x.plain_row(row), chunk * (CHUNK / BLOCK), *acc);
            }
        }
    }
}

/// Adds the products of one decoded chunk, the first row of `w`, whose first block is `first_block` of the row.
fn dot<K: Kind>(w: &Decoded, x: PlainRow<'_>, first_block: usize, mut acc: f32) -> f32 {
    let len = if K::HALVES { 16 } else { 32 };
    let offset = offset_log2::<K, Scalar>().map_or(0, |bits| 1 << bits);
    let blocks = x.quants.iter().zip(x.scale).skip(first_block).take(CHUNK / BLOCK);
    for (b, (quants, x_scale)) in blocks.enumerate() {
        for (half, quants) in quants.chunks_exact(len).enumerate() {
            let group = b * (BLOCK / len) + half;
            let codes = &w.codes[0][group * len..(group + 1) * len];
            let products =
                codes.iter().zip(quants).map(|(&c, &q)| (i32::from(c as i8) - offset) * i32::from(q));
            let dot: i32 = products.sum();
            acc = (dot as f32).mul_add(w.scale[group][0] * x_scale, acc);
            if K::MIN {
                let sum: i32 = quants.iter().map(|&q| i32::from(q)).sum();
                acc = w.min[group][0].mul_add(x_scale * sum as f32, acc);
            }
        }
    }
    acc
}
