// What a launch of linear_chain.cuh is given, and how weights and inputs come to the warps that multiply.
#pragma once
#include "linear_finish.cuh"

#define MAX_PHASES 4
#define MAX_RING 8
// Cells of 128 columns that an op may make for the next.
#define MAX_READY 256
// Sixteen warps multiply. One brings weights, one inputs, one finds what rows are divided by.
#define CHAIN_THREADS (THREADS + 96)
// Of each warp that multiplies.
#define SCRATCH_BYTES 512
// Halves of units of a stage's weights on their way to a block, no more than slots have (chain.rs asserts it): what blocks tell each other waits behind them.
// With four of 8 layers' 854 us are 866, with five 874, with two 861; as quarters four to seven are 7 % slower.
#define MOST_ON_WAY 3
// In place of a row, as far as squares of two cells lie apart.
#define ZEROS_BYTES (CELL_BYTES + 3 * 512 + 96)

struct ChainParams {
    LinearParams phases[MAX_PHASES];
    u64 left;         // u32: how many warps are done with `ready`, which lies 8 bytes behind it; all of it zero between launches
    u32 n_phases;
    u32 n_slots;      // of the ring: a stage's weights and inputs each
    u32 slot_bytes;
    u32 input_at;     // in a slot
    u32 exchange_at;  // in shared memory: where rows' sums change places
    u32 lists_at;     // every phase's, one after the other
    u32 scratch_at;
    u32 zeros_at;     // ZEROS_BYTES of them
    u32 leavers;      // as of LinearParams
    u32 pad;
};

struct ChainRoom {
    Room room;  // its barriers: of inputs, and of slots that nobody reads any more
    u64 weights_full[2][MAX_RING];  // of each half of a unit
    u64 factors_made[MAX_PHASES];   // of what a phase's rows are multiplied by, in `room.factor`
};
#define RING_AT (((u32)sizeof(ChainRoom) + 127) / 128 * 128)
static_assert(MAX_RING <= MAX_INPUTS, "a slot has its barriers in Room");
static_assert(MAX_PHASES <= MAX_TILES, "Room keeps factors of 8 rows of every phase");
static_assert(ZEROS_BYTES / 16 <= CHAIN_THREADS, "a thread writes one");

// A stage's place: whoever fills or reads the ring goes through all stages of all phases in the same order.
struct Ring {
    const ChainParams& c;
    u32 base;  // of shared memory
    u32 slot = 0, parity = 0;
    __device__ __forceinline__ Ring(const ChainParams& c, u32 base) : c(c), base(base) {}
    __device__ __forceinline__ u32 at() const { return base + RING_AT + slot * c.slot_bytes; }
    __device__ __forceinline__ u32 weights_full(u32 half) const { return base + (u32)sizeof(Room) + (half * MAX_RING + slot) * 8; }
    __device__ __forceinline__ u32 empty() const { return base + 8 * MAX_INPUTS + slot * 8; }
    __device__ __forceinline__ u32 inputs_full() const { return base + slot * 8; }
    // No further than to the ring's end.
    __device__ __forceinline__ void skip(u32 n) {
        if ((slot += n) == c.n_slots) slot = 0, parity ^= 1;
    }
    __device__ __forceinline__ void next() { skip(1); }
    __device__ __forceinline__ void begin() {
#pragma unroll 1
        for (u32 i = 0; i < c.n_slots; i++, next()) {
            barrier_init(weights_full(0), 1), barrier_init(weights_full(1), 1);
            barrier_init(inputs_full(), 1), barrier_init(empty(), WARPS * c.leavers);
        }
        barrier_init_visible();
    }
    // By who fills it.
    __device__ __forceinline__ void wait_empty() const { barrier_wait(empty(), parity ^ 1); }
};

