//! What a step costs, learned from steps: seconds by rows of the target's pass, and of the draft's.

use std::fmt::Write;

use overdraft_plan::{BUCKETS, bucket_for};

/// Steps that an estimate looks back on. The median of 15 stands when 7 of them were disturbed.
const MEMORY: usize = 15;
/// Steps that a remembered or probed figure counts for: one disturbed step does not outvote it.
const SEEDED: usize = 3;
/// Share of a plain step that each further row is guessed to add until measured: as on a CPU, where rows are dear. On
/// a device where they are nearly free a few small trees show it.
const GUESSED_SLOPE: f64 = 1.0 / 8.0;
/// Rows that the guess is relied on for. Beyond, twice the largest measured count: unknown ground is entered step by
/// step. (With rows guessed cheap and no such bound the first draft of a process took 40 rows at seven times the cost
/// of one; code that replays at 1.45 of plain speed with known costs then replayed at 0.99.)
const GUESSED_ROWS: usize = 8;
/// The same in proportion to rows where it is asked what could be gained at best. (On an H200 64 rows of a 27B model cost 1.4
/// times what 16 do, with the kernels before it was 2.8.)
const HOPED_GROWTH: f64 = 0.25;
/// Of a draft's passes for several sequences, what grows with them: four passes of four take eight times as long as one for
/// one on an H200, and as long as sixteen on a CPU.
const GUESSED_SHARE: f64 = 0.5;
/// Sequences alive at once at most.
const MAX_DRAFTING: usize = 64;
/// How fast the level follows, and by how much one step can move it: a change of 10 % within some twenty steps, and
/// disturbed steps hardly at all.
const LEVEL_GAIN: f64 = 0.05;
const LEVEL_STEP: f64 = 0.15;
/// First line of the remembered form; another version is not read.
const HEADER: &str = "overdraft step costs 1";
/// No step takes an hour; whatever says so is damaged.
const MAX_SECONDS: f64 = 3600.0;

/// What a step's rows are rounded up to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Padding {
    /// To the plan's bucket: the device computes all its rows.
    #[default]
    Bucket,
    /// Not at all: only rows that are there cost.
    None,
}

/// The last few times of one thing.
#[derive(Clone, Debug, Default, PartialEq)]
struct Times {
    ring: [f64; MEMORY],
    n: usize,
}

impl Times {
    fn add(&mut self, seconds: f64) {
        self.ring[self.n % MEMORY] = seconds;
        self.n += 1;
    }

    fn count(&self) -> usize {
        self.n.min(MEMORY)
    }

    /// Of what was measured and, where there is one, a guess that counts as one time: a single disturbed step does not
    /// put a row count out of use for good.
    fn median(&self, guess: Option<f64>) -> Option<f64> {
        let mut sorted = [0.0; MEMORY + 1];
        sorted[..MEMORY].copy_from_slice(&self.ring);
        let mut n = self.count();
        if let Some(guess) = guess.filter(|_| n > 0) {
            sorted[n] = guess;
            n += 1;
        }
        let sorted = &mut sorted[..n];
        sorted.sort_unstable_by(f64::total_cmp);
        sorted.get(sorted.len().checked_sub(1)? / 2).copied()
    }
}

/// Learned costs of one model pair on one machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CostModel {
    padding: Padding,
    /// By row count, ascending.
    steps: Vec<(usize, Times)>,
    /// By sequences that a round's draft passes were for, ascending.
    drafts: Vec<(usize, Times)>,
    /// (rows, seconds, weight): medians made non-decreasing in rows.
    curve: Vec<(f64, f64, f64)>,
    /// Logarithm of how much slower than `steps`, `drafts` and `curve` say the machine is at the moment: these hold times
    /// divided by the level of their day. What slows all steps alike (other work, heat) then leaves their order as it
    /// was. Without it a row count last used on a better day looks cheap, and is used until its median has found out:
    /// sixteen streams on a machine that slows by 40 % and recovers every few seconds lost 3 % to that.
    level: f64,
}

impl CostModel {
    pub fn new(padding: Padding) -> Self {
        Self { padding, ..Self::default() }
    }

    /// A step of `rows` rows took so long. Only steps without prompt rows say anything here.
    pub fn learn_step(&mut self, rows: usize, seconds: f64) {
        self.add_step(rows, seconds, 1);
    }

    /// A draft pass took so long.
    pub fn learn_draft(&mut self, seconds: f64) {
        self.learn_drafts(1, seconds);
    }

