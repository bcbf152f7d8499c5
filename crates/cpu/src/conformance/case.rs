//! A row of the table: weights, a small plan around one op, and what to look at.

use std::sync::Arc;

use overdraft_formats::DType;
use overdraft_plan::draw::{Adjustment, Drawing};
use overdraft_plan::{
    Act, Choice, KvType, LayerState, Matrix, MatrixId, Op, Plan, Recorder, Retention, VectorId, Weights,
};

use super::numbers::{Random, float_matrix, random_matrix};

/// The op a case is about; one for every variant of [`Op`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Embed,
    Norm,
    Select,
    Linear,
    LinearAdd,
    LinearGlu,
    Angles,
    AttentionPrepare,
    Attention,
    RecurrentPrepare,
    Recurrent,
    GatedNorm,
    Route,
    ExpertGlu,
    ExpertAdd,
    LoadTaps,
    Concat,
    TopTokens,
    Sample,
}

impl Kind {
    pub const ALL: [Kind; 19] = [
        Self::Embed,
        Self::Norm,
        Self::Select,
        Self::Linear,
        Self::LinearAdd,
        Self::LinearGlu,
        Self::Angles,
        Self::AttentionPrepare,
        Self::Attention,
        Self::RecurrentPrepare,
        Self::Recurrent,
        Self::GatedNorm,
        Self::Route,
        Self::ExpertGlu,
        Self::ExpertAdd,
        Self::LoadTaps,
        Self::Concat,
        Self::TopTokens,
        Self::Sample,
    ];

    pub fn of(op: &Op) -> Self {
        match op {
            Op::Embed { .. } => Self::Embed,
            Op::Norm { .. } => Self::Norm,
            Op::Select { .. } => Self::Select,
            Op::Linear { .. } => Self::Linear,
            Op::LinearAdd { .. } => Self::LinearAdd,
            Op::LinearGlu { .. } => Self::LinearGlu,
            Op::Angles { .. } => Self::Angles,
            Op::AttentionPrepare(_) => Self::AttentionPrepare,
            Op::Attention(_) => Self::Attention,
            Op::RecurrentPrepare(_) => Self::RecurrentPrepare,
            Op::Recurrent(_) => Self::Recurrent,
            Op::GatedNorm { .. } => Self::GatedNorm,
            Op::Route(_) => Self::Route,
            Op::ExpertGlu(_) => Self::ExpertGlu,
            Op::ExpertAdd(_) => Self::ExpertAdd,
            Op::LoadTaps { .. } => Self::LoadTaps,
            Op::Concat { .. } => Self::Concat,
            Op::TopTokens { .. } => Self::TopTokens,
            Op::Sample { .. } => Self::Sample,
        }
    }

    /// Whether its result depends on earlier rows of the sequence.
    pub fn has_state(self) -> bool {
        matches!(self, Self::Attention | Self::RecurrentPrepare | Self::Recurrent)
    }
}

/// Which bound a case falls under; see [`super::Tolerances`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// Numbers are moved or decoded, not computed.
    Copy,
    /// A few roundings per number.
    Elementwise,
    /// A product with weights of this type.
    Weights(DType),
    /// Two such products, one gating the other.
    Gated(DType),
    /// Several such, each of what the one before made.
    Chain(DType),
    /// Softmax over keys and values stored like this.
    Attention(KvType),
    /// The delta rule.
    Recurrent,
}

type Record = dyn Fn(&mut Recorder) -> Observed + Send + Sync;

/// The buffers of a plan that are compared.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    pub acts: Vec<Act>,
    pub choices: Vec<Choice>,
}

pub struct Case {
    pub kind: Kind,
    pub name: String,
    pub arithmetic: Arithmetic,
    pub weights: Arc<Weights>,
    pub layers: Vec<LayerState>,
    pub classes: Vec<Retention>,
    pub kv: KvType,
    /// Rows to feed before the interesting part begins.
    pub prompt: usize,
    /// Logits are asked of rows whose position this divides.
    pub logits_every: u32,
    /// Floats of a row of taps that the state keeps.
    pub tap_width: usize,
    /// By definition a row's result depends on the steps its sequence was fed in, so that only equal steps compare.
    pub depends_on_steps: bool,
    /// Its rows are those of prompts, for a backend that has kernels of their own for them.
    pub is_prompt: bool,
    /// Rows of a step at most: those of a large vocabulary take a megabyte each.
    pub most_rows: usize,
    /// How tokens are drawn, and what bias and penalties know: sequences take turns with them.
    pub draws: Vec<(Drawing, Vec<Adjustment>)>,
    record: Box<Record>,
}

impl Case {
    /// Tokens that every input table has. Token 0 stands for a row of zeros.
    pub const N_TOKENS: u32 = 61;

    pub fn as_prompt(self) -> Self {
        Self { is_prompt: true, name: format!("{}, prompt", self.name), ..self }
    }

    /// The plan for a bucket, and the buffers to compare.
    pub fn record(&self, bucket: usize) -> (Plan, Observed) {
        let mut recorder = Recorder::new(bucket, bucket);
        let observed = (self.record)(&mut recorder);
        (recorder.finish(Act(0)), observed)
    }
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} {}", self.kind, self.name)
    }
}

