//! Linear ops on tensor cores: weights as tiles, inputs as images, launches of `kernels/linear.cuh` and `linear_chain.cuh`.

mod blocks;
mod chain;
mod deal;
mod ends;
mod floats;
mod launch;
mod layout;
mod pack;
mod planes;
mod prompt;
mod scales;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod unpack;

use std::cell::RefCell;

use overdraft_plan::Matrix;

use crate::driver::{CudaError, Device, DeviceBuffer, Range, Result, device_bytes};
use crate::linear::{
    Epilogue, Gpu, Handle, ImageShape, Input, Linear, LinearKernels, Part, PromptImage, PromptInput, TileView,
};
use deal::{Lists, PLACES, Product, Weights, range_of};
use launch::{ImageParams, MAX_PARTS, PARTIAL_BYTES, Plan};
use layout::Format;
pub(crate) use layout::{CELL_COLS, MXFP4, TILE_OUTPUTS};

/// Of a cell of 8 rows and 128 columns (`kernels/image.cuh`), with what float weights read besides.
const CELL_BYTES: usize = launch::CELL_BYTES + launch::REST_BYTES;
/// What a stage of weights meets of 8 rows: two cells, or of float weights one and what is besides, which is no more.
pub(crate) const STAGE_INPUT_BYTES: usize = 2 * launch::CELL_BYTES;

/// A matrix on the device.
struct Tiled {
    tiles: DeviceBuffer,
    scales: DeviceBuffer,
    format: Format,
    rows: usize,
    cols: usize,
}

pub(crate) struct Tiles {
    matrices: Vec<Tiled>,
    /// Sums that blocks leave for each other; made with the first matrix.
    partials: Option<DeviceBuffer>,
    /// What blocks of a chain tell each other, likewise.
    ready: Option<DeviceBuffer>,
    dealt: RefCell<Vec<Dealt>>,
    n_blocks: usize,
    space: launch::Space,
    /// Tiles of 8 rows to a launch.
    group_tiles: usize,
    /// Of prompts.
    cut: prompt::Cut,
}

impl Tiles {
    pub(crate) fn new(device: &Device) -> Self {
        let space = launch::Space::new(device);
        let group_tiles = launch::group_tiles(space);
        let n_blocks = device.n_multiprocessors.min(launch::MAX_BLOCKS);
        Self {
            matrices: Vec::new(),
            partials: None,
            ready: None,
            dealt: RefCell::default(),
            n_blocks,
            space,
            group_tiles,
            cut: prompt::Cut::new(device),
        }
    }

    fn partial_bytes(&self) -> usize {
        PLACES * self.n_blocks * PARTIAL_BYTES
    }

    fn weights(&self, part: &Part) -> Weights {
        let m = &self.matrices[part.weight.0];
        Weights {
            tiles: m.tiles.ptr(),
            scales: m.scales.ptr(),
            bias: part.bias,
            format: m.format,
            rows: m.rows,
            cols: m.cols,
        }
    }

    /// Gate and up of one type, whose tiles meet in a block.
    fn is_pair(&self, gate: &Part, up: &Part) -> bool {
        let format = |part: &Part| self.matrices[part.weight.0].format;
        format(gate) == format(up)
    }

    /// A launch but for its rows, and where its weights lie.
    fn plan(
        &self,
        gpu: Gpu<'_>,
        parts: &[Part],
        products: &[Product],
        epilogue: launch::Epilogue,
    ) -> Result<(Plan, Range)> {
        let key: Vec<Handle> = parts.iter().map(|part| part.weight).collect();
        let mut dealt = self.dealt.borrow_mut();
        let at = match dealt.iter().position(|d| d.matrices == key && d.n_products == products.len()) {
            Some(at) => at,
            None => {
                dealt.push(Dealt::new(gpu, key, products, self.n_blocks)?);
                dealt.len() - 1
            }
        };
        let Dealt { lists, on_device, weights, .. } = &dealt[at];
        let partials = self.partials.as_ref().map_or(0, DeviceBuffer::ptr);
        Ok((Plan::new(products, epilogue, lists, on_device.ptr(), partials), *weights))
    }

