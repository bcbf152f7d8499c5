//! The fields that mean the same in every API: how tokens are chosen, when to stop, how many answers.

use overdraft_engine::{Drawing, Sampling, Speculative};
use overdraft_models::RecommendedSampling;
use serde_json::{Value, json};

use super::error::{ApiError, ApiResult};
use super::fields::{Fields, kind};
use super::limits::*;
use super::request_id::fresh_seed;

/// What the model brings that requests are read against.
#[derive(Clone, Debug)]
pub(crate) struct Defaults {
    pub(crate) vocab: usize,
    pub(crate) end_ids: Vec<u32>,
    pub(crate) recommended: RecommendedSampling,
}

/// A request's wishes, as run.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Of the first choice; the others differ in their number.
    pub(crate) sampling: Sampling,
    /// `usize::MAX` is what the context leaves.
    pub(crate) max_tokens: usize,
    pub(crate) stop_strings: Vec<String>,
    pub(crate) stop_ids: Vec<u32>,
    pub(crate) speculative: Speculative,
    pub(crate) cache_salt: Option<String>,
    /// Control tokens are part of the text too.
    pub(crate) keep_specials: bool,
    /// The stream also says how each token came to be, for pages that colour it.
    pub(crate) token_origins: bool,
}

/// Fields that would change the text, and that mean nothing only with these values. The last says what to do instead.
fn unsupported() -> [(&'static str, Vec<Value>, &'static str); 26] {
    let (zero, one, no, none) = (json!(0), json!(1), json!(false), json!([]));
    const SAMPLER: &str = "choose with temperature, top_k, top_p, min_p and the penalties";
    [
        ("use_beam_search", vec![no.clone()], SAMPLER),
        ("length_penalty", vec![one.clone()], SAMPLER),
        ("typical_p", vec![one.clone()], SAMPLER),
        ("tfs_z", vec![one.clone()], SAMPLER),
        ("top_a", vec![zero.clone()], SAMPLER),
        ("top_n_sigma", vec![zero.clone(), json!(-1)], SAMPLER),
        ("mirostat", vec![zero.clone()], SAMPLER),
        ("mirostat_mode", vec![zero.clone()], SAMPLER),
        ("dynatemp_range", vec![zero.clone()], SAMPLER),
        ("xtc_probability", vec![zero.clone()], SAMPLER),
        ("dry_multiplier", vec![zero.clone()], SAMPLER),
        ("smoothing_factor", vec![zero.clone()], SAMPLER),
        ("epsilon_cutoff", vec![zero.clone()], SAMPLER),
        ("eta_cutoff", vec![zero.clone()], SAMPLER),
        ("penalty_alpha", vec![zero.clone()], SAMPLER),
        ("no_repeat_ngram_size", vec![zero.clone()], SAMPLER),
        ("min_tokens", vec![zero.clone()], "ignore_eos writes on to max_tokens"),
        ("bad_words", vec![none.clone()], "forbid tokens with logit_bias"),
        ("allowed_token_ids", vec![none.clone()], "forbid tokens with logit_bias, or use a grammar"),
        ("logits_processors", vec![none.clone()], "use logit_bias, or a grammar"),
        ("include_stop_str_in_output", vec![no.clone()], "append the stop string yourself"),
        ("truncate_prompt_tokens", vec![], "shorten the prompt yourself; /tokenize counts it"),
        ("thinking_token_budget", vec![], "bound the answer with max_tokens"),
        ("prompt_logprobs", vec![], "/v1/completions has them"),
        ("lora", vec![none], "this server has one model"),
        (
            "chat_template",
            vec![],
            "the model's own template is used; chat_template_kwargs sets its variables",
        ),
    ]
}

impl Settings {
    /// Reads the common fields. `max_tokens` is left to the caller: every API names it differently.
    pub(crate) fn read(fields: &mut Fields, defaults: &Defaults, max_tokens: usize) -> ApiResult<Self> {
        for (name, neutral, instead) in unsupported() {
            fields.refuse_unless(name, &neutral, instead)?;
        }
        let sampling = read_sampling(fields, defaults)?;
        let mut stop_ids = read_stop_ids(fields, defaults.vocab)?;
        if !fields.bool("ignore_eos")?.unwrap_or(false) {
            stop_ids.extend_from_slice(&defaults.end_ids);
        }
        Ok(Self {
            sampling,
            max_tokens,
            stop_strings: read_stops(fields, "stop")?,
            stop_ids,
            speculative: read_speculative(fields)?,
            cache_salt: fields.short_text("cache_salt", MAX_SALT_BYTES)?,
            keep_specials: !fields.bool("skip_special_tokens")?.unwrap_or(true),
            token_origins: fields.bool("token_origins")?.unwrap_or(false),
        })
    }
}