    /// A round's draft passes for `n` sequences took so long.
    pub fn learn_drafts(&mut self, n: usize, seconds: f64) {
        let seconds = seconds / self.level.exp();
        if is_time(seconds) && (1..=MAX_DRAFTING).contains(&n) {
            let at = self.drafts.binary_search_by_key(&n, |d| d.0).unwrap_or_else(|at| {
                self.drafts.insert(at, (n, Times::default()));
                at
            });
            self.drafts[at].1.add(seconds);
        }
    }

    /// Takes over a probe's (rows, seconds).
    pub fn seed(&mut self, steps: impl IntoIterator<Item = (usize, f64)>, draft_seconds: Option<f64>) {
        for (rows, seconds) in steps {
            self.add_step(rows, seconds, SEEDED);
        }
        for _ in 0..SEEDED {
            draft_seconds.iter().for_each(|s| self.learn_draft(*s));
        }
    }

    fn add_step(&mut self, rows: usize, seconds: f64, times: usize) {
        let Some(rows) = self.padded(rows) else { return };
        if !is_time(seconds) {
            return;
        }
        let at = self.steps.binary_search_by_key(&rows, |s| s.0).unwrap_or_else(|at| {
            self.steps.insert(at, (rows, Times::default()));
            at
        });
        if self.steps[at].1.count() >= SEEDED
            && let Some(expected) = self.step_seconds(rows)
        {
            let change = (seconds / expected).ln();
            self.level += LEVEL_GAIN * change.clamp(-LEVEL_STEP, LEVEL_STEP);
        }
        let level = self.level.exp();
        (0..times).for_each(|_| self.steps[at].1.add(seconds / level));
        self.rebuild();
    }

    /// More rows never cost less: neighbours that say so are averaged (isotonic regression). A running maximum would
    /// instead let the noisiest row count push up all above it.
    fn rebuild(&mut self) {
        self.curve.clear();
        let mut plain = None;
        for (rows, times) in &self.steps {
            // A dear guess: beside a single measurement the lower of the two counts.
            let growth = |first: f64| 1.0 + GUESSED_SLOPE * (*rows as f64 - first);
            let guess = plain.map(|(first, seconds)| seconds * growth(first));
            let Some(seconds) = times.median(guess) else { continue };
            plain.get_or_insert((*rows as f64, seconds));
            self.curve.push((*rows as f64, seconds, times.count() as f64));
        }
        let n = self.curve.len();
        let mut end = 1;
        while end < n {
            // Grow a block leftwards from `end` for as long as what stands before it is larger than its mean.
            let mut start = end;
            let (mut sum, mut weight) = (self.curve[end].1 * self.curve[end].2, self.curve[end].2);
            while start > 0 && self.curve[start - 1].1 > sum / weight {
                start -= 1;
                sum += self.curve[start].1 * self.curve[start].2;
                weight += self.curve[start].2;
            }
            self.curve[start..=end].iter_mut().for_each(|p| p.1 = sum / weight);
            end += 1;
        }
    }

    fn padded(&self, rows: usize) -> Option<usize> {
        let bucket = bucket_for(rows.max(1))?;
        Some(if self.padding == Padding::Bucket { bucket } else { rows.max(1) })
    }

    /// Seconds of a step; `None` before anything was measured. Non-decreasing in rows; straight lines between
    /// measured row counts, level before the first.
    pub fn step_seconds(&self, rows: usize) -> Option<f64> {
        Some(self.unlevelled(rows)? * self.level.exp())
    }

    fn unlevelled(&self, rows: usize) -> Option<f64> {
        let largest = BUCKETS[BUCKETS.len() - 1];
        let rows = self.padded(rows.min(largest))? as f64;
        let curve = self.curve.as_slice();
        let (first, last) = (curve.first()?, curve.last()?);
        let after = curve.partition_point(|p| p.0 < rows);
        if after == 0 {
            return Some(first.1);
        }
        if let Some(high) = curve.get(after) {
            let low = curve[after - 1];
            return Some(low.1 + (high.1 - low.1) * (rows - low.0) / (high.0 - low.0));
        }
        // Beyond the last, by the slope over the whole curve: that of two neighbours is mostly noise. A curve of few
        // rows says nothing of many.
        let span = last.0 - first.0;
        Some(if span >= 3.0 {
            last.1 + (last.1 - first.1) / span * (rows - last.0)
        } else {
            last.1 * guessed_growth(last.0, rows)
        })
    }

    /// Seconds that a step takes at most: beyond the largest measured count in proportion to its rows, which is too much
    /// for whatever is shared between them.
    pub fn most_seconds(&self, rows: usize) -> Option<f64> {
        let last = self.curve.last()?;
        let padded = self.padded(rows)? as f64;
        let most = if padded > last.0 { last.1 * padded / last.0 } else { self.unlevelled(rows)? };
        Some(most * self.level.exp())
    }

