//! Answers whose thoughts and calls stand between tags: `<think>`, `<tool_call>`, or that are a call as a whole.
//!
//! Text is taken character by character, so that how it was cut cannot matter. What may be the beginning of a tag is
//! held back; so is white space, which next to a tag belongs to the format and not to the text. A call is held until it
//! is certain to be one; what turns out to be none is content, to the last byte.

use std::sync::Arc;

use super::call_list::CallList;
use super::open_call::{OpenCall, Progress};
use super::piece::{Piece, Prose, append};
use super::tag_finder::{Found, TagFinder};
use crate::tools::ToolSet;

/// A file written by a call is seldom beyond 100 KB.
pub(super) const MAX_CALL_BYTES: usize = 1 << 20;
/// White space held at most; more is text.
pub(super) const MAX_SPACES: usize = 64;

const THINK: &str = "<think>";
const THINK_END: &str = "</think>";
const CALL: &str = "<tool_call>";
const CALL_END: &str = "</tool_call>";
pub(super) const FUNCTION: &str = "<function=";
pub(super) const PYTHON: &str = "<|python_tag|>";

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
    open: Option<Box<OpenCall>>,
    finder: TagFinder,
    spaces: String,
    /// White space here stands next to a tag.
    skip_spaces: bool,
    /// Nothing but white space has come since the beginning, the thoughts or a call.
    is_blank: bool,
    /// The call just read stood in a `<tool_call>` that is still open.
    is_block_open: bool,
    /// The call just read stood in a list that is still open.
    is_list_open: bool,
    calls: CallList,
    tools: Arc<ToolSet>,
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
            open: None,
            finder: TagFinder::default(),
            spaces: String::new(),
            skip_spaces: start.is_thinking,
            is_blank: true,
            is_block_open: false,
            is_list_open: false,
            calls,
            tools,
        }
    }

    pub(super) fn push(&mut self, text: &str, out: &mut Vec<Piece>) {
        text.chars().for_each(|c| self.step(c, out));
    }

    pub(super) fn finish(&mut self, out: &mut Vec<Piece>) {
        if let Some(open) = self.open.take() {
            self.give_up(&open.into_text(), out);
        }
        for c in self.finder.take().chars() {
            self.write(c, out);
        }
        self.flush_spaces(out);
    }

    fn step(&mut self, c: char, out: &mut Vec<Piece>) {
        if let Some(open) = self.open.take() {
            return self.step_call(open, c, out);
        }
        if self.finder.is_idle() && self.begins_bare_call(c) {
            return self.open = Some(Box::new(OpenCall::bare(c)));
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

    /// Whether a call begins here without a tag: a second one in the same block or list, or an answer that is one.
    fn begins_bare_call(&self, c: char) -> bool {
        let is_leading = self.style == Some(CallStyle::LeadingJson) && self.is_blank;
        let is_next = c == '{' && (self.is_block_open || self.is_list_open);
        let is_due = is_next || (matches!(c, '{' | '[') && is_leading);
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
                self.is_list_open = false;
                self.open = Some(Box::new(OpenCall::behind(tag)));
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
        if self.is_list_open && matches!(c, ',' | ']') {
            return self.is_list_open = c == ',';
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
            self.is_list_open = false;
            self.may_think = false;
        }
    }

    fn step_call(&mut self, mut open: Box<OpenCall>, c: char, out: &mut Vec<Piece>) {
        let progress = open.push(c, &mut self.calls, &self.tools, out);
        let (is_block, is_given) = (open.tag() == CALL, open.is_given());
        let (text, again) = match progress {
            Progress::Open => {
                if is_given {
                    self.spaces.clear();
                }
                return self.open = Some(open);
            }
            Progress::Given { in_list } => return self.call_was_given(is_block, in_list),
            Progress::Broken { text, again } => {
                self.call_was_given(is_block, false);
                self.is_list_open = false;
                (text, again)
            }
            Progress::NoCall { text, again } => (text, again),
        };
        self.give_up(&text, out);
        self.push(&again, out);
    }

    fn call_was_given(&mut self, is_block: bool, in_list: bool) {
        self.spaces.clear();
        self.skip_spaces = true;
        self.is_blank = true;
        self.may_think = false;
        self.is_block_open |= is_block;
        self.is_list_open |= in_list;
    }

    /// It was no call.
    fn give_up(&mut self, raw: &str, out: &mut Vec<Piece>) {
        if raw.is_empty() {
            return;
        }
        self.flush_spaces(out);
        append(out, self.prose, raw);
        self.text_was_written();
    }
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
