//! Rounds that stay where the plans run: waiting taps, a draft's block, its tree, verify, acceptance and commit follow one
//! another with nobody between them, and the host learns what became of a round while the next one runs.
//!
//! [`HostRounds`](crate::HostRounds) is the definition: a round made of the backend's own plans and plain Rust.

use crate::backend::PlanId;
use crate::draw::Drawing;
use crate::plan::Choice;
use crate::state::MAX_DRAFT_DEPTH;

/// Sequences of a round at most.
pub const MAX_RESIDENTS: usize = 16;
/// Rows that a round verifies at most, roots included, and of those a sequence's.
pub const MAX_ROUND_ROWS: usize = 128;
pub const MAX_ROUND_TREE: usize = 64;
/// Tokens that end a sequence where the round runs; more are for the host to find.
pub const MAX_STOP_IDS: usize = 8;
/// Tokens of a sequence that bias and penalties change, at most: 96 KB of them. A text that could come to have more is the
/// host's.
pub const MAX_LISTED: usize = 8192;
/// Rows that a sequence can have waiting for the draft when a round begins: a root and the deepest path.
pub const MAX_ENTERING: usize = MAX_DRAFT_DEPTH + 1;

/// Tokens of a path that was found in a text itself: as many as a round can verify, and those that the ones before it write meanwhile.
pub const MAX_FOUND: usize = 24;

/// A round made ready for replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundId(pub u32);

/// What a round is made of, and for how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundSpec {
    /// Without one all trees are roots: plain decoding, after which taps go on waiting.
    pub draft: Option<RoundDraft>,
    /// Roots and trees, and the token chosen after each row.
    pub verify: PlanId,
    pub chosen: Choice,
    pub seqs: usize,
    /// Rows verified at most.
    pub rows: usize,
    /// Positions that a sequence may have, and that its page tables have entries for.
    pub positions: usize,
}

impl RoundSpec {
    /// Whether there can be more to a tree than its root.
    pub fn has_trees(&self) -> bool {
        self.draft.is_some_and(|draft| draft.block.is_some()) || self.rows > self.seqs
    }
}

/// The draft's part of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundDraft {
    /// Waiting taps enter the draft's context; with room for all that are to.
    pub inject: PlanId,
    /// Where trees come from. Without it taps enter and nobody drafts.
    pub block: Option<RoundBlock>,
}

/// The draft's passes for those that draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundBlock {
    /// A block of anchor and masks for each of `per_pass` sequences, and of it the most likely tokens.
    pub plan: PlanId,
    pub candidates: Choice,
    pub size: usize,
    /// Its rows are computed as prompts are ([`crate::Plan::written_before_prompts`]).
    pub is_apart: bool,
    pub mask_token: u32,
    /// Sequences that draft, at most; the others of the round have rows in verify alone.
    pub seqs: usize,
    /// Rows of candidates of a sequence, and candidates of a row.
    pub depths: usize,
    pub n_candidates: usize,
    /// Sequences of one pass of the draft.
    pub per_pass: usize,
}

/// Acceptance by a set pattern, for measurements: so many tokens a round, in 65536ths, as far as its tree is deep enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    pub tokens: u32,
    /// What rounds so far fell short of a fraction.
    pub owed: u32,
}

impl Pace {
    /// Guesses that come true in the next round.
    pub fn next_depth(&mut self) -> u32 {
        let wanted = self.tokens + self.owed;
        self.owed = wanted & 0xffff;
        (wanted >> 16) - 1
    }

    /// What a draft is taken to say of its best guess, its second best and so on. Random weights say next to nothing of any,
    /// and nobody would verify such guesses; what it is really worth is for the policy to find out, as ever.
    pub fn said(rank: usize) -> f32 {
        // 0.78, 0.11, 0.05, and so on, 0.98 together. Their logarithms have few bits, so that no sum of them is rounded.
        if rank == 0 { -0.25 } else { -1.5 - 0.75 * rank as f32 }
    }

    /// The token in place of the target's `own` where the path ends: one that nobody guessed. Of as many tokens and one more
    /// than there are guesses, one is none.
    pub fn unguessed(own: u32, n_guesses: usize, is_guessed: impl Fn(u32) -> bool) -> u32 {
        let mut near = (0..=n_guesses as u32).map(|i| if own >= i { own - i } else { own + i });
        near.find(|token| !is_guessed(*token)).unwrap_or(own)
    }
}

