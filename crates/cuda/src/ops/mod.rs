//! The ops, one idea a file: the parameters of its kernel, and how many blocks it takes. Kernels trust what is passed;
//! shapes come from one recorded plan and the state made for it.

pub(crate) mod attention;
pub(crate) mod commit;
pub(crate) mod expert_tiles;
mod experts;
mod folded_norm;
mod linear;
pub(crate) mod prompt_linear;
pub(crate) mod recurrent;
pub(crate) mod router;
mod row_ops;
mod sample;

use std::cell::{Cell, RefCell};

use overdraft_plan::{Act, Choice, MatrixId, Op, Plan, RowSet, Weights};

use crate::driver::{CudaError, KernelParams, Result};
use crate::linear::{Gpu, ImageShape, LinearKernels};
use crate::plan_memory::PlanMemory;
use crate::state::StateMemory;
use crate::step_data::StepView;
use crate::weights::DeviceWeights;

/// What an op is launched with. Addresses are fixed from one replay to the next.
pub(crate) struct Cx<'a> {
    pub(crate) gpu: Gpu<'a>,
    pub(crate) weights: &'a DeviceWeights,
    pub(crate) memory: &'a PlanMemory,
    pub(crate) state: &'a StateMemory,
    /// Sequences that a step can have: as many as the state has places for, of a round no more than it is for.
    pub(crate) n_seqs: usize,
    pub(crate) step: StepView,
    /// Of the arena.
    pub(crate) base: u64,
    /// Of counters that are zero between launches.
    pub(crate) counters: u64,
    /// Inputs whose images are those of what they now hold.
    pub(crate) imaged: RefCell<Images>,
    /// The input whose rows of prompts the one image for them is of.
    pub(crate) prompt_image: Cell<Option<Act>>,
}

#[derive(Default)]
pub(crate) struct Images {
    made: Vec<Act>,
    /// Of those, what a norm has multiplied but not divided, and its `eps`.
    undivided: Vec<(Act, f32)>,
}

impl Images {
    fn forget(&mut self, written: &[Act]) {
        self.made.retain(|act| !written.contains(act));
        self.undivided.retain(|(act, _)| !written.contains(act));
    }
}

impl Cx<'_> {
    /// For another launch of all ops, which finds no image made.
    pub(crate) fn again(&self) -> Self {
        Self { imaged: RefCell::default(), prompt_image: Cell::default(), ..*self }
    }

    pub(crate) fn plan(&self) -> &Plan {
        &self.memory.plan
    }

    pub(crate) fn act(&self, act: Act) -> u64 {
        self.base + self.memory.act(act) as u64
    }

    pub(crate) fn opt_act(&self, act: Option<Act>) -> u64 {
        act.map_or(0, |a| self.act(a))
    }

    pub(crate) fn choice(&self, choice: Choice) -> u64 {
        self.base + self.memory.choice(choice) as u64
    }

    pub(crate) fn width(&self, act: Act) -> usize {
        self.plan().act(act).width
    }

    /// Choices per row.
    pub(crate) fn k(&self, choice: Choice) -> usize {
        self.plan().choices[choice.0 as usize].width
    }

    /// Where the device finds how many rows a buffer has.
    pub(crate) fn count(&self, act: Act) -> u64 {
        match self.plan().act(act).rows {
            RowSet::Step => self.step.counts,
            RowSet::Logits => self.step.counts + 4,
        }
    }

    /// How many rows a buffer can have.
    pub(crate) fn capacity(&self, act: Act) -> u32 {
        self.plan().capacity(self.plan().act(act).rows) as u32
    }

    /// Where an op that makes `out` writes its image too, and its shape; 0 where there is none. From now on it counts as
    /// made.
    pub(crate) fn image_to_make(&self, out: Act) -> (u64, ImageShape) {
        let Some((fast, at)) = self.weights.fast().zip(self.memory.image(out)) else {
            return (0, ImageShape::default());
        };
        // An image of the written rows alone is made by itself: ops that make an input do so for all rows.
        if self.rows_of_image(out, fast).bucket < self.capacity(out) as usize {
            return (0, ImageShape::default());
        }
        self.imaged.borrow_mut().made.push(out);
        (self.base + at as u64, fast.image_shape(self.capacity(out) as usize, self.width(out)))
    }

    /// From now on the image of `out` is that of what a norm makes, not yet divided.
    fn made_undivided(&self, out: Act, eps: f32) {
        let mut images = self.imaged.borrow_mut();
        images.forget(&[out]);
        images.made.push(out);
        images.undivided.push((out, eps));
    }

    /// What the op writes is no longer what its images hold.
    fn forget_images(&self, op: &Op) {
        let written = written(op);
        self.imaged.borrow_mut().forget(&written);
        self.prompt_image.set(self.prompt_image.get().filter(|act| !written.contains(act)));
    }

    pub(crate) fn launch<P: KernelParams>(
        &self,
        kernel: (&'static str, &'static str),
        grid: [usize; 3],
        threads: u32,
        shared_bytes: usize,
        params: &P,
    ) -> Result<()> {
        self.gpu.launch(kernel, grid, threads, shared_bytes, params)
    }
}

