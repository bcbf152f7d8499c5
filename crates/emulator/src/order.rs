//! Launches that overlap: one may begin while the one ahead is still at work, and what that writes is there only for who has waited for it
//! (`griddepcontrol.wait`), or has heard from somebody who has. Here launches run one after the other, so such a mistake changes no
//! number; it is found by remembering who wrote what.
//!
//! A warp counts as one, and what it hears of another at a barrier, in a block's memory or of the block, it has heard for good. So who reads too
//! early beside somebody who has waited can be missed, and nobody is named who has not.

use std::collections::HashMap;

const PAGE: u64 = 4096;
/// Bytes of a bit.
const WORD: u64 = 4;
const BITS: usize = (PAGE / WORD / 64) as usize;

/// Words of memory.
#[derive(Default)]
pub(crate) struct Words {
    pages: Vec<[u64; BITS]>,
    places: HashMap<u64, usize>,
    /// Which page was asked for last, and where it is.
    last: (u64, usize),
}

fn words(at: u64, len: usize) -> impl Iterator<Item = (u64, usize, u64)> {
    (at / WORD..(at + len as u64).div_ceil(WORD)).map(|word| {
        let inside = word % (PAGE / WORD);
        (word / (PAGE / WORD), (inside / 64) as usize, 1 << (inside % 64))
    })
}

impl Words {
    #[inline]
    fn insert(&mut self, at: u64, len: usize) {
        for (page, n, bit) in words(at, len) {
            if self.pages.is_empty() || self.last.0 != page {
                let place = *self.places.entry(page).or_insert(self.pages.len());
                if place == self.pages.len() {
                    self.pages.push([0; BITS]);
                }
                self.last = (page, place);
            }
            self.pages[self.last.1][n] |= bit;
        }
    }

    fn holds_any(&self, at: u64, len: usize) -> bool {
        let is_there = |page: u64| self.places.get(&page).map(|place| &self.pages[*place]);
        words(at, len).any(|(page, n, bit)| is_there(page).is_some_and(|page| page[n] & bit != 0))
    }

    /// Whether all of them are.
    fn holds(&self, at: u64, len: usize) -> bool {
        words(at, len).all(|(page, n, bit)| {
            self.places.get(&page).is_some_and(|place| self.pages[*place][n] & bit != 0)
        })
    }
}

/// What a launch wrote.
struct Written {
    kernel: String,
    words: Words,
}

/// Of a stream: launches that may still be at work when the next begins.
#[derive(Default)]
pub struct Ahead(Vec<Written>);

impl Ahead {
    /// Something that waits for all that was asked for before it.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// `overlaps`: it may begin before the launch ahead has ended.
    pub(crate) fn begin(&mut self, overlaps: bool) -> Order {
        let in_flight = if overlaps { std::mem::take(&mut self.0) } else { Vec::new() };
        Order { in_flight, written: Words::default(), has_waited: false, begins_others_late: false }
    }

    /// The launch has ended. An error where nobody in it has waited for the one ahead.
    pub(crate) fn end(&mut self, order: Order, kernel: &str) -> Result<(), String> {
        let Order { in_flight, written, has_waited, begins_others_late } = order;
        if let Some(first) = in_flight.first().filter(|_| !has_waited) {
            let first = &first.kernel;
            return Err(format!(
                "nobody in it waits (griddepcontrol.wait) for {first}, which may so be at work beside the launch behind"
            ));
        }
        self.0 = vec![Written { kernel: kernel.into(), words: written }];
        // The next launch may begin before anybody here has waited.
        if !begins_others_late {
            self.0.extend(in_flight);
        }
        Ok(())
    }
}

/// Of a launch under way.
pub(crate) struct Order {
    in_flight: Vec<Written>,
    written: Words,
    has_waited: bool,
    /// Some block lets the next launch begin only when it has waited itself: so all before this one have ended by then.
    begins_others_late: bool,
}

impl Order {
    /// Whether warps have nobody to wait for.
    pub(crate) fn is_plain(&self) -> bool {
        self.in_flight.is_empty()
    }

    pub(crate) fn waited(&mut self) {
        self.has_waited = true;
    }

    /// A block no longer keeps the next launch from beginning.
    pub(crate) fn let_next_begin(&mut self, has_waited: bool) {
        self.begins_others_late |= has_waited;
    }

    #[inline]
    pub(crate) fn wrote(&mut self, at: u64, len: usize) {
        self.written.insert(at, len);
    }

    /// Who has not waited may read what no launch in flight writes.
    pub(crate) fn check_read(&self, at: u64, len: usize) -> Result<(), String> {
        let mut writers = self.in_flight.iter();
        match writers.find(|written| written.words.holds_any(at, len) && !self.written.holds(at, len)) {
            Some(Written { kernel, .. }) => Err(format!(
                "{len} bytes at {at:#x} are read before anybody has waited (griddepcontrol.wait) for {kernel}, which writes them"
            )),
            None => Ok(()),
        }
    }

    /// And write nothing.
    pub(crate) fn check_write(&self, at: u64, len: usize) -> Result<(), String> {
        match self.in_flight.first() {
            Some(Written { kernel, .. }) => Err(format!(
                "{len} bytes at {at:#x} are written before anybody has waited (griddepcontrol.wait) for {kernel}, which may read them"
            )),
            None => Ok(()),
        }
    }
}
