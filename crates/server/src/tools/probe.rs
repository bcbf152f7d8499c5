//! What a template can print, found out by letting it.
//!
//! Templates in circulation differ in what they want: arguments as an object or as text, an empty content or none, a list
//! of parts or a text. None says so; a wrong guess is an error, or worse, a prompt without the call in it.

use overdraft_formats::chat::{ChatPrompt, End, Turns};
use serde_json::{Map, Value, json};

/// What a template prints, and how it wants it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Traits {
    pub(crate) prints_tools: bool,
    /// `None` if it does not print calls, or does not describe what can be called.
    pub(crate) calls: Option<CallForm>,
    /// Several calls of one message.
    pub(crate) prints_several_calls: bool,
    /// Messages of the role `tool`.
    pub(crate) prints_results: bool,
    /// Contents that are lists of parts.
    pub(crate) prints_parts: bool,
    pub(crate) prints_system: bool,
    /// Also behind other messages.
    pub(crate) prints_late_system: bool,
    /// The names under which it reads the thoughts of earlier answers.
    pub(crate) thought_keys: Vec<&'static str>,
}

/// A message with a call, in the form in which it is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallForm {
    /// Arguments as text instead of an object.
    pub(crate) args_as_text: bool,
    /// An empty content has to be `none`.
    pub(crate) content_is_none: bool,
}

// Words that no template has.
const NAME: &str = "probe_zq_name";
const SECOND: &str = "probe_zq_second";
const KEY: &str = "probe_zq_key";
const WORD: &str = "probe zq word";
const RESULT: &str = "probe zq result";

impl Traits {
    pub(crate) fn of(prompt: &ChatPrompt) -> Self {
        let shown = |messages: Value, tools: Option<&[Value]>| {
            let messages = messages.as_array().map_or(&[][..], |list| list);
            let turns = Turns { messages, tools, end: End::Answer, extra: &Map::new() };
            prompt.text(&turns).unwrap_or_default()
        };
        let user = json!({"role": "user", "content": "hi"});
        let form = |form: CallForm, names: &[&str]| {
            let text = shown(json!([user, asking(form, names), result()]), Some(&[tool()]));
            let is_printed = names.iter().all(|name| text.contains(name)) && text.contains(WORD);
            // An object printed as Python would, or a text that was quoted once more, is the other form.
            let is_mangled = text.contains(&format!("'{KEY}'")) || text.contains(&format!("\\\"{KEY}"));
            (is_printed && !is_mangled, text.contains(RESULT))
        };
        let forms = [false, true].into_iter().flat_map(|content_is_none| {
            [false, true].map(|args_as_text| CallForm { args_as_text, content_is_none })
        });
        let prints_tools = shown(json!([user]), Some(&[tool()])).contains(NAME);
        // Calls are shown as they were described: by us, if the template does not.
        let calls = forms.into_iter().find(|f| prints_tools && form(*f, &[NAME]).0);
        let parts = json!([{"type": "text", "text": NAME}, {"type": "text", "text": SECOND}]);
        let parts = shown(json!([{"role": "user", "content": parts}]), None);
        let system = json!({"role": "system", "content": WORD});
        let assistant = json!({"role": "assistant", "content": "ho"});
        Self {
            prints_tools,
            calls,
            prints_several_calls: calls.is_some_and(|f| form(f, &[NAME, SECOND]).0),
            prints_results: calls.is_some_and(|f| form(f, &[NAME]).1),
            prints_parts: parts.contains(NAME) && parts.contains(SECOND) && !parts.contains("type"),
            prints_system: shown(json!([system, user]), None).contains(WORD),
            prints_late_system: shown(json!([user, assistant, system, user]), None).contains(WORD),
            thought_keys: thought_keys(prompt.source()),
        }
    }
}

fn tool() -> Value {
    let parameters = json!({"type": "object", "properties": {KEY: {"type": "string", "description": "d"}}, "required": [KEY]});
    json!({"type": "function", "function": {"name": NAME, "description": "d", "parameters": parameters}})
}

fn asking(form: CallForm, names: &[&str]) -> Value {
    let arguments = json!({KEY: WORD});
    let arguments = if form.args_as_text { arguments.to_string().into() } else { arguments };
    let call = |name: &&str| {
        // Nine letters: one family takes no other ids.
        json!({"id": "probecall", "type": "function", "function": {"name": name, "arguments": arguments}})
    };
    let calls: Vec<Value> = names.iter().map(call).collect();
    let content = if form.content_is_none { Value::Null } else { "".into() };
    json!({"role": "assistant", "content": content, "tool_calls": calls})
}

fn result() -> Value {
    json!({"role": "tool", "tool_call_id": "probecall", "name": NAME, "content": RESULT})
}

/// Fields are read as `.key`, `['key']` or `"key" in`.
fn thought_keys(source: &str) -> Vec<&'static str> {
    let reads = |key: &&str| {
        let is_field = |(at, _): (usize, &str)| {
            let before = source[..at].chars().next_back();
            let after = source[at + key.len()..].chars().next();
            matches!(before, Some('.' | '\'' | '"'))
                && !after.is_some_and(|c| c.is_alphanumeric() || c == '_')
        };
        source.match_indices(*key).any(is_field)
    };
    ["reasoning_content", "reasoning", "thinking"].into_iter().filter(reads).collect()
}