    /// An op's launches.
    fn plans(&self, gpu: Gpu<'_>, op: &Linear) -> Result<Vec<(Plan, Range)>> {
        use launch::Epilogue as Kind;
        let single = |part: &Part| Product::single(self.weights(part), part.out);
        let all = |parts: &[Part], kind: Kind| {
            let products: Vec<_> = parts.iter().map(single).collect();
            self.plan(gpu, parts, &products, kind)
        };
        let parts = &op.parts[..];
        match op.epilogue {
            Epilogue::Store => parts.chunks(MAX_PARTS).map(|parts| all(parts, Kind::Store)).collect(),
            Epilogue::Add { gate, norm } => Ok(vec![all(parts, Kind::Add { gate, norm })?]),
            Epilogue::Glu { kind, alpha, limit, image } => {
                let [gate, up] = [&parts[0], &parts[1]];
                if self.is_pair(gate, up) {
                    let pair = Product::pair(self.weights(gate), self.weights(up), gate.out);
                    return Ok(vec![self.plan(
                        gpu,
                        parts,
                        &[pair],
                        Kind::Glu { kind, alpha, limit, image },
                    )?]);
                }
                // Of different types: the gate, then the up matrix upon it.
                Ok(vec![
                    all(&parts[..1], Kind::Store)?,
                    all(&parts[1..], Kind::GluJoin { kind, alpha, limit })?,
                ])
            }
        }
    }

    fn run(&self, gpu: Gpu<'_>, input: &Input, plan: &Plan, weights: Range) -> Result<()> {
        let tiles = launch::row_tiles(input.rows.bucket, self.group_tiles);
        for first in (0..tiles).step_by(self.group_tiles) {
            let group = self.group_tiles.min(tiles - first);
            let Some((params, shared)) = plan.params(input, first, group, self.space) else {
                let what = "a matrix of so many outputs".into();
                let why = format!("a block's part of it does not fit the shared memory: {:?}", self.space);
                return Err(CudaError::Unsupported { what, why });
            };
            gpu.queue.set_read_once(weights);
            gpu.launch(plan.entry(group), [self.n_blocks, 1, 1], launch::THREADS, shared, &params)?;
        }
        Ok(())
    }
}

/// Who does what of a launch's matrices: the same for any rows and in every plan. Made when they are first launched, which is
/// never while a graph is captured.
struct Dealt {
    matrices: Vec<Handle>,
    n_products: usize,
    lists: Lists,
    on_device: DeviceBuffer,
    weights: Range,
}

impl Dealt {
    fn new(gpu: Gpu<'_>, matrices: Vec<Handle>, products: &[Product], n_blocks: usize) -> Result<Self> {
        let lists = Lists::new(products, n_blocks);
        let weights = range_of(products, gpu.device.max_window_bytes);
        let bytes = lists.bytes();
        let on_device = DeviceBuffer::new(gpu.device, "shares of linear ops", bytes.len())?;
        gpu.queue.send_bytes(&bytes, &on_device, 0)?;
        Ok(Self { matrices, n_products: products.len(), lists, on_device, weights })
    }
}

impl LinearKernels for Tiles {
    fn takes(&self, matrix: &Matrix) -> bool {
        matrix.rows > 0 && matrix.cols > 0 && Format::of(matrix.dtype).is_some()
    }

    fn matrix_bytes(&self, matrix: &Matrix) -> usize {
        let tiles =
            Format::of(matrix.dtype).map_or(0, |format| format.matrix_bytes(matrix.rows, matrix.cols));
        device_bytes(tiles) + device_bytes(4 * matrix.rows)
    }

    fn work_bytes(&self) -> usize {
        device_bytes(self.partial_bytes()) + device_bytes(chain::READY_BYTES)
    }

