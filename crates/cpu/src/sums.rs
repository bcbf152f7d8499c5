//! Weighted sums of rows, several at once: the small matrix products of attention and the delta rule. A row that is
//! loaded serves all sums of a tile, which stay in registers over all rows.
//!
//! The definition: every element of a sum is a chain of fused multiply-adds, rows in order. So neither how many sums
//! share a call nor cutting the rows into several calls changes a bit.

#![expect(clippy::needless_range_loop, reason = "tiles of registers are small matrices: indices read better")]

use half::{bf16, f16};

use crate::lanes::{LANES, Lanes};
use crate::linear::Isa;
#[cfg(target_arch = "x86_64")]
use crate::linear::isa::Kind;

/// What rows are made of.
pub(crate) trait Element: Copy {
    /// # Safety
    /// As [`Lanes::load`].
    unsafe fn load<L: Lanes>(p: *const Self) -> L;
    fn wide(self) -> f32;
}

impl Element for f32 {
    #[inline(always)]
    unsafe fn load<L: Lanes>(p: *const Self) -> L {
        // SAFETY: the caller's promise.
        unsafe { L::load(p) }
    }
    #[inline(always)]
    fn wide(self) -> f32 {
        self
    }
}

impl Element for f16 {
    #[inline(always)]
    unsafe fn load<L: Lanes>(p: *const Self) -> L {
        // SAFETY: the caller's promise.
        unsafe { L::load_half(p) }
    }
    #[inline(always)]
    fn wide(self) -> f32 {
        self.to_f32_const()
    }
}

impl Element for bf16 {
    #[inline(always)]
    unsafe fn load<L: Lanes>(p: *const Self) -> L {
        // SAFETY: the caller's promise.
        unsafe { L::load_bfloat(p) }
    }
    #[inline(always)]
    fn wide(self) -> f32 {
        self.to_f32_const()
    }
}

/// The rows that are added up.
pub(crate) trait Rows {
    type Element: Element;
    fn count(&self) -> usize;
    fn row(&self, index: usize) -> &[Self::Element];
}

/// Rows wherever they lie.
impl<T: Element> Rows for [&[T]] {
    type Element = T;
    #[inline(always)]
    fn count(&self) -> usize {
        self.len()
    }
    #[inline(always)]
    fn row(&self, index: usize) -> &[T] {
        self[index]
    }
}

/// Rows one behind the other.
pub(crate) struct Matrix<'a, T> {
    pub(crate) elements: &'a [T],
    pub(crate) width: usize,
}

impl<T: Element> Rows for Matrix<'_, T> {
    type Element = T;
    #[inline(always)]
    fn count(&self) -> usize {
        self.elements.len() / self.width
    }
    #[inline(always)]
    fn row(&self, index: usize) -> &[T] {
        &self.elements[index * self.width..(index + 1) * self.width]
    }
}

/// The factors of each sum: those of sum `i` are every `step`-th of `of[i]`, one for each row.
#[derive(Clone, Copy)]
pub(crate) struct Factors<'a> {
    pub(crate) of: &'a [&'a [f32]],
    pub(crate) step: usize,
}

/// What a sum starts from.
#[derive(Clone, Copy)]
pub(crate) enum Start {
    Zero,
    /// What was there, times this.
    Scaled(f32),
}

impl Start {
    pub(crate) const ADD: Start = Start::Scaled(1.0);
}

/// `sums[i] = start + Σ_j factors[i][j] · rows[j]`, j in order.
///
/// # Panics
/// If a row is shorter than the sums, or there are fewer factors than rows.
pub(crate) fn weighted_sums<R: Rows + ?Sized>(
    isa: Isa,
    factors: Factors<'_>,
    rows: &R,
    start: Start,
    sums: &mut [&mut [f32]],
) {
    assert_eq!(factors.of.len(), sums.len(), "factors of as many sums");
    let needed = rows.count().saturating_sub(1) * factors.step;
    assert!(rows.count() == 0 || factors.of.iter().all(|f| f.len() > needed), "a factor for each row");
    match isa.kind() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: this kind exists only where the CPU was found to have AVX2, FMA and F16C; checked above.
        Kind::Avx2 => unsafe { x86::avx2(factors, rows, start, sums) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: likewise, and AVX-512 with its byte, word and short-vector parts.
        Kind::Avx512Vnni => unsafe { x86::avx512(factors, rows, start, sums) },
        // SAFETY: needs no instruction set; checked above.
        _ => unsafe { tiles::<[f32; LANES], R, 1, 1, 2>(factors, rows, start, sums) },
    }
}

