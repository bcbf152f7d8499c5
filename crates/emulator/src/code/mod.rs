//! Instructions as they run: on registers of a warp, each of which holds a value for every lane.

pub(crate) mod operands;

/// A register of up to 32 bits, for all lanes.
pub(crate) type Lanes = [u32; 32];
/// Of 64.
pub(crate) type Wide = [u64; 32];
/// A bit for each lane.
pub(crate) type Mask = u32;

pub(crate) const ALL: Mask = !0;

pub(crate) fn lanes_of(mask: Mask) -> impl Iterator<Item = usize> {
    let mut left = mask;
    std::iter::from_fn(move || {
        let lane = (left != 0).then(|| left.trailing_zeros() as usize);
        left &= left.wrapping_sub(1);
        lane
    })
}

/// In a register's number: it is one of the kernel's constants. As a predicate, whether it is true is the lowest bit.
pub(crate) const CONSTANT: u32 = 1 << 31;

/// Which register: of the warp's own, or a constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reg(pub(crate) u32);
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WideReg(pub(crate) u32);
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pred(pub(crate) u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnyReg {
    Reg(Reg),
    Wide(WideReg),
}

/// Lanes for which the predicate is true, or false where `is_not`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Guard {
    pub(crate) pred: Pred,
    pub(crate) is_not: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    /// Whichever window the address is in.
    Generic,
    Global,
    /// Of the block, or where the address says so of another of its cluster.
    Shared,
    Local,
    Param,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) space: Space,
    pub(crate) base: AnyReg,
    pub(crate) offset: i64,
}

