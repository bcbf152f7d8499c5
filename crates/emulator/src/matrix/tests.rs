//! Products against plain sums in f64, with operands placed by the manual's formulas for a lane's elements.

use super::{Half, Lanes, Square, f16_to_f32, f32_to_f16, ldmatrix, mma_m16n8k8_tf32, mma_m16n8k16, wgmma};

type Matrix<const ROWS: usize, const COLUMNS: usize> = [[f32; COLUMNS]; ROWS];

/// Numbers that look like noise, between -1 and 1.
struct Noise(u32);

impl Noise {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.0 >> 8) as f32 / (1 << 23) as f32 - 1.0
    }

    fn matrix<const ROWS: usize, const COLUMNS: usize>(&mut self) -> Matrix<ROWS, COLUMNS> {
        std::array::from_fn(|_| std::array::from_fn(|_| self.next()))
    }
}

fn bits_of(kind: Half, value: f32) -> u16 {
    match kind {
        Half::F16 => f32_to_f16(value),
        Half::Bf16 => half::bf16::from_f32(value).to_bits(),
    }
}

fn value_of(kind: Half, bits: u16) -> f32 {
    match kind {
        Half::F16 => f16_to_f32(bits),
        Half::Bf16 => half::bf16::from_bits(bits).to_f32(),
    }
}

/// The manual's tables for operands, each from a lane and the index i of an element there to its row and
/// column. For m16n8k16, of halves: groupID = lane / 4, threadID_in_group = lane % 4.
mod manual {
    pub(super) fn a_k16(lane: usize, i: usize) -> (usize, usize) {
        let row = if matches!(i, 0 | 1 | 4 | 5) { lane >> 2 } else { (lane >> 2) + 8 };
        let column = if i < 4 { (lane % 4) * 2 + (i & 1) } else { (lane % 4) * 2 + (i & 1) + 8 };
        (row, column)
    }

    pub(super) fn b_k16(lane: usize, i: usize) -> (usize, usize) {
        let row = if i < 2 { (lane % 4) * 2 + (i & 1) } else { (lane % 4) * 2 + (i & 1) + 8 };
        (row, lane >> 2)
    }

    pub(super) fn a_k8(lane: usize, i: usize) -> (usize, usize) {
        let row = if matches!(i, 0 | 2) { lane >> 2 } else { (lane >> 2) + 8 };
        (row, if matches!(i, 0 | 1) { lane % 4 } else { lane % 4 + 4 })
    }

    pub(super) fn b_k8(lane: usize, i: usize) -> (usize, usize) {
        (if i == 0 { lane % 4 } else { lane % 4 + 4 }, lane >> 2)
    }

    pub(super) fn c(lane: usize, i: usize) -> (usize, usize) {
        (if i < 2 { lane >> 2 } else { (lane >> 2) + 8 }, (lane % 4) * 2 + (i & 1))
    }
}

/// Registers, one number of 32 bits each.
fn words<const REGISTERS: usize>(number: impl Fn(usize, usize) -> f32) -> [Lanes; REGISTERS] {
    std::array::from_fn(|i| std::array::from_fn(|lane| number(lane, i).to_bits()))
}

/// Registers, two numbers of 16 bits each: element 2 r is the lower half of register r.
fn pairs<const REGISTERS: usize>(kind: Half, number: impl Fn(usize, usize) -> f32) -> [Lanes; REGISTERS] {
    let bits = |lane, i| bits_of(kind, number(lane, i)) as u32;
    std::array::from_fn(|r| std::array::from_fn(|lane| bits(lane, 2 * r) | bits(lane, 2 * r + 1) << 16))
}

fn of<const R: usize, const C: usize>(m: &Matrix<R, C>, (row, column): (usize, usize)) -> f32 {
    m[row][column]
}

