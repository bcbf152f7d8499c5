//! What a sequence keeps between steps: KV pages of attention layers, grid state and window of recurrent layers.

/// Positions in a KV page. Prompt chunks end at multiples of it, and attention reduces in groups of it.
pub const PAGE: usize = 64;
/// The recurrent state `S` is kept at multiples of this many positions.
pub const GRID: usize = 16;
/// No drafted path goes deeper below its root, whatever the drafter: the grid lags by as much, so the state that
/// any row needs is a function of committed rows only.
pub const MAX_DRAFT_DEPTH: usize = 16;
/// Window rows kept per sequence, at index position mod this: from the stored grid (at most 31 behind the last
/// root) to the end of 17 accepted rows.
pub const WINDOW_ROWS: usize = 48;
/// Pre-convolution rows kept per sequence, at index position mod this. Three are needed; the fourth lets a step
/// write its root without touching what a repeated step would read.
pub const CONV_ROWS: usize = 4;
/// Rows of taps kept per sequence, at index position mod this: up to 15 that plain decoding left waiting, and the 17
/// that a round can add.
pub const TAP_ROWS: usize = 32;
/// Page-table entry of a position range that is not held.
pub const NO_PAGE: u32 = u32::MAX;

/// The grid position whose `S` a row at `pos` starts from: the multiple of [`GRID`] that lies 16 to 31 behind.
pub fn grid_of(pos: u32) -> u32 {
    let grid = GRID as u32;
    if pos < grid { 0 } else { (pos - grid) / grid * grid }
}

/// How keys and values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvType {
    F32,
    F16,
    Bf16,
}

impl KvType {
    pub fn bytes(self) -> usize {
        match self {
            KvType::F32 => 4,
            KvType::F16 | KvType::Bf16 => 2,
        }
    }
}

/// Which positions a class of layers must keep. Each class has its own page table, so a windowed layer never
/// holds a full context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retention {
    Full,
    /// The last so many positions, the row's own included.
    Sliding(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionState {
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Index into [`StateSpec::classes`].
    pub class: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecurrentState {
    pub key_heads: usize,
    pub value_heads: usize,
    pub key_dim: usize,
    pub value_dim: usize,
}

impl RecurrentState {
    /// Width of the convolved vector: all q, all k, all v.
    pub fn conv_width(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
    }

    /// Floats of `S` for one sequence: `[value_heads, key_dim, value_dim]`.
    pub fn state_len(&self) -> usize {
        self.value_heads * self.key_dim * self.value_dim
    }

    /// Floats of one window row: k of every key head, delta and g of every value head.
    pub fn window_row_len(&self) -> usize {
        self.key_heads * self.key_dim + self.value_heads * self.value_dim + self.value_heads
    }
}

/// State of one layer; ops name layers by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerState {
    Attention(AttentionState),
    Recurrent(RecurrentState),
}

/// What to allocate for a model's sequences.
#[derive(Clone, Debug)]
pub struct StateSpec {
    pub layers: Vec<LayerState>,
    pub classes: Vec<Retention>,
    /// Pages of each class; a page holds [`PAGE`] positions of every layer of its class.
    pub pages: Vec<usize>,
    /// Sequences that can be alive at once.
    pub slots: usize,
    pub kv: KvType,
    /// Floats of one row of taps that wait for the draft; 0 without one.
    pub tap_width: usize,
}

impl StateSpec {
    /// Bytes of one page of `class`, over all its layers.
    pub fn page_bytes(&self, class: usize) -> usize {
        let per_position: usize = self
            .layers
            .iter()
            .filter_map(|l| match l {
                LayerState::Attention(a) if a.class == class => Some(2 * a.kv_heads * a.head_dim),
                _ => None,
            })
            .sum();
        per_position * PAGE * self.kv.bytes()
    }

    /// Bytes of one slot's recurrent layers: (`S`, window and convolution rows).
    pub fn slot_bytes(&self) -> (usize, usize) {
        let mut sum = (0, 0);
        for layer in &self.layers {
            if let LayerState::Recurrent(r) = layer {
                sum.0 += r.state_len() * 4;
                sum.1 += (WINDOW_ROWS * r.window_row_len() + CONV_ROWS * r.conv_width()) * 4;
            }
        }
        sum
    }

    /// Bytes of one slot's waiting taps.
    pub fn tap_bytes(&self) -> usize {
        TAP_ROWS * self.tap_width * 4
    }

    /// Everything this spec allocates.
    pub fn n_bytes(&self) -> usize {
        let pages: usize = self.pages.iter().enumerate().map(|(c, n)| n * self.page_bytes(c)).sum();
        let (s, rows) = self.slot_bytes();
        pages + self.slots * (s + rows + self.tap_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grid_lags_sixteen_to_thirty_one_positions() {
        for (pos, grid) in [(0, 0), (15, 0), (16, 0), (31, 0), (32, 16), (47, 16), (48, 32), (1000, 976)] {
            assert_eq!(grid_of(pos), grid, "position {pos}");
        }
    }

    #[test]
    fn beyond_s_a_27b_sequence_keeps_at_most_80_mib() {
        let layer = RecurrentState { key_heads: 16, value_heads: 48, key_dim: 128, value_dim: 128 };
        let spec = StateSpec {
            layers: vec![LayerState::Recurrent(layer); 48],
            classes: vec![],
            pages: vec![],
            slots: 1,
            kv: KvType::F16,
            tap_width: 0,
        };
        let (s, rows) = spec.slot_bytes();
        assert_eq!(s, 144 << 20);
        assert!(rows <= 80 << 20, "{rows} bytes");
    }
}
