//! Everything `inspect` shows, gathered once for people and programs. What cannot be read becomes a problem in the
//! list: a file that cannot be run can still be looked at.

use overdraft_engine::{EngineConfig, plan_state};
use overdraft_models::{Arch, Checkpoint, Hyper, Kind};
use overdraft_plan::{PAGE, Retention};
use serde::Serialize;

use super::count::{self, TypeRow};
use super::draft::DraftFacts;
use super::shape::Shape;
use super::source::Source;
use super::text::{TemplateFacts, TokenizerFacts};
use crate::args::MemoryArgs;
use crate::config::{default_context, kv_name, kv_type};

#[derive(Debug, Default, Serialize)]
pub(super) struct Facts {
    pub(super) file: String,
    pub(super) format: String,
    /// On disk; absent for folders and for what is inside the binary.
    pub(super) file_bytes: Option<u64>,
    pub(super) name: Option<String>,
    pub(super) architecture: Option<String>,
    /// "target", "draft" or "unknown".
    pub(super) role: &'static str,
    pub(super) draft: Option<DraftFacts>,
    pub(super) n_tensors: usize,
    pub(super) tensor_bytes: u64,
    pub(super) parameters: u64,
    /// What one token goes through, where experts make that fewer.
    pub(super) active_parameters: Option<u64>,
    pub(super) types: Vec<TypeRow>,
    pub(super) shape: Shape,
    pub(super) tokenizer: Option<TokenizerFacts>,
    pub(super) chat_template: Option<TemplateFacts>,
    pub(super) memory: Option<MemoryFacts>,
    /// Why this build cannot run it, or not all of it.
    pub(super) problems: Vec<String>,
}

/// What one sequence takes.
#[derive(Debug, Serialize)]
pub(super) struct MemoryFacts {
    pub(super) context: usize,
    pub(super) kv: &'static str,
    /// In layers that keep every position.
    pub(super) kv_bytes_per_token: usize,
    pub(super) kv_bytes: usize,
    pub(super) recurrent_bytes: usize,
    pub(super) weight_bytes: usize,
    /// Weights and one sequence; work buffers come on top.
    pub(super) total_bytes: usize,
}

impl Facts {
    pub(super) fn gather(source: &Source, memory: &MemoryArgs) -> Self {
        let tensors = source.tensors();
        let types = count::by_type(tensors);
        let mut facts = Self {
            file: source.name().into(),
            format: source.format(),
            file_bytes: std::fs::metadata(source.name()).ok().filter(|m| m.is_file()).map(|m| m.len()),
            role: "unknown",
            n_tensors: tensors.len(),
            tensor_bytes: types.iter().map(|t| t.bytes).sum(),
            parameters: count::count(tensors).total,
            types,
            ..Self::default()
        };
        if let Source::Model(checkpoint) = source {
            facts.describe(source, checkpoint, memory);
        } else {
            facts
                .problems
                .push("no config.json beside the file, so it is not known what the tensors are".into());
        }
        facts
    }

    fn describe(&mut self, source: &Source, checkpoint: &Checkpoint, memory: &MemoryArgs) {
        self.name = model_name(checkpoint);
        self.architecture = architecture(checkpoint);
        self.shape = Shape::guess(checkpoint);
        match checkpoint.kind() {
            Ok(Kind::Target(_)) => {
                self.role = "target";
                match checkpoint.hyper() {
                    Ok(hyper) => self.describe_target(&hyper, source, memory),
                    Err(e) => self.problems.push(e.to_string()),
                }
            }
            Ok(Kind::Draft(method)) => {
                self.role = "draft";
                self.draft = Some(DraftFacts::gather(source, checkpoint, &method, &self.shape));
            }
            Ok(Kind::Unknown(found)) => self
                .problems
                .push(format!("architecture `{found}` is not one this build has; it has {}", Arch::known())),
            Err(e) => self.problems.push(e.to_string()),
        }
        match checkpoint.tokenizer() {
            Ok(tokenizer) => self.tokenizer = Some(TokenizerFacts::of(&tokenizer)),
            Err(e) => self.problems.push(e.to_string()),
        }
        match TemplateFacts::gather(checkpoint) {
            Ok(template) => self.chat_template = template,
            Err(e) => self.problems.push(e),
        }
    }

    fn describe_target(&mut self, hyper: &Hyper, source: &Source, memory: &MemoryArgs) {
        self.shape = Shape::of(hyper);
        if let Some(moe) = &hyper.moe {
            let counted = count::count(source.tensors());
            let visited = u128::from(counted.in_experts) * moe.used as u128 / moe.experts as u128;
            self.active_parameters = Some(counted.total - counted.in_experts + visited as u64);
        }
        self.memory = Some(MemoryFacts::of(hyper, memory, self.tensor_bytes as usize));
    }
}

impl MemoryFacts {
    fn of(hyper: &Hyper, args: &MemoryArgs, weight_bytes: usize) -> Self {
        let context = default_context(args.ctx, hyper.context);
        let config = EngineConfig { context, kv: kv_type(args.kv), ..EngineConfig::default() };
        let spec = plan_state(hyper, None, &config);
        let full = spec.classes.iter().position(|c| *c == Retention::Full);
        let kv_bytes: usize = (0..spec.classes.len()).map(|c| spec.pages[c] * spec.page_bytes(c)).sum();
        let recurrent_bytes = spec.n_bytes() - kv_bytes;
        Self {
            context,
            kv: kv_name(config.kv),
            kv_bytes_per_token: full.map_or(0, |class| spec.page_bytes(class) / PAGE),
            kv_bytes,
            recurrent_bytes,
            weight_bytes,
            total_bytes: weight_bytes.saturating_add(kv_bytes).saturating_add(recurrent_bytes),
        }
    }
}

fn model_name(checkpoint: &Checkpoint) -> Option<String> {
    let name = match checkpoint {
        Checkpoint::Gguf(gguf) => gguf.get_str("general.name").ok().flatten(),
        Checkpoint::HuggingFace { config, .. } => config.get_str("_name_or_path").ok().flatten(),
    };
    name.filter(|n| !n.is_empty()).map(str::to_owned)
}

fn architecture(checkpoint: &Checkpoint) -> Option<String> {
    match checkpoint {
        Checkpoint::Gguf(gguf) => gguf.get_str("general.architecture").ok().flatten().map(str::to_owned),
        Checkpoint::HuggingFace { config, .. } => {
            let text = config.text();
            let model_type = text.get_str("model_type").ok().flatten().map(str::to_owned);
            model_type.or_else(|| config.get_str("model_type").ok().flatten().map(str::to_owned))
        }
    }
}