/// Whether `d` is A B + C of these operands, but for the rounding of the sums.
#[track_caller]
fn check<const K: usize>(
    a: &Matrix<16, K>,
    b: &Matrix<K, 8>,
    c: &Matrix<16, 8>,
    d: &[Lanes; 4],
    round: impl Fn(f32) -> f32,
) {
    for lane in 0..32 {
        for (i, d) in d.iter().enumerate() {
            let (row, column) = manual::c(lane, i);
            let mut sum = c[row][column] as f64;
            for k in 0..K {
                sum += round(a[row][k]) as f64 * round(b[k][column]) as f64;
            }
            let found = f32::from_bits(d[lane]) as f64;
            // K roundings of sums that stay below K + 1.
            assert!(
                (found - sum).abs() < 16.0 * 16.0 * f32::EPSILON as f64,
                "({row}, {column}): {found}, not {sum}"
            );
        }
    }
}

const KINDS: [Half; 2] = [Half::F16, Half::Bf16];

#[test]
fn mma_of_halves() {
    for (kind, seed) in KINDS.into_iter().zip(1..) {
        let mut noise = Noise(seed);
        let (a, b, c) = (noise.matrix::<16, 16>(), noise.matrix::<16, 8>(), noise.matrix::<16, 8>());
        let a_registers: [Lanes; 4] = pairs(kind, |lane, i| of(&a, manual::a_k16(lane, i)));
        let b_registers: [Lanes; 2] = pairs(kind, |lane, i| of(&b, manual::b_k16(lane, i)));
        let c_registers: [Lanes; 4] = words(|lane, i| of(&c, manual::c(lane, i)));
        let d = mma_m16n8k16(kind, a_registers.each_ref(), b_registers.each_ref(), c_registers.each_ref());
        check(&a, &b, &c, &d, |v| value_of(kind, bits_of(kind, v)));
    }
}

#[test]
fn mma_of_tf32_leaves_out_the_last_bits() {
    let mut noise = Noise(3);
    let (a, b, c) = (noise.matrix::<16, 8>(), noise.matrix::<8, 8>(), noise.matrix::<16, 8>());
    let a_registers: [Lanes; 4] = words(|lane, i| of(&a, manual::a_k8(lane, i)));
    let b_registers: [Lanes; 2] = words(|lane, i| of(&b, manual::b_k8(lane, i)));
    let c_registers: [Lanes; 4] = words(|lane, i| of(&c, manual::c(lane, i)));
    let d = mma_m16n8k8_tf32(a_registers.each_ref(), b_registers.each_ref(), c_registers.each_ref());
    check(&a, &b, &c, &d, |v| f32::from_bits(v.to_bits() >> 13 << 13));
}

/// B of `wgmma`: by columns, as it lies in rows of 16 bytes.
fn columns<const N: usize>(kind: Half, b: &Matrix<16, N>) -> Vec<[[u8; 16]; 2]> {
    let bytes = |n: usize, k: usize| bits_of(kind, b[k][n]).to_le_bytes();
    (0..N).map(|n| [0, 8].map(|k| std::array::from_fn(|i| bytes(n, k + i / 2)[i % 2]))).collect()
}

fn check_wgmma<const N: usize>(kind: Half) {
    let mut noise = Noise(N as u32);
    let (a, b, c) = (noise.matrix::<16, 16>(), noise.matrix::<16, N>(), noise.matrix::<16, N>());
    let a_registers: [Lanes; 4] = pairs(kind, |lane, i| of(&a, manual::a_k16(lane, i)));
    // The manual: element i of D is in column 8 (i / 4) + (lane % 4) * 2 + (i & 1).
    let mut d: Vec<Lanes> = (0..N / 2)
        .map(|i| {
            std::array::from_fn(|lane| {
                c[lane / 4 + i % 4 / 2 * 8][8 * (i / 4) + (lane % 4) * 2 + (i & 1)].to_bits()
            })
        })
        .collect();
    let before = d.clone();
    let mut alone = d.clone();
    wgmma(kind, a_registers.each_ref(), &columns(kind, &b), &mut d, true);
    wgmma(kind, a_registers.each_ref(), &columns(kind, &b), &mut alone, false);
    for group in 0..N / 8 {
        let eight = |m: &[f32; N]| std::array::from_fn(|column| m[8 * group + column]);
        let (b, c) = (b.each_ref().map(eight), c.each_ref().map(eight));
        let b_registers: [Lanes; 2] = pairs(kind, |lane, i| of(&b, manual::b_k16(lane, i)));
        let registers = |d: &[Lanes]| d.as_chunks::<4>().0[group];
        let round = |v| value_of(kind, bits_of(kind, v));
        check(&a, &b, &c, &registers(&d), round);
        check(&a, &b, &[[0.0; 8]; 16], &registers(&alone), round);
        // The same bits, of however many columns there are.
        let from = registers(&before);
        assert_eq!(
            registers(&d),
            mma_m16n8k16(kind, a_registers.each_ref(), b_registers.each_ref(), from.each_ref())
        );
    }
}

