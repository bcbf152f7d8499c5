//! Products with weights of every type.

use overdraft_formats::DType;
use overdraft_plan::{Glu, LinearOut, Op, RmsNorm};

use crate::conformance::case::{Arithmetic, Case, CaseBuilder, Kind};

/// (inputs, outputs): widths of one block and of many, not multiples of 256 where the type allows it, outputs that
/// fill no tile.
const FLOAT_SHAPES: [(usize, usize); 7] =
    [(1, 3), (7, 17), (32, 5), (96, 33), (256, 64), (512, 100), (2880, 19)];
const BLOCK_32_SHAPES: [(usize, usize); 6] = [(32, 17), (64, 5), (96, 33), (256, 64), (512, 100), (2880, 19)];
const BLOCK_256_SHAPES: [(usize, usize); 4] = [(256, 17), (512, 100), (768, 33), (2816, 19)];

fn weight_types() -> impl Iterator<Item = DType> {
    DType::all().filter(|d| d.is_float() || d.is_quantised())
}

fn shapes(dtype: DType) -> &'static [(usize, usize)] {
    match dtype.block_len() {
        1 => &FLOAT_SHAPES,
        32 => &BLOCK_32_SHAPES,
        _ => &BLOCK_256_SHAPES,
    }
}

const CLAMPED: Glu = Glu::Clamped { alpha: 1.702, limit: 7.0 };

pub(super) fn linears() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in weight_types() {
        for (n_in, n_out) in shapes(dtype) {
            cases.push(linear(dtype, dtype, *n_in, *n_out));
        }
    }
    for (first, second) in [(DType::Q4_K, DType::Q6_K), (DType::F32, DType::Q8_0), (DType::Q5_0, DType::BF16)]
    {
        cases.push(linear(first, second, 512, 41));
    }
    cases
}

pub(super) fn adds() -> Vec<Case> {
    let mut cases: Vec<Case> = weight_types().map(|dtype| add(dtype, 512, 50, true, false)).collect();
    for dtype in [DType::F32, DType::Q4_K, DType::Q8_0] {
        for (bias, gate) in [(false, false), (false, true), (true, true)] {
            cases.push(add(dtype, 256, 37, bias, gate));
        }
    }
    use DType::{F32, Q4_0, Q4_K, Q5_K, Q6_K, Q8_0};
    cases.extend([
        layer([F32; 5], [96, 37, 70], [300, 41]),
        layer([Q8_0; 5], [96, 160, 96], [300, 41]),
        // Small enough for a chain's slots, and columns that fill no whole stage.
        layer([Q8_0; 5], [352, 160, 96], [150, 41]),
        layer([Q4_0; 5], [64, 640, 352], [300, 41]),
        layer([Q4_K, Q4_K, Q6_K, Q4_K, F32], [256, 768, 512], [300, 41]),
        layer([Q5_K, Q4_K, Q5_K, Q6_K, Q5_K], [768, 1024, 1280], [300, 41]),
        layer([Q8_0, Q8_0, F32, Q6_K, Q8_0], [64, 4352, 64], [300, 41]),
    ]);
    cases
}

pub(super) fn glus() -> Vec<Case> {
    let mut cases: Vec<Case> = weight_types().map(|dtype| glu([dtype, dtype], 256, 70, Glu::Swish)).collect();
    for types in [[DType::BF16; 2], [DType::MXFP4; 2], [DType::Q4_K, DType::Q6_K], [DType::F16, DType::Q8_0]]
    {
        cases.push(glu(types, 256, 48, CLAMPED));
    }
    cases
}

/// The coarser of two types decides how near the results can be.
fn coarser(a: DType, b: DType) -> DType {
    let bytes_of_256 = |dtype: DType| 256 / dtype.block_len() * dtype.block_bytes();
    if bytes_of_256(b) < bytes_of_256(a) { b } else { a }
}

