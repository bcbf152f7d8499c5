//! Chat templates: a conversation into the prompt the model was trained on.
//!
//! The language is Jinja2 as Hugging Face `transformers` sets it up (`trim_blocks`, `lstrip_blocks`, loop controls,
//! `{% generation %}`, `raise_exception`, `strftime_now`, Python's `tojson`), and the text has to be the same to
//! the byte: a space too many is a prompt the model has never seen. A template is also a program from a stranger,
//! run inside a server: [`Limits`] bound its steps, its memory and its depth. That is why the engine is our own:
//! with another's, under 50 000 units of fuel, `{% set x = x ~ x %}` reached 2.6 GiB and `indent(1e9)` 2.9 GiB.

mod args;
mod ast;
mod brace_format;
mod clock;
mod eval;
mod eval_expr;
mod filters;
mod json;
mod lexer;
mod literal;
mod meter;
mod methods;
mod number_format;
mod ops;
mod parse_expr;
mod parser;
mod percent;
mod predicates;
mod print;
mod scoping;
mod seq_filters;
mod text_methods;
mod value;

use serde_json::{Map, Value as Json};

pub use meter::Limits;

use crate::{Error, Result};

/// The largest template accepted. Of 75 public ones the largest has 17 KB; the worst source of this size takes
/// 14.5 MiB while it is parsed.
const MAX_SOURCE_BYTES: usize = 128 << 10;

/// A parsed template. Rendering changes nothing in it, so threads may share one.
#[derive(Debug)]
pub struct ChatTemplate {
    file: String,
    body: ast::Scoped,
}

/// One conversation to render.
#[derive(Debug, Clone)]
pub struct ChatInput<'a> {
    /// A list of messages, each a mapping with `role` and `content`.
    pub messages: &'a Json,
    /// A list of tool descriptions; absent is `none` to the template.
    pub tools: Option<&'a Json>,
    pub add_generation_prompt: bool,
    /// Absent is undefined to the template.
    pub bos_token: Option<&'a str>,
    pub eos_token: Option<&'a str>,
    /// Further variables: `enable_thinking`, `reasoning_effort`, `documents`, ... None may replace those above.
    pub extra: &'a Map<String, Json>,
}

/// What a request's own variables may not replace.
const RESERVED: [&str; 5] = ["messages", "tools", "add_generation_prompt", "bos_token", "eos_token"];

/// Whether a template variable of this name is the engine's to set.
pub fn is_reserved(name: &str) -> bool {
    RESERVED.contains(&name)
}

impl ChatTemplate {
    /// `file` names the template's source in errors.
    pub fn parse(file: &str, source: &str) -> Result<Self> {
        if source.len() > MAX_SOURCE_BYTES {
            let problem = format!("{} bytes; at most {MAX_SOURCE_BYTES} are accepted", source.len());
            return Err(Error::invalid(file, "chat template", problem));
        }
        match parser::parse(source) {
            Ok(body) => Ok(Self { file: file.into(), body }),
            Err(lexer::SourceFault { line, problem }) => Err(at_line(file, line, problem)),
        }
    }

    /// Renders with the variables of a JSON object.
    pub fn render(&self, vars: &Json, limits: &Limits) -> Result<String> {
        let mut render = eval::Render::new(limits);
        match render.run(&self.body, vars) {
            Ok(()) => Ok(render.into_output()),
            Err(meter::Fault(problem)) => Err(at_line(&self.file, render.line, problem)),
        }
    }

    /// Renders a conversation as `transformers` does, with limits that grow with it.
    pub fn render_chat(&self, input: &ChatInput<'_>) -> Result<String> {
        let vars = self.variables(input)?;
        self.render(&vars, &Limits::for_input(&vars))
    }

    /// The variables a template sees. `documents` is always there, as in `transformers`.
    pub fn variables(&self, input: &ChatInput<'_>) -> Result<Json> {
        if let Some(name) = input.extra.keys().find(|name| is_reserved(name)) {
            let problem = format!("`{name}` is set by the engine; it can't be given as a template variable");
            return Err(Error::invalid(&self.file, "chat template", problem));
        }
        let mut vars = Map::new();
        vars.insert("messages".into(), input.messages.clone());
        vars.insert("tools".into(), input.tools.cloned().unwrap_or_default());
        vars.insert("documents".into(), Json::Null);
        vars.insert("add_generation_prompt".into(), input.add_generation_prompt.into());
        for (name, token) in [("bos_token", input.bos_token), ("eos_token", input.eos_token)] {
            if let Some(token) = token {
                vars.insert(name.into(), token.into());
            }
        }
        vars.extend(input.extra.iter().map(|(name, value)| (name.clone(), value.clone())));
        Ok(Json::Object(vars))
    }
}

impl Limits {
    /// The defaults, and room for an input the caller has already accepted: copying a long conversation a few
    /// times is no attack.
    pub fn for_input(vars: &Json) -> Self {
        let (nodes, bytes) = size(vars);
        let default = Self::default();
        Self {
            steps: default.steps.saturating_add(nodes.saturating_mul(100) + bytes),
            bytes: default
                .bytes
                .saturating_add(nodes.saturating_mul(1000).saturating_add(bytes * 12) as usize),
            ..default
        }
    }
}

/// Values and bytes of text in a JSON value, walked without recursion: nothing bounds its depth yet.
fn size(json: &Json) -> (u64, u64) {
    let (mut nodes, mut bytes) = (0, 0);
    let mut pending = vec![json];
    while let Some(json) = pending.pop() {
        nodes += 1;
        match json {
            Json::String(text) => bytes += text.len() as u64,
            Json::Array(items) => pending.extend(items),
            Json::Object(map) => {
                bytes += map.keys().map(|key| key.len() as u64).sum::<u64>();
                pending.extend(map.values());
            }
            _ => {}
        }
    }
    (nodes, bytes)
}

fn at_line(file: &str, line: u32, problem: String) -> Error {
    Error::invalid(file, format!("chat template line {line}"), problem)
}