#[test]
fn wgmma_of_all_widths() {
    for kind in KINDS {
        check_wgmma::<8>(kind);
        check_wgmma::<16>(kind);
        check_wgmma::<24>(kind);
        check_wgmma::<32>(kind);
        check_wgmma::<48>(kind);
        check_wgmma::<64>(kind);
        check_wgmma::<96>(kind);
        check_wgmma::<128>(kind);
        check_wgmma::<160>(kind);
    }
}

#[test]
#[should_panic(expected = "4 registers to 16 columns")]
fn wgmma_wants_all_of_its_sums() {
    wgmma(Half::F16, [&[0; 32]; 4], &[[[0; 16]; 2]; 16], &mut [[0; 32]; 4], true);
}

/// As kernels use it: four squares of a row-major A, and two of a row-major B exchanged.
#[test]
fn ldmatrix_makes_operands() {
    let kind = Half::F16;
    let mut noise = Noise(4);
    let (a, b) = (noise.matrix::<16, 16>(), noise.matrix::<16, 8>());
    let square = |number: &dyn Fn(usize, usize) -> f32| -> Square {
        std::array::from_fn(|row| {
            std::array::from_fn(|byte| bits_of(kind, number(row, byte / 2)).to_le_bytes()[byte % 2])
        })
    };
    let a_loaded: [Lanes; 4] = std::array::from_fn(|i| {
        ldmatrix(false, &square(&|row, column| a[row + i % 2 * 8][column + i / 2 * 8]))
    });
    assert_eq!(a_loaded, pairs(kind, |lane, i| of(&a, manual::a_k16(lane, i))));
    let b_loaded: [Lanes; 2] =
        std::array::from_fn(|i| ldmatrix(true, &square(&|row, column| b[row + i * 8][column])));
    assert_eq!(b_loaded, pairs(kind, |lane, i| of(&b, manual::b_k16(lane, i))));
}

#[test]
fn sums_go_in_one_order_and_what_is_no_number_has_the_same_bits() {
    // 2^24 + 1 - 2^24 is 0 or 1: what comes first counts.
    let (mut a, mut b) = ([[0.0; 16]; 16], [[0.0; 8]; 16]);
    a[0] = std::array::from_fn(|k| if k < 3 { 4096.0 } else { 1.0 });
    (b[0][0], b[1][0], b[2][0], b[3][0]) = (4096.0, 0.0, -4096.0, 1.0);
    (b[0][1], b[2][1], b[3][1]) = (4096.0, 1.0 / 4096.0, 0.0);
    b[4][1] = -4096.0;
    a[0][4] = 4096.0;
    b[5][2] = f32::INFINITY;
    a[1][5] = 0.0;
    let a_registers: [Lanes; 4] = pairs(Half::F16, |lane, i| of(&a, manual::a_k16(lane, i)));
    let b_registers: [Lanes; 2] = pairs(Half::F16, |lane, i| of(&b, manual::b_k16(lane, i)));
    let d = mma_m16n8k16(Half::F16, a_registers.each_ref(), b_registers.each_ref(), [&[0; 32]; 4]);
    assert_eq!((f32::from_bits(d[0][0]), f32::from_bits(d[1][0])), (1.0, 0.0));
    assert_eq!(f32::from_bits(d[0][1]), f32::INFINITY);
    // Row 1 of column 2: zero times infinity.
    assert_eq!(d[0][5], 0x7fff_ffff);
}
