//! What a step holds: whose prompts are read, and how much of them beside those who write. Pure, so it is tested without
//! a model.

use overdraft_plan::PAGE;

use crate::plans::{TREE_ROWS, Use};
use crate::spec::cost::CostModel;

/// What the next step has to choose from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Load {
    pub(crate) writers: usize,
    pub(crate) readers: usize,
    /// Whether any writer would draft.
    pub(crate) drafts: bool,
    /// Seconds that writers may wait for their next token while prompts are read; `None`: as long as it takes.
    pub(crate) token_gap: Option<f64>,
    pub(crate) step_rows: usize,
    /// Rows of a prompt that are read at once while nobody knows what they cost.
    pub(crate) unknown_rows: usize,
}

/// Seconds that a step may take where nobody waits for a token: those who would stop it, or see how far it is, wait so long, and a server takes a
/// device that does not answer for half a minute for dead. (512 rows of a 27B take a minute and more on a few cores.)
const LONGEST_READ: f64 = 2.0;

/// The kind of step, and rows of prompts in it at most.
///
/// Trees beside prompts are verified in steps of at most [`TREE_ROWS`]: to keep a tree's rows for a commit in every
/// recurrent layer of a plan of 512 would take gigabytes. Where the gap allows more than fits there, the prompt is over
/// sooner without.
pub(crate) fn choose(load: &Load, reading: &CostModel) -> (Use, usize) {
    if load.readers == 0 {
        return (Use::Write, 0);
    }
    let most = load.step_rows.saturating_sub(load.writers);
    if load.writers == 0 {
        return (Use::Read, rows_alone(load.unknown_rows.min(most), most, reading));
    }
    let Some(gap) = load.token_gap else { return (Use::Read, most) };
    let rows = rows_within(gap, load.writers, most, reading);
    if load.drafts && load.writers + rows <= TREE_ROWS { (Use::Mixed, rows) } else { (Use::Read, rows) }
}

/// The most rows, by whole pages, with which a step of prompts alone ends within [`LONGEST_READ`]; a page at the least.
fn rows_alone(unknown: usize, most: usize, cost: &CostModel) -> usize {
    let Some(all) = cost.most_seconds(most) else { return unknown };
    if all <= LONGEST_READ {
        return most;
    }
    let pages = (PAGE..=most).step_by(PAGE);
    let ends_in_time = |rows: &usize| cost.most_seconds(*rows).is_some_and(|seconds| seconds <= LONGEST_READ);
    pages.take_while(ends_in_time).last().unwrap_or(PAGE).min(most)
}

/// The most rows, by whole pages, with which a step that holds `others` too ends within `gap` seconds; a page at the
/// least, so that prompts go on whatever it costs.
fn rows_within(gap: f64, others: usize, most: usize, cost: &CostModel) -> usize {
    let ends_in_time = |rows: &usize| cost.most_seconds(others + rows).is_some_and(|seconds| seconds <= gap);
    // What was never tried is entered step by step.
    let known = cost.known_rows();
    let tried = (2 * PAGE..=most).step_by(PAGE).take_while(|rows| others + rows <= known);
    tried.take_while(ends_in_time).last().unwrap_or(PAGE).min(most)
}

