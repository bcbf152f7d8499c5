//! `overdraft inspect`: what a model file holds and what it needs.

mod count;
mod draft;
mod facts;
mod report;
mod shape;
mod source;
mod text;

use std::process::ExitCode;

use serde_json::{Value, json};

use crate::args::InspectArgs;
use crate::demo;
use crate::failure::{Failure, Result};
use crate::output::Output;
use facts::Facts;
use source::Source;

pub(crate) use count::{count_parameters, short_count};

pub(crate) fn inspect(args: &InspectArgs) -> Result<ExitCode> {
    let sources = match &args.path {
        Some(path) => vec![Source::open(path)?],
        None => vec![Source::Model(demo::target()?), Source::Model(demo::draft()?)],
    };
    let facts: Vec<Facts> = sources.iter().map(|s| Facts::gather(s, &args.memory)).collect();
    let mut output = Output::new();
    if args.json {
        output.write(&format!("{}\n", as_json(&sources, &facts, args.tensors)?))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = String::new();
    for (source, facts) in sources.iter().zip(&facts) {
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(&report::report(facts));
        if args.tensors {
            text.push_str(&report::tensors(source.tensors()));
        }
    }
    output.write(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// One object for a model; of the demo pair the target, with the draft inside it.
fn as_json(sources: &[Source], facts: &[Facts], with_tensors: bool) -> Result<Value> {
    let mut objects = Vec::with_capacity(facts.len());
    for (source, facts) in sources.iter().zip(facts) {
        let mut object = serde_json::to_value(facts).map_err(|e| Failure::internal(format!("JSON: {e}")))?;
        if with_tensors {
            let list = source.tensors().iter().map(|t| {
                json!({"name": t.name, "type": t.stored.to_string(), "shape": t.shape, "bytes": t.n_bytes})
            });
            object["tensors"] = Value::Array(list.collect());
        }
        objects.push(object);
    }
    let mut objects = objects.into_iter();
    let mut first = objects.next().unwrap_or_default();
    if let Some(draft) = objects.next() {
        first["embedded_draft"] = draft;
    }
    Ok(first)
}
