//! Tiles of block formats. Each function takes the blocks of 16 outputs over one record and writes their tile; the tile's
//! parts stand in the order in which `kernels/linear_formats.cuh` reads them, scales by their outputs' powers of two.

use overdraft_formats::DType;
use overdraft_formats::quant::scale_and_min;

use super::planes::{self, Codes};
use super::scales::Powers;

/// The blocks of one record, by output.
pub(super) type Rows<'a> = [&'a [u8]; 16];
type ByOutput = [Powers; 16];

pub(super) fn pack_tile(dtype: DType, rows: &Rows<'_>, powers: &ByOutput, tile: &mut [u8]) {
    match dtype {
        DType::Q4_0 => q4_0(rows, powers, tile),
        DType::Q4_1 => q4_1(rows, powers, tile),
        DType::Q5_0 => q5_0(rows, powers, tile),
        DType::Q5_1 => q5_1(rows, powers, tile),
        DType::Q8_0 => q8_0(rows, powers, tile),
        DType::IQ4_NL => iq4_nl(rows, powers, tile),
        DType::MXFP4 => mxfp4(rows, powers, tile),
        DType::Q2_K => q2_k(rows, powers, tile),
        DType::Q3_K => q3_k(rows, powers, tile),
        DType::Q4_K => q4_k(rows, powers, tile),
        DType::Q5_K => q5_k(rows, powers, tile),
        DType::Q6_K => q6_k(rows, powers, tile),
        DType::IQ4_XS => iq4_xs(rows, powers, tile),
        _ => unreachable!("Format::of gives block formats only these types"),
    }
}

