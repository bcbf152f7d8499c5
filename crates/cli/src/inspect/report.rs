//! The facts as a page for people.

use std::fmt::Write;

use overdraft_engine::human;
use overdraft_formats::TensorInfo;

use super::count::short_count;
use super::facts::{Facts, MemoryFacts};
use super::text::{TemplateFacts, TokenizerFacts};

/// A page of `label   value` lines. Writing to a string cannot fail.
struct Page(String);

impl Page {
    fn line(&mut self, label: &str, value: impl AsRef<str>) {
        // One fact is one line, whatever a file puts into its strings.
        let _ = writeln!(self.0, "{label:<16}{}", value.as_ref().replace('\n', "⏎"));
    }

    fn known(&mut self, label: &str, value: Option<impl ToString>) {
        if let Some(value) = value {
            self.line(label, value.to_string());
        }
    }
}

pub(super) fn report(f: &Facts) -> String {
    let mut page = Page(String::new());
    let size = f.file_bytes.map(|n| format!(", {}", human(n as usize))).unwrap_or_default();
    page.line("file", format!("{} ({}{size})", f.file, f.format));
    page.known("name", f.name.as_ref());
    page.line("architecture", f.architecture.as_deref().unwrap_or("not said"));
    page.line("kind", kind(f));
    let active = f.active_parameters.map(|n| format!(", {} active for a token", short_count(n)));
    page.line("parameters", format!("{}{}", short_count(f.parameters), active.unwrap_or_default()));
    shape(&mut page, f);
    draft(&mut page, f);
    if let Some(t) = &f.tokenizer {
        tokenizer(&mut page, t);
    }
    page.line("chat template", f.chat_template.as_ref().map_or("none".into(), template));
    if let Some(m) = &f.memory {
        memory(&mut page, m);
    }
    for problem in &f.problems {
        page.line("problem", problem);
    }
    types(&mut page.0, f);
    page.0
}

fn kind(f: &Facts) -> String {
    match (&f.draft, f.role) {
        (Some(draft), _) => {
            format!("draft ({}): it proposes tokens for a target, and cannot run alone", draft.method)
        }
        (None, "target") if f.memory.is_some() => "target: run it with -m".into(),
        (None, "target") => "target, but not one this build can run".into(),
        _ => "unknown".into(),
    }
}

fn shape(page: &mut Page, f: &Facts) {
    let s = &f.shape;
    let kinds = s.layers_by_kind.as_ref().map(|k| format!(": {k}")).unwrap_or_default();
    page.known("layers", s.layers.map(|n| format!("{n}{kinds}")));
    let ffn = s.feed_forward.map(|n| format!(", feed-forward {n}")).unwrap_or_default();
    page.known("hidden size", s.hidden.map(|n| format!("{n}{ffn}")));
    if let Some(experts) = s.experts {
        let used = s.experts_used.map(|n| format!(", {n} used for a token")).unwrap_or_default();
        page.line("experts", format!("{experts}{used}"));
    }
    if let Some(heads) = s.heads {
        let kv = s.kv_heads.map(|n| format!(", {n} for keys and values")).unwrap_or_default();
        let dim = s.head_dim.map(|n| format!(", of {n}")).unwrap_or_default();
        page.line("heads", format!("{heads}{kv}{dim}"));
    }
    page.known("vocabulary", s.vocabulary);
    page.known("context", s.context.map(|n| format!("{n} tokens in training")));
    page.known("rope", s.rope.as_ref());
}

fn draft(page: &mut Page, f: &Facts) {
    let Some(d) = &f.draft else { return };
    page.known("block size", d.block_size);
    let list = |taps: &Vec<u64>| taps.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
    page.known("taps", d.taps.as_ref().map(|t| format!("the outputs of target layers {} (from 0)", list(t))));
    page.known("mask id", d.mask_id);
    page.known("own vocabulary", d.own_vocabulary);
    let wants =
        [("hidden size", d.target_hidden), ("layers", d.target_layers), ("vocabulary", d.target_vocabulary)];
    let wants: Vec<String> =
        wants.into_iter().filter_map(|(what, n)| n.map(|n| format!("{what} {n}"))).collect();
    page.line(
        "made for",
        if wants.is_empty() { "not said".into() } else { format!("a target of {}", wants.join(", ")) },
    );
}

