//! Moves and conversions.

use super::body::Body;
use super::module::type_bytes;
use super::names::special;
use super::statements::{Operand, Result};
use crate::code::{AnyReg, Lanes, Op, Space, Wide};
use crate::exec::window;
use crate::matrix::{f16_to_f32, f32_to_f16};

enum Form {
    Same(fn(&mut Lanes, &Lanes)),
    Wide(fn(&mut Wide, &Wide)),
    Widen(fn(&mut Wide, &Lanes)),
    Narrow(fn(&mut Lanes, &Wide)),
}

macro_rules! each {
    ($kind:path, |$a:ident| $e:expr) => {
        $kind(|d, a| {
            (0..32).for_each(|l| {
                let $a = a[l];
                d[l] = $e;
            })
        })
    };
}

/// From an integer of up to 32 bits, as the register has it, to what the type says.
macro_rules! from_int {
    ($kind:path, $from:expr, |$x:ident| $e:expr) => {
        match $from {
            "u8" => each!($kind, |a| {
                let $x = i64::from(a as u8);
                $e
            }),
            "s8" => each!($kind, |a| {
                let $x = i64::from(a as i8);
                $e
            }),
            "u16" => each!($kind, |a| {
                let $x = i64::from(a as u16);
                $e
            }),
            "s16" => each!($kind, |a| {
                let $x = i64::from(a as i16);
                $e
            }),
            "u32" => each!($kind, |a| {
                let $x = i64::from(a);
                $e
            }),
            "s32" => each!($kind, |a| {
                let $x = i64::from(a as i32);
                $e
            }),
            _ => return None,
        }
    };
}

fn f(x: u32) -> f32 {
    f32::from_bits(x)
}

fn d(x: u64) -> f64 {
    f64::from_bits(x)
}

fn to_bf16(x: f32) -> u32 {
    u32::from(half::bf16::from_f32(x).to_bits())
}

/// What `cvt` does, by how it rounds (and whether it keeps to 0 to 1), to which type and from which.
fn form(how: &[&str], to: &str, from: &str) -> Option<Form> {
    use Form::{Narrow, Same, Wide, Widen};
    let is_int = |t: &str| t.starts_with(['u', 's']);
    Some(match (how, to, from) {
        ([], "u64" | "s64", "u64" | "s64") => each!(Wide, |a| a),
        ([], "u32" | "s32", "u64" | "s64") => each!(Narrow, |a| a as u32),
        ([], "u16" | "s16", "u64" | "s64") => each!(Narrow, |a| a as u32 & 0xffff),
        ([], "u8" | "s8", "u64" | "s64") => each!(Narrow, |a| a as u32 & 0xff),
        ([], "u64" | "s64", from) if is_int(from) => from_int!(Widen, from, |x| x as u64),
        ([], "u32" | "s32", from) if is_int(from) => from_int!(Same, from, |x| x as u32),
        ([], "u16" | "s16", from) if is_int(from) => from_int!(Same, from, |x| x as u32 & 0xffff),
        ([], "u8" | "s8", from) if is_int(from) => from_int!(Same, from, |x| x as u32 & 0xff),
        (["rn"], "f32", "u64") => each!(Narrow, |a| (a as f32).to_bits()),
        (["rn"], "f32", "s64") => each!(Narrow, |a| (a as i64 as f32).to_bits()),
        (["rn"], "f32", from) if is_int(from) => from_int!(Same, from, |x| (x as f32).to_bits()),
        (["rn"], "f64", "u64") => each!(Wide, |a| (a as f64).to_bits()),
        (["rn"], "f64", "s64") => each!(Wide, |a| (a as i64 as f64).to_bits()),
        (["rn"], "f64", from) if is_int(from) => from_int!(Widen, from, |x| (x as f64).to_bits()),
        // Rust's conversions stay at the ends of the range, and give 0 for what is no number, as these do.
        (["rzi"], "u32", "f32") => each!(Same, |a| f(a) as u32),
        (["rzi"], "s32", "f32") => each!(Same, |a| f(a) as i32 as u32),
        (["rni"], "u32", "f32") => each!(Same, |a| f(a).round_ties_even() as u32),
        (["rni"], "s32", "f32") => each!(Same, |a| f(a).round_ties_even() as i32 as u32),
        (["rmi"], "s32", "f32") => each!(Same, |a| f(a).floor() as i32 as u32),
        (["rni"], "f32", "f32") => each!(Same, |a| f(a).round_ties_even().to_bits()),
        (["rmi"], "f32", "f32") => each!(Same, |a| f(a).floor().to_bits()),
        (["rpi"], "f32", "f32") => each!(Same, |a| f(a).ceil().to_bits()),
        (["rzi"], "f32", "f32") => each!(Same, |a| f(a).trunc().to_bits()),
        (["sat"], "f32", "f32") => {
            each!(Same, |a| if f(a) > 0.0 { f(a).min(1.0).to_bits() } else { 0 })
        }
        (["rzi"], "s32", "f64") => each!(Narrow, |a| d(a) as i32 as u32),
        (["rni"], "s32", "f64") => each!(Narrow, |a| d(a).round_ties_even() as i32 as u32),
        (["rzi"], "u64", "f64") => each!(Wide, |a| d(a) as u64),
        (["rzi"], "s64", "f64") => each!(Wide, |a| d(a) as i64 as u64),
        (["rn"], "f32", "f64") => each!(Narrow, |a| (d(a) as f32).to_bits()),
        ([], "f64", "f32") => each!(Widen, |a| f64::from(f(a)).to_bits()),
        ([], "f32", "f16") => each!(Same, |a| f16_to_f32(a as u16).to_bits()),
        (["rn"], "f16", "f32") => each!(Same, |a| u32::from(f32_to_f16(f(a)))),
        (["rn"], "f16", from) if is_int(from) && !from.ends_with("64") => {
            from_int!(Same, from, |x| u32::from(f32_to_f16(x as f32)))
        }
        (["rn"], "bf16", "f32") => each!(Same, |a| to_bf16(f(a))),
        ([], "f32", "bf16") => each!(Same, |a| a << 16),
        _ => return None,
    })
}