/// The first of these names that is there: APIs renamed it over time. -1 is llama.cpp's word for no limit.
pub(crate) fn read_max_tokens(fields: &mut Fields, names: &[&str]) -> ApiResult<Option<usize>> {
    let mut found = None;
    for name in names {
        let n = fields.integer(name, -1..=i64::MAX)?;
        if n == Some(0) {
            return Err(fields.error(name, "0 must be at least 1"));
        }
        found = found.or(n.filter(|n| *n > 0).map(|n| n as usize));
    }
    Ok(found)
}

fn read_sampling(fields: &mut Fields, defaults: &Defaults) -> ApiResult<Sampling> {
    let (model, off) = (&defaults.recommended, Drawing::default());
    let repetition = fields.number("repetition_penalty", 0.01..=100.0)?;
    // llama.cpp's name for it, with a window that only -1 makes ours.
    let repetition = repetition.or(fields.number("repeat_penalty", 0.01..=100.0)?.filter(|p| *p > 0.0));
    if repetition.is_some_and(|p| p != 1.0) {
        fields.refuse_unless("repeat_last_n", &[json!(-1)], "the penalty is on all of prompt and answer")?;
    }
    let seed = match fields.take("seed") {
        None => fresh_seed(),
        Some(value) => match (value.as_u64(), value.as_i64()) {
            (Some(seed), _) => seed,
            // -1 asks for any.
            (None, Some(-1)) => fresh_seed(),
            (None, Some(seed)) => seed as u64,
            (None, None) => {
                return Err(fields.error("seed", format!("must be a whole number, not {}", kind(&value))));
            }
        },
    };
    let top_k = fields.integer("top_k", -1..=i64::from(u32::MAX))?.map(|k| k.max(0) as u32);
    let drawing = Drawing {
        // The APIs' default, unless the model's makers say otherwise.
        temperature: fields.number("temperature", 0.0..=100.0)?.or(model.temperature).unwrap_or(1.0),
        top_k: top_k.or(model.top_k).unwrap_or(off.top_k),
        top_p: fields.number("top_p", 0.0..=1.0)?.or(model.top_p).unwrap_or(off.top_p),
        min_p: fields.number("min_p", 0.0..=1.0)?.or(model.min_p).unwrap_or(off.min_p),
        repetition_penalty: repetition.or(model.repetition_penalty).unwrap_or(off.repetition_penalty),
        frequency_penalty: fields
            .number("frequency_penalty", -100.0..=100.0)?
            .unwrap_or(off.frequency_penalty),
        presence_penalty: fields.number("presence_penalty", -100.0..=100.0)?.unwrap_or(off.presence_penalty),
        seed,
        choice: off.choice,
    };
    Ok(Sampling { drawing, bias: read_bias(fields, defaults.vocab)? })
}

fn read_bias(fields: &mut Fields, vocab: usize) -> ApiResult<Vec<(u32, f32)>> {
    let Some(map) = fields.map("logit_bias")? else { return Ok(Vec::new()) };
    if map.len() > MAX_BIASES {
        return Err(fields
            .error("logit_bias", format!("has {} entries; at most {MAX_BIASES} are accepted", map.len())));
    }
    let entry = |(id, value): (String, Value)| {
        let token = id.parse::<u32>().ok().filter(|t| (*t as usize) < vocab);
        let token = token.ok_or_else(|| {
            fields.error("logit_bias", format!("a key is not a token id below the vocabulary of {vocab}"))
        })?;
        match value.as_f64() {
            Some(x) if (-100.0..=100.0).contains(&x) => Ok((token, x as f32)),
            _ => Err(fields
                .error("logit_bias", format!("the value of {token} must be a number between -100 and 100"))),
        }
    };
    map.into_iter().map(entry).collect()
}

