//! `mma.sync`: a warp's product of matrices in registers.

use std::marker::PhantomData;

use super::Lanes;
use super::floats::{Bf16, F16, Half, Pair};
use super::fragments::{a_halves, a_tf32, b_halves, b_tf32, columns};
use super::sums::{add_products, read, write};
use super::wide::{Task, widely};

/// `mma.sync.aligned.m16n8k16.row.col.f32.{f16,bf16}.{f16,bf16}.f32`: A B + C.
pub(crate) fn mma_m16n8k16(kind: Half, a: [&Lanes; 4], b: [&Lanes; 2], c: [&Lanes; 4]) -> [Lanes; 4] {
    match kind {
        Half::F16 => widely(Halves { a, b, c, kind: PhantomData::<F16> }),
        Half::Bf16 => widely(Halves { a, b, c, kind: PhantomData::<Bf16> }),
    }
}

/// `mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32`: A B + C. Of operands, which are f32, the last 13
/// bits are left out.
pub(crate) fn mma_m16n8k8_tf32(a: [&Lanes; 4], b: [&Lanes; 2], c: [&Lanes; 4]) -> [Lanes; 4] {
    widely(Tf32 { a, b, c })
}

struct Halves<'a, P> {
    a: [&'a Lanes; 4],
    b: [&'a Lanes; 2],
    c: [&'a Lanes; 4],
    kind: PhantomData<P>,
}

impl<P: Pair> Task for Halves<'_, P> {
    type Result = [Lanes; 4];

    #[inline(always)]
    fn run(self) -> [Lanes; 4] {
        let b = b_halves::<P>([columns(self.b[0]), columns(self.b[1])]);
        let mut sums = read(self.c);
        add_products(&a_halves::<P>(self.a), &b, &mut sums);
        let mut d = [[0; 32]; 4];
        write(&sums, &mut d);
        d
    }
}

struct Tf32<'a> {
    a: [&'a Lanes; 4],
    b: [&'a Lanes; 2],
    c: [&'a Lanes; 4],
}

impl Task for Tf32<'_> {
    type Result = [Lanes; 4];

    #[inline(always)]
    fn run(self) -> [Lanes; 4] {
        let mut sums = read(self.c);
        add_products(&a_tf32(self.a), &b_tf32(self.b), &mut sums);
        let mut d = [[0; 32]; 4];
        write(&sums, &mut d);
        d
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wider_instructions_give_the_same_bits() {
        // Halves from 1/8 to 2, of both signs.
        let noise = |seed: u32| -> Lanes {
            std::array::from_fn(|i| {
                (i as u32 + 32 * seed).wrapping_mul(0x9e37_79b1) & 0x8fff_8fff | 0x3000_3000
            })
        };
        let (a, b, c) = ([0, 1, 2, 3].map(noise), [4, 5].map(noise), [6, 7, 8, 9].map(noise));
        let (a, b, c) = (a.each_ref(), b.each_ref(), c.each_ref());
        assert_eq!(mma_m16n8k16(Half::F16, a, b, c), Halves { a, b, c, kind: PhantomData::<F16> }.run());
        assert_eq!(mma_m16n8k16(Half::Bf16, a, b, c), Halves { a, b, c, kind: PhantomData::<Bf16> }.run());
        assert_eq!(mma_m16n8k8_tf32(a, b, c), Tf32 { a, b, c }.run());
    }
}
