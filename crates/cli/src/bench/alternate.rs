//! Runs prompts in several modes by turns and keeps what each cost.

use overdraft_engine::{Engine, Request, Sampling, Stats};

use super::args::{TimesArgs, WorkArgs};
use super::mode::BenchMode;
use super::spread::Spread;
use crate::failure::Result;
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
    pub(crate) fn new(args: &WorkArgs, model: &Model) -> Result<Self> {
        let sampling = Sampling { temperature: args.temperature, seed: 1, ..Sampling::default() };
        sampling.check(model.hyper.vocab)?;
        let chat = args.chat.then(|| ChatPrompt::new(model)).transpose()?;
        let texts = prompt_set::load(&args.prompts)?;
        let tokens = |text: &String| match &chat {
            Some(chat) => chat.tokens(&[Message::user(text)]),
            None => Ok(raw_tokens(&model.tokenizer, text)),
        };
        let prompts = texts.iter().take(args.limit as usize).map(tokens).collect::<Result<_>>()?;
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

/// A mode and what it did. `samples[repeat * prompts + prompt]`.
pub(crate) struct ModeRun {
    pub(crate) mode: BenchMode,
    pub(crate) engine: Engine,
    pub(crate) samples: Vec<Stats>,
    /// Texts equal to plain decoding's, of all samples.
    pub(crate) identical: usize,
}

impl ModeRun {
    pub(crate) fn new(mode: BenchMode, engine: Engine) -> Self {
        Self { mode, engine, samples: Vec::new(), identical: 0 }
    }

    /// All samples together.
    pub(crate) fn total(&self) -> Stats {
        let mut total = Stats::default();
        self.samples.iter().for_each(|s| total.add(s));
        total
    }

    /// Tokens a second over the whole set, the first token of each text not counted, as it comes with the prompt.
    pub(crate) fn rate(&self) -> f64 {
        let total = self.total();
        let written = total.generated_tokens.saturating_sub(self.samples.len());
        let seconds = total.generation_time.as_secs_f64();
        if seconds > 0.0 { written as f64 / seconds } else { 0.0 }
    }

    pub(crate) fn rates(&self) -> Spread {
        Spread::of(self.samples.iter().map(Stats::generation_rate))
    }

    /// Sample by sample over another mode's.
    pub(crate) fn over(&self, plain: &Self) -> Spread {
        let pairs = self.samples.iter().zip(&plain.samples);
        Spread::of(pairs.map(|(mine, theirs)| mine.generation_rate() / theirs.generation_rate()))
    }

    /// Rows of a round: the root and what was guessed.
    pub(crate) fn rows_per_round(&self) -> f64 {
        let total = self.total();
        if total.rounds == 0 { 0.0 } else { 1.0 + total.drafted as f64 / total.rounds as f64 }
    }
}

/// Every prompt in every mode, the modes taking turns and each prompt beginning with another one. `runs[0]` is plain.
pub(crate) fn alternate(runs: &mut [ModeRun], work: &Work, times: TimesArgs, screen: &Screen) -> Result<()> {
    let silent = Screen::new(true);
    let n = work.prompts.len();
    for i in 0..times.warmup as usize {
        for run in runs.iter_mut() {
            write(&mut run.engine, work.request(i % n), &silent)?;
        }
    }
    let mut progress = Progress::new("measuring", screen);
    let mut plain: Vec<Vec<u32>> = Vec::new();
    let total = times.repeats as usize * n;
    for turn in 0..total {
        progress.at(turn, total);
        let prompt = turn % n;
        let mut texts: Vec<(usize, Vec<u32>)> = Vec::with_capacity(runs.len());
        for m in 0..runs.len() {
            let m = (m + turn) % runs.len();
            let (tokens, stats) = write(&mut runs[m].engine, work.request(prompt), &silent)?;
            runs[m].samples.push(stats);
            texts.push((m, tokens));
        }
        if turn < n {
            plain.extend(texts.iter().find(|t| t.0 == 0).map(|t| t.1.clone()));
        }
        for (m, tokens) in texts {
            runs[m].identical += usize::from(plain.get(prompt) == Some(&tokens));
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