fn half_at(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

fn codes_by<const COLS: usize>(rows: &Rows<'_>, code: impl Fn(&[u8], usize) -> u8) -> Codes<COLS> {
    std::array::from_fn(|o| std::array::from_fn(|e| code(rows[o], e)))
}

/// Codes of two blocks of 32 values.
fn codes_32(rows: &Rows<'_>, block_bytes: usize, code: impl Fn(&[u8], usize) -> u8) -> Codes<64> {
    codes_by(rows, |blocks, e| code(&blocks[e / 32 * block_bytes..], e % 32))
}

/// Low halves of 16 bytes, then high halves.
fn nibble(bytes: &[u8], e: usize) -> u8 {
    bytes[e % 16] >> (4 * (e / 16)) & 15
}

/// The f16 scales of both blocks of each output.
fn scales_32(rows: &Rows<'_>, powers: &ByOutput, block_bytes: usize, out: &mut [u8]) {
    for (i, out) in out.chunks_exact_mut(32).enumerate() {
        planes::pairs(|o| powers[o].scale(half_at(rows[o], i * block_bytes)), out);
    }
}

/// ... and the offsets that follow them.
fn offsets_32(rows: &Rows<'_>, powers: &ByOutput, block_bytes: usize, out: &mut [u8]) {
    for (i, out) in out.chunks_exact_mut(32).enumerate() {
        planes::pairs(|o| powers[o].offset(half_at(rows[o], i * block_bytes + 2)), out);
    }
}

fn q4_0(rows: &Rows<'_>, powers: &ByOutput, tile: &mut [u8]) {
    planes::plane(&codes_32(rows, 18, |b, e| nibble(&b[2..], e)), 0, 4, &mut tile[..512]);
    scales_32(rows, powers, 18, &mut tile[512..]);
}

fn q4_1(rows: &Rows<'_>, powers: &ByOutput, tile: &mut [u8]) {
    planes::plane(&codes_32(rows, 20, |b, e| nibble(&b[4..], e)), 0, 4, &mut tile[..512]);
    scales_32(rows, powers, 20, &mut tile[512..576]);
    offsets_32(rows, powers, 20, &mut tile[576..]);
}

fn five(codes: &[u8], fifth: &[u8], e: usize) -> u8 {
    nibble(codes, e) | (fifth[e / 8] >> (e % 8) & 1) << 4
}

fn q5_0(rows: &Rows<'_>, powers: &ByOutput, tile: &mut [u8]) {
    let codes = codes_32(rows, 22, |b, e| five(&b[6..], &b[2..], e));
    planes::plane(&codes, 0, 4, &mut tile[..512]);
    planes::plane(&codes, 4, 1, &mut tile[512..640]);
    scales_32(rows, powers, 22, &mut tile[640..]);
}

fn q5_1(rows: &Rows<'_>, powers: &ByOutput, tile: &mut [u8]) {
    let codes = codes_32(rows, 24, |b, e| five(&b[8..], &b[4..], e));
    planes::plane(&codes, 0, 4, &mut tile[..512]);
    planes::plane(&codes, 4, 1, &mut tile[512..640]);
    scales_32(rows, powers, 24, &mut tile[640..704]);
    offsets_32(rows, powers, 24, &mut tile[704..]);
}

fn q8_0(rows: &Rows<'_>, powers: &ByOutput, tile: &mut [u8]) {
    planes::bytes(&codes_32(rows, 34, |b, e| b[2 + e] ^ 128), &mut tile[..1024]);
    scales_32(rows, powers, 34, &mut tile[1024..]);
}

fn iq4_nl(rows: &Rows<'_>, powers: &ByOutput, tile: &mut [u8]) {
    planes::looked_up(&codes_32(rows, 18, |b, e| nibble(&b[2..], e)), &mut tile[..512]);
    scales_32(rows, powers, 18, &mut tile[512..]);
}

fn mxfp4(rows: &Rows<'_>, powers: &ByOutput, tile: &mut [u8]) {
    planes::looked_up(&codes_32(rows, 17, |b, e| nibble(&b[1..], e)), &mut tile[..512]);
    for (i, out) in tile[512..].iter_mut().enumerate() {
        let o = i % 16 / 2 + 8 * (i % 2);
        *out = powers[o].exponent(rows[o][i / 16 * 17]);
    }
}

fn q2_k(rows: &Rows<'_>, powers: &ByOutput, tile: &mut [u8]) {
    let codes: Codes<256> = codes_by(rows, |b, e| b[16 + e / 128 * 32 + e % 32] >> (e % 128 / 32 * 2) & 3);
    planes::plane(&codes, 0, 2, &mut tile[..1024]);
    for (i, out) in tile[1024..1280].iter_mut().enumerate() {
        *out = rows[i / 32 + 8 * (i % 2)][i % 32 / 2];
    }
    planes::pairs(|o| powers[o].scale(half_at(rows[o], 80)), &mut tile[1280..1312]);
    planes::pairs(|o| powers[o].minimum(half_at(rows[o], 82)), &mut tile[1312..]);
}

/// Plus 32, as stored.
fn q3_k_scale(block: &[u8], k: usize) -> u8 {
    let low = if k < 8 { block[96 + k] & 15 } else { block[88 + k] >> 4 };
    low | (block[104 + k % 4] >> (2 * (k / 4)) & 3) << 4
}

fn q3_k(rows: &Rows<'_>, powers: &ByOutput, tile: &mut [u8]) {
    let codes: Codes<256> = codes_by(rows, |b, e| {
        let (h, j, l) = (e / 128, e % 128 / 32, e % 32);
        (b[32 + 32 * h + l] >> (2 * j) & 3) | (b[l] >> (4 * h + j) & 1) << 2
    });
    planes::plane(&codes, 0, 2, &mut tile[..1024]);
    planes::plane(&codes, 2, 1, &mut tile[1024..1536]);
    for (i, out) in tile[1536..1728].chunks_exact_mut(12).enumerate() {
        planes::fields(|o, k| q3_k_scale(rows[o], i % 2 * 8 + k), i / 2, out);
    }
    planes::pairs(|o| powers[o].scale(half_at(rows[o], 108)), &mut tile[1728..]);
}

/// Scales and minima of Q4_K and Q5_K, 32 bytes for outputs g and g + 8. Four words whose halves hold, of one output each, scale
/// and minimum of a group of 32 columns in the first half and four bits of the scale of its like in the second; of each output four
/// bytes for those: the minimum, and two bits more of the scale; d of both outputs; minus dmin of both.
fn scales_and_minima(rows: &Rows<'_>, powers: &ByOutput, out: &mut [u8]) {
    for (g, out) in out.chunks_exact_mut(32).enumerate() {
        let of = |o: usize, group: usize| scale_and_min(&std::array::from_fn(|i| rows[o][4 + i]), group);
        for (t, word) in out[..16].chunks_exact_mut(4).enumerate() {
            let half = |o: usize| {
                let ((scale, min), (second, _)) = (of(o, t), of(o, 4 + t));
                u16::from(scale) | u16::from(min) << 6 | u16::from(second & 15) << 12
            };
            planes::pairs(|o| half(o + g), word);
        }
        for (i, byte) in out[16..24].iter_mut().enumerate() {
            let (scale, min) = of(g + i / 4 * 8, 4 + i % 4);
            *byte = min | (scale >> 4) << 6;
        }
        planes::pairs(|o| powers[o + g].scale(half_at(rows[o + g], 0)), &mut out[24..28]);
        planes::pairs(|o| powers[o + g].minimum(half_at(rows[o + g], 2)), &mut out[28..]);
    }
}

/// Two sub-blocks of 32 share 32 bytes.
fn code4(codes: &[u8], e: usize) -> u8 {
    codes[e / 64 * 32 + e % 32] >> (e / 32 % 2 * 4) & 15
}

fn q4_k(rows: &Rows<'_>, powers: &ByOutput, tile: &mut [u8]) {
    scales_and_minima(rows, powers, &mut tile[..256]);
    planes::plane::<256>(&codes_by(rows, |b, e| code4(&b[16..], e)), 0, 4, &mut tile[256..]);
}

fn q5_k(rows: &Rows<'_>, powers: &ByOutput, tile: &mut [u8]) {
    scales_and_minima(rows, powers, &mut tile[..256]);
    let codes: Codes<256> = codes_by(rows, |b, e| code4(&b[48..], e) | (b[16 + e % 32] >> (e / 32) & 1) << 4);
    planes::plane(&codes, 0, 4, &mut tile[256..2304]);
    planes::plane(&codes, 4, 1, &mut tile[2304..]);
}

fn q6_k(rows: &Rows<'_>, powers: &ByOutput, tile: &mut [u8]) {
    let codes: Codes<256> = codes_by(rows, |b, e| {
        let (h, j, l) = (e / 128, e % 128 / 32, e % 32);
        (b[64 * h + 32 * (j & 1) + l] >> (4 * (j / 2)) & 15) | (b[128 + 32 * h + l] >> (2 * j) & 3) << 4
    });
    planes::plane(&codes, 0, 4, &mut tile[..2048]);
    planes::plane(&codes, 4, 2, &mut tile[2048..3072]);
    for (i, out) in tile[3072..3328].iter_mut().enumerate() {
        *out = rows[i / 32 + 8 * (i % 2)][192 + i % 32 / 2] ^ 128;
    }
    planes::pairs(|o| powers[o].scale(half_at(rows[o], 208)), &mut tile[3328..]);
}

fn iq4_xs(rows: &Rows<'_>, powers: &ByOutput, tile: &mut [u8]) {
    let codes: Codes<256> = codes_by(rows, |b, e| nibble(&b[8 + e / 32 * 16..], e % 32));
    planes::looked_up(&codes, &mut tile[..2048]);
    for (g, out) in tile[2048..2144].chunks_exact_mut(12).enumerate() {
        let scale = |o: usize, s: usize| {
            (rows[o][4 + s / 2] >> (4 * (s % 2)) & 15) | ((half_at(rows[o], 2) >> (2 * s) & 3) << 4) as u8
        };
        planes::fields(scale, g, out);
    }
    planes::pairs(|o| powers[o].scale(half_at(rows[o], 0)), &mut tile[2144..]);
}
