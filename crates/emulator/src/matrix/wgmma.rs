//! `wgmma.mma_async`: what one of its four warps computes.

use std::marker::PhantomData;

use super::Lanes;
use super::floats::{Bf16, F16, Half, Pair};
use super::fragments::{a_halves, b_halves};
use super::sums::{add_products, read, write};
use super::wide::{Task, widely};

/// `wgmma.mma_async.sync.aligned.m64nNk16.f32.{f16,bf16}.{f16,bf16}` with A in registers and B along k, both
/// as they are (the numbers after the predicate are 1, 1, 0): D = A B, and D where it `adds`.
///
/// Warp w of the four has rows 16 w to 16 w + 15; A and D lie as with `mma` of 16 rows, D with four registers
/// to 8 columns. `b`: of each of N columns the two rows of [`Descriptor::row`](super::Descriptor::row).
///
/// # Panics
/// If D has not four registers to 8 columns of B.
pub(crate) fn wgmma(kind: Half, a: [&Lanes; 4], b: &[[[u8; 16]; 2]], d: &mut [Lanes], adds: bool) {
    assert!(
        b.len().is_multiple_of(8) && d.len() * 2 == b.len(),
        "{} registers to {} columns",
        d.len(),
        b.len()
    );
    match kind {
        Half::F16 => widely(Product { a, b, d, adds, kind: PhantomData::<F16> }),
        Half::Bf16 => widely(Product { a, b, d, adds, kind: PhantomData::<Bf16> }),
    }
}

struct Product<'a, P> {
    a: [&'a Lanes; 4],
    b: &'a [[[u8; 16]; 2]],
    d: &'a mut [Lanes],
    adds: bool,
    kind: PhantomData<P>,
}

impl<P: Pair> Task for Product<'_, P> {
    type Result = ();

    #[inline(always)]
    fn run(self) {
        let a = a_halves::<P>(self.a);
        let eights = self.b.as_chunks::<8>().0;
        for (b, d) in eights.iter().zip(self.d.as_chunks_mut::<4>().0) {
            let mut halves = [[[0; 4]; 8]; 2];
            for (column, rows) in b.iter().enumerate() {
                for (half, row) in rows.iter().enumerate() {
                    for (pair, bytes) in halves[half][column].iter_mut().zip(row.as_chunks::<4>().0) {
                        *pair = u32::from_le_bytes(*bytes);
                    }
                }
            }
            let b = b_halves::<P>(halves);
            let mut sums = if self.adds { read(d.each_ref()) } else { Default::default() };
            add_products(&a, &b, &mut sums);
            write(&sums, d);
        }
    }
}