/// How wide a strip of registers a tile of 4, 2 sums and 1 sum keeps is a matter of how many registers there are.
#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::*;
    use crate::lanes::{Avx2, Avx512};

    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn avx2<R: Rows + ?Sized>(f: Factors<'_>, r: &R, s: Start, y: &mut [&mut [f32]]) {
        // SAFETY: the caller's promise.
        unsafe { tiles::<Avx2, R, 1, 2, 4>(f, r, s, y) }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma,f16c")]
    pub(super) unsafe fn avx512<R: Rows + ?Sized>(f: Factors<'_>, r: &R, s: Start, y: &mut [&mut [f32]]) {
        // SAFETY: the caller's promise.
        unsafe { tiles::<Avx512, R, 4, 4, 4>(f, r, s, y) }
    }
}

/// # Safety
/// The CPU has the instruction set of `L`, and there is a factor for each sum and row.
#[inline(always)]
unsafe fn tiles<L: Lanes, R: Rows + ?Sized, const FOUR: usize, const TWO: usize, const ONE: usize>(
    factors: Factors<'_>,
    rows: &R,
    start: Start,
    sums: &mut [&mut [f32]],
) {
    let (fours, rest) = sums.as_chunks_mut::<4>();
    let (four_factors, rest_factors) = factors.of.as_chunks::<4>();
    for (sums, factors_of) in fours.iter_mut().zip(four_factors) {
        // SAFETY: the caller's promise.
        unsafe { tile::<L, R, 4, FOUR>(factors_of, factors.step, rows, start, sums) };
    }
    let (twos, ones) = rest.as_chunks_mut::<2>();
    let (two_factors, one_factors) = rest_factors.as_chunks::<2>();
    for (sums, factors_of) in twos.iter_mut().zip(two_factors) {
        // SAFETY: the caller's promise.
        unsafe { tile::<L, R, 2, TWO>(factors_of, factors.step, rows, start, sums) };
    }
    for (sum, factors_of) in ones.as_chunks_mut::<1>().0.iter_mut().zip(one_factors.as_chunks::<1>().0) {
        // SAFETY: the caller's promise.
        unsafe { tile::<L, R, 1, ONE>(factors_of, factors.step, rows, start, sum) };
    }
}

/// # Safety
/// As [`tiles`].
#[inline(always)]
unsafe fn tile<L: Lanes, R: Rows + ?Sized, const M: usize, const N: usize>(
    factors: &[&[f32]; M],
    step: usize,
    rows: &R,
    start: Start,
    sums: &mut [&mut [f32]; M],
) {
    let width = sums[0].len();
    let mut column = 0;
    while column + N * LANES <= width {
        // SAFETY: the caller's promise.
        unsafe { strip::<L, R, M, N>(factors, step, rows, start, sums, column) };
        column += N * LANES;
    }
    while column + LANES <= width {
        // SAFETY: the caller's promise.
        unsafe { strip::<L, R, M, 1>(factors, step, rows, start, sums, column) };
        column += LANES;
    }
    for (sum, factors) in sums.iter_mut().zip(factors) {
        for (c, y) in sum.iter_mut().enumerate().skip(column) {
            let mut chain = match start {
                Start::Zero => 0.0,
                Start::Scaled(by) => *y * by,
            };
            for k in 0..rows.count() {
                chain = factors[k * step].mul_add(rows.row(k)[c].wide(), chain);
            }
            *y = chain;
        }
    }
}

