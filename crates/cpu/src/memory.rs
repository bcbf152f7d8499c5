//! The backend's own memory: kept state of sequences, and a plan's scratch.

use std::iter::StepBy;
use std::ops::Range;

use half::{bf16, f16};
use overdraft_plan::{
    Act, ActSpec, AttentionState, CONV_ROWS, Choice, KvType, LayerState, Op, PAGE, Plan, RecurrentState,
    RowSet, StateSpec, TAP_ROWS, WINDOW_ROWS, Weights,
};

use crate::shared::Shared;

/// Keys and values of one layer: `[page, k or v, kv head, plane]`. A plane of values is `[position in page, head_dim]`,
/// one of keys `[head_dim, position in page]`: scores of a page are then sums over channels with positions side by
/// side, where dot products would need the lanes of a vector added up for every single score.
pub(crate) enum KvMemory {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
}

pub(crate) struct AttentionMemory {
    pub(crate) shape: AttentionState,
    pub(crate) kv: KvMemory,
}

impl AttentionMemory {
    pub(crate) fn layout(&self) -> KvLayout {
        KvLayout { kv_heads: self.shape.kv_heads, head_dim: self.shape.head_dim }
    }
}

/// Where things are in a [`KvMemory`].
#[derive(Clone, Copy)]
pub(crate) struct KvLayout {
    kv_heads: usize,
    head_dim: usize,
}

impl KvLayout {
    pub(crate) fn keys(&self, page: usize, head: usize) -> Range<usize> {
        self.plane(page * 2 * self.kv_heads + head)
    }

    pub(crate) fn values(&self, page: usize, head: usize) -> Range<usize> {
        self.plane((page * 2 + 1) * self.kv_heads + head)
    }

    fn plane(&self, index: usize) -> Range<usize> {
        let len = PAGE * self.head_dim;
        index * len..(index + 1) * len
    }

    /// The channels of the key at KV slot `slot`, which lies in `page`.
    pub(crate) fn key(&self, page: usize, head: usize, slot: u32) -> StepBy<Range<usize>> {
        let plane = self.keys(page, head);
        (plane.start + slot as usize % PAGE..plane.end).step_by(PAGE)
    }

    /// The value at KV slot `slot`, which lies in `page`.
    pub(crate) fn value(&self, page: usize, head: usize, slot: u32) -> Range<usize> {
        let start = self.values(page, head).start + slot as usize % PAGE * self.head_dim;
        start..start + self.head_dim
    }
}

/// One recurrent layer of every slot.
pub(crate) struct RecurrentMemory {
    pub(crate) shape: RecurrentState,
    /// `[slot, value head, key_dim, value_dim]`
    pub(crate) s: Vec<f32>,
    /// `[slot, position mod WINDOW_ROWS, k of key heads | delta of value heads | g of value heads]`
    pub(crate) window: Vec<f32>,
    /// `[slot, position mod CONV_ROWS, conv_width]`
    pub(crate) conv: Vec<f32>,
    /// The convolution's input before a sequence starts: `[conv_width]`
    pub(crate) zeros: Vec<f32>,
}

pub(crate) enum LayerMemory {
    Attention(AttentionMemory),
    Recurrent(RecurrentMemory),
}

pub(crate) struct StateMemory {
    pub(crate) layers: Vec<LayerMemory>,
    pub(crate) pages: Vec<usize>,
    pub(crate) slots: usize,
    /// `[slot, position mod TAP_ROWS, tap_width]`
    pub(crate) taps: Vec<f32>,
    pub(crate) tap_width: usize,
}

impl StateMemory {
    pub(crate) fn new(spec: &StateSpec) -> Self {
        let layers = spec
            .layers
            .iter()
            .map(|layer| match layer {
                LayerState::Attention(a) => {
                    let len = spec.pages[a.class] * 2 * a.kv_heads * PAGE * a.head_dim;
                    let kv = match spec.kv {
                        KvType::F32 => KvMemory::F32(vec![0.0; len]),
                        KvType::F16 => KvMemory::F16(zeroed(len)),
                        KvType::Bf16 => KvMemory::Bf16(zeroed(len)),
                    };
                    LayerMemory::Attention(AttentionMemory { shape: *a, kv })
                }
                LayerState::Recurrent(r) => LayerMemory::Recurrent(RecurrentMemory {
                    shape: *r,
                    s: vec![0.0; spec.slots * r.state_len()],
                    window: vec![0.0; spec.slots * WINDOW_ROWS * r.window_row_len()],
                    conv: vec![0.0; spec.slots * CONV_ROWS * r.conv_width()],
                    zeros: vec![0.0; r.conv_width()],
                }),
            })
            .collect();
        Self {
            layers,
            pages: spec.pages.clone(),
            slots: spec.slots,
            taps: vec![0.0; spec.slots * TAP_ROWS * spec.tap_width],
            tap_width: spec.tap_width,
        }
    }

