//! One op of the plan vocabulary at a size of the caller's, to be timed or counted: what `overdraft bench op` and the
//! instruction gate run. Like the conformance table it needs nothing but the `Backend` trait.

mod build;
mod build_state;
mod runner;

use std::sync::Arc;

use overdraft_formats::DType;
use overdraft_plan::draw::Drawing;
use overdraft_plan::{KvType, LayerState, Recorder, Retention, Weights};

use crate::conformance::Kind;

pub use runner::Runner;

/// An op that can be run: its name, what its dimensions mean, and what they are unless given.
pub struct OpSpec {
    pub kind: Kind,
    pub name: &'static str,
    pub dims: &'static [(&'static str, usize)],
    /// Whether it has weights of a type to choose.
    pub has_type: bool,
}

const fn op(
    kind: Kind,
    name: &'static str,
    has_type: bool,
    dims: &'static [(&'static str, usize)],
) -> OpSpec {
    OpSpec { kind, name, dims, has_type }
}

/// Every op of the vocabulary. Default sizes are those of an 8 B model, and of a 27 B hybrid's recurrent layers.
#[rustfmt::skip]
pub const OPS: [OpSpec; 19] = [
    op(Kind::Linear,           "linear",            true,  &[("outputs", 4096), ("inputs", 4096)]),
    op(Kind::LinearAdd,        "linear-add",        true,  &[("outputs", 4096), ("inputs", 4096)]),
    op(Kind::LinearGlu,        "linear-glu",        true,  &[("outputs", 12288), ("inputs", 4096)]),
    op(Kind::Attention,        "attention",         false, &[("heads", 32), ("kv-heads", 8), ("head-dim", 128)]),
    op(Kind::AttentionPrepare, "attention-prepare", false, &[("heads", 32), ("kv-heads", 8), ("head-dim", 128)]),
    op(Kind::Recurrent,        "recurrent",         false, &[("key-heads", 16), ("value-heads", 48), ("head-dim", 128)]),
    op(Kind::RecurrentPrepare, "recurrent-prepare", false, &[("key-heads", 16), ("value-heads", 48), ("head-dim", 128)]),
    op(Kind::GatedNorm,        "gated-norm",        false, &[("heads", 48), ("head-dim", 128)]),
    op(Kind::Norm,             "norm",              false, &[("width", 4096)]),
    op(Kind::Embed,            "embed",             true,  &[("tokens", 4096), ("width", 4096)]),
    op(Kind::Select,           "select",            false, &[("width", 4096)]),
    op(Kind::Angles,           "angles",            false, &[("frequencies", 64)]),
    op(Kind::Route,            "route",             false, &[("experts", 128), ("chosen", 8)]),
    op(Kind::ExpertGlu,        "expert-glu",        true,  &[("experts", 128), ("chosen", 8), ("width", 768), ("inputs", 2048)]),
    op(Kind::ExpertAdd,        "expert-add",        true,  &[("experts", 128), ("chosen", 8), ("width", 768), ("outputs", 2048)]),
    op(Kind::LoadTaps,         "load-taps",         false, &[("taps", 5), ("width", 4096)]),
    op(Kind::Concat,           "concat",            false, &[("parts", 5), ("width", 4096)]),
    op(Kind::TopTokens,        "top-tokens",        false, &[("tokens", 151_936), ("chosen", 16)]),
    op(Kind::Sample,           "sample",            false, &[("tokens", 151_936), ("chosen", 20)]),
];

/// The op of this name; `_` is as good as `-`.
pub fn find(name: &str) -> Option<&'static OpSpec> {
    let name = name.to_ascii_lowercase().replace('_', "-");
    OPS.iter().find(|o| o.name == name)
}

