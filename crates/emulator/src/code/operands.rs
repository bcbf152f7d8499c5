//! Which registers an instruction reads and writes.

use super::{AnyReg, Op, Place, Reg, WideReg};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Reads,
    Writes,
}

/// Told each register of an instruction; those it reads before those it writes. Predicates are not told: they take no room.
pub(crate) trait Visitor {
    fn reg(&mut self, role: Role, reg: &mut Reg);
    fn wide(&mut self, role: Role, reg: &mut WideReg);

    fn any(&mut self, role: Role, reg: &mut AnyReg) {
        match reg {
            AnyReg::Reg(reg) => self.reg(role, reg),
            AnyReg::Wide(reg) => self.wide(role, reg),
        }
    }

    fn reads(&mut self, regs: &mut [Reg]) {
        regs.iter_mut().for_each(|reg| self.reg(Role::Reads, reg));
    }

    fn reads_wide(&mut self, regs: &mut [WideReg]) {
        regs.iter_mut().for_each(|reg| self.wide(Role::Reads, reg));
    }

    fn place(&mut self, place: &mut Place) {
        self.any(Role::Reads, &mut place.base);
    }
}

impl Op {
    pub(crate) fn visit(&mut self, v: &mut impl Visitor) {
        use Role::{Reads, Writes};
        match self {
            Op::A1(_, to, from) => {
                v.reg(Reads, from);
                v.reg(Writes, to);
            }
            Op::A2(_, to, from) => {
                v.reads(from);
                v.reg(Writes, to);
            }
            Op::A3(_, to, from) | Op::Carry(_, to, from) => {
                v.reads(from);
                v.reg(Writes, to);
            }
            Op::A4(_, to, from) => {
                v.reads(from);
                v.reg(Writes, to);
            }
            Op::W1(_, to, from) => {
                v.wide(Reads, from);
                v.wide(Writes, to);
            }
            Op::W2(_, to, from) => {
                v.reads_wide(from);
                v.wide(Writes, to);
            }
            Op::W3(_, to, from) => {
                v.reads_wide(from);
                v.wide(Writes, to);
            }
            Op::WShift(_, to, from, by) => {
                v.wide(Reads, from);
                v.reg(Reads, by);
                v.wide(Writes, to);
            }
            Op::WInsert(to, from, by) => {
                v.reads_wide(from);
                v.reads(by);
                v.wide(Writes, to);
            }
            Op::Widen(_, to, from) => {
                v.reg(Reads, from);
                v.wide(Writes, to);
            }
            Op::WidenProduct(_, to, from) => {
                v.reads(from);
                v.wide(Writes, to);
            }
            Op::Narrow(_, to, from) => {
                v.wide(Reads, from);
                v.reg(Writes, to);
            }
            Op::Compare(_, _, from) => v.reads(from),
            Op::WCompare(_, _, from) => v.reads_wide(from),
            Op::Select(to, from, _) => {
                v.reads(from);
                v.reg(Writes, to);
            }
            Op::WSelect(to, from, _) => {
                v.reads_wide(from);
                v.wide(Writes, to);
            }
            Op::Load { to, from, .. } => {
                v.place(from);
                to.iter_mut().for_each(|reg| v.any(Writes, reg));
            }
            Op::Store { to, from, .. } => {
                v.place(to);
                from.iter_mut().for_each(|reg| v.any(Reads, reg));
            }
            Op::Atomic { old, at, by, .. } => {
                v.place(at);
                v.reg(Reads, by);
                old.iter_mut().for_each(|old| v.reg(Writes, old));
            }
            Op::CopyAsync { to, from, read, .. } => {
                v.place(to);
                v.place(from);
                read.iter_mut().for_each(|read| v.reg(Reads, read));
            }
            Op::CopyBulk { to, from, bytes, barrier } => {
                v.place(to);
                v.place(from);
                v.place(barrier);
                v.reg(Reads, bytes);
            }
            Op::StoreAsync { to, from, barrier } => {
                v.place(to);
                v.place(barrier);
                v.reads(from);
            }
            Op::BarrierInit { at, count } => {
                v.place(at);
                v.reg(Reads, count);
            }
            Op::BarrierArrive { at, expected_bytes } => {
                v.place(at);
                expected_bytes.iter_mut().for_each(|bytes| v.reg(Reads, bytes));
            }
            Op::BarrierArriveAfterCopies { at } => v.place(at),
            Op::BarrierTry { at, parity, .. } => {
                v.place(at);
                v.reg(Reads, parity);
            }
            Op::Clock(to) => v.wide(Writes, to),
            Op::Barrier { id, threads, .. } => {
                v.reg(Reads, id);
                threads.iter_mut().for_each(|threads| v.reg(Reads, threads));
            }
            Op::MapRank { to, at, rank } => {
                v.reg(Reads, at);
                v.reg(Reads, rank);
                v.reg(Writes, to);
            }
            Op::WarpSync { mates } => v.reg(Reads, mates),
            Op::Shuffle { to, from, mates, .. } => {
                v.reads(from);
                v.reg(Reads, mates);
                v.reg(Writes, to);
            }
            Op::Ballot { to, mates, .. } => {
                v.reg(Reads, mates);
                v.reg(Writes, to);
            }
            Op::Vote { mates, .. } => v.reg(Reads, mates),
            Op::Redux { to, from, mates, .. } | Op::MatchAny { to, from, mates } => {
                v.reg(Reads, from);
                v.reg(Reads, mates);
                v.reg(Writes, to);
            }
            Op::Mma { to, a, b, c, .. } => {
                v.reads(a);
                v.reads(b);
                v.reads(c);
                to.iter_mut().for_each(|reg| v.reg(Writes, reg));
            }
            Op::Wgmma { sums, a, b, .. } => {
                v.reads(sums);
                v.reads(a);
                v.wide(Reads, b);
                sums.iter_mut().for_each(|reg| v.reg(Writes, reg));
            }
            Op::LoadMatrix { to, from, .. } => {
                v.place(from);
                to.iter_mut().for_each(|reg| v.reg(Writes, reg));
            }
            Op::StoreMatrix { to, from, .. } => {
                v.place(to);
                v.reads(from);
            }
            Op::P2(..)
            | Op::Branch(_)
            | Op::Exit
            | Op::Trap
            | Op::Nothing
            | Op::GridWait
            | Op::GridLaunch
            | Op::Yield
            | Op::ClusterArrive
            | Op::ClusterWait => {}
        }
    }
}
