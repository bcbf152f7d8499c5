//! What every op relies on, checked once for a step.

use crate::op::Op;
use crate::plan::Plan;
use crate::state::{GRID, MAX_DRAFT_DEPTH, NO_PAGE, PAGE, WINDOW_ROWS, grid_of};

use super::{NO_PARENT, Seq, Step};

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum StepError {
    #[error("a step of {rows} rows does not fit its plan's bucket of {bucket}")]
    TooManyRows { rows: usize, bucket: usize },
    #[error(
        "a step of {rows} written rows does not fit its plan, which has room for {room} before its prompts"
    )]
    TooManyWritten { rows: usize, room: usize },
    #[error("token id {token} is outside the vocabulary of {vocab}")]
    Token { token: u32, vocab: usize },
    #[error("row {row}: {problem}")]
    Row { row: usize, problem: &'static str },
}

impl Step {
    /// Checks what every op relies on. Backends call it first, and then trust the step.
    pub fn validate(
        &self,
        plan: &Plan,
        vocab: usize,
        slots: usize,
        pages: &[usize],
    ) -> Result<(), StepError> {
        for (rows, bucket) in [(self.rows.len(), plan.bucket), (self.logit_rows.len(), plan.logit_rows)] {
            if rows > bucket {
                return Err(StepError::TooManyRows { rows, bucket });
            }
        }
        if let Some(room) = plan.written_before_prompts.filter(|room| self.n_written() > *room) {
            return Err(StepError::TooManyWritten { rows: self.n_written(), room });
        }
        if let Some(bad) = self.logit_rows.iter().position(|r| *r as usize >= self.rows.len()) {
            return Err(StepError::Row {
                row: bad,
                problem: "logits asked of a row that is not in the step",
            });
        }
        for (i, row) in self.rows.iter().enumerate() {
            let fail = |problem| Err(StepError::Row { row: i, problem });
            if row.token as usize >= vocab {
                return Err(StepError::Token { token: row.token, vocab });
            }
            if row.seq as usize >= self.n_seqs {
                return fail("belongs to no sequence of the step");
            }
            let seq = self.seq(row.seq as usize);
            if seq.slot >= slots {
                return fail("sequence slot out of range");
            }
            let sure = row.local < seq.n_sure;
            if !sure && i >= self.n_written() && plan.written_before_prompts.is_some() {
                return fail("a prompt's row must be sure");
            }
            let chained = match row.parent {
                NO_PARENT => row.local == 0,
                p => {
                    let parent = &self.rows[p as usize];
                    parent.seq == row.seq
                        && if sure { parent.local + 1 == row.local } else { parent.local + 1 >= seq.n_sure }
                }
            };
            if !chained {
                return fail("sure rows must be a chain, and other rows hang below the last of them");
            }
            if !sure && row.pos >= seq.sure_end() + MAX_DRAFT_DEPTH as u32 {
                return fail("lies deeper than 16 drafts below its root");
            }
            let kv_slot = seq.committed + row.local;
            for (class, n_pages) in pages.iter().enumerate() {
                let (start, end) = self.seqs[row.seq as usize].tables[class];
                match self.tables[start..end].get(kv_slot as usize / PAGE) {
                    Some(p) if *p != NO_PAGE && (*p as usize) < *n_pages => {}
                    _ => return fail("no page reserved for it"),
                }
            }
        }
        let recurrent = plan.ops.iter().any(|op| matches!(op, Op::Recurrent(_)));
        for s in 0..self.n_seqs {
            let seq = self.seq(s);
            if seq.n_sure == 0 || seq.rows.len() < seq.n_sure as usize {
                return Err(StepError::Row { row: 0, problem: "a sequence needs at least its sure rows" });
            }
            let fail = |problem| Err(StepError::Row { row: seq.rows[0] as usize, problem });
            let (grid, end) = (seq.stored_grid, seq.committed);
            let reachable =
                grid.is_multiple_of(GRID as u32) && grid <= grid_of(end) && end - grid <= WINDOW_ROWS as u32;
            if recurrent && !reachable {
                return fail("its stored recurrent state is not one the kept window can carry on from");
            }
            if !seq.listed().is_sorted_by(|a, b| a.token < b.token) {
                return fail("what is known of its tokens must be in their order, each once");
            }
            if (0..s).any(|other| self.shares_state(s, other)) {
                return fail("two sequences of a step have the same slot, or write to the same page");
            }
        }
        Ok(())
    }

