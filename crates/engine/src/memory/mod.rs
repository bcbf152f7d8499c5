//! What sequences hold: slots, pages, and what of earlier prompts is kept for later ones.

mod pages;
mod prefix;

use overdraft_plan::{NO_PAGE, PAGE, Retention, StateSpec};

pub(crate) use pages::{PagePool, PageTable};
use prefix::{NodeId, PrefixTree};

/// What the prefix cache is allowed beyond what sequences need: pages in every class, and slots for recurrent state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CacheRoom {
    pub(crate) blocks: usize,
    pub(crate) snapshots: usize,
}

impl CacheRoom {
    /// As much as `bytes` hold. With recurrent layers a prefix without its state is of no use, and neither is a state
    /// without its prefix.
    pub(crate) fn within(bytes: usize, spec: &StateSpec) -> Self {
        let block: usize = (0..spec.classes.len()).map(|class| spec.page_bytes(class)).sum::<usize>().max(1);
        let (s, rows) = spec.slot_bytes();
        if s == 0 {
            return Self { blocks: bytes / block, snapshots: 0 };
        }
        let snapshot = s + rows + spec.tap_bytes();
        let snapshots = bytes / (snapshot + BLOCKS_PER_SNAPSHOT * block);
        if snapshots == 0 {
            return Self::default();
        }
        Self { blocks: (bytes - snapshots * snapshot) / block, snapshots }
    }
}

/// The part of a prompt that is here already.
#[derive(Default)]
pub(crate) struct Hit {
    path: Vec<NodeId>,
    /// Blocks that can be taken over.
    blocks: usize,
    /// Blocks that were read before, though they may not be of use without a state.
    known: usize,
    /// Slot of the recurrent state after them.
    pub(crate) snapshot: Option<u32>,
}

impl Hit {
    /// Tokens that need not be read.
    pub(crate) fn tokens(&self) -> usize {
        self.blocks * PAGE
    }

    /// Tokens up to which the prompt is one that was read before.
    pub(crate) fn known_tokens(&self) -> usize {
        self.known * PAGE
    }
}

pub(crate) struct Memory {
    pools: Vec<PagePool>,
    free_slots: Vec<u32>,
    slots: usize,
    step_rows: usize,
    tree: PrefixTree,
    is_caching: bool,
    /// Prefixes are of use only with a recurrent state.
    needs_snapshots: bool,
    free_snapshots: Vec<u32>,
}

impl Memory {
    /// For sequences in the first `slots` of the spec's slots, and the prefix cache in what is beyond.
    pub(crate) fn new(spec: &StateSpec, slots: usize, step_rows: usize, room: CacheRoom) -> Self {
        let pools = spec.classes.iter().zip(&spec.pages).map(|(r, n)| PagePool::new(*r, *n)).collect();
        Self {
            pools,
            free_slots: (0..slots as u32).rev().collect(),
            slots,
            step_rows,
            tree: PrefixTree::default(),
            is_caching: room != CacheRoom::default(),
            needs_snapshots: spec.slot_bytes().0 > 0,
            free_snapshots: (slots as u32..(slots + room.snapshots) as u32).rev().collect(),
        }
    }

    /// Pages held or promised, of how many, over all classes.
    pub(crate) fn pages(&self) -> (usize, usize) {
        self.pools.iter().fold((0, 0), |sum, pool| (sum.0 + pool.taken(), sum.1 + pool.len()))
    }

    pub(crate) fn slots(&self) -> (usize, usize) {
        (self.slots - self.free_slots.len(), self.slots)
    }

    /// Blocks of prompts that are kept.
    pub(crate) fn cached_blocks(&self) -> usize {
        self.tree.len()
    }

    /// What of the prompt need not be read; at least its last token is always left to read, for its logits.
    pub(crate) fn find(&self, salt: u64, prompt: &[u32]) -> Hit {
        if !self.is_caching {
            return Hit::default();
        }
        let path = self.tree.find(salt, &prompt[..prompt.len().saturating_sub(1)]);
        let known = path.len();
        let usable = |blocks: &usize| {
            let has_state = !self.needs_snapshots || self.tree.node(path[blocks - 1]).snapshot.is_some();
            let has_pages = |(class, pool): (usize, &PagePool)| {
                let visible = &path[pool.first_visible(blocks * PAGE).min(*blocks)..*blocks];
                visible.iter().all(|id| self.tree.node(*id).page(class) != NO_PAGE)
            };
            has_state && self.pools.iter().enumerate().all(has_pages)
        };
        let blocks = (1..=known).rev().find(usable).unwrap_or(0);
        let snapshot = blocks.checked_sub(1).and_then(|last| self.tree.node(path[last]).snapshot);
        Hit { path, blocks, known, snapshot }
    }

    /// Whether a sequence of `length` positions that begins with `hit` has room for its whole life: the first class
    /// that has not, by how many pages it needs and how many are free.
    pub(crate) fn fits(&self, length: usize, hit: &Hit) -> Result<(), (usize, usize)> {
        for (class, pool) in self.pools.iter().enumerate() {
            let needed = pool.needed_for(length, self.step_rows);
            let (price, free) = (pool.price(needed, &self.shared(class, hit)), pool.unreserved());
            if price > free {
                return Err((price, free));
            }
        }
        Ok(())
    }

