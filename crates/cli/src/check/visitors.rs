//! Requests of every kind for `check --streams`, the same ones for a seed, and what each writes alone.

use overdraft_engine::noise::Numbers;
use overdraft_engine::{Drawing, Engine, Event, Finish, Logprobs, Options, Request, Sampling};

use crate::failure::Result;
use crate::interrupt;

/// Tokens of a prompt at most: several pages, and seldom a whole number of them.
pub(crate) const LONGEST_PROMPT: usize = 300;

/// One token of a text, and the bits it was drawn from.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Seen {
    pub(crate) token: u32,
    pub(crate) fingerprint: Option<u64>,
    pub(crate) logprobs: Option<Logprobs>,
}

/// What became of a request, as far as it came.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Written {
    pub(crate) tokens: Vec<Seen>,
    pub(crate) text: String,
    pub(crate) finish: Option<Finish>,
}

impl Written {
    pub(crate) fn see(&mut self, event: Event) {
        self.text.push_str(&event.text);
        self.finish = event.finish.map(|f| f.0);
        let Event { token, fingerprint, logprobs, .. } = event;
        self.tokens.push(Seen { token, fingerprint, logprobs });
    }

    /// The first token in which the two differ, or their common length if one goes on or ends otherwise. `None`: equal. A
    /// text that was cancelled need only be a beginning of the other.
    pub(crate) fn parts_from(&self, alone: &Self, is_cancelled: bool) -> Option<usize> {
        let same = self.tokens.iter().zip(&alone.tokens).take_while(|(a, b)| is_same(a, b)).count();
        let is_equal = if is_cancelled {
            same == self.tokens.len() && alone.text.starts_with(&self.text)
        } else {
            let ends = (self.tokens.len(), &self.text, self.finish);
            ends == (alone.tokens.len(), &alone.text, alone.finish) && same == self.tokens.len()
        };
        (!is_equal).then_some(same)
    }
}

/// Bit for bit; where one side was not asked for fingerprints, by the rest.
fn is_same(a: &Seen, b: &Seen) -> bool {
    let bits = |l: &Option<Logprobs>| {
        l.as_ref().map(|l| {
            let top: Vec<(u32, u32)> = l.top.iter().map(|(token, p)| (*token, p.to_bits())).collect();
            (l.chosen.to_bits(), top)
        })
    };
    let is_witnessed = a.fingerprint.is_some() && b.fingerprint.is_some();
    a.token == b.token
        && (!is_witnessed || a.fingerprint == b.fingerprint)
        && bits(&a.logprobs) == bits(&b.logprobs)
}

/// A request that comes and goes.
pub(crate) struct Visitor {
    pub(crate) request: Request,
    pub(crate) logprobs: Option<usize>,
    /// Leaves once it has seen so many tokens, in the middle of a round if that is how they come.
    pub(crate) leaves_after: Option<usize>,
    /// What it writes where nobody else is.
    pub(crate) alone: Written,
}

impl Visitor {
    pub(crate) fn options(&self) -> Options {
        Options { logprobs: self.logprobs, ..Options::default() }
    }
}

/// So many visitors after prompts made of `texts`, of at most `tokens` tokens each. `plain` writes what each writes alone.
pub(crate) fn invite(
    n: usize,
    texts: &[Vec<u32>],
    tokens: usize,
    numbers: &mut Numbers,
    plain: &mut Engine,
) -> Result<Vec<Visitor>> {
    let mut visitors = Vec::with_capacity(n);
    for i in 0..n {
        let length = 1 + numbers.below(LONGEST_PROMPT);
        let prompt = (0..).flat_map(|_| texts[numbers.below(texts.len())].iter().copied());
        let request = Request {
            prompt: prompt.take(length).collect(),
            max_tokens: 1 + numbers.below(tokens),
            sampling: sampling(i, numbers),
            stop_ids: Vec::new(),
            stop_strings: Vec::new(),
        };
        let logprobs = [None, Some(0), Some(3)][numbers.below(3)];
        let mut visitor = Visitor { request, logprobs, leaves_after: None, alone: Written::default() };
        visitor.alone = write_alone(plain, &visitor)?;
        if let Some(stopped) = stopped(&visitor, i, numbers) {
            visitor.request = stopped;
            visitor.alone = write_alone(plain, &visitor)?;
        }
        if numbers.below(4) == 0 {
            visitor.leaves_after = Some(1 + numbers.below(tokens));
        }
        visitors.push(visitor);
    }
    Ok(visitors)
}

fn sampling(i: usize, numbers: &mut Numbers) -> Sampling {
    let seed = numbers.below(1 << 30) as u64;
    let drawing = match i % 3 {
        0 => Drawing::GREEDY,
        1 => Drawing { temperature: 0.8, top_p: 0.9, seed, ..Drawing::GREEDY },
        _ => Drawing { temperature: 0.6, repetition_penalty: 1.1, top_k: 40, seed, ..Drawing::GREEDY },
    };
    drawing.into()
}

/// The same request with an end inside the text that it writes, for every other one: a stop text that need not begin
/// where a token does, or a stop token.
fn stopped(visitor: &Visitor, i: usize, numbers: &mut Numbers) -> Option<Request> {
    let Written { tokens, text, .. } = &visitor.alone;
    let mut request = visitor.request.clone();
    match i % 4 {
        1 => {
            let n = text.chars().count();
            let stop: String = text.chars().skip(numbers.below(n.max(1))).take(5).collect();
            request.stop_strings = vec![stop].into_iter().filter(|s| !s.is_empty()).collect();
        }
        3 => request.stop_ids = vec![tokens[numbers.below(tokens.len())].token],
        _ => return None,
    }
    Some(request)
}

fn write_alone(engine: &mut Engine, visitor: &Visitor) -> Result<Written> {
    let id = engine.admit_as(visitor.request.clone(), visitor.options())?;
    let generating = interrupt::generating();
    let mut written = Written::default();
    while !engine.is_idle() {
        engine.step()?.into_iter().for_each(|event| written.see(event));
        if generating.asked_to_stop() {
            engine.cancel(id);
            return Err(interrupt::failure());
        }
    }
    Ok(written)
}
