//! A warp: lanes that go different ways, and come together again where they meet.

use super::addresses::Memory;
use super::lanes::Registers;
use super::meeting::{ClusterMeeting, Meetings};
use super::step::Next;
use crate::code::{ALL, Code, Mask, Op, Special};

/// Lanes at the same place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Path {
    pub(super) at: usize,
    pub(super) lanes: Mask,
    pub(super) state: State,
    /// It has run for long while others could have.
    is_tired: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Runs,
    /// Until lanes that it has to meet come to the same instruction.
    Mates,
    /// Until this turn of the block's barrier is over.
    Barrier {
        id: u32,
        turn: u64,
    },
    Cluster {
        turn: u64,
    },
}

pub(crate) struct Warp {
    pub(super) registers: Registers,
    pub(super) local: Vec<u8>,
    pub(super) carry: Mask,
    pub(super) gone: Mask,
    /// Turn of the cluster's barrier at which it has arrived.
    pub(super) cluster_turn: u64,
    /// For the launch ahead, or heard from somebody who has.
    pub(super) has_waited: bool,
    pub(super) paths: Vec<Path>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It could go on.
    Runs,
    /// For others.
    Waits,
    Done,
}

/// Which warp it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Where {
    pub(crate) block: [u32; 3],
    pub(crate) blocks: [u32; 3],
    pub(crate) threads: u32,
    pub(crate) warp: u32,
    pub(crate) rank: u32,
    pub(crate) cluster: u32,
    /// Shared memory of the launch's size begins here.
    pub(crate) dynamic_shared: u64,
}

/// What it runs with.
pub(crate) struct Around<'a, 'm> {
    pub(crate) code: &'a Code,
    pub(crate) memory: &'a mut Memory<'m>,
    pub(crate) meetings: &'a mut Meetings,
    pub(crate) cluster: &'a mut ClusterMeeting,
    /// Goes up with every step.
    pub(crate) clock: &'a mut u64,
}

/// So long a path runs while others of its warp could, too.
const PATIENCE: u32 = 4096;

