//! Grammars as text, in the dialect of Lark that `llguidance` reads.

use llguidance::api::GrammarWithLexer;
use overdraft_formats::tokenizer::Tokenizer;
use serde_json::{Value, json};

use super::limits::{MAX_ENUM, MAX_SOURCE_BYTES, check_nesting, check_pattern, check_schema};
use super::{ResponseFormat, calls, gbnf};
use crate::output::{Dialect, Refusal};
use crate::reasoning::Thinking;
use crate::tools::ToolSet;

/// A grammar to be compiled: our own text, and the user's where he wrote one.
pub(crate) struct Plan {
    text: String,
    users: Option<String>,
    /// The field of the request it comes from.
    pub(super) param: &'static str,
}

/// What an answer in a conversation may be.
pub(crate) struct Answer<'a> {
    pub(crate) format: &'a ResponseFormat,
    pub(crate) dialect: Dialect,
    pub(crate) thinking: Thinking,
    pub(crate) tools: &'a ToolSet,
    pub(crate) must_call: bool,
    pub(crate) several_calls: bool,
    pub(crate) tokenizer: &'a Tokenizer,
}

/// White space between the parts of a JSON text, as schemas compiled here allow it: a model that has nothing to say could
/// otherwise write it until the end of its context.
const JSON_SPACES: &str = r"[ \n\r\t]{1,40}";

impl Plan {
    pub(crate) fn for_text(format: &ResponseFormat) -> Result<Option<Self>, Refusal> {
        let Some((body, users)) = body(format)? else { return Ok(None) };
        let text = format!("start: body\n{body}");
        Ok(Some(Self { text, users, param: param(format) }))
    }

    /// `None` where anything may be written.
    pub(crate) fn for_answer(answer: &Answer<'_>) -> Result<Option<Self>, Refusal> {
        let body = if answer.must_call { None } else { body(answer.format)? };
        let may_call = !answer.tools.is_empty();
        // Calls that the model makes of itself are left to it, unless something was promised about them.
        let is_promised = answer.tools.tools.iter().any(|tool| tool.is_strict) || !answer.several_calls;
        let is_free = body.is_none() && !answer.must_call;
        if is_free && !(may_call && is_promised) {
            return Ok(None);
        }
        let before = Before::of(answer);
        let mut text = before.rules;
        let mut forms = Vec::new();
        if may_call {
            text += &calls::rules(answer)?;
            forms.push(format!("{} calls", before.calls));
        }
        if is_free {
            let free = calls::free(answer);
            forms.extend([
                format!("{} {}", before.calls, free.calls),
                format!("{} {}", before.content, free.text),
            ]);
            text += &free.rules;
        }
        let param = if body.is_some() {
            param(answer.format)
        } else if answer.must_call {
            "tool_choice"
        } else {
            "tools"
        };
        let mut users = None;
        if let Some((rules, theirs)) = body {
            forms.push(format!("{} body", before.content));
            text += &rules;
            users = theirs;
        }
        Ok(Some(Self { text: format!("start: {}\n{text}", forms.join(" | ")), users, param }))
    }

    pub(super) fn has_users(&self) -> bool {
        self.users.is_some()
    }

    pub(super) fn key(&self) -> String {
        format!("{}\u{0}{}", self.text, self.users.as_deref().unwrap_or(""))
    }

    pub(super) fn grammars(&self) -> Vec<GrammarWithLexer> {
        let users = self
            .users
            .clone()
            .map(|text| GrammarWithLexer { name: Some("users".into()), ..GrammarWithLexer::from_lark(text) });
        std::iter::once(GrammarWithLexer::from_lark(self.text.clone())).chain(users).collect()
    }
}

/// Thoughts, and the headers of harmony.
struct Before {
    /// What stands in front of calls.
    calls: String,
    /// What stands in front of content.
    content: String,
    rules: String,
}

impl Before {
    fn of(answer: &Answer<'_>) -> Self {
        let literal = |text| literal(answer.tokenizer, text);
        if answer.dialect == Dialect::Harmony {
            let rules = format!(
                "thoughts: {} ANYTHING {}\nANYTHING: /(?s:.*)/\n",
                literal("<|channel|>analysis<|message|>"),
                literal("<|end|><|start|>assistant")
            );
            let content = format!("thoughts? {}", literal("<|channel|>final<|message|>"));
            return Self { calls: "thoughts?".into(), content, rules };
        }
        let parts = match answer.thinking {
            Thinking::Never | Thinking::Closed => {
                return Self { calls: String::new(), content: String::new(), rules: String::new() };
            }
            Thinking::Open => "thoughts SPACES".to_string(),
            Thinking::Possible => format!("({} thoughts SPACES)?", literal("<think>")),
        };
        let rules = format!("{}SPACES: /[ \\n]{{0,4}}/\n", until(answer.tokenizer, "thoughts", "</think>"));
        Self { calls: parts.clone(), content: parts, rules }
    }
}

