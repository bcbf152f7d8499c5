//! What a warp does with memory, lane by lane.

use super::addresses::Local;
use super::meeting::SharedBarrier;
use super::warp::{Around, Warp};
use crate::code::{AnyReg, AtomicOp, Lanes, Mask, Place, Reg, Space, Wide, Width, lanes_of};

impl Warp {
    fn address(&self, around: &Around<'_, '_>, place: &Place, lane: usize) -> u64 {
        let base = match place.base {
            AnyReg::Reg(reg) => u64::from(self.registers.get(around.code, reg)[lane]),
            AnyReg::Wide(reg) => self.registers.wide(around.code, reg)[lane],
        };
        base.wrapping_add(place.offset as u64)
    }

    /// Of all lanes.
    fn addresses(&self, around: &Around<'_, '_>, place: &Place) -> Wide {
        let mut all = match place.base {
            AnyReg::Reg(reg) => self.registers.get(around.code, reg).map(u64::from),
            AnyReg::Wide(reg) => *self.registers.wide(around.code, reg),
        };
        all.iter_mut().for_each(|at| *at = at.wrapping_add(place.offset as u64));
        all
    }

    /// Where the place of a lane is, for so many bytes.
    pub(super) fn find(
        &mut self,
        around: &mut Around<'_, '_>,
        place: &Place,
        len: usize,
        lane: usize,
        writes: bool,
    ) -> Result<*mut u8, String> {
        let address = self.address(around, place, lane);
        self.find_at(around, place.space, address, len, lane, writes)
    }

    #[inline]
    pub(super) fn find_at(
        &mut self,
        around: &mut Around<'_, '_>,
        space: Space,
        address: u64,
        len: usize,
        lane: usize,
        writes: bool,
    ) -> Result<*mut u8, String> {
        let mut local = Local { bytes: &mut self.local, of_a_lane: around.code.local_bytes };
        around.memory.n_writes += u64::from(writes);
        around.memory.find(space, address, len, &mut local, lane, writes)
    }

    pub(super) fn load(
        &mut self,
        around: &mut Around<'_, '_>,
        lanes: Mask,
        to: &[AnyReg],
        from: &Place,
        width: Width,
    ) -> Result<(), String> {
        let bytes = usize::from(width.bytes);
        let mut values: [Wide; 4] = [[0; 32]; 4];
        let addresses = self.addresses(around, from);
        let shift = around.memory.shift_of_all(from.space, &addresses, lanes, bytes * to.len());
        if shift.is_some() {
            around.memory.touch_all(from.space, &addresses, lanes, bytes * to.len(), false)?;
        }
        for l in lanes_of(lanes) {
            let at = match shift {
                Some(shift) => addresses[l].wrapping_add(shift) as *mut u8,
                None => self.find_at(around, from.space, addresses[l], bytes * to.len(), l, false)?,
            };
            for (n, value) in values[..to.len()].iter_mut().enumerate() {
                // SAFETY: as many values as there are registers were found there.
                value[l] = unsafe {
                    let at = at.add(n * bytes);
                    match bytes {
                        1 => u64::from(at.read()),
                        2 => u64::from(at.cast::<u16>().read_unaligned()),
                        4 => u64::from(at.cast::<u32>().read_unaligned()),
                        _ => at.cast::<u64>().read_unaligned(),
                    }
                };
                if width.is_signed && bytes < 8 {
                    let shift = 64 - 8 * bytes as u32;
                    value[l] = ((value[l] << shift) as i64 >> shift) as u64;
                }
            }
        }
        for (reg, value) in to.iter().zip(&values) {
            match reg {
                AnyReg::Wide(reg) => self.registers.set_wide(*reg, value, lanes),
                AnyReg::Reg(reg) => {
                    let mask = if width.is_short { 0xffff } else { !0 };
                    self.registers.set(*reg, &std::array::from_fn(|l| value[l] as u32 & mask), lanes);
                }
            }
        }
        Ok(())
    }

