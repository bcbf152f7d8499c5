//! Admission, and the step that moves every admitted sequence on.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use overdraft_formats::tokenizer::Tokenizer;
use overdraft_models::{Decoder, Draft};
use overdraft_plan::{Backend, DeviceUse, KvType, MAX_DRAFT_DEPTH, StateId, Step, grid_of};

use crate::clock::{Clock, SystemClock};
use crate::error::{EngineError, Result};
use crate::event::{Event, Witness};
use crate::footprint::{
    cache_room, check_config, check_kv_bytes, does_not_fit, footprint, plan_memory, plan_state,
};
use crate::ledger::Ledger;
use crate::memory::{Hit, Memory};
use crate::options::{Options, Speculative};
use crate::plans::Plans;
use crate::request::{Bounds, Request, SeqId};
use crate::resident::Residence;
use crate::round::{Part, Round};
use crate::sampling::{History, Sampler};
use crate::sequence::Sequence;
use crate::spec::accept::Verdict;
use crate::spec::budget::{Beside, Forecast};
use crate::spec::calibration::Calibration;
use crate::spec::cost::{CostModel, Padding};
use crate::spec::drafter::{BlockDraft, Drafter, NoDraft};
use crate::spec::forced::Forced;
use crate::spec::gate::Gate;
use crate::spec::learned::Learned;
use crate::spec::ngram::NGramIndex;
use crate::spec::policy::{Mode, Policy};
use crate::spec::prospect::Prospect;
use crate::spec::reach::Reach;
use crate::spec::tree::TokenTree;
use crate::spec::trials::Trials;
use crate::stats::{Plain, Stats};
use crate::stop::TextStream;

/// Positions past a sequence's end that a round may touch: the nodes of a tree, or the block of a draft.
pub(crate) const SLACK: usize = 64;

/// Sizes fixed for an engine's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    /// Positions a sequence may have.
    pub context: usize,
    /// Sequences alive at once.
    pub max_seqs: usize,
    pub kv: KvType,
    /// Rows of a step at most; a prompt is read in chunks of it.
    pub step_rows: usize,
    /// Bytes for the context pages of all sequences together; `None` is a full context for each. With less, requests
    /// wait for pages.
    pub kv_bytes: Option<usize>,
    /// How long those who write may wait for their next token while prompts are read: these are read in pieces that
    /// keep to it, and beside them drafting goes on. `None`: prompts are read as fast as can be.
    pub token_gap: Option<Duration>,
    /// Bytes for the prefix cache; 0 is none. They hold the pages and recurrent states of prompts that were read.
    pub cache_bytes: usize,
    /// Bytes that may be used, weights included; `None` is not checked.
    pub memory: Option<usize>,
    /// Whether rounds draft.
    pub draft_mode: Mode,
    /// Drafted nodes of a round: with chain or tree exactly so many, with auto at most; `None` is for it to choose.
    pub budget: Option<usize>,
    /// Also look for what follows in the text itself.
    pub lookup: bool,
    /// Prompts are computed by the kernels that write, also where a backend has others for them.
    pub exact: bool,
    /// What events say of the logits behind them.
    pub witness: Witness,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            context: 4096,
            max_seqs: 1,
            kv: KvType::F16,
            step_rows: 512,
            kv_bytes: None,
            token_gap: None,
            cache_bytes: 0,
            memory: None,
            draft_mode: Mode::Off,
            budget: None,
            lookup: false,
            exact: false,
            witness: Witness::None,
        }
    }
}

