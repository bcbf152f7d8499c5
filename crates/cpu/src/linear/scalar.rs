//! The definition of the quantised product in plain Rust. Every other path is tested against it, bit for bit.

use super::activations::XBlock;
use super::codes::BLOCK;
use super::format::Format;
use super::kernel::Job;
use super::packed::Block;

pub(crate) fn tile<F: Format>(job: Job<'_>) {
    let n_outs = job.outs.len();
    for (o, out) in job.outs.enumerate() {
        let sums = job.tile.iter_mut().skip(o).step_by(n_outs);
        for (row, sum) in job.rows.clone().zip(sums) {
            *sum = 0.0;
            for (b, x) in job.x.row(row).iter().enumerate() {
                *sum = add_block::<F>(&job.w.block::<F>(out, b), x, *sum);
            }
        }
    }
}

fn add_block<F: Format>(w: &Block, x: &XBlock, mut acc: f32) -> f32 {
    let len = BLOCK / F::GROUPS;
    for (group, (codes, quants)) in w.codes.chunks(len).zip(x.quants.chunks(len)).enumerate() {
        let dot: i32 = codes.iter().zip(quants).map(|(&code, &q)| code * i32::from(q)).sum();
        acc = (dot as f32).mul_add(w.scale[group] * x.scale, acc);
        if F::MIN {
            let sum: i32 = quants.iter().map(|&q| i32::from(q)).sum();
            acc = w.min[group].mul_add(x.scale * sum as f32, acc);
        }
    }
    acc
}
