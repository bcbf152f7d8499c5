//! Products with weight matrices: on the fast kernels where they hold all of an op's matrices, else on weights as files
//! hold them.

use overdraft_plan::{Act, Glu, LinearOut, MatrixId, Op, VectorId};

use super::folded_norm::FoldedNorm;
use super::{Cx, glu_params, kernel_params, prompt_linear};
use crate::driver::Result;
use crate::linear::{Epilogue, ImageShape, Input, Linear, LinearKernels, MAX_CHAIN, Part, Undivided};
use crate::weights::RawView;

/// `MAX_PARTS` of `linear_simple.cu`.
const MAX_PARTS: usize = 8;
/// `TILE_ROWS` of `dot.cuh`.
const TILE_ROWS: usize = 8;
/// Outputs of a block: a warp each.
const OUTPUTS: usize = 8;

#[repr(C)]
#[derive(Clone, Copy)]
struct RawPart {
    weight: RawView,
    bias: u64,
    out: u64,
    first_output: u32,
    pad: u32,
}

impl RawPart {
    const NONE: Self = Self { weight: RawView::NONE, bias: 0, out: 0, first_output: 0, pad: 0 };
}

kernel_params!(LinearSimple {
    n_rows: u64,
    x: u64,
    gate: u64,
    cols: u32,
    n_parts: u32,
    n_outputs: u32,
    kind: u32,
    glu_kind: u32,
    alpha: f32,
    limit: f32,
    pad: u32,
    parts: [RawPart; MAX_PARTS],
});

const STORE: u32 = 0;
const ADD: u32 = 1;
const GLU: u32 = 2;

fn params(cx: &Cx<'_>, x: Act, kind: u32) -> LinearSimple {
    LinearSimple {
        n_rows: cx.count(x),
        x: cx.act(x),
        gate: 0,
        cols: cx.width(x) as u32,
        n_parts: 1,
        n_outputs: 0,
        kind,
        glu_kind: 0,
        alpha: 0.0,
        limit: 0.0,
        pad: 0,
        parts: [RawPart::NONE; MAX_PARTS],
    }
}

fn launch_simple(cx: &Cx<'_>, x: Act, params: &LinearSimple) -> Result<()> {
    let grid =
        [(params.n_outputs as usize).div_ceil(OUTPUTS), (cx.capacity(x) as usize).div_ceil(TILE_ROWS), 1];
    cx.launch(("linear_simple", "linear_simple"), grid, 256, 0, params)
}

fn part(cx: &Cx<'_>, weight: MatrixId, bias: Option<VectorId>, out: Act, first_output: u32) -> RawPart {
    let weight = cx.weights.raw(weight);
    RawPart { weight, bias: cx.weights.opt_vector(bias), out: cx.act(out), first_output, pad: 0 }
}

/// A linear op whose matrices the fast kernels hold.
pub(super) struct Held {
    pub(super) x: Act,
    pub(super) parts: Vec<Part>,
    pub(super) epilogue: Epilogue,
    /// Of a gated pair.
    out: Option<Act>,
}

pub(super) fn held(cx: &Cx<'_>, op: &Op) -> Option<Held> {
    let part = |weight: MatrixId, bias: Option<VectorId>, out: Act| {
        let weight = cx.weights.handle(weight)?;
        Some(Part { weight, bias: cx.weights.opt_vector(bias), out: cx.act(out) })
    };
    match op {
        Op::Linear { x, outs } => {
            let parts = outs.iter().map(|o| part(o.weight, o.bias, o.out)).collect::<Option<_>>()?;
            Some(Held { x: *x, parts, epilogue: Epilogue::Store, out: None })
        }
        Op::LinearAdd { x, weight, bias, gate, stream } => {
            let epilogue = Epilogue::Add { gate: cx.opt_act(*gate), norm: None };
            Some(Held { x: *x, parts: vec![part(*weight, *bias, *stream)?], epilogue, out: None })
        }
        Op::LinearGlu { x, gate, up, glu, out } => {
            let (kind, alpha, limit) = glu_params(*glu);
            let parts = vec![part(*gate, None, *out)?, part(*up, None, *out)?];
            let epilogue = Epilogue::Glu { kind, alpha, limit, image: (0, ImageShape::default()) };
            Some(Held { x: *x, parts, epilogue, out: Some(*out) })
        }
        _ => None,
    }
}

/// The linear op that `ops` begins with, a norm behind it that it makes, and more that follow from it; says how many ops that were. Rows that are written and
/// rows of prompts run on the fast kernels for each, or all rows as files hold weights.
pub(super) fn launch(cx: &Cx<'_>, ops: &[Op]) -> Result<usize> {
    let op = &ops[0];
    if let (Some(fast), Some(held)) = (cx.weights.fast(), held(cx, op)) {
        return launch_held(cx, fast, ops, held);
    }
    cx.forget_images(op);
    match op {
        Op::Linear { x, outs } => linear(cx, *x, outs),
        Op::LinearAdd { x, weight, bias, gate, stream } => {
            linear_add(cx, *x, (*weight, *bias), *gate, *stream)
        }
        Op::LinearGlu { x, gate, up, glu, out } => linear_glu(cx, *x, [*gate, *up], *glu, *out),
        _ => unreachable!("called for linear ops"),
    }?;
    Ok(1)
}