pub struct Engine {
    pub(crate) decoder: Decoder,
    pub(crate) draft: Option<Draft>,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) backend: Box<dyn Backend>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) state: StateId,
    pub(crate) config: EngineConfig,
    ledger: Ledger,
    pub(crate) plans: Plans,
    pub(crate) memory: Memory,
    pub(crate) seqs: Vec<Sequence>,
    /// One for each of `seqs`.
    pub(crate) rounds: Vec<Round>,
    next_id: u64,
    pub(crate) step: Step,
    pub(crate) sampler: Sampler,
    /// The sequences of the step.
    pub(crate) parts: Vec<Part>,
    /// Sequences that a pass of the draft is for.
    pub(crate) chosen: Vec<usize>,
    /// Accepted rows of each sequence of the step.
    pub(crate) paths: Vec<Vec<u32>>,
    /// Sequences that failed and are not yet reported, and what others brought in that step.
    pub(crate) failed: VecDeque<EngineError>,
    pub(crate) held_back: Vec<Event>,
    pub(crate) cost: CostModel,
    /// Of steps with prompts in them.
    pub(crate) reading_cost: CostModel,
    /// Steps with prompts in them so far.
    pub(crate) reading_turn: u64,
    /// The step at hand reads prompts for the log-probabilities of their tokens.
    pub(crate) is_scoring: bool,
    /// What is left of each prompt that is read, and how much of it this step reads.
    pub(crate) prompt_rows: (Vec<usize>, Vec<usize>),
    /// All that writes in the step: rows, tokens expected of them, sequences whose draft passes ran.
    pub(crate) step_sum: Beside,
    /// What draft passes may lose where several sequences write.
    pub(crate) trials: Trials,
    pub(crate) prospect: Prospect,
    pub(crate) reach: Reach,
    /// Rounds that the backend runs by itself.
    pub(crate) residence: Residence,
    /// How the last sequence to end had come to draft: the next one starts from there.
    pub(crate) policy: Policy,
    pub(crate) calibration: Calibration,
    pub(crate) padding: Padding,
    /// Of the sequences to come; `None` outside of measurements.
    forced: Option<Forced>,
}

impl Engine {
    /// Plans all memory, refuses what does not fit with the context that would, and only then allocates.
    pub fn new(
        decoder: Decoder,
        draft: Option<Draft>,
        tokenizer: Arc<Tokenizer>,
        mut backend: Box<dyn Backend>,
        config: EngineConfig,
    ) -> Result<Self> {
        check_config(&config)?;
        let spec = plan_state(&decoder.hyper, draft.as_ref(), &config);
        let room = cache_room(&decoder.hyper, draft.as_ref(), &config);
        check_kv_bytes(&spec, &config, room)?;
        let ledger = plan_memory(footprint(&decoder, draft.as_ref(), &*backend, &config), &spec, &config);
        if let Some(limit) = config.memory
            && ledger.total() > limit
        {
            let why = does_not_fit(&decoder, draft.as_ref(), &*backend, &config, &ledger, limit);
            return Err(EngineError::Memory(why));
        }
        let padding = if backend.computes_whole_buckets() { Padding::Bucket } else { Padding::None };
        let policy = first_policy(&config, draft.is_some());
        backend.load(decoder.weights.clone())?;
        let state = backend.allocate(&spec)?;
        let plans = Plans::new(&*backend, config.exact, config.max_seqs);
        let memory = Memory::new(&spec, config.max_seqs, config.step_rows, room);
        Ok(Self {
            decoder,
            draft,
            tokenizer,
            backend,
            clock: Arc::new(SystemClock),
            state,
            config,
            ledger,
            plans,
            memory,
            seqs: Vec::new(),
            rounds: Vec::new(),
            next_id: 0,
            step: Step::default(),
            sampler: Sampler::default(),
            parts: Vec::new(),
            chosen: Vec::new(),
            paths: Vec::new(),
            failed: VecDeque::new(),
            held_back: Vec::new(),
            cost: CostModel::new(padding),
            reading_cost: CostModel::new(padding),
            reading_turn: 0,
            is_scoring: false,
            prompt_rows: Default::default(),
            step_sum: Beside::default(),
            trials: Trials::default(),
            prospect: Prospect::default(),
            reach: Reach::default(),
            residence: Residence::default(),
            policy,
            calibration: Calibration::default(),
            padding,
            forced: None,
        })
    }

    /// Time by another clock than the machine's.
    pub fn set_clock(&mut self, clock: Arc<dyn Clock>) {
        self.clock = clock;
    }

    pub(crate) fn first_policy(&self) -> Policy {
        first_policy(&self.config, self.draft.is_some())
    }

    /// Sequences admitted from now on accept what `forced` says instead of what the target chose. Only for measurements:
    /// their texts are not the model's.
    pub fn force_acceptance(&mut self, forced: Option<Forced>) {
        self.forced = forced;
    }

    /// What became of the device's time since this was last asked; see [`Backend::watch`].
    pub fn watch_device(&mut self) -> Result<Option<DeviceUse>> {
        Ok(self.backend.watch()?)
    }

    pub fn describe(&self) -> String {
        self.backend.describe()
    }

    /// Seconds of a step of one row, plain decoding's, as far as learned.
    pub fn plain_seconds(&self) -> Option<f64> {
        self.cost.step_seconds(1)
    }

