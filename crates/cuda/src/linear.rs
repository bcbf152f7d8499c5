//! What the linear ops ask of a set of kernels that keeps weights in a layout of its own. Matrices it does not take run
//! on `linear_simple`.

use std::sync::Arc;

use overdraft_plan::Matrix;

use crate::driver::{Device, KernelParams, Queue, Result};

/// Where kernels are launched.
#[derive(Clone, Copy)]
pub(crate) struct Gpu<'a> {
    pub(crate) device: &'a Arc<Device>,
    pub(crate) queue: &'a Queue,
}

impl Gpu<'_> {
    pub(crate) fn launch<P: KernelParams>(
        &self,
        (module, entry): (&'static str, &'static str),
        grid: [usize; 3],
        threads: u32,
        shared_bytes: usize,
        params: &P,
    ) -> Result<()> {
        let kernel = self.device.kernel(module, entry)?;
        self.queue.launch(&kernel, grid.map(|n| n as u32), threads, shared_bytes, params)
    }
}

/// A matrix that a set of kernels holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handle(pub(crate) usize);

/// Rows of a step: how many there can be, and the address of how many there are (a `u32`).
#[derive(Clone, Copy)]
pub(crate) struct Rows {
    pub(crate) bucket: usize,
    pub(crate) count: u64,
}

#[derive(Clone, Copy)]
pub(crate) struct Input {
    /// `f32 [bucket, cols]`
    pub(crate) x: u64,
    /// Of [`LinearKernels::make_image`].
    pub(crate) image: u64,
    pub(crate) cols: usize,
    pub(crate) rows: Rows,
    /// The image is of rows that a norm's weights have multiplied, not yet divided by their size.
    pub(crate) undivided: Option<Undivided>,
}

/// What a row is divided by: `sqrt(mean + eps)` of its squares, which lie at `squares` as sums of 128 columns each, `f32`.
#[derive(Clone, Copy)]
pub(crate) struct Undivided {
    pub(crate) squares: u64,
    pub(crate) eps: f32,
}

/// The rows of prompts of a step, which follow those that are written.
#[derive(Clone, Copy)]
pub(crate) struct PromptInput {
    /// `f32 [bucket, cols]`
    pub(crate) x: u64,
    /// Of [`LinearKernels::make_prompt_image`].
    pub(crate) image: u64,
    pub(crate) cols: usize,
    pub(crate) bucket: usize,
    /// Addresses of how many rows the step has, and how many of them are written (`u32`).
    pub(crate) count: u64,
    pub(crate) written: u64,
}

/// Where an op that makes rows of prompts writes their image itself; no tiles: nowhere.
#[derive(Clone, Copy, Default)]
pub(crate) struct PromptImage {
    pub(crate) tiles: u64,
    /// Of each row, `f32`.
    pub(crate) scales: u64,
    pub(crate) eights: u32,
}

/// One matrix of a launch and where its product goes. All parts of a launch share the input.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    pub(crate) weight: Handle,
    /// `f32 [rows of weight]`, or 0.
    pub(crate) bias: u64,
    /// `f32 [bucket, rows of weight]`
    pub(crate) out: u64,
}

#[derive(Clone, Copy)]
pub(crate) enum Epilogue {
    /// `out = x Wᵀ + bias`, each part its own.
    Store,
    /// `out += (x Wᵀ + bias) · σ(gate)`; one part; `gate` is `f32 [bucket]`, or 0 for none.
    Add { gate: u64, norm: Option<NextNorm> },
    /// Two parts, gate and up, of equal height: `parts[0].out = glu(g, u)`, as `glu` of `common.cuh`. Its image is made too, where
    /// [`LinearKernels::makes_image`] says so and `image` is not 0.
    Glu { kind: u32, alpha: f32, limit: f32, image: (u64, ImageShape) },
}

/// A norm of what a launch makes, all but the division: the image of `out · weight`, sums of squares as [`Undivided`] has them, and a
/// copy of `out` where `tap` is not 0.
#[derive(Clone, Copy)]
pub(crate) struct NextNorm {
    pub(crate) weight: u64,
    pub(crate) squares: u64,
    pub(crate) tap: u64,
    pub(crate) image: (u64, ImageShape),
}

/// `ImageShape` of `image.cuh`: where ops that make an input write its image themselves.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct ImageShape {
    pub(crate) n_blocks: u32,
    pub(crate) n_tiles: u32,
    pub(crate) group_tiles: u32,
}

/// A matrix in the kernels' layout, for others that find their tiles in it themselves.
#[derive(Clone, Copy)]
pub(crate) struct TileView {
    pub(crate) tiles: u64,
    /// What each output's sums are multiplied by.
    pub(crate) scales: u64,
    /// As `linear_params.cuh` numbers them.
    pub(crate) format: u32,
    /// Of the few that most files have.
    pub(crate) is_common: bool,
    pub(crate) stage_bytes: usize,
    pub(crate) n_stages: usize,
    pub(crate) n_tiles: usize,
}

/// A linear op over the written rows of a step.
pub(crate) struct Linear {
    pub(crate) input: Input,
    pub(crate) parts: Vec<Part>,
    pub(crate) epilogue: Epilogue,
}

/// Linear ops that one launch can hold.
pub(crate) const MAX_CHAIN: usize = 4;

pub(crate) trait LinearKernels: Send {
    fn takes(&self, matrix: &Matrix) -> bool;

    /// Bytes of a matrix that the kernels take, in their layout.
    fn matrix_bytes(&self, matrix: &Matrix) -> usize;

    /// Bytes that the kernels need beside matrices, whichever they are.
    fn work_bytes(&self) -> usize;

    /// Brings a matrix to the device in the kernels' layout.
    fn upload(&mut self, gpu: Gpu<'_>, matrix: &Matrix) -> Result<Handle>;

    fn view(&self, handle: Handle) -> TileView;

    /// Bytes of what [`Self::make_image`] writes.
    fn image_bytes(&self, bucket: usize, cols: usize) -> usize;

    fn image_shape(&self, bucket: usize, cols: usize) -> ImageShape;

    /// Whether a launch can write the image of what it makes.
    fn makes_image(&self, parts: &[Part], epilogue: &Epilogue) -> bool;

    /// Brings an input into the form the kernels read, once for all linears of it.
    fn make_image(&self, gpu: Gpu<'_>, input: &Input) -> Result<()>;

    /// Up to [`MAX_CHAIN`] ops. All but the last make the image that is the next one's input.
    fn launch(&self, gpu: Gpu<'_>, ops: &[Linear]) -> Result<()>;

    /// Bytes of what [`Self::make_prompt_image`] writes.
    fn prompt_image_bytes(&self, bucket: usize, cols: usize) -> usize;

    fn prompt_image(&self, input: &PromptInput) -> PromptImage;

    /// Brings the rows of prompts into the form their kernels read.
    fn make_prompt_image(&self, gpu: Gpu<'_>, input: &PromptInput) -> Result<()>;

    /// Products of the rows of prompts, and what becomes of them.
    fn launch_prompts(
        &self,
        gpu: Gpu<'_>,
        input: &PromptInput,
        parts: &[Part],
        epilogue: Epilogue,
    ) -> Result<()>;
}