    /// A new sequence starts from S = 0; window and convolution rows are only read where this sequence wrote them.
    pub(crate) fn reset_slot(&mut self, slot: usize) {
        for layer in &mut self.layers {
            if let LayerMemory::Recurrent(r) = layer {
                let len = r.shape.state_len();
                r.s[slot * len..(slot + 1) * len].fill(0.0);
            }
        }
    }

    /// All that a slot keeps, so that the sequence in `to` goes on as the one in `from` would.
    pub(crate) fn copy_slot(&mut self, from: usize, to: usize) {
        for layer in &mut self.layers {
            if let LayerMemory::Recurrent(r) = layer {
                copy_part(&mut r.s, r.shape.state_len(), from, to);
                copy_part(&mut r.window, WINDOW_ROWS * r.shape.window_row_len(), from, to);
                copy_part(&mut r.conv, CONV_ROWS * r.shape.conv_width(), from, to);
            }
        }
        copy_part(&mut self.taps, TAP_ROWS * self.tap_width, from, to);
    }
}

/// Copies part `from` of a buffer of parts that are `len` long to part `to`.
fn copy_part(buffer: &mut [f32], len: usize, from: usize, to: usize) {
    buffer.copy_within(from * len..(from + 1) * len, to * len);
}

/// Floats of 16 bits, which are wrappers of a `u16`.
trait Half {}
impl Half for f16 {}
impl Half for bf16 {}

/// `vec![f16::ZERO; n]` writes every page; this leaves them untouched until used, as `vec![0.0f32; n]` does.
fn zeroed<T: Half>(len: usize) -> Vec<T> {
    let mut bits = std::mem::ManuallyDrop::new(vec![0u16; len]);
    // SAFETY: both halves are transparent wrappers of u16, so size, alignment and every bit pattern agree; the original
    // vector is not dropped.
    unsafe { Vec::from_raw_parts(bits.as_mut_ptr().cast::<T>(), bits.len(), bits.capacity()) }
}

/// A plan with the places of its buffers.
pub(crate) struct PlanMemory {
    pub(crate) plan: Plan,
    offsets: Vec<usize>,
    choice_offsets: Vec<usize>,
    /// Rows of the smallest embedding table: the bound of token ids.
    pub(crate) vocab: usize,
    /// Rows of the last run, for [`Self::read`].
    pub(crate) n_rows: usize,
    pub(crate) n_logits: usize,
}

/// The buffers all plans take turns with: one runs at a time, and what it leaves is read before the next. Of its own
/// each plan's would be touched for the first time in its first step, which made that step twice as long.
#[derive(Default)]
pub(crate) struct Arena {
    acts: Vec<f32>,
    choices: Vec<(u32, f32)>,
}

impl PlanMemory {
    /// Lays out the plan's buffers, and makes room for them.
    pub(crate) fn new(plan: Plan, weights: &Weights, arena: &mut Arena) -> Self {
        let tables = plan.ops.iter().filter_map(|op| match op {
            Op::Embed { table, .. } => Some(weights.matrix(*table).rows),
            _ => None,
        });
        let vocab = tables.min().unwrap_or(usize::MAX);
        let mut offsets = Vec::with_capacity(plan.acts.len());
        let mut total = 0;
        for act in &plan.acts {
            offsets.push(total);
            total += act.width * plan.capacity(act.rows);
        }
        let mut choice_offsets = Vec::with_capacity(plan.choices.len());
        let mut n_choices = 0;
        for choice in &plan.choices {
            choice_offsets.push(n_choices);
            n_choices += choice.width * plan.capacity(choice.rows);
        }
        if arena.acts.len() < total {
            // Not resized: nothing in it is worth copying, and zeroed memory comes without being touched.
            arena.acts = vec![0.0; total];
        }
        if arena.choices.len() < n_choices {
            arena.choices = vec![(0, 0.0); n_choices];
        }
        Self { plan, offsets, choice_offsets, vocab, n_rows: 0, n_logits: 0 }
    }