    fn upload(&mut self, gpu: Gpu<'_>, matrix: &Matrix) -> Result<Handle> {
        let Some(format) = Format::of(matrix.dtype) else {
            let what = format!("matrix `{}`", matrix.name);
            return Err(CudaError::Unsupported { what, why: format!("{} has no tiles", matrix.dtype) });
        };
        if self.partials.is_none() {
            // All bits set: nothing is there.
            let nothing = vec![0xff; self.partial_bytes()];
            let partials = DeviceBuffer::new(gpu.device, "partial sums", nothing.len())?;
            gpu.queue.send_bytes(&nothing, &partials, 0)?;
            self.partials = Some(partials);
            let ready = DeviceBuffer::new(gpu.device, "rows that are made", chain::READY_BYTES)?;
            gpu.queue.send_bytes(&[0; chain::READY_BYTES], &ready, 0)?;
            self.ready = Some(ready);
        }
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let packed = pack::pack(matrix, format, threads);
        let send = |bytes: &[u8]| {
            let buffer = DeviceBuffer::new(gpu.device, "weights", bytes.len())?;
            gpu.queue.send_bytes(bytes, &buffer, 0)?;
            Ok::<_, CudaError>(buffer)
        };
        let tiles = send(&packed.tiles)?;
        let scales: Vec<u8> = packed.scales.iter().flat_map(|v| v.to_le_bytes()).collect();
        let scales = send(&scales)?;
        self.matrices.push(Tiled { tiles, scales, format, rows: matrix.rows, cols: matrix.cols });
        Ok(Handle(self.matrices.len() - 1))
    }

    fn view(&self, handle: Handle) -> TileView {
        let m = &self.matrices[handle.0];
        TileView {
            tiles: m.tiles.ptr(),
            scales: m.scales.ptr(),
            format: m.format.id,
            is_common: Format::is_common(m.format.id),
            stage_bytes: m.format.stage_bytes(),
            n_stages: m.format.n_stages(m.cols),
            n_tiles: m.rows.div_ceil(TILE_OUTPUTS),
        }
    }

    fn image_bytes(&self, bucket: usize, cols: usize) -> usize {
        launch::row_tiles(bucket, self.group_tiles) * cols.div_ceil(CELL_COLS) * CELL_BYTES
    }

    fn image_shape(&self, bucket: usize, cols: usize) -> ImageShape {
        ImageShape {
            n_blocks: cols.div_ceil(CELL_COLS) as u32,
            n_tiles: launch::row_tiles(bucket, self.group_tiles) as u32,
            group_tiles: self.group_tiles as u32,
        }
    }

    fn makes_image(&self, parts: &[Part], epilogue: &Epilogue) -> bool {
        matches!((epilogue, parts), (Epilogue::Glu { .. }, [gate, up]) if self.is_pair(gate, up))
    }

    fn make_image(&self, gpu: Gpu<'_>, input: &Input) -> Result<()> {
        let params = ImageParams::new(input, self.group_tiles);
        let grid = [input.cols.div_ceil(CELL_COLS).div_ceil(8), input.rows.bucket, 1];
        gpu.launch(("image", "make_image"), grid, 256, 0, &params)
    }

    fn prompt_image_bytes(&self, bucket: usize, cols: usize) -> usize {
        prompt::image_bytes(bucket, cols)
    }

    fn prompt_image(&self, input: &PromptInput) -> PromptImage {
        prompt::image(input)
    }

    fn make_prompt_image(&self, gpu: Gpu<'_>, input: &PromptInput) -> Result<()> {
        prompt::make_image(gpu, input)
    }

    fn launch_prompts(
        &self,
        gpu: Gpu<'_>,
        input: &PromptInput,
        parts: &[Part],
        epilogue: Epilogue,
    ) -> Result<()> {
        self.run_prompts(gpu, input, parts, epilogue)
    }

    fn launch(&self, gpu: Gpu<'_>, ops: &[Linear]) -> Result<()> {
        let plans: Vec<_> = ops.iter().map(|op| self.plans(gpu, op)).collect::<Result<_>>()?;
        let tiles = ops.first().map_or(0, |op| launch::row_tiles(op.input.rows.bucket, self.group_tiles));
        let launches: Vec<_> = ops
            .iter()
            .zip(&plans)
            .flat_map(|(op, plans)| plans.iter().map(|plan| (&op.input, plan)))
            .collect();
        // An op of several launches makes no next one's input.
        let phases: Vec<_> = launches.iter().map(|(input, (plan, _))| (*input, plan)).collect();
        let ready = self.ready.as_ref().filter(|_| phases.len() == ops.len());
        let chain = ready.and_then(|r| chain::params(&phases, tiles, self.n_blocks, self.space, r.ptr()));
        if let Some((params, shared)) = chain {
            return gpu.launch(chain::ENTRY, [self.n_blocks, 1, 1], chain::THREADS, shared, &params);
        }
        launches.into_iter().try_for_each(|(input, (plan, weights))| self.run(gpu, input, plan, *weights))
    }
}