    /// A slot and page tables for a sequence that [`Self::fits`]; `None`: all slots are taken.
    pub(crate) fn admit(&mut self, length: usize, hit: &Hit) -> Option<(u32, Vec<PageTable>)> {
        let slot = self.free_slots.pop()?;
        let all = length.div_ceil(PAGE);
        let shared: Vec<Vec<u32>> = (0..self.pools.len()).map(|class| self.shared(class, hit)).collect();
        self.tree.touch(&hit.path[..hit.blocks]);
        let tables = self.pools.iter_mut().zip(&shared).map(|(pool, shared)| {
            pool.reserve(pool.needed_for(length, self.step_rows), shared, hit.blocks, all)
        });
        Some((slot, tables.collect()))
    }

    /// The cached pages of a class that a sequence beginning with `hit` holds.
    fn shared(&self, class: usize, hit: &Hit) -> Vec<u32> {
        let first = self.pools[class].first_visible(hit.tokens()).min(hit.blocks);
        hit.path[first..hit.blocks].iter().map(|id| self.tree.node(*id).page(class)).collect()
    }

    /// Pages for positions up to `end`, from what admission promised; what is cached makes way.
    pub(crate) fn extend(&mut self, tables: &mut [PageTable], end: usize) {
        for (class, table) in tables.iter_mut().enumerate() {
            while self.pools[class].n_free() < PagePool::missing(table, end) {
                if !self.evict(class) {
                    break;
                }
            }
            self.pools[class].extend(table, end);
        }
    }

    pub(crate) fn trim(&mut self, tables: &mut [PageTable], next: usize) {
        self.pools.iter_mut().zip(tables).for_each(|(pool, table)| pool.trim(table, next));
    }

    pub(crate) fn release(&mut self, slot: u32, tables: Vec<PageTable>) {
        self.free_slots.push(slot);
        self.pools.iter_mut().zip(tables).for_each(|(pool, table)| pool.release(table));
    }

    /// Where reading a prompt should pause, so that the states after these tokens can be kept: past what `hit` has,
    /// before its end. Where it parts from an earlier prompt, which others are likely to share; and the last.
    pub(crate) fn keep_at(&self, prompt: &[u32], hit: &Hit) -> [usize; 2] {
        if !self.is_caching || !self.needs_snapshots {
            return [0; 2];
        }
        let last = (prompt.len() - 1) / PAGE * PAGE;
        let worth = |at: usize| if at >= hit.tokens() + MIN_KEPT { at } else { 0 };
        [worth(hit.known_tokens()), worth(last)]
    }

    /// Keeps the whole blocks of a prompt that was read so far, whose pages are in `tables`. Returns the slot that the
    /// recurrent state should be copied to, if it is wanted.
    pub(crate) fn keep(
        &mut self,
        salt: u64,
        read: &[u32],
        keep_at: [usize; 2],
        tables: &[PageTable],
    ) -> Option<u32> {
        if !self.is_caching || (self.needs_snapshots && !keep_at.contains(&read.len())) {
            return None;
        }
        let pools = &mut self.pools;
        let last = self.tree.insert(salt, read, |block, node| {
            node.pages.resize(tables.len(), NO_PAGE);
            for (class, table) in tables.iter().enumerate() {
                if node.pages[class] == NO_PAGE && table.pages[block] != NO_PAGE {
                    node.pages[class] = table.pages[block];
                    pools[class].cache(table.pages[block]);
                }
            }
        })?;
        if !self.needs_snapshots || self.tree.node(last).snapshot.is_some() {
            return None;
        }
        let slot = self.free_snapshots.pop().or_else(|| {
            let oldest = self.tree.oldest_with_snapshot(last)?;
            self.tree.node_mut(oldest)?.snapshot.take()
        })?;
        self.tree.node_mut(last)?.snapshot = Some(slot);
        Some(slot)
    }

    /// Makes a cached page of the class free; the one that was of no use for longest.
    fn evict(&mut self, class: usize) -> bool {
        let pool = &self.pools[class];
        let is_evictable = |node: &prefix::Node| pool.is_evictable(node.page(class));
        let Some(id) = self.tree.oldest(is_evictable) else { return false };
        if let Retention::Sliding(_) = pool.retention() {
            // The blocks after it may still be of use.
            if let Some(node) = self.tree.node_mut(id) {
                self.pools[class].uncache(node.page(class));
                node.pages[class] = NO_PAGE;
            }
            return true;
        }
        let (pools, snapshots) = (&mut self.pools, &mut self.free_snapshots);
        self.tree.remove(id, |node| {
            for (class, page) in node.pages.iter().enumerate().filter(|p| *p.1 != NO_PAGE) {
                pools[class].uncache(*page);
            }
            snapshots.extend(node.snapshot);
        });
        true
    }
}

/// 2048 tokens: as long as the prompts of a chat are in the middle of it, and what free pages hold comes on top.
const BLOCKS_PER_SNAPSHOT: usize = 32;
/// Tokens that a state must save reading to be worth its slot, and the pause in reading that it takes.
const MIN_KEPT: usize = 2 * PAGE;
