//! What a render may spend. A template is a program from a stranger, so every step and every byte it makes is
//! paid for before it happens; when something runs out the render ends in an error.

use std::time::{Duration, Instant, SystemTime};

use super::value::{Text, Value};

/// Why a parse or render stopped; the line is added by whoever knows it.
#[derive(Debug)]
pub(crate) struct Fault(pub(crate) String);

pub(crate) type Outcome<T> = Result<T, Fault>;

pub(crate) fn fault<T>(problem: impl Into<String>) -> Outcome<T> {
    Err(Fault(problem.into()))
}

/// The bounds of one render. The defaults hold a hostile template to 50 ms and 16 MiB on one core.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Nodes evaluated, items visited and blocks of 64 bytes scanned.
    pub steps: u64,
    /// Every byte of every string and list made, freed or not, and of the variables in scope: what is alive at
    /// once can't exceed it.
    pub bytes: usize,
    /// Macros calling macros, and lists and mappings inside each other.
    pub depth: usize,
    /// Wall clock, a second net under `steps`.
    pub time: Duration,
    /// What `strftime_now` prints, in UTC.
    pub now: SystemTime,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            steps: 200_000,
            bytes: 16 << 20,
            depth: 64,
            time: Duration::from_secs(1),
            now: SystemTime::now(),
        }
    }
}

/// Reading the clock costs 25 ns, a step about as much: once in 4096 steps is free and still every 0.1 ms.
const STEPS_PER_CLOCK_READING: u64 = 4096;
/// A macro call takes five levels and the blocks and expressions around it the others, so that `depth` calls fit.
/// Together the levels of the default depth take less than 1 MiB of stack, half of what a Rust thread has.
const LEVELS_PER_CALL: usize = 10;
const BYTES_PER_STEP: usize = 64;

pub(crate) struct Meter {
    steps: u64,
    bytes: usize,
    nesting: usize,
    steps_to_clock: u64,
    started: Instant,
    limits: Limits,
}

impl Meter {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            steps: limits.steps,
            bytes: limits.bytes,
            nesting: 0,
            steps_to_clock: STEPS_PER_CLOCK_READING,
            started: Instant::now(),
            limits: limits.clone(),
        }
    }

    pub(crate) fn max_depth(&self) -> usize {
        self.limits.depth
    }

    pub(crate) fn now(&self) -> SystemTime {
        self.limits.now
    }

    pub(crate) fn steps(&mut self, count: u64) -> Outcome<()> {
        if count > self.steps {
            return fault(format!(
                "stopped after {} steps: the template does too much work",
                self.limits.steps
            ));
        }
        self.steps -= count;
        if count < self.steps_to_clock {
            self.steps_to_clock -= count;
            return Ok(());
        }
        self.steps_to_clock = STEPS_PER_CLOCK_READING;
        if self.started.elapsed() > self.limits.time {
            return fault(format!("stopped after {:?}: the template takes too long", self.limits.time));
        }
        Ok(())
    }

    /// Pays for looking at `bytes` bytes without keeping any.
    pub(crate) fn scan(&mut self, bytes: usize) -> Outcome<()> {
        self.steps(1 + (bytes / BYTES_PER_STEP) as u64)
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Outcome<()> {
        match self.bytes.checked_sub(count) {
            Some(left) => self.bytes = left,
            None => {
                return fault(format!(
                    "stopped at {} bytes of memory: the template wants {count} more",
                    self.limits.bytes - self.bytes
                ));
            }
        }
        Ok(())
    }

    pub(crate) fn give_back(&mut self, count: usize) {
        self.bytes = (self.bytes + count).min(self.limits.bytes);
    }

    pub(crate) fn text(&mut self, text: &str) -> Outcome<Value> {
        self.bytes(text.len())?;
        Ok(Value::Str(Text::plain(text)))
    }

    /// One level of evaluation deeper: a block, an expression, a scope.
    pub(crate) fn enter(&mut self) -> Outcome<()> {
        if self.nesting >= self.limits.depth.saturating_mul(LEVELS_PER_CALL) {
            return fault("nested too deeply: blocks, expressions and macro calls inside each other");
        }
        self.nesting += 1;
        Ok(())
    }

    pub(crate) fn leave(&mut self) {
        self.nesting -= 1;
    }
}

/// A growing string that pays for its capacity, so that the copy made when it grows is paid for too.
#[derive(Default)]
pub(crate) struct TextBuilder(String);

impl TextBuilder {
    pub(crate) fn with_room(meter: &mut Meter, bytes: usize) -> Outcome<Self> {
        meter.bytes(bytes)?;
        Ok(Self(String::with_capacity(bytes)))
    }

    pub(crate) fn push(&mut self, meter: &mut Meter, text: &str) -> Outcome<()> {
        self.room(meter, text.len())?;
        self.0.push_str(text);
        Ok(())
    }

    pub(crate) fn push_char(&mut self, meter: &mut Meter, c: char) -> Outcome<()> {
        self.room(meter, c.len_utf8())?;
        self.0.push(c);
        Ok(())
    }

    pub(crate) fn repeat(&mut self, meter: &mut Meter, c: char, count: usize) -> Outcome<()> {
        self.room(meter, c.len_utf8().saturating_mul(count))?;
        self.0.extend(std::iter::repeat_n(c, count));
        Ok(())
    }

    /// Pushes `text` with the characters replaced for which `escape` writes something.
    pub(crate) fn push_escaped(
        &mut self,
        meter: &mut Meter,
        text: &str,
        escape: impl Fn(char, &mut String),
    ) -> Outcome<()> {
        let mut copied = 0;
        let mut escaped = String::new();
        for (at, c) in text.char_indices() {
            escape(c, &mut escaped);
            if !escaped.is_empty() {
                meter.steps(1)?;
                self.push(meter, &text[copied..at])?;
                self.push(meter, &escaped)?;
                escaped.clear();
                copied = at + c.len_utf8();
            }
        }
        meter.scan(text.len())?;
        self.push(meter, &text[copied..])
    }

    fn room(&mut self, meter: &mut Meter, more: usize) -> Outcome<()> {
        let needed = self.0.len().saturating_add(more);
        if needed > self.0.capacity() {
            let capacity = needed.max(self.0.capacity().saturating_mul(2)).max(64);
            meter.bytes(capacity)?;
            self.0.reserve_exact(capacity - self.0.len());
        }
        Ok(())
    }

    pub(crate) fn into_string(self) -> String {
        self.0
    }

    pub(crate) fn into_value(self, meter: &mut Meter) -> Outcome<Value> {
        meter.text(&self.0)
    }
}

/// A growing list that pays for its capacity.
#[derive(Default)]
pub(crate) struct ListBuilder(Vec<Value>);

impl ListBuilder {
    pub(crate) fn push(&mut self, meter: &mut Meter, item: Value) -> Outcome<()> {
        meter.steps(1)?;
        if self.0.len() == self.0.capacity() {
            let capacity = (self.0.capacity() * 2).max(4);
            meter.bytes(capacity * size_of::<Value>())?;
            self.0.reserve_exact(capacity - self.0.len());
        }
        self.0.push(item);
        Ok(())
    }

    pub(crate) fn into_items(self) -> Vec<Value> {
        self.0
    }

    pub(crate) fn into_list(self, meter: &mut Meter) -> Outcome<Value> {
        Value::list(meter, self.0)
    }
}
