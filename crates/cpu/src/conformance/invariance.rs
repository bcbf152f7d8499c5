//! A row's bits are its own: the same alone or in company, in any place, in a chain or a tree.

use overdraft_plan::{BUCKETS, Backend};

use super::Failure;
use super::case::Case;
use super::numbers::Random;
use super::session::{Order, Part, RowOutput, Session};

/// Rows of a step at most.
const MOST_ROWS: usize = BUCKETS[BUCKETS.len() - 1];
/// Sequences that share the steps.
const N_SEQS: usize = 4;

/// Each sequence's tokens.
fn streams(n: usize, len: usize) -> Vec<Vec<u32>> {
    let mut random = Random::new(77);
    (0..n).map(|_| (0..len).map(|_| random.below(Case::N_TOKENS as usize) as u32).collect()).collect()
}

fn same_bits(
    case: &Case,
    what: &dyn Fn() -> String,
    got: &RowOutput,
    alone: &RowOutput,
) -> Result<(), Failure> {
    assert_eq!(got.len(), alone.len(), "{case}: outputs of a row");
    match got.iter().zip(alone).position(|(g, a)| g.to_bits() != a.to_bits()) {
        None => Ok(()),
        Some(i) => Err(Failure::Bits {
            case: case.to_string(),
            situation: what(),
            element: i,
            got: got[i],
            alone: alone[i],
        }),
    }
}

/// Which rows of which sequences a step of `n` rows has: one sequence, or shares of several, in turn.
fn shares(n: usize, turn: usize) -> Vec<(usize, usize)> {
    let seq = |i: usize| (turn + i) % N_SEQS;
    let shares = match turn % 4 {
        0 => vec![(seq(0), n)],
        1 => vec![(seq(0), n / 2), (seq(1), n - n / 2)],
        2 => vec![(seq(0), 1), (seq(1), n - 1)],
        _ => vec![
            (seq(0), n / 3),
            (seq(1), n / 4),
            (seq(2), 1),
            (seq(3), (n - 1).saturating_sub(n / 3 + n / 4)),
        ],
    };
    shares.into_iter().filter(|s| s.1 > 0).collect()
}

/// Decodes four sequences row by row on `alone`; then feeds them to each of `together` in steps of `row_counts` rows,
/// shared out among the sequences in changing ways and orders.
pub fn check_company(
    case: &Case,
    alone: Box<dyn Backend>,
    together: Vec<Box<dyn Backend>>,
    row_counts: &[usize],
) -> Result<(), Failure> {
    let row_counts: Vec<usize> = row_counts.iter().copied().filter(|n| *n <= case.most_rows).collect();
    let mut lengths = [0; N_SEQS];
    for (turn, n) in row_counts.iter().enumerate() {
        shares(*n, turn).iter().for_each(|(seq, rows)| lengths[*seq] += rows);
    }
    let context = lengths.into_iter().max().unwrap_or(0);
    let tokens = streams(N_SEQS, context);
    let mut session = Session::new(case, alone, N_SEQS, context)?;
    let mut expected: Vec<Vec<RowOutput>> = vec![Vec::new(); N_SEQS];
    for seq in 0..N_SEQS {
        for token in &tokens[seq][..lengths[seq]] {
            let out = session.feed(&[Part::chain(seq, std::slice::from_ref(token))], Order::Apart)?;
            expected[seq].extend(out.into_iter().flatten());
        }
    }
    for backend in together {
        let name = backend.describe();
        let mut session = Session::new(case, backend, N_SEQS, context)?;
        let mut done = [0; N_SEQS];
        for (turn, n) in row_counts.iter().enumerate() {
            let shares = shares(*n, turn);
            let parts: Vec<Part<'_>> =
                shares.iter().map(|(s, rows)| Part::chain(*s, &tokens[*s][done[*s]..][..*rows])).collect();
            let order = if turn % 3 == 0 { Order::Apart } else { Order::Interleaved };
            let out = session.feed(&parts, order)?;
            for ((seq, rows), out) in shares.iter().zip(&out) {
                for (i, got) in out.iter().enumerate() {
                    let pos = done[*seq] + i;
                    let what = || format!("{name}, position {pos} of sequence {seq} in a step of {n} rows");
                    same_bits(case, &what, got, &expected[*seq][pos])?;
                }
                done[*seq] += rows;
            }
        }
    }
    Ok(())
}

/// Rows that are written and rows of a prompt in one step, each with the bits of a step of its own kind alone.
pub fn check_beside(case: &Case, make: &mut dyn FnMut() -> Box<dyn Backend>) -> Result<(), Failure> {
    assert!(case.is_prompt, "{case}: has no rows of prompts");
    let steps = [(1, 63), (7, 100), (40, 5), (8, 1), (33, 239), (64, 448)];
    let tokens = streams(2, steps.iter().map(|s| s.0.max(s.1)).sum());
    let mut together = Session::new(case, make(), 2, tokens[0].len())?;
    together.write_parts(Some(1));
    let mut written = Session::new(case, make(), 1, tokens[0].len())?;
    written.write_parts(None);
    let mut read = Session::new(case, make(), 1, tokens[0].len())?;
    let mut at = 0;
    for (first, second) in steps {
        let (first, second) = (&tokens[0][at..][..first], &tokens[1][at..][..second]);
        let out = together.feed(&[Part::chain(0, first), Part::chain(1, second)], Order::Apart)?;
        let alone = [
            written.feed(&[Part::chain(0, first)], Order::Apart)?.remove(0),
            read.feed(&[Part::chain(0, second)], Order::Apart)?.remove(0),
        ];
        for (kind, (out, alone)) in ["written", "of a prompt"].iter().zip(out.iter().zip(&alone)) {
            for (i, (got, alone)) in out.iter().zip(alone).enumerate() {
                let what = || format!("row {i} {kind} in a step of {} and {}", first.len(), second.len());
                same_bits(case, &what, got, alone)?;
            }
        }
        at += first.len().max(second.len());
    }
    Ok(())
}

