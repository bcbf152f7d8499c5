//! The ops, one idea a file: the definition, and the fast path where it differs.

mod attention;
mod attention_pages;
mod attention_prepare;
pub(crate) mod commit;
mod experts;
mod linear;
pub(crate) mod recurrent;
mod recurrent_groups;
mod recurrent_prepare;
mod row_ops;
mod sample;
pub(crate) mod thread_buffer;
mod top_tokens;

use overdraft_plan::{MatrixId, Op, Plan, Step, Weights};

use crate::linear::{Isa, Packed, QuantRows};
use crate::memory::{Acts, LayerMemory, StateMemory};
use crate::pool::Pool;

/// Which arithmetic and how many hands.
pub(crate) enum Mode {
    /// The definitions, one after another: weights dequantised, activations in `f32`, sums in `f64`.
    Definition,
    Fast {
        pool: Pool,
        isa: Isa,
    },
}

/// What an op works with.
pub(crate) struct Cx<'a> {
    pub(crate) mode: &'a Mode,
    pub(crate) weights: &'a Weights,
    /// By [`MatrixId`]; what is not here is read as it lies in the file.
    pub(crate) packed: &'a [Option<Packed>],
    pub(crate) step: &'a Step,
    pub(crate) acts: Acts<'a>,
}

/// Buffers that ops fill and forget, kept so that no step allocates.
pub(crate) struct OpScratch {
    /// Int8 activations of the linear op at work.
    pub(crate) quant: QuantRows,
    pub(crate) grouping: experts::Grouping,
    /// Of the rows of logits at work.
    slices: top_tokens::Slices,
    /// Elements `quant` has room for.
    room: usize,
}

impl Default for OpScratch {
    fn default() -> Self {
        Self {
            quant: QuantRows::with_capacity(0, 0),
            grouping: experts::Grouping::default(),
            slices: Vec::new(),
            room: 0,
        }
    }
}

impl OpScratch {
    /// Makes room for the widest ops of a plan, here and on the threads that will run them.
    pub(crate) fn reserve(&mut self, mode: &Mode, plan: &Plan) {
        thread_buffer::reserve(mode, plan.ops.iter().map(|op| buffer_len(plan, op)).max().unwrap_or(0));
        let slices = plan.ops.iter().map(|op| match op {
            Op::TopTokens { logits, choice } => top_tokens::scratch_len(plan, *logits, *choice),
            _ => 0,
        });
        let slices = slices.max().unwrap_or(0).max(self.slices.len());
        self.slices.resize(slices, Default::default());
        let n_experts = plan.ops.iter().map(|op| if let Op::Route(r) = op { r.n_experts } else { 0 });
        let n_experts = n_experts.max().unwrap_or(0);
        let width = |a: &overdraft_plan::Act| plan.act(*a).width;
        let needed = plan.ops.iter().map(|op| match op {
            Op::Linear { x, .. } | Op::LinearAdd { x, .. } | Op::LinearGlu { x, .. } => {
                plan.bucket * width(x)
            }
            Op::ExpertGlu(e) => {
                let pairs = plan.bucket * plan.choices[e.choice.0 as usize].width;
                self.grouping.reserve(pairs, n_experts, width(&e.x));
                pairs * width(&e.x)
            }
            Op::ExpertAdd(e) => {
                let k = plan.choices[e.choice.0 as usize].width;
                self.grouping.reserve(plan.bucket * k, n_experts, width(&e.h) / k);
                plan.bucket * width(&e.h)
            }
            _ => 0,
        });
        let needed = needed.max().unwrap_or(0);
        if needed > self.room {
            self.quant = QuantRows::with_capacity(1, needed);
            self.room = needed;
        }
    }
}

/// Floats of the thread buffer that a task of the op asks for; recurrent layers make room when they are allocated.
fn buffer_len(plan: &Plan, op: &Op) -> usize {
    match op {
        Op::Linear { .. } | Op::LinearAdd { .. } | Op::LinearGlu { .. } => linear::buffer_len(plan.bucket),
        Op::ExpertGlu(_) | Op::ExpertAdd(_) => linear::buffer_len(plan.bucket),
        Op::Attention(a) => attention_pages::buffer_len(a.head_dim),
        _ => 0,
    }
}

