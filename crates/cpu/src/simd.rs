//! Vector primitives of attention, the delta rule and activation functions. Each body is plain Rust whose every lane is a
//! result of its own; on a CPU with AVX2 or AVX-512 it is compiled for that, elsewhere for the baseline. How wide the
//! compiler makes its vectors changes nothing in a lane, so every machine gets the same bits.

use crate::linear::Isa;
use crate::linear::isa::Kind;
pub(crate) use crate::linear::{axpy, dot_f32 as dot, f16_to_f32};
use crate::math;

const LANES: usize = 8;

/// Declares `pub(crate) fn name(isa, args)` with one body compiled for each instruction set.
macro_rules! vectorised {
    ($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)? $body:block) => {
        $(#[$doc])*
        pub(crate) fn $name(isa: Isa, $($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn body($($arg: $ty),*) $(-> $ret)? $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2($($arg: $ty),*) $(-> $ret)? {
                body($($arg),*)
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma")]
            fn avx512($($arg: $ty),*) $(-> $ret)? {
                body($($arg),*)
            }

            match isa.kind() {
                #[cfg(target_arch = "x86_64")]
                // SAFETY: this kind exists only where the CPU was found to have AVX2 and FMA.
                Kind::Avx2 => unsafe { avx2($($arg),*) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: likewise, and AVX-512 with its byte, word and short-vector parts.
                Kind::Avx512Vnni => unsafe { avx512($($arg),*) },
                _ => body($($arg),*),
            }
        }
    };
}

vectorised! {
    /// `y *= a`
    fn scale(a: f32, y: &mut [f32]) {
        for y in y {
            *y *= a;
        }
    }
}

vectorised! {
    /// `y = x - a · y`, rounded twice
    fn scale_and_subtract(a: f32, x: &[f32], y: &mut [f32]) {
        for (y, x) in y.iter_mut().zip(x) {
            *y = x - a * *y;
        }
    }
}

vectorised! {
    /// `y += Σ_j weights[j] · rows[j]`, j in order: the bits of as many calls of `axpy`. A strip of `y` stays in registers over
    /// all rows, where `axpy` would read and write it for each.
    fn add_weighted(weights: &[f32], rows: &[&[f32]], y: &mut [f32]) {
        const STRIP: usize = 8 * LANES;
        let width = y.len();
        let mut column = 0;
        while column + STRIP <= width {
            let mut sums: [f32; STRIP] = std::array::from_fn(|lane| y[column + lane]);
            for (weight, row) in weights.iter().zip(rows) {
                let row = &row[column..column + STRIP];
                for lane in 0..STRIP {
                    sums[lane] = weight.mul_add(row[lane], sums[lane]);
                }
            }
            y[column..column + STRIP].copy_from_slice(&sums);
            column += STRIP;
        }
        for (weight, row) in weights.iter().zip(rows) {
            for (y, x) in y[column..].iter_mut().zip(&row[column..width]) {
                *y = weight.mul_add(*x, *y);
            }
        }
    }
}

vectorised! {
    /// `y = e^(y - shift)`
    fn exp_less(shift: f32, y: &mut [f32]) {
        for y in y {
            *y = math::exp(*y - shift);
        }
    }
}

vectorised! {
    /// `y = silu(y)`
    fn silu(y: &mut [f32]) {
        for y in y {
            *y = math::silu(*y);
        }
    }
}

vectorised! {
    /// `g = silu(g) · u`
    fn swish(g: &mut [f32], u: &[f32]) {
        for (g, u) in g.iter_mut().zip(u) {
            *g = math::silu(*g) * u;
        }
    }
}

vectorised! {
    /// `a · σ(alpha · a) · (clamp(u, ±limit) + 1)` into `g`, with `a = min(g, limit)`
    fn clamped(alpha: f32, limit: f32, g: &mut [f32], u: &[f32]) {
        for (g, u) in g.iter_mut().zip(u) {
            let a = g.min(limit);
            *g = a * math::sigmoid(alpha * a) * (u.clamp(-limit, limit) + 1.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_weighted_sum_has_the_bits_of_its_terms_added_one_by_one() {
        let x: Vec<f32> = (0..900).map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.37).collect();
        let weights: Vec<f32> = (0..9).map(|i| (i as f32 - 3.7) * 0.3).collect();
        for isa in Isa::available() {
            for (n, width) in [(0, 8), (1, 3), (9, 64), (4, 71), (7, 128)] {
                let rows: Vec<&[f32]> = x.chunks(width).take(n).collect();
                let mut want = x[5..5 + width].to_vec();
                let mut got = want.clone();
                for (weight, row) in weights.iter().zip(&rows) {
                    axpy(Isa::SCALAR, *weight, row, &mut want);
                }
                add_weighted(isa, &weights[..n], &rows, &mut got);
                assert_eq!(got, want, "{isa:?}, {n} rows of {width}");
            }
        }
    }
}
