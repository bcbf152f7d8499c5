//! Ops that treat each row by itself.

use overdraft_plan::{Act, Choice, Op, RmsNorm, VectorId};

use super::{Cx, kernel_params, prompt_linear};
use crate::driver::Result;
use crate::linear::{ImageShape, PromptImage};
use crate::step_data::StepView;

/// Numbers of a row that `norm.cuh` keeps: `4 * KEPT_CHUNKS * NORM_THREADS`, and of `NARROW_NORM_THREADS`.
const MAX_NORM_CHUNKS: usize = 8192;
pub(super) const NARROW_NORM: usize = 4096;
/// Blocks of a row in `row_cluster.cuh`, where there are clusters, and threads of a block.
const RANKS: usize = 8;
pub(super) const ROW_THREADS: u32 = 512;
/// `MAX_XS` of `copies.cu`.
pub(crate) const MAX_XS: usize = 16;

kernel_params!(
    /// `Angles` of `angles.cuh`.
    AnglesParams {
        inv_freq: u64,
        out: u64,
        magnitude: f32,
        n: u32,
    }
);
kernel_params!(Embed {
    step: StepView,
    table: u64,
    row_bytes: u64,
    out: u64,
    dtype: u32,
    width: u32,
    blocks: u32,
    pad: u32,
    angles: AnglesParams,
});
kernel_params!(Norm {
    n_rows: u64,
    x: u64,
    weight: u64,
    out: u64,
    tap: u64,
    image: u64,
    prompt_image: u64,
    prompt_scales: u64,
    written: u64,
    eps: f32,
    width: u32,
    shape: ImageShape,
    eights: u32,
});
kernel_params!(GatedNorm {
    n_rows: u64,
    x: u64,
    gate: u64,
    weight: u64,
    out: u64,
    eps: f32,
    heads: u32,
    head_dim: u32,
    pad: u32,
});
kernel_params!(Select { step: StepView, x: u64, out: u64, width: u32, pad: u32 });
kernel_params!(LoadTaps {
    step: StepView,
    taps: u64,
    out: u64,
    width: u32,
    blocks: u32,
    angles: AnglesParams,
});
kernel_params!(Concat {
    n_rows: u64,
    out: u64,
    n: u32,
    width: u32,
    xs: [u64; MAX_XS],
    widths: [u32; MAX_XS]
});
kernel_params!(AnglesAlone { step: StepView, angles: AnglesParams });
kernel_params!(TopTokens { n_rows: u64, logits: u64, choices: u64, vocab: u32, k: u32 });

fn rows(cx: &Cx<'_>, act: Act) -> [usize; 3] {
    [cx.capacity(act) as usize, 1, 1]
}

/// Several blocks a row, where one would be at it for long; the more rows, the fewer.
fn wide_rows(cx: &Cx<'_>, act: Act) -> [usize; 3] {
    let blocks = cx.width(act).div_ceil(1024).min(64 / cx.capacity(act) as usize + 1);
    [cx.capacity(act) as usize, blocks, 1]
}

/// Rows of embeddings or of taps, the first of `ops`, and beside them angles, if those are next: both are made of the step's data
/// alone. Returns how many ops that was, none where they begin with another.
pub(super) fn first_rows(cx: &Cx<'_>, ops: &[Op]) -> Result<usize> {
    let [Op::Embed { out, .. } | Op::LoadTaps { out }, behind @ ..] = ops else { return Ok(0) };
    let angles = match behind.first() {
        Some(Op::Angles { inv_freq, magnitude, out }) => Some(angles_params(cx, *inv_freq, *magnitude, *out)),
        _ => None,
    };
    let n_ops = 1 + usize::from(angles.is_some());
    ops[..n_ops].iter().for_each(|op| cx.forget_images(op));
    let [rows, blocks, _] = wide_rows(cx, *out);
    // A block more for the angles.
    let grid = [rows, blocks + n_ops - 1, 1];
    let (step, blocks, angles) = (cx.step, blocks as u32, angles.unwrap_or(NO_ANGLES));
    if let Op::Embed { table, out } = ops[0] {
        let raw = cx.weights.raw(table);
        let params = Embed {
            step,
            table: raw.data,
            row_bytes: raw.row_bytes,
            out: cx.act(out),
            dtype: raw.dtype,
            width: cx.width(out) as u32,
            blocks,
            pad: 0,
            angles,
        };
        cx.launch(("embed", "embed"), grid, 256, 0, &params)?;
    } else {
        let (taps, width) = (cx.state.taps.ptr(), cx.state.tap_width as u32);
        let params = LoadTaps { step, taps, out: cx.act(*out), width, blocks, angles };
        cx.launch(("copies", "load_taps"), grid, 256, 0, &params)?;
    }
    Ok(n_ops)
}

pub(super) fn norm(
    cx: &Cx<'_>,
    x: Act,
    norm: RmsNorm,
    out: Act,
    tap: Option<Act>,
    behind: &[Op],
) -> Result<()> {
    let (image, of_prompts) = if makes_images(cx, x) {
        (cx.image_to_make(out), prompt_linear::image_for_reader(cx, out, behind))
    } else {
        Default::default()
    };
    norm_and_image(cx, x, norm, (Some(out), tap), image, of_prompts)
}