impl Cx<'_> {
    /// For functions of single numbers, which are the same to the bit on all.
    pub(crate) fn isa(&self) -> Isa {
        match self.mode {
            Mode::Definition => Isa::SCALAR,
            Mode::Fast { isa, .. } => *isa,
        }
    }

    pub(crate) fn weight(&self, id: MatrixId) -> linear::Weight<'_> {
        let packed = self.packed.get(id.0 as usize).and_then(Option::as_ref);
        linear::Weight { matrix: self.weights.matrix(id), packed }
    }

    /// Threads that share the work.
    pub(crate) fn threads(&self) -> usize {
        match self.mode {
            Mode::Definition => 1,
            Mode::Fast { pool, .. } => pool.threads(),
        }
    }

    /// Runs `task(0..n)`, on the pool where there is one.
    pub(crate) fn each(&self, n: usize, task: impl Fn(usize) + Sync) {
        run(self.mode, n, task);
    }

    /// Runs `task(0..n)`, each of about so many cycles, neighbours on one thread, and on one thread altogether where that is
    /// faster.
    pub(crate) fn each_row(&self, n: usize, cycles: usize, task: impl Fn(usize) + Sync) {
        let n_tasks = (n.saturating_mul(cycles) / WORTH_A_TASK).min(n).min(4 * self.threads());
        if n_tasks < 2 {
            return (0..n).for_each(task);
        }
        self.each(n_tasks, |t| (n * t / n_tasks..n * (t + 1) / n_tasks).for_each(&task));
    }
}

/// The matrices that an op multiplies with.
pub(crate) fn multiplied(op: &Op) -> Vec<MatrixId> {
    match op {
        Op::Linear { outs, .. } => outs.iter().map(|o| o.weight).collect(),
        Op::LinearAdd { weight, .. } => vec![*weight],
        Op::LinearGlu { gate, up, .. } => vec![*gate, *up],
        Op::ExpertGlu(e) => vec![e.gate, e.up],
        Op::ExpertAdd(e) => vec![e.down],
        _ => Vec::new(),
    }
}

/// Cycles, about, that are worth handing to another thread: a dispatch costs one or two thousand, and as much again in
/// lines that move between caches.
const WORTH_A_TASK: usize = 10_000;

pub(crate) fn run(mode: &Mode, n: usize, task: impl Fn(usize) + Sync) {
    match mode {
        Mode::Fast { pool, .. } if n > 1 => pool.run(n, &task),
        _ => (0..n).for_each(task),
    }
}

pub(crate) fn execute(op: &Op, cx: &Cx<'_>, scratch: &mut OpScratch, state: &mut StateMemory) {
    match op {
        Op::Embed { table, out } => row_ops::embed(cx, *table, *out),
        Op::Norm { x, norm, out, tap } => row_ops::norm(cx, *x, *norm, *out, *tap),
        Op::Select { x, out } => row_ops::select(cx, *x, *out),
        Op::Angles { inv_freq, magnitude, out } => row_ops::angles(cx, *inv_freq, *magnitude, *out),
        Op::GatedNorm { x, gate, norm, head_dim, out } => {
            row_ops::gated_norm(cx, *x, *gate, *norm, *head_dim, *out)
        }
        Op::Linear { x, outs } => linear::linear(cx, &mut scratch.quant, *x, outs),
        Op::LinearAdd { x, weight, bias, gate, stream } => {
            linear::linear_add(cx, &mut scratch.quant, *x, *weight, *bias, *gate, *stream)
        }
        Op::LinearGlu { x, gate, up, glu, out } => {
            linear::linear_glu(cx, &mut scratch.quant, *x, *gate, *up, *glu, *out)
        }
        Op::AttentionPrepare(op) => attention_prepare::run(cx, op, attention_layer(state, op.layer)),
        Op::Attention(op) => attention::run(cx, op, attention_layer(state, op.layer)),
        Op::RecurrentPrepare(op) => recurrent_prepare::run(cx, op, recurrent_layer(state, op.layer)),
        Op::Recurrent(op) => recurrent::run(cx, op, recurrent_layer(state, op.layer)),
        Op::Route(op) => experts::route(cx, op),
        Op::ExpertGlu(op) => experts::glu(cx, scratch, op),
        Op::ExpertAdd(op) => experts::add(cx, scratch, op),
        Op::LoadTaps { out } => row_ops::load_taps(cx, state, *out),
        Op::Concat { xs, out } => row_ops::concat(cx, xs, *out),
        Op::TopTokens { logits, choice } => top_tokens::run(cx, &mut scratch.slices, *logits, *choice),
        Op::Sample { logits, choice } => sample::run(cx, *logits, *choice),
    }
}

fn attention_layer(state: &mut StateMemory, layer: usize) -> &mut crate::memory::AttentionMemory {
    match &mut state.layers[layer] {
        LayerMemory::Attention(a) => a,
        LayerMemory::Recurrent(_) => unreachable!("plan and state were made from one layer list"),
    }
}

fn recurrent_layer(state: &mut StateMemory, layer: usize) -> &mut crate::memory::RecurrentMemory {
    match &mut state.layers[layer] {
        LayerMemory::Recurrent(r) => r,
        LayerMemory::Attention(_) => unreachable!("plan and state were made from one layer list"),
    }
}
