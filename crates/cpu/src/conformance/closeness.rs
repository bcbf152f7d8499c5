//! How near a backend must be to the definitions, and the steps that both are fed.

use overdraft_formats::DType;
use overdraft_plan::{Backend, KvType};

use super::Failure;
use super::case::{Arithmetic, Case};
use super::invariance::DEEP_TREE;
use super::numbers::Random;
use super::session::{Order, Part, RowOutput, Session};
use crate::Cpu;

/// Distance from the definition over all outputs of a step, in units of the definition's root mean square.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Distance {
    pub rms: f64,
    pub max: f64,
}

impl Distance {
    fn of(got: &[RowOutput], want: &[RowOutput]) -> Self {
        let (mut squares, mut size, mut max, mut n) = (0.0f64, 0.0f64, 0.0f64, 0usize);
        for (got, want) in got.iter().flatten().zip(want.iter().flatten()) {
            let difference = (*got as f64 - *want as f64).abs();
            squares += difference * difference;
            size += *want as f64 * *want as f64;
            // `max` would drop a NaN.
            max = if difference.is_nan() { f64::INFINITY } else { max.max(difference) };
            n += 1;
        }
        let unit = (size / n.max(1) as f64).sqrt().max(1e-30);
        Self { rms: (squares / n.max(1) as f64).sqrt() / unit, max: max / unit }
    }

    fn worse_of(self, other: Self) -> Self {
        Self { rms: self.rms.max(other.rms), max: self.max.max(other.max) }
    }

    pub fn is_within(&self, bound: &Distance) -> bool {
        self.rms <= bound.rms && self.max <= bound.max
    }
}

/// The distances a backend promises.
#[derive(Clone, Copy, Debug)]
pub struct Tolerances {
    pub copy: Distance,
    pub elementwise: Distance,
    pub weights: fn(DType) -> Distance,
    pub attention: fn(KvType) -> Distance,
    pub recurrent: Distance,
}

impl Tolerances {
    /// The CPU backend: float activations for float weights, int8 in blocks of 32 for quantised ones.
    pub const CPU: Tolerances = Tolerances {
        copy: Distance { rms: 0.0, max: 0.0 },
        elementwise: ELEMENTWISE,
        weights: cpu_weights,
        attention: cpu_attention,
        recurrent: RECURRENT,
    };

    pub fn bound(&self, arithmetic: Arithmetic) -> Distance {
        match arithmetic {
            Arithmetic::Copy => self.copy,
            Arithmetic::Elementwise => self.elementwise,
            Arithmetic::Weights(dtype) => (self.weights)(dtype),
            // Both factors carry the error, and the largest products carry most of it.
            Arithmetic::Gated(dtype) => {
                let bound = (self.weights)(dtype);
                Distance { rms: 2.0 * bound.rms, max: 5.0 * bound.max }
            }
            // Errors of four products add up, and a gated one passes on more than its own.
            Arithmetic::Chain(dtype) => {
                let bound = (self.weights)(dtype);
                Distance { rms: 4.0 * bound.rms, max: 10.0 * bound.max }
            }
            Arithmetic::Attention(kv) => (self.attention)(kv),
            Arithmetic::Recurrent => self.recurrent,
        }
    }
}

/// Measured 0: the CPU runs these ops by their definitions. Other backends have exponentials of their own.
const ELEMENTWISE: Distance = Distance { rms: 1e-6, max: 1e-5 };
/// Measured 4.1e-7 and 7.3e-6.
const RECURRENT: Distance = Distance { rms: 1e-6, max: 2e-5 };

