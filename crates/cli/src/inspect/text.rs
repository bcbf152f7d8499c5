//! The text side of a model: tokenizer and chat template, or what is wrong with them.

use overdraft_formats::template::ChatTemplate;
use overdraft_formats::tokenizer::Tokenizer;
use overdraft_models::Checkpoint;
use serde::Serialize;
use serde_json::{Map, Value, json};

#[derive(Debug, Serialize)]
pub(super) struct TokenizerFacts {
    pub(super) kind: String,
    pub(super) vocabulary: usize,
    pub(super) adds_bos: bool,
    /// `{"bos": {"id": 1, "text": "<s>"}, ...}`
    pub(super) special: Map<String, Value>,
    /// Any of these ends a text.
    pub(super) end_ids: Vec<u32>,
    pub(super) warnings: Vec<String>,
}

impl TokenizerFacts {
    pub(super) fn of(t: &Tokenizer) -> Self {
        let ids = t.special_ids();
        let named = [
            ("bos", ids.bos),
            ("eos", ids.eos),
            ("eot", ids.eot),
            ("eom", ids.eom),
            ("padding", ids.padding),
            ("mask", ids.mask),
            ("fim_prefix", ids.fim_prefix),
            ("fim_suffix", ids.fim_suffix),
            ("fim_middle", ids.fim_middle),
        ];
        let special = named
            .into_iter()
            .filter_map(|(name, id)| Some((name.to_owned(), json!({"id": id?, "text": t.token_text(id?)}))))
            .collect();
        Self {
            kind: format!("byte-level BPE, {}", format!("{:?}", t.pretokenizer()).to_lowercase()),
            vocabulary: t.vocab_len(),
            adds_bos: t.add_bos(),
            special,
            end_ids: t.end_ids().to_vec(),
            warnings: t.warnings().to_vec(),
        }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct TemplateFacts {
    pub(super) bytes: usize,
    pub(super) first_line: String,
    /// Why it cannot be used, if so.
    pub(super) problem: Option<String>,
}

/// A first line may be the whole template.
const SHOWN_CHARS: usize = 60;

impl TemplateFacts {
    pub(super) fn gather(checkpoint: &Checkpoint) -> Result<Option<Self>, String> {
        let source = match checkpoint.chat_template() {
            Ok(Some(source)) => source,
            Ok(None) => return Ok(None),
            Err(e) => return Err(e.to_string()),
        };
        let line = source.lines().next().unwrap_or_default();
        let shown: String = line.chars().take(SHOWN_CHARS).collect();
        let more = if shown.len() < line.len() { "…" } else { "" };
        Ok(Some(Self {
            bytes: source.len(),
            first_line: format!("{shown}{more}"),
            problem: ChatTemplate::parse(checkpoint.name(), &source).err().map(|e| e.to_string()),
        }))
    }
}
