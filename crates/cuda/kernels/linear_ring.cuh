// How weights and inputs come to the warps.
//
// Weights: each warp has two slots (one where shared memory is short), which its lanes fill themselves, so no warp waits for another. The pieces of a stage lie side
// by side in memory: warps that are about as far read it from end to end. (Memory likes few places at a time: in a
// bare kernel each warp reading a run of its own took a third longer. A third slot costs 3 % there with 1 and 16 rows, 7 % with 32.)
// Inputs: a ring of the block, read by all warps, which take turns at copying: at the start of a stage one of them refills the slot
// that all have left half a ring ago. Which columns a stage needs is part of the block's list.
#pragma once
#include "linear_params.cuh"
#include "linear_ptx.cuh"
#include "linear_wgmma.cuh"

#define MAX_INPUTS 8

// Of a warp. Devices with wgmma have room for two of any format; there nothing is left of the other case.
#if HAS_WGMMA
#define N_SLOTS(p) 2
#else
#define N_SLOTS(p) (p).n_slots
#endif

// A warp's weights.
struct Stream {
    const Segment* segment;  // in shared memory: whose stages are being copied
    const u8* from;          // this lane's of the next stage
    u32 stride;              // from one stage to the next
    u32 now, other;          // addresses in shared memory: the slot that is read next, and the one after, which may be the same

    __device__ __forceinline__ u32 lane_at() const { return (threadIdx.x & 31) * 16; }
    // The first stage of the segment.
    __device__ __forceinline__ void copy_first() {
        if (segment->n > 0) {
            const u32 warp = threadIdx.x >> 5, half = warp >> 3, seat = warp & 7, tiles = segment->tiles[half], bytes = segment->stage_bytes;
            // A warp without outputs reads another's weights: its sums are not stored, but it takes part in the products of its group.
            stride = tiles * bytes, from = (const u8*)segment->weights[half] + (seat < tiles ? seat * bytes : 0) + lane_at();
#pragma unroll 1
            for (u32 i = 0; i + lane_at() < bytes; i += 512) copy_16(other + lane_at() + i, from + i);
            from += stride;
        }
        copies_end_group();
    }
    // Another of BYTES.
    template <u32 BYTES>
    __device__ __forceinline__ void copy_next() {
#pragma unroll
        for (u32 i = 0; i < BYTES; i += 512)
            if (i + 512 <= BYTES || i + lane_at() < BYTES) copy_16(other + lane_at() + i, from + i);
        from += stride;
        copies_end_group();
    }
    // To the slot that was filled.
    __device__ __forceinline__ void turn() {
        const u32 was = now;
        now = other, other = was;
    }
};

// A stage's columns: a cell of the image, whether it is of float weights (one cell and what its rounding left out), and whether
// another cell follows.
#define INPUT_FLOAT 0x80000000u
#define INPUT_TWO 0x40000000u

template <int TILES>
__device__ __forceinline__ void copy_wanted(const LinearParams& p, u32 what, u32 to, u32 barrier) {
    const u32 cell = what & ~(INPUT_FLOAT | INPUT_TWO), bytes = (what & INPUT_TWO ? 2 : 1) * TILES * CELL_BYTES;
    copy_expect(barrier, bytes + (what & INPUT_FLOAT ? TILES * REST_BYTES : 0));
    copy_input(to, (const u8*)p.image + (u64)cell * TILES * CELL_BYTES, bytes, barrier);
    if (what & INPUT_FLOAT) copy_input(to + TILES * CELL_BYTES, (const u8*)p.rest + (u64)cell * TILES * REST_BYTES, TILES * REST_BYTES, barrier);
    copy_commit(barrier);
}

template <int TILES>
struct Inputs {
    const LinearParams& p;
    u32 slots, full, empty;  // addresses in shared memory: two barriers a slot
    const u32* wanted;       // in shared memory: of every stage of the block
    u32 n;                   // stages of the block
    u32 done;                // of them
    bool leaves;             // whether this lane says that the warp has left an input

    __device__ __forceinline__ u32 slot_of(u32 stage) const { return stage & (p.n_inputs - 1); }
    __device__ __forceinline__ u32 parity_of(u32 stage) const { return stage >> p.log_inputs & 1; }
    __device__ __forceinline__ void copy(u32 stage) const {
        const u32 what = wanted[stage], to_slot = slot_of(stage);
        copy_wanted<TILES>(p, what, slots + to_slot * p.input_bytes, full + to_slot * 8);
    }
    // By one warp, when the input is there.
    __device__ __forceinline__ void begin() const {
        const u32 lane = threadIdx.x & 31, last = n < p.n_inputs ? n : p.n_inputs;
#pragma unroll 1
        for (u32 i = COPY_LANES == 1 ? lane : 0; i < last; i += COPY_LANES == 1 ? 32 : 1) copy(i);
    }
    __device__ __forceinline__ u32 wait() const {
        barrier_wait(full + slot_of(done) * 8, parity_of(done));
        return slots + slot_of(done) * p.input_bytes;
    }
    // One lane speaks for all. (Where the compiler knows them to be together, `__syncwarp` leaves no instruction, and racecheck reports the others' reads. It is
    // given launches in which each lane speaks for itself, which take 1 % longer with 16 rows.)
    __device__ __forceinline__ void leave() {
        __syncwarp();
        if (leaves) barrier_arrive(empty + slot_of(done) * 8);
        done++;
    }
    __device__ __forceinline__ void refill() const {
        if (done % WARPS != threadIdx.x >> 5) return;
        const u32 before = done - p.n_inputs / 2, next = before + p.n_inputs;
        if (done < p.n_inputs / 2 || next >= n) return;
        barrier_wait(empty + slot_of(before) * 8, parity_of(before));
        if ((threadIdx.x & 31) < COPY_LANES) copy(next);
        __syncwarp();
    }
};
