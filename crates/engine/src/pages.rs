//! KV pages: who holds which.

use overdraft_plan::{NO_PAGE, PAGE, Retention, TAP_ROWS};

/// The pages of one retention class.
pub(crate) struct PagePool {
    retention: Retention,
    n: usize,
    free: Vec<u32>,
    /// Free pages that are promised to admitted sequences.
    reserved: usize,
}

/// One sequence's table in one class: page of position p is `table[p / PAGE]`.
#[derive(Default)]
pub(crate) struct PageTable {
    pub(crate) pages: Vec<u32>,
    /// Pages before this one have been given back.
    first: usize,
    /// Pages that admission promised and that are not held at the moment.
    reserved: usize,
}

impl PagePool {
    pub(crate) fn new(retention: Retention, n: usize) -> Self {
        Self { retention, n, free: (0..n as u32).rev().collect(), reserved: 0 }
    }

    /// Pages a sequence of `length` positions can hold at once when a step adds at most `step_rows`.
    pub(crate) fn needed(retention: Retention, length: usize, step_rows: usize) -> usize {
        let all = length.div_ceil(PAGE);
        match retention {
            Retention::Full => all,
            // The window and a step's rows, neither of which need begin at a page's edge.
            Retention::Sliding(window) => {
                all.min((window as usize + TAP_ROWS + step_rows).div_ceil(PAGE) + 1)
            }
        }
    }

    pub(crate) fn needed_for(&self, length: usize, step_rows: usize) -> usize {
        Self::needed(self.retention, length, step_rows)
    }

    pub(crate) fn len(&self) -> usize {
        self.n
    }

    /// Held or promised.
    pub(crate) fn taken(&self) -> usize {
        self.n - self.unreserved()
    }

    pub(crate) fn unreserved(&self) -> usize {
        self.free.len() - self.reserved
    }

    /// Promises `n` pages to a new sequence; the caller has seen that they are unreserved. Over its life it has `all`.
    pub(crate) fn reserve(&mut self, n: usize, all: usize) -> PageTable {
        debug_assert!(n <= self.unreserved());
        self.reserved += n;
        PageTable { pages: Vec::with_capacity(all), first: 0, reserved: n }
    }

    /// Holds pages up to position `end`, from what was reserved.
    pub(crate) fn extend(&mut self, table: &mut PageTable, end: usize) {
        while table.pages.len() < end.div_ceil(PAGE) {
            debug_assert!(table.reserved > 0, "admission reserves a sequence's whole life");
            let page = self.free.pop().expect("reserved pages are free");
            self.reserved -= 1;
            table.reserved -= 1;
            table.pages.push(page);
        }
    }

    /// Gives back what no row from position `next` on can see.
    pub(crate) fn trim(&mut self, table: &mut PageTable, next: usize) {
        let Retention::Sliding(window) = self.retention else { return };
        // Waiting taps still go to positions a little behind.
        let first_visible = (next + 1).saturating_sub(window as usize + TAP_ROWS) / PAGE;
        while table.first < first_visible.min(table.pages.len()) {
            let page = std::mem::replace(&mut table.pages[table.first], NO_PAGE);
            self.free.push(page);
            // It stays promised: the sequence slides on.
            self.reserved += 1;
            table.reserved += 1;
            table.first += 1;
        }
    }

    pub(crate) fn release(&mut self, table: PageTable) {
        self.free.extend(table.pages.into_iter().filter(|p| *p != NO_PAGE));
        self.reserved -= table.reserved;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_go_out_and_all_come_back() {
        let mut pool = PagePool::new(Retention::Full, 10);
        let mut a = pool.reserve(4, 4);
        assert_eq!(pool.unreserved(), 6);
        pool.extend(&mut a, 3 * PAGE + 1);
        assert_eq!(a.pages.len(), 4);
        pool.trim(&mut a, 200);
        assert!(a.pages.iter().all(|p| *p != NO_PAGE), "a full class keeps everything");
        pool.release(a);
        assert_eq!(pool.unreserved(), 10);
    }

    #[test]
    fn a_sliding_sequence_lives_in_a_bounded_number_of_pages() {
        let (window, rows) = (128, 512);
        let retention = Retention::Sliding(window);
        let needed = PagePool::needed(retention, 100_000, rows);
        assert_eq!(needed, 12);
        let mut pool = PagePool::new(retention, needed);
        let mut table = pool.reserve(needed, needed);
        let mut at = 0;
        for step in [512, 100, 1, 1, 63, 512, 512, 64, 448, 512, 1, 1].repeat(20) {
            pool.extend(&mut table, at + step);
            for p in (at + 1).saturating_sub(window as usize)..at + step {
                assert_ne!(table.pages[p / PAGE], NO_PAGE, "position {p} of a step at {at}");
            }
            at += step;
            pool.trim(&mut table, at);
        }
        pool.release(table);
        assert_eq!(pool.unreserved(), needed);
    }
}
