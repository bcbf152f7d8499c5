//! Speed of the linear kernels on one thread: weight bytes per second at 1 row, multiply-adds at more.
//!
//!     cargo run --release -p overdraft-cpu --example dot_speed [TYPE ...]
//!
//! The weights (64 MiB, or KIB from the environment) do not fit the caches, as in a real model; best of 25 passes. Then,
//! by turns: so many rows at once, as panels where those are thought worth it, against the same rows eight at a time.
#![allow(clippy::print_stdout, reason = "a program for people")]

use overdraft_cpu::linear::{Isa, QuantRows, WeightView, dot_tile, dot_tile_float, pack};
use overdraft_cpu::machine;
use overdraft_cpu::pool::Pool;
use overdraft_formats::DType;
use std::time::Instant;

const N_IN: usize = 2048;
/// Weight rows a task takes at a time.
const OUTS: usize = 64;
/// The same in turns: two panels.
const TURN_OUTS: usize = 96;

fn main() {
    let asked: Vec<String> = std::env::args().skip(1).map(|a| a.to_uppercase()).collect();
    let wanted = |d: &DType| {
        if asked.is_empty() {
            [DType::Q8_0, DType::Q4_K, DType::Q6_K, DType::F16].contains(d)
        } else {
            WeightView::supports(*d) && asked.iter().any(|a| a == d.name() || a == "ALL")
        }
    };
    let read = machine::read_bandwidth(1).expect("memory to read");
    println!("one thread reads {:.1} GB/s", read / 1e9);
    for isa in Isa::available() {
        println!("and has {:.1} G int8 multiply-adds/s with {isa}", machine::int8_peak(1, isa) / 1e9);
    }
    println!();
    println!("| type | isa | 1 row GB/s | 1 row | 2 | 4 | 8 | 16 | 256 rows, G multiply-adds/s |");
    println!("|---|---|---|---|---|---|---|---|---|");
    for dtype in DType::all().filter(wanted) {
        for isa in Isa::available() {
            measure(dtype, isa);
        }
    }
}

fn measure(dtype: DType, isa: Isa) {
    let row_bytes = dtype.row_bytes(N_IN).expect("2048 is a multiple of every block");
    let kib = std::env::var("KIB").ok().and_then(|k| k.parse().ok()).unwrap_or(64 << 10);
    let n_out = ((kib << 10) / row_bytes / (3 * OUTS)).max(1) * 3 * OUTS;
    // Random codes under scales of zero: subnormal or infinite numbers would be slower than a real file's.
    let mut seed = 1u32;
    let mut weights: Vec<u8> = Vec::with_capacity(n_out * row_bytes);
    weights.resize_with(n_out * row_bytes, || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 24) as u8 & if dtype.is_float() { 0x3b } else { 0xff }
    });
    for block in weights.chunks_exact_mut(dtype.block_bytes()).filter(|_| dtype.is_quantised()) {
        let halves: &[usize] = match dtype {
            DType::Q2_K => &[80, 82],
            DType::Q3_K => &[108],
            DType::Q6_K => &[208],
            DType::Q8_0 | DType::Q4_0 | DType::Q5_0 | DType::IQ4_NL | DType::IQ4_XS => &[0],
            DType::MXFP4 => &[],
            _ => &[0, 2],
        };
        halves.iter().for_each(|&at| block[at..at + 2].copy_from_slice(&[0x00, 0x2c]));
    }
    let view = WeightView::new(dtype, N_IN, &weights).expect("whole rows");
    let packed = dtype.is_quantised().then(|| {
        let mut best = f64::MAX;
        let mut packed = Vec::new();
        for _ in 0..5 {
            let start = Instant::now();
            packed = pack(isa, &Pool::new(1), &[vec![view]]).expect("memory");
            best = best.min(start.elapsed().as_secs_f64());
        }
        println!("{dtype} packed at {:.2} GB/s", weights.len() as f64 / best / 1e9);
        packed.remove(0)
    });
    let x: Vec<f32> = (0..256 * N_IN).map(|i| ((i * 7919) % 1009) as f32 / 500.0 - 1.0).collect();
    let mut quant = QuantRows::with_capacity(256, N_IN);
    quant.quantise(isa, &Pool::new(1), N_IN, &x);
    let mut tile = vec![0.0; OUTS.max(TURN_OUTS) * 256];
    let mut seconds = |n_rows: usize| {
        // Short passes, many times: the machine may be shared.
        let n_out = (200_000_000 / (n_rows * N_IN) / OUTS * OUTS).clamp(OUTS, n_out);
        let mut best = f64::MAX;
        for _ in 0..if isa == Isa::SCALAR { 3 } else { 25 } {
            let start = Instant::now();
            for first in (0..n_out).step_by(OUTS) {
                match &packed {
                    Some(w) => dot_tile(w, first..first + OUTS, &quant, 0..n_rows, &mut tile),
                    None => dot_tile_float(isa, &view, first..first + OUTS, &x, 0..n_rows, &mut tile),
                }
            }
            best = best.min(start.elapsed().as_secs_f64());
        }
        best / n_out as f64
    };
    let per_out: Vec<(usize, f64)> = [1, 2, 4, 8, 16, 256].map(|n| (n, seconds(n))).to_vec();
    print!("| {dtype} | {isa} | {:.1} |", row_bytes as f64 / per_out[0].1 / 1e9);
    for (n_rows, seconds) in per_out {
        print!(" {:.1} |", (n_rows * N_IN) as f64 / seconds / 1e9);
    }
    println!();
    let Some(w) = packed.filter(|_| isa != Isa::SCALAR) else { return };
    for n_rows in [16, 32, 64] {
        let n_out = n_out.min(40 * TURN_OUTS);
        let mut pass = |at_once: usize| {
            let start = Instant::now();
            for first in (0..n_out).step_by(TURN_OUTS) {
                for row in (0..n_rows).step_by(at_once) {
                    dot_tile(&w, first..first + TURN_OUTS, &quant, row..row + at_once, &mut tile);
                }
            }
            start.elapsed().as_secs_f64()
        };
        let mut ratios: Vec<f64> = (0..25).map(|_| pass(8) / pass(n_rows)).collect();
        ratios.sort_by(f64::total_cmp);
        println!(
            "{dtype} {isa}, {n_rows} rows at once: {:.2} times as fast as by eight ({:.2}..{:.2})",
            ratios[12], ratios[6], ratios[18]
        );
    }
}