/// The same whatever the type, within a quarter: it is the rounding of activations, half a 127th of a block's largest
/// at most, and decoding adds nothing to it. Measured (rms, max): Q4_0 5.3e-3, 2.0e-2; Q4_1 7.5e-3, 2.1e-2; Q5_0
/// 6.7e-3, 2.6e-2; Q5_1 6.4e-3, 2.5e-2; Q8_0 5.4e-3, 2.1e-2; Q2_K 6.4e-3, 2.7e-2; Q3_K 5.5e-3, 2.4e-2; Q4_K 6.3e-3,
/// 2.0e-2; Q5_K 5.6e-3, 2.3e-2; Q6_K 6.0e-3, 2.2e-2; IQ4_NL 5.9e-3, 2.3e-2; IQ4_XS 6.1e-3, 2.7e-2; MXFP4 5.7e-3, 2.3e-2.
const INT8_ACTIVATIONS: Distance = Distance { rms: 8e-3, max: 3e-2 };
/// Measured 2.9e-7 and 1.4e-6, at 2880 inputs.
const FLOAT_ACTIVATIONS: Distance = Distance { rms: 5e-7, max: 3e-6 };

fn cpu_weights(dtype: DType) -> Distance {
    if dtype.is_quantised() { INT8_ACTIVATIONS } else { FLOAT_ACTIVATIONS }
}

fn cpu_attention(kv: KvType) -> Distance {
    match kv {
        KvType::F32 => Distance { rms: 1e-6, max: 2e-5 },
        // No worse: definition and backend keep the same half floats.
        KvType::F16 | KvType::Bf16 => Distance { rms: 1e-6, max: 2e-5 },
    }
}

/// A tree of nine drafts below a root, one path five deep.
const TREE: [usize; 9] = [0, 0, 0, 1, 1, 4, 6, 2, 7];

/// Feeds the case's steps to the backend and to the reference: its prompt in uneven chunks, rows of two sequences
/// apart and interleaved, single rows, a draft tree, and a deep one. Returns the largest distance of any step.
pub fn distance(case: &Case, backend: Box<dyn Backend>) -> Result<Distance, Failure> {
    let context = case.prompt + 256;
    let mut subject = Session::new(case, backend, 2, context)?;
    let mut reference = Session::new(case, Box::new(Cpu::reference()), 2, context)?;
    let mut random = Random::new(case.prompt as u64);
    let mut draw =
        |n: usize| -> Vec<u32> { (0..n).map(|_| random.below(Case::N_TOKENS as usize) as u32).collect() };
    let mut worst = Distance::default();
    let mut both = |parts: &[Part<'_>], order: Order| -> Result<(), Failure> {
        let (got, want) = (subject.feed(parts, order)?, reference.feed(parts, order)?);
        worst = worst.worse_of(Distance::of(&got.concat(), &want.concat()));
        Ok(())
    };
    let prompt = draw(case.prompt);
    for chunk in prompt.chunks(300) {
        both(&[Part::chain(0, chunk)], Order::Apart)?;
    }
    for (first, second, order) in [
        (1, 0, Order::Apart),
        (3, 17, Order::Interleaved),
        (64, 1, Order::Apart),
        (33, 40, Order::Interleaved),
    ]
    .into_iter()
    .filter(|(first, second, _)| first + second <= case.most_rows)
    {
        let (first, second) = (draw(first), draw(second));
        let parts = [Part::chain(0, &first), Part::chain(1, &second)];
        both(if second.is_empty() { &parts[..1] } else { &parts }, order)?;
    }
    // A prompt has no drafts.
    for _ in 0..if case.is_prompt { 0 } else { 3 } {
        let drafts = draw(1 + TREE.len());
        let plain = draw(1);
        let tree = Part { seq: 1, tokens: &drafts, draft_parents: &TREE };
        both(&[tree, Part::chain(0, &plain)], Order::Apart)?;
    }
    // As many rows of one sequence as backends may take together.
    let drafts = draw(1 + DEEP_TREE.len());
    if !case.is_prompt && drafts.len() <= case.most_rows {
        both(&[Part { seq: 1, tokens: &drafts, draft_parents: &DEEP_TREE }], Order::Apart)?;
    }
    Ok(worst)
}

/// The largest distance, or what is wrong with it.
pub fn check(case: &Case, backend: Box<dyn Backend>, tolerances: &Tolerances) -> Result<Distance, Failure> {
    let found = distance(case, backend)?;
    let bound = tolerances.bound(case.arithmetic);
    if found.is_within(&bound) {
        Ok(found)
    } else {
        Err(Failure::TooFar { case: case.to_string(), found, bound })
    }
}
