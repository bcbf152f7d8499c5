//! What the linear kernels promise: the right numbers, the same bits on every instruction set, and bits of a row
//! that do not depend on its company.

use overdraft_cpu::linear::{
    Isa, Packed, QuantRows, WeightError, WeightView, dot_tile, dot_tile_float, pack,
};
use overdraft_cpu::pool::Pool;
use overdraft_formats::DType;
use std::ops::Range;

fn quantised() -> impl Iterator<Item = DType> {
    DType::all().filter(|d| d.is_quantised())
}

fn floats() -> impl Iterator<Item = DType> {
    DType::all().filter(|d| d.is_float())
}

/// A small generator of our own: the cases must not change with somebody else's.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// In -1..1, with one in eight forty times as large, as activations have it.
    fn float(&mut self) -> f32 {
        let v = (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0;
        if self.below(8) == 0 { 40.0 * v } else { v }
    }

    fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.float()).collect()
    }

    fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.next() as u8).collect()
    }

    /// Blocks of random codes with scales that a real file could have.
    fn weights(&mut self, dtype: DType, n: usize) -> Vec<u8> {
        let mut bytes = self.bytes(dtype.row_bytes(n).expect("whole blocks"));
        let scale_at: &[usize] = match dtype {
            DType::F32 => {
                return self.floats(n).iter().flat_map(|v| v.to_le_bytes()).collect();
            }
            DType::F16 => {
                return self.floats(n).iter().flat_map(|v| half::f16::from_f32(*v).to_le_bytes()).collect();
            }
            DType::BF16 => {
                return self.floats(n).iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect();
            }
            DType::Q4_1 | DType::Q5_1 | DType::Q4_K | DType::Q5_K => &[0, 2],
            DType::Q2_K => &[80, 82],
            DType::Q3_K => &[108],
            DType::Q6_K => &[208],
            DType::MXFP4 => &[],
            _ => &[0],
        };
        for block in bytes.chunks_exact_mut(dtype.block_bytes()) {
            for &at in scale_at {
                let scale = half::f16::from_f32(self.float() / 64.0);
                block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
            }
            if dtype == DType::MXFP4 {
                block[0] = 120 + self.below(8) as u8;
            }
        }
        bytes
    }
}

struct Case {
    dtype: DType,
    n_in: usize,
    n_out: usize,
    n_rows: usize,
    weights: Vec<u8>,
    x: Vec<f32>,
    quant: QuantRows,
}

impl Case {
    fn new(dtype: DType, n_in: usize, n_out: usize, n_rows: usize, weights: Vec<u8>, x: Vec<f32>) -> Self {
        let mut quant = QuantRows::with_capacity(n_rows, n_in);
        if dtype.is_quantised() {
            quant.quantise(Isa::SCALAR, &Pool::new(1), n_in, &x);
        }
        Self { dtype, n_in, n_out, n_rows, weights, x, quant }
    }

    fn random(random: &mut Random, dtype: DType, n_in: usize, n_out: usize, n_rows: usize) -> Self {
        let weights = random.weights(dtype, n_in * n_out);
        let x = random.floats(n_in * n_rows);
        Self::new(dtype, n_in, n_out, n_rows, weights, x)
    }

    fn weights(&self, isa: Isa) -> Weights<'_> {
        Weights::new(isa, self.dtype, self.n_in, &self.weights)
    }

    /// `[rows, outs]`
    fn tile(&self, w: &Weights<'_>, outs: Range<usize>, rows: Range<usize>) -> Vec<f32> {
        let mut tile = vec![f32::from_bits(0x7fc1_2345); outs.len() * rows.len()];
        match w {
            Weights::Float(isa, view) => dot_tile_float(*isa, view, outs, &self.x, rows, &mut tile),
            Weights::Packed(packed) => dot_tile(packed, outs, &self.quant, rows, &mut tile),
        }
        tile
    }

    fn all(&self, isa: Isa) -> Vec<f32> {
        self.tile(&self.weights(isa), 0..self.n_out, 0..self.n_rows)
    }
}

enum Weights<'a> {
    Float(Isa, WeightView<'a>),
    Packed(Packed),
}

impl<'a> Weights<'a> {
    fn new(isa: Isa, dtype: DType, n_in: usize, bytes: &'a [u8]) -> Self {
        let view = WeightView::new(dtype, n_in, bytes).expect("the case is whole");
        if dtype.is_float() { Self::Float(isa, view) } else { Self::Packed(packed(isa, view)) }
    }
}

fn packed(isa: Isa, view: WeightView<'_>) -> Packed {
    pack(isa, &Pool::new(1), &[vec![view]]).expect("memory for a test").remove(0)
}