    /// Seconds that a step takes where rows turn out cheap: what is hoped for where nothing was measured.
    pub fn hoped_seconds(&self, rows: usize) -> Option<f64> {
        let last = self.curve.last()?;
        let padded = self.padded(rows)? as f64;
        let least = last.1 * (1.0 + HOPED_GROWTH * (padded / last.0 - 1.0));
        Some(if padded > last.0 { least * self.level.exp() } else { self.step_seconds(rows)? })
    }

    /// Rows up to which estimates can be relied on.
    pub fn known_rows(&self) -> usize {
        self.curve.last().map_or(1, |p| GUESSED_ROWS.max(2 * p.0 as usize))
    }

    pub fn draft_seconds(&self) -> Option<f64> {
        self.draft_seconds_of(1)
    }

    /// Seconds of a round's draft passes for `n` sequences, none for nobody; from the nearest count that was measured, of
    /// which half is taken to be each sequence's own.
    pub fn draft_seconds_of(&self, n: usize) -> Option<f64> {
        let (measured, times) = self.drafts.iter().min_by_key(|d| d.0.abs_diff(n))?;
        let share = 1.0 + GUESSED_SHARE * (n as f64 / *measured as f64 - 1.0);
        Some(if n == 0 { 0.0 } else { times.median(None)? * self.level.exp() * share })
    }

    /// One sequence's share of that; nothing before anything was measured.
    pub fn draft_share(&self, n: usize) -> f64 {
        self.draft_seconds_of(n).map_or(0.0, |seconds| seconds / n as f64)
    }

    /// The whole model as text, marked as of `owner` (machine and model).
    pub fn to_text(&self, owner: &str) -> String {
        let mut text = format!("{HEADER}\n{}\n", one_line(owner));
        for (rows, times) in &self.steps {
            if let Some(seconds) = times.median(None) {
                let seconds = seconds * self.level.exp();
                let _ = writeln!(text, "step {rows} {seconds:e}");
            }
        }
        for (n, times) in &self.drafts {
            if let Some(seconds) = times.median(None) {
                let seconds = seconds * self.level.exp();
                let _ = writeln!(text, "draft {n} {seconds:e}");
            }
        }
        text
    }

    /// Reads [`Self::to_text`]. `None` if it is of another version or owner; a line that makes no sense is skipped,
    /// since the worst that a lost figure costs is a slow first minute.
    pub fn from_text(text: &str, owner: &str, padding: Padding) -> Option<Self> {
        let mut lines = text.lines();
        if lines.next() != Some(HEADER) || lines.next() != Some(one_line(owner).as_str()) {
            return None;
        }
        let mut model = Self::new(padding);
        for line in lines {
            let words: Vec<&str> = line.split_whitespace().take(4).collect();
            match words.as_slice() {
                ["step", rows, seconds] => {
                    if let (Ok(rows), Ok(seconds)) = (rows.parse(), seconds.parse()) {
                        model.seed([(rows, seconds)], None);
                    }
                }
                ["draft", seconds] => model.seed([], seconds.parse().ok()),
                ["draft", n, seconds] => {
                    if let (Ok(n), Ok(seconds)) = (n.parse(), seconds.parse()) {
                        (0..SEEDED).for_each(|_| model.learn_drafts(n, seconds));
                    }
                }
                _ => {}
            }
        }
        Some(model)
    }
}

/// How many times the cost of `from` rows that of `to` is guessed to be. Of many rows one more cannot cost as much as one
/// of them does on average; half of that is guessed, or sixteen streams would never find out that rows are cheap.
fn guessed_growth(from: f64, to: f64) -> f64 {
    1.0 + GUESSED_SLOPE.min(0.5 / from) * (to - from)
}

fn is_time(seconds: f64) -> bool {
    seconds > 0.0 && seconds <= MAX_SECONDS
}