    /// What was learned so far of this pair on this machine, for a later engine's [`Self::recall`].
    pub fn learned(&self) -> Learned {
        let standing = Some(self.policy.standing());
        Learned { cost: self.cost.clone(), calibration: self.calibration.clone(), standing }
    }

    /// Begins with what an earlier engine learned, as [`Learned::to_text`] kept it for `owner`. Returns whether there
    /// was anything of use in it. Changes the speed of what follows, never its text.
    pub fn recall(&mut self, text: &str, owner: &str) -> bool {
        let Some(learned) = Learned::from_text(text, owner, self.padding) else { return false };
        if let Some(standing) = learned.standing {
            self.policy = self.policy.beginning(standing);
        }
        (self.cost, self.calibration) = (learned.cost, learned.calibration);
        self.cost.step_seconds(1).is_some()
    }

    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Bytes that the backend's device says are taken since it was opened, which the ledger promised to be enough.
    pub fn device_bytes_taken(&self) -> Option<usize> {
        self.backend.taken()
    }

    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    pub fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    pub fn draft(&self) -> Option<&Draft> {
        self.draft.as_ref()
    }

    /// KV pages that sequences hold or were promised, of how many, over all retention classes.
    pub fn pages(&self) -> (usize, usize) {
        self.memory.pages()
    }

    /// Places that are taken, of how many.
    pub fn slots(&self) -> (usize, usize) {
        self.memory.slots()
    }

    /// Blocks of 64 tokens in the prefix cache.
    pub fn cached_blocks(&self) -> usize {
        self.memory.cached_blocks()
    }

    /// A paused sequence keeps what it has and takes part in no step. Of a round that was asked for before, it still has the
    /// tokens.
    pub fn set_paused(&mut self, id: SeqId, is_paused: bool) {
        if let Some(seq) = self.seqs.iter_mut().find(|s| s.id == id) {
            seq.is_paused = is_paused;
        }
    }

    pub fn bounds(&self) -> Bounds {
        let hyper = &self.decoder.hyper;
        Bounds { vocab: hyper.vocab, context: self.config.context, trained: hyper.context }
    }

    /// Admits a request, reserving what its whole life can need, or says why not. Nothing is half done.
    pub fn admit(&mut self, request: Request) -> Result<SeqId> {
        self.admit_as(request, Options::default())
    }

    /// [`Self::admit`] for one that asks for more.
    pub fn admit_as(&mut self, request: Request, options: Options) -> Result<SeqId> {
        let ends = || NGramIndex::new(request.stop_ids.clone());
        let trusting = |drafter: BlockDraft| Box::new(drafter.with_calibration(self.calibration.carried()));
        let is_off = self.config.draft_mode == Mode::Off || options.speculative == Speculative::Off;
        let drafter = match (self.draft.is_some(), self.config.lookup) {
            _ if is_off => Box::new(NoDraft) as Box<dyn Drafter + Send>,
            (true, false) => trusting(BlockDraft::new()),
            (true, true) => trusting(BlockDraft::merged(ends())),
            (false, true) => trusting(BlockDraft::ngram(ends())),
            (false, false) => Box::new(NoDraft),
        };
        let policy = match options.speculative {
            Speculative::Off => Policy::new(Mode::Off, None, false, false),
            _ => self.policy.successor(),
        };
        self.admit_sequence(request, options, drafter, policy)
    }

    /// [`Self::admit`] with a drafter of the caller's: it drafts as the engine is told to, and needs no draft if it does without.
    pub fn admit_with(&mut self, request: Request, drafter: Box<dyn Drafter + Send>) -> Result<SeqId> {
        let has_forward = self.draft.is_some() && drafter.wants_forward();
        let policy =
            Policy::new(self.config.draft_mode, self.config.budget, has_forward, drafter.proposes_unaided());
        self.admit_sequence(request, Options::default(), drafter, policy)
    }

    /// Whether there is room for the request's whole life at the moment.
    pub fn has_room(&self, request: &Request, options: &Options) -> Result<()> {
        self.place(request, options).map(|_| ())
    }

