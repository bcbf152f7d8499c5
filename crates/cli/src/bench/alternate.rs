//! Runs prompts in several modes by turns and keeps what each cost.

use std::cell::RefCell;
use std::rc::Rc;

use overdraft_engine::noise::Numbers;
use overdraft_engine::spec::forced::Forced;
use overdraft_engine::{Drawing, Engine, Experience, Request, Sampling, Stats};

use super::args::{TimesArgs, WorkArgs};
use super::mode::BenchMode;
use super::spread::Spread;
use super::together::{Cost, write_together};
use crate::failure::{Failure, Result};
use crate::generate::{Ended, generate};
use crate::interrupt;
use crate::model::Model;
use crate::output::Reader;
use crate::progress::Progress;
use crate::prompt::{ChatPrompt, Message};
use crate::prompt_set;
use crate::run::raw_tokens;
use crate::screen::Screen;

/// The texts to write, as tokens.
pub(crate) struct Work {
    pub(crate) prompts: Vec<Vec<u32>>,
    pub(crate) max_tokens: usize,
    sampling: Sampling,
    stop_ids: Vec<u32>,
}

impl Work {
    /// Prompts for `streams` texts at once: whole batches of them, one at the least.
    pub(crate) fn new(args: &WorkArgs, streams: usize, model: &Model) -> Result<Self> {
        let drawing = Drawing { temperature: args.temperature, seed: 1, ..Drawing::GREEDY };
        let sampling = Sampling::from(drawing);
        sampling.check(model.hyper.vocab)?;
        let chat = args.chat.then(|| ChatPrompt::new(model)).transpose()?;
        let tokens = |text: &String| match &chat {
            Some(chat) => chat.tokens(&[Message::user(text)]),
            None => Ok(raw_tokens(&model.tokenizer, text)),
        };
        let n = (args.limit as usize).max(streams);
        let prompts = match prompt_set::random(&args.prompts)? {
            Some(length) => random_prompts(n / streams * streams, length, model.hyper.vocab),
            None => {
                let texts = prompt_set::load(&args.prompts)?;
                let n = n.min(texts.len()) / streams * streams;
                if n == 0 {
                    let (set, found) = (&args.prompts, texts.len());
                    return Err(Failure::input(format!("--streams {streams}: {set} holds {found} prompts"))
                        .hint("every stream has a prompt of its own: ask for fewer streams, or name another set"));
                }
                texts.iter().take(n).map(tokens).collect::<Result<_>>()?
            }
        };
        let stop_ids = if args.stop_at_eos { model.tokenizer.end_ids().to_vec() } else { Vec::new() };
        Ok(Self { prompts, max_tokens: args.max_tokens as usize, sampling, stop_ids })
    }

    /// Positions the longest text takes.
    pub(crate) fn context(&self) -> usize {
        self.prompts.iter().map(Vec::len).max().unwrap_or(0) + self.max_tokens
    }

    pub(crate) fn request(&self, prompt: usize) -> Request {
        Request {
            prompt: self.prompts[prompt].clone(),
            max_tokens: self.max_tokens,
            sampling: self.sampling.clone(),
            stop_ids: self.stop_ids.clone(),
            stop_strings: Vec::new(),
        }
    }
}

/// For models whose tokenizer knows no words, as where weights are random: the same ones every time.
pub(crate) fn random_prompts(n: usize, length: usize, vocab: usize) -> Vec<Vec<u32>> {
    let mut numbers = Numbers::new(1);
    (0..n).map(|_| (0..length).map(|_| numbers.below(vocab) as u32).collect()).collect()
}

/// A mode and what it did. `samples[repeat * batches + batch]`.
pub(crate) struct ModeRun {
    pub(crate) mode: BenchMode,
    /// What was forced upon its rounds; its text is not the model's.
    pub(crate) forced: Option<Forced>,
    /// Its own, or shared with runs that differ in what is forced upon them alone; what it learns is always its own.
    pub(crate) engine: Rc<RefCell<Engine>>,
    experience: Experience,
    pub(crate) samples: Vec<Cost>,
    /// Texts equal to plain decoding's, of all samples.
    pub(crate) identical: usize,
}

impl ModeRun {
    pub(crate) fn new(mode: BenchMode, engine: Engine) -> Self {
        Self::sharing(mode, &Rc::new(RefCell::new(engine)), None)
    }

