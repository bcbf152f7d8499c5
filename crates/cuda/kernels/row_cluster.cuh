// Rows of logits, each read by the blocks of a cluster, which tell each other what they found: one block alone reads 250 000
// logits in 36 us. Where there are no clusters a row has one block.
#pragma once
#include "choice.cuh"
#include "step.cuh"

#define NONE 0xffffffffu

__device__ __forceinline__ bool is_before(Choice a, Choice b) { return a.weight > b.weight || (a.weight == b.weight && a.index < b.index); }

// Calls `each(value, index)` on elements first..last, every `stride`-th group of four from group `mine` on, a thread's in order,
// with so many groups on their way. Rows whose length is no multiple of four do not begin at a multiple of 16 bytes.
template <u32 AT_ONCE, class Each>
__device__ __forceinline__ void for_elements(const float* x, u32 vocab, u32 first, u32 last, u32 mine, u32 stride, Each each) {
    if (vocab % 4 != 0) {
        for (u32 i = first + mine; i < last; i += stride) each(x[i], i);
        return;
    }
    for (u32 i = first + 4 * mine; i < last; i += 4 * AT_ONCE * stride) {
        float4 v[AT_ONCE];
#pragma unroll
        for (u32 k = 0; k < AT_ONCE; k++)
            if (i + 4 * k * stride < last) v[k] = *(const float4*)(x + i + 4 * k * stride);
#pragma unroll
        for (u32 k = 0; k < AT_ONCE; k++) {
            const u32 at = i + 4 * k * stride;
            if (at < last) each(v[k].x, at), each(v[k].y, at + 1), each(v[k].z, at + 2), each(v[k].w, at + 3);
        }
    }
}

// Blocks of a row (row_ops.rs has the same).
#if __CUDA_ARCH__ >= 900
#define RANKS 8u
#define CLUSTER __cluster_dims__(8, 1, 1)
#else
#define RANKS 1u
#define CLUSTER
#endif
// Of a block. With 1024 a multiprocessor holds one block, and clusters of eight fit two to a GPC at most: 16 rows took two turns.
#define THREADS 512u
// Of a row.
#define WARPS (RANKS * THREADS / 32)

// Elements of a row that a warp has, in whole groups of four.
__device__ __forceinline__ u32 share_of_warp(u32 vocab) { return (vocab + 4 * WARPS - 1) / (4 * WARPS) * 4; }

// To the same place in all blocks of the row, by the first lanes of a warp.
__device__ __forceinline__ void tell(u64* to, u64 what) {
#if __CUDA_ARCH__ >= 900
    if ((threadIdx.x & 31) >= RANKS) return;
    u32 there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"((u32)__cvta_generic_to_shared(to)), "r"(threadIdx.x & 31));
    asm volatile("st.shared::cluster.u64 [%0], %1;" ::"r"(there), "l"(what) : "memory");
#else
    if ((threadIdx.x & 31) == 0) *to = what;
#endif
}
// What another block has in the same place.
__device__ __forceinline__ u64 ask(const u64* at, u32 rank) {
#if __CUDA_ARCH__ >= 900
    u32 there;
    u64 what;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"((u32)__cvta_generic_to_shared(at)), "r"(rank));
    asm volatile("ld.shared::cluster.u64 %0, [%1];" : "=l"(what) : "r"(there) : "memory");
    return what;
#else
    return *at;
#endif
}
__device__ __forceinline__ void sync_row() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
    __syncthreads();
#endif
}
__device__ __forceinline__ u64 as_word(Choice c) { return (u64)__float_as_uint(c.weight) << 32 | c.index; }

__device__ __forceinline__ Choice warp_best(Choice best) {
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) {
        const Choice other = {__shfl_xor_sync(0xffffffffu, best.index, step), __shfl_xor_sync(0xffffffffu, best.weight, step)};
        if (is_before(other, best)) best = other;
    }
    return best;
}

template <u32 N>
__device__ __forceinline__ Choice best_of(const u64* offers) {
    Choice best = {NONE, -INFINITY_F};
    for (u32 i = threadIdx.x & 31; i < N; i += 32) {
        const Choice offer = {(u32)offers[i], __uint_as_float((u32)(offers[i] >> 32))};
        if (is_before(offer, best)) best = offer;
    }
    return warp_best(best);
}
