//! Tensors into weights: found under either name, checked against the sizes the file declares, mapped where the
//! layout allows and rebuilt where it does not.

use overdraft_formats::Tensor;
use overdraft_formats::{Bytes, DType};
use overdraft_plan::{Matrix, MatrixId, RmsNorm, VectorId, Weights};

use crate::checkpoint::Checkpoint;
use crate::draft::DraftNames;
use crate::error::{ModelError, Result};

pub(crate) struct Loader<'a> {
    pub(crate) checkpoint: &'a Checkpoint,
    pub(crate) weights: Weights,
    /// A draft's own dialect.
    names: Option<&'a DraftNames>,
}

/// Rows of a matrix, still to be added to the weights.
pub(crate) struct Rows {
    pub(crate) name: String,
    pub(crate) dtype: DType,
    pub(crate) cols: usize,
    pub(crate) bytes: Bytes,
}

impl Rows {
    pub(crate) fn n_rows(&self) -> usize {
        self.bytes.len() / self.row_bytes()
    }

    fn row_bytes(&self) -> usize {
        self.cols / self.dtype.block_len() * self.dtype.block_bytes()
    }

    pub(crate) fn row(&self, r: usize) -> &[u8] {
        let size = self.row_bytes();
        &self.bytes[r * size..(r + 1) * size]
    }

    /// The columns in another order, copied; `None` where they are bound in blocks.
    pub(crate) fn pick_columns(&self, order: impl Fn(usize) -> usize) -> Option<Self> {
        if self.dtype.block_len() != 1 {
            return None;
        }
        let size = self.dtype.block_bytes();
        let mut bytes = Vec::with_capacity(self.bytes.len());
        for r in 0..self.n_rows() {
            let row = self.row(r);
            (0..self.cols).for_each(|c| bytes.extend_from_slice(&row[order(c) * size..][..size]));
        }
        Some(Self {
            name: self.name.clone(),
            dtype: self.dtype,
            cols: self.cols,
            bytes: Bytes::from_vec(bytes),
        })
    }

    /// Rows `first..first + n`, mapped as before.
    pub(crate) fn slice(&self, first: usize, n: usize) -> Self {
        let size = self.row_bytes();
        let bytes =
            self.bytes.slice(first * size..(first + n) * size).expect("callers split what they checked");
        Self { name: self.name.clone(), dtype: self.dtype, cols: self.cols, bytes }
    }

    /// The rows in another order, copied.
    pub(crate) fn pick(&self, order: impl Iterator<Item = usize>) -> Self {
        let mut bytes = Vec::with_capacity(self.bytes.len());
        order.for_each(|r| bytes.extend_from_slice(self.row(r)));
        Self { name: self.name.clone(), dtype: self.dtype, cols: self.cols, bytes: Bytes::from_vec(bytes) }
    }
}

impl<'a> Loader<'a> {
    pub(crate) fn new(checkpoint: &'a Checkpoint) -> Self {
        Self { checkpoint, weights: Weights::default(), names: None }
    }

    /// Adds a draft's weights to those of its target.
    pub(crate) fn for_draft(checkpoint: &'a Checkpoint, names: &'a DraftNames, weights: Weights) -> Self {
        Self { checkpoint, weights, names: Some(names) }
    }

    /// The tensor with this GGUF name, under whatever name the file has it.
    fn find(&self, name: &str) -> Result<Option<Tensor>> {
        match self.names {
            None => self.checkpoint.tensor(name),
            Some(names) => match names.in_file(name) {
                Some(name) => self.checkpoint.tensor_called(name),
                None => Ok(None),
            },
        }
    }

    pub(crate) fn file(&self) -> String {
        self.checkpoint.name().into()
    }

    pub(crate) fn missing(&self, tensor: &str) -> ModelError {
        ModelError::MissingTensor { file: self.file(), tensor: tensor.into(), hint: String::new() }
    }

    /// The tensor, whose dimensions (those of 1 left out) must be `expected`.
    pub(crate) fn tensor(&self, name: &str, expected: &[usize]) -> Result<Option<Tensor>> {
        let Some(t) = self.find(name)? else { return Ok(None) };
        self.check_shape(&t, expected)?;
        Ok(Some(t))
    }

    pub(crate) fn check_shape(&self, t: &Tensor, expected: &[usize]) -> Result<()> {
        let squeeze = |s: &[usize]| s.iter().copied().filter(|d| *d != 1).collect::<Vec<_>>();
        if squeeze(&t.shape) == squeeze(expected) {
            return Ok(());
        }
        Err(ModelError::Shape {
            file: self.file(),
            tensor: t.name.clone(),
            found: t.shape.clone(),
            expected: expected.into(),
        })
    }