/// `N` vectors of `M` sums, from `column` on.
///
/// # Safety
/// As [`tiles`].
#[inline(always)]
unsafe fn strip<L: Lanes, R: Rows + ?Sized, const M: usize, const N: usize>(
    factors: &[&[f32]; M],
    step: usize,
    rows: &R,
    start: Start,
    sums: &mut [&mut [f32]; M],
    column: usize,
) {
    // SAFETY: the CPU has the instruction set (the caller's promise); pointers come from slices of `N * LANES` elements,
    // or of one where a factor is read.
    unsafe {
        let mut acc = [[L::splat(0.0); N]; M];
        if let Start::Scaled(by) = start {
            let by = L::splat(by);
            for m in 0..M {
                let old = &sums[m][column..column + N * LANES];
                for n in 0..N {
                    acc[m][n] = L::load(old[n * LANES..].as_ptr()).mul(by);
                }
            }
        }
        for k in 0..rows.count() {
            let row = &rows.row(k)[column..column + N * LANES];
            let mut x = [L::splat(0.0); N];
            for n in 0..N {
                x[n] = R::Element::load::<L>(row.as_ptr().add(n * LANES));
            }
            for m in 0..M {
                let factor = L::splat(*factors[m].get_unchecked(k * step));
                for n in 0..N {
                    acc[m][n] = factor.fma(x[n], acc[m][n]);
                }
            }
        }
        for m in 0..M {
            let new = &mut sums[m][column..column + N * LANES];
            for n in 0..N {
                acc[m][n].store(new[n * LANES..].as_mut_ptr());
            }
        }
    }
}