/// Two values in one register; the first operand is the upper half.
fn pair_form(to: &str) -> Option<fn(&mut Lanes, &Lanes, &Lanes)> {
    Some(match to {
        "f16x2" => |d, hi, lo| {
            (0..32).for_each(|l| {
                d[l] = u32::from(f32_to_f16(f(hi[l]))) << 16 | u32::from(f32_to_f16(f(lo[l])));
            });
        },
        "bf16x2" => |d, hi, lo| (0..32).for_each(|l| d[l] = to_bf16(f(hi[l])) << 16 | to_bf16(f(lo[l]))),
        _ => return None,
    })
}

const COPY: fn(&mut Lanes, &Lanes) = |d, a| *d = *a;
const WIDE_COPY: fn(&mut Wide, &Wide) = |d, a| *d = *a;

/// `mov.b32 {a, b}, c` and the like: parts of a register, the lowest first.
fn unpack<'a>(
    body: &mut Body<'_, '_, 'a>,
    parts: &[Operand<'a>],
    bytes: usize,
    from: &Operand<'a>,
) -> Result<()> {
    let is_wanted = |part: &Operand| !matches!(part, Operand::Name("_"));
    match (bytes, parts) {
        (4, [low, high]) => {
            let from = body.reg(from)?;
            for (part, f) in [
                (low, (|d, a| (0..32).for_each(|l| d[l] = a[l] & 0xffff)) as fn(&mut Lanes, &Lanes)),
                (high, |d, a| (0..32).for_each(|l| d[l] = a[l] >> 16)),
            ] {
                if is_wanted(part) {
                    let to = body.reg(part)?;
                    body.emit(Op::A1(f, to, from));
                }
            }
        }
        (8, [low, high]) => {
            let from = body.wide(from)?;
            for (part, f) in [
                (low, (|d, a| (0..32).for_each(|l| d[l] = a[l] as u32)) as fn(&mut Lanes, &Wide)),
                (high, |d, a| (0..32).for_each(|l| d[l] = (a[l] >> 32) as u32)),
            ] {
                if is_wanted(part) {
                    let to = body.reg(part)?;
                    body.emit(Op::Narrow(f, to, from));
                }
            }
        }
        (8, [a, b, c, d]) => {
            let from = body.wide(from)?;
            for (part, f) in [
                (a, (|d, a| (0..32).for_each(|l| d[l] = a[l] as u32 & 0xffff)) as fn(&mut Lanes, &Wide)),
                (b, |d, a| (0..32).for_each(|l| d[l] = (a[l] >> 16) as u32 & 0xffff)),
                (c, |d, a| (0..32).for_each(|l| d[l] = (a[l] >> 32) as u32 & 0xffff)),
                (d, |d, a| (0..32).for_each(|l| d[l] = (a[l] >> 48) as u32)),
            ] {
                let to = body.reg(part)?;
                body.emit(Op::Narrow(f, to, from));
            }
        }
        _ => return Err(format!("{} parts of {bytes} bytes", parts.len())),
    }
    Ok(())
}

