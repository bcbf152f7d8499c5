//! Instructions that compute from registers: which function of a lane each is.

use std::cmp::Ordering;

use super::body::Body;
use super::statements::{Operand, Result};
use crate::code::{AnyReg, Lanes, Mask, Op, Wide};
use crate::numbers::{add_toward_zero, f16x2, fma_downward, prmt};

/// A function of a lane for each form of operands.
enum Form {
    A1(fn(&mut Lanes, &Lanes)),
    A2(fn(&mut Lanes, &Lanes, &Lanes)),
    A3(fn(&mut Lanes, &Lanes, &Lanes, &Lanes)),
    A4(fn(&mut Lanes, [&Lanes; 4])),
    W1(fn(&mut Wide, &Wide)),
    W2(fn(&mut Wide, &Wide, &Wide)),
    W3(fn(&mut Wide, &Wide, &Wide, &Wide)),
    WShift(fn(&mut Wide, &Wide, &Lanes)),
    WidenProduct(fn(&mut Wide, &Lanes, &Lanes)),
    Narrow(fn(&mut Lanes, &Wide)),
    Carry(fn(&mut Lanes, &Lanes, &Lanes, &Lanes, &mut Mask, Mask)),
    P2(fn(Mask, Mask) -> Mask),
}

macro_rules! a1 {
    (|$a:ident| $e:expr) => {
        Form::A1(|d, a| {
            (0..32).for_each(|l| {
                let $a = a[l];
                d[l] = $e;
            })
        })
    };
}
macro_rules! a2 {
    (|$a:ident, $b:ident| $e:expr) => {
        Form::A2(|d, a, b| {
            (0..32).for_each(|l| {
                let ($a, $b) = (a[l], b[l]);
                d[l] = $e;
            })
        })
    };
}
macro_rules! a3 {
    (|$a:ident, $b:ident, $c:ident| $e:expr) => {
        Form::A3(|d, a, b, c| {
            (0..32).for_each(|l| {
                let ($a, $b, $c) = (a[l], b[l], c[l]);
                d[l] = $e;
            })
        })
    };
}
macro_rules! f1 {
    (|$a:ident| $e:expr) => {
        a1!(|x| {
            let $a = f32::from_bits(x);
            f32::to_bits($e)
        })
    };
}
macro_rules! f2 {
    (|$a:ident, $b:ident| $e:expr) => {
        a2!(|x, y| {
            let ($a, $b) = (f32::from_bits(x), f32::from_bits(y));
            f32::to_bits($e)
        })
    };
}
macro_rules! f3 {
    (|$a:ident, $b:ident, $c:ident| $e:expr) => {
        a3!(|x, y, z| {
            let ($a, $b, $c) = (f32::from_bits(x), f32::from_bits(y), f32::from_bits(z));
            f32::to_bits($e)
        })
    };
}
macro_rules! w1 {
    (|$a:ident| $e:expr) => {
        Form::W1(|d, a| {
            (0..32).for_each(|l| {
                let $a = a[l];
                d[l] = $e;
            })
        })
    };
}
macro_rules! w2 {
    (|$a:ident, $b:ident| $e:expr) => {
        Form::W2(|d, a, b| {
            (0..32).for_each(|l| {
                let ($a, $b) = (a[l], b[l]);
                d[l] = $e;
            })
        })
    };
}
macro_rules! d1 {
    (|$a:ident| $e:expr) => {
        w1!(|x| {
            let $a = f64::from_bits(x);
            f64::to_bits($e)
        })
    };
}
macro_rules! d2 {
    (|$a:ident, $b:ident| $e:expr) => {
        w2!(|x, y| {
            let ($a, $b) = (f64::from_bits(x), f64::from_bits(y));
            f64::to_bits($e)
        })
    };
}
/// `|a, b, c, carry in|` to the sum, whose upper half is what is carried.
macro_rules! carry {
    ($carries:literal, |$a:ident, $b:ident, $c:ident, $in:ident| $e:expr) => {
        Form::Carry(|d, a, b, c, carry, active| {
            let mut out: Mask = 0;
            for l in 0..32 {
                let ($a, $b, $c, $in) =
                    (u64::from(a[l]), u64::from(b[l]), u64::from(c[l]), u64::from(*carry >> l & 1));
                let _ = ($a, $b, $c, $in);
                let sum: u64 = $e;
                d[l] = sum as u32;
                out |= u32::from(sum >> 32 & 1 != 0) << l;
            }
            if $carries {
                *carry = *carry & !active | out & active;
            }
        })
    };
}

