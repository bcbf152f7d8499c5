//! Registers of the text, of which every value has one of its own, to as few as hold what is alive at once: some thousands become a
//! hundred or two, and a warp fits the caches of a CPU.

use std::collections::BTreeSet;

use crate::code::operands::{Role, Visitor};
use crate::code::{CONSTANT, Code, Op, Reg, WideReg};

/// Registers by number, those of 64 bits behind the others.
struct Names {
    n_regs: usize,
    /// What the current instruction reads and writes.
    reads: Vec<usize>,
    writes: Vec<usize>,
}

impl Names {
    fn note(&mut self, role: Role, name: usize) {
        match role {
            Role::Reads => self.reads.push(name),
            Role::Writes => self.writes.push(name),
        }
    }
}

impl Visitor for Names {
    fn reg(&mut self, role: Role, reg: &mut Reg) {
        if reg.0 & CONSTANT == 0 {
            self.note(role, reg.0 as usize);
        }
    }

    fn wide(&mut self, role: Role, reg: &mut WideReg) {
        if reg.0 & CONSTANT == 0 {
            let name = self.n_regs + reg.0 as usize;
            self.note(role, name);
        }
    }
}

#[derive(Clone, PartialEq)]
struct Set(Vec<u64>);

impl Set {
    fn new(n: usize) -> Self {
        Self(vec![0; n.div_ceil(64)])
    }

    fn insert(&mut self, i: usize) {
        self.0[i / 64] |= 1 << (i % 64);
    }

    fn remove(&mut self, i: usize) {
        self.0[i / 64] &= !(1 << (i % 64));
    }

    fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(a, b)| *a |= b);
    }

    fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        let bits = |(word, bits): (usize, &u64)| {
            let bits = *bits;
            (0..64).filter(move |i| bits >> i & 1 != 0).map(move |i| 64 * word + i)
        };
        self.0.iter().enumerate().flat_map(bits)
    }
}

/// Instructions from `begin` to `end`, with no branch inside and none into them.
struct Block {
    begin: usize,
    end: usize,
    followers: Vec<usize>,
    alive_before: Set,
}

fn blocks(code: &Code, n_names: usize) -> Vec<Block> {
    let n = code.instructions.len();
    let mut begins = vec![0];
    for (i, instruction) in code.instructions.iter().enumerate() {
        match instruction.op {
            Op::Branch(to) => begins.extend([to, i + 1]),
            Op::Exit => begins.push(i + 1),
            _ => {}
        }
    }
    begins.retain(|i| *i < n);
    begins.sort_unstable();
    begins.dedup();
    let block_of = |i: usize| begins.partition_point(|begin| *begin <= i) - 1;
    let ends = begins.iter().skip(1).copied().chain([n]);
    let block = |(begin, end): (&usize, usize)| {
        let last = &code.instructions[end - 1];
        let goes_on = last.guard.is_some() || !matches!(last.op, Op::Branch(_) | Op::Exit);
        let mut followers = Vec::new();
        if let Op::Branch(to) = last.op {
            followers.push(block_of(to));
        }
        if goes_on && end < n {
            followers.push(block_of(end));
        }
        Block { begin: *begin, end, followers, alive_before: Set::new(n_names) }
    };
    begins.iter().zip(ends).map(block).collect()
}

/// Goes through a block from its end: `tell` hears which registers are alive, or written, at each instruction.
fn walk(
    code: &mut Code,
    names: &mut Names,
    block: &Block,
    alive: &mut Set,
    mut tell: impl FnMut(usize, usize),
) {
    for i in (block.begin..block.end).rev() {
        let instruction = &mut code.instructions[i];
        names.reads.clear();
        names.writes.clear();
        instruction.op.visit(names);
        for &name in &names.writes {
            tell(name, i);
            // Lanes that a predicate keeps from it keep what they had.
            if instruction.guard.is_none() {
                alive.remove(name);
            }
        }
        for &name in &names.reads {
            tell(name, i);
            alive.insert(name);
        }
    }
}

