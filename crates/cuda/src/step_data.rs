//! A step as the device reads it: one block of words, packed into pinned memory and sent whole. `kernels/step.cuh` has
//! the same layout.

use overdraft_plan::draw::{Adjustment, Drawing, mix};
use overdraft_plan::{BUCKETS, GRID, MAX_DRAFT_DEPTH, Step, WINDOW_ROWS, grid_of};

/// Rows and sequences are eight words each.
const RECORD: usize = 8;
const COUNTS: usize = 8;
/// Words of what a sequence wants of its draws, and of a token that bias or penalties change (`listed.cuh`).
pub(crate) const DRAWING: usize = 16;
pub(crate) const ADJUSTMENT: usize = 3;
/// Earlier rows that a recurrent row can need.
const REACH: usize = 2 * GRID;
/// Marks a place in the kept window among `pasts`; other rows are there with their place among the sequence's rows.
const KEPT: u32 = 1 << 31;
/// Sure rows of a sequence from which on they count as a prompt's, which attention and recurrent layers walk through.
pub(crate) const PROMPT_ROWS: usize = 16;
const _: () = assert!(BUCKETS[BUCKETS.len() - 1] < 1 << 15, "a row and its place share a word");

/// Addresses of a step's parts on the device. Passed to kernels by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct StepView {
    pub(crate) counts: u64,
    rows: u64,
    paths: u64,
    pasts: u64,
    logit_rows: u64,
    seqs: u64,
    seq_rows: u64,
    table_at: u64,
    tables: u64,
    n_classes: u32,
    pad: u32,
}

impl StepView {
    /// With page tables that lie elsewhere.
    pub(crate) fn with_tables(self, tables: u64) -> Self {
        Self { tables, ..self }
    }

    /// Where the device finds how many rows stand before those of prompts.
    pub(crate) fn written(&self) -> u64 {
        self.counts + 12
    }
}

/// Where the parts lie for steps of up to `bucket` rows, in words. A sequence has at least a row, so there are no more
/// sequences than rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepLayout {
    bucket: usize,
    n_classes: usize,
}

impl StepLayout {
    pub(crate) fn new(bucket: usize, n_classes: usize) -> Self {
        Self { bucket, n_classes }
    }

    fn rows(&self) -> usize {
        COUNTS
    }

    fn paths(&self) -> usize {
        self.rows() + self.bucket * RECORD
    }

    fn pasts(&self) -> usize {
        self.paths() + self.bucket * MAX_DRAFT_DEPTH
    }

    fn logit_rows(&self) -> usize {
        self.pasts() + self.bucket * REACH
    }

    fn seqs(&self) -> usize {
        // Records are read in words of 16 bytes.
        (self.logit_rows() + self.bucket).next_multiple_of(4)
    }

    fn seq_rows(&self) -> usize {
        self.seqs() + self.bucket * RECORD
    }

    fn table_at(&self) -> usize {
        self.seq_rows() + self.bucket
    }

    fn tables(&self) -> usize {
        self.table_at() + self.bucket * self.n_classes
    }

    /// Where draws begin in a step whose page tables lie elsewhere, and words that it takes.
    pub(crate) fn drawings_without_tables(&self) -> usize {
        self.tables().next_multiple_of(4)
    }

    pub(crate) fn len_without_tables(&self) -> usize {
        self.drawings_without_tables() + self.bucket * DRAWING
    }

    /// Where the sequences' draws begin, behind the tables: counts[7] says it (0: all are greedy). The tokens they change
    /// come last.
    fn drawings(&self, step: &Step) -> usize {
        let tables: usize = (0..step.n_seqs())
            .flat_map(|s| (0..self.n_classes).map(move |c| (s, c)))
            .map(|(s, c)| step.seq(s).table(c).len())
            .sum();
        (self.tables() + tables).next_multiple_of(4)
    }

    /// Words the step takes.
    pub(crate) fn len(&self, step: &Step) -> usize {
        let listed: usize = (0..step.n_seqs()).map(|s| step.seq(s).listed().len()).sum();
        self.drawings(step) + step.n_seqs() * DRAWING + listed * ADJUSTMENT
    }

    pub(crate) fn view(&self, base: u64) -> StepView {
        let at = |words: usize| base + 4 * words as u64;
        StepView {
            counts: base,
            rows: at(self.rows()),
            paths: at(self.paths()),
            pasts: at(self.pasts()),
            logit_rows: at(self.logit_rows()),
            seqs: at(self.seqs()),
            seq_rows: at(self.seq_rows()),
            table_at: at(self.table_at()),
            tables: at(self.tables()),
            n_classes: self.n_classes as u32,
            pad: 0,
        }
    }