fn read_stop_ids(fields: &mut Fields, vocab: usize) -> ApiResult<Vec<u32>> {
    let list = fields.list("stop_token_ids", MAX_STOP_IDS)?.unwrap_or_default();
    let id = |value: &Value| {
        let id = value.as_u64().filter(|id| *id < vocab as u64);
        id.map(|id| id as u32).ok_or_else(|| {
            fields.error("stop_token_ids", format!("must be token ids below the vocabulary of {vocab}"))
        })
    };
    list.iter().map(id).collect()
}

/// A string, or a list of them.
pub(crate) fn read_stops(fields: &mut Fields, name: &str) -> ApiResult<Vec<String>> {
    let list = match fields.take(name) {
        None => return Ok(Vec::new()),
        Some(Value::String(stop)) => vec![Value::String(stop)],
        Some(Value::Array(list)) => list,
        Some(other) => {
            return Err(
                fields.error(name, format!("must be a string or a list of strings, not {}", kind(&other)))
            );
        }
    };
    if list.len() > MAX_STOPS {
        return Err(
            fields.error(name, format!("has {} entries; at most {MAX_STOPS} are accepted", list.len()))
        );
    }
    let one = |(i, value): (usize, Value)| match value {
        Value::String(stop) if stop.len() <= MAX_STOP_BYTES => Ok(stop),
        Value::String(stop) => Err(ApiError::field(
            format!("{}[{i}]", fields.at(name)),
            format!("has {} bytes; at most {MAX_STOP_BYTES} are accepted", stop.len()),
        )),
        other => Err(ApiError::field(
            format!("{}[{i}]", fields.at(name)),
            format!("must be a string, not {}", kind(&other)),
        )),
    };
    let stops = list.into_iter().enumerate().map(one).collect::<ApiResult<Vec<String>>>()?;
    // An empty one would end every text at once; clients that send it mean none.
    Ok(stops.into_iter().filter(|s| !s.is_empty()).collect())
}

