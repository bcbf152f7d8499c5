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
// In place of a row, as far as squares of two cells lie apart.
#define ZEROS_BYTES (CELL_BYTES + 3 * 512 + 96)

struct ChainParams {
    LinearParams phases[MAX_PHASES];
    u64 left;         // u32: how many warps are done with `ready`, which lies 8 bytes behind it; all of it zero between launches
    u32 n_phases;
    u32 n_slots;      // of the ring: a stage's weights and inputs each
    u32 slot_bytes;
    u32 input_at;     // in a slot
    u32 most_on_way;  // halves of units of a stage's weights, no more than slots have
    u32 exchange_at;  // in shared memory: where rows' sums change places
    u32 lists_at;     // every phase's, one after the other
    u32 scratch_at;
    u32 zeros_at;     // ZEROS_BYTES of them
    u32 pad;
};

struct ChainRoom {
    Room room;  // its barriers: of inputs, and of slots that nobody reads any more
    u64 weights_full[2][MAX_RING];  // of each half of a unit
    u32 factors_made;  // phases of which `room.factor` is or was
};
#define RING_AT (((u32)sizeof(ChainRoom) + 127) / 128 * 128)
static_assert(MAX_RING <= MAX_INPUTS, "a slot has its barriers in Room");
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
    __device__ __forceinline__ void next() {
        if (++slot == c.n_slots) slot = 0, parity ^= 1;
    }
    __device__ __forceinline__ void begin() {
#pragma unroll 1
        for (u32 i = 0; i < c.n_slots; i++, next()) {
            barrier_init(weights_full(0), 1), barrier_init(weights_full(1), 1);
            barrier_init(inputs_full(), 1), barrier_init(empty(), WARPS);
        }
        barrier_init_visible();
    }
    // By who reads it, of weights half a unit's.
    __device__ __forceinline__ void wait_full(u32 half) const { barrier_wait(weights_full(half), parity), barrier_wait(inputs_full(), parity); }
    __device__ __forceinline__ void leave() {
        __syncwarp();
        if ((threadIdx.x & 31) == 0) barrier_arrive(empty());
        next();
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

// A stage of a tile, its two halves of 128 columns at once.
template <class F>
struct Halves {
    static constexpr u32 STAGE_BYTES = F::STAGE_BYTES;
    F first, second;
    __device__ __forceinline__ Halves(const u8* from, u8*) : first(from), second(from) { first.begin(0), second.begin(1); }
};
// Scales and minima, those of two groups of 32 columns made by each of four lanes, come to all of them by shared memory: shuffles take twice as much of the
// time that the multiprocessor has for either, and all made by every lane are 23 instructions more, and 0.5 % of a row's time.
template <class Base, int HALF>
struct SharedHalf : Base {
    const u8* made;  // of the lane's outputs: of each group of both halves
    __device__ __forceinline__ SharedHalf(const Base& base, const u8* made) : Base(base), made(made) { Base::begin_codes(HALF); }
    __device__ __forceinline__ void scales(int q, int j, u32& to_s, u32& to_m) const {
        if (j & 1) return;
        const uint4 of_both = *(const uint4*)(made + (2 * q + (j >> 1)) * 16);
        to_s = HALF ? of_both.z : of_both.x, to_m = HALF ? of_both.w : of_both.y;
    }
};
template <class Base>
struct SharedHalves {
    static constexpr u32 STAGE_BYTES = Base::STAGE_BYTES;
    SharedHalf<Base, 0> first;
    SharedHalf<Base, 1> second;
    __device__ __forceinline__ SharedHalves(const u8* from, u8* scratch) : SharedHalves(shared(Base(from), scratch), scratch + Lane().g * 64) {}

private:
    __device__ __forceinline__ SharedHalves(const Base& base, const u8* made) : first(base, made), second(base, made) {}
    static __device__ __forceinline__ Base shared(Base base, u8* scratch) {
        uint4 own;
        base.begin_scales(0), own.x = base.s, own.y = base.m;
        base.begin_scales(1), own.z = base.s, own.w = base.m;
        // Nobody reads the last stage's any more: lanes met when they left it.
        *(uint4*)(scratch + Lane().lane * 16) = own;
        __syncwarp();
        return base;
    }
};
struct Floats : F16 {
    __device__ __forceinline__ Floats(const u8* from, u8*) : F16(from) {}
};
template <>
struct IsFloat<Floats> : IsFloat<F16> {};
