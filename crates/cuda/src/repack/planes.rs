//! Codes as words that a lane turns into registers of an A fragment (`kernels/linear_formats.cuh`).
//!
//! In `mma.m16n8k16` lane `4g + t` holds outputs g (registers 0 and 2) and g + 8 (1 and 3), here of columns 4t, 4t + 1
//! (registers 0 and 1) and 4t + 2, 4t + 3 (2 and 3) of a step of 16 columns. Inputs are laid out alike.

/// Codes of a tile: of 16 outputs, columns in order.
pub(super) type Codes<const COLS: usize> = [[u8; COLS]; 16];

/// Columns whose words stand together, lane by lane.
const QUAD: usize = 64;
pub(super) const LANES: usize = 32;

/// The code in half `h` of register `r` of a lane, in step `j` of a quad.
fn code_at<const COLS: usize>(
    codes: &Codes<COLS>,
    quad: usize,
    lane: usize,
    j: usize,
    r: usize,
    h: usize,
) -> u32 {
    let (g, t) = (lane / 4, lane % 4);
    u32::from(codes[g + 8 * (r % 2)][quad * QUAD + 16 * j + 4 * t + 2 * (r / 2) + h])
}

/// `bits` (1, 2, 4) of each code from bit `from` on, a quad at a time: 4 / bits steps share a word, step e of them in
/// bits `4r + bits · e` of each half.
pub(super) fn plane<const COLS: usize>(codes: &Codes<COLS>, from: u32, bits: usize, out: &mut [u8]) {
    let steps = 4 / bits;
    let mask = (1 << bits) - 1;
    for (quad, out) in out.chunks_exact_mut(QUAD * 16 * bits / 8).enumerate() {
        for (lane, words) in out.chunks_exact_mut(4 * bits).enumerate() {
            for (i, word) in words.chunks_exact_mut(4).enumerate() {
                let mut bits_of_word = 0;
                for e in 0..steps {
                    for r in 0..4 {
                        for h in 0..2 {
                            let code = code_at(codes, quad, lane, i * steps + e, r, h) >> from & mask;
                            bits_of_word |= code << (16 * h + 4 * r + bits * e);
                        }
                    }
                }
                word.copy_from_slice(&bits_of_word.to_le_bytes());
            }
        }
    }
}

/// 4-bit codes in the order in which bytes looked up by them need no sorting: registers 0 and 1 of the first column,
/// of the second, then 2 and 3.
pub(super) fn looked_up<const COLS: usize>(codes: &Codes<COLS>, out: &mut [u8]) {
    const ORDER: [(usize, usize); 8] = [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (3, 0), (2, 1), (3, 1)];
    for (quad, out) in out.chunks_exact_mut(QUAD * 8).enumerate() {
        for (at, word) in out.chunks_exact_mut(4).enumerate() {
            let (lane, j) = (at / 4, at % 4);
            let codes =
                ORDER.iter().enumerate().map(|(i, &(r, h))| code_at(codes, quad, lane, j, r, h) << (4 * i));
            word.copy_from_slice(&codes.fold(0, |a, b| a | b).to_le_bytes());
        }
    }
}

/// Whole bytes: two steps to 16 bytes of a lane, of each output g, then g + 8.
pub(super) fn bytes<const COLS: usize>(codes: &Codes<COLS>, out: &mut [u8]) {
    for (pair, out) in out.chunks_exact_mut(LANES * 16).enumerate() {
        for (at, four) in out.chunks_exact_mut(4).enumerate() {
            let (lane, e, high) = (at / 4, at % 4 / 2, at % 2);
            let first = pair * 32 + 16 * e + 4 * (lane % 4);
            four.copy_from_slice(&codes[lane / 4 + 8 * high][first..first + 4]);
        }
    }
}

/// f16 registers: a step to 16 bytes of a lane.
pub(super) fn registers(values: &[[u16; QUAD]; 16], out: &mut [u8]) {
    for (at, register) in out.chunks_exact_mut(4).enumerate() {
        let (j, lane, r) = (at / 128, at % 128 / 4, at % 4);
        let first = 16 * j + 4 * (lane % 4) + 2 * (r / 2);
        let row = &values[lane / 4 + 8 * (r % 2)];
        register[..2].copy_from_slice(&row[first].to_le_bytes());
        register[2..].copy_from_slice(&row[first + 1].to_le_bytes());
    }
}

/// A 16-bit field of outputs g and g + 8 side by side, for g in turn.
pub(super) fn pairs(of_output: impl Fn(usize) -> u16, out: &mut [u8]) {
    for (g, pair) in out.chunks_exact_mut(4).enumerate() {
        pair[..2].copy_from_slice(&of_output(g).to_le_bytes());
        pair[2..].copy_from_slice(&of_output(g + 8).to_le_bytes());
    }
}

/// Eight fields of 6 bits in three words of outputs g and g + 8: fields 2i and 2i + 1 in the low 12 bits of word i, and
/// the last two, 4 bits at a time, above them.
pub(super) fn fields(of_output: impl Fn(usize, usize) -> u8, g: usize, out: &mut [u8]) {
    for (i, word) in out.chunks_exact_mut(4).enumerate() {
        for (h, half) in word.chunks_exact_mut(2).enumerate() {
            let field = |k| u16::from(of_output(g + 8 * h, k));
            let last = field(6) | field(7) << 6;
            let packed = field(2 * i) | field(2 * i + 1) << 6 | (last >> (4 * i) & 15) << 12;
            half.copy_from_slice(&packed.to_le_bytes());
        }
    }
}
