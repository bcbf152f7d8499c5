//! What lanes, warps and blocks do together: barriers, exchanges of lanes, and matrices.

use super::body::Body;
use super::statements::{Operand, Result};
use crate::code::{BarrierWord, MmaForm, Op, Redux, Reg, Shuffle, Space, Vote};

fn list<'o, 'a>(operand: &'o Operand<'a>) -> Result<&'o [Operand<'a>]> {
    match operand {
        Operand::Several(operands) => Ok(operands),
        other => Err(format!("{other:?} is no list of registers")),
    }
}

fn barrier<'a>(body: &mut Body<'_, '_, 'a>, parts: &[&str], o: &[Operand<'a>]) -> Result<bool> {
    let (word, id, threads) = match (parts, o) {
        (["sync"], [id]) => (BarrierWord::Sync, id, None),
        (["sync"], [id, threads]) => (BarrierWord::Sync, id, Some(threads)),
        (["arrive"], [id, threads]) => (BarrierWord::Arrive, id, Some(threads)),
        (["red", "or", "pred"], [to, id, from]) => {
            let (to, from) = (body.plain_pred(to)?, body.plain_pred(from)?);
            (BarrierWord::Or { to, from }, id, None)
        }
        _ => return Ok(false),
    };
    let id = body.reg(id)?;
    let threads = threads.map(|o| body.reg(o)).transpose()?;
    body.emit(Op::Barrier { word, id, threads });
    Ok(true)
}

fn shared_barrier<'a>(body: &mut Body<'_, '_, 'a>, parts: &[&str], o: &[Operand<'a>]) -> Result<bool> {
    let op = match (parts, o) {
        (["init", ..], [at, count]) => {
            Op::BarrierInit { at: body.place(at, Space::Shared)?, count: body.reg(count)? }
        }
        (["arrive", "expect_tx", ..], [_token, at, bytes]) => {
            Op::BarrierArrive { at: body.place(at, Space::Shared)?, expected_bytes: Some(body.reg(bytes)?) }
        }
        (["arrive", ..], [_token, at]) => {
            Op::BarrierArrive { at: body.place(at, Space::Shared)?, expected_bytes: None }
        }
        (["try_wait" | "test_wait", "parity", ..], [to, at, parity]) => {
            let (to, at, parity) = (body.plain_pred(to)?, body.place(at, Space::Shared)?, body.reg(parity)?);
            body.emit(Op::BarrierTry { to, at, parity });
            return Ok(true);
        }
        _ => return Ok(false),
    };
    body.emit(op);
    Ok(true)
}

fn mma<'a>(body: &mut Body<'_, '_, 'a>, parts: &[&str], o: &[Operand<'a>]) -> Result<bool> {
    let form = match parts {
        ["m16n8k16", "row", "col", "f32", "f16", "f16", "f32"] => MmaForm::F16,
        ["m16n8k16", "row", "col", "f32", "bf16", "bf16", "f32"] => MmaForm::Bf16,
        ["m16n8k8", "row", "col", "f32", "tf32", "tf32", "f32"] => MmaForm::Tf32,
        _ => return Ok(false),
    };
    let [to, a, b, c] = o else { return Ok(false) };
    let (to, a, b, c) =
        (body.regs(list(to)?)?, body.regs(list(a)?)?, body.regs(list(b)?)?, body.regs(list(c)?)?);
    body.emit(Op::Mma { form, to, a, b, c });
    Ok(true)
}

/// `m64nNk16.f32.f16.f16 {sums}, {a}, b, adds, 1, 1, 0`: signs as they are, B by its columns.
fn wgmma<'a>(body: &mut Body<'_, '_, 'a>, parts: &[&str], o: &[Operand<'a>]) -> Result<bool> {
    let (
        [_shape, "f32", kind @ ("f16" | "bf16"), _],
        [sums, a, b, adds, Operand::Number(1), Operand::Number(1), Operand::Number(0)],
    ) = (parts, o)
    else {
        return Ok(false);
    };
    let sums = list(sums)?.iter().map(|o| body.reg(o)).collect::<Result<Vec<Reg>>>()?;
    let (a, b, adds) = (body.regs(list(a)?)?, body.wide(b)?, body.plain_pred(adds)?);
    body.emit(Op::Wgmma { is_bf16: *kind == "bf16", sums, a, b, adds });
    Ok(true)
}

