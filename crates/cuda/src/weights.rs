//! Weights on the device: vectors all at load, matrices when the first plan that needs them is prepared.

use std::sync::Arc;

use overdraft_plan::{Matrix, MatrixId, Op, Plan, VectorId, Weights};

use crate::driver::{CudaError, Device, DeviceBuffer, Queue, Result, device_bytes};
use crate::linear::{Gpu, Handle, LinearKernels, TileView};
use crate::ops::{self, Wanted};
use crate::repack::Tiles;

/// Addresses are aligned to what any load wants.
pub(crate) const ALIGN: usize = 256;

/// A matrix as its file holds it.
pub(crate) struct RawMatrix {
    data: DeviceBuffer,
    row_bytes: usize,
    dtype: u32,
    rows: usize,
}

/// The same for kernels: `Weight` of `dot.cuh`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RawView {
    pub(crate) data: u64,
    pub(crate) row_bytes: u64,
    pub(crate) dtype: u32,
    pub(crate) rows: u32,
}

impl RawView {
    pub(crate) const NONE: Self = Self { data: 0, row_bytes: 0, dtype: 0, rows: 0 };
}

impl RawMatrix {
    fn upload(device: &Arc<Device>, queue: &Queue, matrix: &Matrix) -> Result<Self> {
        if !matrix.dtype.is_decodable() {
            return Err(CudaError::Unsupported {
                what: format!("matrix `{}`", matrix.name),
                why: format!("{} is no type of weights", matrix.dtype),
            });
        }
        let data = DeviceBuffer::new(device, "weights", matrix.n_bytes())?;
        let mut at = 0;
        for part in matrix.parts() {
            queue.send_bytes(part, &data, at)?;
            at += part.len();
        }
        Ok(Self { data, row_bytes: matrix.row_bytes(), dtype: matrix.dtype as u32, rows: matrix.rows })
    }

    fn view(&self) -> RawView {
        RawView {
            data: self.data.ptr(),
            row_bytes: self.row_bytes as u64,
            dtype: self.dtype,
            rows: self.rows as u32,
        }
    }
}

#[derive(Default)]
pub(crate) struct DeviceWeights {
    host: Arc<Weights>,
    matrices: Vec<Option<RawMatrix>>,
    /// Matrices that `fast` holds.
    handles: Vec<Option<Handle>>,
    fast: Option<Box<dyn LinearKernels>>,
    vectors: Option<DeviceBuffer>,
    /// Of each vector in `vectors`, in bytes.
    offsets: Vec<usize>,
}

impl DeviceWeights {
    pub(crate) fn load(device: &Arc<Device>, queue: &Queue, host: Arc<Weights>) -> Result<Self> {
        let mut offsets = Vec::with_capacity(host.n_vectors());
        let mut bytes = Vec::new();
        for v in 0..host.n_vectors() {
            bytes.resize(bytes.len().next_multiple_of(ALIGN), 0);
            offsets.push(bytes.len());
            bytes.extend(host.vector(VectorId(v as u32)).iter().flat_map(|x| x.to_le_bytes()));
        }
        let vectors = DeviceBuffer::new(device, "weights", bytes.len())?;
        queue.send_bytes(&bytes, &vectors, 0)?;
        let matrices = host.matrices().iter().map(|_| None).collect();
        let handles = vec![None; host.matrices().len()];
        Ok(Self { host, matrices, handles, fast: fast_kernels(device), vectors: Some(vectors), offsets })
    }

    /// Bytes of what these plans will have brought to the device.
    pub(crate) fn bytes_for(host: &Weights, fast: Option<&dyn LinearKernels>, plans: &[Plan]) -> usize {
        let mut raw = vec![false; host.matrices().len()];
        let mut tiled = raw.clone();
        for (plan, op) in plans.iter().flat_map(|plan| plan.ops.iter().map(move |op| (plan, op))) {
            let Wanted { matrices, in_tiles } = ops::wanted(plan, op, host, fast);
            let form = if in_tiles { &mut tiled } else { &mut raw };
            matrices.iter().for_each(|id| form[id.0 as usize] = true);
        }
        let matrices = host.matrices().iter().zip(raw.iter().zip(tiled)).map(|(matrix, (raw, tiled))| {
            let raw = if *raw { device_bytes(matrix.n_bytes()) } else { 0 };
            raw + fast.filter(|_| tiled).map_or(0, |fast| fast.matrix_bytes(matrix))
        });
        let vector = |v| (4 * host.vector(VectorId(v as u32)).len()).next_multiple_of(ALIGN);
        let work = fast.map_or(0, LinearKernels::work_bytes);
        matrices.sum::<usize>() + (0..host.n_vectors()).map(vector).sum::<usize>() + work
    }

    pub(crate) fn host(&self) -> &Weights {
        &self.host
    }

    /// Brings an op's matrices to the device in the form it wants them, unless they are there.
    pub(crate) fn need(&mut self, gpu: Gpu<'_>, plan: &Plan, op: &Op) -> Result<()> {
        let Wanted { matrices, in_tiles } = ops::wanted(plan, op, &self.host, self.fast());
        for id in matrices {
            let (matrix, at) = (self.host.matrix(id), id.0 as usize);
            match &mut self.fast {
                Some(fast) if in_tiles && self.handles[at].is_none() => {
                    self.handles[at] = Some(fast.upload(gpu, matrix)?);
                }
                _ if !in_tiles && self.matrices[at].is_none() => {
                    self.matrices[at] = Some(RawMatrix::upload(gpu.device, gpu.queue, matrix)?);
                }
                _ => {}
            }
        }
        Ok(())
    }

    pub(crate) fn fast(&self) -> Option<&dyn LinearKernels> {
        self.fast.as_deref()
    }

    /// The matrix in the fast kernels' layout, where they hold it.
    pub(crate) fn handle(&self, id: MatrixId) -> Option<Handle> {
        self.handles[id.0 as usize]
    }

    /// The same for kernels that find their tiles themselves.
    pub(crate) fn tiles(&self, id: MatrixId) -> Option<TileView> {
        Some(self.fast()?.view(self.handle(id)?))
    }

    /// A matrix that [`Self::need`] brought as it is.
    pub(crate) fn raw(&self, id: MatrixId) -> RawView {
        self.matrices[id.0 as usize]
            .as_ref()
            .map(RawMatrix::view)
            .expect("plans bring their matrices when prepared")
    }

    pub(crate) fn vector(&self, id: VectorId) -> u64 {
        let base = self.vectors.as_ref().expect("plans come after weights").ptr();
        base + self.offsets[id.0 as usize] as u64
    }

    /// The address, or 0 where there is none.
    pub(crate) fn opt_vector(&self, id: Option<VectorId>) -> u64 {
        id.map_or(0, |id| self.vector(id))
    }
}

/// The kernels that want weights in tiles.
pub(crate) fn fast_kernels(device: &Device) -> Option<Box<dyn LinearKernels>> {
    Some(Box::new(Tiles::new(device)))
}