/// How a value of `bytes` becomes a register's, and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Width {
    pub(crate) bytes: u8,
    pub(crate) is_signed: bool,
    /// The register it goes to has 16 bits: the upper half stays zero.
    pub(crate) is_short: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum AtomicOp {
    AddU32,
    /// Up to a limit, then 0.
    IncU32,
    OrU32,
    AddF32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Shuffle {
    Index,
    Xor,
    Up,
    Down,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Vote {
    Any,
    All,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Redux {
    Max,
    Min,
    Add,
    Or,
    And,
    Xor,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum BarrierWord {
    Sync,
    Arrive,
    /// Whether any thread's predicate is true.
    Or {
        to: Pred,
        from: Pred,
    },
}

/// What is done. Functions are of one lane after the other, so that results of lanes that do not take part can be left.
pub(crate) enum Op {
    A1(fn(&mut Lanes, &Lanes), Reg, Reg),
    A2(fn(&mut Lanes, &Lanes, &Lanes), Reg, [Reg; 2]),
    A3(fn(&mut Lanes, &Lanes, &Lanes, &Lanes), Reg, [Reg; 3]),
    A4(fn(&mut Lanes, [&Lanes; 4]), Reg, [Reg; 4]),
    W1(fn(&mut Wide, &Wide), WideReg, WideReg),
    W2(fn(&mut Wide, &Wide, &Wide), WideReg, [WideReg; 2]),
    W3(fn(&mut Wide, &Wide, &Wide, &Wide), WideReg, [WideReg; 3]),
    /// The second operand is a count of bits.
    WShift(fn(&mut Wide, &Wide, &Lanes), WideReg, WideReg, Reg),
    WInsert(WideReg, [WideReg; 2], [Reg; 2]),
    Widen(fn(&mut Wide, &Lanes), WideReg, Reg),
    WidenProduct(fn(&mut Wide, &Lanes, &Lanes), WideReg, [Reg; 2]),
    Narrow(fn(&mut Lanes, &Wide), Reg, WideReg),
    Carry(fn(&mut Lanes, &Lanes, &Lanes, &Lanes, &mut Mask, Mask), Reg, [Reg; 3]),
    Compare(fn(&Lanes, &Lanes) -> Mask, Pred, [Reg; 2]),
    WCompare(fn(&Wide, &Wide) -> Mask, Pred, [WideReg; 2]),
    P2(fn(Mask, Mask) -> Mask, Pred, [Pred; 2]),
    Select(Reg, [Reg; 2], Pred),
    WSelect(WideReg, [WideReg; 2], Pred),
    Load {
        to: Vec<AnyReg>,
        from: Place,
        width: Width,
    },
    Store {
        to: Place,
        from: Vec<AnyReg>,
        width: Width,
    },
    Atomic {
        op: AtomicOp,
        old: Option<Reg>,
        at: Place,
        by: Reg,
    },
    /// Bytes by thread: as many as `read`, then zeros up to `bytes`.
    CopyAsync {
        to: Place,
        from: Place,
        bytes: u32,
        read: Option<Reg>,
    },
    CopyBulk {
        to: Place,
        from: Place,
        bytes: Reg,
        barrier: Place,
    },
    /// To another block's shared memory, whose barrier is told.
    StoreAsync {
        to: Place,
        from: Vec<Reg>,
        barrier: Place,
    },
    BarrierInit {
        at: Place,
        count: Reg,
    },
    BarrierArrive {
        at: Place,
        expected_bytes: Option<Reg>,
    },
    /// Copies are done when they are asked for, so it arrives at once.
    BarrierArriveAfterCopies {
        at: Place,
    },
    BarrierTry {
        to: Pred,
        at: Place,
        parity: Reg,
    },
    Branch(usize),
    Exit,
    Trap,
    Nothing,
    /// For the launch ahead.
    GridWait,
    /// The next launch may begin.
    GridLaunch,
    /// Others go first.
    Yield,
    Clock(WideReg),
    Barrier {
        word: BarrierWord,
        id: Reg,
        threads: Option<Reg>,
    },
    ClusterArrive,
    ClusterWait,
    /// A block's address as another of the cluster's.
    MapRank {
        to: Reg,
        at: Reg,
        rank: Reg,
    },
    WarpSync {
        mates: Reg,
    },
    Shuffle {
        kind: Shuffle,
        to: Reg,
        is_in_range: Option<Pred>,
        from: [Reg; 3],
        mates: Reg,
    },
    Ballot {
        to: Reg,
        from: Pred,
        is_not: bool,
        mates: Reg,
    },
    Vote {
        kind: Vote,
        to: Pred,
        from: Pred,
        is_not: bool,
        mates: Reg,
    },
    Redux {
        kind: Redux,
        to: Reg,
        from: Reg,
        mates: Reg,
    },
    MatchAny {
        to: Reg,
        from: Reg,
        mates: Reg,
    },
    Mma {
        form: MmaForm,
        to: [Reg; 4],
        a: [Reg; 4],
        b: [Reg; 2],
        c: [Reg; 4],
    },
    Wgmma {
        is_bf16: bool,
        sums: Vec<Reg>,
        a: [Reg; 4],
        b: WideReg,
        adds: Pred,
    },
    LoadMatrix {
        to: Vec<Reg>,
        from: Place,
        is_transposed: bool,
    },
    StoreMatrix {
        to: Place,
        from: Vec<Reg>,
        is_transposed: bool,
    },
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum MmaForm {
    F16,
    Bf16,
    Tf32,
}

pub(crate) struct Instruction {
    pub(crate) guard: Option<Guard>,
    pub(crate) op: Op,
    /// Of the PTX.
    pub(crate) line: u32,
}

/// What a warp finds in a register when it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Special {
    Thread(usize),
    Threads(usize),
    Block(usize),
    Blocks(usize),
    Lane,
    Warp,
    ClusterRank,
    ClusterBlocks,
}

#[derive(Default)]
pub(crate) struct Code {
    pub(crate) instructions: Vec<Instruction>,
    pub(crate) n_regs: u32,
    pub(crate) n_wide: u32,
    pub(crate) n_preds: u32,
    pub(crate) constants: Vec<Lanes>,
    pub(crate) wide_constants: Vec<Wide>,
    pub(crate) specials: Vec<(Special, Reg)>,
    /// Receives where shared memory of the launch's size begins.
    pub(crate) dynamic_shared: WideReg,
    /// Of a thread.
    pub(crate) local_bytes: usize,
}
