// Rings of slots in shared memory between the warp that copies and the warps that sum.
#pragma once
#include "linear_ptx.cuh"
#include "prompt_params.cuh"

struct PromptBarriers {
    u64 inputs_full[MAX_PROMPT_SLOTS], inputs_empty[MAX_PROMPT_SLOTS], weights_full[MAX_PROMPT_SLOTS], weights_empty[MAX_PROMPT_SLOTS];
    u64 pad[64];  // slots of inputs begin with 1024 bytes
};
static_assert(sizeof(PromptBarriers) == 1024, "");

struct PromptRing {
    u32 slots, slot_bytes, n, full, empty;
    u32 at, parity;
    __device__ __forceinline__ PromptRing(u32 slots, u32 slot_bytes, u32 n, u32 full, u32 empty)
        : slots(slots), slot_bytes(slot_bytes), n(n), full(full), empty(empty), at(0), parity(0) {}
    __device__ __forceinline__ void init(u32 fillers, u32 leavers) const {
        for (u32 i = 0; i < n; i++) barrier_init(full + i * 8, fillers), barrier_init(empty + i * 8, leavers);
    }
    __device__ __forceinline__ u32 slot() const { return slots + at * slot_bytes; }
    __device__ __forceinline__ u32 full_barrier() const { return full + at * 8; }
    __device__ __forceinline__ void wait_full() const { barrier_wait(full + at * 8, parity); }
    // The first round finds all slots empty.
    __device__ __forceinline__ void wait_empty() const { barrier_wait(empty + at * 8, parity ^ 1); }
    // By as many as `init` was told of.
    __device__ __forceinline__ void leave() const { barrier_arrive(empty + at * 8); }
    // The slot before this one.
    __device__ __forceinline__ void leave_last() const { barrier_arrive(empty + (at == 0 ? n - 1 : at - 1) * 8); }
    __device__ __forceinline__ void next() {
        if (++at == n) at = 0, parity ^= 1;
    }
};