/// How large, and in what surroundings.
#[derive(Clone, Debug)]
pub struct Size {
    /// As [`OpSpec::dims`] says.
    pub dims: Vec<usize>,
    pub dtype: DType,
    pub kv: KvType,
    /// Positions of context before the rows.
    pub depth: usize,
    /// Bytes of weights that the copies of the op take turns with; 0 for one matrix, which then stays in the cache.
    pub working_set: usize,
    /// Copies at most, however many the working set or the clock would like.
    pub most_copies: usize,
}

/// Largest dimension, context and weights: inputs of every op then stay within a few hundred megabytes.
const MAX_DIM: usize = 1 << 18;
const MAX_DEPTH: usize = 1 << 17;
const MAX_BYTES: usize = 4 << 30;

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SizeError {
    #[error("{op} has the dimensions {names}; {given} were given")]
    Dims { op: &'static str, names: String, given: usize },
    #[error("{op}: {what} = {value} must be {allowed}")]
    Value { op: &'static str, what: &'static str, value: usize, allowed: String },
    #[error("{op}: {dtype} weights cannot be multiplied")]
    Type { op: &'static str, dtype: DType },
}

/// What an op must move and compute, whatever does it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Weights, state and activations, each once.
    pub bytes: f64,
    pub multiply_adds: f64,
}

type Record = dyn Fn(&mut Recorder, usize);

/// Weights, state and plan of some copies of an op. Each copy has its own weights (as far as the working set goes) and
/// its own layer of state, as the layers of a model have.
pub struct Workload {
    pub copies: usize,
    /// Whether its products are of int8 numbers.
    pub is_int8: bool,
    weights: Arc<Weights>,
    layers: Vec<LayerState>,
    classes: Vec<Retention>,
    kv: KvType,
    tap_width: usize,
    /// How tokens are drawn, for the op that does.
    drawing: Option<Drawing>,
    depth: usize,
    /// Records the inputs, then so many copies.
    record: Box<Record>,
    cost: Box<dyn Fn(usize) -> Cost>,
}

impl Workload {
    pub fn new(op: &'static OpSpec, size: &Size) -> Result<Self, SizeError> {
        check(op, size)?;
        Ok(match op.kind {
            Kind::Attention
            | Kind::AttentionPrepare
            | Kind::Recurrent
            | Kind::RecurrentPrepare
            | Kind::LoadTaps => build_state::build(op.kind, size),
            _ => build::build(op.kind, size),
        })
    }

    /// Of one copy over this many rows.
    pub fn cost(&self, rows: usize) -> Cost {
        (self.cost)(rows)
    }
}

fn check(op: &'static OpSpec, size: &Size) -> Result<(), SizeError> {
    if size.dims.len() != op.dims.len() {
        let names: Vec<&str> = op.dims.iter().map(|d| d.0).collect();
        return Err(SizeError::Dims { op: op.name, names: names.join(" x "), given: size.dims.len() });
    }
    let fail = |what, value, allowed: String| Err(SizeError::Value { op: op.name, what, value, allowed });
    for ((what, _), value) in op.dims.iter().zip(&size.dims) {
        if !(1..=MAX_DIM).contains(value) {
            return fail(what, *value, format!("between 1 and {MAX_DIM}"));
        }
    }
    if size.depth > MAX_DEPTH {
        return fail("depth", size.depth, format!("at most {MAX_DEPTH}"));
    }
    if op.has_type {
        let embed = op.kind == Kind::Embed;
        if !(size.dtype.is_float() || size.dtype.is_quantised() || (embed && size.dtype.is_decodable())) {
            return Err(SizeError::Type { op: op.name, dtype: size.dtype });
        }
        // A row of the weights is as long as the op's inputs, which for the experts' second layer is their width.
        let row = if op.kind == Kind::ExpertAdd { 2 } else { op.dims.len() - 1 };
        let (what, value) = (op.dims[row].0, size.dims[row]);
        let Some(row_bytes) = size.dtype.row_bytes(value) else {
            return fail(what, value, format!("a multiple of {} for {}", size.dtype.block_len(), size.dtype));
        };
        let others = size.dims.iter().enumerate().filter(|(i, _)| *i != row && (op.dims[*i].0 != "chosen"));
        let bytes = others.fold(row_bytes, |bytes, (_, d)| bytes.saturating_mul(*d));
        if bytes > MAX_BYTES {
            return fail("bytes of weights", bytes, format!("at most {MAX_BYTES}"));
        }
    }
    let d = &size.dims;
    let tokens = crate::conformance::Case::N_TOKENS as usize;
    match op.kind {
        Kind::Embed if d[0] < tokens => fail("tokens", d[0], format!("at least {tokens}")),
        Kind::Attention | Kind::AttentionPrepare if !d[0].is_multiple_of(d[1]) => {
            fail("heads", d[0], format!("a multiple of the {} kv-heads", d[1]))
        }
        Kind::Recurrent | Kind::RecurrentPrepare if !d[1].is_multiple_of(d[0]) => {
            fail("value-heads", d[1], format!("a multiple of the {} key-heads", d[0]))
        }
        Kind::Attention | Kind::AttentionPrepare | Kind::Recurrent | Kind::RecurrentPrepare
            if !d[2].is_multiple_of(8) || d[2] > 1024 || d[0].max(d[1]) > 1024 =>
        {
            fail("head-dim", d[2], "a multiple of 8, at most 1024, as are heads".into())
        }
        Kind::GatedNorm if d[0] * d[1] > MAX_DIM => {
            fail("heads", d[0], format!("at most {}", MAX_DIM / d[1]))
        }
        Kind::LoadTaps | Kind::Concat if d[0] * d[1] > MAX_DIM => {
            fail(op.dims[0].0, d[0], format!("at most {}", MAX_DIM / d[1]))
        }
        Kind::Route | Kind::ExpertGlu | Kind::ExpertAdd | Kind::TopTokens if d[1] > d[0].min(1024) => {
            fail("chosen", d[1], format!("at most {}", d[0].min(1024)))
        }
        Kind::ExpertGlu | Kind::ExpertAdd if d[1] * d[2].max(d[3]) > MAX_DIM => {
            fail("chosen", d[1], format!("at most {}", MAX_DIM / d[2].max(d[3])))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_op_of_the_vocabulary_is_here_once() {
        for kind in Kind::ALL {
            assert_eq!(OPS.iter().filter(|o| o.kind == kind).count(), 1, "{kind:?}");
        }
        assert_eq!(find("linear_ADD").map(|o| o.kind), Some(Kind::LinearAdd));
        assert!(find("matmul").is_none());
    }

    #[test]
    fn sizes_that_cannot_be_run_are_refused_by_name() {
        let size = |dims: &[usize]| Size {
            dims: dims.to_vec(),
            dtype: DType::Q4_K,
            kv: KvType::F16,
            depth: 64,
            working_set: 0,
            most_copies: usize::MAX,
        };
        for (op, dims, message) in [
            ("linear", &[64][..], "linear has the dimensions outputs x inputs; 1 were given"),
            ("linear", &[0, 256], "linear: outputs = 0 must be between 1 and 262144"),
            ("linear", &[8, 100], "linear: inputs = 100 must be a multiple of 256 for Q4_K"),
            ("expert-add", &[8, 2, 100, 64], "expert-add: width = 100 must be a multiple of 256 for Q4_K"),
            ("linear", &[262_144, 262_144], "bytes of weights"),
            ("attention", &[3, 2, 64], "attention: heads = 3 must be a multiple of the 2 kv-heads"),
            ("recurrent", &[2, 4, 60], "recurrent: head-dim = 60"),
            ("route", &[4, 5], "route: chosen = 5 must be at most 4"),
            ("concat", &[100_000, 100_000], "concat: parts = 100000 must be at most 2"),
        ] {
            let op = find(op).unwrap();
            let error = Workload::new(op, &size(dims)).err().unwrap_or_else(|| panic!("{message}"));
            assert!(error.to_string().contains(message), "{error}");
        }
    }
}
