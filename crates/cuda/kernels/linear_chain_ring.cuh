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
// As far as squares of two cells are read.
#define ZEROS_BYTES 3712

struct ChainParams {
    LinearParams phases[MAX_PHASES];
    u64 left;         // u32: how many warps are done with `ready`, which lies 8 bytes behind it; all of it zero between launches
    u32 n_phases;
    u32 n_slots;      // of the ring: a stage's weights and inputs each
    u32 slot_bytes;
    u32 input_at;     // in a slot
    u32 most_on_way;  // stages of weights, no more than slots
    u32 exchange_at;  // in shared memory: where rows' sums change places
    u32 lists_at;     // every phase's, one after the other
    u32 scratch_at;
    u32 zeros_at;
    u32 pad;
};

struct ChainRoom {
    Room room;  // its barriers: of weights, and of slots that nobody reads any more
    u64 inputs_full[MAX_RING];
    u32 factors_made;  // phases of which `room.factor` is or was
};
#define RING_AT (((u32)sizeof(ChainRoom) + 127) / 128 * 128)

// A stage's place: whoever fills or reads the ring goes through all stages of all phases in the same order.
struct Ring {
    const ChainParams& c;
    u32 base;  // of shared memory
    u32 slot = 0, parity = 0;
    __device__ __forceinline__ Ring(const ChainParams& c, u32 base) : c(c), base(base) {}
    __device__ __forceinline__ u32 at() const { return base + RING_AT + slot * c.slot_bytes; }
    __device__ __forceinline__ u32 weights_full() const { return base + slot * 8; }
    __device__ __forceinline__ u32 empty() const { return base + 8 * MAX_INPUTS + slot * 8; }
    __device__ __forceinline__ u32 inputs_full() const { return base + (u32)sizeof(Room) + slot * 8; }
    __device__ __forceinline__ void next() {
        if (++slot == c.n_slots) slot = 0, parity ^= 1;
    }
    __device__ __forceinline__ void begin() {
#pragma unroll 1
        for (u32 i = 0; i < c.n_slots; i++, next()) barrier_init(weights_full(), 1), barrier_init(inputs_full(), 1), barrier_init(empty(), WARPS);
        barrier_init_visible();
    }
    // By who reads it.
    __device__ __forceinline__ void wait_full() const { barrier_wait(weights_full(), parity), barrier_wait(inputs_full(), parity); }
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

// A stage's two halves of 128 columns at once.
template <class F>
struct Halves {
    F half[2];
    __device__ __forceinline__ Halves(const u8* from, u8*) : half{F(from), F(from)} { half[0].begin(0), half[1].begin(1); }
};
// Scales and minima, those of two groups of 32 columns made by each of four lanes, come to all of them by shared memory: shuffles take twice as much of the
// time that the multiprocessor has for either.
template <class Base, int HALF>
struct SharedHalf : Base {
    const u8* made;
    __device__ __forceinline__ SharedHalf(const Base& base, const u8* made) : Base(base), made(made) { Base::begin_codes(HALF); }
    __device__ __forceinline__ void scales(int q, int j, u32& to_s, u32& to_m) const {
        if (j & 1) return;
        const uint4 of_both = *(const uint4*)(made + (2 * q + (j >> 1)) * 16);
        to_s = HALF ? of_both.z : of_both.x, to_m = HALF ? of_both.w : of_both.y;
    }
};
template <class Base>
struct SharedHalves {
    SharedHalf<Base, 0> first;
    SharedHalf<Base, 1> second;
    static __device__ __forceinline__ Base share(Base base, u8* scratch) {
        const Lane l;
        uint4 own;
        base.begin_scales(0), own.x = base.s, own.y = base.m;
        base.begin_scales(1), own.z = base.s, own.w = base.m;
        *(uint4*)(scratch + l.lane * 16) = own;
        __syncwarp();
        return base;
    }
    __device__ __forceinline__ SharedHalves(const Base& base, const u8* made) : first(base, made), second(base, made) {}
    __device__ __forceinline__ SharedHalves(const u8* from, u8* scratch) : SharedHalves(share(Base(from), scratch), scratch + Lane().g * 64) {}
};