fn low_bits(n: u32) -> u32 {
    if n >= 32 { !0 } else { (1 << n) - 1 }
}

/// What is nearer to nothing than the smallest normal number is nothing.
fn flushed(x: f32) -> f32 {
    if x.is_subnormal() { 0.0f32.copysign(x) } else { x }
}

fn smaller(a: f32, b: f32) -> f32 {
    // Of zeros the negative one, of a number and none the number.
    if a == b { f32::from_bits(a.to_bits() | b.to_bits()) } else { a.min(b) }
}

fn larger(a: f32, b: f32) -> f32 {
    if a == b { f32::from_bits(a.to_bits() & b.to_bits()) } else { a.max(b) }
}

fn form(opcode: &str) -> Option<Form> {
    Some(match opcode {
        "add.s32" | "add.u32" => a2!(|a, b| a.wrapping_add(b)),
        "sub.s32" | "sub.u32" => a2!(|a, b| a.wrapping_sub(b)),
        "add.s16" | "add.u16" => a2!(|a, b| a.wrapping_add(b) & 0xffff),
        "sub.s16" | "sub.u16" => a2!(|a, b| a.wrapping_sub(b) & 0xffff),
        "mul.lo.s32" | "mul.lo.u32" => a2!(|a, b| a.wrapping_mul(b)),
        "mul.lo.s16" | "mul.lo.u16" => a2!(|a, b| a.wrapping_mul(b) & 0xffff),
        "mul.hi.u32" => a2!(|a, b| ((u64::from(a) * u64::from(b)) >> 32) as u32),
        "mul.hi.s32" => a2!(|a, b| ((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32),
        "mad.lo.s32" | "mad.lo.u32" => a3!(|a, b, c| a.wrapping_mul(b).wrapping_add(c)),
        "div.u32" => a2!(|a, b| a.checked_div(b).unwrap_or(!0)),
        "div.u16" => a2!(|a, b| a.checked_div(b).unwrap_or(0xffff)),
        "rem.u16" => a2!(|a, b| a.checked_rem(b).unwrap_or(a)),
        "rem.u32" => a2!(|a, b| a.checked_rem(b).unwrap_or(a)),
        "div.s32" => a2!(|a, b| (a as i32).checked_div(b as i32).unwrap_or(-1) as u32),
        "rem.s32" => a2!(|a, b| (a as i32).checked_rem(b as i32).unwrap_or(0) as u32),
        "neg.s32" => a1!(|a| a.wrapping_neg()),
        "neg.s16" => a1!(|a| a.wrapping_neg() & 0xffff),
        "abs.s32" => a1!(|a| (a as i32).unsigned_abs()),
        "min.u32" => a2!(|a, b| a.min(b)),
        "max.u32" => a2!(|a, b| a.max(b)),
        "min.s32" => a2!(|a, b| (a as i32).min(b as i32) as u32),
        "max.s32" => a2!(|a, b| (a as i32).max(b as i32) as u32),
        "min.u16" => a2!(|a, b| a.min(b)),
        "max.u16" => a2!(|a, b| a.max(b)),
        "min.s16" => a2!(|a, b| u32::from((a as i16).min(b as i16) as u16)),
        "max.s16" => a2!(|a, b| u32::from((a as i16).max(b as i16) as u16)),
        "and.b32" | "and.b16" => a2!(|a, b| a & b),
        "or.b32" | "or.b16" => a2!(|a, b| a | b),
        "xor.b32" | "xor.b16" => a2!(|a, b| a ^ b),
        "not.b32" => a1!(|a| !a),
        "not.b16" => a1!(|a| !a & 0xffff),
        "shl.b32" => a2!(|a, b| a.checked_shl(b).unwrap_or(0)),
        "shr.u32" | "shr.b32" => a2!(|a, b| a.checked_shr(b).unwrap_or(0)),
        "shr.s32" => a2!(|a, b| (a as i32 >> b.min(31)) as u32),
        "shl.b16" => a2!(|a, b| a.checked_shl(b).unwrap_or(0) & 0xffff),
        "shr.u16" | "shr.b16" => a2!(|a, b| a.checked_shr(b).unwrap_or(0)),
        "shr.s16" => a2!(|a, b| u32::from((i32::from(a as i16) >> b.min(31)) as u16)),
        // Words of the pair `b:a`, shifted.
        "shf.l.wrap.b32" => a3!(|a, b, n| ((((u64::from(b) << 32) | u64::from(a)) << (n & 31)) >> 32) as u32),
        "shf.r.wrap.b32" => a3!(|a, b, n| (((u64::from(b) << 32) | u64::from(a)) >> (n & 31)) as u32),
        "prmt.b32" => a3!(|a, b, c| prmt(a, b, c)),
        "bfi.b32" => Form::A4(|d, [a, b, at, n]| {
            for l in 0..32 {
                let mask = low_bits(n[l] & 255).checked_shl(at[l] & 255).unwrap_or(0);
                d[l] = b[l] & !mask | a[l].checked_shl(at[l] & 255).unwrap_or(0) & mask;
            }
        }),
        "bfe.u32" => a3!(|a, at, n| a.checked_shr(at & 255).unwrap_or(0) & low_bits(n & 255)),
        // How far to shift so that the highest bit is at the top.
        "bfind.shiftamt.u32" => a1!(|a| if a == 0 { !0 } else { a.leading_zeros() }),
        "bfind.u32" => a1!(|a| if a == 0 { !0 } else { 31 - a.leading_zeros() }),
        "brev.b32" => a1!(|a| a.reverse_bits()),
        "clz.b32" => a1!(|a| a.leading_zeros()),
        "popc.b32" => a1!(|a| a.count_ones()),
        "copysign.f32" => a2!(|a, b| a & 1 << 31 | b & !(1 << 31)),
        "add.f32" | "add.rn.f32" => f2!(|a, b| a + b),
        "add.rz.f32" => f2!(|a, b| add_toward_zero(a, b)),
        "sub.f32" | "sub.rn.f32" => f2!(|a, b| a - b),
        "mul.f32" | "mul.rn.f32" => f2!(|a, b| a * b),
        "fma.rn.f32" => f3!(|a, b, c| a.mul_add(b, c)),
        "fma.rm.f32" => f3!(|a, b, c| fma_downward(a, b, c)),
        "div.rn.f32" | "div.approx.f32" | "div.full.f32" | "div.approx.ftz.f32" => f2!(|a, b| a / b),
        "rcp.rn.f32" | "rcp.approx.f32" => f1!(|a| 1.0 / a),
        "rcp.approx.ftz.f32" => f1!(|a| flushed(1.0 / flushed(a))),
        "sqrt.rn.f32" | "sqrt.approx.f32" => f1!(|a| a.sqrt()),
        "rsqrt.approx.f32" => f1!(|a| 1.0 / a.sqrt()),
        "rsqrt.approx.ftz.f32" => f1!(|a| flushed(1.0 / flushed(a).sqrt())),
        "ex2.approx.f32" => f1!(|a| a.exp2()),
        "ex2.approx.ftz.f32" => f1!(|a| flushed(flushed(a).exp2())),
        "lg2.approx.f32" | "lg2.approx.ftz.f32" => f1!(|a| a.log2()),
        "neg.f32" => a1!(|a| a ^ 1 << 31),
        "abs.f32" => a1!(|a| a & !(1 << 31)),
        "min.f32" => f2!(|a, b| smaller(a, b)),
        "max.f32" => f2!(|a, b| larger(a, b)),
        "fma.rn.f16x2" => a3!(|a, b, c| f16x2(a, b, c, |a, b, c| a * b + c)),
        "mul.rn.f16x2" | "mul.f16x2" => a2!(|a, b| f16x2(a, b, 0, |a, b, _| a * b)),
        "add.rn.f16x2" | "add.f16x2" => a2!(|a, b| f16x2(a, b, 0, |a, b, _| a + b)),
        "sub.rn.f16x2" | "sub.f16x2" => a2!(|a, b| f16x2(a, b, 0, |a, b, _| a - b)),
        "neg.f16x2" => a1!(|a| a ^ 0x8000_8000),

        "add.s64" | "add.u64" => w2!(|a, b| a.wrapping_add(b)),
        "sub.s64" | "sub.u64" => w2!(|a, b| a.wrapping_sub(b)),
        "mul.lo.s64" | "mul.lo.u64" => w2!(|a, b| a.wrapping_mul(b)),
        "mul.hi.u64" => w2!(|a, b| ((u128::from(a) * u128::from(b)) >> 64) as u64),
        "mad.lo.s64" | "mad.lo.u64" => Form::W3(|d, a, b, c| {
            (0..32).for_each(|l| d[l] = a[l].wrapping_mul(b[l]).wrapping_add(c[l]));
        }),
        "div.u64" => w2!(|a, b| a.checked_div(b).unwrap_or(!0)),
        "rem.u64" => w2!(|a, b| a.checked_rem(b).unwrap_or(a)),
        "neg.s64" => w1!(|a| a.wrapping_neg()),
        "min.u64" => w2!(|a, b| a.min(b)),
        "max.u64" => w2!(|a, b| a.max(b)),
        "min.s64" => w2!(|a, b| (a as i64).min(b as i64) as u64),
        "max.s64" => w2!(|a, b| (a as i64).max(b as i64) as u64),
        "and.b64" => w2!(|a, b| a & b),
        "or.b64" => w2!(|a, b| a | b),
        "xor.b64" => w2!(|a, b| a ^ b),
        "not.b64" => w1!(|a| !a),
        "shl.b64" => Form::WShift(|d, a, b| (0..32).for_each(|l| d[l] = a[l].checked_shl(b[l]).unwrap_or(0))),
        "shr.u64" | "shr.b64" => {
            Form::WShift(|d, a, b| (0..32).for_each(|l| d[l] = a[l].checked_shr(b[l]).unwrap_or(0)))
        }
        "shr.s64" => {
            Form::WShift(|d, a, b| (0..32).for_each(|l| d[l] = (a[l] as i64 >> b[l].min(63)) as u64))
        }
        "clz.b64" => Form::Narrow(|d, a| (0..32).for_each(|l| d[l] = a[l].leading_zeros())),
        "popc.b64" => Form::Narrow(|d, a| (0..32).for_each(|l| d[l] = a[l].count_ones())),
        "mul.wide.u32" => {
            Form::WidenProduct(|d, a, b| (0..32).for_each(|l| d[l] = u64::from(a[l]) * u64::from(b[l])))
        }
        "mul.wide.s32" => Form::WidenProduct(|d, a, b| {
            (0..32).for_each(|l| d[l] = (i64::from(a[l] as i32) * i64::from(b[l] as i32)) as u64);
        }),
        "mul.wide.u16" => a2!(|a, b| (a & 0xffff) * (b & 0xffff)),
        "mul.wide.s16" => a2!(|a, b| (i32::from(a as i16) * i32::from(b as i16)) as u32),
        "add.f64" | "add.rn.f64" => d2!(|a, b| a + b),
        "sub.f64" | "sub.rn.f64" => d2!(|a, b| a - b),
        "mul.f64" | "mul.rn.f64" => d2!(|a, b| a * b),
        "div.rn.f64" => d2!(|a, b| a / b),
        "fma.rn.f64" => Form::W3(|d, a, b, c| {
            for l in 0..32 {
                d[l] = f64::from_bits(a[l]).mul_add(f64::from_bits(b[l]), f64::from_bits(c[l])).to_bits();
            }
        }),
        "neg.f64" => d1!(|a| -a),
        "abs.f64" => d1!(|a| a.abs()),
        "sqrt.rn.f64" => d1!(|a| a.sqrt()),
        // Only the upper word is given; what follows it makes it exact.
        "rcp.approx.ftz.f64" => d1!(|a| f64::from_bits((1.0 / a).to_bits() & !0xffff_ffff)),

        "add.cc.u32" | "add.cc.s32" => carry!(true, |a, b, c, carry| a + b),
        "addc.cc.u32" | "addc.cc.s32" => carry!(true, |a, b, c, carry| a + b + carry),
        "addc.u32" | "addc.s32" => carry!(false, |a, b, c, carry| a + b + carry),
        "sub.cc.u32" | "sub.cc.s32" => carry!(true, |a, b, c, carry| a.wrapping_sub(b)),
        "subc.cc.u32" | "subc.cc.s32" => carry!(true, |a, b, c, carry| a.wrapping_sub(b + carry)),
        "subc.u32" | "subc.s32" => carry!(false, |a, b, c, carry| a.wrapping_sub(b + carry)),
        "mad.lo.cc.u32" => carry!(true, |a, b, c, carry| ((a * b) & 0xffff_ffff) + c),
        "madc.lo.cc.u32" => carry!(true, |a, b, c, carry| ((a * b) & 0xffff_ffff) + c + carry),
        "madc.hi.cc.u32" => carry!(true, |a, b, c, carry| ((a * b) >> 32) + c + carry),
        "madc.hi.u32" => carry!(false, |a, b, c, carry| ((a * b) >> 32) + c + carry),

        "and.pred" => Form::P2(|a, b| a & b),
        "or.pred" => Form::P2(|a, b| a | b),
        "xor.pred" => Form::P2(|a, b| a ^ b),
        "not.pred" => Form::P2(|a, _| !a),
        "mov.pred" => Form::P2(|a, _| a),
        _ => return None,
    })
}

macro_rules! compare {
    ($kind:path, |$x:ident, $y:ident| $value:expr, $order:expr) => {
        match $order {
            "eq" => $kind(|a, b| {
                mask(|l| {
                    let ($x, $y) = (a[l], b[l]);
                    let (x, y) = $value;
                    x == y
                })
            }),
            "ne" => $kind(|a, b| {
                mask(|l| {
                    let ($x, $y) = (a[l], b[l]);
                    let (x, y) = $value;
                    x != y
                })
            }),
            "lt" | "lo" => $kind(|a, b| {
                mask(|l| {
                    let ($x, $y) = (a[l], b[l]);
                    let (x, y) = $value;
                    x < y
                })
            }),
            "le" | "ls" => $kind(|a, b| {
                mask(|l| {
                    let ($x, $y) = (a[l], b[l]);
                    let (x, y) = $value;
                    x <= y
                })
            }),
            "gt" | "hi" => $kind(|a, b| {
                mask(|l| {
                    let ($x, $y) = (a[l], b[l]);
                    let (x, y) = $value;
                    x > y
                })
            }),
            "ge" | "hs" => $kind(|a, b| {
                mask(|l| {
                    let ($x, $y) = (a[l], b[l]);
                    let (x, y) = $value;
                    x >= y
                })
            }),
            _ => return None,
        }
    };
}

/// Floats: `ne` is of numbers only, and those that end in `u` are true where one is no number.
macro_rules! compare_floats {
    ($kind:path, $float:ty, $order:expr) => {{
        macro_rules! by {
            ($meets:ident, $is:expr) => {
                $kind(|a, b| {
                    mask(|l| <$float>::from_bits(a[l]).partial_cmp(&<$float>::from_bits(b[l])).$meets($is))
                })
            };
        }
        match $order {
            "eq" => by!(is_some_and, Ordering::is_eq),
            "ne" => by!(is_some_and, Ordering::is_ne),
            "lt" => by!(is_some_and, Ordering::is_lt),
            "le" => by!(is_some_and, Ordering::is_le),
            "gt" => by!(is_some_and, Ordering::is_gt),
            "ge" => by!(is_some_and, Ordering::is_ge),
            "equ" => by!(is_none_or, Ordering::is_eq),
            "neu" => by!(is_none_or, Ordering::is_ne),
            "ltu" => by!(is_none_or, Ordering::is_lt),
            "leu" => by!(is_none_or, Ordering::is_le),
            "gtu" => by!(is_none_or, Ordering::is_gt),
            "geu" => by!(is_none_or, Ordering::is_ge),
            "num" => by!(is_some_and, |_| true),
            "nan" => by!(is_none_or, |_| false),
            _ => return None,
        }
    }};
}

enum Comparison {
    Narrow(fn(&Lanes, &Lanes) -> Mask),
    Wide(fn(&Wide, &Wide) -> Mask),
}

fn mask(is_true: impl Fn(usize) -> bool) -> Mask {
    (0..32).fold(0, |mask, l| mask | u32::from(is_true(l)) << l)
}

fn comparison(order: &str, of: &str) -> Option<Comparison> {
    use Comparison::{Narrow, Wide};
    Some(match of {
        "u32" | "b32" | "u16" | "b16" => compare!(Narrow, |x, y| (x, y), order),
        "s32" => compare!(Narrow, |x, y| (x as i32, y as i32), order),
        "s16" => compare!(Narrow, |x, y| (x as i16, y as i16), order),
        "u64" | "b64" => compare!(Wide, |x, y| (x, y), order),
        "s64" => compare!(Wide, |x, y| (x as i64, y as i64), order),
        "f32" => compare_floats!(Narrow, f32, order),
        "f64" => compare_floats!(Wide, f64, order),
        _ => return None,
    })
}

/// Whether it is one of these.
pub(super) fn lower<'a>(body: &mut Body<'_, '_, 'a>, parts: &[&str], o: &[Operand<'a>]) -> Result<bool> {
    let wrong = || format!("{} operands of `{}`", o.len(), parts.join("."));
    let op = match (parts, o) {
        (["setp", order, of], [to, a, b]) => {
            let to = body.plain_pred(to)?;
            match comparison(order, of) {
                Some(Comparison::Narrow(f)) => Op::Compare(f, to, [body.reg(a)?, body.reg(b)?]),
                Some(Comparison::Wide(f)) => Op::WCompare(f, to, [body.wide(a)?, body.wide(b)?]),
                None => return Ok(false),
            }
        }
        (["selp", of], [to, a, b, by]) => {
            let by = body.plain_pred(by)?;
            match body.any(to, super::module::type_bytes(of)?)? {
                AnyReg::Reg(to) => Op::Select(to, [body.reg(a)?, body.reg(b)?], by),
                AnyReg::Wide(to) => Op::WSelect(to, [body.wide(a)?, body.wide(b)?], by),
            }
        }
        (["bfi", "b64"], [to, a, b, at, n]) => Op::WInsert(
            body.wide(to)?,
            body.wides(&[a.clone(), b.clone()])?,
            body.regs(&[at.clone(), n.clone()])?,
        ),
        _ => {
            let Some(form) = form(&parts.join(".")) else { return Ok(false) };
            let (to, from) = o.split_first().ok_or_else(wrong)?;
            match form {
                Form::A1(f) => Op::A1(f, body.reg(to)?, body.regs::<1>(from)?[0]),
                Form::A2(f) => Op::A2(f, body.reg(to)?, body.regs(from)?),
                Form::A3(f) => Op::A3(f, body.reg(to)?, body.regs(from)?),
                Form::A4(f) => Op::A4(f, body.reg(to)?, body.regs(from)?),
                Form::W1(f) => Op::W1(f, body.wide(to)?, body.wides::<1>(from)?[0]),
                Form::W2(f) => Op::W2(f, body.wide(to)?, body.wides(from)?),
                Form::W3(f) => Op::W3(f, body.wide(to)?, body.wides(from)?),
                Form::WShift(f) => match from {
                    [a, by] => Op::WShift(f, body.wide(to)?, body.wide(a)?, body.reg(by)?),
                    _ => return Err(wrong()),
                },
                Form::WidenProduct(f) => Op::WidenProduct(f, body.wide(to)?, body.regs(from)?),
                Form::Narrow(f) => Op::Narrow(f, body.reg(to)?, body.wides::<1>(from)?[0]),
                Form::Carry(f) => {
                    let to = body.reg(to)?;
                    match from {
                        [a, b] => {
                            let (a, b) = (body.reg(a)?, body.reg(b)?);
                            Op::Carry(f, to, [a, b, a])
                        }
                        _ => Op::Carry(f, to, body.regs(from)?),
                    }
                }
                Form::P2(f) => {
                    let to = body.plain_pred(to)?;
                    let preds = from.iter().map(|o| body.plain_pred(o)).collect::<Result<Vec<_>>>()?;
                    match preds[..] {
                        [a] => Op::P2(f, to, [a, a]),
                        [a, b] => Op::P2(f, to, [a, b]),
                        _ => return Err(wrong()),
                    }
                }
            }
        }
    };
    body.emit(op);
    Ok(true)
}
