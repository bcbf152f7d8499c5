//! KV pages of one retention class: who holds which, and what is promised to whom.

use overdraft_plan::{NO_PAGE, PAGE, Retention, TAP_ROWS};

pub(crate) struct PagePool {
    retention: Retention,
    pages: Vec<Page>,
    free: Vec<u32>,
    /// Pages promised to admitted sequences.
    reserved: usize,
    /// Pages that only the prefix cache holds: as good as free, once it lets go of them.
    evictable: usize,
}

#[derive(Clone, Copy, Default)]
struct Page {
    /// Sequences that hold it.
    holders: u32,
    is_cached: bool,
}

/// One sequence's table in one class: page of position p is `table[p / PAGE]`.
#[derive(Default)]
pub(crate) struct PageTable {
    pub(crate) pages: Vec<u32>,
    /// Pages before this one have been given back.
    first: usize,
    /// Pages before this one came from the prefix cache, and not out of what was promised.
    shared: usize,
    /// Pages that admission promised and that are not held at the moment.
    reserved: usize,
}

impl PagePool {
    pub(crate) fn new(retention: Retention, n: usize) -> Self {
        let free = (0..n as u32).rev().collect();
        Self { retention, pages: vec![Page::default(); n], free, reserved: 0, evictable: 0 }
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

    pub(crate) fn retention(&self) -> Retention {
        self.retention
    }

    pub(crate) fn needed_for(&self, length: usize, step_rows: usize) -> usize {
        Self::needed(self.retention, length, step_rows)
    }

    pub(crate) fn len(&self) -> usize {
        self.pages.len()
    }

    /// Held by sequences or promised to them.
    pub(crate) fn taken(&self) -> usize {
        self.len() - self.unreserved()
    }

    pub(crate) fn unreserved(&self) -> usize {
        (self.free.len() + self.evictable).saturating_sub(self.reserved)
    }

    pub(crate) fn n_free(&self) -> usize {
        self.free.len()
    }

    pub(crate) fn is_evictable(&self, page: u32) -> bool {
        self.pages.get(page as usize).is_some_and(|p| p.is_cached && p.holders == 0)
    }

    /// The first block of a prefix of `blocks` that rows after it can still see. Waiting taps go to positions a little
    /// behind.
    pub(crate) fn first_visible(&self, next: usize) -> usize {
        match self.retention {
            Retention::Full => 0,
            Retention::Sliding(window) => (next + 1).saturating_sub(window as usize + TAP_ROWS) / PAGE,
        }
    }

    /// What admitting a sequence takes of the pages that are not reserved: `needed` of its own, and beyond that the
    /// `shared` cached pages that it would keep from being evicted.
    pub(crate) fn price(&self, needed: usize, shared: &[u32]) -> usize {
        let n = shared.len();
        let evictable = shared.iter().filter(|p| self.is_evictable(**p)).count();
        match self.retention {
            Retention::Full => needed.saturating_sub(n) + evictable,
            // A page that others slide away from stays taken by this one, so it counts on top.
            Retention::Sliding(_) => needed + n + evictable,
        }
    }

    /// Promises a new sequence `needed` pages, of which it holds the cached ones of `shared` from the start; they end
    /// at block `blocks`. The caller has seen that the price is unreserved. Over its life it has `all`.
    pub(crate) fn reserve(&mut self, needed: usize, shared: &[u32], blocks: usize, all: usize) -> PageTable {
        debug_assert!(self.price(needed, shared) <= self.unreserved());
        let mut pages = Vec::with_capacity(all.max(blocks));
        pages.resize(blocks - shared.len(), NO_PAGE);
        let first = pages.len();
        for page in shared {
            let held = &mut self.pages[*page as usize];
            self.evictable -= usize::from(held.is_cached && held.holders == 0);
            held.holders += 1;
            pages.push(*page);
        }
        let own = match self.retention {
            Retention::Full => needed.saturating_sub(shared.len()),
            Retention::Sliding(_) => {
                self.reserved += shared.len();
                needed
            }
        };
        self.reserved += own;
        PageTable { pages, first, shared: blocks, reserved: own }
    }

    /// Pages that [`Self::extend`] will take from the free ones.
    pub(crate) fn missing(table: &PageTable, end: usize) -> usize {
        end.div_ceil(PAGE).saturating_sub(table.pages.len())
    }

    /// Holds pages up to position `end`, from what was reserved; the caller has made so many free.
    pub(crate) fn extend(&mut self, table: &mut PageTable, end: usize) {
        while table.pages.len() < end.div_ceil(PAGE) {
            debug_assert!(table.reserved > 0, "admission reserves a sequence's whole life");
            let page = self.free.pop().expect("reserved pages are free, or cached and were evicted");
            self.pages[page as usize].holders = 1;
            self.reserved -= 1;
            table.reserved -= 1;
            table.pages.push(page);
        }
    }

    /// Gives back what no row from position `next` on can see.
    pub(crate) fn trim(&mut self, table: &mut PageTable, next: usize) {
        let first_visible = self.first_visible(next);
        while table.first < first_visible.min(table.pages.len()) {
            let page = std::mem::replace(&mut table.pages[table.first], NO_PAGE);
            self.let_go(page);
            if table.first < table.shared {
                self.reserved -= 1;
            } else {
                // It stays promised: the sequence slides on.
                self.reserved += 1;
                table.reserved += 1;
            }
            table.first += 1;
        }
    }

    pub(crate) fn release(&mut self, table: PageTable) {
        if let Retention::Sliding(_) = self.retention {
            self.reserved -= table.shared.saturating_sub(table.first);
        }
        table.pages.iter().filter(|p| **p != NO_PAGE).for_each(|page| self.let_go(*page));
        self.reserved -= table.reserved;
    }

    fn let_go(&mut self, page: u32) {
        let held = &mut self.pages[page as usize];
        held.holders -= 1;
        match (held.holders, held.is_cached) {
            (0, true) => self.evictable += 1,
            (0, false) => self.free.push(page),
            _ => {}
        }
    }

    /// The prefix cache holds on to a page that a sequence holds.
    pub(crate) fn cache(&mut self, page: u32) {
        let held = &mut self.pages[page as usize];
        debug_assert!(held.holders > 0 && !held.is_cached);
        held.is_cached = true;
    }

    /// The prefix cache lets go of a page.
    pub(crate) fn uncache(&mut self, page: u32) {
        let held = &mut self.pages[page as usize];
        debug_assert!(held.is_cached);
        held.is_cached = false;
        if held.holders == 0 {
            self.evictable -= 1;
            self.free.push(page);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_go_out_and_all_come_back() {
        let mut pool = PagePool::new(Retention::Full, 10);
        let mut a = pool.reserve(4, &[], 0, 4);
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
        let mut table = pool.reserve(needed, &[], 0, needed);
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

    #[test]
    fn a_cached_page_is_free_once_nobody_holds_it_and_the_cache_lets_go() {
        let mut pool = PagePool::new(Retention::Full, 4);
        let mut writer = pool.reserve(2, &[], 0, 2);
        pool.extend(&mut writer, PAGE);
        let page = writer.pages[0];
        pool.cache(page);
        assert!(!pool.is_evictable(page), "its writer holds it");
        let reader = pool.reserve(2, &[page], 1, 2);
        assert_eq!(pool.unreserved(), 1, "two of the writer's, one of the reader's own");
        pool.release(writer);
        assert!(!pool.is_evictable(page), "its reader holds it");
        assert_eq!(pool.unreserved(), 2);
        pool.release(reader);
        assert!(pool.is_evictable(page));
        assert_eq!((pool.unreserved(), pool.n_free()), (4, 3));
        pool.uncache(page);
        assert_eq!((pool.unreserved(), pool.n_free()), (4, 4));
    }

    #[test]
    fn sharing_a_sliding_page_never_takes_what_was_promised() {
        let (window, rows) = (64, 64);
        let retention = Retention::Sliding(window);
        let needed = PagePool::needed(retention, 10_000, rows);
        for spare in 0..6 {
            let mut pool = PagePool::new(retention, 2 * needed + spare);
            let mut writer = pool.reserve(needed, &[], 0, 9);
            pool.extend(&mut writer, 4 * PAGE);
            pool.trim(&mut writer, 4 * PAGE);
            let first = pool.first_visible(4 * PAGE);
            let shared: Vec<u32> = writer.pages[first..4].to_vec();
            shared.iter().for_each(|p| pool.cache(*p));
            let fits = pool.price(needed, &shared) <= pool.unreserved();
            assert_eq!(fits, spare >= shared.len(), "{spare} spare pages");
            if !fits {
                continue;
            }
            let mut reader = pool.reserve(needed, &shared, 4, 9);
            // Both go on as far as they were promised, in turn; nobody runs out.
            let mut at = 4 * PAGE;
            for _ in 0..20 {
                at += PAGE;
                for table in [&mut writer, &mut reader] {
                    pool.extend(table, at);
                    pool.trim(table, at);
                }
            }
            shared.iter().for_each(|p| pool.uncache(*p));
            pool.release(writer);
            pool.release(reader);
            assert_eq!((pool.unreserved(), pool.n_free()), (2 * needed + spare, 2 * needed + spare));
        }
    }
}
