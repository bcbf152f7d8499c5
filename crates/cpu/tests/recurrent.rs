//! The delta rule over long texts, extreme gates and every place of a draft tree on the grid.

use overdraft_cpu::Cpu;
use overdraft_cpu::conformance::{
    self, Arithmetic, Case, CaseBuilder, Kind, Order, Part, Random, RowOutput, Session,
};
use overdraft_plan::{Backend, KeyHeadRule, LayerState, Op, Recurrent, RecurrentState};

fn cpu(threads: usize) -> Box<dyn Backend> {
    Box::new(Cpu::new(threads))
}

/// One row's input to the recurrence, per value head (each with a key head of its own).
#[derive(Clone)]
struct Input {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    g: f32,
    beta: f32,
}

fn normalised(mut x: Vec<f32>, size: f32) -> Vec<f32> {
    let norm = x.iter().map(|v| v * v).sum::<f32>().sqrt();
    x.iter_mut().for_each(|v| *v *= size / norm);
    x
}

/// A plan of the recurrence alone, its inputs given: token t is row t of `heads[h]`.
fn case_of(heads: &[Vec<Input>]) -> Case {
    let (dk, dv) = (heads[0][0].k.len(), heads[0][0].v.len());
    let n = heads.len();
    let shape = RecurrentState { key_heads: n, value_heads: n, key_dim: dk, value_dim: dv };
    let mut b = CaseBuilder::new(Kind::Recurrent, Arithmetic::Recurrent, "given rows".into());
    let (mut prepared, mut gates) = (Vec::new(), Vec::new());
    for t in 0..heads[0].len() {
        heads.iter().for_each(|h| prepared.extend(&h[t].q));
        heads.iter().for_each(|h| prepared.extend(&h[t].k));
        heads.iter().for_each(|h| prepared.extend(&h[t].v));
        gates.extend(heads.iter().map(|h| h[t].g));
        gates.extend(heads.iter().map(|h| h[t].beta));
    }
    let (prepared, gates) = (b.input_of(&prepared, shape.conv_width()), b.input_of(&gates, 2 * n));
    b.layer(LayerState::Recurrent(shape));
    b.build(move |r| {
        let (prepared, gates) = (prepared.record(r), gates.record(r));
        let (delta, out) = (r.act(n * dv), r.act(n * dv));
        let rule = KeyHeadRule::Grouped;
        r.push(Op::Recurrent(Recurrent { prepared, preconv: prepared, gates, delta, out, rule, layer: 0 }));
        vec![out, delta]
    })
}

/// The recurrence as it is defined, token after token in `f64`: outputs and deltas of one head.
fn plainly(rows: &[Input]) -> Vec<(Vec<f64>, Vec<f64>)> {
    let (dk, dv) = (rows[0].k.len(), rows[0].v.len());
    let mut s = vec![vec![0.0f64; dv]; dk];
    let read = |s: &[Vec<f64>], x: &[f32], c: usize| -> f64 {
        s.iter().zip(x).map(|(row, x)| row[c] * *x as f64).sum()
    };
    rows.iter()
        .map(|row| {
            s.iter_mut().flatten().for_each(|x| *x *= (row.g as f64).exp());
            let delta: Vec<f64> =
                (0..dv).map(|c| row.beta as f64 * (row.v[c] as f64 - read(&s, &row.k, c))).collect();
            for (s, k) in s.iter_mut().zip(&row.k) {
                s.iter_mut().zip(&delta).for_each(|(s, d)| *s += *k as f64 * d);
            }
            ((0..dv).map(|c| read(&s, &row.q, c)).collect(), delta)
        })
        .collect()
}

/// Feeds tokens `0..n` in chunks; the first chunk is of `first` rows, to shift all others on the grid.
fn feed(case: &Case, backend: Box<dyn Backend>, n: usize, first: usize, chunk: usize) -> Vec<RowOutput> {
    let tokens: Vec<u32> = (0..n as u32).collect();
    let mut session = Session::new(case, backend, 1, n).unwrap();
    let mut outputs = Vec::new();
    let (head, rest) = tokens.split_at(first);
    for rows in std::iter::once(head).filter(|h| !h.is_empty()).chain(rest.chunks(chunk)) {
        outputs.extend(session.feed(&[Part::chain(0, rows)], Order::Apart).unwrap().remove(0));
    }
    outputs
}

#[test]
#[allow(clippy::excessive_precision, reason = "the digits the example was worked out to")]
fn the_worked_example_comes_out() {
    let rows = [
        ([1.0, 0.0], [3.0, 4.0], [1.0, 2.0], -1.948_153_968, 0.5),
        ([1.0, 1.0], [0.0, 1.0], [3.0, -1.0], -3.402_826_556, 0.880_797_078),
        ([0.0, 2.0], [1.0, 1.0], [0.5, 0.5], -0.948_153_968, 0.119_202_922),
    ];
    let rows = rows.map(|(q, k, v, g, beta)| Input {
        q: normalised(q.to_vec(), 0.5f32.sqrt()),
        k: normalised(k.to_vec(), 1.0),
        v: v.to_vec(),
        g,
        beta,
    });
    let want = [
        [0.212_131_924, 0.424_263_848, 0.5, 1.0],
        [1.326_979_884, -0.428_827_694, 2.630_666_396, -0.904_246_753],
        [0.710_840_606, -0.196_639_039, -0.027_072_412, 0.087_611_047],
    ];
    let case = case_of(&[rows.to_vec()]);
    for (name, backend) in [("fast", cpu(1)), ("reference", Box::new(Cpu::reference()))] {
        for (got, want) in feed(&case, backend, 3, 0, 3).iter().zip(want) {
            for (got, want) in got.iter().zip(want) {
                // The example normalises with 1e-6 under the root, which moves its numbers by up to 4e-7 of them.
                assert!((got - want).abs() < 2e-6, "{name}: {got} instead of {want}");
            }
        }
    }
}

