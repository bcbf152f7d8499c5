//! Tiles read back as the kernels read them, lane by lane, with the same masks and shifts: what the tests of packing hold
//! against the definitions. Values are formed in the definitions' order and not rounded to f16, so that equal means equal.

use half::f16;
use overdraft_formats::DType;
use overdraft_formats::quant::{IQ4_VALUES, MXFP4_VALUES};

fn word(tile: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| tile[at + i]))
}

/// Of outputs g (0) and g + 8 (1).
fn float(pair: u32, high: usize) -> f32 {
    f16::from_bits((pair >> (16 * high)) as u16).to_f32()
}

/// Registers of a step as integers: a subnormal f16 read as bits, of outputs g + 8 divided by 16.
type Registers = [u32; 4];

fn nibbles(w: u32) -> Registers {
    [w & 0x000f000f, w & 0x00f000f0, w >> 8 & 0x000f000f, w >> 8 & 0x00f000f0]
}

fn or(a: Registers, b: Registers) -> Registers {
    std::array::from_fn(|r| a[r] | b[r])
}

fn fives(w: u32, h: u32, j: usize) -> Registers {
    let (x, y) = (h << (4 - j), h >> (4 + j));
    or(nibbles(w), [x & 0x00100010, x & 0x01000100, y & 0x00100010, y & 0x01000100])
}

fn sixes(w: u32, h: u32, e: usize) -> Registers {
    let (x, y) = (h << (4 - 2 * e), h >> (4 + 2 * e));
    or(nibbles(w), [x & 0x00300030, x & 0x03000300, y & 0x00300030, y & 0x03000300])
}

fn twos(w: u32, e: usize) -> Registers {
    let (x, y) = (w >> (2 * e), w >> (8 + 2 * e));
    [x & 0x00030003, x & 0x00300030, y & 0x00030003, y & 0x00300030]
}

fn threes(w: u32, h: u32, j: usize) -> Registers {
    let x = if j < 2 { h << (2 - j) } else { h >> (j - 2) };
    let y = h >> (6 + j);
    or(twos(w, j % 2), [x & 0x00040004, x & 0x00400040, y & 0x00040004, y & 0x00400040])
}

/// Codes of the first column's registers 0 and 1, of the second's, then 2 and 3; not shifted for g + 8.
fn in_table_order(w: u32) -> Registers {
    let code = |i: u32| w >> (4 * i) & 15;
    [
        code(0) | code(2) << 16,
        (code(1) | code(3) << 16) << 4,
        code(4) | code(6) << 16,
        (code(5) | code(7) << 16) << 4,
    ]
}

/// Field k of 8 of three words.
fn field(tile: &[u8], at: usize, k: usize, high: usize) -> f32 {
    let w: [u32; 3] = std::array::from_fn(|i| word(tile, at + 4 * i));
    let last = (w[0] >> 12 & 0x000f000f) | (w[1] >> 8 & 0x00f000f0) | (w[2] >> 4 & 0x0f000f00);
    let pair = [w[0], w[1], w[2], last][k / 2];
    (pair >> (6 * (k % 2) + 16 * high) as u32 & 63) as f32
}

/// Register values of a lane's step (of 16 columns of the tile).
fn codes(dtype: DType, tile: &[u8], lane: usize, step: usize) -> Registers {
    let (quad, j) = (step / 4, step % 4);
    let four = |from: usize| word(tile, from + quad * 512 + lane * 16 + j * 4);
    let two = |from: usize| word(tile, from + quad * 256 + lane * 8 + j / 2 * 4);
    let one = |from: usize| word(tile, from + quad * 128 + lane * 4);
    match dtype {
        DType::Q4_0 | DType::Q4_1 => nibbles(four(0)),
        DType::Q5_0 | DType::Q5_1 => fives(four(0), one(512), j),
        DType::Q4_K => nibbles(four(256)),
        DType::Q5_K => fives(four(256), one(2304), j),
        DType::Q6_K => sixes(four(0), two(2048), j % 2),
        DType::Q2_K => twos(two(0), j % 2),
        DType::Q3_K => threes(two(0), one(1024), j),
        DType::IQ4_NL | DType::MXFP4 | DType::IQ4_XS => in_table_order(four(0)),
        DType::Q8_0 => {
            let at = step / 2 * 512 + lane * 16 + step % 2 * 8;
            let b = |i: usize| u32::from(tile[at + i]);
            let of = |i: usize| b(i) | b(i + 1) << 16;
            [of(0), of(4) << 4, of(2), of(6) << 4]
        }
        _ => unreachable!("floats have no codes"),
    }
}

