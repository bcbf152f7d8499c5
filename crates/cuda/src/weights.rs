//! Weights on the device: vectors all at load, matrices when the first plan that needs them is prepared.

use std::sync::Arc;

use overdraft_plan::{Matrix, MatrixId, Plan, VectorId, Weights};

use crate::driver::{CudaError, Device, DeviceBuffer, Queue, Result, device_bytes};
use crate::linear::{Gpu, Handle, LinearKernels};
use crate::ops;
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
        for op in plans.iter().flat_map(|plan| &plan.ops) {
            let linear = ops::linear_matrices(op);
            let is_fast = fast.is_some_and(|fast| linear.iter().all(|id| fast.takes(host.matrix(*id))));
            ops::raw_matrices(op).iter().for_each(|id| raw[id.0 as usize] = true);
            linear
                .iter()
                .for_each(|id| if is_fast { tiled[id.0 as usize] = true } else { raw[id.0 as usize] = true });
        }
        let matrices = host.matrices().iter().zip(raw.iter().zip(tiled)).map(|(matrix, (raw, tiled))| {
            let raw = if *raw { device_bytes(matrix.n_bytes()) } else { 0 };
            raw + fast.filter(|_| tiled).map_or(0, |fast| fast.matrix_bytes(matrix))
        });
        let vector = |v| (4 * host.vector(VectorId(v as u32)).len()).next_multiple_of(ALIGN);
        matrices.sum::<usize>() + (0..host.n_vectors()).map(vector).sum::<usize>()
    }

    pub(crate) fn host(&self) -> &Weights {
        &self.host
    }

    /// Brings a matrix to the device as it is, unless it is there.
    pub(crate) fn need_raw(&mut self, device: &Arc<Device>, queue: &Queue, id: MatrixId) -> Result<()> {
        let place = &mut self.matrices[id.0 as usize];
        if place.is_none() {
            *place = Some(RawMatrix::upload(device, queue, self.host.matrix(id))?);
        }
        Ok(())
    }

    /// Brings the matrices of a linear op to the device: all in the fast kernels' layout, or all as they are.
    pub(crate) fn need_linear(&mut self, gpu: Gpu<'_>, ids: &[MatrixId]) -> Result<()> {
        match &mut self.fast {
            Some(fast) if ids.iter().all(|id| fast.takes(self.host.matrix(*id))) => {
                for id in ids {
                    let place = &mut self.handles[id.0 as usize];
                    if place.is_none() {
                        *place = Some(fast.upload(gpu, self.host.matrix(*id))?);
                    }
                }
                Ok(())
            }
            _ => ids.iter().try_for_each(|id| self.need_raw(gpu.device, gpu.queue, *id)),
        }
    }

    pub(crate) fn fast(&self) -> Option<&dyn LinearKernels> {
        self.fast.as_deref()
    }

    /// The matrix in the fast kernels' layout, where they hold it.
    pub(crate) fn handle(&self, id: MatrixId) -> Option<Handle> {
        self.handles[id.0 as usize]
    }

    /// A matrix that [`Self::need_raw`] brought.
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
