//! Which instruction set the kernels use. A value of [`Isa`] is the proof that this CPU has it.

use std::fmt;

/// An instruction set this CPU has. It can only be had from [`Isa::detect`], [`Isa::available`] and
/// [`Isa::SCALAR`], so the kernels need no check of their own. All of them give the same bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Isa(Kind);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni,
    #[cfg(target_arch = "aarch64")]
    Neon,
}

impl Isa {
    /// Plain Rust, on any machine: the definition the others are tested against.
    pub const SCALAR: Isa = Isa(Kind::Scalar);

    /// The fastest this CPU has.
    pub fn detect() -> Isa {
        Self::available().last().unwrap_or(Self::SCALAR)
    }

    /// All that this CPU has, slowest first.
    pub fn available() -> impl Iterator<Item = Isa> {
        [
            Some(Kind::Scalar),
            #[cfg(target_arch = "x86_64")]
            has_avx2().then_some(Kind::Avx2),
            #[cfg(target_arch = "x86_64")]
            has_avx512_vnni().then_some(Kind::Avx512Vnni),
            #[cfg(target_arch = "aarch64")]
            std::arch::is_aarch64_feature_detected!("dotprod").then_some(Kind::Neon),
        ]
        .into_iter()
        .flatten()
        .map(Isa)
    }

    /// The name for start-up lines, tables and `--isa`.
    pub fn name(self) -> &'static str {
        match self.0 {
            Kind::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Vnni => "avx512-vnni",
            #[cfg(target_arch = "aarch64")]
            Kind::Neon => "neon-dotprod",
        }
    }

    /// Whether full-range codes are kept unsigned with an offset of 128, for its product of unsigned with signed bytes.
    pub(crate) fn wants_unsigned_codes(self) -> bool {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Vnni => true,
            _ => false,
        }
    }

    pub(crate) fn kind(self) -> Kind {
        self.0
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
}

#[cfg(target_arch = "x86_64")]
fn has_avx512_vnni() -> bool {
    has_avx2()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vnni")
}
