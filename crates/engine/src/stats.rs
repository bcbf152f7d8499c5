//! Figures of one sequence.

use std::time::Duration;

use overdraft_plan::MAX_DRAFT_DEPTH;

use crate::spec::tree::TokenTree;

/// Where the wall time of rounds went. The clock is read five times a round, about 0.1 us.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Phases {
    /// The draft's passes and the tree made of them.
    pub propose: Duration,
    /// The target's pass over root and tree.
    pub verify: Duration,
    /// Drawing the target's tokens and walking down the tree.
    pub accept: Duration,
    /// Making accepted rows permanent, and learning from the round meanwhile.
    pub commit: Duration,
}

impl Phases {
    pub fn total(&self) -> Duration {
        self.propose + self.verify + self.accept + self.commit
    }

    pub fn add(&mut self, other: &Self) {
        self.propose += other.propose;
        self.verify += other.verify;
        self.accept += other.accept;
        self.commit += other.commit;
    }
}

/// Why a round drafted nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plain {
    /// Nobody asked for it, or there is nothing to draft with.
    Off,
    /// Prompts had the step.
    Reading,
    /// The text is nearly over.
    Ending,
    /// It has not been worth it lately, or could not be at this load.
    Unpromising,
    /// What was drafted was not worth verifying.
    Worthless,
}

impl Plain {
    pub const ALL: [Plain; 5] =
        [Plain::Off, Plain::Reading, Plain::Ending, Plain::Unpromising, Plain::Worthless];

    pub fn name(self) -> &'static str {
        match self {
            Plain::Off => "off",
            Plain::Reading => "reading",
            Plain::Ending => "ending",
            Plain::Unpromising => "unpromising",
            Plain::Worthless => "worthless",
        }
    }
}

/// What a sequence cost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stats {
    pub prompt_tokens: usize,
    /// Of the prompt, found in the prefix cache and not read.
    pub cached_tokens: usize,
    pub generated_tokens: usize,
    /// Wall time of the steps that read the prompt, and of those that wrote.
    pub prompt_time: Duration,
    pub generation_time: Duration,
    /// Of the steps that wrote; together the generation time.
    pub phases: Phases,
    /// Steps that wrote.
    pub rounds: usize,
    /// Of those, rounds that verified a chain and a tree; then those that drafted nothing, by [`Plain`].
    pub chains: usize,
    pub trees: usize,
    pub plain: [usize; Plain::ALL.len()],
    /// Nodes proposed and accepted.
    pub drafted: usize,
    pub accepted: usize,
    /// By depth from 1: rounds that drafted so deep, and those accepted so deep.
    pub by_depth: [(u32, u32); MAX_DRAFT_DEPTH],
}

impl Stats {
    /// Counts a round that ended with `accepted` nodes of `tree`; `plain` says why if there were none.
    pub(crate) fn count_round(&mut self, tree: &TokenTree, accepted: usize, plain: Plain) {
        self.rounds += 1;
        match tree.n_drafts() {
            0 => self.plain[plain as usize] += 1,
            _ if tree.is_chain() => self.chains += 1,
            _ => self.trees += 1,
        }
        self.drafted += tree.n_drafts();
        self.accepted += accepted;
        let deepest = tree.nodes().iter().map(|n| n.depth as usize).max().unwrap_or(0);
        for (depth, count) in self.by_depth.iter_mut().enumerate().take(deepest) {
            count.0 += 1;
            count.1 += u32::from(accepted > depth);
        }
    }

    /// Adds another sequence's figures.
    pub fn add(&mut self, other: &Self) {
        self.prompt_tokens += other.prompt_tokens;
        self.cached_tokens += other.cached_tokens;
        self.generated_tokens += other.generated_tokens;
        self.prompt_time += other.prompt_time;
        self.generation_time += other.generation_time;
        self.phases.add(&other.phases);
        self.rounds += other.rounds;
        self.chains += other.chains;
        self.trees += other.trees;
        self.plain.iter_mut().zip(other.plain).for_each(|(mine, theirs)| *mine += theirs);
        self.drafted += other.drafted;
        self.accepted += other.accepted;
        for (mine, theirs) in self.by_depth.iter_mut().zip(other.by_depth) {
            *mine = (mine.0 + theirs.0, mine.1 + theirs.1);
        }
    }

    /// Tokens a round brought on average.
    pub fn tokens_per_round(&self) -> f64 {
        if self.rounds == 0 { 0.0 } else { (self.accepted + self.rounds) as f64 / self.rounds as f64 }
    }

    pub fn prompt_rate(&self) -> f64 {
        rate(self.prompt_tokens - self.cached_tokens, self.prompt_time)
    }

    /// The first token comes with the prompt's last step, so it is not counted.
    pub fn generation_rate(&self) -> f64 {
        rate(self.generated_tokens.saturating_sub(1), self.generation_time)
    }
}

/// 0 where there is nothing to divide.
fn rate(n: usize, time: Duration) -> f64 {
    let seconds = time.as_secs_f64();
    if seconds > 0.0 { n as f64 / seconds } else { 0.0 }
}
