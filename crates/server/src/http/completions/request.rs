//! A completions request, read: prompts as text or tokens, one or many.

use serde_json::Value;

use crate::http::chat::request::{StreamOptions, read_streaming};
use crate::http::error::{ApiError, ApiResult};
use crate::http::fields::{Fields, kind};
use crate::http::limits::{MAX_ANSWERS, MAX_CHOICES, MAX_TOP_LOGPROBS};
use crate::http::settings::{Defaults, Settings, read_max_tokens};
use crate::http::wishes::read_format;
use crate::output::ResponseFormat;

/// OpenAI's default: short, since raw text rarely ends by itself.
const DEFAULT_TOKENS: usize = 16;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum PromptText {
    Text(String),
    Tokens(Vec<u32>),
}

#[derive(Debug)]
pub(crate) struct CompletionRequest {
    pub(crate) model: Option<String>,
    pub(crate) prompts: Vec<PromptText>,
    pub(crate) add_special_tokens: bool,
    pub(crate) format: ResponseFormat,
    pub(crate) settings: Settings,
    /// Answers to each prompt.
    pub(crate) n: usize,
    pub(crate) echo: bool,
    pub(crate) logprobs: Option<usize>,
    /// vLLM's way to ask for those of the prompt.
    pub(crate) prompt_logprobs: Option<usize>,
    /// `max_tokens` is 0: only the prompt matters.
    pub(crate) is_silent: bool,
    pub(crate) streaming: Option<StreamOptions>,
    pub(crate) ignored: Vec<String>,
}

impl CompletionRequest {
    pub(crate) fn read(mut fields: Fields, defaults: &Defaults) -> ApiResult<Self> {
        let f = &mut fields;
        let model = f.text("model")?;
        let prompt = f.take("prompt").ok_or_else(|| f.error("prompt", "is missing"))?;
        let prompts = read_prompts(prompt, defaults.vocab)?;
        let is_silent = f.peek("max_tokens").is_some_and(|n| n.as_f64() == Some(0.0));
        let max_tokens = match is_silent {
            true => f.take("max_tokens").map_or(1, |_| 1),
            false => read_max_tokens(f, &["max_tokens", "n_predict"])?.unwrap_or(DEFAULT_TOKENS),
        };
        let prompt_logprobs = f.integer("prompt_logprobs", 0..=MAX_TOP_LOGPROBS)?.map(|n| n as usize);
        let settings = Settings::read(f, defaults, max_tokens)?;
        let n = f.integer("n", 1..=MAX_CHOICES)?.unwrap_or(1) as usize;
        if prompts.len() * n > MAX_ANSWERS {
            let problem =
                format!("{} prompts with {n} answers each; at most {MAX_ANSWERS} answers", prompts.len());
            return Err(f.error("prompt", problem));
        }
        f.refuse_unless("best_of", &[1.into(), (n as i64).into()], "use n")?;
        f.refuse_unless("suffix", &["".into()], "text is only continued, not filled in")?;
        let echo = f.bool("echo")?.unwrap_or(false);
        // OpenAI counts them, others switch them.
        let logprobs = match f.take("logprobs") {
            Some(Value::Bool(on)) => on.then_some(0),
            None => None,
            Some(value) => match value.as_u64() {
                Some(n) if n <= MAX_TOP_LOGPROBS as u64 => Some(n as usize),
                _ => {
                    return Err(
                        f.error("logprobs", format!("must be a whole number from 0 to {MAX_TOP_LOGPROBS}"))
                    );
                }
            },
        };
        if is_silent && !echo && prompt_logprobs.is_none() {
            return Err(f.error("max_tokens", "0 must be at least 1, unless the prompt is echoed or scored"));
        }
        let streaming = read_streaming(f)?;
        if streaming.is_some() && prompt_logprobs.is_some() {
            return Err(f.error("prompt_logprobs", "is not streamed; use echo with logprobs"));
        }
        let add_special_tokens = f.bool("add_special_tokens")?.unwrap_or(true);
        let format = read_format(f)?;
        ["user", "metadata", "request_id"].iter().for_each(|name| drop(f.take(name)));
        let ignored = fields.names_left();
        Ok(Self {
            model,
            prompts,
            add_special_tokens,
            format,
            settings,
            n,
            echo,
            logprobs,
            prompt_logprobs,
            is_silent,
            streaming,
            ignored,
        })
    }
}

impl CompletionRequest {
    /// The most likely tokens wanted beside each of the prompt's.
    pub(crate) fn of_prompt(&self) -> Option<usize> {
        self.logprobs.filter(|_| self.echo).max(self.prompt_logprobs)
    }
}