/// A prompt of `len` rows fed whole, in chunks of 7, 16 and 64, and row by row.
pub fn check_chunks(
    case: &Case,
    make: &mut dyn FnMut() -> Box<dyn Backend>,
    len: usize,
) -> Result<(), Failure> {
    let tokens = &streams(1, len)[0];
    let mut expected: Vec<RowOutput> = Vec::new();
    for chunk in [1, 7, 16, 64, len.min(MOST_ROWS)] {
        let mut session = Session::new(case, make(), 1, len)?;
        let mut outputs = Vec::new();
        for rows in tokens.chunks(chunk) {
            outputs.extend(session.feed(&[Part::chain(0, rows)], Order::Apart)?.into_iter().flatten());
        }
        if expected.is_empty() {
            expected = outputs;
            continue;
        }
        for (pos, (got, alone)) in outputs.iter().zip(&expected).enumerate() {
            same_bits(case, &|| format!("position {pos} of a prompt in chunks of {chunk}"), got, alone)?;
        }
    }
    Ok(())
}

/// Parents (row 0 is the root) of a chain as deep as allowed with branches along it.
pub const DEEP_TREE: [usize; 31] = [
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 0, 0, 17, 3, 20, 20, 9, 15, 8, 25, 26, 12, 0, 29,
    30,
];

/// Every row of a tree below a root at each of `root_positions` has the bits of decoding its path alone, and so has
/// what follows once the path is committed; verifying twice gives the same bits; and decoding on plainly gives the
/// bits of never having verified.
pub fn check_trees(
    case: &Case,
    alone: Box<dyn Backend>,
    subject: Box<dyn Backend>,
    root_positions: impl Iterator<Item = usize>,
) -> Result<(), Failure> {
    let roots: Vec<usize> = root_positions.collect();
    let Some(last) = roots.iter().max() else { return Ok(()) };
    let context = last + 64;
    let tokens = &streams(1, context)[0];
    let drafts = &streams(2, DEEP_TREE.len())[1];
    let mut plain = Session::new(case, alone, 1, context)?;
    let mut trees = Session::new(case, subject, 1, context)?;
    let mut plainly: Vec<RowOutput> = Vec::new();
    for token in tokens {
        plainly.push(one(&mut plain, *token)?);
    }
    for root in roots {
        let rows: Vec<u32> = std::iter::once(tokens[root]).chain(drafts.iter().copied()).collect();
        let tree = Part { seq: 0, tokens: &rows, draft_parents: &DEEP_TREE };
        prefill(&mut trees, &tokens[..root])?;
        let out = trees.feed_and_forget(tree)?;
        for (i, (first, second)) in out.iter().zip(&trees.feed_and_forget(tree)?).enumerate() {
            same_bits(case, &|| format!("row {i} of a tree verified twice at {root}"), second, first)?;
        }
        for pos in root..root + 36 {
            let what = || format!("position {pos}, decoded plainly after verifying at {root}");
            same_bits(case, &what, &one(&mut trees, tokens[pos])?, &plainly[pos])?;
        }
        for leaf in (1..rows.len()).filter(|r| !DEEP_TREE.contains(r)) {
            let mut path = vec![leaf];
            while path[0] != 0 {
                path.insert(0, DEEP_TREE[path[0] - 1]);
            }
            prefill(&mut plain, &tokens[..root])?;
            for row in &path {
                let what = || format!("row {row} of a tree below position {root}");
                same_bits(case, &what, &out[*row], &one(&mut plain, rows[*row])?)?;
            }
            prefill(&mut trees, &tokens[..root])?;
            trees.feed_and_commit(tree, &path[1..])?;
            // The deepest path further than a grid, so that S is folded over what was committed.
            for token in &tokens[..if path.len() > 10 { 20 } else { 2 }] {
                let what = || format!("what follows path {path:?} committed at {root}");
                same_bits(case, &what, &one(&mut trees, *token)?, &one(&mut plain, *token)?)?;
            }
        }
    }
    Ok(())
}

/// Starts the session's only sequence again with these rows.
fn prefill(session: &mut Session<'_>, tokens: &[u32]) -> Result<(), Failure> {
    session.restart(0);
    for chunk in tokens.chunks(MOST_ROWS) {
        session.feed(&[Part::chain(0, chunk)], Order::Apart)?;
    }
    Ok(())
}

/// Decodes one row of the session's only sequence.
fn one(session: &mut Session<'_>, token: u32) -> Result<RowOutput, Failure> {
    Ok(session.feed(&[Part::chain(0, &[token])], Order::Apart)?.remove(0).remove(0))
}
