//! Answers of gpt-oss: messages, each with a channel and maybe an addressee.
//!
//! ```text
//! <|channel|>analysis<|message|>thoughts<|end|><|start|>assistant<|channel|>final<|message|>answer
//! <|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>
//! ```
//! The prompt ends with `<|start|>assistant`, and the token that ends the answer is not part of its text.

use std::sync::Arc;

use super::call::{self, Call};
use super::call_list::CallList;
use super::json_args::JsonArgs;
use super::json_scan::Scan;
use super::piece::{Piece, Prose, append};
use super::tag_finder::{Found, TagFinder};
use super::tagged::MAX_CALL_BYTES;
use crate::tools::ToolSet;

const MESSAGE: &str = "<|message|>";
const CHANNEL: &str = "<|channel|>";
const START: &str = "<|start|>";
/// Each ends a message. A message that begins without the one before having ended is taken as its end too.
const ENDS: [&str; 5] = ["<|end|>", "<|return|>", "<|call|>", START, CHANNEL];
/// Those in use are below 100 bytes.
const MAX_HEADER_BYTES: usize = 1 << 10;

#[derive(Clone, Debug)]
pub(super) struct Harmony {
    place: Place,
    finder: TagFinder,
    /// What may be called; where nothing may, calls are text.
    tools: Arc<ToolSet>,
    calls: CallList,
    /// The kind of the last text given out: two messages of one kind are set apart by a line break.
    last: Option<Prose>,
    is_new_message: bool,
}

#[derive(Clone, Debug)]
enum Place {
    /// Before `<|message|>`.
    Header(String),
    Text(Prose),
    /// To a function, with the raw text from the header on.
    Call {
        name: String,
        raw: String,
        body: usize,
    },
    /// To a function that we know, its arguments begun: they are handed on as they come.
    Args(JsonArgs),
    /// Behind them.
    AfterArgs,
}

impl Harmony {
    pub(super) fn new(tools: Arc<ToolSet>, calls: CallList) -> Self {
        Self {
            place: Place::Header(String::new()),
            finder: TagFinder::default(),
            tools,
            calls,
            last: None,
            is_new_message: true,
        }
    }

    pub(super) fn push(&mut self, text: &str, out: &mut Vec<Piece>) {
        text.chars().for_each(|c| self.step(c, out));
    }

    pub(super) fn finish(&mut self, out: &mut Vec<Piece>) {
        for c in self.finder.take().chars() {
            self.write(c, out);
        }
        match std::mem::replace(&mut self.place, Place::Header(String::new())) {
            // An answer that is cut off in a header says nothing by it, unless there was text.
            Place::Header(header) if plain_part(&header).is_empty() => {}
            Place::Header(header) => self.text(Prose::Content, &header, out),
            Place::Text(_) | Place::Args(_) | Place::AfterArgs => {}
            call @ Place::Call { .. } => self.end_call(call, out),
        }
    }

    fn step(&mut self, c: char, out: &mut Vec<Piece>) {
        let mut found = Some(self.finder.push(c, self.tags()));
        while let Some(now) = found {
            match now {
                Found::Waiting => return,
                Found::Tag(tag) => return self.meet(tag, out),
                Found::Text(c) => self.write(c, out),
            }
            found = self.finder.retry(self.tags());
        }
    }

