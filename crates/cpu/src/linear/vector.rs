//! Small vector operations that other ops share, with the same bits on every instruction set.

use super::float;
use super::isa::{Isa, Kind};

/// `Σ a[i] * b[i]` in the fixed order of `float.rs`.
///
/// # Panics
/// If the lengths differ.
pub fn dot_f32(isa: Isa, a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len(), "dot of {} and {} elements", a.len(), b.len());
    // SAFETY: floats seen as bytes, of the same length in bytes; little-endian targets only, asserted in `mod.rs`.
    let bytes = unsafe { std::slice::from_raw_parts(a.as_ptr().cast::<u8>(), size_of_val(a)) };
    dot::<float::F32>(isa, bytes, b)
}

#[inline]
fn dot<W: float::Weight>(isa: Isa, a: &[u8], b: &[f32]) -> f32 {
    match isa.kind() {
        Kind::Scalar => float::dot_scalar::<W>(a, b),
        // SAFETY: an `Isa` exists only where the CPU has it; the callers checked the lengths.
        #[cfg(target_arch = "x86_64")]
        Kind::Avx2 => unsafe { super::float_x86::dot_avx2::<W>(a, b) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Kind::Avx512Vnni => unsafe { super::float_x86::dot_avx512::<W>(a, b) },
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        Kind::Neon => unsafe { super::neon::dot::<W>(a, b) },
    }
}

/// Compiles the plain loop `$body` once for each instruction set and calls the one of `$isa`.
macro_rules! compiled_for_each_isa {
    ($isa:expr, $body:ident, ($($arg:ident: $ty:ty),*)) => {
        match $isa.kind() {
            Kind::Scalar => $body($($arg),*),
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => {
                #[target_feature(enable = "avx2,fma,f16c")]
                fn compiled($($arg: $ty),*) {
                    $body($($arg),*)
                }
                // SAFETY: an `Isa` exists only where the CPU has it.
                unsafe { compiled($($arg),*) }
            }
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Vnni => {
                #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma,f16c")]
                fn compiled($($arg: $ty),*) {
                    $body($($arg),*)
                }
                // SAFETY: as above.
                unsafe { compiled($($arg),*) }
            }
            #[cfg(target_arch = "aarch64")]
            Kind::Neon => $body($($arg),*),
        }
    };
}

/// `y[i] += a * x[i]`, each rounded once.
///
/// # Panics
/// If the lengths differ.
pub fn axpy(isa: Isa, a: f32, x: &[f32], y: &mut [f32]) {
    #[inline(always)]
    fn body(a: f32, x: &[f32], y: &mut [f32]) {
        for (y, x) in y.iter_mut().zip(x) {
            *y = a.mul_add(*x, *y);
        }
    }
    assert_eq!(x.len(), y.len(), "axpy of {} and {} elements", x.len(), y.len());
    compiled_for_each_isa!(isa, body, (a: f32, x: &[f32], y: &mut [f32]))
}
