//! What a backend offers. Handles are plain indices, so the engine holds a `Box<dyn Backend>` and no type of it.

use std::sync::Arc;
use std::time::Duration;

use crate::draw::Adjustment;
use crate::plan::{Act, Choice, Plan};
use crate::round::{MAX_LISTED, Outcome, Resident, RoundId, RoundSpec, Terms};
use crate::state::StateSpec;
use crate::step::{Step, StepError};
use crate::weights::Weights;

/// A plan made ready for replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanId(pub u32);

/// The kept state of a model's sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateId(pub u32);

#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    #[error(transparent)]
    Step(#[from] StepError),
    #[error("{what}: {needed} bytes are needed and {available} are free")]
    OutOfMemory { what: &'static str, needed: usize, available: usize },
    #[error("this backend cannot run {what}: {why}")]
    Unsupported { what: String, why: String },
    /// The device or its driver failed; the reason in its own words.
    #[error("{0}")]
    Device(String),
}

/// What became of a device's time, by its own clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceUse {
    /// Between the first and the last op of a run or a commit.
    pub busy: Duration,
    /// Between the last op of one and the first of the next.
    pub idle: Duration,
}

/// Bytes a backend holds beside the state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    pub weights: usize,
    /// Buffers that plans take turns with.
    pub scratch: usize,
    /// Kernels, recorded plans, and what they share work by.
    pub plans: usize,
}

/// Owns weights and state, and replays plans.
pub trait Backend: Send {
    /// For the figures and for `inspect`: what runs the plan ("cpu, avx2, 8 threads").
    fn describe(&self) -> String;

    /// Whether a step costs as much as its bucket, however few of its rows are used.
    fn computes_whole_buckets(&self) -> bool {
        true
    }

    /// Whether [`Self::read`] is a copy from another memory, which a choice made on the other side saves.
    fn is_far(&self) -> bool {
        false
    }

    /// What became of the device's time since this was last asked; the first time, nothing yet, and from there on it is
    /// watched, which costs it a little. `None`: the host computes itself.
    fn watch(&mut self) -> Result<Option<DeviceUse>, BackendError> {
        Ok(None)
    }

    /// Whether rows of prompts can have kernels of their own, which give them other bits than written rows have. Then a
    /// plan says so ([`Plan::written_before_prompts`]), and a row's kind must follow from its request alone.
    fn reads_apart(&self) -> bool {
        false
    }

    /// What it will hold of these weights and for plans of which these are the largest. Asked before anything is loaded.
    fn footprint(&self, weights: &Weights, plans: &[Plan]) -> Footprint {
        let scratch = plans.iter().map(|plan| 4 * plan.scratch_len()).max().unwrap_or(0);
        // A quarter more for int8 activations.
        Footprint { weights: weights.n_bytes().0, scratch: scratch + scratch / 4, plans: 0 }
    }

    /// Bytes of the device's memory that are taken since this was made, by whomever: what [`Self::footprint`] and states can be compared
    /// with. `None`: it computes in the host's.
    fn taken(&self) -> Option<usize> {
        None
    }

    /// Takes a model's weights. Called once; ids in plans are indices into them.
    fn load(&mut self, weights: Arc<Weights>) -> Result<(), BackendError>;

    /// Allocates state for sequences, zeroed.
    fn allocate(&mut self, spec: &StateSpec) -> Result<StateId, BackendError>;

    /// Clears a slot's recurrent state for a new sequence. Pages need no clearing: nothing reads what it did not write.
    fn reset_slot(&mut self, state: StateId, slot: usize);

    /// Copies all that slot `from` keeps beside pages to slot `to`: what a prefix is continued from.
    fn copy_slot(&mut self, state: StateId, from: usize, to: usize);

    fn prepare(&mut self, plan: Plan) -> Result<PlanId, BackendError>;

    /// Runs a step, or has it run: what fails after that is returned by [`Self::wait`], or by the next run.
    fn run(&mut self, plan: PlanId, state: StateId, step: &Step) -> Result<(), BackendError>;

    /// Until all that was asked for is done, or has failed. Reading waits too, and cannot say what went wrong.
    fn wait(&mut self) -> Result<(), BackendError> {
        Ok(())
    }

    /// Makes rows of the last run permanent that were not sure: `paths` holds, for each sequence of the step, the
    /// accepted rows after its sure ones, each the child of the one before. Their keys, values and recurrent rows
    /// move to the places of their positions, and the taps of all accepted rows join those that wait (those of sure rows
    /// may have joined at the end of the run).
    fn commit(&mut self, plan: PlanId, state: StateId, step: &Step, paths: &[Vec<u32>]);

    /// The buffer as the last run of any plan, which must have been this one's, left it: its rows times its width.
    fn read(&self, plan: PlanId, act: Act) -> &[f32];

    /// The choices as the last run, which must have been this plan's, left them.
    fn read_choices(&self, plan: PlanId, choice: Choice) -> &[(u32, f32)];

    /// Whether it has the calls below: whole rounds with no host between their parts.
    fn has_rounds(&self) -> bool {
        false
    }

    /// Tokens that the list of a sequence that takes part may have: what bias and penalties change.
    fn listed_room(&self) -> usize {
        MAX_LISTED
    }

    /// Makes a round of plans that were prepared, for one state.
    fn prepare_round(&mut self, _spec: RoundSpec, _state: StateId) -> Result<RoundId, BackendError> {
        Err(no_rounds())
    }

    /// Says what a sequence is that takes part in rounds from now on, in place of what was known of its slot. `listed`: what
    /// bias and penalties know of its tokens, the root's included, by token and each once, at most [`Self::listed_room`] as
    /// long as it takes part. No round is under way, and one has been prepared. Of those with a list no more than the last
    /// [`crate::MAX_RESIDENTS`] need be known.
    fn set_resident(
        &mut self,
        _state: StateId,
        _resident: &Resident,
        _listed: &[Adjustment],
    ) -> Result<(), BackendError> {
        Err(no_rounds())
    }

    /// Says which pages a slot has from the next round on, by retention class: all that rounds asked for by then can touch.
    fn set_tables(
        &mut self,
        _state: StateId,
        _slot: u32,
        _tables: &mut dyn Iterator<Item = &[u32]>,
    ) -> Result<(), BackendError> {
        Err(no_rounds())
    }

    /// Has a round run behind those asked for before. At most two wait to be taken.
    fn run_round(&mut self, _round: RoundId, _state: StateId, _terms: &Terms) -> Result<(), BackendError> {
        Err(no_rounds())
    }

    /// What became of the oldest round that was not taken yet, once it is over. Where no other was asked for since, the
    /// buffers of its verify can be read as after a run.
    fn take_outcome(&mut self, _outcome: &mut Outcome) -> Result<(), BackendError> {
        Err(no_rounds())
    }
}

fn no_rounds() -> BackendError {
    let (what, why) = ("rounds of its own".into(), "it runs plans only".into());
    BackendError::Unsupported { what, why }
}
