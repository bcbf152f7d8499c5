//! The data of one forward step: rows, the sequences they belong to, page tables, and which rows need logits.
//!
//! A row is (token, sequence, position, parent). Prefill is a chain of rows, plain decoding one row, verifying a
//! draft a chain or a tree. The first `n_sure` rows of a sequence are a chain that is accepted whatever comes (a
//! prompt chunk, or the root of a draft tree): the step writes them to kept state. The rest stay in scratch until
//! a commit.

mod rules;

use crate::draw::{Adjustment, Drawing};
use crate::state::{MAX_DRAFT_DEPTH, PAGE};

pub use rules::StepError;

/// Parent of a row whose predecessor is the sequence's last committed row.
pub const NO_PARENT: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    pub token: u32,
    /// Index into the step's sequences.
    pub seq: u32,
    pub pos: u32,
    /// Row index in the step, or [`NO_PARENT`].
    pub parent: u32,
    /// Place among its sequence's rows, in the order they were added.
    pub local: u32,
}

struct Seq {
    slot: u32,
    committed: u32,
    n_sure: u32,
    stored_grid: u32,
    /// One range of `tables` per retention class.
    tables: Vec<(usize, usize)>,
    rows: Vec<u32>,
    drawing: Drawing,
    /// A range of `adjustments`.
    listed: (usize, usize),
}

/// One step's rows. Kept and refilled, so that steady decoding allocates nothing.
#[derive(Default)]
pub struct Step {
    rows: Vec<Row>,
    seqs: Vec<Seq>,
    n_seqs: usize,
    tables: Vec<u32>,
    adjustments: Vec<Adjustment>,
    logit_rows: Vec<u32>,
    /// Where the rows of prompts begin, if there are any.
    prompts_at: Option<usize>,
}

/// A sequence of the step, as ops see it.
#[derive(Clone, Copy)]
pub struct SeqView<'a> {
    /// Which of the state's slots is this sequence's.
    pub slot: usize,
    /// Tokens committed before this step; the first row stands at this position.
    pub committed: u32,
    pub n_sure: u32,
    /// The grid position at which the slot's `S` is stored.
    pub stored_grid: u32,
    /// Its rows as step row indices, parents before children; row at local index `i` is `rows[i]`.
    pub rows: &'a [u32],
    /// How its tokens are drawn by [`Op::Sample`].
    pub drawing: Drawing,
    step: &'a Step,
    index: usize,
}

impl SeqView<'_> {
    /// Position one past the sure rows: what the sequence holds if nothing else is accepted.
    pub fn sure_end(&self) -> u32 {
        self.committed + self.n_sure
    }

    /// The pages of `class`, in the order of positions.
    pub fn table(&self, class: usize) -> &[u32] {
        let (start, end) = self.step.seqs[self.index].tables[class];
        &self.step.tables[start..end]
    }

    /// What bias and penalties know of its tokens up to its last sure row, by token.
    pub fn listed(&self) -> &[Adjustment] {
        let (start, end) = self.step.seqs[self.index].listed;
        &self.step.adjustments[start..end]
    }

    /// The physical page of `class` that holds `slot_pos`.
    pub fn page(&self, class: usize, slot_pos: u32) -> usize {
        self.table(class)[slot_pos as usize / PAGE] as usize
    }
}

/// A row together with the slots that its path occupies.
#[derive(Clone, Copy)]
pub struct RowView<'a> {
    pub row: Row,
    pub seq: SeqView<'a>,
    /// KV slots of the row's ancestors and itself past the sure rows, in position order.
    path: [u32; MAX_DRAFT_DEPTH + 1],
}