/// An input of a plan: a table of `f32` rows, one per token, and its width.
#[derive(Clone, Copy)]
pub struct Input {
    table: MatrixId,
    width: usize,
}

impl Input {
    /// Records the embedding that brings the input into the plan.
    pub fn record(self, recorder: &mut Recorder) -> Act {
        let out = recorder.act(self.width);
        recorder.push(Op::Embed { table: self.table, out });
        out
    }
}

/// Collects a case's weights; ids are handed to the recording closure.
pub struct CaseBuilder {
    pub random: Random,
    weights: Weights,
    case: Case,
}

impl CaseBuilder {
    pub fn new(kind: Kind, arithmetic: Arithmetic, name: String) -> Self {
        // A seed of the case's own, so that adding rows to the table changes no other row.
        let seed = name.bytes().fold(kind as u64, |h, b| h.wrapping_mul(131).wrapping_add(b as u64));
        Self {
            random: Random::new(seed),
            weights: Weights::default(),
            case: Case {
                kind,
                name,
                arithmetic,
                weights: Arc::default(),
                layers: Vec::new(),
                classes: Vec::new(),
                kv: KvType::F32,
                prompt: 0,
                logits_every: 1,
                tap_width: 0,
                depends_on_steps: false,
                is_prompt: false,
                most_rows: usize::MAX,
                draws: Vec::new(),
                record: Box::new(|_| Observed::default()),
            },
        }
    }

    /// Gaussian inputs of this size; token 0 is all zeros.
    pub fn input(&mut self, width: usize, size: f32) -> Input {
        let mut values = self.random.gaussians(Case::N_TOKENS as usize * width, size);
        values[..width].fill(0.0);
        self.input_of(&values, width)
    }

    pub fn input_of(&mut self, values: &[f32], width: usize) -> Input {
        Input { table: self.weights.add_matrix(float_matrix("input", values, width)), width }
    }

    pub fn matrix(&mut self, dtype: DType, rows: usize, cols: usize) -> MatrixId {
        self.stack(dtype, rows, cols, 1)
    }

    /// A matrix in several pieces.
    pub fn stack(&mut self, dtype: DType, rows: usize, cols: usize, parts: usize) -> MatrixId {
        let matrix = random_matrix(&mut self.random, dtype, rows, cols, parts);
        self.weights.add_matrix(matrix)
    }

    /// A matrix made elsewhere.
    pub fn given(&mut self, matrix: Matrix) -> MatrixId {
        self.weights.add_matrix(matrix)
    }

    /// A matrix of given `f32` values.
    pub fn matrix_of(&mut self, values: &[f32], cols: usize) -> MatrixId {
        self.weights.add_matrix(float_matrix("given", values, cols))
    }

    pub fn vector(&mut self, values: Vec<f32>) -> VectorId {
        self.weights.add_vector(values)
    }

    /// A norm's weight: around one, as checkpoints have them.
    pub fn norm_weight(&mut self, width: usize) -> VectorId {
        let values = self.random.gaussians(width, 0.2).into_iter().map(|v| 1.0 + v).collect();
        self.vector(values)
    }

    pub fn bias(&mut self, width: usize) -> VectorId {
        let values = self.random.gaussians(width, 0.5);
        self.vector(values)
    }

    pub fn layer(&mut self, layer: LayerState) {
        self.case.layers.push(layer);
    }

    pub fn class(&mut self, class: Retention) {
        self.case.classes.push(class);
    }

    pub fn kv(&mut self, kv: KvType) {
        self.case.kv = kv;
    }

    pub fn prompt(&mut self, rows: usize) {
        self.case.prompt = rows;
    }

    pub fn logits_every(&mut self, rows: u32) {
        self.case.logits_every = rows;
    }

    pub fn draw(&mut self, drawing: Drawing, listed: Vec<Adjustment>) {
        self.case.draws.push((drawing, listed));
    }

    pub fn most_rows(&mut self, rows: usize) {
        self.case.most_rows = rows;
    }

    pub fn tap_width(&mut self, width: usize) {
        self.case.tap_width = width;
    }

    pub fn depends_on_steps(&mut self) {
        self.case.depends_on_steps = true;
    }

    /// `record` builds the plan and names the buffers to compare.
    pub fn build(self, record: impl Fn(&mut Recorder) -> Vec<Act> + Send + Sync + 'static) -> Case {
        self.build_observing(move |r| Observed { acts: record(r), choices: Vec::new() })
    }

    /// The same for a plan that ends in a choice.
    pub fn build_choosing(self, record: impl Fn(&mut Recorder) -> Choice + Send + Sync + 'static) -> Case {
        self.build_observing(move |r| Observed { acts: Vec::new(), choices: vec![record(r)] })
    }

    /// The same for any buffers.
    pub(crate) fn build_observing(
        self,
        record: impl Fn(&mut Recorder) -> Observed + Send + Sync + 'static,
    ) -> Case {
        Case { weights: Arc::new(self.weights), record: Box::new(record), ..self.case }
    }
}
