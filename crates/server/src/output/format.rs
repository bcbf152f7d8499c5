//! How one model is talked to: its template, its dialect, its grammars.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

use overdraft_engine::Constraint;
use overdraft_formats::chat::{ChatPrompt, End, Turns};
use overdraft_formats::template::is_reserved;
use overdraft_formats::tokenizer::Tokenizer;
use serde_json::{Map, Value};

use super::dialect::Dialect;
use super::parser::{OutputParser, ParserStart};
use super::refusal::Refusal;
use crate::grammar::{Answer, Grammars, Plan, ResponseFormat};
use crate::reasoning::Thinking;
use crate::tools::{ToolChoice, ToolSet, Traits, shape};

/// A conversation in OpenAI's shape, whichever way it came in.
#[derive(Clone, Debug, Default)]
pub struct Conversation {
    /// Roles system, developer, user, assistant and tool; contents are null, text, or lists of text parts.
    pub messages: Vec<Value>,
    /// Functions.
    pub tools: Vec<Value>,
    pub tool_choice: ToolChoice,
    pub parallel_tool_calls: bool,
    pub format: ResponseFormat,
    /// `enable_thinking`, `reasoning_effort` and what else the template reads.
    pub template_vars: Map<String, Value>,
    pub add_generation_prompt: bool,
    /// The answer goes on where the last message ends.
    pub continue_final_message: bool,
}

/// A conversation as the model reads it, and what has to be known to read the answer.
#[derive(Clone, Debug)]
pub struct Prompt {
    pub text: String,
    pub tokens: Vec<u32>,
    /// This model's tags are control tokens: the parser has to be given their text (`Options::keep_specials`).
    pub keep_specials: bool,
    start: ParserStart,
}

/// Built once for a model. Everything here may take milliseconds: not for an async task.
pub struct ChatFormat {
    prompt: ChatPrompt,
    dialect: Dialect,
    traits: Traits,
    keep_specials: bool,
    grammars: Arc<Grammars>,
}

impl ChatFormat {
    /// `name` stands for the model in errors.
    pub fn new(name: &str, template_source: &str, tokenizer: Arc<Tokenizer>) -> Result<Self, String> {
        let prompt = ChatPrompt::new(name, template_source, tokenizer.clone())
            .map_err(|problem| problem.to_string())?;
        let traits = Traits::of(&prompt);
        // What is described by us is written as we describe it.
        let dialect = Dialect::of_template(if traits.prints_tools { template_source } else { "" });
        let dialect = if Dialect::of_template(template_source) == Dialect::Harmony {
            Dialect::Harmony
        } else {
            dialect
        };
        let is_hidden = |tag: &&str| {
            let is_used = *tag == "<tool_call>" || template_source.contains(*tag);
            is_used && tokenizer.id_of(tag).is_some_and(|id| tokenizer.is_special(id))
        };
        let keep_specials =
            dialect != Dialect::Harmony && ["<think>", "</think>", "<tool_call>"].iter().any(is_hidden);
        Ok(Self { prompt, dialect, traits, keep_specials, grammars: Arc::new(Grammars::new(tokenizer)) })
    }

    pub fn grammars(&self) -> &Arc<Grammars> {
        &self.grammars
    }

    /// How the model writes its calls.
    pub fn dialect_name(&self) -> &'static str {
        self.dialect.name()
    }

    pub fn prompt(&self, conversation: &Conversation) -> Result<Prompt, Refusal> {
        let (tools, listed) = ToolSet::choose(&conversation.tools, &conversation.tool_choice)?;
        let messages = shape(&conversation.messages, &listed, &self.traits);
        if messages.is_empty() {
            return Err(Refusal::new("messages", "there is no message"));
        }
        if let Some(name) = conversation.template_vars.keys().find(|name| is_reserved(name)) {
            return Err(Refusal::new("chat_template_kwargs", format!("`{name}` is set by the server")));
        }
        let end = if conversation.continue_final_message {
            End::WithinLast
        } else if conversation.add_generation_prompt {
            End::Answer
        } else {
            End::Closed
        };
        let listed = (self.traits.prints_tools && !listed.is_empty()).then_some(listed.as_slice());
        let turns = Turns { messages: &messages, tools: listed, end, extra: &conversation.template_vars };
        let rendered =
            self.prompt.render(&turns).map_err(|problem| Refusal::new("messages", problem.to_string()))?;
        let source = self.prompt.source();
        let thinking = match end {
            End::WithinLast => {
                Thinking::within(messages.last().and_then(|m| m["content"].as_str()).unwrap_or(""), source)
            }
            End::Answer | End::Closed => Thinking::at_end_of(&rendered.text, source),
        };
        let start = ParserStart { dialect: self.dialect, thinking, tools: Arc::new(tools) };
        Ok(Prompt { text: rendered.text, tokens: rendered.tokens, keep_specials: self.keep_specials, start })
    }

    /// What the answer is held to; `None` if to nothing.
    pub fn constraint(
        &self,
        c: &Conversation,
        prompt: &Prompt,
    ) -> Result<Option<Box<dyn Constraint>>, Refusal> {
        let plan = Plan::for_answer(&Answer {
            format: &c.format,
            dialect: self.dialect,
            thinking: prompt.start.thinking,
            tools: &prompt.start.tools,
            must_call: c.tool_choice.must_call(),
            several_calls: c.parallel_tool_calls && !matches!(c.tool_choice, ToolChoice::Named(_)),
            tokenizer: self.prompt.tokenizer(),
        })?;
        plan.map(|plan| self.grammars.constraint(plan)).transpose()
    }

    pub fn parser(&self, prompt: &Prompt) -> OutputParser {
        // Ids of calls must differ between the answers of a conversation; nothing else depends on this.
        let seed = RandomState::new().build_hasher().finish();
        OutputParser::new(&prompt.start, seed)
    }
}