impl RowView<'_> {
    /// Where the row's own key and value go: sure rows at their position, others one after another behind them.
    pub fn kv_slot(&self) -> u32 {
        self.seq.committed + self.row.local
    }

    /// Where the key and value at `pos`, as this row sees it, are.
    pub fn slot_of(&self, pos: u32) -> u32 {
        let sure_end = self.seq.sure_end();
        if pos < sure_end { pos } else { self.path[(pos - sure_end) as usize] }
    }

    /// Tokens of the row's path past the sure rows, its own the last.
    pub fn drafted(&self) -> impl Iterator<Item = u32> {
        let slots = (self.seq.sure_end()..=self.row.pos).map(|pos| self.slot_of(pos));
        slots
            .map(|slot| self.seq.rows[(slot - self.seq.committed) as usize])
            .map(|row| self.seq.step.rows[row as usize].token)
    }
}

impl Step {
    pub fn clear(&mut self) {
        self.rows.clear();
        self.tables.clear();
        self.adjustments.clear();
        self.logit_rows.clear();
        self.n_seqs = 0;
        self.prompts_at = None;
    }

    /// Adds a sequence; `tables` holds a page table per retention class. Returns its index for [`Self::push`].
    pub fn add_seq<'t>(
        &mut self,
        slot: u32,
        committed: u32,
        n_sure: u32,
        stored_grid: u32,
        tables: impl Iterator<Item = &'t [u32]>,
    ) -> u32 {
        if self.n_seqs == self.seqs.len() {
            self.seqs.push(Seq {
                slot: 0,
                committed: 0,
                n_sure: 0,
                stored_grid: 0,
                tables: Vec::new(),
                rows: Vec::new(),
                drawing: Drawing::default(),
                listed: (0, 0),
            });
        }
        let seq = &mut self.seqs[self.n_seqs];
        (seq.slot, seq.committed, seq.n_sure, seq.stored_grid) = (slot, committed, n_sure, stored_grid);
        (seq.drawing, seq.listed) = (Drawing::default(), (0, 0));
        seq.rows.clear();
        seq.tables.clear();
        for table in tables {
            let start = self.tables.len();
            self.tables.extend_from_slice(table);
            seq.tables.push((start, self.tables.len()));
        }
        self.n_seqs += 1;
        self.n_seqs as u32 - 1
    }

    /// How [`Op::Sample`] draws the sequence's tokens; without this, greedily. `listed`: what bias and penalties know of its tokens up to its last
    /// sure row, by token, each once.
    pub fn draw(&mut self, seq: u32, drawing: Drawing, listed: &[Adjustment]) {
        let start = self.adjustments.len();
        self.adjustments.extend_from_slice(listed);
        let seq = &mut self.seqs[seq as usize];
        (seq.drawing, seq.listed) = (drawing, (start, start + listed.len()));
    }

    /// Adds a row below `parent` (a row index, or [`NO_PARENT`] for the sequence's first). Returns its index.
    pub fn push(&mut self, seq: u32, token: u32, parent: u32) -> u32 {
        let s = &mut self.seqs[seq as usize];
        let pos = if parent == NO_PARENT { s.committed } else { self.rows[parent as usize].pos + 1 };
        let index = self.rows.len() as u32;
        self.rows.push(Row { token, seq, pos, parent, local: s.rows.len() as u32 });
        s.rows.push(index);
        index
    }

    /// Asks for the logits of row `row`; they come in the order asked for.
    pub fn want_logits(&mut self, row: u32) {
        self.logit_rows.push(row);
    }

    pub fn n_rows(&self) -> usize {
        self.rows.len()
    }

    /// All rows pushed from now on are of prompts. Without this none is.
    pub fn begin_prompts(&mut self) {
        self.prompts_at = Some(self.rows.len());
    }

    /// Rows of sequences that write; those past them are of prompts.
    pub fn n_written(&self) -> usize {
        self.prompts_at.unwrap_or(self.rows.len())
    }

    pub fn n_seqs(&self) -> usize {
        self.n_seqs
    }

    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    pub fn logit_rows(&self) -> &[u32] {
        &self.logit_rows
    }

    pub fn seq(&self, index: usize) -> SeqView<'_> {
        let s = &self.seqs[index];
        SeqView {
            slot: s.slot as usize,
            committed: s.committed,
            n_sure: s.n_sure,
            stored_grid: s.stored_grid,
            rows: &s.rows,
            drawing: s.drawing,
            step: self,
            index,
        }
    }

    /// Row `index` with its path. The step has passed [`Self::validate`].
    pub fn view(&self, index: usize) -> RowView<'_> {
        let row = self.rows[index];
        let seq = self.seq(row.seq as usize);
        let mut path = [0; MAX_DRAFT_DEPTH + 1];
        let mut at = row;
        while at.pos >= seq.sure_end() {
            path[(at.pos - seq.sure_end()) as usize] = seq.committed + at.local;
            if at.parent == NO_PARENT {
                break;
            }
            at = self.rows[at.parent as usize];
        }
        RowView { row, seq, path }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;

    pub(super) fn plan(bucket: usize) -> Plan {
        crate::Recorder::new(bucket, bucket).finish(crate::Act(0))
    }

    pub(super) fn tree() -> Step {
        let mut step = Step::default();
        let s = step.add_seq(0, 10, 1, 0, std::iter::once([0u32, 1].as_slice()));
        let root = step.push(s, 5, NO_PARENT);
        let a = step.push(s, 6, root);
        let _b = step.push(s, 7, root);
        let _aa = step.push(s, 8, a);
        step
    }

    #[test]
    fn a_row_sees_its_own_path_only() {
        let step = tree();
        assert_eq!(step.validate(&plan(4), 100, 1, &[2]), Ok(()));
        let deep = step.view(3);
        assert_eq!((deep.row.pos, deep.kv_slot()), (12, 13));
        assert_eq!((9..=12).map(|p| deep.slot_of(p)).collect::<Vec<_>>(), [9, 10, 11, 13]);
        let sibling = step.view(2);
        assert_eq!((9..=11).map(|p| sibling.slot_of(p)).collect::<Vec<_>>(), [9, 10, 12]);
    }

    #[test]
    fn a_row_knows_what_was_drafted_above_it() {
        let step = tree();
        for (row, drafted) in [(0, &[][..]), (1, &[6]), (2, &[7]), (3, &[6, 8])] {
            assert_eq!(step.view(row).drafted().collect::<Vec<_>>(), drafted, "row {row}");
        }
    }

    #[test]
    fn a_sequence_draws_as_it_was_told_in_this_step_only() {
        let mut step = tree();
        let entry = |token| Adjustment { token, bias: 1.0, ..Default::default() };
        step.draw(0, Drawing { temperature: 1.0, ..Default::default() }, &[entry(3), entry(9)]);
        assert_eq!(step.validate(&plan(4), 100, 1, &[2]), Ok(()));
        assert_eq!(step.seq(0).listed(), [entry(3), entry(9)]);
        step.draw(0, Drawing::default(), &[entry(9), entry(3)]);
        assert!(step.validate(&plan(4), 100, 1, &[2]).is_err(), "out of order");
        step.clear();
        step.add_seq(0, 10, 1, 0, std::iter::once([0u32, 1].as_slice()));
        assert!(step.seq(0).drawing.is_greedy() && step.seq(0).listed().is_empty());
    }

    #[test]
    fn rows_are_written_ones_unless_prompts_were_begun() {
        let with_room = |room| Plan { written_before_prompts: room, ..plan(8) };
        let mut step = tree();
        assert_eq!(step.n_written(), 4);
        assert!(matches!(
            step.validate(&with_room(Some(3)), 100, 1, &[2]),
            Err(StepError::TooManyWritten { rows: 4, room: 3 })
        ));
        step.begin_prompts();
        let s = step.add_seq(1, 0, 2, 0, std::iter::once([2u32].as_slice()));
        let first = step.push(s, 1, NO_PARENT);
        step.push(s, 2, first);
        assert_eq!((step.n_rows(), step.n_written()), (6, 4));
        for room in [Some(4), None] {
            assert_eq!(step.validate(&with_room(room), 100, 2, &[3]), Ok(()));
        }
        step.clear();
        assert_eq!(step.n_written(), 0);
    }
}