fn pack<'a>(
    body: &mut Body<'_, '_, 'a>,
    to: &Operand<'a>,
    bytes: usize,
    parts: &[Operand<'a>],
) -> Result<()> {
    let join: fn(&mut Lanes, &Lanes, &Lanes) =
        |d, low, high| (0..32).for_each(|l| d[l] = low[l] & 0xffff | high[l] << 16);
    let join_wide: fn(&mut Wide, &Lanes, &Lanes) =
        |d, low, high| (0..32).for_each(|l| d[l] = u64::from(low[l]) | u64::from(high[l]) << 32);
    match (bytes, parts) {
        (4, [_, _]) => {
            let (to, parts) = (body.reg(to)?, body.regs(parts)?);
            body.emit(Op::A2(join, to, parts));
        }
        (8, [_, _]) => {
            let (to, parts) = (body.wide(to)?, body.regs(parts)?);
            body.emit(Op::WidenProduct(join_wide, to, parts));
        }
        (8, [a, b, c, d]) => {
            let to = body.wide(to)?;
            let (low, high) = (body.new_reg(), body.new_reg());
            for (half, pair) in [(low, [a.clone(), b.clone()]), (high, [c.clone(), d.clone()])] {
                let pair = body.regs(&pair)?;
                body.emit(Op::A2(join, half, pair));
            }
            body.emit(Op::WidenProduct(join_wide, to, [low, high]));
        }
        _ => return Err(format!("{} parts of {bytes} bytes", parts.len())),
    }
    Ok(())
}

fn mov<'a>(body: &mut Body<'_, '_, 'a>, of: &str, to: &Operand<'a>, from: &Operand<'a>) -> Result<()> {
    let bytes = type_bytes(of)?;
    match (to, from) {
        (Operand::Several(parts), from) => return unpack(body, parts, bytes, from),
        (to, Operand::Several(parts)) => return pack(body, to, bytes, parts),
        _ => {}
    }
    if matches!(from, Operand::Name("%globaltimer" | "%clock64")) {
        let to = body.wide(to)?;
        body.emit(Op::Clock(to));
        return Ok(());
    }
    let op = match body.any(to, bytes)? {
        AnyReg::Reg(to) => Op::A1(COPY, to, body.reg(from)?),
        AnyReg::Wide(to) if matches!(from, Operand::Name(name) if special(name).is_some()) => {
            Op::Widen(|d, a| (0..32).for_each(|l| d[l] = u64::from(a[l])), to, body.reg(from)?)
        }
        AnyReg::Wide(to) => Op::W1(WIDE_COPY, to, body.wide(from)?),
    };
    body.emit(op);
    Ok(())
}

/// Between an address in its own space and one that says which space it is in.
fn cvta<'a>(
    body: &mut Body<'_, '_, 'a>,
    parts: &[&str],
    to: &Operand<'a>,
    from: &Operand<'a>,
) -> Result<bool> {
    let (is_to, space) = match parts {
        ["to", space, "u64"] => (true, *space),
        [space, "u64"] => (false, *space),
        _ => return Ok(false),
    };
    let space = match space {
        "global" => Space::Global,
        "shared" => Space::Shared,
        "local" => Space::Local,
        "param" => Space::Param,
        _ => return Ok(false),
    };
    let (to, from) = (body.wide(to)?, body.wide(from)?);
    let window = window(space);
    let window = body.wide_constant(if is_to { window.wrapping_neg() } else { window });
    body.emit(Op::W2(|d, a, b| (0..32).for_each(|l| d[l] = a[l].wrapping_add(b[l])), to, [from, window]));
    Ok(true)
}

/// Whether it is one of these.
pub(super) fn lower<'a>(body: &mut Body<'_, '_, 'a>, parts: &[&str], o: &[Operand<'a>]) -> Result<bool> {
    match (parts, o) {
        (["mov", "pred"], _) => return Ok(false),
        (["mov", of], [to, from]) => mov(body, of, to, from)?,
        (["cvta", parts @ ..], [to, from]) => return cvta(body, parts, to, from),
        (["cvt", "rn", to_type, "f32"], [to, high, low]) => {
            let Some(f) = pair_form(to_type) else { return Ok(false) };
            let (to, from) = (body.reg(to)?, body.regs(&[high.clone(), low.clone()])?);
            body.emit(Op::A2(f, to, from));
        }
        (["cvt", how @ .., to_type, from_type], [to, from]) => {
            let Some(form) = form(how, to_type, from_type) else { return Ok(false) };
            let op = match form {
                Form::Same(f) => Op::A1(f, body.reg(to)?, body.reg(from)?),
                Form::Wide(f) => Op::W1(f, body.wide(to)?, body.wide(from)?),
                Form::Widen(f) => Op::Widen(f, body.wide(to)?, body.reg(from)?),
                Form::Narrow(f) => Op::Narrow(f, body.reg(to)?, body.wide(from)?),
            };
            body.emit(op);
        }
        _ => return Ok(false),
    }
    Ok(true)
}
