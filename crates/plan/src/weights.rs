//! Weights as the plan knows them: matrices in whatever type their file holds, small vectors in `f32`.

use overdraft_formats::{Bytes, DType};

/// Index of a matrix in [`Weights`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MatrixId(pub u32);

/// Index of a vector in [`Weights`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VectorId(pub u32);

/// `[rows, cols]`, row-major, each row a whole number of blocks. A stack of experts is one matrix whose rows are
/// those of expert 0, then expert 1, ...; it may lie in several `parts` of equally many rows (files that store
/// each expert apart), so that nothing has to be copied.
#[derive(Clone, Debug)]
pub struct Matrix {
    pub name: String,
    pub dtype: DType,
    pub rows: usize,
    pub cols: usize,
    parts: Vec<Bytes>,
}

impl Matrix {
    /// `None` when the parts do not hold exactly `rows` rows of `cols` elements in equal shares.
    pub fn new(name: String, dtype: DType, rows: usize, cols: usize, parts: Vec<Bytes>) -> Option<Self> {
        let row_bytes = dtype.row_bytes(cols)?;
        let share = rows.checked_div(parts.len())?;
        let part_bytes = share.checked_mul(row_bytes)?;
        let fits = share * parts.len() == rows && parts.iter().all(|p| p.len() == part_bytes);
        fits.then_some(Self { name, dtype, rows, cols, parts })
    }

    pub fn row_bytes(&self) -> usize {
        self.cols / self.dtype.block_len() * self.dtype.block_bytes()
    }

    /// The bytes of rows `first..first + n`, which must lie in one part (as the rows of one expert do).
    pub fn row_range(&self, first: usize, n: usize) -> &[u8] {
        let share = self.rows / self.parts.len();
        let (part, row) = (first / share, first % share);
        let row_bytes = self.row_bytes();
        &self.parts[part][row * row_bytes..(row + n) * row_bytes]
    }

    pub fn parts(&self) -> &[Bytes] {
        &self.parts
    }

    pub fn n_bytes(&self) -> usize {
        self.parts.iter().map(|p| p.len()).sum()
    }
}

/// All weights of a model, handed to a backend whole.
#[derive(Default, Debug)]
pub struct Weights {
    matrices: Vec<Matrix>,
    vectors: Vec<Vec<f32>>,
}

impl Weights {
    pub fn add_matrix(&mut self, m: Matrix) -> MatrixId {
        self.matrices.push(m);
        MatrixId(self.matrices.len() as u32 - 1)
    }

    pub fn add_vector(&mut self, v: Vec<f32>) -> VectorId {
        self.vectors.push(v);
        VectorId(self.vectors.len() as u32 - 1)
    }

    pub fn matrix(&self, id: MatrixId) -> &Matrix {
        &self.matrices[id.0 as usize]
    }

    pub fn vector(&self, id: VectorId) -> &[f32] {
        &self.vectors[id.0 as usize]
    }

    pub fn n_vectors(&self) -> usize {
        self.vectors.len()
    }

    pub fn matrices(&self) -> &[Matrix] {
        &self.matrices
    }

    /// Bytes of every weight, and how many of them this process had to allocate (the rest is mapped).
    pub fn n_bytes(&self) -> (usize, usize) {
        let vectors: usize = self.vectors.iter().map(|v| v.len() * 4).sum();
        let total: usize = self.matrices.iter().map(Matrix::n_bytes).sum();
        let owned: usize =
            self.matrices.iter().flat_map(|m| m.parts()).filter(|p| !p.is_borrowed()).map(|p| p.len()).sum();
        (total + vectors, owned + vectors)
    }
}