    /// Whether two sequences would write to the same state. Ops give each sequence's writes to a task of its own,
    /// so this must not be left to the caller.
    fn shares_state(&self, a: usize, b: usize) -> bool {
        let (a, b) = (&self.seqs[a], &self.seqs[b]);
        a.slot == b.slot
            || a.tables.iter().zip(&b.tables).any(|(at, bt)| {
                let theirs = self.written_pages(b, *bt);
                self.written_pages(a, *at).iter().any(|page| theirs.contains(page))
            })
    }

    /// The part of a page table that this step's rows write to. Their pages were found to be in the table.
    fn written_pages(&self, seq: &Seq, (start, end): (usize, usize)) -> &[u32] {
        let first = seq.committed as usize / PAGE;
        let last = (seq.committed as usize + seq.rows.len() - 1) / PAGE;
        self.tables[start..end].get(first..=last).unwrap_or(&[])
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{plan, tree};
    use super::*;

    #[test]
    fn a_step_that_breaks_the_rules_is_refused() {
        let step = tree();
        assert!(matches!(step.validate(&plan(3), 100, 1, &[2]), Err(StepError::TooManyRows { .. })));
        assert!(matches!(step.validate(&plan(4), 8, 1, &[2]), Err(StepError::Token { token: 8, vocab: 8 })));
        assert!(step.validate(&plan(4), 100, 0, &[2]).is_err(), "slot out of range");
        assert!(step.validate(&plan(4), 100, 1, &[0]).is_err(), "page out of range");
        let mut deep = tree();
        for _ in 0..15 {
            let last = deep.n_rows() as u32 - 1;
            deep.push(0, 1, last);
        }
        assert!(deep.validate(&plan(64), 100, 1, &[2]).is_err(), "17 drafts deep");
    }

    #[test]
    fn drafts_hang_below_the_last_sure_row_only() {
        for (parent, allowed) in [(0, false), (1, false), (2, true)] {
            let mut step = Step::default();
            let s = step.add_seq(0, 0, 3, 0, std::iter::once([0u32].as_slice()));
            let mut last = NO_PARENT;
            (0..3).for_each(|t| last = step.push(s, t, last));
            step.push(s, 9, parent);
            assert_eq!(step.validate(&plan(8), 100, 1, &[1]).is_ok(), allowed, "below row {parent}");
        }
    }

    #[test]
    fn sequences_of_a_step_never_write_to_the_same_state() {
        let run = |slots: [u32; 2], tables: [[u32; 2]; 2], committed: u32| {
            let mut step = Step::default();
            for (slot, table) in slots.into_iter().zip(&tables) {
                let s = step.add_seq(slot, committed, 1, 0, std::iter::once(table.as_slice()));
                step.push(s, 1, NO_PARENT);
            }
            step.validate(&plan(8), 100, 2, &[4]).is_ok()
        };
        assert!(run([0, 1], [[0, 1], [2, 3]], 70));
        assert!(run([0, 1], [[0, 1], [0, 3]], 70), "a shared prefix is only read");
        assert!(!run([0, 1], [[0, 1], [0, 3]], 10), "the shared page is written");
        assert!(!run([1, 1], [[0, 1], [2, 3]], 70), "one slot for two");
    }

    #[test]
    fn recurrent_layers_start_from_a_state_the_window_reaches() {
        let mut recorder = crate::Recorder::new(4, 4);
        let act = recorder.act(1);
        recorder.push(Op::Recurrent(crate::Recurrent {
            prepared: act,
            preconv: act,
            gates: act,
            delta: act,
            out: act,
            rule: crate::KeyHeadRule::Grouped,
            layer: 0,
        }));
        let plan = recorder.finish(act);
        for (committed, grid, allowed) in
            [(0, 0, true), (48, 0, true), (49, 0, false), (64, 48, true), (64, 64, false), (64, 40, false)]
        {
            let mut step = Step::default();
            let s = step.add_seq(0, committed, 1, grid, std::iter::empty());
            step.push(s, 1, NO_PARENT);
            let verdict = step.validate(&plan, 100, 1, &[]);
            assert_eq!(verdict.is_ok(), allowed, "{committed} committed, S at {grid}");
        }
    }
}