/// Matrices of a linear op, which all run on the same kernel.
fn linear_matrices(op: &Op) -> Vec<MatrixId> {
    match op {
        Op::Linear { outs, .. } => outs.iter().map(|o| o.weight).collect(),
        Op::LinearAdd { weight, .. } => vec![*weight],
        Op::LinearGlu { gate, up, .. } => vec![*gate, *up],
        _ => Vec::new(),
    }
}

/// The buffers an op writes, whose images are then stale.
fn written(op: &Op) -> Vec<Act> {
    match op {
        Op::Embed { out, .. }
        | Op::Select { out, .. }
        | Op::LinearGlu { out, .. }
        | Op::Angles { out, .. }
        | Op::GatedNorm { out, .. }
        | Op::LoadTaps { out }
        | Op::Concat { out, .. } => vec![*out],
        Op::Norm { out, tap, .. } => [*out].into_iter().chain(*tap).collect(),
        Op::Linear { outs, .. } => outs.iter().map(|o| o.out).collect(),
        Op::LinearAdd { stream, .. } => vec![*stream],
        Op::AttentionPrepare(a) => [a.k].into_iter().chain(a.q).collect(),
        Op::Attention(a) => vec![a.out],
        Op::RecurrentPrepare(r) => vec![r.out, r.gates],
        Op::Recurrent(r) => vec![r.delta, r.out],
        Op::ExpertGlu(e) => vec![e.out],
        Op::ExpertAdd(e) => vec![e.parts, e.stream],
        Op::Route(_) | Op::TopTokens { .. } | Op::Sample { .. } => Vec::new(),
    }
}

/// In which form an op's matrices are wanted: as files hold them, or in tiles.
pub(crate) struct Wanted {
    pub(crate) matrices: Vec<MatrixId>,
    pub(crate) in_tiles: bool,
}

pub(crate) fn wanted(plan: &Plan, op: &Op, weights: &Weights, fast: Option<&dyn LinearKernels>) -> Wanted {
    let (matrices, has_kernels) = match op {
        Op::Embed { table, .. } => (vec![*table], false),
        Op::ExpertGlu(e) => (vec![e.gate, e.up], expert_tiles::glu_has_tiles(e, weights)),
        Op::ExpertAdd(e) => (vec![e.down], expert_tiles::are_whole_tiles(&[plan.act(e.stream).width])),
        _ => (linear_matrices(op), !router::takes(plan, weights, op)),
    };
    let takes = |fast: &dyn LinearKernels| matrices.iter().all(|id| fast.takes(weights.matrix(*id)));
    let in_tiles = has_kernels && fast.is_some_and(takes);
    Wanted { matrices, in_tiles }
}

/// Whether the op reads the buffer.
fn reads(op: &Op, act: Act) -> bool {
    match op {
        Op::Embed { .. } | Op::Angles { .. } | Op::LoadTaps { .. } => false,
        Op::Norm { x, .. } | Op::Select { x, .. } | Op::Linear { x, .. } | Op::LinearGlu { x, .. } => {
            *x == act
        }
        Op::LinearAdd { x, gate, stream, .. } => *x == act || *gate == Some(act) || *stream == act,
        Op::AttentionPrepare(a) => a.q == Some(act) || [a.k, a.v, a.angles].contains(&act),
        Op::Attention(a) => a.q == act,
        Op::RecurrentPrepare(r) => [r.qkv, r.b, r.a].contains(&act),
        Op::Recurrent(r) => [r.prepared, r.preconv, r.gates].contains(&act),
        Op::GatedNorm { x, gate, .. } => [*x, *gate].contains(&act),
        Op::Route(r) => r.logits == act,
        Op::ExpertGlu(e) => e.x == act,
        Op::ExpertAdd(e) => [e.h, e.stream].contains(&act),
        Op::Concat { xs, .. } => xs.contains(&act),
        Op::TopTokens { logits, .. } | Op::Sample { logits, .. } => *logits == act,
    }
}

