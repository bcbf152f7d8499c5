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
#define SCRATCH_BYTES 256

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

// Scales and minima of a half, made by four lanes, come to all of them by shared memory: shuffles take twice as much of the time that
// the multiprocessor has for either.
template <class Base>
struct Shared : Base {
    u8* scratch;
    uint4 made[2];
    __device__ __forceinline__ Shared(const u8* from, u8* scratch) : Base(from), scratch(scratch) {}
    __device__ __forceinline__ void begin(int half) {
        const Lane l;
        Base::begin(half);
        __syncwarp();
        *(uint2*)(scratch + l.g * 32 + l.t * 8) = make_uint2(this->s, this->m);
        __syncwarp();
        made[0] = *(const uint4*)(scratch + l.g * 32), made[1] = *(const uint4*)(scratch + l.g * 32 + 16);
    }
    __device__ __forceinline__ void scales(int q, int j, u32& to_s, u32& to_m) const {
        if (j & 1) return;
        to_s = j ? made[q].z : made[q].x, to_m = j ? made[q].w : made[q].y;
    }
};
// A format's stage.
template <class F>
struct Weights {
    static __device__ __forceinline__ F at(const u8* from, u8*) { return F(from); }
};
template <class F>
struct Weights<Shared<F>> {
    static __device__ __forceinline__ Shared<F> at(const u8* from, u8* scratch) { return Shared<F>(from, scratch); }
};
