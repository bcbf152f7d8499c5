//! The sums of 16 rows and 8 columns, to which every product comes down.

use super::Lanes;

/// A row of eight columns, the even ones first. So sums lie in registers: a lane has one of each.
pub(super) type Row = [f32; 8];

pub(super) type Sums = [Row; 16];

/// What the GPU writes where a result is no number.
const NAN: u32 = 0x7fff_ffff;

/// From the four registers of an accumulator.
#[inline(always)]
pub(super) fn read(registers: [&Lanes; 4]) -> Sums {
    let mut sums = [[0.0; 8]; 16];
    for (half, sums) in sums.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let (even, odd) =
            (registers[2 * half].as_chunks::<4>().0, registers[2 * half + 1].as_chunks::<4>().0);
        for row in 0..8 {
            for i in 0..4 {
                sums[row][i] = f32::from_bits(even[row][i]);
                sums[row][4 + i] = f32::from_bits(odd[row][i]);
            }
        }
    }
    sums
}

/// As [`read`] takes them.
#[inline(always)]
pub(super) fn write(sums: &Sums, registers: &mut [Lanes; 4]) {
    for (sums, [even, odd]) in sums.as_chunks::<8>().0.iter().zip(registers.as_chunks_mut::<2>().0) {
        let (even, odd) = (even.as_chunks_mut::<4>().0, odd.as_chunks_mut::<4>().0);
        for row in 0..8 {
            let mut bits = [0; 8];
            for (bits, sum) in bits.iter_mut().zip(sums[row]) {
                *bits = if sum.is_nan() { NAN } else { sum.to_bits() };
            }
            even[row].copy_from_slice(&bits[..4]);
            odd[row].copy_from_slice(&bits[4..]);
        }
    }
}

/// How many rows are summed at a time, so that their sums stay in registers.
const ROWS: usize = 8;

/// `a`: by rows. `b`: by k, as rows of the sums.
#[inline(always)]
pub(super) fn add_products<const K: usize>(a: &[[f32; K]; 16], b: &[Row; K], sums: &mut Sums) {
    for (sums, a) in sums.as_chunks_mut::<ROWS>().0.iter_mut().zip(a.as_chunks::<ROWS>().0) {
        let mut here = *sums;
        for k in 0..K {
            let b = b[k];
            for row in 0..ROWS {
                let a = a[row][k];
                for i in 0..8 {
                    // Products of two numbers of 11 bits are exact, so that this is what one rounding would
                    // give.
                    here[row][i] += a * b[i];
                }
            }
        }
        *sums = here;
    }
}