fn tokenizer(page: &mut Page, t: &TokenizerFacts) {
    page.line("tokenizer", format!("{}, {} tokens", t.kind, t.vocabulary));
    let special: Vec<String> = t
        .special
        .iter()
        .map(|(name, v)| format!("{name} {} {}", v["id"], v["text"].as_str().unwrap_or_default()))
        .collect();
    if !special.is_empty() {
        page.line("special ids", special.join(", "));
    }
    let ends: Vec<String> = t.end_ids.iter().map(u32::to_string).collect();
    page.line("end ids", if ends.is_empty() { "none".into() } else { ends.join(", ") });
    for warning in &t.warnings {
        page.line("warning", warning);
    }
}

fn template(t: &TemplateFacts) -> String {
    match &t.problem {
        None => format!("{} bytes: {}", t.bytes, t.first_line),
        Some(problem) => format!("{} bytes, but it cannot be used: {problem}", t.bytes),
    }
}

fn memory(page: &mut Page, m: &MemoryFacts) {
    page.line("per token", format!("{} of keys and values ({})", human(m.kv_bytes_per_token), m.kv));
    if m.recurrent_bytes > 0 {
        page.line("per sequence", format!(" {} of recurrent state", human(m.recurrent_bytes)).trim_start());
    }
    page.line(
        "memory needed",
        format!(
            "{} at --ctx {}: weights {}, context {}, recurrent state {}; work buffers on top",
            human(m.total_bytes),
            m.context,
            human(m.weight_bytes),
            human(m.kv_bytes),
            human(m.recurrent_bytes)
        ),
    );
}

fn types(out: &mut String, f: &Facts) {
    if f.types.is_empty() {
        return;
    }
    let width = f.types.iter().map(|t| t.name.chars().count()).max().unwrap_or(0).max(6);
    let _ = writeln!(
        out,
        "\n{:<width$}  {:>7}  {:>10}  {:>10}  {:>6}",
        "type", "tensors", "parameters", "bytes", "share"
    );
    for t in &f.types {
        let share = 100.0 * t.bytes as f64 / (f.tensor_bytes.max(1)) as f64;
        let bytes = if t.bytes_unknown > 0 { "unknown".into() } else { human(t.bytes as usize) };
        let (name, n, parameters) = (&t.name, t.tensors, short_count(t.parameters));
        let _ = writeln!(out, "{name:<width$}  {n:>7}  {parameters:>10}  {bytes:>10}  {share:>5.1}%");
    }
    let total = human(f.tensor_bytes as usize);
    let (n, parameters) = (f.n_tensors, short_count(f.parameters));
    let _ = writeln!(out, "{:<width$}  {n:>7}  {parameters:>10}  {total:>10}", "all");
}

/// Every tensor: name, type, shape (outermost first), bytes.
pub(super) fn tensors(list: &[TensorInfo]) -> String {
    let mut out = String::from("\n");
    let width = list.iter().map(|t| t.name.chars().count()).max().unwrap_or(0).clamp(4, 64);
    let _ = writeln!(out, "{:<width$}  {:<8}  {:<22}  {:>12}", "tensor", "type", "shape", "bytes");
    for t in list {
        let name = t.name.replace('\n', "⏎");
        let bytes = t.n_bytes.map_or("unknown".into(), |n| n.to_string());
        let (kind, shape) = (t.stored.to_string(), format!("{:?}", t.shape));
        let _ = writeln!(out, "{name:<width$}  {kind:<8}  {shape:<22}  {bytes:>12}");
    }
    out
}