    pub(crate) fn sharing(mode: BenchMode, engine: &Rc<RefCell<Engine>>, forced: Option<Forced>) -> Self {
        let experience = engine.borrow().inexperience();
        Self { mode, forced, engine: engine.clone(), experience, samples: Vec::new(), identical: 0 }
    }

    /// As tables call it.
    pub(crate) fn name(&self) -> String {
        format!("{}{}", self.mode, self.marked())
    }

    /// What names of it end in.
    pub(crate) fn marked(&self) -> String {
        self.forced.map_or_else(String::new, |forced| format!(", forced {}", forced.tokens_a_round()))
    }

    /// All samples together.
    pub(crate) fn total(&self) -> Cost {
        let mut total = Cost::default();
        self.samples.iter().for_each(|s| total.add(s));
        total
    }

    /// Tokens a second over the whole set.
    pub(crate) fn rate(&self) -> f64 {
        self.total().rate()
    }

    pub(crate) fn rates(&self) -> Spread {
        Spread::of(self.samples.iter().map(Cost::rate))
    }

    /// Sample by sample over another mode's.
    pub(crate) fn over(&self, plain: &Self) -> Spread {
        Spread::of(self.samples.iter().zip(&plain.samples).map(|(mine, theirs)| mine.rate() / theirs.rate()))
    }

    /// Rows of a text's round: the root and what was guessed.
    pub(crate) fn rows_per_round(&self) -> f64 {
        let total = self.total().stats;
        if total.rounds == 0 { 0.0 } else { 1.0 + total.drafted as f64 / total.rounds as f64 }
    }

    /// How many of its texts are plain decoding's, of how many; none of what was forced can be.
    pub(crate) fn equal_texts(&self) -> Option<(usize, usize)> {
        self.forced.is_none().then(|| (self.identical, self.total().texts))
    }

    /// The same as tables say it.
    pub(crate) fn text_as_plain(&self) -> String {
        self.equal_texts().map_or_else(|| "forced".into(), |(same, of)| format!("{same} of {of}"))
    }
}

/// How prompts are run.
#[derive(Clone, Copy)]
pub(crate) struct Way {
    pub(crate) times: TimesArgs,
    /// Texts at once.
    pub(crate) streams: usize,
    /// Ask what the device does.
    pub(crate) watched: bool,
}

/// Every prompt in every mode, the modes taking turns and each batch of prompts beginning with another one. `runs[0]` is
/// plain.
pub(crate) fn alternate(runs: &mut [ModeRun], work: &Work, way: Way, screen: &Screen) -> Result<()> {
    let n = work.prompts.len() / way.streams;
    let write = |run: &mut ModeRun, batch: usize| {
        let prompts = batch * way.streams..(batch + 1) * way.streams;
        let engine = &mut run.engine.borrow_mut();
        engine.force_acceptance(run.forced);
        engine.exchange_experience(&mut run.experience);
        let written = write_together(engine, prompts.map(|p| work.request(p)), way.watched);
        engine.exchange_experience(&mut run.experience);
        written
    };
    for i in 0..way.times.warmup as usize {
        for run in runs.iter_mut() {
            write(run, i % n)?;
        }
    }
    let mut progress = Progress::new("measuring", screen);
    let mut plain: Vec<Vec<Vec<u32>>> = Vec::new();
    let total = way.times.repeats as usize * n;
    for turn in 0..total {
        progress.at(turn, total);
        let batch = turn % n;
        let mut written: Vec<(usize, Vec<Vec<u32>>)> = Vec::with_capacity(runs.len());
        for m in 0..runs.len() {
            let m = (m + turn) % runs.len();
            let (texts, cost) = write(&mut runs[m], batch)?;
            runs[m].samples.push(cost);
            written.push((m, texts));
        }
        if turn < n {
            plain.extend(written.iter().find(|w| w.0 == 0).map(|w| w.1.clone()));
        }
        for (m, texts) in written {
            let same = texts.iter().zip(&plain[batch]).filter(|(mine, plain)| mine == plain);
            runs[m].identical += same.count();
        }
    }
    Ok(())
}

/// One request to its end.
pub(crate) fn write(engine: &mut Engine, request: Request, screen: &Screen) -> Result<(Vec<u32>, Stats)> {
    let answer = generate(engine, request, screen, |_| Ok(Reader::There))?;
    match answer.ended {
        Ended::Interrupted => Err(interrupt::failure()),
        Ended::Finished(_) | Ended::ReaderGone => Ok((answer.tokens, answer.stats)),
    }
}