/// The weight of a code in a column of the tile, of output g or g + 8: scale times code plus offset.
fn weight(dtype: DType, tile: &[u8], g: usize, high: usize, col: usize, code: u32) -> f32 {
    let unit = if high == 1 && !is_in_bytes(dtype) { 2f32.powi(-20) } else { 2f32.powi(-24) };
    let q = code as f32;
    let pair = |from: usize| float(word(tile, from + g * 4), high);
    let group = |from: usize| float(word(tile, from + col / 32 * 32 + g * 4), high);
    let minimum = 2f32.powi(-24);
    match dtype {
        DType::Q4_0 => group(512) * (q - 8.0) * unit,
        DType::Q4_1 => group(512) * q * unit + group(576),
        DType::Q5_0 => group(640) * (q - 16.0) * unit,
        DType::Q5_1 => group(640) * q * unit + group(704),
        DType::Q8_0 => group(1024) * (q - 128.0) * unit,
        DType::IQ4_NL => group(512) * f32::from(IQ4_VALUES[code as usize]) * unit,
        DType::MXFP4 => {
            let exponent = tile[512 + col / 32 * 16 + g * 2 + high];
            f16::from_bits(u16::from(exponent) << 10).to_f32() * f32::from(MXFP4_VALUES[code as usize]) * unit
        }
        DType::Q2_K => {
            let sm = tile[1024 + g * 32 + col / 16 * 2 + high];
            pair(1280) * f32::from(sm & 15) * q * unit + pair(1312) * f32::from(sm >> 4) * minimum
        }
        DType::Q3_K => {
            let scale = field(tile, 1536 + g * 24 + col / 128 * 12, col % 128 / 16, high) - 32.0;
            pair(1728) * scale * (q - 4.0) * unit
        }
        DType::Q4_K | DType::Q5_K => {
            let outer = |i: usize| float(word(tile, g * 32 + i * 4), high);
            let (second, t) = (col / 128, col % 128 / 32);
            let own = word(tile, g * 32 + t * 4) >> (16 * high) & 0xffff;
            let byte = u32::from(tile[g * 32 + 16 + 4 * high + t]);
            let (scale, min) = [(own & 63, own >> 6 & 63), (own >> 12 | byte >> 6 << 4, byte & 63)][second];
            outer(6) * scale as f32 * q * unit + outer(7) * min as f32 * minimum
        }
        DType::Q6_K => {
            let scale = f32::from(tile[3072 + g * 32 + col / 16 * 2 + high]) - 128.0;
            pair(3328) * scale * (q - 32.0) * unit
        }
        DType::IQ4_XS => {
            let scale = field(tile, 2048 + g * 12, col / 32, high) - 32.0;
            pair(2144) * scale * f32::from(IQ4_VALUES[code as usize]) * unit
        }
        _ => unreachable!("floats have no codes"),
    }
}

/// Whether codes of all outputs lie alike when they are multiplied.
fn is_in_bytes(dtype: DType) -> bool {
    matches!(dtype, DType::Q8_0 | DType::IQ4_NL | DType::IQ4_XS | DType::MXFP4)
}

/// The weights of a tile, `[16, cols]`, before their output's scale.
pub(super) fn tile(dtype: DType, tile: &[u8], cols: usize) -> Vec<f32> {
    let mut out = vec![f32::NAN; 16 * cols];
    for step in 0..cols / 16 {
        for lane in 0..32 {
            for r in 0..4 {
                let (g, t, high) = (lane / 4, lane % 4, r % 2);
                for h in 0..2 {
                    let col = 16 * step + 4 * t + 2 * (r / 2) + h;
                    out[(g + 8 * high) * cols + col] = if dtype.is_quantised() {
                        let code = codes(dtype, tile, lane, step)[r] >> (16 * h) & 0xffff;
                        weight(dtype, tile, g, high, col, code >> (4 * high))
                    } else {
                        float(word(tile, step * 512 + lane * 16 + r * 4), h)
                    };
                }
            }
        }
    }
    out
}