/// Refuses what no kernel here can run, before anything is launched.
pub(crate) fn check(plan: &Plan, op: &Op) -> Result<()> {
    let refuse = |what: &str, why: String| Err(CudaError::Unsupported { what: what.into(), why });
    match op {
        Op::Attention(a) => attention::check(a.head_dim),
        Op::AttentionPrepare(a) => attention::check(a.head_dim),
        Op::Route(r) if r.n_experts > experts::MAX_EXPERTS => {
            refuse("the router", format!("it has {} experts, at most {}", r.n_experts, experts::MAX_EXPERTS))
        }
        Op::Route(r) if plan.choices[r.choice.0 as usize].width > experts::MAX_CHOSEN => {
            let k = plan.choices[r.choice.0 as usize].width;
            refuse("the router", format!("a row chooses {k} experts, at most {}", experts::MAX_CHOSEN))
        }
        Op::Concat { xs, .. } if xs.len() > row_ops::MAX_XS => {
            refuse("a concatenation", format!("it has {} parts, at most {}", xs.len(), row_ops::MAX_XS))
        }
        Op::Sample { logits, .. } if plan.act(*logits).width > sample::MAX_VOCAB => {
            let vocab = plan.act(*logits).width;
            refuse("the draw of tokens", format!("there are {vocab}, at most {}", sample::MAX_VOCAB))
        }
        _ if plan.taps.len() > commit::MAX_TAPS => {
            refuse("taps", format!("there are {}, at most {}", plan.taps.len(), commit::MAX_TAPS))
        }
        _ => Ok(()),
    }
}

/// All ops of the plan, in order; neighbours that one kernel can serve together.
pub(crate) fn launch_all(cx: &Cx<'_>) -> Result<()> {
    let mut rest = cx.plan().ops.as_slice();
    while let Some(op) = rest.first() {
        let taken = match recurrent::Fused::at(cx, rest) {
            Some(fused) => {
                rest[..fused.n_ops].iter().for_each(|op| cx.forget_images(op));
                recurrent::recurrent(cx, &fused)?;
                fused.n_ops
            }
            None if prompt_linear::input(op).is_some() => linear::launch(cx, rest)?,
            None => match op {
                Op::Embed { .. } | Op::LoadTaps { .. } => row_ops::first_rows(cx, rest)?,
                Op::AttentionPrepare(_) => attention::prepare(cx, rest)?,
                Op::Norm { .. } => router::launch(cx, rest)?,
                Op::ExpertGlu(_) => experts::first_half(cx, rest)?,
                Op::ExpertAdd(_) => experts::add(cx, rest)?,
                _ => {
                    launch(op, cx)?;
                    1
                }
            },
        };
        rest = &rest[taken..];
    }
    Ok(())
}

fn launch(op: &Op, cx: &Cx<'_>) -> Result<()> {
    cx.forget_images(op);
    match op {
        Op::Select { x, out } => row_ops::select(cx, *x, *out),
        Op::Angles { inv_freq, magnitude, out } => row_ops::angles(cx, *inv_freq, *magnitude, *out),
        Op::GatedNorm { x, gate, norm, head_dim, out } => {
            row_ops::gated_norm(cx, *x, *gate, *norm, *head_dim, *out)
        }
        Op::Attention(op) => attention::attention(cx, op),
        Op::RecurrentPrepare(_) | Op::Recurrent(_) => unreachable!("taken by `recurrent::Fused`"),
        Op::Linear { .. } | Op::LinearAdd { .. } | Op::LinearGlu { .. } => {
            unreachable!("taken by `linear::launch`")
        }
        Op::Embed { .. }
        | Op::LoadTaps { .. }
        | Op::Norm { .. }
        | Op::AttentionPrepare(_)
        | Op::ExpertGlu(_)
        | Op::ExpertAdd(_) => unreachable!("taken together with their neighbours"),
        Op::Route(op) => experts::route(cx, op),
        Op::Concat { xs, out } => row_ops::concat(cx, xs, *out),
        Op::TopTokens { logits, choice } => row_ops::top_tokens(cx, *logits, *choice),
        Op::Sample { logits, choice } => sample::sample(cx, *logits, *choice),
    }
}

/// (kind, alpha, limit) of `glu` in `common.cuh`.
fn glu_params(glu: overdraft_plan::Glu) -> (u32, f32, f32) {
    match glu {
        overdraft_plan::Glu::Swish => (0, 0.0, 0.0),
        overdraft_plan::Glu::Clamped { alpha, limit } => (1, alpha, limit),
    }
}

/// Declares the parameter struct of a kernel. `pad` keeps the layout free of holes.
macro_rules! kernel_params {
    ($(#[$meta:meta])* $name:ident { $($field:ident: $type:ty),* $(,)? }) => {
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy)]
        pub(crate) struct $name {
            $($field: $type,)*
        }
        // SAFETY: laid out field by field as the struct of the same name in the kernel's file, checked for holes below.
        unsafe impl crate::driver::KernelParams for $name {}
        const _: () = assert!(size_of::<$name>() == 0 $(+ size_of::<$type>())*, "no padding");
    };
}
pub(crate) use kernel_params;
