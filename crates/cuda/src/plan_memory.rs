//! A plan with the places of its buffers in the arena that all plans take turns with.

use overdraft_plan::{Act, ActSpec, Choice, Op, Plan, RowSet, Weights};

use crate::linear::LinearKernels;
use crate::ops::{attention, expert_tiles, prompt_linear, recurrent, router};
use crate::weights::ALIGN;

/// Bytes of a choice: index and weight.
pub(crate) const CHOICE_BYTES: usize = 8;

struct Image {
    act: Act,
    at: usize,
    squares: usize,
}

pub(crate) struct PlanMemory {
    pub(crate) plan: Plan,
    acts: Vec<usize>,
    choices: Vec<usize>,
    /// Images of the inputs of linear ops, where the fast kernels want any.
    images: Vec<Image>,
    /// Of the image of one input's rows of prompts, which inputs take turns with.
    pub(crate) prompt_image: usize,
    /// Of the largest attention op's partial results.
    pub(crate) partials: usize,
    /// Of the largest recurrent op's keys, a copy for every value head.
    pub(crate) keys: usize,
    /// Of what a prompt's rows count for each other in the largest recurrent op.
    pub(crate) walked: usize,
    /// Of what an expert that every row has adds to written rows, layers taking turns.
    pub(crate) shared_parts: usize,
    /// Bytes of the arena the plan needs.
    pub(crate) n_bytes: usize,
    /// Counters of its attention and recurrent ops and its routers, which take turns with them.
    pub(crate) n_counters: usize,
    /// Rows of the last run.
    pub(crate) n_rows: usize,
    pub(crate) n_logits: usize,
}

impl PlanMemory {
    pub(crate) fn new(plan: Plan, fast: Option<&dyn LinearKernels>) -> Self {
        let mut total = 0usize;
        let mut place = |bytes: usize| {
            let at = total;
            total = (total + bytes).next_multiple_of(ALIGN);
            at
        };
        let acts = plan.acts.iter().map(|a| place(4 * a.width * plan.capacity(a.rows))).collect();
        let choices =
            plan.choices.iter().map(|c| place(CHOICE_BYTES * c.width * plan.capacity(c.rows))).collect();
        let mut images: Vec<Image> = Vec::new();
        for (fast, act) in plan.ops.iter().filter_map(|op| fast.zip(prompt_linear::input(op))) {
            let (rows, width) = (prompt_linear::imaged_rows(&plan, act, fast), plan.act(act).width);
            let bytes = fast.image_bytes(rows, width);
            if bytes > 0 && !images.iter().any(|i| i.act == act) {
                let n_cells = fast.image_shape(rows, width).n_blocks as usize;
                images.push(Image { act, at: place(bytes), squares: place(4 * rows * n_cells) });
            }
        }
        let prompt_image = place(prompt_linear::image_bytes(&plan, fast));
        let ops = || plan.ops.iter().filter_map(|op| if let Op::Attention(a) = op { Some(a) } else { None });
        let partials = place(ops().map(|a| attention::partial_bytes(a, plan.bucket)).max().unwrap_or(0));
        let recurrent_bytes = plan.ops.iter().map(|op| recurrent::key_bytes(&plan, op));
        let keys = place(recurrent_bytes.max().unwrap_or(0));
        let walked = plan.ops.iter().map(|op| recurrent::walked_bytes(&plan, op));
        let walked = place(walked.max().unwrap_or(0));
        let shared_parts = place(expert_tiles::shared_bytes(&plan, fast));
        let n_counters = ops().map(|a| attention::n_counters(a, plan.bucket));
        let n_counters = n_counters.chain(plan.ops.iter().map(|op| recurrent::n_counters(&plan, op)));
        let n_counters = n_counters.max().unwrap_or(0).max(router::n_counters(&plan));
        Self {
            acts,
            choices,
            images,
            prompt_image,
            partials,
            keys,
            walked,
            shared_parts,
            n_bytes: total,
            n_counters,
            n_rows: 0,
            n_logits: 0,
            plan,
        }
    }

    /// From the start of the arena, in bytes.
    pub(crate) fn act(&self, act: Act) -> usize {
        self.acts[act.0 as usize]
    }

    pub(crate) fn choice(&self, choice: Choice) -> usize {
        self.choices[choice.0 as usize]
    }

    pub(crate) fn image(&self, act: Act) -> Option<usize> {
        self.images.iter().find(|i| i.act == act).map(|i| i.at)
    }

    /// Of the sums of squares of each 128 columns of a row, where an image is of rows that a norm has not divided yet.
    pub(crate) fn squares(&self, act: Act) -> Option<usize> {
        self.images.iter().find(|i| i.act == act).map(|i| i.squares)
    }

    /// Rows the last run had in a buffer of this kind.
    pub(crate) fn rows(&self, spec: ActSpec) -> usize {
        match spec.rows {
            RowSet::Step => self.n_rows,
            RowSet::Logits => self.n_logits,
        }
    }

    /// Rows of the smallest embedding table: the bound of token ids.
    pub(crate) fn vocab(&self, weights: &Weights) -> usize {
        let tables = self.plan.ops.iter().filter_map(|op| match op {
            Op::Embed { table, .. } => Some(weights.matrix(*table).rows),
            _ => None,
        });
        tables.min().unwrap_or(usize::MAX)
    }
}
