//! A call while it is being written: held until it is certain to be one, then handed on as it grows.
//!
//! Certain means: it names a function of the request, and its arguments have begun. Arguments in JSON are then passed on
//! character by character; between tags a text is, and any other value once its tag closes. What was certain stays a
//! call, though its arguments may turn out broken or be cut off. Calls of other functions are held until they are whole.

use super::call::{self, Call};
use super::call_list::CallList;
use super::json_args::JsonArgs;
use super::json_scan::{JsonScan, Scan};
use super::piece::{Piece, append_args};
use super::tagged::{FUNCTION, MAX_CALL_BYTES, MAX_SPACES, PYTHON};
use super::xml_scan::{XmlScan, XmlStep};
use crate::tools::ToolSet;

/// Behind the arguments there is an id or a type at most.
const MAX_BEHIND_BYTES: usize = 1 << 10;

#[derive(Clone, Debug)]
pub(super) struct OpenCall {
    /// Held: all of it, or what has come since it was given out and is not yet certain.
    raw: String,
    /// What stands in front; may be empty.
    tag: &'static str,
    body: Body,
}

#[derive(Clone, Debug)]
enum Body {
    /// Behind the tag, before it is known how the call is written.
    Unknown,
    Json(JsonScan),
    /// Given out, and written in JSON: the arguments, and what is open around them.
    Args(JsonArgs, JsonScan),
    /// Its arguments are whole; what is open around them is not closed yet.
    Behind(JsonScan),
    Xml {
        scan: XmlScan,
        /// Its number, once it was given out.
        given: Option<usize>,
    },
}

/// What the next character made of it.
pub(super) enum Progress {
    Open,
    /// It is over, and was given out.
    Given {
        /// It stood in a list that may go on.
        in_list: bool,
    },
    /// It is over before it should be, and was given out; `text` is content, and `again` to be read anew.
    Broken {
        text: String,
        again: String,
    },
    /// It is none: `text` is content, and `again` to be read anew.
    NoCall {
        text: String,
        again: String,
    },
}

impl OpenCall {
    /// Behind a tag.
    pub(super) fn behind(tag: &'static str) -> Self {
        let body = match tag {
            FUNCTION => Body::Xml { scan: XmlScan::default(), given: None },
            _ => Body::Unknown,
        };
        Self { raw: tag.into(), tag, body }
    }

    /// One that begins with a bracket.
    pub(super) fn bare(bracket: char) -> Self {
        Self { raw: bracket.into(), tag: "", body: Body::Json(JsonScan::begun(bracket)) }
    }

    pub(super) fn push(
        &mut self,
        c: char,
        calls: &mut CallList,
        tools: &ToolSet,
        out: &mut Vec<Piece>,
    ) -> Progress {
        if let Body::Args(args, around) = &mut self.body {
            match args.push(c, out) {
                Scan::Open => {}
                Scan::Closed => self.body = Body::Behind(std::mem::take(around)),
                Scan::NoJson => return Progress::Broken { text: String::new(), again: c.into() },
            }
            return Progress::Open;
        }
        self.raw.push(c);
        let most = if let Body::Behind(_) = self.body { MAX_BEHIND_BYTES } else { MAX_CALL_BYTES };
        if self.raw.len() > most {
            return self.give_up(out);
        }
        let read = match &mut self.body {
            Body::Unknown => return self.push_opening(),
            Body::Args(..) => None,
            Body::Json(scan) => match scan.push(c) {
                Scan::Open if c == '{' && !scan.is_in_string() => return self.push_brace(calls, tools, out),
                Scan::Open if self.tag.is_empty() && !may_be_call(&self.raw) => None,
                Scan::Open => return Progress::Open,
                Scan::Closed => call::read(&self.raw[self.tag.len()..]),
                Scan::NoJson => None,
            },
            Body::Behind(around) => {
                return match around.push(c) {
                    Scan::Open if around.depth() == 1 && around.closing() == "]" => {
                        Progress::Given { in_list: true }
                    }
                    Scan::Open => Progress::Open,
                    Scan::Closed => Progress::Given { in_list: false },
                    Scan::NoJson => {
                        Progress::Broken { text: String::new(), again: std::mem::take(&mut self.raw) }
                    }
                };
            }
            Body::Xml { scan, given } => {
                let step = scan.push(c, tools);
                if given.is_none() && scan.has_args() && may_begin(scan.name(), calls, tools) {
                    *given = Some(calls.begin(scan.name().into(), out));
                }
                if let Some(index) = *given {
                    return self.hand_on(index, &step, out);
                }
                match step {
                    XmlStep::Open => return Progress::Open,
                    XmlStep::Closed => Some(vec![Call { name: scan.name().into(), args: scan.take_args() }]),
                    XmlStep::NoCall => None,
                }
            }
        };
        match read.is_some_and(|read| calls.give_out(read, out)) {
            true => Progress::Given { in_list: false },
            false => self.give_up(out),
        }
    }