/// Wider rows, and such as are no whole chunks, get their images from kernels of their own.
pub(super) fn makes_images(cx: &Cx<'_>, x: Act) -> bool {
    cx.width(x).is_multiple_of(4) && cx.width(x) <= MAX_NORM_CHUNKS
}

/// Where rows have an image, or rows of prompts theirs, `out` may be left out.
pub(super) fn norm_and_image(
    cx: &Cx<'_>,
    x: Act,
    norm: RmsNorm,
    (out, tap): (Option<Act>, Option<Act>),
    (image, shape): (u64, ImageShape),
    of_prompts: PromptImage,
) -> Result<()> {
    let params = norm_params(cx, x, norm, (out, tap), (image, shape), of_prompts);
    let is_narrow = makes_images(cx, x) && cx.width(x) <= NARROW_NORM;
    let (kernel, threads) = if is_narrow { ("rms_norm_narrow", 256) } else { ("rms_norm", 512) };
    cx.launch(("norm", kernel), rows(cx, x), threads, 0, &params)
}

pub(super) fn norm_params(
    cx: &Cx<'_>,
    x: Act,
    norm: RmsNorm,
    (out, tap): (Option<Act>, Option<Act>),
    (image, shape): (u64, ImageShape),
    of_prompts: PromptImage,
) -> Norm {
    Norm {
        n_rows: cx.count(x),
        x: cx.act(x),
        weight: cx.weights.vector(norm.weight),
        out: cx.opt_act(out),
        tap: cx.opt_act(tap),
        image,
        prompt_image: of_prompts.tiles,
        prompt_scales: of_prompts.scales,
        written: cx.step.written(),
        eps: norm.eps,
        width: cx.width(x) as u32,
        shape,
        eights: of_prompts.eights,
    }
}

pub(super) fn gated_norm(
    cx: &Cx<'_>,
    x: Act,
    gate: Act,
    norm: RmsNorm,
    head_dim: usize,
    out: Act,
) -> Result<()> {
    let heads = cx.width(x) / head_dim;
    let params = GatedNorm {
        n_rows: cx.count(x),
        x: cx.act(x),
        gate: cx.act(gate),
        weight: cx.weights.vector(norm.weight),
        out: cx.act(out),
        eps: norm.eps,
        heads: heads as u32,
        head_dim: head_dim as u32,
        pad: 0,
    };
    cx.launch(("norm", "gated_norm"), [cx.capacity(x) as usize, heads.div_ceil(4), 1], 128, 0, &params)
}

pub(super) fn select(cx: &Cx<'_>, x: Act, out: Act) -> Result<()> {
    let params =
        Select { step: cx.step, x: cx.act(x), out: cx.act(out), width: cx.width(out) as u32, pad: 0 };
    cx.launch(("copies", "select_rows"), wide_rows(cx, out), 256, 0, &params)
}

pub(super) fn concat(cx: &Cx<'_>, parts: &[Act], out: Act) -> Result<()> {
    let (mut xs, mut widths) = ([0; MAX_XS], [0; MAX_XS]);
    for ((x, width), act) in xs.iter_mut().zip(&mut widths).zip(parts) {
        (*x, *width) = (cx.act(*act), cx.width(*act) as u32);
    }
    let (n, width) = (parts.len() as u32, cx.width(out) as u32);
    let params = Concat { n_rows: cx.count(out), out: cx.act(out), n, width, xs, widths };
    cx.launch(("copies", "concat"), wide_rows(cx, out), 256, 0, &params)
}

const NO_ANGLES: AnglesParams = AnglesParams { inv_freq: 0, out: 0, magnitude: 0.0, n: 0 };

fn angles_params(cx: &Cx<'_>, inv_freq: VectorId, magnitude: f32, out: Act) -> AnglesParams {
    let n = cx.width(out) as u32 / 2;
    AnglesParams { inv_freq: cx.weights.vector(inv_freq), out: cx.act(out), magnitude, n }
}

/// Those that are not made beside other rows.
pub(super) fn angles(cx: &Cx<'_>, inv_freq: VectorId, magnitude: f32, out: Act) -> Result<()> {
    let params = AnglesAlone { step: cx.step, angles: angles_params(cx, inv_freq, magnitude, out) };
    cx.launch(("copies", "angles"), rows(cx, out), 128, 0, &params)
}

pub(super) fn top_tokens(cx: &Cx<'_>, logits: Act, choice: Choice) -> Result<()> {
    let params = TopTokens {
        n_rows: cx.count(logits),
        logits: cx.act(logits),
        choices: cx.choice(choice),
        vocab: cx.width(logits) as u32,
        k: cx.k(choice) as u32,
    };
    cx.launch(("top_tokens", "top_tokens"), row_blocks(cx, logits), ROW_THREADS, 0, &params)
}

/// The grid of a kernel that reads rows of logits by clusters.
pub(super) fn row_blocks(cx: &Cx<'_>, logits: Act) -> [usize; 3] {
    let n_blocks = if cx.gpu.device.sm >= 90 { RANKS } else { 1 };
    [n_blocks * cx.capacity(logits) as usize, 1, 1]
}
