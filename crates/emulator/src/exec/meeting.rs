//! Barriers of a block and of a cluster: who has come, and how often all were there.

use std::collections::HashSet;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Meeting {
    arrived: u32,
    /// Where a count was given.
    expected: Option<u32>,
    any: bool,
    /// How often it was complete, and whether anybody's predicate was true then.
    pub(crate) turn: u64,
    pub(crate) any_then: bool,
    /// Somebody who has waited for the launch ahead has come here: now, or before a turn that is over.
    has_waited: bool,
    pub(crate) had_waited: bool,
}

/// A block's sixteen.
#[derive(Debug)]
pub(crate) struct Meetings {
    all: [Meeting; 16],
    alive: u32,
    /// For the launch ahead, somebody of the block.
    pub(crate) has_waited: bool,
    /// The next launch need not wait for this block to end.
    pub(crate) lets_next_begin: bool,
}

impl Meetings {
    pub(crate) fn new(threads: u32) -> Self {
        Self { all: Default::default(), alive: threads, has_waited: false, lets_next_begin: false }
    }

    pub(crate) fn get(&self, id: usize) -> &Meeting {
        &self.all[id]
    }

    /// The turn that those who come now wait for the end of.
    pub(crate) fn arrive(
        &mut self,
        id: u32,
        n: u32,
        expected: Option<u32>,
        any: bool,
        has_waited: bool,
    ) -> Result<u64, String> {
        let alive = self.alive;
        let meeting = self.all.get_mut(id as usize).ok_or_else(|| format!("there is no barrier {id}"))?;
        if meeting.arrived > 0 && meeting.expected != expected {
            return Err(format!(
                "barrier {id} for {expected:?} threads, which is for {:?}",
                meeting.expected
            ));
        }
        (meeting.expected, meeting.arrived) = (expected, meeting.arrived + n);
        meeting.any |= any;
        meeting.has_waited |= has_waited;
        let turn = meeting.turn;
        let wanted = expected.unwrap_or(alive);
        if meeting.arrived > wanted {
            return Err(format!("{} threads at barrier {id} for {wanted}", meeting.arrived));
        }
        meeting.complete(wanted);
        Ok(turn)
    }

    pub(crate) fn are_gone(&self) -> bool {
        self.alive == 0
    }

    /// Threads have left for good.
    pub(crate) fn leave(&mut self, n: u32) {
        self.alive -= n;
        for meeting in &mut self.all {
            if meeting.arrived > 0 && meeting.expected.is_none() {
                meeting.complete(self.alive);
            }
        }
    }
}

impl Meeting {
    fn complete(&mut self, wanted: u32) {
        if self.arrived == wanted {
            (self.any_then, self.any) = (self.any, false);
            self.had_waited = self.has_waited;
            self.arrived = 0;
            self.turn += 1;
        }
    }
}

#[derive(Debug)]
pub(crate) struct ClusterMeeting {
    arrived: u32,
    alive: u32,
    pub(crate) turn: u64,
    /// As of a block's barrier.
    has_waited: bool,
    pub(crate) had_waited: bool,
    /// Barriers in shared memory at which somebody has arrived who had waited, by where they lie.
    pub(crate) heard: HashSet<usize>,
}

impl ClusterMeeting {
    pub(crate) fn new(threads: u32) -> Self {
        Self {
            arrived: 0,
            alive: threads,
            turn: 0,
            has_waited: false,
            had_waited: false,
            heard: HashSet::new(),
        }
    }

    pub(crate) fn arrive(&mut self, n: u32, has_waited: bool) -> u64 {
        let turn = self.turn;
        self.has_waited |= has_waited;
        self.arrived += n;
        self.complete();
        turn
    }

    pub(crate) fn leave(&mut self, n: u32) {
        self.alive -= n;
        if self.arrived > 0 {
            self.complete();
        }
    }

    fn complete(&mut self) {
        if self.arrived >= self.alive {
            self.had_waited = self.has_waited;
            self.arrived = 0;
            self.turn += 1;
        }
    }
}

/// A barrier in shared memory (`mbarrier`), as its 64 bits: arrivals that are missing, arrivals of a turn, bytes that are missing, and whose
/// turn it is. The layout is our own: kernels must not look into it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedBarrier {
    missing: u16,
    count: u16,
    bytes: i32,
    parity: bool,
}

impl SharedBarrier {
    pub(crate) fn new(count: u32) -> Result<Self, String> {
        // So that memory which no barrier was made in is hardly taken for one.
        let count = u16::try_from(count).ok().filter(|n| (1..0x7fff).contains(n));
        let count = count.ok_or("a barrier for no thread, or more than a block has")?;
        Ok(Self { missing: count, count, bytes: 0, parity: false })
    }

    pub(crate) fn read(bits: u64) -> Result<Self, String> {
        let barrier = Self {
            missing: bits as u16,
            count: (bits >> 16) as u16 & 0x7fff,
            parity: bits >> 31 & 1 != 0,
            bytes: (bits >> 32) as i32,
        };
        if barrier.count == 0 || barrier.count == 0x7fff || barrier.missing > barrier.count {
            return Err(format!("{bits:#x} is no barrier: nobody made one there"));
        }
        Ok(barrier)
    }

    pub(crate) fn bits(self) -> u64 {
        u64::from(self.missing)
            | u64::from(self.count) << 16
            | u64::from(self.parity) << 31
            | u64::from(self.bytes as u32) << 32
    }

    pub(crate) fn arrive(&mut self, expected_bytes: u32) -> Result<(), String> {
        self.missing = self.missing.checked_sub(1).ok_or("more threads arrive than the barrier is for")?;
        self.bytes += expected_bytes as i32;
        self.complete();
        Ok(())
    }

    pub(crate) fn bytes_came(&mut self, bytes: u32) {
        self.bytes -= bytes as i32;
        self.complete();
    }

    /// Whether the turn of this parity is over.
    pub(crate) fn is_over(self, parity: u32) -> bool {
        self.parity != (parity & 1 != 0)
    }

    fn complete(&mut self) {
        if self.missing == 0 && self.bytes == 0 {
            (self.missing, self.parity) = (self.count, !self.parity);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_barrier_is_over_when_all_have_come_or_left() {
        let mut all = Meetings::new(96);
        assert_eq!(all.arrive(1, 32, None, false, false), Ok(0));
        assert_eq!(all.arrive(1, 32, None, true, false), Ok(0));
        assert_eq!(all.get(1).turn, 0);
        all.leave(32);
        assert_eq!((all.get(1).turn, all.get(1).any_then), (1, true));
        assert_eq!(all.arrive(2, 32, Some(32), false, false), Ok(0));
        assert_eq!(all.get(2).turn, 1);
        assert!(all.arrive(3, 64, Some(32), false, false).is_err());
        assert!(all.arrive(16, 32, None, false, false).is_err());
    }

    #[test]
    fn a_shared_barrier_waits_for_threads_and_bytes() {
        let mut b = SharedBarrier::new(2).unwrap();
        b.arrive(100).unwrap();
        b.arrive(0).unwrap();
        assert!(!b.is_over(0));
        b = SharedBarrier::read(b.bits()).unwrap();
        b.bytes_came(60);
        b.bytes_came(40);
        assert!(b.is_over(0) && !b.is_over(1));
        // Bytes may come before they are announced.
        b.bytes_came(8);
        b.arrive(8).unwrap();
        assert!(!b.is_over(1));
        b.arrive(0).unwrap();
        assert!(b.is_over(1));
        assert!(SharedBarrier::read(!0).is_err() && SharedBarrier::read(0).is_err());
    }
}