/// What is known of a sequence where rounds run. A round moves it on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Resident {
    pub slot: u32,
    pub committed: u32,
    /// Positions in the draft's context; the taps of those up to the committed ones wait.
    pub injected: u32,
    pub stored_grid: u32,
    /// The last token of the text, not yet run.
    pub root: u32,
    /// The text ends with so many tokens.
    pub limit: u32,
    /// [`crate::NO_TOKEN`] where there is none.
    pub stop_ids: [u32; MAX_STOP_IDS],
    /// How its tokens are drawn. The tokens that bias and penalties change are told of beside it.
    pub drawing: Drawing,
    /// What is accepted, where that is not for the target to say.
    pub forced: Option<Pace>,
    /// Takes part in rounds. One that ended, or that the host has to look at, does not.
    pub is_active: bool,
}

/// What a draft has to do with a sequence in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftPart {
    /// Nothing: its taps go on waiting.
    Apart,
    /// Its waiting taps enter the draft's context.
    Enters,
    /// They enter, and it drafts.
    Drafts,
}

/// What the host takes to follow a text that does not draft, by what followed the same tokens before. It was found a round or two ago:
/// the text has to have gone along with it since.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Found {
    /// Tokens committed then: the first of these comes behind the root of then.
    pub at: u32,
    pub n: u32,
    pub tokens: [u32; MAX_FOUND],
    pub logps: [f32; MAX_FOUND],
}

impl Found {
    pub const NOTHING: Self = Self { at: 0, n: 0, tokens: [0; MAX_FOUND], logps: [0.0; MAX_FOUND] };

    /// How many of them the text has gone along with, if its root is the last of those.
    pub fn since(&self, resident: &Resident) -> Option<usize> {
        let since = resident.committed.checked_sub(self.at)? as usize;
        let goes_along = since == 0 || self.tokens.get(since - 1) == Some(&resident.root);
        (since < self.n as usize && goes_along).then_some(since)
    }
}

/// A sequence's part of what the host has a say in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Member {
    pub slot: u32,
    pub part: DraftPart,
    /// Drafted nodes at most, and how deep they may lie.
    pub nodes: u32,
    pub depth: u32,
    pub is_chain: bool,
    /// All its nodes are verified, whatever they are worth.
    pub is_fixed: bool,
    /// Added to log-probabilities, by depth from 1: the draft's, or those of what was found.
    pub trust: [f32; MAX_DRAFT_DEPTH],
    pub found: Found,
}

/// What the host has a say in, a round late at most.
#[derive(Clone, Debug, PartialEq)]
pub struct Terms {
    /// Those that write; the round leaves out who has ended by then.
    pub members: Vec<Member>,
    /// What it is worth to verify so many rows in all: tokens expected times `gain`, less `price`. Rows whose price is
    /// infinite are not tried.
    pub gain: [f32; MAX_ROUND_ROWS + 1],
    pub price: [f32; MAX_ROUND_ROWS + 1],
    /// Of a node's weight, what it is taken to be worth.
    pub hedge: f32,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            members: Vec::new(),
            gain: [1.0; MAX_ROUND_ROWS + 1],
            price: [0.0; MAX_ROUND_ROWS + 1],
            hedge: 1.0,
        }
    }
}

/// A row of a round's verify: a node of a sequence's tree, or its root.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoundNode {
    pub token: u32,
    /// Place in the same tree, before this one; [`crate::NO_PARENT`] for the root.
    pub parent: u32,
    /// What the draft said, and the logarithm of what the path to it is believed to be worth.
    pub logp: f32,
    pub log_weight: f32,
    /// What was drawn after it, as [`crate::Op::Sample`] leaves it.
    pub chosen: (u32, f32),
}

/// What became of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fate {
    pub slot: u32,
    /// Its nodes are `nodes[first..][..n_nodes]` of the outcome, and as many rows of verify's logits.
    pub first: u32,
    pub n_nodes: u32,
    /// Drafted nodes that were accepted.
    pub n_accepted: u32,
    /// The node after which nothing could be drawn: accepted, and not decided after. The host has
    /// to look; the sequence takes part in no further round.
    pub doubt: Option<u32>,
    /// Tokens committed since.
    pub committed: u32,
}

/// What became of a round. Kept and refilled.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Of those members that took part, in their order.
    pub fates: Vec<Fate>,
    pub nodes: Vec<RoundNode>,
    /// Rows that it would have been best to verify, had there been room.
    pub wanted_rows: u32,
    /// By the clock of whoever ran it: up to the tree, and from there on.
    pub draft_seconds: f64,
    pub step_seconds: f64,
}

impl Outcome {
    pub fn clear(&mut self) {
        self.fates.clear();
        self.nodes.clear();
    }

    pub fn nodes_of(&self, fate: &Fate) -> &[RoundNode] {
        &self.nodes[fate.first as usize..][..fate.n_nodes as usize]
    }
}
