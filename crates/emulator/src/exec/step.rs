//! One instruction of a path.

use super::addresses::RANK_SHIFT;
use super::meeting::SharedBarrier;
use super::warp::{Around, State, Warp};
use crate::code::{ALL, BarrierWord, Lanes, Mask, Op, Reg, Wide, lanes_of};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    On,
    /// It is to be looked who goes on.
    Choose,
    /// Another warp.
    Yield,
}

/// Instructions that lanes do together: who is kept from it by a predicate goes on alone.
fn is_together(op: &Op) -> bool {
    matches!(
        op,
        Op::Barrier { .. }
            | Op::WarpSync { .. }
            | Op::Shuffle { .. }
            | Op::Ballot { .. }
            | Op::Vote { .. }
            | Op::Redux { .. }
            | Op::MatchAny { .. }
            | Op::ClusterArrive
            | Op::ClusterWait
            | Op::Mma { .. }
            | Op::Wgmma { .. }
            | Op::LoadMatrix { .. }
            | Op::StoreMatrix { .. }
    )
}

impl Warp {
    pub(super) fn step(&mut self, around: &mut Around<'_, '_>, i: usize) -> Result<Next, String> {
        let code = around.code;
        let at = self.paths[i].at;
        let instruction = &code.instructions[at];
        let mut lanes = self.paths[i].lanes;
        if let Some(guard) = instruction.guard {
            let pred = self.registers.pred(guard.pred);
            lanes &= if guard.is_not { !pred } else { pred };
            if lanes == 0 {
                self.paths[i].at += 1;
                return Ok(Next::On);
            }
            if lanes != self.paths[i].lanes && is_together(&instruction.op) {
                self.split(i, self.paths[i].lanes & !lanes, at + 1);
                return Ok(Next::Choose);
            }
        }
        let line = instruction.line;
        self.perform(around, i, lanes, &instruction.op).map_err(|e| format!("line {line}: {e}"))
    }

