//! Compiled grammars, each once.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::time::Duration;

use llguidance::api::TopLevelGrammar;
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{InferenceCapabilities, TokEnv};
use llguidance::{Matcher, ParserFactory};
use overdraft_engine::Constraint;
use overdraft_formats::tokenizer::Tokenizer;

use super::constraint::GrammarConstraint;
use super::lark::Plan;
use super::token_env::TokenEnv;
use crate::output::Refusal;

/// Grammars kept, and bytes of their sources. Servers see a few again and again: those of an agent's tools.
const MAX_KEPT: usize = 32;
const MAX_KEPT_BYTES: usize = 2 << 20;
/// Of one grammar, the schemas of all tools together.
const MAX_GRAMMAR_BYTES: usize = 1 << 20;
/// A compilation takes 1 to 30 ms; the fuel below ends nearly all others.
const MAX_TIME: Duration = Duration::from_secs(2);
/// Given up or not, they hold a core and memory.
const MAX_AT_ONCE: usize = 4;
/// Schemas nest 64 deep, and a level takes a few frames of several hundred bytes.
const STACK_BYTES: usize = 16 << 20;

/// The grammars of one model. Knows its tokens (about 30 bytes for each, from the first use on).
pub struct Grammars {
    tokenizer: Arc<Tokenizer>,
    controls: Arc<[u32]>,
    factory: OnceLock<Result<ParserFactory, String>>,
    kept: Mutex<Kept>,
    n_compiling: AtomicUsize,
}

#[derive(Default)]
struct Kept {
    /// The last used at the end.
    list: Vec<(String, Matcher)>,
}

impl Grammars {
    pub fn new(tokenizer: Arc<Tokenizer>) -> Self {
        let is_control = |id: &u32| tokenizer.is_control(*id) || tokenizer.is_end(*id);
        let controls = (0..tokenizer.vocab_len() as u32).filter(is_control).collect();
        Self {
            tokenizer,
            controls,
            factory: OnceLock::new(),
            kept: Mutex::default(),
            n_compiling: AtomicUsize::new(0),
        }
    }

    #[cfg(test)]
    pub(super) fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// Sorts the vocabulary, which the first grammar otherwise waits for: seconds for 200 000 tokens.
    pub fn warm(&self) -> Result<(), String> {
        self.factory().map(|_| ())
    }

    fn factory(&self) -> Result<&ParserFactory, String> {
        let made = self.factory.get_or_init(|| {
            let factory = catch_unwind(AssertUnwindSafe(|| factory(self.tokenizer.clone())));
            factory.unwrap_or_else(|_| Err("this model's vocabulary makes the grammar compiler fail".into()))
        });
        made.as_ref().map_err(String::clone)
    }

    /// A text's beginning in the grammar of `plan`.
    pub(crate) fn constraint(self: &Arc<Self>, plan: Plan) -> Result<Box<dyn Constraint>, Refusal> {
        let key = plan.key();
        if let Some(matcher) = self.find(&key) {
            return Ok(self.begin(matcher));
        }
        let param = plan.param;
        if key.len() > MAX_GRAMMAR_BYTES {
            let problem =
                format!("a grammar of {} bytes in all; at most {MAX_GRAMMAR_BYTES} are taken", key.len());
            return Err(Refusal::new(param, problem));
        }
        self.warm().map_err(|problem| Refusal::new(param, problem))?;
        let matcher = self.compile_apart(plan).map_err(|problem| Refusal::new(param, problem))?;
        self.keep(key, &matcher);
        Ok(self.begin(matcher))
    }

    fn begin(&self, matcher: Matcher) -> Box<dyn Constraint> {
        Box::new(GrammarConstraint::new(matcher, self.tokenizer.clone(), self.controls.clone()))
    }

