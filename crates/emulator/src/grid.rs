//! A launch: all blocks of a grid, by turns.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::exec::{Around, ClusterMeeting, Meetings, Memory, Outcome, SHARED_BASE, Warp, Where};
use crate::order::Ahead;
use crate::program::Kernel;
use crate::space::{Range, Space};

pub struct Launch {
    pub kernel: Arc<Kernel>,
    pub grid: [u32; 3],
    pub threads: u32,
    pub shared_bytes: usize,
    pub params: Vec<u8>,
    /// It may begin before the launch ahead has ended.
    pub overlaps: bool,
}

/// Blocks that are under way at once, and wait for one another: more than any launch counts on (two for each of four multiprocessors).
const AT_ONCE: usize = 16;

/// Instructions of a warp before it is another's turn.
const TURN: u32 = 2048;
/// Turns in which no warp writes anything or comes to a barrier, before it is said that they wait for good.
const PATIENCE: u32 = 2000;

/// Instructions of a launch before it is said that it has no end: some minutes.
const LONGEST: u64 = 1 << 33;

/// What memory holds before anything is written there: numbers made of it are none.
const UNWRITTEN: u8 = 0xff;

/// Blocks that share their memory.
struct Cluster {
    shared: Vec<Vec<u8>>,
    meetings: Vec<Meetings>,
    together: ClusterMeeting,
    /// Of each block.
    warps: Vec<Vec<Warp>>,
    places: Vec<[u32; 3]>,
}

impl Launch {
    /// Cluster `n`, by x first.
    fn cluster(&self, n: u64) -> Cluster {
        let size = self.kernel.cluster.max(1);
        let [x, y, _] = self.grid;
        let across = u64::from(x / size);
        let first = (n % across) as u32 * size;
        let (row, plane) = ((n / across % u64::from(y)) as u32, (n / across / u64::from(y)) as u32);
        let dynamic = self.kernel.static_shared;
        let places: Vec<[u32; 3]> = (0..size).map(|rank| [first + rank, row, plane]).collect();
        let warps = places.iter().zip(0..).map(|(block, rank)| {
            let warp = |warp| {
                let place = Where {
                    block: *block,
                    blocks: self.grid,
                    threads: self.threads,
                    warp,
                    rank,
                    cluster: size,
                    dynamic_shared: SHARED_BASE + dynamic as u64,
                };
                Warp::new(&self.kernel.code, &place)
            };
            (0..self.threads.div_ceil(32)).map(warp).collect()
        });
        Cluster {
            warps: warps.collect(),
            shared: vec![vec![UNWRITTEN; dynamic + self.shared_bytes]; size as usize],
            meetings: (0..size).map(|_| Meetings::new(self.threads)).collect(),
            together: ClusterMeeting::new(self.threads * size),
            places,
        }
    }

    /// Which warp, and where it is.
    fn describe(&self, cluster: &Cluster, block: usize, warp: usize) -> String {
        let place = cluster.places[block];
        format!("block {place:?}, warp {warp}: {}", cluster.warps[block][warp].places(&self.kernel.code))
    }

    /// Everybody's, but no more than a few lines.
    fn describe_all(&self, clusters: &VecDeque<Cluster>) -> String {
        let mut lines = Vec::new();
        for cluster in clusters {
            for (block, warps) in cluster.warps.iter().enumerate() {
                for (w, warp) in warps.iter().enumerate() {
                    if !warp.is_done() && lines.len() < 24 {
                        lines.push(self.describe(cluster, block, w));
                    }
                }
            }
        }
        lines.join("\n  ")
    }
}

/// Runs it to its end, or says why it has none.
pub fn run(launch: &Launch, space: &Space, ahead: &mut Ahead) -> Result<(), String> {
    let code = &launch.kernel.code;
    let size = launch.kernel.cluster.max(1) as usize;
    if !(launch.grid[0] as usize).is_multiple_of(size) {
        return Err(format!("{} blocks in clusters of {size}", launch.grid[0]));
    }
    let n_clusters = launch.grid.iter().map(|n| u64::from(*n)).product::<u64>() / size as u64;
    let mut waiting = 0..n_clusters;
    let mut order = ahead.begin(launch.overlaps);
    let mut clusters: VecDeque<Cluster> = VecDeque::new();
    let (mut known, mut clock, mut idle) = ([Range::default(); 4], 0, 0);
    loop {
        while clusters.len() * size < AT_ONCE
            && let Some(n) = waiting.next()
        {
            clusters.push_back(launch.cluster(n));
        }
        if clusters.is_empty() {
            return ahead.end(order, &launch.kernel.name);
        }
        let mut n_writes = 0;
        for cluster in &mut clusters {
            for block in 0..size {
                for w in 0..cluster.warps[block].len() {
                    if cluster.warps[block][w].is_done() {
                        continue;
                    }
                    let mut memory = Memory {
                        global: space,
                        params: &launch.params,
                        shared: &mut cluster.shared,
                        rank: block,
                        known,
                        n_writes: 0,
                        order: &mut order,
                        has_waited: false,
                    };
                    let mut around = Around {
                        code,
                        memory: &mut memory,
                        meetings: &mut cluster.meetings[block],
                        cluster: &mut cluster.together,
                        clock: &mut clock,
                    };
                    let outcome = cluster.warps[block][w].run(&mut around, TURN);
                    (known, n_writes) = (memory.known, n_writes + memory.n_writes);
                    if let Err(why) = outcome {
                        return Err(format!("{why}\n  {}", launch.describe(cluster, block, w)));
                    }
                    debug_assert_eq!(outcome == Ok(Outcome::Done), cluster.warps[block][w].is_done());
                }
            }
        }
        clusters.retain(|cluster| cluster.warps.iter().flatten().any(|warp| !warp.is_done()));
        idle = if n_writes == 0 { idle + 1 } else { 0 };
        if idle == PATIENCE || clock > LONGEST {
            let what = if idle == PATIENCE { "nothing has happened for long" } else { "it does not end" };
            return Err(format!("{what}\n  {}", launch.describe_all(&clusters)));
        }
    }
}
