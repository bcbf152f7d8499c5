//! Vector primitives of attention, the delta rule and activation functions. Each body is plain Rust whose every lane is a
//! result of its own; on a CPU with AVX2 or AVX-512 it is compiled for that, elsewhere for the baseline. How wide the
//! compiler makes its vectors changes nothing in a lane, so every machine gets the same bits.

use std::ops::Range;

use overdraft_plan::PAGE;

use crate::lanes::LANES;
use crate::linear::Isa;
#[cfg(target_arch = "x86_64")]
use crate::linear::isa::Kind;
pub(crate) use crate::linear::{axpy, dot_f32 as dot};
use crate::math;

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
    /// A page's part of a softmax: scores at `seen` places become `e^(scale · score - max)`, where `max` is the largest of
    /// them and of `before`, all others zero. Returns `max` and their sum, place i in lane i mod 16.
    fn softmax_part(scale: f32, before: f32, seen: Range<usize>, scores: &mut [f32; PAGE]) -> (f32, f32) {
        let mut maxima = [before; LANES];
        for (lanes, n) in scores.as_chunks_mut::<LANES>().0.iter_mut().zip(0..) {
            for lane in 0..LANES {
                let place = n * LANES + lane;
                let hidden = place < seen.start || place >= seen.end;
                lanes[lane] = if hidden { f32::NEG_INFINITY } else { lanes[lane] * scale };
                maxima[lane] = maxima[lane].max(lanes[lane]);
            }
        }
        let max = maxima.into_iter().fold(before, f32::max);
        let mut sums = [0.0f32; LANES];
        for lanes in scores.as_chunks_mut::<LANES>().0 {
            for lane in 0..LANES {
                let weight = math::exp(lanes[lane] - max);
                lanes[lane] = if lanes[lane] == f32::NEG_INFINITY { 0.0 } else { weight };
                sums[lane] += lanes[lane];
            }
        }
        (max, math::sum_of_lanes(sums))
    }
}

vectorised! {
    /// `y *= σ(gate)`
    fn times_sigmoid(gate: &[f32], y: &mut [f32]) {
        for (y, g) in y.iter_mut().zip(gate) {
            *y *= math::sigmoid(*g);
        }
    }
}

vectorised! {
    /// The largest; what is not a number does not count.
    fn max(x: &[f32]) -> f32 {
        let mut lanes = [f32::NEG_INFINITY; LANES];
        let (chunks, rest) = x.as_chunks::<LANES>();
        for chunk in chunks {
            for (lane, x) in lanes.iter_mut().zip(chunk) {
                *lane = if *x > *lane { *x } else { *lane };
            }
        }
        lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |max, x| if *x > max { *x } else { max })
    }
}

vectorised! {
    /// `Σ e^(x - shift)` over the numbers among `x`, element i in lane i mod 16.
    fn sum_of_exp(shift: f32, x: &[f32]) -> f32 {
        let mut lanes = [0.0f32; LANES];
        let (chunks, rest) = x.as_chunks::<LANES>();
        let weight = |x: f32| {
            let e = math::exp(x - shift);
            if x.is_nan() { 0.0 } else { e }
        };
        for chunk in chunks {
            for (lane, x) in lanes.iter_mut().zip(chunk) {
                *lane += weight(*x);
            }
        }
        for (lane, x) in lanes.iter_mut().zip(rest) {
            *lane += weight(*x);
        }
        math::sum_of_lanes(lanes)
    }
}

vectorised! {
    /// `y = e^y`, and nothing where that is less than `e^-60`. What a head that forgets at once has left of a row is far
    /// below any digit of a sum, and its products with keys would be subnormal, which a multiplication takes a hundred
    /// times as long for: they were three quarters of the delta rule's time in a prompt.
    fn decayed(y: &mut [f32]) {
        for y in y {
            *y = if *y < -60.0 { 0.0 } else { math::exp(*y) };
        }
    }
}

vectorised! {
    /// `out = x / sqrt(mean(x²) + eps) · weight`
    fn rms_norm(weight: &[f32], eps: f32, x: &[f32], out: &mut [f32]) {
        let scale = 1.0 / (math::sum_of_squares(x) / x.len() as f32 + eps).sqrt();
        for ((o, x), w) in out.iter_mut().zip(x).zip(weight) {
            *o = x * scale * w;
        }
    }
}

vectorised! {
    /// `x = x / sqrt(mean(x²) + eps) · weight`
    fn rms_norm_in_place(weight: &[f32], eps: f32, x: &mut [f32]) {
        let scale = 1.0 / (math::sum_of_squares(x) / x.len() as f32 + eps).sqrt();
        for (x, w) in x.iter_mut().zip(weight) {
            *x = *x * scale * w;
        }
    }
}

vectorised! {
    /// `x = scale · x / sqrt(Σ x² + eps)`
    fn to_length(scale: f32, eps: f32, x: &mut [f32]) {
        let factor = scale / (math::sum_of_squares(x) + eps).sqrt();
        for x in x {
            *x *= factor;
        }
    }
}

vectorised! {
    /// `y *= silu(gate)`
    fn times_silu(gate: &[f32], y: &mut [f32]) {
        for (y, g) in y.iter_mut().zip(gate) {
            *y *= math::silu(*g);
        }
    }
}

vectorised! {
    /// `out[c] = silu(Σ_j w[c, j] x_j[c])`, taps in order.
    fn convolve(x: [&[f32]; 4], w: &[f32], out: &mut [f32]) {
        let n = out.len();
        let [a, b, c, d] = x.map(|x| &x[..n]);
        for (i, w) in w.as_chunks::<4>().0[..n].iter().enumerate() {
            out[i] = math::silu(w[0] * a[i] + w[1] * b[i] + w[2] * c[i] + w[3] * d[i]);
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