    fn tags(&self) -> &'static [&'static str] {
        match self.place {
            Place::Header(_) => &[MESSAGE],
            _ => &ENDS,
        }
    }

    fn meet(&mut self, tag: &'static str, out: &mut Vec<Piece>) {
        match std::mem::replace(&mut self.place, Place::Header(String::new())) {
            Place::Header(header) => self.begin(header),
            Place::Text(_) | Place::AfterArgs => {}
            Place::Args(args) => args.end(out),
            call @ Place::Call { .. } => self.end_call(call, out),
        }
        if let (Place::Header(header), START | CHANNEL) = (&mut self.place, tag) {
            header.push_str(tag);
        }
    }

    fn write(&mut self, c: char, out: &mut Vec<Piece>) {
        match &mut self.place {
            Place::Header(header) => {
                header.push(c);
                // Text that is no header, from a model that does without: it is the answer.
                if header.len() > MAX_HEADER_BYTES || !may_be_header(header) {
                    let header = std::mem::take(header);
                    self.place = Place::Text(Prose::Content);
                    self.is_new_message = true;
                    self.text(Prose::Content, &header, out);
                }
            }
            Place::Text(prose) => {
                let prose = *prose;
                self.text(prose, c.encode_utf8(&mut [0; 4]), out);
            }
            Place::Call { name, raw, body } => {
                raw.push(c);
                let is_open = c == '{' && raw[*body..].trim_start() == "{";
                if is_open && self.tools.get(name).is_some() && self.calls.has_room(1) {
                    let index = self.calls.begin(std::mem::take(name), out);
                    self.last = None;
                    self.place = Place::Args(JsonArgs::open(index, out));
                } else if raw.len() > MAX_CALL_BYTES {
                    let raw = std::mem::take(raw);
                    self.place = Place::Text(Prose::Content);
                    self.text(Prose::Content, &raw, out);
                }
            }
            Place::Args(args) => match args.push(c, out) {
                Scan::Open => {}
                Scan::Closed => self.place = Place::AfterArgs,
                Scan::NoJson => self.text_after_args(c, out),
            },
            Place::AfterArgs if c.is_whitespace() => {}
            Place::AfterArgs => self.text_after_args(c, out),
        }
    }

    fn text_after_args(&mut self, c: char, out: &mut Vec<Piece>) {
        self.place = Place::Text(Prose::Content);
        self.text(Prose::Content, c.encode_utf8(&mut [0; 4]), out);
    }

    /// The header is whole.
    fn begin(&mut self, header: String) {
        let channel = header.rsplit(CHANNEL).next().unwrap_or("");
        let channel = channel.split(|c: char| c.is_whitespace() || c == '<').next().unwrap_or("");
        let addressee = header.split_once("to=").map_or("", |(_, rest)| rest);
        let addressee = addressee.split(|c: char| c.is_whitespace() || c == '<').next().unwrap_or("");
        self.is_new_message = true;
        self.place = match addressee.strip_prefix("functions.") {
            Some(name)
                if !self.tools.is_empty() && !name.is_empty() && name.len() <= call::MAX_NAME_BYTES =>
            {
                let name = name.to_owned();
                let raw = header + MESSAGE;
                Place::Call { name, body: raw.len(), raw }
            }
            _ if channel == "analysis" => Place::Text(Prose::Reasoning),
            _ => Place::Text(Prose::Content),
        };
    }

    fn end_call(&mut self, place: Place, out: &mut Vec<Piece>) {
        let Place::Call { name, raw, body } = place else { return };
        let args = call::read_args(&raw[body..]);
        let is_out = args.is_some_and(|args| self.calls.give_out(vec![Call { name, args }], out));
        if is_out {
            self.last = None;
        } else {
            self.text(Prose::Content, &raw, out);
        }
    }

    fn text(&mut self, prose: Prose, text: &str, out: &mut Vec<Piece>) {
        if text.is_empty() {
            return;
        }
        if self.is_new_message && self.last == Some(prose) {
            append(out, prose, "\n");
        }
        self.is_new_message = false;
        self.last = Some(prose);
        append(out, prose, text);
    }
}

/// What a header has besides tags and their words.
fn plain_part(header: &str) -> &str {
    header.split("<|").next().unwrap_or("").trim()
}

/// Whether a header may begin so: `assistant`, an addressee, then tags.
fn may_be_header(header: &str) -> bool {
    let before_tags = header.split("<|").next().unwrap_or("");
    if before_tags.len() < header.len() {
        return true;
    }
    let rest = before_tags.strip_suffix('<').unwrap_or(before_tags);
    const ROLE: &str = "assistant";
    if ROLE.starts_with(rest) {
        return true;
    }
    let rest = rest.strip_prefix(ROLE).unwrap_or(rest);
    const TO: &str = " to=";
    let Some(addressee) = rest.strip_prefix(TO) else { return TO.starts_with(rest) };
    !addressee.trim_end_matches(' ').contains(char::is_whitespace)
}