    /// What of the prompt is here already, as far as there is room for the request with it; else without.
    fn place(&self, request: &Request, options: &Options) -> Result<Hit> {
        let (taken, slots) = self.memory.slots();
        if taken == slots {
            return Err(EngineError::NoSlot { slots });
        }
        let length = request.limit(self.config.context) + SLACK;
        let hit = match options.prompt_logprobs {
            None => self.memory.find(options.cache_salt, &request.prompt),
            Some(_) => Hit::default(),
        };
        if self.memory.fits(length, &hit).is_ok() {
            return Ok(hit);
        }
        let none = Hit::default();
        let fits = self.memory.fits(length, &none);
        fits.map_err(|(needed, free)| EngineError::NoPages { needed, free })?;
        Ok(none)
    }

    fn admit_sequence(
        &mut self,
        request: Request,
        options: Options,
        mut drafter: Box<dyn Drafter + Send>,
        policy: Policy,
    ) -> Result<SeqId> {
        request.check(&self.bounds())?;
        options.check()?;
        let hit = self.place(&request, &options)?;
        let vocab = self.decoder.hyper.vocab;
        let n = request.prompt.len();
        let limit = request.limit(self.config.context);
        let Some((slot, tables)) = self.memory.admit(limit + SLACK, &hit) else {
            return Err(EngineError::NoSlot { slots: self.config.max_seqs });
        };
        match hit.snapshot {
            Some(snapshot) => self.backend.copy_slot(self.state, snapshot as usize, slot as usize),
            None => self.backend.reset_slot(self.state, slot as usize),
        }
        let cached = hit.tokens();
        let history = History::new(&request.sampling, &request.prompt, limit.min(vocab));
        request.prompt.iter().for_each(|token| drafter.committed(*token));
        // Room for its whole life, as for its pages: no step of it allocates.
        let mut tokens = Vec::with_capacity(limit + 1);
        tokens.extend_from_slice(&request.prompt);
        let id = SeqId(self.next_id);
        self.next_id += 1;
        self.rounds.push(Round {
            drafter,
            policy,
            decision: None,
            plain: Plain::Off,
            forecast: Forecast::default(),
            tree: TokenTree::new(vocab as u32)
                .limited(options.speculative)
                .gated(options.constraint.map(|c| Gate::new(c, vocab))),
            verdict: Verdict { path: Vec::with_capacity(MAX_DRAFT_DEPTH), next: 0 },
            forced: self.forced,
            has_lesson: false,
            injected: cached,
        });
        self.seqs.push(Sequence {
            id,
            slot,
            tokens,
            committed: cached,
            stored_grid: grid_of((cached as u32).saturating_sub(1)),
            tables,
            cache_salt: options.cache_salt,
            keep_at: self.memory.keep_at(&request.prompt, &hit),
            history,
            text: TextStream::new(&request.stop_strings, !options.keep_specials),
            stats: Stats { prompt_tokens: n, cached_tokens: cached, ..Default::default() },
            limit,
            is_paused: false,
            logprobs: options.logprobs,
            prompt_logprobs: options.prompt_logprobs,
            scores: options.prompt_logprobs.map(|_| Vec::with_capacity(n - 1)),
            rests: false,
            request,
        });
        Ok(id)
    }

    /// Ends a sequence before its time; its memory is free at once.
    pub fn cancel(&mut self, id: SeqId) -> Option<Stats> {
        let index = self.seqs.iter().position(|s| s.id == id)?;
        Some(self.remove(index))
    }

    /// Nothing is left to step for, or to report.
    pub fn is_idle(&self) -> bool {
        self.seqs.is_empty() && self.failed.is_empty() && self.held_back.is_empty()
    }

    /// Prompt tokens read so far, of how many.
    pub fn prompt_progress(&self, id: SeqId) -> Option<(usize, usize)> {
        let seq = self.seqs.iter().find(|s| s.id == id)?;
        Some((seq.committed.min(seq.request.prompt.len()), seq.request.prompt.len()))
    }

    fn remove(&mut self, index: usize) -> Stats {
        let seq = self.seqs.remove(index);
        let round = self.rounds.remove(index);
        if round.policy.is_of_same_pair(&self.policy) {
            self.policy = round.policy.successor();
        }
        if let Some(learned) = round.drafter.learned() {
            self.calibration = learned.clone();
        }
        self.memory.release(seq.slot, seq.tables);
        seq.stats
    }
}

/// Of a pair of which nothing is known.
fn first_policy(config: &EngineConfig, has_draft: bool) -> Policy {
    Policy::new(config.draft_mode, config.budget, has_draft, config.lookup)
}