/// A string, a list of strings, a list of token ids, or a list of such lists.
fn read_prompts(value: Value, vocab: usize) -> ApiResult<Vec<PromptText>> {
    let list = match value {
        Value::String(text) => return Ok(vec![PromptText::Text(text)]),
        Value::Array(list) => list,
        other => {
            let problem = format!("must be a string, token ids, or a list of either, not {}", kind(&other));
            return Err(ApiError::field("prompt", problem));
        }
    };
    if list.first().is_some_and(Value::is_number) {
        return Ok(vec![PromptText::Tokens(read_ids(&list, "prompt", vocab)?)]);
    }
    if list.is_empty() || list.len() > MAX_ANSWERS {
        let problem = format!("has {} prompts; must be 1 to {MAX_ANSWERS}", list.len());
        return Err(ApiError::field("prompt", problem));
    }
    let one = |(i, value): (usize, Value)| match value {
        Value::String(text) => Ok(PromptText::Text(text)),
        Value::Array(ids) => Ok(PromptText::Tokens(read_ids(&ids, &format!("prompt[{i}]"), vocab)?)),
        other => {
            let problem = format!("must be a string or token ids, not {}", kind(&other));
            Err(ApiError::field(format!("prompt[{i}]"), problem))
        }
    };
    list.into_iter().enumerate().map(one).collect()
}

/// Token ids of this vocabulary.
pub(crate) fn read_ids(list: &[Value], path: &str, vocab: usize) -> ApiResult<Vec<u32>> {
    let id = |(i, value): (usize, &Value)| {
        let id = value.as_u64().filter(|id| *id < vocab as u64);
        id.map(|id| id as u32).ok_or_else(|| {
            ApiError::field(format!("{path}[{i}]"), format!("must be a token id below {vocab}"))
        })
    };
    list.iter().enumerate().map(id).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(body: Value) -> ApiResult<CompletionRequest> {
        let defaults = Defaults { vocab: 100, end_ids: vec![1], recommended: Default::default() };
        CompletionRequest::read(Fields::of_value(body, "").unwrap(), &defaults)
    }

    #[test]
    fn prompts_come_as_text_or_tokens_one_or_many() {
        let (text, tokens) = (|t: &str| PromptText::Text(t.into()), |t: &[u32]| PromptText::Tokens(t.into()));
        for (prompt, expected) in [
            (json!("a"), vec![text("a")]),
            (json!(["a", "b"]), vec![text("a"), text("b")]),
            (json!([1, 2]), vec![tokens(&[1, 2])]),
            (json!([[1], [2, 3]]), vec![tokens(&[1]), tokens(&[2, 3])]),
        ] {
            assert_eq!(read(json!({"prompt": prompt})).unwrap().prompts, expected);
        }
    }

    #[test]
    fn bad_prompts_and_fields_are_named() {
        for (body, param) in [
            (json!({}), "prompt"),
            (json!({"prompt": 1}), "prompt"),
            (json!({"prompt": []}), "prompt"),
            (json!({"prompt": vec!["a"; 129]}), "prompt"),
            (json!({"prompt": vec!["a"; 65], "n": 2}), "prompt"),
            (json!({"prompt": [1, "a"]}), "prompt[1]"),
            (json!({"prompt": ["a", 1]}), "prompt[1]"),
            (json!({"prompt": [100]}), "prompt[0]"),
            (json!({"prompt": [[1], [-1]]}), "prompt[1][0]"),
            (json!({"prompt": "a", "suffix": "b"}), "suffix"),
            (json!({"prompt": "a", "best_of": 2}), "best_of"),
            (json!({"prompt": "a", "logprobs": 21}), "logprobs"),
            (json!({"prompt": "a", "logprobs": "x"}), "logprobs"),
            (json!({"prompt": "a", "max_tokens": 0}), "max_tokens"),
            (json!({"prompt": "a", "max_tokens": 0, "logprobs": 1}), "max_tokens"),
            (json!({"prompt": "a", "prompt_logprobs": 21}), "prompt_logprobs"),
            (json!({"prompt": "a", "prompt_logprobs": 1, "stream": true}), "prompt_logprobs"),
        ] {
            assert_eq!(read(body.clone()).unwrap_err().param.as_deref(), Some(param), "{body}");
        }
        let request = read(json!({"prompt": "a", "n": 3, "best_of": 3, "logprobs": 2, "x": 1})).unwrap();
        assert_eq!((request.n, request.logprobs, request.settings.max_tokens), (3, Some(2), 16));
        assert_eq!(request.ignored, ["x"]);
        for (body, of_prompt) in [
            (json!({"prompt": "a", "max_tokens": 0, "echo": true, "logprobs": 1}), Some(1)),
            (json!({"prompt": "a", "max_tokens": 0.0, "prompt_logprobs": 2}), Some(2)),
            (json!({"prompt": "a", "echo": true, "logprobs": 1, "prompt_logprobs": 3}), Some(3)),
            (json!({"prompt": "a", "echo": true}), None),
            (json!({"prompt": "a", "logprobs": 4}), None),
        ] {
            let request = read(body.clone()).unwrap();
            assert_eq!(request.of_prompt(), of_prompt, "{body}");
            assert_eq!(request.is_silent, body.get("max_tokens").is_some());
        }
    }
}
