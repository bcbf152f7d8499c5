// The k largest logits of each row as log-probabilities, best first, the lower token first among equals. A block per row:
// each warp knows the best of its share that comes after the last one taken, and only the warp that gave one looks again.
#include "step.cuh"

struct Choice {
    u32 index;
    float weight;
};

struct TopTokens {
    const u32* n_rows;
    const float* logits;  // [rows, vocab]
    Choice* choices;      // [rows, k]
    u32 vocab, k;
};

#define NONE 0xffffffffu

__device__ __forceinline__ bool is_before(float a, u32 ai, float b, u32 bi) { return a > b || (a == b && ai < bi); }

// Elements of a row that a thread reads at once: 16 loads on their way hide what one after the other would wait for.
#define AT_ONCE 4

// Calls `each(value, index)` on elements first..last, every `stride`-th group of four from group `mine` on. Rows whose length is
// no multiple of four do not begin at a multiple of 16 bytes.
template <class Each>
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

// The best of elements first..last that comes after (value, index); NaN and minus infinity never do.
__device__ __forceinline__ Choice best_after(const float* x, u32 vocab, u32 first, u32 last, float value, u32 index, bool any) {
    float best = -INFINITY_F;
    u32 at = NONE;
    for_elements(x, vocab, first, last, threadIdx.x & 31, 32, [&](float v, u32 i) {
        if (v > best && (any || is_before(value, index, v, i))) {
            best = v;
            at = i;
        }
    });
    for (int step = 16; step > 0; step >>= 1) {
        const float other = __shfl_xor_sync(0xffffffffu, best, step);
        const u32 other_at = __shfl_xor_sync(0xffffffffu, at, step);
        if (is_before(other, other_at, best, at)) {
            best = other;
            at = other_at;
        }
    }
    return {at, best};
}

extern "C" __global__ void __launch_bounds__(1024) top_tokens(const __grid_constant__ TopTokens p) {
    __shared__ Choice offers[32];
    __shared__ float room[33];
    pdl_wait();
    pdl_next();
    if (blockIdx.x >= *p.n_rows) return;
    const float* x = p.logits + (u64)blockIdx.x * p.vocab;
    Choice* choices = p.choices + (u64)blockIdx.x * p.k;
    const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const u32 share = (p.vocab + 127) / 128 * 4, first = min(warp * share, p.vocab), last = min(first + share, p.vocab);
    Choice mine = best_after(x, p.vocab, first, last, 0.0f, 0, true);
    if (lane == 0) offers[warp] = mine;
    __syncthreads();
    float max = 0.0f, norm = 0.0f;
    for (u32 rank = 0; rank < p.k; rank++) {
        Choice best = offers[lane];
        for (int step = 16; step > 0; step >>= 1) {
            const Choice other = {__shfl_xor_sync(0xffffffffu, best.index, step), __shfl_xor_sync(0xffffffffu, best.weight, step)};
            if (is_before(other.weight, other.index, best.weight, best.index)) best = other;
        }
        if (rank == 0) {
            max = best.weight;
            float sum = 0.0f;
            for_elements(x, p.vocab, 0, p.vocab, threadIdx.x, blockDim.x, [&](float v, u32) {
                if (!isnan(v)) sum += expf(v - max);
            });
            norm = (float)((double)max + log((double)block_sum(sum, room)));
        }
        if (threadIdx.x == 0) choices[rank] = {best.index, best.index == NONE ? -INFINITY_F : best.weight - norm};
        __syncthreads();
        if (best.index != NONE && best.index >= first && best.index < last) {
            mine = best_after(x, p.vocab, first, last, best.weight, best.index, false);
            if (lane == 0) offers[warp] = mine;
        }
        __syncthreads();
    }
}
