//! The stages a `tokenizer.json` declares around its model. A stage that would change ids and is not implemented
//! is refused by its name.

use serde_json::{Map, Value};

use super::assemble::Normalize;
use super::pretokenize::Pretokenizer;
use super::shown;
use crate::{Error, Result};

type Object = Map<String, Value>;

/// A stage of the pipeline: its type and its other fields.
struct Stage<'j> {
    file: &'j str,
    /// `pre_tokenizer`, `normalizer` or `post_processor`.
    at: &'static str,
    kind: &'j str,
    fields: &'j Object,
}

impl<'j> Stage<'j> {
    /// The stages of `value`, sequences laid flat.
    fn list(file: &'j str, at: &'static str, inner: &str, value: Option<&'j Value>) -> Result<Vec<Self>> {
        let mut flat = Vec::new();
        // Depth-first with a stack of our own: how deep a file nests is its affair.
        let mut todo: Vec<&Value> = value.into_iter().filter(|value| !value.is_null()).collect();
        while let Some(value) = todo.pop() {
            let fields = value.as_object();
            let kind = fields.and_then(|fields| fields.get("type")).and_then(Value::as_str);
            let (Some(fields), Some(kind)) = (fields, kind) else {
                return Err(Error::invalid(file, at, "a stage without a `type`"));
            };
            let stage = Self { file, at, kind, fields };
            if kind != "Sequence" {
                flat.push(stage);
                continue;
            }
            stage.only(&[inner])?;
            let Some(stages) = fields.get(inner).and_then(Value::as_array) else {
                return Err(Error::invalid(file, at, format!("a `Sequence` without a list `{inner}`")));
            };
            todo.extend(stages.iter().rev());
        }
        Ok(flat)
    }

    fn unsupported(&self, what: impl std::fmt::Display) -> Error {
        Error::unsupported(self.file, format!("{} `{}`", self.at, shown(self.kind)), what.to_string())
    }

    fn only(&self, known: &[&str]) -> Result<()> {
        match self.fields.keys().find(|key| *key != "type" && !known.contains(&key.as_str())) {
            Some(key) => Err(self.unsupported(format_args!("field `{}` is not known here", shown(key)))),
            None => Ok(()),
        }
    }

    /// A boolean field; `default` where it is absent, as in Hugging Face's reader.
    fn flag(&self, key: &str, default: bool) -> Result<bool> {
        match self.fields.get(key) {
            None => Ok(default),
            Some(Value::Bool(value)) => Ok(*value),
            Some(other) => Err(self.unsupported(format_args!("`{key}` = {other} is not a boolean"))),
        }
    }
}

pub(super) fn normalize(file: &str, value: Option<&Value>) -> Result<Normalize> {
    let mut normalize = Normalize::Never;
    for stage in Stage::list(file, "normalizer", "normalizers", value)? {
        if stage.kind != "NFC" {
            return Err(stage.unsupported("not implemented; known: NFC"));
        }
        stage.only(&[])?;
        normalize = Normalize::Nfc;
    }
    Ok(normalize)
}

pub(super) fn pretokenizer(file: &str, value: Option<&Value>) -> Result<Pretokenizer> {
    let stages = Stage::list(file, "pre_tokenizer", "pretokenizers", value)?;
    let mut regexes: Vec<&str> = Vec::new();
    let mut is_byte_level = false;
    for stage in &stages {
        if is_byte_level {
            return Err(stage.unsupported("a stage behind ByteLevel"));
        }
        match stage.kind {
            "Split" => regexes.push(split_regex(stage)?),
            "Digits" => {
                stage.only(&["individual_digits"])?;
                if !stage.flag("individual_digits", false)? {
                    return Err(stage.unsupported("only `individual_digits` = true is implemented"));
                }
                regexes.push(r"\p{N}");
            }
            "ByteLevel" => {
                stage.only(&["add_prefix_space", "trim_offsets", "use_regex"])?;
                if stage.flag("add_prefix_space", true)? {
                    return Err(stage.unsupported("`add_prefix_space` = true is not implemented"));
                }
                if stage.flag("use_regex", true)? {
                    regexes.extend(Pretokenizer::Gpt2.regexes());
                }
                is_byte_level = true;
            }
            _ => return Err(stage.unsupported("not implemented; known: Split, Digits, ByteLevel, Sequence")),
        }
    }
    if !is_byte_level {
        let problem = "no ByteLevel stage: only byte-level vocabularies are supported";
        return Err(Error::unsupported(file, "pre_tokenizer", problem));
    }
    Pretokenizer::ALL.into_iter().find(|pre| pre.regexes() == regexes).ok_or_else(|| {
        let known =
            Pretokenizer::ALL.map(|pre| format!("{}: {}", pre.names()[0], pre.regexes().join(" then ")));
        let problem =
            format!("no matcher for `{}`; known are\n{}", regexes.join("` then `"), known.join("\n"));
        Error::unsupported(file, "pre_tokenizer", problem)
    })
}