    fn perform(
        &mut self,
        around: &mut Around<'_, '_>,
        i: usize,
        lanes: Mask,
        op: &Op,
    ) -> Result<Next, String> {
        let code = around.code;
        let r = &mut self.registers;
        match op {
            Op::A1(f, to, a) => {
                let mut out: Lanes = [0; 32];
                f(&mut out, r.get(code, *a));
                r.set(*to, &out, lanes);
            }
            Op::A2(f, to, [a, b]) => {
                let mut out: Lanes = [0; 32];
                f(&mut out, r.get(code, *a), r.get(code, *b));
                r.set(*to, &out, lanes);
            }
            Op::A3(f, to, [a, b, c]) => {
                let mut out: Lanes = [0; 32];
                f(&mut out, r.get(code, *a), r.get(code, *b), r.get(code, *c));
                r.set(*to, &out, lanes);
            }
            Op::A4(f, to, from) => {
                let mut out: Lanes = [0; 32];
                f(&mut out, from.map(|a| r.get(code, a)));
                r.set(*to, &out, lanes);
            }
            Op::W1(f, to, a) => {
                let mut wide: Wide = [0; 32];
                f(&mut wide, r.wide(code, *a));
                r.set_wide(*to, &wide, lanes);
            }
            Op::W2(f, to, [a, b]) => {
                let mut wide: Wide = [0; 32];
                f(&mut wide, r.wide(code, *a), r.wide(code, *b));
                r.set_wide(*to, &wide, lanes);
            }
            Op::W3(f, to, [a, b, c]) => {
                let mut wide: Wide = [0; 32];
                f(&mut wide, r.wide(code, *a), r.wide(code, *b), r.wide(code, *c));
                r.set_wide(*to, &wide, lanes);
            }
            Op::WShift(f, to, a, by) => {
                let mut wide: Wide = [0; 32];
                f(&mut wide, r.wide(code, *a), r.get(code, *by));
                r.set_wide(*to, &wide, lanes);
            }
            Op::WInsert(to, [a, b], [first, n]) => {
                let mut wide: Wide = [0; 32];
                let (a, b, first, n) =
                    (r.wide(code, *a), r.wide(code, *b), r.get(code, *first), r.get(code, *n));
                for l in 0..32 {
                    let ones = if n[l] & 255 >= 64 { !0 } else { (1u64 << (n[l] & 255)) - 1 };
                    let mask = ones.checked_shl(first[l] & 255).unwrap_or(0);
                    wide[l] = b[l] & !mask | a[l].checked_shl(first[l] & 255).unwrap_or(0) & mask;
                }
                r.set_wide(*to, &wide, lanes);
            }
            Op::Widen(f, to, a) => {
                let mut wide: Wide = [0; 32];
                f(&mut wide, r.get(code, *a));
                r.set_wide(*to, &wide, lanes);
            }
            Op::WidenProduct(f, to, [a, b]) => {
                let mut wide: Wide = [0; 32];
                f(&mut wide, r.get(code, *a), r.get(code, *b));
                r.set_wide(*to, &wide, lanes);
            }
            Op::Narrow(f, to, a) => {
                let mut out: Lanes = [0; 32];
                f(&mut out, r.wide(code, *a));
                r.set(*to, &out, lanes);
            }
            Op::Carry(f, to, [a, b, c]) => {
                let mut out: Lanes = [0; 32];
                let mut carry = self.carry;
                f(&mut out, r.get(code, *a), r.get(code, *b), r.get(code, *c), &mut carry, lanes);
                self.carry = carry;
                r.set(*to, &out, lanes);
            }
            Op::Compare(f, to, [a, b]) => {
                let mask = f(r.get(code, *a), r.get(code, *b));
                r.set_pred(*to, mask, lanes);
            }
            Op::WCompare(f, to, [a, b]) => {
                let mask = f(r.wide(code, *a), r.wide(code, *b));
                r.set_pred(*to, mask, lanes);
            }
            Op::P2(f, to, [a, b]) => {
                let mask = f(r.pred(*a), r.pred(*b));
                r.set_pred(*to, mask, lanes);
            }
            Op::Select(to, [a, b], by) => {
                let mut out: Lanes = [0; 32];
                let (a, b, by) = (r.get(code, *a), r.get(code, *b), r.pred(*by));
                (0..32).for_each(|l| out[l] = if by >> l & 1 != 0 { a[l] } else { b[l] });
                r.set(*to, &out, lanes);
            }
            Op::WSelect(to, [a, b], by) => {
                let mut wide: Wide = [0; 32];
                let (a, b, by) = (r.wide(code, *a), r.wide(code, *b), r.pred(*by));
                (0..32).for_each(|l| wide[l] = if by >> l & 1 != 0 { a[l] } else { b[l] });
                r.set_wide(*to, &wide, lanes);
            }
            Op::Load { to, from, width } => self.load(around, lanes, to, from, *width)?,
            Op::Store { to, from, width } => self.store(around, lanes, to, from, *width)?,
            Op::Atomic { op, old, at, by } => self.atomic(around, lanes, *op, *old, at, *by)?,
            Op::CopyAsync { to, from, bytes, read } => {
                for l in lanes_of(lanes) {
                    let n = read.map_or(*bytes, |read| self.registers.get(code, read)[l].min(*bytes));
                    self.copy(around, l, to, from, *bytes as usize, n as usize)?;
                }
            }
            Op::CopyBulk { to, from, bytes, barrier } => {
                for l in lanes_of(lanes) {
                    let n = self.registers.get(code, *bytes)[l];
                    if !n.is_multiple_of(16) {
                        return Err(format!("a copy of {n} bytes, which is no multiple of 16"));
                    }
                    self.copy(around, l, to, from, n as usize, n as usize)?;
                    self.change_barrier(around, l, barrier, |b| {
                        b.bytes_came(n);
                        Ok(())
                    })?;
                }
            }
            Op::StoreAsync { to, from, barrier } => {
                for l in lanes_of(lanes) {
                    let at = self.find(around, to, 4 * from.len(), l, true)?;
                    for (n, reg) in from.iter().enumerate() {
                        let value = self.registers.get(code, *reg)[l];
                        // SAFETY: `find` answers for as many bytes as there are registers.
                        unsafe { at.cast::<u32>().add(n).write_unaligned(value) };
                    }
                    let n = 4 * from.len() as u32;
                    self.change_barrier(around, l, barrier, |b| {
                        b.bytes_came(n);
                        Ok(())
                    })?;
                }
            }
            Op::BarrierInit { at, count } => {
                for l in lanes_of(lanes) {
                    let barrier = SharedBarrier::new(self.registers.get(code, *count)[l])?;
                    let to = self.find(around, at, 8, l, true)?;
                    // SAFETY: `find` answers for 8 bytes.
                    unsafe { to.cast::<u64>().write_unaligned(barrier.bits()) };
                }
            }
            Op::BarrierArrive { at, expected_bytes } => {
                for l in lanes_of(lanes) {
                    let bytes = expected_bytes.map_or(0, |bytes| self.registers.get(code, bytes)[l]);
                    self.change_barrier(around, l, at, |b| b.arrive(bytes))?;
                }
            }
            Op::BarrierArriveAfterCopies { at } => {
                for l in lanes_of(lanes) {
                    self.change_barrier(around, l, at, |b| b.arrive(0))?;
                }
            }
            Op::BarrierTry { to, at, parity } => {
                let mut over = 0;
                for l in lanes_of(lanes) {
                    let parity = self.registers.get(code, *parity)[l];
                    let place = self.find(around, at, 8, l, false)?;
                    // SAFETY: `find` answers for 8 bytes.
                    let bits = unsafe { place.cast::<u64>().read_unaligned() };
                    let is_over = SharedBarrier::read(bits)?.is_over(parity);
                    over |= u32::from(is_over) << l;
                    if is_over && around.cluster.heard.contains(&(place as usize)) {
                        self.has_waited(around);
                    }
                }
                self.registers.set_pred(*to, over, lanes);
                self.paths[i].at += 1;
                return Ok(if over == lanes { Next::On } else { Next::Yield });
            }
            Op::Branch(to) => {
                let rest = self.paths[i].lanes & !lanes;
                if rest == 0 {
                    let is_back = *to <= self.paths[i].at;
                    self.paths[i].at = *to;
                    return Ok(if is_back && self.paths.len() > 1 { Next::Choose } else { Next::On });
                }
                let behind = self.paths[i].at + 1;
                self.split(i, rest, behind);
                self.paths[i].at = *to;
                return Ok(Next::Choose);
            }
            Op::Exit => {
                self.gone |= lanes;
                self.paths[i].lanes &= !lanes;
                around.meetings.leave(lanes.count_ones());
                around.cluster.leave(lanes.count_ones());
                if around.meetings.are_gone() && !around.meetings.lets_next_begin {
                    around.memory.order.let_next_begin(around.meetings.has_waited);
                }
                around.memory.n_writes += 1;
                // Those that wait for them look again.
                let waiting = self.paths.iter_mut().filter(|path| path.state == State::Mates);
                waiting.for_each(|path| path.state = State::Runs);
                if self.paths[i].lanes == 0 {
                    self.paths.swap_remove(i);
                    return Ok(Next::Choose);
                }
            }
            Op::Trap => return Err("the kernel stops here by itself (trap)".into()),
            Op::Nothing => {}
            Op::GridWait => {
                self.has_waited(around);
                around.meetings.has_waited = true;
                around.memory.order.waited();
            }
            Op::GridLaunch => {
                if !around.meetings.lets_next_begin {
                    around.memory.order.let_next_begin(self.has_waited);
                }
                around.meetings.lets_next_begin = true;
            }
            Op::Yield => {
                self.paths[i].at += 1;
                return Ok(Next::Yield);
            }
            Op::Clock(to) => r.set_wide(*to, &[*around.clock; 32], lanes),
            Op::Barrier { word, id, threads } => {
                let lane = lanes.trailing_zeros() as usize;
                let id = r.get(code, *id)[lane];
                let threads = threads.map(|threads| r.get(code, threads)[lane]);
                let any = match word {
                    BarrierWord::Or { from, .. } => r.pred(*from) & lanes != 0,
                    _ => false,
                };
                let turn = around.meetings.arrive(id, lanes.count_ones(), threads, any, self.has_waited)?;
                around.memory.n_writes += 1;
                if !matches!(word, BarrierWord::Arrive) {
                    self.paths[i].state = State::Barrier { id, turn };
                    return Ok(Next::Choose);
                }
            }
            Op::ClusterArrive => {
                self.cluster_turn = around.cluster.arrive(lanes.count_ones(), self.has_waited);
                around.memory.n_writes += 1;
            }
            Op::ClusterWait => {
                self.paths[i].state = State::Cluster { turn: self.cluster_turn };
                return Ok(Next::Choose);
            }
            Op::MapRank { to, at, rank } => {
                let mut out: Lanes = [0; 32];
                let (at, rank) = (r.get(code, *at), r.get(code, *rank));
                (0..32).for_each(|l| out[l] = at[l] & ((1 << RANK_SHIFT) - 1) | (rank[l] + 1) << RANK_SHIFT);
                r.set(*to, &out, lanes);
            }
            Op::WarpSync { mates }
            | Op::Shuffle { mates, .. }
            | Op::Ballot { mates, .. }
            | Op::Vote { mates, .. }
            | Op::Redux { mates, .. }
            | Op::MatchAny { mates, .. } => {
                if !self.mates_are_here(around, i, *mates, lanes)? {
                    return Ok(Next::Choose);
                }
                self.exchange(code, lanes, op);
            }
            Op::Mma { .. } | Op::Wgmma { .. } | Op::LoadMatrix { .. } | Op::StoreMatrix { .. } => {
                if lanes | self.gone != ALL || self.gone != 0 {
                    self.paths[i].state = State::Mates;
                    return Ok(Next::Choose);
                }
                self.matrix(around, op)?;
            }
        }
        self.paths[i].at += 1;
        Ok(Next::On)
    }

    /// Whether all lanes that are meant have come, but for those that have left; else the path waits.
    fn mates_are_here(
        &mut self,
        around: &Around<'_, '_>,
        i: usize,
        mates: Reg,
        lanes: Mask,
    ) -> Result<bool, String> {
        let mates = self.registers.get(around.code, mates);
        let mut wanted = lanes_of(lanes).map(|l| mates[l] & !self.gone);
        let first = wanted.next().unwrap_or(lanes);
        if lanes & !first != 0 || wanted.any(|other| other != first) {
            return Err(format!("lanes {lanes:#x} meet, not all of which mean lanes {first:#x}"));
        }
        if lanes != first {
            self.paths[i].state = State::Mates;
        }
        Ok(lanes == first)
    }
}