/// Bit for bit, except that one NaN is as good as another.
fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
}

#[track_caller]
fn assert_same(got: &[f32], want: &[f32], case: &str) {
    assert_eq!(got.len(), want.len(), "{case}");
    if let Some(i) = (0..got.len()).find(|&i| !same(got[i], want[i])) {
        panic!("{case}: [{i}] is {:e}, not {:e}", got[i], want[i]);
    }
}

/// The activations the kernel sees, as the specification says them: `max|x| / 127`, half to even.
fn rounded(x: &[f32]) -> Vec<f64> {
    let mut out = Vec::new();
    for block in x.chunks(32) {
        let max = block.iter().fold(0f32, |m, v| m.max(v.abs()));
        let scale = f64::from(max / 127.0);
        out.extend(block.iter().map(|v| f64::from((v * (127.0 / max)).round_ties_even()) * scale));
    }
    out
}

#[test]
fn results_are_those_of_decoded_weights_in_double_precision() {
    let mut random = Random(1);
    for dtype in quantised().chain(floats()) {
        for n_in in [256, 512, 768, 1280].into_iter().chain((dtype.block_len() < 256).then_some(544)) {
            let case = Case::random(&mut random, dtype, n_in, 19, 6);
            let got = case.all(Isa::SCALAR);
            let row_bytes = case.weights.len() / case.n_out;
            for o in 0..case.n_out {
                let mut w = vec![0.0; n_in];
                dtype.decode_row(&case.weights[o * row_bytes..][..row_bytes], &mut w).expect("decodable");
                for r in 0..case.n_rows {
                    let x = &case.x[r * n_in..][..n_in];
                    let x: Vec<f64> =
                        if dtype.is_float() { x.iter().map(|&v| v.into()).collect() } else { rounded(x) };
                    let terms: Vec<f64> = w.iter().zip(&x).map(|(&w, x)| f64::from(w) * x).collect();
                    let (want, size) =
                        (terms.iter().sum::<f64>(), terms.iter().map(|t| t.abs()).sum::<f64>());
                    // Sums of a scale and a min cancel inside a weight, so `size` is a little small for them.
                    let bound = 16.0 * size * f64::from(f32::EPSILON);
                    let y = f64::from(got[r * case.n_out + o]);
                    assert!(
                        (y - want).abs() <= bound,
                        "{dtype} {n_in}: [{o}][{r}] {y} not {want} +- {bound:e}"
                    );
                }
            }
        }
    }
}

#[test]
fn every_instruction_set_gives_the_same_bits() {
    let mut random = Random(2);
    let isas: Vec<_> = Isa::available().collect();
    for dtype in quantised().chain(floats()) {
        let small = (dtype.block_len() <= 32).then_some(96);
        let odd = dtype.is_float().then_some(77);
        for n_in in [256, 512, 1280].into_iter().chain(small).chain(odd) {
            let few = [(1, 1), (16, 1), (19, 2), (35, 3), (16, 4), (33, 5)];
            // Around the rows and outputs of panels, and of their passes.
            let many = [(20, 16), (23, 41), (64, 27), (69, 70)];
            for (n_out, n_rows) in few.into_iter().chain(many) {
                let case = Case::random(&mut random, dtype, n_in, n_out, n_rows);
                let want = case.all(Isa::SCALAR);
                for &isa in &isas {
                    assert_same(
                        &case.all(isa),
                        &want,
                        &format!("{dtype} {n_out}x{n_in}, {n_rows} rows, {isa}"),
                    );
                }
            }
        }
    }
}

#[test]
fn rows_longer_than_any_buffer_are_rows_like_others() {
    let mut random = Random(8);
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::Q8_0, DType::Q6_K] {
        let case = Case::random(&mut random, dtype, 40_960, 3, 11);
        let want = case.all(Isa::SCALAR);
        for isa in Isa::available() {
            assert_same(&case.all(isa), &want, &format!("{dtype} {isa}"));
        }
    }
}