/// Gates of one kind of text. Position, randomness -> (g, beta).
type Gates = fn(usize, &mut Random) -> (f32, f32);

const GATES: [(&str, Gates); 8] = [
    ("ordinary", |_, r| (-0.3 * r.unit(), r.unit())),
    ("hardly forgetting", |_, r| (-1e-6 * r.unit(), 0.5 * r.unit())),
    ("never forgetting", |_, r| (0.0, r.unit())),
    ("forgetting at once", |_, r| (-3.0 - 91.0 * r.unit(), r.unit())),
    ("alternating between keeping and dropping all", |t, r| {
        (if t.is_multiple_of(5) { -80.0 } else { -1e-5 }, r.unit())
    }),
    ("writing nothing", |_, r| (-0.05 * r.unit(), 1e-6 * r.unit())),
    ("writing all", |_, r| (-0.05 * r.unit(), 1.0)),
    ("stretches of each", |t, r| match t / 16 % 3 {
        0 => (-94.0, 1.0 - 1e-6),
        1 => (0.0, 1e-6),
        _ => (-0.5 * r.unit(), r.unit()),
    }),
];

#[test]
fn it_stays_within_1e_4_of_the_plain_recurrence_over_4000_tokens() {
    const N: usize = 4000;
    for (dk, dv) in [(16, 16), (64, 32)] {
        let heads: Vec<Vec<Input>> = GATES
            .iter()
            .map(|(_, gates)| {
                let mut random = Random::new(dk as u64);
                (0..N)
                    .map(|t| {
                        let (g, beta) = gates(t, &mut random);
                        Input {
                            q: normalised(random.gaussians(dk, 1.0), (dk as f32).sqrt().recip()),
                            k: normalised(random.gaussians(dk, 1.0), 1.0),
                            v: random.gaussians(dv, 1.0),
                            g,
                            beta,
                        }
                    })
                    .collect()
            })
            .collect();
        let case = case_of(&heads);
        // Rows in chunks, row by row, and in chunks that start anywhere on the grid: the same bits, so one is enough
        // to compare with the definition.
        let outputs = feed(&case, cpu(2), N, 0, 512);
        assert_eq!(outputs, feed(&case, cpu(1), N, 5, 61));
        let n_heads = heads.len();
        for (h, (name, _)) in GATES.iter().enumerate() {
            let (mut worst, mut squares) = (0.0f64, 0.0f64);
            for (t, (want, delta)) in plainly(&heads[h]).into_iter().enumerate() {
                let outs = &outputs[t][h * dv..(h + 1) * dv];
                let deltas = &outputs[t][(n_heads + h) * dv..(n_heads + h + 1) * dv];
                for (got, want) in outs.iter().zip(&want).chain(deltas.iter().zip(&delta)) {
                    worst = worst.max((*got as f64 - want).abs());
                }
                squares += want.iter().map(|x| x * x).sum::<f64>();
            }
            let rms = (squares / (N * dv) as f64).sqrt();
            eprintln!("{dk}x{dv} {name}: {worst:.1e} absolute, {:.1e} of the rms", worst / rms);
            assert!(worst < 1e-4, "{dk}x{dv}, {name}: {worst} off");
            assert!(worst < 1e-4 * rms, "{dk}x{dv}, {name}: {worst} off, outputs are of {rms}");
        }
    }
}

#[test]
fn two_sequences_interleaved_give_what_each_gives_alone() {
    for case in conformance::cases(Kind::Recurrent) {
        let mut random = Random::new(3);
        let mut draw =
            || -> Vec<u32> { (0..150).map(|_| random.below(Case::N_TOKENS as usize) as u32).collect() };
        let texts = [draw(), draw()];
        let alone = texts.each_ref().map(|text| {
            let mut session = Session::new(&case, cpu(1), 1, 150).unwrap();
            session.feed(&[Part::chain(0, text)], Order::Apart).unwrap().remove(0)
        });
        let mut session = Session::new(&case, cpu(2), 2, 150).unwrap();
        let mut together = [Vec::new(), Vec::new()];
        // One of them ahead of the other, so that they stand differently on the grid.
        together[0].extend(session.feed(&[Part::chain(0, &texts[0][..11])], Order::Apart).unwrap().remove(0));
        for (a, b) in texts[0][11..].chunks(20).zip(texts[1].chunks(20)) {
            let out = session.feed(&[Part::chain(0, a), Part::chain(1, b)], Order::Interleaved).unwrap();
            together.iter_mut().zip(out).for_each(|(t, o)| t.extend(o));
        }
        for (alone, together) in alone.iter().zip(&together) {
            assert!(together.len() >= 139 && alone[..together.len()] == together[..], "{case}");
        }
    }
}

#[test]
fn draft_trees_have_the_bits_of_plain_decoding_at_every_place_on_the_grid() {
    let cases = conformance::cases(Kind::Recurrent);
    let small = cases.iter().filter(|c| c.name.contains("heads of 16"));
    for case in small {
        conformance::check_trees(case, cpu(1), cpu(1), 0..=50).unwrap_or_else(|e| panic!("{e}"));
    }
}