    /// A tensor of `rows` times `cols`, any dimensions before the last counting as rows.
    pub(crate) fn opt_rows(&self, name: &str, rows: usize, cols: usize) -> Result<Option<Rows>> {
        let Some(t) = self.tensor(name, &[rows, cols])? else { return Ok(None) };
        self.refuse_scale(name)?;
        self.as_rows(t, cols).map(Some)
    }

    /// Files made from FP8 or NVFP4 models scale a whole tensor by a number beside it.
    fn refuse_scale(&self, name: &str) -> Result<()> {
        let scale = format!("{}.scale", name.strip_suffix(".weight").unwrap_or(name));
        if self.checkpoint.is_gguf() && self.find(&scale)?.is_some() {
            let problem = "per-tensor scales are not supported";
            return Err(ModelError::setting(&self.file(), &scale, "present", problem));
        }
        Ok(())
    }

    /// The tensor's rows as a weight, converting the one plain type that kernels do not read.
    pub(crate) fn as_rows(&self, t: Tensor, cols: usize) -> Result<Rows> {
        let wrong = || ModelError::WeightType {
            file: self.file(),
            tensor: t.name.clone(),
            dtype: t.dtype.to_string(),
        };
        if t.dtype == DType::F64 {
            let bytes = self.floats(&t)?.iter().flat_map(|x| x.to_le_bytes()).collect();
            return Ok(Rows { name: t.name, dtype: DType::F32, cols, bytes: Bytes::from_vec(bytes) });
        }
        if !t.dtype.is_decodable() || t.dtype.row_bytes(cols).is_none_or(|b| b == 0) {
            return Err(wrong());
        }
        Ok(Rows { name: t.name, dtype: t.dtype, cols, bytes: t.bytes })
    }

    pub(crate) fn rows(&self, name: &str, rows: usize, cols: usize) -> Result<Rows> {
        self.opt_rows(name, rows, cols)?.ok_or_else(|| self.missing(name))
    }

    pub(crate) fn add(&mut self, rows: Rows) -> MatrixId {
        let n = rows.n_rows();
        self.add_stack(rows.name, rows.dtype, n, rows.cols, vec![rows.bytes])
    }

    pub(crate) fn add_stack(
        &mut self,
        name: String,
        dtype: DType,
        n: usize,
        cols: usize,
        parts: Vec<Bytes>,
    ) -> MatrixId {
        let matrix = Matrix::new(name, dtype, n, cols, parts).expect("shape and type were checked");
        self.weights.add_matrix(matrix)
    }

    pub(crate) fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<MatrixId> {
        let rows = self.rows(name, rows, cols)?;
        Ok(self.add(rows))
    }

    pub(crate) fn floats(&self, t: &Tensor) -> Result<Vec<f32>> {
        let mut out = vec![0.0f32; t.shape.iter().product()];
        t.dtype.decode_row(&t.bytes, &mut out).map_err(|_| ModelError::WeightType {
            file: self.file(),
            tensor: t.name.clone(),
            dtype: t.dtype.to_string(),
        })?;
        Ok(out)
    }

    pub(crate) fn opt_floats(&self, name: &str, shape: &[usize]) -> Result<Option<Vec<f32>>> {
        match self.tensor(name, shape)? {
            Some(t) => self.floats(&t).map(Some),
            None => Ok(None),
        }
    }

    pub(crate) fn need_floats(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        self.opt_floats(name, shape)?.ok_or_else(|| self.missing(name))
    }

    pub(crate) fn opt_vector(&mut self, name: &str, shape: &[usize]) -> Result<Option<VectorId>> {
        Ok(self.opt_floats(name, shape)?.map(|v| self.weights.add_vector(v)))
    }

    /// A norm's gains. `plus_one`: the checkpoint stores them less one (GGUF files have it added already).
    pub(crate) fn norm(&mut self, name: &str, n: usize, eps: f32, plus_one: bool) -> Result<RmsNorm> {
        let mut gains = self.need_floats(name, &[n])?;
        if plus_one && !self.checkpoint.is_gguf() {
            gains.iter_mut().for_each(|g| *g += 1.0);
        }
        Ok(RmsNorm { weight: self.weights.add_vector(gains), eps })
    }
}