/// `false`, `true`, or the most that a round may draft.
fn read_speculative(fields: &mut Fields) -> ApiResult<Speculative> {
    match fields.take("speculative") {
        None | Some(Value::Bool(true)) => Ok(Speculative::Auto),
        Some(Value::Bool(false)) => Ok(Speculative::Off),
        Some(object @ Value::Object(_)) => {
            let mut limits = Fields::of_value(object, fields.at("speculative"))?;
            let depth = limits.integer("max_depth", 0..=i64::from(u32::MAX))?;
            let nodes = limits.integer("max_nodes", 0..=i64::from(u32::MAX))?;
            if let Some(unknown) = limits.names_left().first() {
                return Err(ApiError::field(
                    unknown,
                    "is not known here; `speculative` has max_depth and max_nodes",
                ));
            }
            Ok(match (depth, nodes) {
                (Some(0), _) | (_, Some(0)) => Speculative::Off,
                (None, None) => Speculative::Auto,
                (depth, nodes) => Speculative::Limited {
                    max_depth: depth.map_or(usize::MAX, |n| n as usize),
                    max_nodes: nodes.map_or(usize::MAX, |n| n as usize),
                },
            })
        }
        Some(other) => {
            let problem = format!(
                "must be false, true or an object with max_depth and max_nodes, not {}",
                kind(&other)
            );
            Err(fields.error("speculative", problem))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn defaults() -> Defaults {
        let recommended = RecommendedSampling { top_k: Some(20), ..Default::default() };
        Defaults { vocab: 100, end_ids: vec![1], recommended }
    }

    fn read(value: Value) -> ApiResult<Settings> {
        Settings::read(&mut Fields::of_value(value, "").unwrap(), &defaults(), 7)
    }

    #[test]
    fn what_is_not_said_is_the_models_word_then_the_apis() {
        let drawing = |body| read(body).unwrap().sampling.drawing;
        let s = read(json!({"top_p": 0.5, "seed": 9})).unwrap();
        let drawn = Drawing { temperature: 1.0, top_k: 20, top_p: 0.5, seed: 9, ..Drawing::GREEDY };
        assert_eq!(s.sampling, Sampling::from(drawn));
        assert_eq!((s.max_tokens, s.stop_ids.as_slice()), (7, [1].as_slice()));
        assert!(read(json!({"ignore_eos": true, "stop_token_ids": [5]})).unwrap().stop_ids == [5]);
        assert_eq!(drawing(json!({"top_k": -1})).top_k, 0);
        assert_ne!(drawing(json!({})).seed, drawing(json!({})).seed);
        assert_eq!(drawing(json!({"seed": u64::MAX})).seed, u64::MAX);
        let repeated = drawing(json!({"repeat_penalty": 1.1, "repeat_last_n": -1}));
        assert_eq!(repeated.repetition_penalty, 1.1);
    }

    #[test]
    fn every_wish_reaches_its_own_place() {
        let said = json!({"temperature": 0.5, "top_k": 3, "top_p": 0.25, "min_p": 0.125, "repetition_penalty": 1.5,
            "frequency_penalty": 2.0, "presence_penalty": -1.0, "seed": 6, "logit_bias": {"7": 4.0}});
        let drawing = Drawing {
            temperature: 0.5,
            top_k: 3,
            top_p: 0.25,
            min_p: 0.125,
            repetition_penalty: 1.5,
            frequency_penalty: 2.0,
            presence_penalty: -1.0,
            seed: 6,
            choice: 0,
        };
        assert_eq!(read(said).unwrap().sampling, Sampling { drawing, bias: vec![(7, 4.0)] });
    }

    #[test]
    #[rustfmt::skip]
    fn speculation_is_a_switch_or_a_bound() {
        let of = |v: Value| read(json!({"speculative": v})).unwrap().speculative;
        assert_eq!(of(json!(null)), Speculative::Auto);
        assert_eq!(of(json!(true)), Speculative::Auto);
        assert_eq!(of(json!(false)), Speculative::Off);
        assert_eq!(of(json!({"max_depth": 0})), Speculative::Off);
        assert_eq!(of(json!({"max_depth": 3})), Speculative::Limited { max_depth: 3, max_nodes: usize::MAX });
    }

    #[test]
    fn nonsense_is_refused_with_the_fields_name() {
        let long = "x".repeat(1025);
        let many: serde_json::Map<String, Value> = (0..1025).map(|i| (i.to_string(), json!(1))).collect();
        for (value, param) in [
            (json!({"temperature": -0.1}), "temperature"),
            (json!({"temperature": "hot"}), "temperature"),
            (json!({"top_p": 1.5}), "top_p"),
            (json!({"min_p": -1}), "min_p"),
            (json!({"top_k": 1e30}), "top_k"),
            (json!({"seed": 1.5}), "seed"),
            (json!({"stop": 1}), "stop"),
            (json!({"stop": ["a", 1]}), "stop[1]"),
            (json!({"stop": [long]}), "stop[0]"),
            (json!({"stop": vec!["a"; 17]}), "stop"),
            (json!({"stop_token_ids": [100]}), "stop_token_ids"),
            (json!({"stop_token_ids": [-1]}), "stop_token_ids"),
            (json!({"logit_bias": {"100": 1}}), "logit_bias"),
            (json!({"logit_bias": {"x": 1}}), "logit_bias"),
            (json!({"logit_bias": {"1": 101}}), "logit_bias"),
            (json!({"logit_bias": many}), "logit_bias"),
            (json!({"speculative": "fast"}), "speculative"),
            (json!({"speculative": {"max_deep": 1}}), "speculative.max_deep"),
            (json!({"speculative": {"max_depth": -1}}), "speculative.max_depth"),
            (json!({"repeat_penalty": 1.1, "repeat_last_n": 64}), "repeat_last_n"),
        ] {
            assert_eq!(read(value.clone()).unwrap_err().param.as_deref(), Some(param), "{value}");
        }
        for (name, neutral, _) in unsupported() {
            assert_eq!(read(json!({name: "other"})).unwrap_err().param.as_deref(), Some(name));
            for value in neutral {
                assert!(read(json!({name: value})).is_ok(), "{name} {value}");
            }
        }
    }

    #[test]
    fn the_length_has_many_names_and_no_zero() {
        let read = |v: Value| {
            read_max_tokens(&mut Fields::of_value(v, "").unwrap(), &["max_completion_tokens", "max_tokens"])
        };
        assert_eq!(read(json!({"max_tokens": 5})), Ok(Some(5)));
        assert_eq!(read(json!({"max_tokens": 5, "max_completion_tokens": 6})), Ok(Some(6)));
        assert_eq!(read(json!({"max_tokens": -1})), Ok(None));
        assert_eq!(read(json!({"max_tokens": i64::MAX})), Ok(Some(i64::MAX as usize)));
        assert_eq!(read(json!({"max_tokens": 0})).unwrap_err().param.as_deref(), Some("max_tokens"));
    }
}
