//! What this machine can do at most: how fast memory is read, and how fast int8 products are summed. Kernels are
//! judged by their share of it, so it is measured with the same pool and the same instructions as theirs.

use std::hint::black_box;
use std::time::{Duration, Instant};

use crate::linear::isa::Kind;
use crate::linear::{Isa, large_page_memory};
use crate::pool::Pool;

/// Larger than the last-level cache of any desktop and of most servers.
const BUFFER_BYTES: usize = 256 << 20;
/// What a task reads: long enough that handing it out does not count.
const TASK_BYTES: usize = 1 << 20;
/// The best pass counts, as others may share the machine.
const PASSES: usize = 8;
/// Products of a pass are summed for about so long; a pool that sleeps has woken by then.
const PASS_TIME: Duration = Duration::from_millis(20);

/// Bytes a second that `threads` threads together read from memory, which lies in large pages where the system has
/// them, as packed weights do: without, one thread of an Ice Lake read 9.7 GB/s where the kernels reached 12.4.
///
/// # Errors
/// If the system does not give the memory.
pub fn read_bandwidth(threads: usize) -> std::io::Result<f64> {
    let (pool, isa) = (Pool::new(threads), Isa::detect());
    let mut memory = large_page_memory(BUFFER_BYTES)?;
    // Not zeros: a page that was never written is no memory.
    memory.fill(1);
    // SAFETY: any bytes are words.
    let (_, words, _) = unsafe { memory.align_to::<u64>() };
    let tasks: Vec<&[u64]> = words.chunks(TASK_BYTES / 8).collect();
    let seconds = (0..PASSES).map(|_| {
        let started = Instant::now();
        pool.run(tasks.len(), &|i| {
            black_box(sum(isa, tasks[i]));
        });
        started.elapsed().as_secs_f64()
    });
    Ok(BUFFER_BYTES as f64 / seconds.fold(f64::INFINITY, f64::min))
}

/// Multiply-adds a second of int8 numbers that `threads` threads together do with `isa`, operands in registers.
pub fn int8_peak(threads: usize, isa: Isa) -> f64 {
    int8_peak_of(&Pool::new(threads), isa, PASS_TIME)
}

fn int8_peak_of(pool: &Pool, isa: Isa, pass_time: Duration) -> f64 {
    let pass = |rounds: u32| {
        let started = Instant::now();
        pool.run(pool.threads(), &|_| {
            black_box(multiply_add(isa, black_box(rounds)));
        });
        started.elapsed()
    };
    let mut rounds = 1000;
    while pass(rounds) < pass_time && rounds < 1 << 30 {
        rounds *= 2;
    }
    let best = (0..PASSES).map(|_| pass(rounds)).min().unwrap_or(Duration::MAX);
    let each = f64::from(rounds) * products_a_round(isa) as f64;
    pool.threads() as f64 * each / best.as_secs_f64()
}

/// Independent sums, enough to hide the latency of a multiply-add on every core so far (5 cycles, two a cycle).
const CHAINS: usize = 12;

fn products_a_round(isa: Isa) -> usize {
    CHAINS
        * match isa.kind() {
            Kind::Scalar => 1,
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => 32,
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Vnni => 64,
            #[cfg(target_arch = "aarch64")]
            Kind::Neon => 16,
        }
}

/// The sum of `rounds` times [`products_a_round`] products of 3 and 5.
fn multiply_add(isa: Isa, rounds: u32) -> i32 {
    match isa.kind() {
        Kind::Scalar => multiply_add_scalar(rounds),
        // SAFETY: an `Isa` exists only where the CPU has it.
        #[cfg(target_arch = "x86_64")]
        Kind::Avx2 => unsafe { x86::multiply_add_avx2(rounds) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Kind::Avx512Vnni => unsafe { x86::multiply_add_vnni(rounds) },
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        Kind::Neon => unsafe { multiply_add_neon(rounds) },
    }
}

fn multiply_add_scalar(rounds: u32) -> i32 {
    let (a, b) = (black_box([3i8; CHAINS]), black_box([5i8; CHAINS]));
    let mut sums = [0i32; CHAINS];
    for _ in 0..rounds {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum = sum.wrapping_add(i32::from(a) * i32::from(b));
        }
        sums = black_box(sums);
    }
    sums.iter().fold(0, |all, s| all.wrapping_add(*s))
}