// The lists of a block, phase after phase.
struct PhaseList {
    const u8* at;
    __device__ __forceinline__ PhaseList(const ChainParams& c, const u8* shared) : at(shared + c.lists_at) {}
    __device__ __forceinline__ const Segment* segments() const { return (const Segment*)at; }
    __device__ __forceinline__ const u32* wanted(const LinearParams& p) const { return (const u32*)(segments() + p.list_segments); }
    __device__ __forceinline__ void next(const LinearParams& p) { at += p.list_bytes; }
};

// Where a lane finds a stage of a tile. What is the same in every stage is kept in registers: made again in each, it was about ten instructions.
struct StageOfLane {
    u32 weights, input;   // of the tile, of the first cell
    OfLane of_tile;
    u32 is_there, row;    // the lane's row of the input: 1, and behind its first cell; or 0, and where zeros are
    u32 scales;           // behind the first cell, of the rows of the lane's sums
    u32 scratch, made_at;  // where scales of the tile are left for others, and taken
    __device__ __forceinline__ StageOfLane(u32 n_rows, u32 zeros, u32 scratch_of_warp) {
        const Lane l;
        // In place of rows that there are not, zeros: what an earlier step had left there took power in every product, 1 % of a 27B's time. (Floats, which are
        // few, read it all the same.)
        is_there = kept(l.lane % 8 < n_rows), row = kept(is_there ? l.lane * 16 : zeros);
        of_tile.words = kept(of_tile.words), of_tile.own = kept(of_tile.own), of_tile.codes = kept(of_tile.codes), of_tile.bytes = kept(of_tile.bytes);
        scales = kept(l.t * 8), scratch = kept(scratch_of_warp + l.lane * 16), made_at = kept(scratch_of_warp + l.g * 64);
    }
};

// A stage of a tile, its two halves of 128 columns at once.
template <class F>
struct Halves {
    static constexpr u32 STAGE_BYTES = F::STAGE_BYTES;
    F first, second;
    __device__ __forceinline__ Halves(const StageOfLane& at) : first(shared_at(at.weights)), second(shared_at(at.weights)) { first.begin(0), second.begin(1); }
    __device__ __forceinline__ void begin_group(int) {}
};
// Scales, of which each of four lanes makes a quarter, come to all of them by shared memory: shuffles take twice as much of the time that the multiprocessor
// has for either, and all made by every lane were, as tiles of Q4_K lay before, 23 instructions more, and 0.5 % of a row's time.
template <class F, int HALF>
struct SharedHalf : F {
    uint4 made;  // of the group of both halves that is next
    __device__ __forceinline__ SharedHalf(const F& format) : F(format) { F::begin_codes(HALF); }
    __device__ __forceinline__ void scales(int, int j, u32& s, u32& m) const { F::take(made, HALF, j, s, m); }
};
template <class F>
struct SharedHalves {
    static constexpr u32 STAGE_BYTES = F::STAGE_BYTES;
    SharedHalf<F, 0> first;
    SharedHalf<F, 1> second;
    u32 made_at;
    __device__ __forceinline__ SharedHalves(const StageOfLane& at) : SharedHalves(shared(F(shared_at(at.weights), at.of_tile), at.scratch), at.made_at) {}
    // Once for both: by themselves halves asked in pieces, 12 times in a stage of Q6_K in place of 4.
    __device__ __forceinline__ void begin_group(int i) { first.made = second.made = load_shared_16(made_at + i * 16); }

private:
    __device__ __forceinline__ SharedHalves(const F& format, u32 made_at) : first(format), second(format), made_at(made_at) {}
    static __device__ __forceinline__ F shared(F format, u32 scratch) {
        // Nobody reads the last stage's any more: lanes met when they left it.
        *(uint4*)shared_at(scratch) = format.made_by_lane();
        __syncwarp();
        return format;
    }
};
struct Floats : F16 {
    __device__ __forceinline__ Floats(const StageOfLane& at) : F16(shared_at(at.weights)) {}
};
template <>
struct IsFloat<Floats> : IsFloat<F16> {};