fn split_regex<'j>(stage: &Stage<'j>) -> Result<&'j str> {
    stage.only(&["pattern", "behavior", "invert"])?;
    let behavior = stage.fields.get("behavior").and_then(Value::as_str).unwrap_or_default();
    // The known expressions match everywhere, so removing what does not match removes nothing.
    match (behavior, stage.flag("invert", false)?) {
        ("Isolated", false) | ("Removed", true) => {}
        (_, invert) => {
            let what = format!("`behavior` = {behavior:?} with `invert` = {invert} is not implemented");
            return Err(stage.unsupported(what));
        }
    }
    let pattern =
        stage.fields.get("pattern").and_then(|pattern| pattern.get("Regex")).and_then(Value::as_str);
    pattern.ok_or_else(|| stage.unsupported("only a `pattern` of the form {\"Regex\": ...} is implemented"))
}

/// Decoding is ours; a decoder that is not byte-level would make other text.
pub(super) fn check_decoder(file: &str, value: Option<&Value>) -> Result<()> {
    for stage in Stage::list(file, "decoder", "decoders", value)? {
        if stage.kind != "ByteLevel" {
            return Err(stage.unsupported("not implemented; known: ByteLevel"));
        }
    }
    Ok(())
}

/// The tokens put before and after a text.
#[derive(Default)]
pub(super) struct Frame {
    pub(super) before: Option<u32>,
    pub(super) after: Option<u32>,
}

pub(super) fn frame(file: &str, value: Option<&Value>) -> Result<Frame> {
    let mut frame = Frame::default();
    for stage in Stage::list(file, "post_processor", "processors", value)? {
        match stage.kind {
            // It only trims offsets.
            "ByteLevel" => {}
            "TemplateProcessing" => frame = template(&stage)?,
            _ => return Err(stage.unsupported("not implemented; known: TemplateProcessing, ByteLevel")),
        }
    }
    Ok(frame)
}

fn template(stage: &Stage) -> Result<Frame> {
    stage.only(&["single", "pair", "special_tokens"])?;
    let odd = || stage.unsupported("`single` is not a text with at most one token before and one after");
    let single = stage.fields.get("single").and_then(Value::as_array).ok_or_else(odd)?;
    let mut frame = Frame::default();
    let mut seen_text = false;
    for item in single {
        if item.get("Sequence").is_some() && !seen_text {
            seen_text = true;
            continue;
        }
        let token = item.get("SpecialToken").and_then(|token| token.get("id")).and_then(Value::as_str);
        let place = if seen_text { &mut frame.after } else { &mut frame.before };
        let (Some(token), None) = (token, &place) else { return Err(odd()) };
        let ids =
            stage.fields.get("special_tokens").and_then(|tokens| tokens.get(token)?.get("ids")?.as_array());
        let id = match ids.map(Vec::as_slice) {
            Some([id]) => id.as_u64().and_then(|id| u32::try_from(id).ok()),
            _ => None,
        };
        let no_id = || stage.unsupported(format_args!("`special_tokens` has not one id for `{token}`"));
        *place = Some(id.ok_or_else(no_id)?);
    }
    if seen_text { Ok(frame) } else { Err(odd()) }
}