/// Rows for each of the prompts that are read, oldest first, given what is left of each up to where it pauses. Every one
/// gets whole pages, or all that is left of it.
///
/// The oldest has half of every step, so that it is over in bounded time whatever comes after; the rest goes to those
/// that are over soonest, so that a short prompt does not wait for a long one. Where there is only a page to give they
/// take `turn`s.
pub(crate) fn share_prompt_rows(left: &[usize], budget: usize, turn: u64, rows: &mut Vec<usize>) {
    rows.clear();
    rows.resize(left.len(), 0);
    if left.is_empty() {
        return;
    }
    let mut room = budget;
    let mut give = |index: usize, most: usize, room: &mut usize| {
        let wanted = left[index] - rows[index];
        let most = most.min(*room);
        let given = if wanted <= most { wanted } else { most / PAGE * PAGE };
        rows[index] += given;
        *room -= given;
    };
    let shortest = (0..left.len()).min_by_key(|i| left[*i]).unwrap_or(0);
    if turn % 2 == 1 && budget < 2 * PAGE {
        give(shortest, budget, &mut room);
    }
    give(0, (budget / 2).max(PAGE), &mut room);
    // By what is left, without a list of them: there are at most 64.
    let mut last = 0;
    while room > 0
        && let Some(next) = (0..left.len()).map(|i| left[i]).filter(|l| *l > last).min()
    {
        (0..left.len()).filter(|i| left[*i] == next).for_each(|i| give(i, room, &mut room));
        last = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs(steps: &[(usize, f64)]) -> CostModel {
        let mut cost = CostModel::new(crate::spec::cost::Padding::None);
        cost.seed(steps.iter().copied(), None);
        cost
    }

    #[test]
    #[rustfmt::skip]
    fn prompts_are_read_in_pieces_that_keep_the_gap() {
        // A millisecond a row, measured up to 400 rows.
        let known = costs(&[(1, 0.001), (400, 0.4)]);
        let young = costs(&[(70, 0.070)]);
        let unknown = CostModel::default();
        let slow = costs(&[(64, 1.0)]);
        let very_slow = costs(&[(7, 3.0)]);
        let load = Load { writers: 4, readers: 1, drafts: false, token_gap: Some(0.2), step_rows: 512, unknown_rows: 64 };
        let alone = Load { writers: 0, ..load };
        let cases = [
            ("nobody reads", Load { readers: 0, ..load }, &known, (Use::Write, 0)),
            ("nobody writes", alone, &known, (Use::Read, 512)),
            ("nobody writes, and rows are dear", alone, &slow, (Use::Read, 128)),
            ("and dearer", alone, &very_slow, (Use::Read, 64)),
            ("or nobody knows", alone, &unknown, (Use::Read, 64)),
            ("on a device, where they cannot be dear", Load { unknown_rows: 512, ..alone }, &unknown, (Use::Read, 512)),
            ("a small step", Load { step_rows: 40, ..alone }, &unknown, (Use::Read, 40)),
            ("no bound", Load { token_gap: None, ..load }, &known, (Use::Read, 508)),
            ("three pages end in time", load, &known, (Use::Read, 192)),
            ("a page at the least", Load { token_gap: Some(0.01), ..load }, &known, (Use::Read, 64)),
            ("no more than a step holds", Load { token_gap: Some(9.0), ..load }, &known, (Use::Read, 448)),
            ("drafts go along where they fit", Load { drafts: true, token_gap: Some(0.1), ..load }, &known, (Use::Mixed, 64)),
            ("and not where more can be read", Load { drafts: true, ..load }, &known, (Use::Read, 192)),
            ("nothing is known yet", load, &unknown, (Use::Read, 64)),
            ("twice what was tried", load, &young, (Use::Read, 128)),
        ];
        for (case, load, cost, want) in cases {
            assert_eq!(choose(&load, cost), want, "{case}");
        }
    }

    #[test]
    #[rustfmt::skip]
    #[allow(clippy::type_complexity, reason = "a table")]
    fn the_oldest_has_its_half_and_the_shortest_the_rest() {
        let cases: [(&[usize], usize, u64, &[usize], &str); 9] = [
            (&[],               512, 0, &[],             "nobody"),
            (&[1000],           512, 0, &[512],          "one takes all"),
            (&[30],             512, 0, &[30],           "and no more than it has"),
            (&[1000, 1000],     512, 0, &[512, 0],       "equals in order"),
            (&[1000, 100, 50],  512, 0, &[320, 100, 50], "the short ones are over"),
            (&[1000, 700],      512, 0, &[256, 256],     "half each"),
            (&[1000, 100],       64, 0, &[64, 0],        "a page for the oldest"),
            (&[1000, 100],       64, 1, &[0, 64],        "then one for the shortest"),
            (&[1000, 30, 20],    64, 1, &[0, 30, 20],    "what a page holds"),
        ];
        for (left, budget, turn, want, case) in cases {
            let mut rows = Vec::new();
            share_prompt_rows(left, budget, turn, &mut rows);
            assert_eq!(rows, want, "{case}");
        }
    }

    #[test]
    fn no_prompt_starves_however_many_short_ones_come() {
        for budget in [64, 128, 512] {
            let (mut left, mut rows, mut steps) = (vec![6400], Vec::new(), 0);
            while left[0] > 0 {
                left.truncate(1);
                left.extend([64, 20, 63]);
                share_prompt_rows(&left, budget, steps, &mut rows);
                assert!(rows.iter().sum::<usize>() <= budget);
                assert!(rows.iter().zip(&left).all(|(r, l)| r == l || r % 64 == 0), "{rows:?}");
                left[0] -= rows[0];
                steps += 1;
            }
            assert!(steps <= 200, "{steps} steps of {budget} rows");
        }
    }
}