fn one_line(owner: &str) -> String {
    owner.replace(['\n', '\r'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::simulate::Random;

    #[track_caller]
    fn near(got: Option<f64>, want: f64, slack: f64) {
        assert!(got.is_some_and(|g| (g / want - 1.0).abs() <= slack), "{got:?} for {want}");
    }

    #[test]
    fn a_third_of_steps_ten_times_too_slow_do_not_matter() {
        let (mut model, mut random) = (CostModel::default(), Random(3));
        for _ in 0..400 {
            for (rows, seconds) in [(1, 1.0), (8, 1.5), (16, 2.0)] {
                let noise = 0.98 + 0.04 * random.uniform();
                let outlier = if random.below(3) == 0 { 10.0 } else { 1.0 };
                model.learn_step(rows, seconds * noise * outlier);
            }
        }
        for (rows, seconds) in [(1, 1.0), (8, 1.5), (16, 2.0)] {
            near(model.step_seconds(rows), seconds, 0.03);
        }
    }

    #[test]
    fn a_lasting_change_is_learned_within_eight_steps() {
        let mut model = CostModel::default();
        (0..100).for_each(|_| model.learn_step(1, 1.0));
        (0..8).for_each(|_| model.learn_step(1, 3.0));
        near(model.step_seconds(1), 3.0, 1e-9);
    }

    #[test]
    #[rustfmt::skip]
    fn unmeasured_row_counts_lie_on_lines_between_measured_ones() {
        let mut model = CostModel::default();
        assert_eq!(model.step_seconds(1), None);
        model.seed([(4, 3.2)], None);
        near(model.step_seconds(1), 3.2, 1e-9);                        // level before the first
        near(model.step_seconds(36), 3.2 * (1.0 + 44.0 / 8.0), 1e-9);  // 48 rows are computed; a guess
        assert_eq!(model.known_rows(), 8);
        model.seed([(16, 4.4), (32, 6.0)], Some(0.5));
        for (rows, seconds) in [(3, 3.2), (4, 3.2), (5, 3.6), (8, 3.6), (9, 4.4), (17, 5.2), (24, 5.2), (32, 6.0), (33, 7.6), (999, 105.2), (3000, 207.6)] {
            near(model.step_seconds(rows), seconds, 1e-9);
        }
        near(model.draft_seconds(), 0.5, 1e-9);
        near(model.draft_seconds_of(5), 1.5, 1e-9);                    // half of it grows with the sequences
        assert_eq!(model.draft_seconds_of(0), Some(0.0));
        near(model.hoped_seconds(16), 4.4, 1e-9);
        near(model.hoped_seconds(64), 7.5, 1e-9);
        assert_eq!(model.known_rows(), 64);
        let mut exact = CostModel::new(Padding::None);
        exact.seed([(4, 3.2), (16, 4.4)], None);
        near(exact.step_seconds(5), 3.3, 1e-9);
    }

    #[test]
    fn one_disturbed_step_does_not_put_a_row_count_out_of_use() {
        let mut model = CostModel::new(Padding::None);
        model.learn_step(1, 1.0);
        model.learn_step(5, 20.0);
        near(model.step_seconds(5), 1.5, 1e-9);
        model.learn_step(5, 1.2);
        near(model.step_seconds(5), 1.5, 1e-9);
        model.learn_step(5, 1.2);
        near(model.step_seconds(5), 1.2, 1e-9);
        // Where steps really are that slow it is believed at the second.
        model.learn_step(9, 20.0);
        model.learn_step(9, 20.0);
        near(model.step_seconds(9), 20.0, 1e-9);
    }

    #[test]
    fn more_rows_never_cost_less() {
        let mut random = Random(8);
        for _ in 0..200 {
            let mut model =
                CostModel::new(if random.below(2) == 0 { Padding::None } else { Padding::Bucket });
            for _ in 0..random.below(60) {
                model.learn_step(1 + random.below(64) as usize, random.uniform() + 0.01);
            }
            let all: Vec<_> = (1..=600).filter_map(|rows| model.step_seconds(rows)).collect();
            assert!(all.windows(2).all(|w| w[0] <= w[1] + 1e-12), "{all:?}");
        }
    }

    #[test]
    fn what_is_remembered_comes_back_and_damage_does_not() {
        let mut model = CostModel::default();
        model.seed([(1, 0.012), (16, 0.025)], Some(0.003));
        let text = model.to_text("cpu 2 threads,\nmodel abc");
        let read = |text: &str, owner: &str| CostModel::from_text(text, owner, Padding::Bucket);
        assert_eq!(read(&text, "cpu 2 threads,\nmodel abc"), Some(model.clone()));
        assert_eq!(read(&text, "another machine"), None);
        assert_eq!(read(&text.replace("costs 1", "costs 2"), "cpu 2 threads,\nmodel abc"), None);
        assert_eq!(read("", ""), None);
        let rubbish = [
            "step 0 1 2 3 4",
            "step -1 0.1",
            "step 4 NaN",
            "step 4 inf",
            "step 4 -1",
            "step 4 1e300",
            "step 4 0",
            "step 99999999999999999999999 1",
            "step 4096 0.1",
            "draft",
            "draft x",
            "draft -1",
            "draft 0 1",
            "draft 65 1",
            "draft 2 -1",
            "\u{0}",
            "{\"a\":1}",
        ];
        let damaged = format!("{text}{}\n", rubbish.join("\n"));
        assert_eq!(read(&damaged, "cpu 2 threads,\nmodel abc"), Some(model));
    }
}
