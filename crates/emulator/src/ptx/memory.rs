//! Loads, stores, atomics and copies.

use super::body::Body;
use super::module::type_bytes;
use super::statements::{Operand, Result};
use crate::code::{AnyReg, AtomicOp, Op, Reg, Space, Width};

fn space_of(part: &str) -> Option<Space> {
    Some(match part {
        "global" | "const" => Space::Global,
        "shared" | "shared::cta" | "shared::cluster" => Space::Shared,
        "local" => Space::Local,
        "param" => Space::Param,
        _ => return None,
    })
}

/// What a load or store says between its first and last part.
struct Access {
    space: Space,
    n: usize,
    /// Others may be waited for by reading again and again.
    is_message: bool,
}

fn access(parts: &[&str]) -> Result<Access> {
    let mut access = Access { space: Space::Generic, n: 1, is_message: false };
    for part in parts {
        match *part {
            "acquire" | "volatile" => access.is_message = true,
            "v2" => access.n = 2,
            "v4" => access.n = 4,
            "weak" | "relaxed" | "release" | "gpu" | "sys" | "cta" | "cluster" | "nc" | "cg" | "ca"
            | "cs" | "lu" | "L1::no_allocate" | "L1::evict_last" | "L1::evict_first" | "L2::128B"
            | "L2::256B" => {}
            part => access.space = space_of(part).ok_or(format!("`{part}` of an access is not known"))?,
        }
    }
    Ok(access)
}

fn width(body: &Body<'_, '_, '_>, reg: AnyReg, of: &str) -> Result<Width> {
    let is_short = matches!(reg, AnyReg::Reg(reg) if body.is_short(reg));
    Ok(Width { bytes: type_bytes(of)? as u8, is_signed: of.starts_with('s'), is_short })
}

fn registers<'a>(
    body: &mut Body<'_, '_, 'a>,
    operand: &Operand<'a>,
    access: &Access,
    of: &str,
) -> Result<Vec<AnyReg>> {
    let operands = match operand {
        Operand::Several(operands) => &operands[..],
        one => std::slice::from_ref(one),
    };
    if operands.len() != access.n {
        return Err(format!("{} registers for {}", operands.len(), access.n));
    }
    let bytes = type_bytes(of)?;
    operands.iter().map(|o| body.own(o, bytes)).collect()
}

fn is_float(of: &str) -> bool {
    of.starts_with('f')
}

/// A value between a call's argument and a register.
fn move_cell(body: &mut Body<'_, '_, '_>, to: AnyReg, from: AnyReg) -> Result<()> {
    let op = match (to, from) {
        (AnyReg::Reg(to), AnyReg::Reg(from)) => Op::A1(|d, a| *d = *a, to, from),
        (AnyReg::Wide(to), AnyReg::Wide(from)) => Op::W1(|d, a| *d = *a, to, from),
        _ => return Err("an argument is read by another size than it was written".into()),
    };
    body.emit(op);
    Ok(())
}

fn atomic<'a>(
    body: &mut Body<'_, '_, 'a>,
    parts: &[&str],
    old: Option<Reg>,
    o: &[Operand<'a>],
) -> Result<bool> {
    let op = match parts {
        [.., "add", "u32" | "s32"] => AtomicOp::AddU32,
        [.., "inc", "u32"] => AtomicOp::IncU32,
        [.., "or", "b32"] => AtomicOp::OrU32,
        [.., "add", "f32"] => AtomicOp::AddF32,
        _ => return Ok(false),
    };
    let [at, by] = o else { return Ok(false) };
    let space = parts.iter().find_map(|part| space_of(part)).unwrap_or(Space::Generic);
    let (at, by) = (body.place(at, space)?, body.reg(by)?);
    body.emit(Op::Atomic { op, old, at, by });
    Ok(true)
}

/// Whether it is one of these.
pub(super) fn lower<'a>(body: &mut Body<'_, '_, 'a>, parts: &[&str], o: &[Operand<'a>]) -> Result<bool> {
    match (parts, o) {
        (["ld", between @ .., of], [to, from]) => {
            let access = access(between)?;
            let to = registers(body, to, &access, of)?;
            if access.space == Space::Param
                && let Some(cell) = body.cell(from, type_bytes(of)?)?
            {
                move_cell(body, to[0], cell)?;
                return Ok(true);
            }
            let (from, width) = (body.place(from, access.space)?, width(body, to[0], of)?);
            body.emit(Op::Load { to, from, width });
            if access.is_message {
                body.emit(Op::Yield);
            }
        }
        (["st", "async", between @ .., of], [to, from, barrier]) if is_float(of) || *of == "u32" => {
            let n = if between.contains(&"v4") {
                4
            } else if between.contains(&"v2") {
                2
            } else {
                1
            };
            let from = registers(body, from, &Access { space: Space::Shared, n, is_message: false }, of)?;
            let from = from
                .into_iter()
                .map(|reg| match reg {
                    AnyReg::Reg(reg) => Ok(reg),
                    AnyReg::Wide(_) => Err("words are sent".to_string()),
                })
                .collect::<Result<_>>()?;
            let (to, barrier) = (body.place(to, Space::Shared)?, body.place(barrier, Space::Shared)?);
            body.emit(Op::StoreAsync { to, from, barrier });
        }
        (["st", between @ .., of], [to, from]) => {
            let access = access(between)?;
            let from = registers(body, from, &access, of)?;
            if access.space == Space::Param
                && let Some(cell) = body.cell(to, type_bytes(of)?)?
            {
                move_cell(body, cell, from[0])?;
                return Ok(true);
            }
            let (to, width) = (body.place(to, access.space)?, width(body, from[0], of)?);
            body.emit(Op::Store { to, from, width });
        }
        (["atom", ..], [old, rest @ ..]) => {
            let old = body.reg(old)?;
            return atomic(body, parts, Some(old), rest);
        }
        (["red", ..], rest) => return atomic(body, parts, None, rest),
        (
            ["cp", "async", "ca" | "cg", "shared" | "shared::cta", "global", ..],
            [to, from, Operand::Number(bytes), rest @ ..],
        ) => {
            let (to, from) = (body.place(to, Space::Shared)?, body.place(from, Space::Global)?);
            let read = rest.first().map(|o| body.reg(o)).transpose()?;
            body.emit(Op::CopyAsync { to, from, bytes: *bytes as u32, read });
        }
        (["cp", "async", "commit_group" | "wait_group" | "wait_all"], _) => body.emit(Op::Nothing),
        (["cp", "async", "mbarrier", "arrive", "noinc", ..], [at]) => {
            let at = body.place(at, Space::Shared)?;
            body.emit(Op::BarrierArriveAfterCopies { at });
        }
        // Behind the barrier there may be a hint for L2.
        (["cp", "async", "bulk", "shared::cluster", "global", ..], [to, from, bytes, barrier, ..]) => {
            let (to, from) = (body.place(to, Space::Shared)?, body.place(from, Space::Global)?);
            let (bytes, barrier) = (body.reg(bytes)?, body.place(barrier, Space::Shared)?);
            body.emit(Op::CopyBulk { to, from, bytes, barrier });
        }
        // How a copy treats L2, of which there is none.
        (["createpolicy", ..], [to, ..]) => {
            let (to, nothing) = (body.wide(to)?, body.wide_constant(0));
            body.emit(Op::W1(|d, a| *d = *a, to, nothing));
        }
        _ => return Ok(false),
    }
    Ok(true)
}