/// Two matrices with one input, the second of another height and with a bias.
fn linear(first: DType, second: DType, n_in: usize, n_out: usize) -> Case {
    let name = format!("{first} and {second}, {n_in} to {n_out}");
    let mut b = CaseBuilder::new(Kind::Linear, Arithmetic::Weights(coarser(first, second)), name);
    let input = b.input(n_in, 1.0);
    let (w1, w2) = (b.matrix(first, n_out, n_in), b.matrix(second, n_out + 2, n_in));
    let bias = b.bias(n_out + 2);
    b.build(move |r| {
        let x = input.record(r);
        let (y1, y2) = (r.act(n_out), r.act(n_out + 2));
        let outs = vec![
            LinearOut { weight: w1, bias: None, out: y1 },
            LinearOut { weight: w2, bias: Some(bias), out: y2 },
        ];
        r.push(Op::Linear { x, outs });
        vec![y1, y2]
    })
}

fn add(dtype: DType, n_in: usize, n_out: usize, with_bias: bool, with_gate: bool) -> Case {
    let name = format!("{dtype}, {n_in} to {n_out}, bias {with_bias}, gate {with_gate}");
    let mut b = CaseBuilder::new(Kind::LinearAdd, Arithmetic::Weights(dtype), name);
    let (input, stream, gate) = (b.input(n_in, 1.0), b.input(n_out, 1.0), b.input(1, 2.0));
    let weight = b.matrix(dtype, n_out, n_in);
    let bias = with_bias.then(|| b.bias(n_out));
    b.build(move |r| {
        let (x, stream) = (input.record(r), stream.record(r));
        let gate = with_gate.then(|| gate.record(r));
        r.push(Op::LinearAdd { x, weight, bias, gate, stream });
        vec![stream]
    })
}

/// What follows a mixer: its sum, a norm with a tap, a gated pair, their sum, the next layer's norm and its two inputs. A backend may run
/// any of these together, and must make of them what each alone makes.
fn layer(types: [DType; 5], [n_in, hidden, ffn]: [usize; 3], [n_first, n_second]: [usize; 2]) -> Case {
    let coarsest = types.into_iter().reduce(coarser).unwrap_or(types[0]);
    let name = format!("{types:?}, {n_in} to {hidden}, {ffn}, {n_first}, norms between");
    let mut b = CaseBuilder::new(Kind::LinearAdd, Arithmetic::Chain(coarsest), name);
    let (input, stream) = (b.input(n_in, 1.0), b.input(hidden, 1.0));
    let [sum, pair, down, first, second] = types;
    let weight = b.matrix(sum, hidden, n_in);
    let (gate, up) = (b.matrix(pair, ffn, hidden), b.matrix(pair, ffn, hidden));
    let (down, first, second) =
        (b.matrix(down, hidden, ffn), b.matrix(first, n_first, hidden), b.matrix(second, n_second, hidden));
    let norms = [1e-6, 1e-2].map(|eps| RmsNorm { weight: b.norm_weight(hidden), eps });
    b.build(move |r| {
        let (x, stream, tap) = (input.record(r), stream.record(r), r.act(hidden));
        let (normed, gated, y1, y2) = (r.act(hidden), r.act(ffn), r.act(n_first), r.act(n_second));
        r.push(Op::LinearAdd { x, weight, bias: None, gate: None, stream });
        r.push(Op::Norm { x: stream, norm: norms[0], out: normed, tap: Some(tap) });
        r.push(Op::LinearGlu { x: normed, gate, up, glu: Glu::Swish, out: gated });
        r.push(Op::LinearAdd { x: gated, weight: down, bias: None, gate: None, stream });
        r.push(Op::Norm { x: stream, norm: norms[1], out: normed, tap: None });
        let out = |weight, out| LinearOut { weight, bias: None, out };
        r.push(Op::Linear { x: normed, outs: vec![out(first, y1), out(second, y2)] });
        vec![tap, stream, y1, y2]
    })
}

fn glu(types: [DType; 2], n_in: usize, n_out: usize, glu: Glu) -> Case {
    let [first, second] = types;
    let name = format!("{first} and {second}, {n_in} to {n_out}, {glu:?}");
    let mut b = CaseBuilder::new(Kind::LinearGlu, Arithmetic::Gated(coarser(first, second)), name);
    // Large enough that the clamps of gate and up are reached now and then.
    let input = b.input(n_in, 4.0);
    let (gate, up) = (b.matrix(first, n_out, n_in), b.matrix(second, n_out, n_in));
    b.build(move |r| {
        let x = input.record(r);
        let out = r.act(n_out);
        r.push(Op::LinearGlu { x, gate, up, glu, out });
        vec![out]
    })
}
