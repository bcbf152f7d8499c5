//! A conversation into tokens, by the model's own template.
//!
//! A message is text, whatever it says: `<|im_end|>` typed by a user must not end his turn. Yet templates and
//! contents cannot be encoded apart: tokens may span their border, and templates look into contents (`</think>`). So
//! wherever a message, a tool or a variable spells a control token, a character that occurs nowhere else is put behind
//! its first letter before rendering ([`marks`]). Encoding the rendered text then finds the template's control tokens and no others;
//! what lies between them loses the marks and is encoded again with control tokens off. A conversation without such
//! spellings has no marks and is encoded once, as everybody does it.

mod marks;

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::template::{ChatInput, ChatTemplate};
use crate::tokenizer::{Specials, Tokenizer};
use crate::{Error, Result};
use marks::Marks;

/// A template with the tokenizer of its model. Rendering changes nothing in it, so threads may share one.
pub struct ChatPrompt {
    file: String,
    source: String,
    template: ChatTemplate,
    tokenizer: Arc<Tokenizer>,
    marks: Marks,
}

/// What is to be said.
#[derive(Clone, Copy, Debug)]
pub struct Turns<'a> {
    /// Mappings with `role`, `content` and whatever else the template reads.
    pub messages: &'a [Value],
    /// Absent is `none` to the template.
    pub tools: Option<&'a [Value]>,
    pub end: End,
    /// Further variables: `enable_thinking`, `reasoning_effort`, ...
    pub extra: &'a Map<String, Value>,
}

/// Where the prompt ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Where the next answer begins.
    Answer,
    /// Behind the last message.
    Closed,
    /// Within the last message, an answer that was begun.
    WithinLast,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    pub text: String,
    pub tokens: Vec<u32>,
}

impl ChatPrompt {
    /// `file` names the template's source in errors.
    pub fn new(file: &str, source: &str, tokenizer: Arc<Tokenizer>) -> Result<Self> {
        let template = ChatTemplate::parse(file, source)?;
        let marks = Marks::new(&tokenizer);
        Ok(Self { file: file.into(), source: source.into(), template, tokenizer, marks })
    }

    pub fn source(&self) -> &str {
        &self.source
    }

    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    pub fn render(&self, turns: &Turns<'_>) -> Result<Rendered> {
        let values =
            || turns.messages.iter().chain(turns.tools.into_iter().flatten()).chain(turns.extra.values());
        let names = turns.extra.keys().map(String::as_str);
        if !values().any(|value| self.marks.is_needed(value, &self.tokenizer))
            && !names.clone().any(|name| self.marks.is_needed_in(name, &self.tokenizer))
        {
            let text = self.text(turns)?;
            let tokens = self.tokenizer.encode(&text, Specials::Parse);
            return Ok(Rendered { text, tokens });
        }
        let mark = marks::unused_character(values(), names.chain([self.source.as_str()]));
        let marked = |value: &Value| self.marks.marked(value, mark, &self.tokenizer);
        let all =
            |list: &[Value]| list.iter().map(marked).collect::<std::result::Result<Vec<Value>, String>>();
        let refused = |problem| Error::invalid(&self.file, "message", problem);
        let messages = all(turns.messages).map_err(refused)?;
        let tools = turns.tools.map(all).transpose().map_err(refused)?;
        let extra = turns.extra.iter().map(|(name, value)| Ok((name.clone(), marked(value)?)));
        let extra = extra.collect::<std::result::Result<Map<_, _>, String>>().map_err(refused)?;
        let text = self.text(&Turns {
            messages: &messages,
            tools: tools.as_deref(),
            end: turns.end,
            extra: &extra,
        })?;
        let tokens = self.without(mark, &self.tokenizer.encode(&text, Specials::Parse));
        Ok(Rendered { text: text.replace(mark, ""), tokens })
    }

    /// The rendered text, without a care for control tokens in messages: for looking at, not for a model.
    pub fn text(&self, turns: &Turns<'_>) -> Result<String> {
        let token = |id: Option<u32>| id.and_then(|id| self.tokenizer.token_text(id));
        let (bos, eos) = (token(self.tokenizer.bos()), token(self.tokenizer.eos()));
        let tools = turns.tools.map(|tools| Value::Array(tools.to_vec()));
        let text = self.template.render_chat(&ChatInput {
            messages: &Value::Array(turns.messages.to_vec()),
            tools: tools.as_ref(),
            add_generation_prompt: turns.end == End::Answer,
            bos_token: bos.as_deref(),
            eos_token: eos.as_deref(),
            extra: turns.extra,
        })?;
        if turns.end == End::WithinLast { self.cut_behind_last(text, turns.messages) } else { Ok(text) }
    }

    /// Leaves out what the template puts behind the last message. Templates trim what they print.
    fn cut_behind_last(&self, mut text: String, messages: &[Value]) -> Result<String> {
        let last = messages.last().and_then(|m| m["content"].as_str()).unwrap_or("").trim();
        match text.rfind(last) {
            Some(at) if !last.is_empty() => {
                text.truncate(at + last.len());
                Ok(text)
            }
            _ => {
                let problem =
                    "the last message cannot be continued: the template does not print its content as text";
                Err(Error::invalid(&self.file, "chat template", problem))
            }
        }
    }

    /// Keeps the control tokens; what lies between them is encoded again without the mark, as plain text.
    fn without(&self, mark: char, tokens: &[u32]) -> Vec<u32> {
        let mut out = Vec::with_capacity(tokens.len());
        for run in tokens.chunk_by(|a, b| self.tokenizer.is_control(*a) == self.tokenizer.is_control(*b)) {
            if self.tokenizer.is_control(run[0]) {
                out.extend_from_slice(run);
            } else {
                let text = self.tokenizer.decode(run, false).replace(mark, "");
                self.tokenizer.encode_into(&text, Specials::Plain, &mut out);
            }
        }
        out
    }
}