    pub(super) fn tag(&self) -> &'static str {
        self.tag
    }

    pub(super) fn is_given(&self) -> bool {
        matches!(self.body, Body::Args(..) | Body::Behind(_) | Body::Xml { given: Some(_), .. })
    }

    /// All of it, if it was not given out.
    pub(super) fn into_text(self) -> String {
        if self.is_given() { String::new() } else { self.raw }
    }

    /// It will not end, or not as a call.
    fn give_up(&mut self, out: &mut Vec<Piece>) -> Progress {
        let text = std::mem::take(&mut self.raw);
        match &self.body {
            Body::Xml { given: Some(index), .. } => {
                out.push(Piece::CallEnd { index: *index });
                Progress::Broken { text, again: String::new() }
            }
            Body::Behind(_) => Progress::Broken { text, again: String::new() },
            _ => Progress::NoCall { text, again: String::new() },
        }
    }

    /// Between `<tool_call>` and what tells JSON from tags.
    fn push_opening(&mut self) -> Progress {
        let behind = &self.raw[self.tag.len()..];
        let word = behind.trim_start();
        if let "{" | "[" = word {
            self.body = Body::Json(JsonScan::begun(if word == "{" { '{' } else { '[' }));
        } else if word == FUNCTION && self.tag != PYTHON {
            self.body = Body::Xml { scan: XmlScan::default(), given: None };
        } else if !FUNCTION.starts_with(word) || behind.len() - word.len() > MAX_SPACES {
            // No call. What came of a word may be the beginning of a tag.
            let again = self.raw.split_off(self.raw.len() - word.len());
            return Progress::NoCall { text: std::mem::take(&mut self.raw), again };
        }
        Progress::Open
    }

    /// Behind a brace: it may open the arguments of a call.
    fn push_brace(&mut self, calls: &mut CallList, tools: &ToolSet, out: &mut Vec<Piece>) -> Progress {
        let Body::Json(scan) = &mut self.body else { return Progress::Open };
        let name = call::read_head(&self.raw[self.tag.len()..], &scan.closing());
        if let Some(name) = name.filter(|name| may_begin(name, calls, tools)) {
            // Arguments are followed apart; around them they are as good as closed.
            scan.push('}');
            let around = std::mem::take(scan);
            self.body = Body::Args(JsonArgs::open(calls.begin(name, out), out), around);
            self.raw.clear();
        } else if self.tag.is_empty() && !may_be_call(&self.raw) {
            return self.give_up(out);
        }
        Progress::Open
    }

    /// Passes on what has become certain of arguments between tags.
    fn hand_on(&mut self, index: usize, step: &XmlStep, out: &mut Vec<Piece>) -> Progress {
        let Body::Xml { scan, .. } = &mut self.body else { return Progress::Open };
        if matches!(step, XmlStep::NoCall) {
            // All its parameters are closed: models leave out the end of the function at times.
            scan.close();
        }
        let certain = scan.take_args();
        if !certain.is_empty() && matches!(step, XmlStep::Open | XmlStep::Closed) {
            self.raw.clear();
        }
        append_args(out, index, &certain);
        if matches!(step, XmlStep::Open) {
            return Progress::Open;
        }
        out.push(Piece::CallEnd { index });
        match step {
            XmlStep::NoCall => Progress::Broken { text: String::new(), again: std::mem::take(&mut self.raw) },
            _ => Progress::Given { in_list: false },
        }
    }
}

fn may_begin(name: &str, calls: &CallList, tools: &ToolSet) -> bool {
    tools.get(name).is_some() && calls.has_room(1)
}

/// Whether an answer that begins so may still be a call. If not, it need not be held.
fn may_be_call(raw: &str) -> bool {
    const KEYS: [&str; 5] = ["\"name\"", "\"type\"", "\"function\"", "\"parameters\"", "\"arguments\""];
    let is_bracket = |c: char| c.is_whitespace() || matches!(c, '{' | '[');
    let key = raw.trim_start_matches(is_bracket);
    raw.len() - key.len() <= MAX_SPACES && KEYS.iter().any(|k| k.starts_with(key) || key.starts_with(k))
}