    /// On a thread of its own: its stack is large, its panics end there, and it is not waited for without end.
    fn compile_apart(self: &Arc<Self>, plan: Plan) -> Result<Matcher, String> {
        if self.n_compiling.fetch_add(1, Ordering::SeqCst) >= MAX_AT_ONCE {
            self.n_compiling.fetch_sub(1, Ordering::SeqCst);
            return Err(format!("{MAX_AT_ONCE} other grammars are being compiled; try again"));
        }
        let (send, receive) = mpsc::sync_channel(1);
        let this = self.clone();
        let compile = move || {
            let compiled = catch_unwind(AssertUnwindSafe(|| this.compile(&plan)));
            this.n_compiling.fetch_sub(1, Ordering::SeqCst);
            // Nobody waits any more: then it was too late.
            let _ = send.send(compiled.unwrap_or_else(|_| Err("it makes the compiler fail".into())));
        };
        let thread = std::thread::Builder::new().name("grammar".into()).stack_size(STACK_BYTES);
        if let Err(problem) = thread.spawn(compile) {
            self.n_compiling.fetch_sub(1, Ordering::SeqCst);
            return Err(format!("no thread to compile it on: {problem}"));
        }
        let late = format!("it takes longer than {} s to compile", MAX_TIME.as_secs());
        receive.recv_timeout(MAX_TIME).unwrap_or(Err(late))
    }

    fn compile(&self, plan: &Plan) -> Result<Matcher, String> {
        let factory = self.factory()?;
        let grammar = TopLevelGrammar { grammars: plan.grammars(), max_tokens: None };
        let readable = |problem: &dyn std::fmt::Display| readable(&problem.to_string(), plan.has_users());
        let parser = factory.create_parser(grammar).map_err(|e| readable(&e))?;
        let mut matcher = Matcher::new(Ok(parser));
        // The first mask builds most of the lexer; every text begins with it.
        matcher.compute_mask_or_eos().map_err(|e| readable(&e))?;
        Ok(matcher)
    }

    #[cfg(test)]
    pub(super) fn n_kept(&self) -> usize {
        self.kept.lock().unwrap().list.len()
    }

    fn find(&self, key: &str) -> Option<Matcher> {
        // A lock poisoned by a panic elsewhere loses us a cache, nothing else.
        let mut kept = self.kept.lock().ok()?;
        let at = kept.list.iter().position(|(k, _)| k == key)?;
        let found = kept.list.remove(at);
        let matcher = found.1.deep_clone();
        kept.list.push(found);
        Some(matcher)
    }

    fn keep(&self, key: String, matcher: &Matcher) {
        let Ok(mut kept) = self.kept.lock() else { return };
        kept.list.push((key, matcher.deep_clone()));
        let mut bytes: usize = kept.list.iter().map(|(key, _)| key.len()).sum();
        while kept.list.len() > MAX_KEPT || bytes > MAX_KEPT_BYTES {
            bytes -= kept.list.remove(0).0.len();
        }
    }
}

fn factory(tokenizer: Arc<Tokenizer>) -> Result<ParserFactory, String> {
    let env: TokEnv = Arc::new(TokenEnv::new(tokenizer)?);
    let slices = SlicedBiasComputer::general_slices();
    let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices)
        .map_err(|problem| readable(&problem.to_string(), false))?;
    factory.quiet();
    let limits = factory.limits_mut();
    // A quarter of the library's defaults where the engine's thread pays (14 000 units of fuel a millisecond), and for
    // memory (1 to 2 KB a state).
    limits.step_lexer_fuel = 50_000;
    limits.step_max_items = 15_000;
    limits.max_lexer_states = 50_000;
    limits.max_grammar_size = 200_000;
    // States and grammars in errors would show a client what is not his.
    limits.verbose_errors = false;
    Ok(factory)
}

/// The library's message, without what only its authors can use. Places in a grammar help who wrote it: the user, not us.
fn readable(problem: &str, is_users: bool) -> String {
    let mut lines = problem.lines().map(str::trim);
    let mut text = lines.next().unwrap_or_default().to_owned();
    if text.ends_with(':') {
        // A drawing of the pattern follows, then what is wrong with it.
        text = format!("{text} {}", lines.rfind(|line| line.starts_with("error:")).unwrap_or_default());
    }
    if !is_users && text.starts_with("at ") {
        text = text.split_once(": ").map_or_else(String::new, |(_, rest)| rest.into());
    }
    for noise in ["failed to compile JSON schema: ", " without 'referencing' feature"] {
        text = text.replace(noise, "");
    }
    let text = text.split(" Enable '").next().unwrap_or(&text);
    if text.starts_with("panic") || text.is_empty() {
        return "it asks for something the grammar compiler does not support".into();
    }
    // Names of states are one word.
    if !text.contains(' ') {
        return format!("no text fits it ({text})");
    }
    let end = text.floor_char_boundary(300);
    if end < text.len() { format!("{}…", &text[..end]) } else { text.into() }
}
