//! From addresses to bytes: which memory is meant, and whether it is there.

use crate::code::{Mask, Space, Wide, lanes_of};
use crate::order::Order;
use crate::space::{self, Range};

/// Where a block's shared memory begins: what lies before it is the system's, on cards as here.
pub(crate) const SHARED_BASE: u64 = 1024;
/// In an address of shared memory: a block's rank in its cluster, plus one; nothing is the block's own.
pub(crate) const RANK_SHIFT: u32 = 24;

/// Added to an address of this space, it is one that says so.
pub(crate) fn window(space: Space) -> u64 {
    match space {
        Space::Generic | Space::Global => 0,
        Space::Shared => 1 << 56,
        Space::Local => 2 << 56,
        Space::Param => 3 << 56,
    }
}

/// What a warp reaches.
pub(crate) struct Memory<'a> {
    pub(crate) global: &'a space::Space,
    pub(crate) params: &'a [u8],
    /// Of each block of the cluster.
    pub(crate) shared: &'a mut [Vec<u8>],
    pub(crate) rank: usize,
    /// Allocations that were touched last.
    pub(crate) known: [Range; 4],
    /// Writes so far.
    pub(crate) n_writes: u64,
    pub(crate) order: &'a mut Order,
    /// The warp has nobody to wait for any more.
    pub(crate) has_waited: bool,
}

/// Of a thread: so many bytes behind one another for each lane.
pub(crate) struct Local<'a> {
    pub(crate) bytes: &'a mut [u8],
    pub(crate) of_a_lane: usize,
}

impl Memory<'_> {
    /// Where `len` bytes lie. They have to be aligned to the power of two that divides their number, up to 16.
    #[inline]
    pub(crate) fn find(
        &mut self,
        space: Space,
        address: u64,
        len: usize,
        local: &mut Local<'_>,
        lane: usize,
        writes: bool,
    ) -> Result<*mut u8, String> {
        let alignment = 1u64 << len.trailing_zeros().min(4);
        if address & (alignment - 1) != 0 {
            return Err(format!("address {address:#x} is no multiple of {alignment} bytes"));
        }
        let (space, at) = match space {
            Space::Generic => in_window(address),
            space => (space, address),
        };
        match space {
            Space::Generic | Space::Global => {
                let found = self.global(at, len)?;
                self.touch(at, len, writes).map(|()| found)
            }
            Space::Shared => {
                let at = at & 0xffff_ffff;
                let block = match (at >> RANK_SHIFT) as usize {
                    0 => self.rank,
                    n => n - 1,
                };
                let bytes =
                    self.shared.get_mut(block).ok_or_else(|| format!("no block {block} in this cluster"))?;
                let inside = (at & ((1 << RANK_SHIFT) - 1)).wrapping_sub(SHARED_BASE);
                within(space, bytes, inside, len)
            }
            Space::Local => {
                let size = local.of_a_lane;
                within(space, &mut local.bytes[lane * size..(lane + 1) * size], at, len)
            }
            Space::Param if writes => Err("a kernel's parameters are not written".into()),
            Space::Param => {
                let size = self.params.len();
                let inside =
                    usize::try_from(at).ok().filter(|at| at.checked_add(len).is_some_and(|end| end <= size));
                let inside = inside.ok_or_else(|| outside(space, size, at, len))?;
                Ok(self.params[inside..].as_ptr().cast_mut())
            }
        }
    }

    /// What to add to these lanes' addresses, where all lie in one allocation or in the block's own memory, as they mostly do. None says nothing.
    #[inline]
    pub(crate) fn shift_of_all(&mut self, space: Space, at: &Wide, lanes: Mask, len: usize) -> Option<u64> {
        let (mut least, mut most, mut bits) = (u64::MAX, 0, 0);
        for (l, at) in at.iter().enumerate() {
            if lanes >> l & 1 != 0 {
                (least, most, bits) = (least.min(*at), most.max(*at), bits | at);
            }
        }
        let alignment = 1u64 << len.trailing_zeros().min(4);
        if bits & (alignment - 1) != 0 || least > most {
            return None;
        }
        match space {
            Space::Global => {
                let holds = |range: &&Range| range.holds(least, len) && range.holds(most, len);
                self.known.iter().find(holds).map(|_| 0)
            }
            Space::Shared => {
                let bytes = &mut self.shared[self.rank];
                let is_inside = least >= SHARED_BASE && (most - SHARED_BASE) as usize + len <= bytes.len();
                is_inside.then(|| (bytes.as_mut_ptr() as u64).wrapping_sub(SHARED_BASE))
            }
            _ => None,
        }
    }

    #[inline]
    fn touch(&mut self, at: u64, len: usize, writes: bool) -> Result<(), String> {
        if !self.has_waited {
            return self.touch_early(at, len, writes);
        }
        if writes {
            self.order.wrote(at, len);
        }
        Ok(())
    }

    #[cold]
    fn touch_early(&mut self, at: u64, len: usize, writes: bool) -> Result<(), String> {
        if writes { self.order.check_write(at, len) } else { self.order.check_read(at, len) }
    }

    /// What these lanes do with global memory where [`Self::shift_of_all`] found it.
    #[inline]
    pub(crate) fn touch_all(
        &mut self,
        space: Space,
        at: &Wide,
        lanes: Mask,
        len: usize,
        writes: bool,
    ) -> Result<(), String> {
        if space != Space::Global || self.has_waited && !writes {
            return Ok(());
        }
        lanes_of(lanes).try_for_each(|l| self.touch(at[l], len, writes))
    }

    #[inline]
    fn global(&mut self, at: u64, len: usize) -> Result<*mut u8, String> {
        if self.known.iter().any(|range| range.holds(at, len)) {
            return Ok(at as *mut u8);
        }
        let Some(range) = self.global.find(at, len) else {
            return Err(format!("{len} bytes at {at:#x}, which nobody allocated{}", self.global.nearest(at)));
        };
        self.known.rotate_right(1);
        self.known[0] = range;
        Ok(at as *mut u8)
    }
}

/// Of an address that says itself which memory it is in.
fn in_window(address: u64) -> (Space, u64) {
    let at = address & 0xff_ffff_ffff_ffff;
    match address >> 56 {
        1 => (Space::Shared, at),
        2 => (Space::Local, at),
        3 => (Space::Param, at),
        _ => (Space::Global, address),
    }
}

#[inline]
fn within(space: Space, bytes: &mut [u8], at: u64, len: usize) -> Result<*mut u8, String> {
    let size = bytes.len();
    match bytes.get_mut(at as usize..) {
        Some(rest) if rest.len() >= len => Ok(rest.as_mut_ptr()),
        _ => Err(outside(space, size, at, len)),
    }
}

#[cold]
fn outside(space: Space, size: usize, at: u64, len: usize) -> String {
    format!("{len} bytes at {at:#x} of {space:?} memory of {size} bytes")
}