/// Whether it is one of these.
pub(super) fn lower<'a>(body: &mut Body<'_, '_, 'a>, parts: &[&str], o: &[Operand<'a>]) -> Result<bool> {
    let op = match (parts, o) {
        (["bar", "warp", "sync"], [mates]) => Op::WarpSync { mates: body.reg(mates)? },
        (["bar", rest @ ..], o) => return barrier(body, rest, o),
        (["barrier", "cluster", "arrive", ..], []) => Op::ClusterArrive,
        (["barrier", "cluster", "wait", ..], []) => Op::ClusterWait,
        (["mbarrier", rest @ ..], o) => return shared_barrier(body, rest, o),
        (["mapa", "shared::cluster", "u32"], [to, at, rank]) => {
            Op::MapRank { to: body.reg(to)?, at: body.reg(at)?, rank: body.reg(rank)? }
        }
        (["griddepcontrol", "wait"], []) => Op::GridWait,
        (["griddepcontrol", "launch_dependents"], []) => Op::GridLaunch,
        // Every write is where all see it at once: nothing to order.
        (["membar" | "fence" | "setmaxnreg" | "discard" | "prefetch", ..], _)
        | (["wgmma", "fence" | "commit_group" | "wait_group", ..], _) => Op::Nothing,
        (["nanosleep", "u32"], _) => Op::Yield,
        (["shfl", "sync", kind, "b32"], [to, a, b, c, mates]) => {
            let kind = match *kind {
                "idx" => Shuffle::Index,
                "bfly" => Shuffle::Xor,
                "up" => Shuffle::Up,
                "down" => Shuffle::Down,
                _ => return Ok(false),
            };
            let (to, is_in_range) = match to {
                Operand::Both(to, pred) => (Operand::Name(to), Some(body.plain_pred(&Operand::Name(pred))?)),
                to => (to.clone(), None),
            };
            let from = body.regs(&[a.clone(), b.clone(), c.clone()])?;
            Op::Shuffle { kind, to: body.reg(&to)?, is_in_range, from, mates: body.reg(mates)? }
        }
        (["vote", "sync", "ballot", "b32"], [to, from, mates]) => {
            let (from, is_not) = body.pred(from)?;
            Op::Ballot { to: body.reg(to)?, from, is_not, mates: body.reg(mates)? }
        }
        (["vote", "sync", kind @ ("any" | "all"), "pred"], [to, from, mates]) => {
            let kind = if *kind == "any" { Vote::Any } else { Vote::All };
            let (from, is_not) = body.pred(from)?;
            Op::Vote { kind, to: body.plain_pred(to)?, from, is_not, mates: body.reg(mates)? }
        }
        (["redux", "sync", kind, "u32" | "b32"], [to, from, mates]) => {
            let kind = match *kind {
                "max" => Redux::Max,
                "min" => Redux::Min,
                "add" => Redux::Add,
                "or" => Redux::Or,
                "and" => Redux::And,
                "xor" => Redux::Xor,
                _ => return Ok(false),
            };
            Op::Redux { kind, to: body.reg(to)?, from: body.reg(from)?, mates: body.reg(mates)? }
        }
        (["match", "any", "sync", "b32"], [to, from, mates]) => {
            Op::MatchAny { to: body.reg(to)?, from: body.reg(from)?, mates: body.reg(mates)? }
        }
        (["mma", "sync", "aligned", rest @ ..], o) => return mma(body, rest, o),
        (["wgmma", "mma_async", "sync", "aligned", rest @ ..], o) => return wgmma(body, rest, o),
        (["ldmatrix", "sync", "aligned", "m8n8", _, rest @ ..], [to, from]) => Op::LoadMatrix {
            to: list(to)?.iter().map(|o| body.reg(o)).collect::<Result<_>>()?,
            from: body.place(from, Space::Shared)?,
            is_transposed: rest.contains(&"trans"),
        },
        (["stmatrix", "sync", "aligned", "m8n8", _, rest @ ..], [to, from]) => Op::StoreMatrix {
            to: body.place(to, Space::Shared)?,
            from: list(from)?.iter().map(|o| body.reg(o)).collect::<Result<_>>()?,
            is_transposed: rest.contains(&"trans"),
        },
        _ => return Ok(false),
    };
    body.emit(op);
    Ok(true)
}
