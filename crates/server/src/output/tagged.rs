//! Answers whose thoughts and calls stand between tags: `<think>`, `<tool_call>`, or that are a call as a whole.
//!
//! Text is taken character by character, so that how it was cut cannot matter. What may be the beginning of a tag is
//! held back; so is white space, which next to a tag belongs to the format and not to the text. A call is held until it
//! is whole; what turns out to be none is content, to the last byte.

use std::sync::Arc;

use super::call::{self, Call};
use super::call_list::CallList;
use super::json_scan::{JsonScan, Scan};
use super::piece::{Piece, Prose, append};
use super::tag_finder::{Found, TagFinder};
use super::xml_scan::{XmlScan, XmlStep};
use crate::tools::ToolSet;

/// A file written by a call is seldom beyond 100 KB.
pub(super) const MAX_CALL_BYTES: usize = 1 << 20;
/// White space held at most; more is text.
const MAX_SPACES: usize = 64;

const THINK: &str = "<think>";
const THINK_END: &str = "</think>";
const CALL: &str = "<tool_call>";
const CALL_END: &str = "</tool_call>";
const FUNCTION: &str = "<function=";
const PYTHON: &str = "<|python_tag|>";

/// How calls are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallStyle {
    /// `<tool_call>{"name": .., "arguments": {..}}</tool_call>`: Hermes, Qwen 2.5 and 3.
    Hermes,
    /// `<tool_call><function=NAME><parameter=KEY>..`: Qwen3-Coder, Qwen 3.5. The outer tag is left out at times.
    Xml,
    /// The answer as a whole is `{"name": .., "parameters": {..}}`: Llama 3; or a list of them: Mistral. The control
    /// token in front is usually no text.
    LeadingJson,
}

#[derive(Clone, Debug)]
pub(super) struct Tagged {
    /// `None` when nothing may be called: tags are then text.
    style: Option<CallStyle>,
    /// Whether thoughts may still begin.
    may_think: bool,
    prose: Prose,
    /// The call that is being written.
    buffer: Option<Box<Buffer>>,
    finder: TagFinder,
    spaces: String,
    /// White space here stands next to a tag.
    skip_spaces: bool,
    /// Nothing but white space has come since the beginning, the thoughts or a call.
    is_blank: bool,
    /// The call just read stood in a `<tool_call>` that is still open.
    is_block_open: bool,
    calls: CallList,
    tools: Arc<ToolSet>,
}

#[derive(Clone, Debug)]
struct Buffer {
    raw: String,
    /// Bytes of the tag in front.
    opening: usize,
    body: Body,
}

#[derive(Clone, Debug)]
enum Body {
    /// Behind the tag, before it is known how the call is written.
    Unknown,
    Json(JsonScan),
    Xml(XmlScan),
}

pub(super) struct TaggedStart {
    pub(super) style: Option<CallStyle>,
    pub(super) may_think: bool,
    /// The prompt ends inside the thoughts.
    pub(super) is_thinking: bool,
}

impl Tagged {
    pub(super) fn new(start: &TaggedStart, tools: Arc<ToolSet>, calls: CallList) -> Self {
        Self {
            style: start.style,
            may_think: start.may_think && !start.is_thinking,
            prose: if start.is_thinking { Prose::Reasoning } else { Prose::Content },
            buffer: None,
            finder: TagFinder::default(),
            spaces: String::new(),
            skip_spaces: start.is_thinking,
            is_blank: true,
            is_block_open: false,
            calls,
            tools,
        }
    }

    pub(super) fn push(&mut self, text: &str, out: &mut Vec<Piece>) {
        text.chars().for_each(|c| self.step(c, out));
    }

    pub(super) fn finish(&mut self, out: &mut Vec<Piece>) {
        if let Some(buffer) = self.buffer.take() {
            self.give_up(&buffer.raw, out);
        }
        for c in self.finder.take().chars() {
            self.write(c, out);
        }
        self.flush_spaces(out);
    }

    fn step(&mut self, c: char, out: &mut Vec<Piece>) {
        if let Some(buffer) = self.buffer.take() {
            return self.step_call(buffer, c, out);
        }
        if self.finder.is_idle() && self.begins_bare_call(c) {
            let mut scan = JsonScan::default();
            scan.push(c);
            self.buffer = Some(Box::new(Buffer { raw: c.into(), opening: 0, body: Body::Json(scan) }));
            return;
        }
        let mut found = Some(self.finder.push(c, self.tags().as_slice()));
        while let Some(now) = found {
            match now {
                Found::Waiting => return,
                Found::Tag(tag) => return self.meet(tag),
                Found::Text(c) => self.write(c, out),
            }
            found = self.finder.retry(self.tags().as_slice());
        }
    }

    /// The tags that mean something here.
    fn tags(&self) -> Tags {
        let mut tags = Tags::default();
        if self.prose == Prose::Reasoning {
            tags.add(THINK_END);
            return tags;
        }
        if self.may_think {
            tags.add(THINK);
        }
        match self.style {
            Some(CallStyle::Hermes) => tags.add(CALL),
            Some(CallStyle::Xml) => {
                tags.add(CALL);
                tags.add(FUNCTION);
            }
            Some(CallStyle::LeadingJson) if self.is_blank => tags.add(PYTHON),
            Some(CallStyle::LeadingJson) | None => {}
        }
        if self.is_block_open {
            tags.add(CALL_END);
        }
        tags
    }

