//! Linear ops on tensor cores: weights as tiles, inputs as images, launches of `kernels/linear.cuh`.

mod blocks;
mod floats;
mod launch;
mod layout;
mod pack;
mod planes;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod unpack;

use overdraft_plan::Matrix;

use crate::driver::{CudaError, Device, DeviceBuffer, Result};
use crate::linear::{Epilogue, Gpu, Handle, ImageShape, Input, LinearKernels, Part};
use launch::{ImageParams, MAX_PARTS, MAX_TILES, PARTIAL_BYTES, Plan, Weights};
use layout::{CELL_COLS, Format};

/// Of a cell of 8 rows and 128 columns (`kernels/image.cuh`), with what float weights read besides.
const CELL_BYTES: usize = 2336 + 2048;

/// A matrix on the device.
struct Tiled {
    tiles: DeviceBuffer,
    scales: Option<DeviceBuffer>,
    format: Format,
    rows: usize,
    cols: usize,
}

pub(crate) struct Tiles {
    matrices: Vec<Tiled>,
    /// Sums that blocks leave for each other; made with the first matrix.
    partials: Option<DeviceBuffer>,
    n_blocks: usize,
    shared_bytes: usize,
    /// Tiles of 8 rows to a launch.
    group_tiles: usize,
}

impl Tiles {
    pub(crate) fn new(device: &Device) -> Self {
        let shared_bytes = device.max_shared_bytes;
        let fits = |tiles: &usize| {
            launch::fixed_shared_bytes(*tiles) + launch::largest_slot_bytes(*tiles) <= shared_bytes
        };
        let group_tiles = (1..=MAX_TILES).rev().find(fits).unwrap_or(1);
        let n_blocks = device.n_multiprocessors.min(launch::MAX_BLOCKS);
        Self { matrices: Vec::new(), partials: None, n_blocks, shared_bytes, group_tiles }
    }

    fn weights(&self, part: &Part) -> Weights {
        let m = &self.matrices[part.weight.0];
        Weights {
            tiles: m.tiles.ptr(),
            scales: m.scales.as_ref().map_or(0, DeviceBuffer::ptr),
            bias: part.bias,
            format: m.format,
            rows: m.rows,
            cols: m.cols,
        }
    }

    fn plan(&self, works: &[launch::Part], epilogue: launch::Epilogue) -> Result<Plan> {
        let partials = self.partials.as_ref().map_or(0, DeviceBuffer::ptr);
        Ok(Plan::new(works, epilogue, partials, self.n_blocks))
    }

    fn run(&self, gpu: Gpu<'_>, input: &Input, plan: &Plan) -> Result<()> {
        let (tiles, cells) = (input.rows.bucket.div_ceil(8), input.cols.div_ceil(CELL_COLS));
        for first in (0..tiles).step_by(self.group_tiles) {
            let group = self.group_tiles.min(tiles - first);
            let image = input.image + (first * cells * CELL_BYTES) as u64;
            let (params, shared) =
                plan.params(image, cells, input.rows.count, 8 * first, group, self.shared_bytes);
            gpu.launch(plan.entry(group), [self.n_blocks, 1, 1], launch::THREADS, shared, &params)?;
        }
        Ok(())
    }
}

impl LinearKernels for Tiles {
    fn takes(&self, matrix: &Matrix) -> bool {
        matrix.rows > 0 && matrix.cols > 0 && Format::of(matrix.dtype).is_some()
    }

    fn upload(&mut self, gpu: Gpu<'_>, matrix: &Matrix) -> Result<Handle> {
        let Some(format) = Format::of(matrix.dtype) else {
            let what = format!("matrix `{}`", matrix.name);
            return Err(CudaError::Unsupported { what, why: format!("{} has no tiles", matrix.dtype) });
        };
        if self.partials.is_none() {
            // All bits set: nothing is there.
            let nothing = vec![0xff; self.n_blocks * PARTIAL_BYTES];
            let partials = DeviceBuffer::new(gpu.device, "partial sums", nothing.len())?;
            gpu.queue.send_bytes(&nothing, &partials, 0)?;
            self.partials = Some(partials);
        }
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let packed = pack::pack(matrix, format, threads);
        let send = |bytes: &[u8]| {
            let buffer = DeviceBuffer::new(gpu.device, "weights", bytes.len())?;
            gpu.queue.send_bytes(bytes, &buffer, 0)?;
            Ok::<_, CudaError>(buffer)
        };
        let tiles = send(&packed.tiles)?;
        let as_bytes = |s: Vec<f32>| s.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
        let scales = packed.scales.map(|s| send(&as_bytes(s))).transpose()?;
        self.matrices.push(Tiled { tiles, scales, format, rows: matrix.rows, cols: matrix.cols });
        Ok(Handle(self.matrices.len() - 1))
    }

    fn image_bytes(&self, bucket: usize, cols: usize) -> usize {
        bucket.div_ceil(8) * cols.div_ceil(CELL_COLS) * CELL_BYTES
    }

    fn image_shape(&self, bucket: usize, cols: usize) -> ImageShape {
        ImageShape {
            n_blocks: cols.div_ceil(CELL_COLS) as u32,
            n_tiles: bucket.div_ceil(8) as u32,
            group_tiles: self.group_tiles as u32,
        }
    }

    fn make_image(&self, gpu: Gpu<'_>, input: &Input) -> Result<()> {
        let params = ImageParams::new(input, self.group_tiles);
        let grid = [input.cols.div_ceil(CELL_COLS).div_ceil(8), input.rows.bucket, 1];
        gpu.launch(("image", "make_image"), grid, 256, 0, &params)
    }

    fn launch(&self, gpu: Gpu<'_>, input: &Input, parts: &[Part], epilogue: Epilogue) -> Result<()> {
        use launch::Epilogue as Kind;
        let single = |part: &Part| launch::Part::single(self.weights(part), part.out);
        match epilogue {
            Epilogue::Store => parts.chunks(MAX_PARTS).try_for_each(|parts| {
                let works: Vec<_> = parts.iter().map(single).collect();
                self.run(gpu, input, &self.plan(&works, Kind::Store)?)
            }),
            Epilogue::Add { gate } => {
                let works: Vec<_> = parts.iter().map(single).collect();
                self.run(gpu, input, &self.plan(&works, Kind::Add { gate })?)
            }
            Epilogue::Glu { kind, alpha, limit } => {
                let [gate, up] = [&parts[0], &parts[1]];
                let (g, u) = (self.weights(gate), self.weights(up));
                if g.format == u.format {
                    let pair = launch::Part::pair(g, u, gate.out);
                    return self.run(gpu, input, &self.plan(&[pair], Kind::Glu { kind, alpha, limit })?);
                }
                // Of different types: the gate, then the up matrix upon it.
                self.run(gpu, input, &self.plan(&[single(gate)], Kind::Store)?)?;
                let up = launch::Part::single(u, gate.out);
                self.run(gpu, input, &self.plan(&[up], Kind::GluJoin { kind, alpha, limit })?)
            }
        }
    }
}
