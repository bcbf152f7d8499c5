//! How the codes of 16 weight rows lie side by side, and how a kernel gets them out.
//!
//! A *step* is four elements of each of 16 rows: 64 bytes when decoded, one vector of AVX-512, rows in the 32-bit lanes.
//! A block of 32 elements has 8 steps. Its codes are kept in lines of 64 bytes: bytes as they are, smaller codes cut
//! into planes of 4, 2 and 1 bits, a line of which holds 2, 4 or 8 steps. So a step is decoded by a load, a shift and
//! a mask for each plane, at whatever width the vectors have, and no bit is stored that the file does not have.

use super::kernel::Simd;
use overdraft_formats::quant::{IQ4_VALUES, MXFP4_VALUES};

/// Weight rows side by side: the 32-bit lanes of the widest vector.
pub(crate) const OUTS: usize = 16;
/// Elements that share a scale of the activations.
pub(crate) const BLOCK: usize = 32;
/// Steps of a block.
pub(crate) const STEPS: usize = BLOCK / 4;
/// Bytes of a line.
pub(crate) const LINE: usize = 4 * OUTS;

/// The codes of one type. Bytes of a line are `4 * row + element % 4`.
pub(crate) trait Codes: Copy {
    /// What a kernel multiplies is below `1 << BITS`; 8 means the full range, unsigned with offset 128 or signed as the
    /// instruction set wants it.
    const BITS: u32;
    /// Lines of a block.
    const LINES: usize;
    /// A step takes two instructions after its load at most, so few rows make up for decoding it again.
    const CHEAP: bool;

    /// Lays the codes of one block of 16 rows into its lines. Full-range bytes become unsigned if `unsigned`.
    fn put(codes: &[[u8; BLOCK]; OUTS], lines: &mut [[u8; LINE]], unsigned: bool);

    /// What the kernel multiplies for byte `byte` of a step.
    fn get(lines: &[[u8; LINE]], step: usize, byte: usize, unsigned: bool) -> i32;

    /// The step as the kernel multiplies it.
    ///
    /// # Safety
    /// The CPU has the instruction set of `S`; `LINES` lines from `p`, less the bytes before its lanes, can be read.
    unsafe fn step<S: Simd>(p: *const u8, step: usize) -> S::B;
}

/// Full-range bytes.
#[derive(Clone, Copy)]
pub(crate) struct Bytes;

impl Codes for Bytes {
    const BITS: u32 = 8;
    const LINES: usize = STEPS;
    const CHEAP: bool = true;

    #[inline(always)]
    fn put(codes: &[[u8; BLOCK]; OUTS], lines: &mut [[u8; LINE]], unsigned: bool) {
        let flip = if unsigned { 0x8080_8080 } else { 0 };
        for (row, codes) in codes.iter().enumerate() {
            for (line, four) in lines.iter_mut().zip(codes.as_chunks::<4>().0) {
                let word = u32::from_le_bytes(*four) ^ flip;
                line[4 * row..4 * row + 4].copy_from_slice(&word.to_le_bytes());
            }
        }
    }

    fn get(lines: &[[u8; LINE]], step: usize, byte: usize, unsigned: bool) -> i32 {
        let code = lines[step][byte];
        if unsigned { i32::from(code) } else { i32::from(code as i8) }
    }

    #[inline(always)]
    unsafe fn step<S: Simd>(p: *const u8, step: usize) -> S::B {
        // SAFETY: the caller's promise.
        unsafe { S::load_b(p.add(step * LINE)) }
    }
}

/// Small codes in planes: four bits, then two, then one, lowest first.
#[derive(Clone, Copy)]
pub(crate) struct Planes<const FOUR: bool, const TWO: bool, const ONE: bool>;

/// A plane's part of a step: its line, the lowest bit there, the lowest bit of the code, and how many bits.
struct Field {
    line: usize,
    from: u32,
    to: u32,
    width: u32,
}

impl<const FOUR: bool, const TWO: bool, const ONE: bool> Planes<FOUR, TWO, ONE> {
    const FOURS: usize = if FOUR { 4 } else { 0 };
    const TWOS: usize = if TWO { 2 } else { 0 };

    #[inline(always)]
    const fn four(step: usize) -> Field {
        Field { line: step % 4, from: 4 * (step as u32 / 4), to: 0, width: 4 }
    }
    #[inline(always)]
    const fn two(step: usize) -> Field {
        Field { line: Self::FOURS + step / 4, from: 2 * (step as u32 % 4), to: Self::FOURS as u32, width: 2 }
    }
    #[inline(always)]
    const fn one(step: usize) -> Field {
        let to = (Self::FOURS + Self::TWOS) as u32;
        Field { line: Self::FOURS + Self::TWOS, from: step as u32, to, width: 1 }
    }
}