/// The rule `body`, and the user's grammar it may refer to.
fn body(format: &ResponseFormat) -> Result<Option<(String, Option<String>)>, Refusal> {
    let refused = |problem: String| Refusal::new(param(format), problem);
    let rule = match format {
        ResponseFormat::Text => return Ok(None),
        ResponseFormat::JsonObject => {
            format!("body: {}\n", json_rule(&json!({"type": "object"}), true).map_err(refused)?)
        }
        ResponseFormat::JsonSchema { schema, strict } => {
            format!("body: {}\n", json_rule(schema, *strict).map_err(refused)?)
        }
        ResponseFormat::Regex(pattern) => {
            check_pattern(pattern).map_err(refused)?;
            format!("body: /{}/\n", llguidance::regex_to_lark(pattern, "dws"))
        }
        ResponseFormat::Choice(texts) => {
            let n_bytes: usize = texts.iter().map(String::len).sum();
            if texts.is_empty() || n_bytes > MAX_SOURCE_BYTES || texts.len() > MAX_ENUM {
                let allowed =
                    format!("1 to {MAX_ENUM} choices of at most {MAX_SOURCE_BYTES} bytes in all are taken");
                return Err(refused(format!("{} choices of {n_bytes} bytes; {allowed}", texts.len())));
            }
            format!("body: BODY\nBODY: {}\n", any_of(texts))
        }
        ResponseFormat::Grammar(source) => {
            if source.len() > MAX_SOURCE_BYTES {
                return Err(refused(format!("{} bytes; at most {MAX_SOURCE_BYTES} are taken", source.len())));
            }
            check_nesting(source).map_err(refused)?;
            let users =
                if gbnf::is_gbnf(source) { gbnf::to_lark(source).map_err(refused)? } else { source.clone() };
            return Ok(Some(("body: @users\n".into(), Some(users))));
        }
    };
    Ok(Some((rule, None)))
}

fn param(format: &ResponseFormat) -> &'static str {
    match format {
        ResponseFormat::Text | ResponseFormat::JsonObject | ResponseFormat::JsonSchema { .. } => {
            "response_format"
        }
        ResponseFormat::Regex(_) | ResponseFormat::Choice(_) => "structured_outputs",
        ResponseFormat::Grammar(_) => "grammar",
    }
}

/// A JSON text that fits `schema`.
pub(super) fn json_rule(schema: &Value, strict: bool) -> Result<String, String> {
    check_schema(schema)?;
    let mut schema = match schema {
        Value::Object(map) => map.clone(),
        Value::Bool(true) => serde_json::Map::new(),
        other => return Err(format!("a schema is an object, not {other:.60}")),
    };
    // Overrides options that came with the schema: they could make the text something else than JSON.
    schema.insert("x-guidance".into(), json!({"whitespace_pattern": JSON_SPACES, "lenient": !strict}));
    Ok(format!("%json {}", Value::Object(schema)))
}

/// `text` as it is, its control tokens by number.
pub(super) fn literal(tokenizer: &Tokenizer, text: &str) -> String {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some(control) = tokenizer.first_control(rest) {
        if control.start > 0 {
            parts.push(quoted(&rest[..control.start]));
        }
        parts.extend(tokenizer.id_of(&rest[control.clone()]).map(|id| format!("<[{id}]>")));
        rest = &rest[control.end..];
    }
    if !rest.is_empty() {
        parts.push(quoted(rest));
    }
    parts.join(" ")
}

/// A rule for any text up to and with `end`.
pub(super) fn until(tokenizer: &Tokenizer, rule: &str, end: &str) -> String {
    match tokenizer.first_control(end) {
        // Text cannot hold a control token, so it needs no end of its own.
        Some(_) => {
            let terminal = format!("{}_TEXT", rule.to_uppercase());
            format!("{rule}: {terminal} {}\n{terminal}: /(?s:.*)/\n", literal(tokenizer, end))
        }
        None => format!("{rule}[lazy]: /(?s:.*){}/\n", end.replace('/', "\\/")),
    }
}

/// A JSON string is a Lark string.
pub(super) fn quoted(text: &str) -> String {
    Value::String(text.into()).to_string()
}

/// One of these, for a terminal: as a rule, 10 000 texts took 1.7 s to compile, as a terminal 4 000 take 40 ms.
pub(super) fn any_of(texts: &[impl AsRef<str>]) -> String {
    texts.iter().map(|text| quoted(text.as_ref())).collect::<Vec<_>>().join(" | ")
}
