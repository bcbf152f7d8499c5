//! How many kernels a layer of a step's graph has: of every family's fixture as Q8_0, or of files.

use std::path::Path;
use std::sync::Arc;

use overdraft_cuda::{Cuda, Device};
use overdraft_formats::DType;
use overdraft_models::{Checkpoint, Decoder, RecordOptions};
use overdraft_plan::{Backend, KvType, NO_PARENT, Op, Plan, StateId, Step};

use crate::common::{as_gguf, load};
use crate::options::families;

/// What a layer may have: of more rows than attention takes at once, as many launches of that as it wants.
fn most(rows: usize) -> f64 {
    (7 + rows.div_ceil(32)) as f64
}
/// Steps: a row, a chain, blocks to verify, and what many sequences have.
const BUCKETS: [usize; 5] = [1, 8, 16, 32, 64];

/// Kernels of one captured step of these rows: a root and drafts below it.
fn nodes(cuda: &mut Cuda, state: StateId, n_classes: usize, plan: Plan) -> usize {
    let rows = plan.bucket;
    let mut step = Step::default();
    let s = step.add_seq(0, 0, 1, 0, (0..n_classes).map(|_| &[0u32, 1][..]));
    let root = step.push(s, 1, NO_PARENT);
    for _ in 1..rows {
        step.push(s, 2, root);
    }
    (0..rows as u32).for_each(|row| step.want_logits(row));
    let id = cuda.prepare(plan).unwrap();
    // The first launches one by one.
    (0..2).for_each(|_| cuda.run(id, state, &step).unwrap());
    cuda.wait().unwrap();
    cuda.graph_nodes(id).unwrap_or(0)
}

/// Per layer and bucket: what another pass through all layers adds to a step.
fn nodes_a_layer(device: &Arc<Device>, decoder: &Decoder) -> [f64; BUCKETS.len()] {
    let mut cuda = Cuda::new(device.clone()).unwrap();
    let mut spec = decoder.state_spec(KvType::F16);
    spec.slots = 1;
    spec.pages = vec![2; spec.classes.len()];
    cuda.load(decoder.weights.clone()).unwrap();
    let state = cuda.allocate(&spec).unwrap();
    BUCKETS.map(|bucket| {
        let options = RecordOptions { bucket, logit_rows: bucket, taps: &[], speculative: bucket > 1 };
        let once = decoder.record(options);
        let at = |is_end: fn(&Op) -> bool| once.ops.iter().position(is_end).unwrap();
        let layers = at(|op| matches!(op, Op::Norm { .. }))..at(|op| matches!(op, Op::Select { .. }));
        let mut twice = once.clone();
        twice.ops.splice(layers.start..layers.start, once.ops[layers].iter().cloned());
        let [twice, once] = [twice, once].map(|p| nodes(&mut cuda, state, spec.classes.len(), p));
        (twice - once) as f64 / spec.layers.len() as f64
    })
}

pub(crate) fn run(device: &Arc<Device>, args: &[String]) -> Result<bool, String> {
    let is_file = args.first().is_some_and(|arg| !arg.starts_with("--"));
    let models: Vec<(String, Decoder)> = if is_file {
        let of_file = |file: &String| {
            let checkpoint = Checkpoint::open(Path::new(file)).map_err(|e| e.to_string())?;
            Ok((file.clone(), Decoder::load(&checkpoint, |_, _| {}).map_err(|e| e.to_string())?))
        };
        args.iter().map(of_file).collect::<Result<_, String>>()?
    } else {
        let fixtures = families(args)?;
        fixtures.into_iter().map(|name| (name.into(), load(&as_gguf(name, DType::Q8_0)))).collect()
    };
    println!("kernels a layer, by rows\n{:<14} {}", "model", BUCKETS.map(|b| format!("{b:>6}")).join(""));
    let mut passed = true;
    for (name, decoder) in models {
        let found = nodes_a_layer(device, &decoder);
        let most = BUCKETS.map(most);
        let is_few = found.iter().zip(most).all(|(n, most)| *n <= most);
        passed &= is_few;
        let failed = if is_few { String::new() } else { format!("   FAILED: more than {most:?}") };
        println!("{name:<14} {}{failed}", found.map(|n| format!("{n:>6.1}")).join(""));
    }
    Ok(passed)
}