    /// Packs a step that was found valid into at least [`Self::len`] words.
    pub(crate) fn pack(&self, step: &Step, words: &mut [u32]) {
        words[0] = step.n_rows() as u32;
        words[1] = step.logit_rows().len() as u32;
        words[2] = step.n_seqs() as u32;
        words[3] = step.n_written() as u32;
        let prompt_rows =
            (0..step.n_seqs()).map(|s| step.seq(s).n_sure).filter(|n| *n as usize >= PROMPT_ROWS);
        words[4] = step.n_rows() as u32 - prompt_rows.sum::<u32>();
        for (i, row) in step.rows().iter().enumerate() {
            let view = step.view(i);
            let is_sure = row.local < view.seq.n_sure;
            let record =
                [row.token, row.seq, row.pos, row.parent, row.local, view.kv_slot(), is_sure as u32, 0];
            words[self.rows() + i * RECORD..][..RECORD].copy_from_slice(&record);
            let path = &mut words[self.paths() + i * MAX_DRAFT_DEPTH..][..MAX_DRAFT_DEPTH];
            for (slot, pos) in path.iter_mut().zip(view.seq.sure_end()..=row.pos) {
                *slot = view.slot_of(pos);
            }
            let pasts = &mut words[self.pasts() + i * REACH..][..REACH];
            for (past, pos) in pasts.iter_mut().zip(grid_of(row.pos)..row.pos) {
                *past = match view.slot_of(pos).checked_sub(view.seq.committed) {
                    // Both halves are below the largest bucket.
                    Some(local) => local << 16 | view.seq.rows[local as usize],
                    None => KEPT | (pos % WINDOW_ROWS as u32),
                };
            }
        }
        words[self.logit_rows()..][..step.logit_rows().len()].copy_from_slice(step.logit_rows());
        let (mut first, mut table) = (0, 0);
        for s in 0..step.n_seqs() {
            let seq = step.seq(s);
            let n = seq.rows.len();
            let record =
                [seq.slot as u32, seq.committed, seq.n_sure, seq.stored_grid, first as u32, n as u32, 0, 0];
            words[self.seqs() + s * RECORD..][..RECORD].copy_from_slice(&record);
            words[self.seq_rows() + first..][..n].copy_from_slice(seq.rows);
            first += n;
            for class in 0..self.n_classes {
                let pages = seq.table(class);
                words[self.table_at() + s * self.n_classes + class] = table as u32;
                words[self.tables() + table..][..pages.len()].copy_from_slice(pages);
                table += pages.len();
            }
        }
        self.pack_draws(step, words);
    }

    fn pack_draws(&self, step: &Step, words: &mut [u32]) {
        let drawings = self.drawings(step);
        words[7] = drawings as u32;
        let mut at = drawings + step.n_seqs() * DRAWING;
        for s in 0..step.n_seqs() {
            let (seq, to) = (step.seq(s), drawings + s * DRAWING);
            let listed = (at - self.tables()) as u32;
            let record = drawing_words(&seq.drawing, listed, seq.listed().len() as u32);
            words[to..][..DRAWING].copy_from_slice(&record);
            at += pack_listed(seq.listed(), &mut words[at..]);
        }
    }
}

/// As `Adjustment` of `listed.cuh`; returns how many words they take.
pub(crate) fn pack_listed(listed: &[Adjustment], words: &mut [u32]) -> usize {
    for (to, change) in words.chunks_exact_mut(ADJUSTMENT).zip(listed) {
        let counts = change.answered << 1 | change.is_in_prompt as u32;
        to.copy_from_slice(&[change.token, change.bias.to_bits(), counts]);
    }
    listed.len() * ADJUSTMENT
}

/// As `Drawing` of `listed.cuh`. `listed`: where the tokens lie that it changes, in words from the page tables on, and how many
/// they are.
pub(crate) fn drawing_words(how: &Drawing, listed: u32, n_listed: u32) -> [u32; DRAWING] {
    let kind = how.is_greedy() as u32 | (how.has_penalties() as u32) << 1;
    let (share, seed) = (how.share().unwrap_or(u64::MAX), mix(how.seed));
    [
        kind,
        how.top_k,
        how.scale().to_bits(),
        how.least_weight(),
        share as u32,
        (share >> 32) as u32,
        seed as u32,
        (seed >> 32) as u32,
        how.choice,
        how.repetition_penalty.to_bits(),
        how.frequency_penalty.to_bits(),
        how.presence_penalty.to_bits(),
        listed,
        n_listed,
        how.reach().to_bits(),
        0,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use overdraft_plan::NO_PARENT;

    #[test]
    fn a_tree_is_packed_as_the_kernels_read_it() {
        let mut step = Step::default();
        let tables = [[7u32, 8], [9, 10]];
        let s = step.add_seq(3, 10, 1, 0, tables.iter().map(|t| t.as_slice()));
        let root = step.push(s, 5, NO_PARENT);
        let a = step.push(s, 6, root);
        step.push(s, 7, root);
        let leaf = step.push(s, 8, a);
        step.want_logits(leaf);
        let layout = StepLayout::new(8, 2);
        let mut words = vec![0; layout.len(&step)];
        layout.pack(&step, &mut words);
        assert_eq!(words[..4], [4, 1, 1, 4]);
        assert_eq!(words[layout.rows() + 3 * RECORD..][..7], [8, 0, 12, a, 3, 13, 0]);
        assert_eq!(words[layout.paths() + 3 * MAX_DRAFT_DEPTH..][..2], [11, 13]);
        let pasts = &words[layout.pasts() + 3 * REACH..][..12];
        assert_eq!(pasts[..10], std::array::from_fn::<u32, 10, _>(|p| KEPT | p as u32));
        assert_eq!(pasts[10..], [root, 1 << 16 | a]);
        assert_eq!(words[layout.logit_rows()], leaf);
        assert_eq!(words[layout.seqs()..][..6], [3, 10, 1, 0, 0, 4]);
        assert_eq!(words[layout.table_at()..][..2], [0, 2]);
        assert_eq!(words[layout.tables()..][..4], [7, 8, 9, 10]);
        assert_eq!(words[words[7] as usize], 1, "greedy");
        let change = Adjustment { token: 9, bias: 1.0, answered: 3, is_in_prompt: true };
        step.draw(s, Drawing { temperature: 0.5, top_k: 20, ..Default::default() }, &[change]);
        words.resize(layout.len(&step), 0);
        layout.pack(&step, &mut words);
        let drawing = &words[words[7] as usize..];
        assert_eq!(drawing[..6], [0, 20, 2.0f32.to_bits(), 0, u32::MAX, u32::MAX]);
        assert_eq!(words[layout.tables() + drawing[12] as usize..], [9, 1.0f32.to_bits(), 7]);
    }
}