#[test]
fn a_row_gives_the_same_bits_alone_and_in_any_company() {
    let mut random = Random(3);
    let isas: Vec<_> = Isa::available().filter(|i| *i != Isa::SCALAR).collect();
    let (n_in, n_out) = (768, 37);
    for dtype in quantised().chain(floats()) {
        let case = Case::random(&mut random, dtype, n_in, n_out, 100);
        for &isa in &isas {
            // [row][out], each computed alone.
            let w = case.weights(isa);
            let alone: Vec<Vec<f32>> = (0..100).map(|r| case.tile(&w, 0..n_out, r..r + 1)).collect();
            let counts = (1..=64).chain([100]);
            for n_rows in counts {
                let start = random.below(101 - n_rows);
                let first = random.below(n_out);
                let outs = first..first + 1 + random.below(n_out - first);
                for (rows, outs) in [(0..n_rows, 0..n_out), (start..start + n_rows, outs)] {
                    let got = case.tile(&w, outs.clone(), rows.clone());
                    let want: Vec<f32> =
                        rows.clone().flat_map(|r| alone[r][outs.clone()].iter().copied()).collect();
                    assert_same(&got, &want, &format!("{dtype} {isa} rows {rows:?} outs {outs:?}"));
                }
            }
        }
    }
}

#[test]
fn any_bytes_are_weights() {
    let mut random = Random(4);
    for dtype in quantised().chain(floats()) {
        for fill in [None, Some(0x00), Some(0x80), Some(0xff), Some(0x7f)] {
            let (n_in, n_out, n_rows) = (512, 18, 27);
            let n_bytes = dtype.row_bytes(n_in * n_out).expect("whole blocks");
            let weights = fill.map_or_else(|| random.bytes(n_bytes), |byte| vec![byte; n_bytes]);
            let mut x = random.floats(n_in * n_rows);
            // A row of the largest quants, whose sums come nearest to any overflow, and one that alternates.
            x[..n_in].fill(-1.0);
            x[n_in..2 * n_in]
                .iter_mut()
                .enumerate()
                .for_each(|(i, v)| *v = if i % 2 == 0 { 1.0 } else { -1.0 });
            let case = Case::new(dtype, n_in, n_out, n_rows, weights, x);
            let want = case.all(Isa::SCALAR);
            for isa in Isa::available() {
                assert_same(&case.all(isa), &want, &format!("{dtype} of {fill:02x?}, {isa}"));
                assert_same(
                    &case.tile(&case.weights(isa), 3..18, 1..2),
                    &want[n_out..][3..18],
                    "one row of it",
                );
            }
        }
    }
}

#[test]
fn extreme_quants_do_not_saturate() {
    // Q8_0 with every quant -128 (no encoder writes it, any file may hold it) against quants of +-127.
    let n_in = 64;
    for (sign, want) in [(1.0, -128.0 * 127.0 * 64.0), (-1.0, 128.0 * 127.0 * 64.0)] {
        let block: Vec<u8> = half::f16::ONE.to_le_bytes().into_iter().chain([0x80; 32]).collect();
        let case = Case::new(DType::Q8_0, n_in, 20, 27, block.repeat(40), vec![sign * 127.0; n_in * 27]);
        for isa in Isa::available() {
            assert!(case.all(isa).iter().all(|&y| y == want), "{isa}, {sign}");
            assert!(
                case.tile(&case.weights(isa), 0..20, 4..5).iter().all(|&y| y == want),
                "{isa}, {sign}, one row"
            );
        }
    }
}

#[test]
fn a_broken_activation_breaks_its_own_row_and_no_other() {
    let mut random = Random(5);
    let (n_in, n_out, n_rows) = (512, 20, 18);
    for (dtype, bad) in quantised().chain(floats()).flat_map(|d| [(d, f32::NAN), (d, f32::INFINITY)]) {
        let mut case = Case::random(&mut random, dtype, n_in, n_out, n_rows);
        let whole = case.all(Isa::SCALAR);
        case.x[7 * n_in + 300] = bad;
        let case = Case::new(dtype, n_in, n_out, n_rows, case.weights, case.x);
        for isa in Isa::available() {
            for (i, (got, whole)) in case.all(isa).into_iter().zip(&whole).enumerate() {
                if i / n_out == 7 {
                    assert!(!got.is_finite(), "{dtype} {isa}: {got} hides {bad}");
                } else {
                    assert!(same(got, *whole), "{dtype} {isa}: row {} changed", i / n_out);
                }
            }
        }
    }
}

#[test]
fn weights_need_no_alignment() {
    let mut random = Random(6);
    for dtype in quantised().chain(floats()) {
        let case = Case::random(&mut random, dtype, 512, 17, 7);
        let want = case.all(Isa::SCALAR);
        for shift in [1, 2, 3, 7, 63] {
            let moved: Vec<u8> = vec![0xa5; shift].into_iter().chain(case.weights.iter().copied()).collect();
            for isa in Isa::available() {
                let tile = case.tile(&Weights::new(isa, dtype, 512, &moved[shift..]), 0..17, 0..7);
                assert_same(&tile, &want, &format!("{dtype} {isa} moved by {shift}"));
            }
        }
    }
}