    /// Whether a call begins here without a tag: a second one in the same block, or an answer that is one.
    fn begins_bare_call(&self, c: char) -> bool {
        let is_leading = self.style == Some(CallStyle::LeadingJson) && self.is_blank;
        let is_due = (c == '{' && self.is_block_open) || (matches!(c, '{' | '[') && is_leading);
        is_due && self.prose == Prose::Content
    }

    fn meet(&mut self, tag: &'static str) {
        match tag {
            THINK | THINK_END => {
                self.prose = if tag == THINK { Prose::Reasoning } else { Prose::Content };
                self.may_think = false;
                self.spaces.clear();
                self.skip_spaces = true;
            }
            CALL_END => {
                self.is_block_open = false;
                self.skip_spaces = true;
            }
            _ => {
                let body = if tag == FUNCTION { Body::Xml(XmlScan::default()) } else { Body::Unknown };
                self.buffer = Some(Box::new(Buffer { raw: tag.into(), opening: tag.len(), body }));
            }
        }
    }

    fn write(&mut self, c: char, out: &mut Vec<Piece>) {
        if c.is_whitespace() {
            if !self.skip_spaces {
                self.spaces.push(c);
                if self.spaces.len() > MAX_SPACES {
                    self.flush_spaces(out);
                }
            }
            return;
        }
        if c == ';' && self.is_blank && !self.calls.is_empty() && self.style == Some(CallStyle::LeadingJson) {
            return; // what Llama 3 puts between calls
        }
        self.flush_spaces(out);
        append(out, self.prose, c.encode_utf8(&mut [0; 4]));
        self.text_was_written();
    }

    fn flush_spaces(&mut self, out: &mut Vec<Piece>) {
        if !self.spaces.is_empty() {
            append(out, self.prose, &self.spaces);
            self.spaces.clear();
            self.text_was_written();
        }
    }

    fn text_was_written(&mut self) {
        self.skip_spaces = false;
        if self.prose == Prose::Content {
            self.is_blank = false;
            self.is_block_open = false;
            self.may_think = false;
        }
    }

    fn step_call(&mut self, mut buffer: Box<Buffer>, c: char, out: &mut Vec<Piece>) {
        buffer.raw.push(c);
        if buffer.raw.len() > MAX_CALL_BYTES {
            return self.give_up(&buffer.raw, out);
        }
        let read = match &mut buffer.body {
            Body::Unknown => return self.step_opening(buffer, out),
            Body::Json(scan) => match scan.push(c) {
                Scan::Open if buffer.opening == 0 && !may_be_call(&buffer.raw) => None,
                Scan::Open => return self.buffer = Some(buffer),
                Scan::Closed => call::read(&buffer.raw[buffer.opening..]),
                Scan::NoJson => None,
            },
            Body::Xml(scan) => match scan.push(c) {
                XmlStep::Open => return self.buffer = Some(buffer),
                XmlStep::Closed => Some(vec![std::mem::take(scan).into_call(&self.tools)]),
                XmlStep::NoCall => None,
            },
        };
        match read {
            Some(calls) => self.give_calls(calls, &buffer, out),
            None => self.give_up(&buffer.raw, out),
        }
    }

    /// Between `<tool_call>` and what tells JSON from tags.
    fn step_opening(&mut self, mut buffer: Box<Buffer>, out: &mut Vec<Piece>) {
        let behind = &buffer.raw[buffer.opening..];
        let word = behind.trim_start();
        if word == "{" || word == "[" {
            let mut scan = JsonScan::default();
            word.chars().for_each(|c| {
                scan.push(c);
            });
            buffer.body = Body::Json(scan);
        } else if word == FUNCTION && !buffer.raw.starts_with(PYTHON) {
            buffer.body = Body::Xml(XmlScan::default());
        } else if !FUNCTION.starts_with(word) || behind.len() - word.len() > MAX_SPACES {
            // No call. What came of a word may be the beginning of a tag.
            let word = word.to_owned();
            let before = buffer.raw.len() - word.len();
            self.give_up(&buffer.raw[..before], out);
            return self.push(&word, out);
        }
        self.buffer = Some(buffer);
    }

    fn give_calls(&mut self, calls: Vec<Call>, buffer: &Buffer, out: &mut Vec<Piece>) {
        if !self.calls.give_out(calls, out) {
            return self.give_up(&buffer.raw, out);
        }
        self.spaces.clear();
        self.skip_spaces = true;
        self.is_blank = true;
        self.may_think = false;
        self.is_block_open |= buffer.raw.starts_with(CALL);
    }

    /// It was no call.
    fn give_up(&mut self, raw: &str, out: &mut Vec<Piece>) {
        self.flush_spaces(out);
        append(out, self.prose, raw);
        self.text_was_written();
    }
}

/// Whether an answer that begins so may still be a call. If not, it need not be held.
fn may_be_call(raw: &str) -> bool {
    const KEYS: [&str; 5] = ["\"name\"", "\"type\"", "\"function\"", "\"parameters\"", "\"arguments\""];
    let is_bracket = |c: char| c.is_whitespace() || matches!(c, '{' | '[');
    let key = raw.trim_start_matches(is_bracket);
    raw.len() - key.len() <= MAX_SPACES && KEYS.iter().any(|k| k.starts_with(key) || key.starts_with(k))
}

/// At most four tags, without an allocation for each character.
#[derive(Default)]
struct Tags {
    tags: [&'static str; 4],
    len: usize,
}

impl Tags {
    fn add(&mut self, tag: &'static str) {
        self.tags[self.len] = tag;
        self.len += 1;
    }

    fn as_slice(&self) -> &[&'static str] {
        &self.tags[..self.len]
    }
}