/// With those behind it that read what the one before makes, as long as no rows are a prompt's.
fn launch_held(cx: &Cx<'_>, fast: &dyn LinearKernels, ops: &[Op], first: Held) -> Result<usize> {
    let (mut chain, mut taken, mut next) = (Vec::new(), 0, Some(first));
    while let Some(held) = next.take() {
        let op = &ops[taken];
        cx.forget_images(op);
        let norm = FoldedNorm::at(cx, &ops[taken..]);
        chain.extend(written(cx, fast, op, &held, norm.as_ref())?);
        taken += 1 + usize::from(norm.is_some());
        if prompt_linear::is_apart(cx.plan(), op) {
            fast.launch(cx.gpu, &chain)?;
            prompt_linear::launch(cx, fast, op, &held)?;
            norm.map_or(Ok(()), |norm| norm.launch(cx, fast))?;
            return Ok(taken);
        }
        let made =
            norm.map(|norm| norm.out()).or(held.out.filter(|out| cx.imaged.borrow().made.contains(out)));
        let follows = |op: &Op| made.is_some() && prompt_linear::input(op) == made && !has_gate(op);
        if chain.len() < MAX_CHAIN {
            next = ops.get(taken).filter(|op| follows(op)).and_then(|op| self::held(cx, op));
        }
    }
    fast.launch(cx.gpu, &chain)?;
    Ok(taken)
}

/// What multiplies the sum may be made by an op before, which nobody waits for in one launch with it.
fn has_gate(op: &Op) -> bool {
    matches!(op, Op::LinearAdd { gate: Some(_), .. })
}

/// The op's written rows, if there can be any.
fn written(
    cx: &Cx<'_>,
    fast: &dyn LinearKernels,
    op: &Op,
    held: &Held,
    norm: Option<&FoldedNorm>,
) -> Result<Option<Linear>> {
    let rows = cx.rows_of_op(op, held.x, fast);
    if rows.bucket == 0 {
        return Ok(None);
    }
    let input = imaged(cx, fast, held.x)?;
    let mut epilogue = held.epilogue;
    // Of all rows or none: what prompts make is not in it.
    let makes_image = fast.makes_image(&held.parts, &epilogue) && rows.bucket == cx.capacity(held.x) as usize;
    match (&mut epilogue, held.out, norm) {
        (Epilogue::Glu { image, .. }, Some(out), _) if makes_image => *image = cx.image_to_make(out),
        (Epilogue::Add { norm, .. }, _, Some(folded)) => *norm = Some(folded.next(cx, fast, rows)),
        _ => {}
    }
    Ok(Some(Linear { input: Input { rows, ..input }, parts: held.parts.clone(), epilogue }))
}

/// The input with an image of what it holds now.
fn imaged(cx: &Cx<'_>, fast: &dyn LinearKernels, x: Act) -> Result<Input> {
    let rows = cx.rows_of_image(x, fast);
    let at = |place: Option<usize>| place.map_or(0, |at| cx.base + at as u64);
    let image = at(cx.memory.image(x));
    let mut images = cx.imaged.borrow_mut();
    let eps = images.undivided.iter().find(|(act, _)| *act == x).map(|(_, eps)| *eps);
    let undivided = eps.map(|eps| Undivided { squares: at(cx.memory.squares(x)), eps });
    let input = Input { x: cx.act(x), image, cols: cx.width(x), rows, undivided };
    if image != 0 && !images.made.contains(&x) {
        fast.make_image(cx.gpu, &input)?;
        images.made.push(x);
    }
    Ok(input)
}

/// All outputs of one input in one launch.
fn linear(cx: &Cx<'_>, x: Act, outs: &[LinearOut]) -> Result<()> {
    for outs in outs.chunks(MAX_PARTS) {
        let mut params = params(cx, x, STORE);
        params.n_parts = outs.len() as u32;
        for (place, out) in params.parts.iter_mut().zip(outs) {
            *place = part(cx, out.weight, out.bias, out.out, params.n_outputs);
            params.n_outputs += place.weight.rows;
        }
        launch_simple(cx, x, &params)?;
    }
    Ok(())
}

fn linear_add(
    cx: &Cx<'_>,
    x: Act,
    (weight, bias): (MatrixId, Option<VectorId>),
    gate: Option<Act>,
    stream: Act,
) -> Result<()> {
    let mut params = params(cx, x, ADD);
    params.parts[0] = part(cx, weight, bias, stream, 0);
    params.n_outputs = params.parts[0].weight.rows;
    params.gate = cx.opt_act(gate);
    launch_simple(cx, x, &params)
}

fn linear_glu(cx: &Cx<'_>, x: Act, [gate, up]: [MatrixId; 2], glu: Glu, out: Act) -> Result<()> {
    let (kind, alpha, limit) = glu_params(glu);
    let mut params = params(cx, x, GLU);
    params.parts[0] = part(cx, gate, None, out, 0);
    params.parts[1] = part(cx, up, None, out, 0);
    params.n_parts = 2;
    params.n_outputs = params.parts[0].weight.rows;
    (params.glu_kind, params.alpha, params.limit) = (kind, alpha, limit);
    launch_simple(cx, x, &params)
}