/// From the first to the last instruction at which each is alive, by the order of the text.
fn intervals(code: &mut Code, names: &mut Names, n_names: usize) -> Vec<Option<(usize, usize)>> {
    let mut blocks = blocks(code, n_names);
    let mut changed = true;
    while changed {
        changed = false;
        for b in (0..blocks.len()).rev() {
            let mut alive = Set::new(n_names);
            for &follower in &blocks[b].followers {
                alive.add(&blocks[follower].alive_before);
            }
            walk(code, names, &blocks[b], &mut alive, |_, _| {});
            if alive != blocks[b].alive_before {
                blocks[b].alive_before = alive;
                changed = true;
            }
        }
    }
    let mut found: Vec<Option<(usize, usize)>> = vec![None; n_names];
    let mut extend = |name: usize, i: usize| {
        let (first, last) = found[name].get_or_insert((i, i));
        (*first, *last) = ((*first).min(i), (*last).max(i));
    };
    for b in 0..blocks.len() {
        let mut alive = Set::new(n_names);
        for &follower in &blocks[b].followers {
            alive.add(&blocks[follower].alive_before);
        }
        alive.iter().for_each(|name| extend(name, blocks[b].end - 1));
        blocks[b].alive_before.iter().for_each(|name| extend(name, blocks[b].begin));
        walk(code, names, &blocks[b], &mut alive, &mut extend);
    }
    found
}

/// Places for intervals so that no two that meet share one; how many there are.
fn places(intervals: &[Option<(usize, usize)>]) -> (Vec<u32>, u32) {
    let mut by_begin: Vec<usize> = (0..intervals.len()).filter(|i| intervals[*i].is_some()).collect();
    by_begin.sort_unstable_by_key(|i| intervals[*i]);
    let mut free_from: BTreeSet<(usize, u32)> = BTreeSet::new();
    let (mut places, mut n) = (vec![0; intervals.len()], 0);
    for i in by_begin {
        let (first, last) = intervals[i].expect("only those that are alive were taken");
        // The place that is free for longest, if it is by now.
        let place = match free_from.first() {
            Some(&(free, place)) if free <= first => {
                free_from.pop_first();
                place
            }
            _ => {
                n += 1;
                n - 1
            }
        };
        places[i] = place;
        free_from.insert((last + 1, place));
    }
    (places, n)
}

struct Renamed<'a> {
    regs: &'a [u32],
    wide: &'a [u32],
    /// Instructions whose operand stands for two (sums that are read and written) are told twice.
    is_done: Vec<*const u32>,
}

impl Visitor for Renamed<'_> {
    fn reg(&mut self, _role: Role, reg: &mut Reg) {
        let at: *const u32 = &raw const reg.0;
        if reg.0 & CONSTANT == 0 && !self.is_done.contains(&at) {
            self.is_done.push(at);
            reg.0 = self.regs[reg.0 as usize];
        }
    }

    fn wide(&mut self, _role: Role, reg: &mut WideReg) {
        if reg.0 & CONSTANT == 0 {
            reg.0 = self.wide[reg.0 as usize];
        }
    }
}

pub(super) fn allocate(code: &mut Code) {
    let (n_regs, n_wide) = (code.n_regs as usize, code.n_wide as usize);
    let mut names = Names { n_regs, reads: Vec::new(), writes: Vec::new() };
    let mut intervals = intervals(code, &mut names, n_regs + n_wide);
    // A warp finds these written when it begins.
    let mut given: Vec<usize> = code.specials.iter().map(|(_, reg)| reg.0 as usize).collect();
    given.push(n_regs + code.dynamic_shared.0 as usize);
    for name in given {
        let last = intervals[name].map_or(0, |(_, last)| last);
        intervals[name] = Some((0, last));
    }
    let (regs, n) = places(&intervals[..n_regs]);
    code.n_regs = n;
    let (wide, n) = places(&intervals[n_regs..]);
    code.n_wide = n;
    for instruction in &mut code.instructions {
        instruction.op.visit(&mut Renamed { regs: &regs, wide: &wide, is_done: Vec::new() });
    }
    for (_, reg) in &mut code.specials {
        reg.0 = regs[reg.0 as usize];
    }
    code.dynamic_shared.0 = wide[code.dynamic_shared.0 as usize];
}