/// The dot products of each row with `a` and with `b`, in the order of summation of [`crate::linear::dot_f32`]: element i
/// in lane i mod 16, then lanes 8, 4, 2 and 1 apart.
///
/// # Panics
/// If lengths differ.
pub(crate) fn dots_with_two(
    isa: Isa,
    rows: &[&[f32]],
    a: &[f32],
    b: &[f32],
    with_a: &mut [f32],
    with_b: &mut [f32],
) {
    assert!(rows.iter().chain([&b]).all(|x| x.len() == a.len()), "dots of rows of {}", a.len());
    assert!(rows.len() == with_a.len() && rows.len() == with_b.len(), "dots of {} rows", rows.len());

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn avx2(rows: &[&[f32]], a: &[f32], b: &[f32], with_a: &mut [f32], with_b: &mut [f32]) {
        // SAFETY: the caller's promise.
        unsafe { all_dots::<crate::lanes::Avx2>(rows, a, b, with_a, with_b) }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma")]
    unsafe fn avx512(rows: &[&[f32]], a: &[f32], b: &[f32], with_a: &mut [f32], with_b: &mut [f32]) {
        // SAFETY: the caller's promise.
        unsafe { all_dots::<crate::lanes::Avx512>(rows, a, b, with_a, with_b) }
    }

    match isa.kind() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: this kind exists only where the CPU was found to have AVX2 and FMA; equally long (asserted).
        Kind::Avx2 => unsafe { avx2(rows, a, b, with_a, with_b) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: likewise, and AVX-512 with its byte, word and short-vector parts.
        Kind::Avx512Vnni => unsafe { avx512(rows, a, b, with_a, with_b) },
        // SAFETY: needs no instruction set; equally long (asserted).
        _ => unsafe { all_dots::<[f32; LANES]>(rows, a, b, with_a, with_b) },
    }
}

/// # Safety
/// The CPU has the instruction set of `L`; the rows, `a` and `b` are equally long.
#[inline(always)]
unsafe fn all_dots<L: Lanes>(rows: &[&[f32]], a: &[f32], b: &[f32], with_a: &mut [f32], with_b: &mut [f32]) {
    let whole = a.len() / LANES * LANES;
    for ((x, with_a), with_b) in rows.iter().zip(with_a).zip(with_b) {
        // SAFETY: the caller's promise; pointers are to whole vectors inside the slices.
        unsafe {
            let (mut from_a, mut from_b) = (L::splat(0.0), L::splat(0.0));
            for i in (0..whole).step_by(LANES) {
                let x = L::load(x.as_ptr().add(i));
                from_a = x.fma(L::load(a.as_ptr().add(i)), from_a);
                from_b = x.fma(L::load(b.as_ptr().add(i)), from_b);
            }
            if whole < x.len() {
                // The last elements, with lanes past them as they were.
                let (mut lanes_a, mut lanes_b) = ([0.0f32; LANES], [0.0f32; LANES]);
                from_a.store(lanes_a.as_mut_ptr());
                from_b.store(lanes_b.as_mut_ptr());
                for i in whole..x.len() {
                    lanes_a[i - whole] = x[i].mul_add(a[i], lanes_a[i - whole]);
                    lanes_b[i - whole] = x[i].mul_add(b[i], lanes_b[i - whole]);
                }
                (from_a, from_b) = (L::load(lanes_a.as_ptr()), L::load(lanes_b.as_ptr()));
            }
            (*with_a, *with_b) = (from_a.sum(), from_b.sum());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linear::dot_f32;

    fn numbers(n: usize, seed: f32) -> Vec<f32> {
        (0..n).map(|i| ((i as f32 + seed) * 1.618_034).fract() - 0.5).collect()
    }

    /// Element by element, as the definition reads.
    fn plainly(factors: &[Vec<f32>], rows: &[Vec<f32>], start: Start, sums: &mut [Vec<f32>]) {
        for (sum, factors) in sums.iter_mut().zip(factors) {
            for (c, y) in sum.iter_mut().enumerate() {
                let first = if let Start::Scaled(by) = start { *y * by } else { 0.0 };
                *y = rows.iter().zip(factors).fold(first, |y, (row, f)| f.mul_add(row[c], y));
            }
        }
    }

    #[test]
    fn sums_have_the_bits_of_their_definition_however_they_are_tiled() {
        for (n_sums, n_rows, width) in [
            (1, 0, 7),
            (1, 3, 5),
            (2, 9, 64),
            (3, 31, 33),
            (4, 16, 128),
            (7, 2, 79),
            (8, 64, 256),
            (1, 40, 144),
        ] {
            let halves: Vec<Vec<f16>> = (0..n_rows)
                .map(|k| numbers(width, k as f32).iter().map(|x| f16::from_f32(*x)).collect())
                .collect();
            let rows: Vec<Vec<f32>> = halves.iter().map(|r| r.iter().map(|x| x.to_f32()).collect()).collect();
            let factors: Vec<Vec<f32>> = (0..n_sums).map(|m| numbers(n_rows, 0.3 * m as f32)).collect();
            let across: Vec<f32> =
                (0..n_rows).flat_map(|k| factors.iter().map(move |f| f[k])).chain([0.0; 8]).collect();
            for start in [Start::Zero, Start::ADD, Start::Scaled(0.37)] {
                let old: Vec<Vec<f32>> = (0..n_sums).map(|m| numbers(width, 5.0 + m as f32)).collect();
                let mut want = old.clone();
                plainly(&factors, &rows, start, &mut want);
                for isa in Isa::available() {
                    let check = |case: &str, run: &dyn Fn(&mut [&mut [f32]])| {
                        let mut got = old.clone();
                        run(&mut got.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>());
                        assert_eq!(got, want, "{isa}, {n_sums} sums of {n_rows} rows of {width}, {case}");
                    };
                    let of: Vec<&[f32]> = factors.iter().map(Vec::as_slice).collect();
                    let factors = Factors { of: &of, step: 1 };
                    let refs: Vec<&[f32]> = rows.iter().map(Vec::as_slice).collect();
                    check("rows anywhere", &|y| weighted_sums(isa, factors, &*refs, start, y));
                    let matrix = Matrix { elements: &rows.concat(), width };
                    check("a matrix", &|y| weighted_sums(isa, factors, &matrix, start, y));
                    let matrix = Matrix { elements: &halves.concat(), width };
                    check("halves", &|y| weighted_sums(isa, factors, &matrix, start, y));
                    let of: Vec<&[f32]> = (0..n_sums).map(|m| &across[m..]).collect();
                    let across = Factors { of: &of, step: n_sums };
                    check("factors across", &|y| weighted_sums(isa, across, &*refs, start, y));
                }
            }
        }
    }

    #[test]
    fn two_dots_at_once_are_the_dots() {
        for n in [0, 1, 15, 16, 17, 64, 100, 128] {
            let (a, b) = (numbers(n, 0.7), numbers(n, 9.1));
            let rows: Vec<Vec<f32>> = (0..5).map(|k| numbers(n, k as f32 * 3.3)).collect();
            let rows: Vec<&[f32]> = rows.iter().map(Vec::as_slice).collect();
            for isa in Isa::available() {
                let (mut with_a, mut with_b) = ([0.0; 5], [0.0; 5]);
                dots_with_two(isa, &rows, &a, &b, &mut with_a, &mut with_b);
                for (k, row) in rows.iter().enumerate() {
                    let want = (dot_f32(Isa::SCALAR, row, &a), dot_f32(Isa::SCALAR, row, &b));
                    assert_eq!((with_a[k], with_b[k]), want, "{isa}, {n} elements");
                }
            }
        }
    }
}