#[test]
fn quantised_rows_are_the_same_from_every_instruction_set_and_thread() {
    let mut random = Random(7);
    let (n_in, n_rows) = (544, 37);
    let weights = random.weights(DType::Q5_1, n_in * 16);
    let view = WeightView::new(DType::Q5_1, n_in, &weights).expect("whole rows");
    let x = random.floats(n_in * n_rows);
    let pool = Pool::new(3);
    let mut want = vec![0.0; 16 * n_rows];
    let mut rows = QuantRows::with_capacity(n_rows, 2048);
    rows.quantise(Isa::SCALAR, &Pool::new(1), n_in, &x);
    dot_tile(&packed(Isa::SCALAR, view), 0..16, &rows, 0..n_rows, &mut want);
    for isa in Isa::available() {
        // Buffers with the bytes of another shape in them.
        rows.quantise(isa, &pool, 2048, &random.floats(2048 * 9));
        rows.quantise(isa, &pool, n_in, &x);
        let w = packed(isa, view);
        let mut got = vec![0.0; 16 * n_rows];
        dot_tile(&w, 0..16, &rows, 0..n_rows, &mut got);
        assert_same(&got, &want, &format!("{isa}, all rows"));
        for row in 0..n_rows {
            let mut got = [0.0; 16];
            dot_tile(&w, 0..16, &rows, row..row + 1, &mut got);
            assert_same(&got, &want[16 * row..][..16], &format!("{isa}, row {row} alone"));
        }
    }
}

#[test]
fn packed_rows_decode_to_the_bits_of_the_file() {
    let mut random = Random(9);
    for dtype in quantised() {
        for n_in in [256, 768].into_iter().chain((dtype.block_len() < 256).then_some(96)) {
            let row_bytes = dtype.row_bytes(n_in).expect("whole blocks");
            let any = random.bytes(5 * row_bytes);
            for bytes in [random.weights(dtype, n_in * 21), any] {
                let view = WeightView::new(dtype, n_in, &bytes).expect("whole rows");
                for isa in Isa::available() {
                    let w = packed(isa, view);
                    for (row, bytes) in bytes.chunks_exact(row_bytes).enumerate() {
                        let (mut got, mut want) = (vec![0.0; n_in], vec![1.0; n_in]);
                        w.decode_row(row, &mut got);
                        dtype.decode_row(bytes, &mut want).expect("decodable");
                        assert_same(&got, &want, &format!("{dtype} {isa}, row {row} of {n_in}"));
                    }
                }
            }
        }
    }
}

#[test]
fn parts_and_neighbours_pack_as_one_matrix_does() {
    let mut random = Random(10);
    let pool = Pool::new(2);
    for dtype in quantised() {
        let case = Case::random(&mut random, dtype, 256, 35, 3);
        let other = random.weights(dtype, 512 * 18);
        let row_bytes = dtype.row_bytes(256).expect("whole blocks");
        let want = case.all(Isa::SCALAR);
        for isa in Isa::available() {
            let part = |rows: Range<usize>| {
                let bytes = &case.weights[rows.start * row_bytes..rows.end * row_bytes];
                WeightView::new(dtype, 256, bytes).expect("whole rows")
            };
            let beside = WeightView::new(dtype, 512, &other).expect("whole rows");
            let all = [vec![beside], vec![part(0..7), part(7..14), part(14..35)], vec![beside]];
            let packed = pack(isa, &pool, &all).expect("memory for a test");
            let mut got = vec![0.0; want.len()];
            dot_tile(&packed[1], 0..35, &case.quant, 0..3, &mut got);
            assert_same(&got, &want, &format!("{dtype} {isa}"));
        }
    }
}

#[test]
#[rustfmt::skip]
fn bytes_that_are_no_weights_are_refused_by_name() {
    let refused = |dtype, n_in, n_bytes: usize| WeightView::new(dtype, n_in, &vec![0; n_bytes]).err();
    //                 type         n_in  bytes
    assert_eq!(refused(DType::I32,   32,  128), Some(WeightError::Type { dtype: DType::I32 }));
    assert_eq!(refused(DType::Q4_K,  100, 144), Some(WeightError::Blocks { dtype: DType::Q4_K, n_in: 100 }));
    assert_eq!(refused(DType::F32,   0,   0),   Some(WeightError::Blocks { dtype: DType::F32, n_in: 0 }));
    assert_eq!(refused(DType::Q8_0,  64,  100), Some(WeightError::Rows { dtype: DType::Q8_0, n_in: 64, bytes: 100, row_bytes: 68 }));
    assert_eq!(refused(DType::Q8_0,  64,  136), None);
    assert_eq!(refused(DType::BF16,  3,   6),   None);
}
