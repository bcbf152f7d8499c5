// A row's experts by its router's logits: best first, the lower index first among equals, what is not a number last.
#pragma once
#include "choice.cuh"

struct Router {
    const float* logits;  // [rows, n_experts]
    Choice* choices;      // [rows, k]
    u32 n_experts, k, rule, pad;  // rule: 0 softmax of all, renormalised; 1 softmax of all; 2 softmax of the best
};

#define MAX_EXPERTS 1024
#define NO_KEY 0u

// Keys compare as logits do, zeros of either sign being equal. No expert has NO_KEY.
__device__ __forceinline__ u32 key_of(float logit) {
    if (isnan(logit)) return 1;
    const u32 bits = __float_as_uint(__fadd_rn(logit, 0.0f));
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float logit_of(u32 key) {
    return __uint_as_float(key == 1 ? 0x7fffffffu : key >> 31 ? key & 0x7fffffffu : ~key);
}

// The best `n_best` of a row, by a warp whose lanes have N keys each; `put(rank, expert, logit)` is told of each. Logits may be of blocks beside
// this one, so they are read where those leave them.
template <u32 N, class Put>
__device__ __forceinline__ void best_experts_of(const float* logits, u32 n_experts, u32 n_best, const Put& put) {
    const u32 lane = threadIdx.x & 31;
    u32 keys[N];
#pragma unroll
    for (u32 i = 0; i < N; i++) keys[i] = i * 32 + lane < n_experts ? key_of(__ldcg(logits + i * 32 + lane)) : NO_KEY;
#pragma unroll 1
    for (u32 rank = 0; rank < n_best; rank++) {
        u32 own = keys[0];
#pragma unroll
        for (u32 i = 1; i < N; i++) own = max(own, keys[i]);
        const u32 best = __reduce_max_sync(0xffffffffu, own);
        u32 at = 0xffffffffu;
#pragma unroll
        for (u32 i = N; i-- > 0;)
            if (keys[i] == best) at = i * 32 + lane;
        const u32 expert = __reduce_min_sync(0xffffffffu, at);
#pragma unroll
        for (u32 i = 0; i < N; i++)
            if (i * 32 + lane == expert) keys[i] = NO_KEY;
        put(rank, expert, logit_of(best));
    }
}
template <class Put>
__device__ __forceinline__ void best_experts(const float* logits, u32 n_experts, u32 n_best, const Put& put) {
    if (n_experts <= 128) return best_experts_of<4>(logits, n_experts, n_best, put);
    if (n_experts <= 256) return best_experts_of<8>(logits, n_experts, n_best, put);
    return best_experts_of<MAX_EXPERTS / 32>(logits, n_experts, n_best, put);
}

// By a warp: the row's experts and what they count, stored. Sums are rounded each by itself: more kernels than one choose, and all do it to the bit.
__device__ __forceinline__ void route_row(const Router& r, u32 row) {
    const u32 lane = threadIdx.x & 31;
    const float* logits = r.logits + (u64)row * r.n_experts;
    Choice* choices = r.choices + (u64)row * r.k;
    float max = 0.0f, total = 0.0f;
    best_experts(logits, r.n_experts, r.k, [&](u32 rank, u32 expert, float logit) {
        if (rank == 0) max = logit;
        total = __fadd_rn(total, expf(logit - max));
        if (lane == 0) choices[rank] = {expert, logit};
    });
    __syncwarp();
    if (r.rule == 1) {
        float sum = 0.0f;
        for (u32 e = lane; e < r.n_experts; e += 32) sum = __fadd_rn(sum, expf(__ldcg(logits + e) - max));
        total = warp_sum(sum);
    }
    for (u32 rank = lane; rank < r.k; rank += 32) choices[rank].weight = expf(choices[rank].weight - max) / total;
}
