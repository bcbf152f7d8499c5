//! The same computation with wider instructions where the processor has them. Bits do not depend on it:
//! nothing is fused.

/// Something to compute.
pub(super) trait Task {
    type Result;

    /// To be `#[inline(always)]`, with all it calls: only what is inlined gets the wider instructions.
    fn run(self) -> Self::Result;
}

#[inline]
pub(super) fn widely<T: Task>(task: T) -> T::Result {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        return unsafe { avx2(task) };
    }
    task.run()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn avx2<T: Task>(task: T) -> T::Result {
    task.run()
}