impl Warp {
    pub(crate) fn new(code: &Code, place: &Where) -> Self {
        let first = place.warp * 32;
        let there = place.threads.saturating_sub(first).min(32);
        let lanes = if there == 32 { ALL } else { (1 << there) - 1 };
        let mut registers = Registers::new(code);
        for (special, reg) in &code.specials {
            let value = std::array::from_fn(|l| match special {
                Special::Thread(0) => first + l as u32,
                Special::Thread(_) => 0,
                Special::Threads(0) => place.threads,
                Special::Threads(_) => 1,
                Special::Block(axis) => place.block[*axis],
                Special::Blocks(axis) => place.blocks[*axis],
                Special::Lane => l as u32,
                Special::Warp => place.warp,
                Special::ClusterRank => place.rank,
                Special::ClusterBlocks => place.cluster,
            });
            registers.set(*reg, &value, ALL);
        }
        registers.set_wide(code.dynamic_shared, &[place.dynamic_shared; 32], ALL);
        Self {
            registers,
            local: vec![0xff; 32 * code.local_bytes],
            carry: 0,
            gone: !lanes,
            cluster_turn: 0,
            has_waited: false,
            paths: vec![Path { at: 0, lanes, state: State::Runs, is_tired: false }],
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.paths.is_empty()
    }

    pub(super) fn has_waited(&mut self, around: &mut Around<'_, '_>) {
        self.has_waited = true;
        around.memory.has_waited = true;
    }

    /// For about so many instructions, or until it has to wait.
    pub(crate) fn run(&mut self, around: &mut Around<'_, '_>, instructions: u32) -> Result<Outcome, String> {
        let mut left = instructions;
        self.has_waited |= around.memory.order.is_plain();
        around.memory.has_waited = self.has_waited;
        while left > 0 {
            self.wake(around);
            self.join();
            let Some(i) = self.choose() else {
                if self.paths.is_empty() {
                    return Ok(Outcome::Done);
                }
                if !self.release_mates(around.code) {
                    return Ok(Outcome::Waits);
                }
                continue;
            };
            // The others are further on: as soon as this path gets there, it is looked who goes next.
            let path = self.paths[i];
            let others = || self.paths.iter().enumerate().filter(|(j, _)| *j != i).map(|(_, p)| p.at);
            let meets = others().filter(|at| *at > path.at).min().unwrap_or(usize::MAX);
            let is_alone = self.paths.len() == 1;
            let turn = if is_alone { left } else { left.min(PATIENCE) };
            let mut steps = 0;
            let next = loop {
                let at = self.paths[i].at;
                if at >= meets || steps == turn {
                    break Next::On;
                }
                steps += 1;
                match self.step(around, i)? {
                    Next::On => {}
                    next => break next,
                }
            };
            *around.clock += u64::from(steps);
            left -= steps.min(left);
            // One that waits for another lane of its warp would else be furthest behind for good.
            if !is_alone && (steps == turn || next == Next::Yield) {
                self.paths.get_mut(i).into_iter().for_each(|path| path.is_tired = true);
            }
            if next == Next::Yield {
                return Ok(Outcome::Runs);
            }
        }
        Ok(Outcome::Runs)
    }

    /// Paths whose barrier is over go on behind it.
    fn wake(&mut self, around: &mut Around<'_, '_>) {
        for path in &mut self.paths {
            match path.state {
                State::Barrier { id, turn } => {
                    let meeting = around.meetings.get(id as usize);
                    if meeting.turn == turn {
                        continue;
                    }
                    self.has_waited |= meeting.had_waited;
                    if let Op::Barrier { word: crate::code::BarrierWord::Or { to, .. }, .. } =
                        around.code.instructions[path.at].op
                    {
                        self.registers.set_pred(to, if meeting.any_then { ALL } else { 0 }, path.lanes);
                    }
                }
                State::Cluster { turn } if around.cluster.turn > turn => {
                    self.has_waited |= around.cluster.had_waited;
                }
                _ => continue,
            }
            path.state = State::Runs;
            path.at += 1;
        }
        around.memory.has_waited = self.has_waited;
    }

    /// Paths at the same place are one. Those that wait for lanes at it look again.
    fn join(&mut self) {
        if self.paths.len() < 2 {
            return;
        }
        let is_open = |p: &Path| matches!(p.state, State::Runs | State::Mates);
        let mut i = 0;
        while i < self.paths.len() {
            let mut j = i + 1;
            while j < self.paths.len() {
                let (a, b) = (self.paths[i], self.paths[j]);
                if a.at == b.at && is_open(&a) && is_open(&b) {
                    self.paths[i] = Path { lanes: a.lanes | b.lanes, state: State::Runs, ..a };
                    self.paths.swap_remove(j);
                } else {
                    j += 1;
                }
            }
            i += 1;
        }
    }

    /// Of those that can run the one furthest behind, unless it has had its turn.
    fn choose(&mut self) -> Option<usize> {
        let runs = |p: &&mut Path| p.state == State::Runs;
        if self.paths.iter_mut().filter(runs).all(|p| p.is_tired) {
            self.paths.iter_mut().for_each(|p| p.is_tired = false);
        }
        let runs = self.paths.iter().enumerate().filter(|(_, p)| p.state == State::Runs && !p.is_tired);
        runs.min_by_key(|(_, p)| p.at).map(|(i, _)| i)
    }

    /// Lanes may meet at `bar.warp.sync` in different places: where nobody else is left to come, they have.
    fn release_mates(&mut self, code: &Code) -> bool {
        let is_plain =
            |p: &Path| p.state == State::Mates && matches!(code.instructions[p.at].op, Op::WarpSync { .. });
        let waiting = self.paths.iter().filter(|p| is_plain(p)).fold(0, |all, p| all | p.lanes);
        let mut is_any = false;
        for i in 0..self.paths.len() {
            let path = self.paths[i];
            let Op::WarpSync { mates } = code.instructions[path.at].op else { continue };
            let lane = path.lanes.trailing_zeros() as usize;
            let wanted = self.registers.get(code, mates)[lane] & !self.gone;
            if path.state == State::Mates && waiting & wanted == wanted {
                self.paths[i].at += 1;
                self.paths[i].state = State::Runs;
                is_any = true;
            }
        }
        is_any
    }

    /// The lanes in `apart` go on at `at`, the rest of path `i` stays where it is; the path is the rest's.
    pub(super) fn split(&mut self, i: usize, apart: Mask, at: usize) {
        self.paths[i].lanes &= !apart;
        self.paths.push(Path { at, lanes: apart, state: State::Runs, is_tired: false });
    }

    /// Lines of the PTX at which its lanes are, for a fault's text.
    pub(crate) fn places(&self, code: &Code) -> String {
        let place = |p: &Path| {
            let line = code.instructions.get(p.at).map_or(0, |i| i.line);
            format!("lanes {:#x} at line {line} ({:?})", p.lanes, p.state)
        };
        self.paths.iter().map(place).collect::<Vec<_>>().join(", ")
    }
}