    pub(crate) fn split<'a>(&'a self, arena: &'a mut Arena) -> (&'a Plan, Acts<'a>) {
        let acts = Acts {
            plan: &self.plan,
            offsets: &self.offsets,
            acts: Shared::new(&mut arena.acts),
            choice_offsets: &self.choice_offsets,
            choices: Shared::new(&mut arena.choices),
            n_rows: self.n_rows,
            n_logits: self.n_logits,
        };
        (&self.plan, acts)
    }

    pub(crate) fn read<'a>(&self, arena: &'a Arena, act: Act) -> &'a [f32] {
        let spec = self.plan.act(act);
        let start = self.offsets[act.0 as usize];
        &arena.acts[start..start + self.rows(spec) * spec.width]
    }

    pub(crate) fn read_choices<'a>(&self, arena: &'a Arena, choice: Choice) -> &'a [(u32, f32)] {
        let spec = self.plan.choices[choice.0 as usize];
        let start = self.choice_offsets[choice.0 as usize];
        &arena.choices[start..start + self.rows(spec) * spec.width]
    }

    fn rows(&self, spec: ActSpec) -> usize {
        match spec.rows {
            RowSet::Step => self.n_rows,
            RowSet::Logits => self.n_logits,
        }
    }
}

/// A plan's buffers while it runs.
pub(crate) struct Acts<'a> {
    plan: &'a Plan,
    offsets: &'a [usize],
    acts: Shared<'a, f32>,
    choice_offsets: &'a [usize],
    choices: Shared<'a, (u32, f32)>,
    n_rows: usize,
    n_logits: usize,
}

impl<'a> Acts<'a> {
    pub(crate) fn width(&self, act: Act) -> usize {
        self.plan.act(act).width
    }

    /// Rows this run has in the buffer.
    pub(crate) fn rows(&self, act: Act) -> usize {
        match self.plan.act(act).rows {
            RowSet::Step => self.n_rows,
            RowSet::Logits => self.n_logits,
        }
    }

    /// All rows of the buffer.
    ///
    /// # Safety
    /// No task writes the buffer meanwhile.
    pub(crate) unsafe fn all(&self, act: Act) -> &'a [f32] {
        let start = self.offsets[act.0 as usize];
        // SAFETY: passed on to the caller.
        unsafe { self.acts.read(start..start + self.rows(act) * self.width(act)) }
    }

    /// # Safety
    /// No task writes this row meanwhile.
    pub(crate) unsafe fn row(&self, act: Act, r: usize) -> &'a [f32] {
        let (start, width) = (self.offsets[act.0 as usize], self.width(act));
        // SAFETY: passed on to the caller.
        unsafe { self.acts.read(start + r * width..start + (r + 1) * width) }
    }

    /// # Safety
    /// No other task touches this row meanwhile.
    pub(crate) unsafe fn row_mut(&self, act: Act, r: usize) -> &'a mut [f32] {
        let width = self.width(act);
        // SAFETY: passed on to the caller.
        unsafe { self.part_mut(act, r, 0..width) }
    }

    /// # Safety
    /// No task writes these columns of the row meanwhile.
    pub(crate) unsafe fn part(&self, act: Act, r: usize, columns: Range<usize>) -> &'a [f32] {
        let (start, width) = (self.offsets[act.0 as usize], self.width(act));
        assert!(columns.end <= width);
        // SAFETY: passed on to the caller.
        unsafe { self.acts.read(start + r * width + columns.start..start + r * width + columns.end) }
    }

    /// # Safety
    /// No other task touches these columns of the row meanwhile.
    pub(crate) unsafe fn part_mut(&self, act: Act, r: usize, columns: Range<usize>) -> &'a mut [f32] {
        let (start, width) = (self.offsets[act.0 as usize], self.width(act));
        assert!(columns.end <= width);
        // SAFETY: passed on to the caller.
        unsafe { self.acts.write(start + r * width + columns.start..start + r * width + columns.end) }
    }

    pub(crate) fn choices_per_row(&self, choice: Choice) -> usize {
        self.plan.choices[choice.0 as usize].width
    }

    /// The k experts of row `r`.
    ///
    /// # Safety
    /// No other task touches this row's choice while it is written.
    pub(crate) unsafe fn choice_mut(&self, choice: Choice, r: usize) -> &'a mut [(u32, f32)] {
        let k = self.plan.choices[choice.0 as usize].width;
        let start = self.choice_offsets[choice.0 as usize] + r * k;
        // SAFETY: passed on to the caller.
        unsafe { self.choices.write(start..start + k) }
    }

    /// # Safety
    /// No task writes the choices meanwhile.
    pub(crate) unsafe fn choices(&self, choice: Choice) -> (&'a [(u32, f32)], usize) {
        let k = self.plan.choices[choice.0 as usize].width;
        let start = self.choice_offsets[choice.0 as usize];
        // SAFETY: passed on to the caller.
        (unsafe { self.choices.read(start..start + self.n_rows * k) }, k)
    }
}
