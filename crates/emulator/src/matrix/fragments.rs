//! Operands as they lie in registers and in shared memory, as f32.

use super::Lanes;
use super::floats::Pair;
use super::sums::Row;

/// The last bits that tensor cores leave out of an f32.
const TF32_MASK: u32 = 0xffff_e000;

/// A of 16 x 16. A register has 8 x 8 numbers, row after row; the next one 8 rows more, the two after those 8
/// columns more.
#[inline(always)]
pub(super) fn a_halves<P: Pair>(registers: [&Lanes; 4]) -> [[f32; 16]; 16] {
    let mut a = [[0.0; 16]; 16];
    for (r, register) in registers.into_iter().enumerate() {
        for (row, pairs) in register.as_chunks::<4>().0.iter().enumerate() {
            let to = &mut a[r % 2 * 8 + row][r / 2 * 8..][..8];
            for (i, &pair) in pairs.iter().enumerate() {
                to[2 * i] = P::first(pair);
                to[2 * i + 1] = P::second(pair);
            }
        }
    }
    a
}

/// B of 16 x 8 from two halves along k, each of eight columns of four pairs. By k, the columns in the order
/// of the sums.
#[inline(always)]
pub(super) fn b_halves<P: Pair>(halves: [[[u32; 4]; 8]; 2]) -> [Row; 16] {
    let mut b = [[0.0; 8]; 16];
    for (half, b) in halves.iter().zip(b.as_chunks_mut::<8>().0) {
        for (pairs, b) in in_order(half).iter().zip(b.as_chunks_mut::<2>().0) {
            for i in 0..8 {
                b[0][i] = P::first(pairs[i]);
                b[1][i] = P::second(pairs[i]);
            }
        }
    }
    b
}

/// Columns as rows, in the order of the sums.
#[inline(always)]
fn in_order([a, b, c, d, e, f, g, h]: &[[u32; 4]; 8]) -> [[u32; 8]; 4] {
    let row = |k: usize| [a[k], c[k], e[k], g[k], b[k], d[k], f[k], h[k]];
    [row(0), row(1), row(2), row(3)]
}

/// A of 16 x 8: registers as of [`a_halves`], of 8 x 4 numbers.
#[inline(always)]
pub(super) fn a_tf32(registers: [&Lanes; 4]) -> [[f32; 8]; 16] {
    let mut a = [[0.0; 8]; 16];
    for (r, register) in registers.into_iter().enumerate() {
        for (row, numbers) in register.as_chunks::<4>().0.iter().enumerate() {
            for (i, &number) in numbers.iter().enumerate() {
                a[r % 2 * 8 + row][r / 2 * 4 + i] = tf32(number);
            }
        }
    }
    a
}

/// B of 8 x 8: a register has eight columns of four numbers along k.
#[inline(always)]
pub(super) fn b_tf32(registers: [&Lanes; 2]) -> [Row; 8] {
    let mut b = [[0.0; 8]; 8];
    for (register, b) in registers.into_iter().zip(b.as_chunks_mut::<4>().0) {
        for (numbers, b) in in_order(&columns(register)).iter().zip(b) {
            for i in 0..8 {
                b[i] = tf32(numbers[i]);
            }
        }
    }
    b
}

#[inline(always)]
fn tf32(bits: u32) -> f32 {
    f32::from_bits(bits & TF32_MASK)
}

/// Of B: what four lanes each have.
#[inline(always)]
pub(super) fn columns(register: &Lanes) -> [[u32; 4]; 8] {
    let mut columns = [[0; 4]; 8];
    columns.copy_from_slice(register.as_chunks::<4>().0);
    columns
}
