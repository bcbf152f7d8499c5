//! What sequences keep between steps, on the device. Layouts are the CPU backend's.

use std::sync::Arc;

use overdraft_plan::{
    AttentionState, CONV_ROWS, KvType, LayerState, PAGE, RecurrentState, StateSpec, WINDOW_ROWS,
};

use crate::driver::{Device, DeviceBuffer, Queue, Result};
use crate::ops::recurrent;

pub(crate) struct AttentionMemory {
    pub(crate) shape: AttentionState,
    /// `[page, k or v, kv head, position in page, head_dim]`
    pub(crate) kv: DeviceBuffer,
}

pub(crate) struct RecurrentMemory {
    pub(crate) shape: RecurrentState,
    /// `[slot, value head, key_dim, value_dim]`
    pub(crate) s: DeviceBuffer,
    /// `[slot, position mod WINDOW_ROWS, k of key heads | delta of value heads | g of value heads]`
    pub(crate) window: DeviceBuffer,
    /// `[slot, position mod CONV_ROWS, conv_width]`
    pub(crate) conv: DeviceBuffer,
}

pub(crate) enum LayerMemory {
    Attention(AttentionMemory),
    Recurrent(RecurrentMemory),
}

pub(crate) struct StateMemory {
    layers: Vec<LayerMemory>,
    pub(crate) pages: Vec<usize>,
    pub(crate) slots: usize,
    pub(crate) kv: KvType,
    /// `[slot, position mod TAP_ROWS, tap_width]`
    pub(crate) taps: DeviceBuffer,
    pub(crate) tap_width: usize,
}

impl StateMemory {
    pub(crate) fn new(device: &Arc<Device>, queue: &Queue, spec: &StateSpec) -> Result<Self> {
        let zeroed = |what: &'static str, len: usize| {
            let buffer = DeviceBuffer::new(device, what, len)?;
            queue.clear(&buffer, 0, len)?;
            Ok(buffer)
        };
        for layer in &spec.layers {
            if let LayerState::Recurrent(r) = layer {
                recurrent::check(r)?;
            }
        }
        let mut layers = Vec::with_capacity(spec.layers.len());
        for layer in &spec.layers {
            layers.push(match layer {
                LayerState::Attention(a) => {
                    let len = spec.pages[a.class] * 2 * a.kv_heads * PAGE * a.head_dim * spec.kv.bytes();
                    LayerMemory::Attention(AttentionMemory { shape: *a, kv: zeroed("KV pages", len)? })
                }
                LayerState::Recurrent(r) => LayerMemory::Recurrent(RecurrentMemory {
                    shape: *r,
                    s: zeroed("recurrent state", 4 * spec.slots * r.state_len())?,
                    window: zeroed("recurrent windows", 4 * spec.slots * WINDOW_ROWS * r.window_row_len())?,
                    conv: zeroed("convolution rows", 4 * spec.slots * CONV_ROWS * r.conv_width())?,
                }),
            });
        }
        let taps = zeroed("waiting taps", spec.slots * spec.tap_bytes())?;
        queue.wait()?;
        let (pages, slots, kv, tap_width) = (spec.pages.clone(), spec.slots, spec.kv, spec.tap_width);
        Ok(Self { layers, pages, slots, kv, taps, tap_width })
    }

    /// A new sequence starts from S = 0; window and convolution rows are only read where this sequence wrote them.
    pub(crate) fn reset_slot(&self, queue: &Queue, slot: usize) -> Result<()> {
        for layer in &self.layers {
            if let LayerMemory::Recurrent(r) = layer {
                let len = 4 * r.shape.state_len();
                queue.clear(&r.s, slot * len, len)?;
            }
        }
        Ok(())
    }

    /// All that a slot keeps, so that the sequence in `to` goes on as the one in `from` would.
    pub(crate) fn copy_slot(&self, queue: &Queue, from: usize, to: usize) -> Result<()> {
        // Every one of these buffers begins with the slot.
        let copy = |buffer: &DeviceBuffer| {
            let len = buffer.len() / self.slots;
            queue.copy_within(buffer, from * len, to * len, len)
        };
        for layer in &self.layers {
            if let LayerMemory::Recurrent(r) = layer {
                copy(&r.s)?;
                copy(&r.window)?;
                copy(&r.conv)?;
            }
        }
        copy(&self.taps)
    }

    pub(crate) fn attention(&self, layer: usize) -> &AttentionMemory {
        match &self.layers[layer] {
            LayerMemory::Attention(a) => a,
            LayerMemory::Recurrent(_) => unreachable!("plan and state were made from one layer list"),
        }
    }

    pub(crate) fn recurrent(&self, layer: usize) -> &RecurrentMemory {
        match &self.layers[layer] {
            LayerMemory::Recurrent(r) => r,
            LayerMemory::Attention(_) => unreachable!("plan and state were made from one layer list"),
        }
    }

    /// As `step.cuh` numbers them.
    pub(crate) fn kv_type(&self) -> u32 {
        match self.kv {
            KvType::F32 => 0,
            KvType::F16 => 1,
            KvType::Bf16 => 2,
        }
    }
}