impl<const FOUR: bool, const TWO: bool, const ONE: bool> Codes for Planes<FOUR, TWO, ONE> {
    const BITS: u32 = (Self::FOURS + Self::TWOS) as u32 + ONE as u32;
    const LINES: usize = Self::FOURS + Self::TWOS + ONE as usize;
    const CHEAP: bool = FOUR as u32 + TWO as u32 + ONE as u32 == 1;

    #[inline(always)]
    fn put(codes: &[[u8; BLOCK]; OUTS], lines: &mut [[u8; LINE]], _: bool) {
        for (row, codes) in codes.iter().enumerate() {
            // Four codes at a time, as a kernel will take them out.
            let step: [u32; STEPS] = std::array::from_fn(|s| u32::from_le_bytes(codes.as_chunks().0[s]));
            let part =
                |s: usize, f: Field| (step[s] >> f.to & (0x0101_0101 * ((1 << f.width) - 1))) << f.from;
            let mut put = |line: usize, word: u32| {
                lines[line][4 * row..4 * row + 4].copy_from_slice(&word.to_le_bytes());
            };
            for line in 0..Self::FOURS {
                put(line, part(line, Self::four(line)) | part(line + 4, Self::four(line + 4)));
            }
            for line in 0..Self::TWOS {
                let word = (4 * line..4 * line + 4).fold(0, |word, s| word | part(s, Self::two(s)));
                put(Self::FOURS + line, word);
            }
            if ONE {
                let word = (0..STEPS).fold(0, |word, s| word | part(s, Self::one(s)));
                put(Self::FOURS + Self::TWOS, word);
            }
        }
    }

    fn get(lines: &[[u8; LINE]], step: usize, byte: usize, _: bool) -> i32 {
        let part = |f: Field| (lines[f.line][byte] >> f.from & ((1 << f.width) - 1)) << f.to;
        let mut code = if FOUR { part(Self::four(step)) } else { part(Self::two(step)) };
        if FOUR && TWO {
            code |= part(Self::two(step));
        }
        if ONE {
            code |= part(Self::one(step));
        }
        i32::from(code)
    }

    #[inline(always)]
    unsafe fn step<S: Simd>(p: *const u8, step: usize) -> S::B {
        // SAFETY: the caller's promise.
        unsafe {
            let get = |f: Field| S::field(S::load_b(p.add(f.line * LINE)), f.from, f.to, f.width);
            let mut code = if FOUR { get(Self::four(step)) } else { get(Self::two(step)) };
            if FOUR && TWO {
                code = S::or(code, get(Self::two(step)));
            }
            if ONE {
                code = S::or(code, get(Self::one(step)));
            }
            code
        }
    }
}

/// Four-bit codes that stand for the values of a table.
#[derive(Clone, Copy)]
pub(crate) struct Table<T>(std::marker::PhantomData<T>);

pub(crate) trait Values: Copy {
    /// As of [`Codes`]: with fewer than 8, `1 << (BITS - 1)` is added to a value to make it unsigned.
    const BITS: u32;
    const VALUES: [i8; 16];
}

#[derive(Clone, Copy)]
pub(crate) struct Iq4;
impl Values for Iq4 {
    const BITS: u32 = 8;
    const VALUES: [i8; 16] = IQ4_VALUES;
}

/// Twice the values, which `mxfp4_scale` makes up for.
#[derive(Clone, Copy)]
pub(crate) struct Mxfp4;
impl Values for Mxfp4 {
    const BITS: u32 = 5;
    const VALUES: [i8; 16] = MXFP4_VALUES;
}

type Nibbles = Planes<true, false, false>;

impl<T: Values> Table<T> {
    #[inline(always)]
    const fn codes(unsigned: bool) -> [u8; 16] {
        let add = if T::BITS < 8 {
            1 << (T::BITS - 1)
        } else if unsigned {
            128
        } else {
            0
        };
        let mut codes = [0; 16];
        let mut i = 0;
        while i < 16 {
            codes[i] = (T::VALUES[i] as u8).wrapping_add(add);
            i += 1;
        }
        codes
    }
}

impl<T: Values> Codes for Table<T> {
    const BITS: u32 = T::BITS;
    const LINES: usize = Nibbles::LINES;
    const CHEAP: bool = false;

    #[inline(always)]
    fn put(codes: &[[u8; BLOCK]; OUTS], lines: &mut [[u8; LINE]], unsigned: bool) {
        Nibbles::put(codes, lines, unsigned);
    }

    fn get(lines: &[[u8; LINE]], step: usize, byte: usize, unsigned: bool) -> i32 {
        let code = Self::codes(unsigned)[Nibbles::get(lines, step, byte, unsigned) as usize];
        if unsigned { i32::from(code) } else { i32::from(code as i8) }
    }

    #[inline(always)]
    unsafe fn step<S: Simd>(p: *const u8, step: usize) -> S::B {
        // SAFETY: the caller's promise.
        unsafe { S::look_up(&const { Self::codes(S::UNSIGNED) }, Nibbles::step::<S>(p, step)) }
    }
}