    pub(super) fn store(
        &mut self,
        around: &mut Around<'_, '_>,
        lanes: Mask,
        to: &Place,
        from: &[AnyReg],
        width: Width,
    ) -> Result<(), String> {
        let bytes = usize::from(width.bytes);
        let addresses = self.addresses(around, to);
        let shift = around.memory.shift_of_all(to.space, &addresses, lanes, bytes * from.len());
        if shift.is_some() {
            around.memory.touch_all(to.space, &addresses, lanes, bytes * from.len(), true)?;
        }
        around.memory.n_writes += 1;
        for l in lanes_of(lanes) {
            let at = match shift {
                Some(shift) => addresses[l].wrapping_add(shift) as *mut u8,
                None => self.find_at(around, to.space, addresses[l], bytes * from.len(), l, true)?,
            };
            for (n, reg) in from.iter().enumerate() {
                let value = match reg {
                    AnyReg::Reg(reg) => u64::from(self.registers.get(around.code, *reg)[l]),
                    AnyReg::Wide(reg) => self.registers.wide(around.code, *reg)[l],
                };
                // SAFETY: as many values as there are registers were found there.
                unsafe {
                    let at = at.add(n * bytes);
                    match bytes {
                        1 => at.write(value as u8),
                        2 => at.cast::<u16>().write_unaligned(value as u16),
                        4 => at.cast::<u32>().write_unaligned(value as u32),
                        _ => at.cast::<u64>().write_unaligned(value),
                    }
                }
            }
        }
        Ok(())
    }

    pub(super) fn atomic(
        &mut self,
        around: &mut Around<'_, '_>,
        lanes: Mask,
        op: AtomicOp,
        old: Option<Reg>,
        place: &Place,
        by: Reg,
    ) -> Result<(), String> {
        let mut before: Lanes = [0; 32];
        for l in lanes_of(lanes) {
            let at = self.find(around, place, 4, l, true)?.cast::<u32>();
            let by = self.registers.get(around.code, by)[l];
            // SAFETY: `find` answers for 4 bytes, which lie as a word does.
            unsafe {
                before[l] = at.read_unaligned();
                at.write_unaligned(match op {
                    AtomicOp::AddU32 => before[l].wrapping_add(by),
                    AtomicOp::IncU32 => {
                        if before[l] >= by {
                            0
                        } else {
                            before[l] + 1
                        }
                    }
                    AtomicOp::OrU32 => before[l] | by,
                    AtomicOp::AddF32 => (f32::from_bits(before[l]) + f32::from_bits(by)).to_bits(),
                });
            }
        }
        if let Some(old) = old {
            self.registers.set(old, &before, lanes);
        }
        Ok(())
    }

    /// `read` bytes, and zeros behind them.
    pub(super) fn copy(
        &mut self,
        around: &mut Around<'_, '_>,
        lane: usize,
        to: &Place,
        from: &Place,
        bytes: usize,
        read: usize,
    ) -> Result<(), String> {
        let to = self.find(around, to, bytes, lane, true)?;
        if read > 0 {
            let address = self.address(around, from, lane);
            if address & (bytes.min(16) as u64 - 1) != 0 {
                return Err(format!("a copy from {address:#x}, which is no multiple of {bytes} bytes"));
            }
            let from = self.find(around, &Place { space: Space::Global, ..*from }, read, lane, false)?;
            // SAFETY: `find` answers for both; the one is shared memory, the other is not.
            unsafe { to.copy_from_nonoverlapping(from, read) };
        }
        // SAFETY: as above.
        unsafe { to.add(read).write_bytes(0, bytes - read) };
        Ok(())
    }

    pub(super) fn change_barrier(
        &mut self,
        around: &mut Around<'_, '_>,
        lane: usize,
        place: &Place,
        change: impl FnOnce(&mut SharedBarrier) -> Result<(), String>,
    ) -> Result<(), String> {
        let at = self.find(around, place, 8, lane, true)?.cast::<u64>();
        if around.memory.has_waited && !around.memory.order.is_plain() {
            around.cluster.heard.insert(at as usize);
        }
        // SAFETY: `find` answers for 8 bytes.
        let mut barrier = SharedBarrier::read(unsafe { at.read_unaligned() })?;
        change(&mut barrier)?;
        // SAFETY: as above.
        unsafe { at.write_unaligned(barrier.bits()) };
        Ok(())
    }
}