/// The sum of the words, by loads as wide as the instruction set has.
fn sum(isa: Isa, words: &[u64]) -> u64 {
    match isa.kind() {
        // SAFETY: an `Isa` exists only where the CPU has it.
        #[cfg(target_arch = "x86_64")]
        Kind::Avx2 => unsafe { x86::sum_avx2(words) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Kind::Avx512Vnni => unsafe { x86::sum_avx512(words) },
        _ => sum_of(words),
    }
}

/// Compiled once for each instruction set.
#[inline(always)]
fn sum_of(words: &[u64]) -> u64 {
    let sums = words.chunks_exact(64).fold([0u64; 64], |mut sums, chunk| {
        sums.iter_mut().zip(chunk).for_each(|(s, w)| *s = s.wrapping_add(*w));
        sums
    });
    sums.iter().fold(0, |all, s| all.wrapping_add(*s))
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    use std::hint::black_box;

    use super::{CHAINS, sum_of};

    /// # Safety
    /// The CPU has avx2.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn sum_avx2(words: &[u64]) -> u64 {
        sum_of(words)
    }

    /// # Safety
    /// The CPU has avx512f.
    #[target_feature(enable = "avx512f,avx512vl")]
    pub(super) unsafe fn sum_avx512(words: &[u64]) -> u64 {
        sum_of(words)
    }

    /// Three instructions for 32 products, as AVX2 has no single one for them.
    ///
    /// # Safety
    /// The CPU has avx2.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn multiply_add_avx2(rounds: u32) -> i32 {
        let (a, b) = (black_box(_mm256_set1_epi8(3)), black_box(_mm256_set1_epi8(5)));
        let ones = black_box(_mm256_set1_epi16(1));
        let mut sums = [_mm256_setzero_si256(); CHAINS];
        // One factor for all chains: a factor each does not fit 16 registers, and made the peak 83 G/s of 100.
        let mut a = a;
        for _ in 0..rounds {
            for sum in &mut sums {
                let products = _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), ones);
                *sum = _mm256_add_epi32(*sum, products);
                hide(&mut a);
            }
        }
        let all = sums.iter().fold(_mm256_setzero_si256(), |all, s| _mm256_add_epi32(all, *s));
        let mut lanes = [0i32; 8];
        // SAFETY: 32 bytes of room, and the store needs no alignment.
        unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), all) };
        lanes.iter().fold(0, |all, s| all.wrapping_add(*s))
    }

    /// Keeps the compiler from computing a product once for all rounds. Costs no instruction.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn hide(a: &mut __m256i) {
        // SAFETY: an empty text of assembly; the register holds after it what it held before.
        unsafe {
            std::arch::asm!("/* {0} */", inout(ymm_reg) * a, options(pure, nomem, nostack, preserves_flags))
        };
    }

    /// # Safety
    /// The CPU has avx512f and avx512vnni.
    #[target_feature(enable = "avx512f,avx512vnni")]
    pub(super) unsafe fn multiply_add_vnni(rounds: u32) -> i32 {
        let (a, b) = (black_box(_mm512_set1_epi8(3)), black_box(_mm512_set1_epi8(5)));
        let mut sums = [_mm512_setzero_si512(); CHAINS];
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = _mm512_dpbusd_epi32(*sum, a, b);
            }
        }
        _mm512_reduce_add_epi32(sums.iter().fold(_mm512_setzero_si512(), |all, s| _mm512_add_epi32(all, *s)))
    }
}

/// # Safety
/// The CPU has neon and dotprod.
#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "neon,dotprod")]
unsafe fn multiply_add_neon(rounds: u32) -> i32 {
    use std::arch::aarch64::{vaddvq_s32, vdupq_n_s8, vdupq_n_s32};
    let (a, b) = (black_box(vdupq_n_s8(3)), black_box(vdupq_n_s8(5)));
    let mut sums = [vdupq_n_s32(0); CHAINS];
    for _ in 0..rounds {
        for sum in &mut sums {
            // SAFETY: the caller promises dotprod.
            *sum = unsafe { crate::linear::sdot(*sum, a, b) };
        }
    }
    sums.iter().fold(0, |all, s| all.wrapping_add(vaddvq_s32(*s)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_instruction_set_counts_the_products_it_claims() {
        for isa in Isa::available() {
            assert_eq!(multiply_add(isa, 7), (7 * products_a_round(isa) * 15) as i32, "{isa}");
            assert!(int8_peak_of(&Pool::new(2), isa, Duration::ZERO) > 0.0, "{isa}");
        }
    }

    #[test]
    fn every_instruction_set_reads_every_word() {
        let words: Vec<u64> = (0..640).collect();
        for isa in Isa::available() {
            assert_eq!(sum(isa, &words), 639 * 640 / 2, "{isa}");
        }
    }
}
