// The k largest logits of each row as log-probabilities, best first, the lower token first among equals. Each warp of a row's
// blocks knows the best of its share that comes after the last one taken, and only the warp that gave one looks again. Where
// there are clusters a row has eight blocks, which tell each other: one alone reads 250 000 logits in 36 us.
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

// Blocks of a row (row_ops.rs has the same).
#if __CUDA_ARCH__ >= 900
#define RANKS 8u
#define CLUSTER __cluster_dims__(8, 1, 1)
#else
#define RANKS 1u
#define CLUSTER
#endif

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
__device__ __forceinline__ void sync_row() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
    __syncthreads();
#endif
}
__device__ __forceinline__ u64 as_word(Choice c) { return (u64)__float_as_uint(c.weight) << 32 | c.index; }

extern "C" __global__ void CLUSTER __launch_bounds__(1024) top_tokens(const __grid_constant__ TopTokens p) {
    __shared__ u64 offers[RANKS * 32], sums[RANKS];
    __shared__ float room[33];
    pdl_wait();
    pdl_next();
    const u32 row = blockIdx.x / RANKS, rank = blockIdx.x % RANKS;
    if (row >= *p.n_rows) return;
    const float* x = p.logits + (u64)row * p.vocab;
    Choice* choices = p.choices + (u64)row * p.k;
    const u32 lane = threadIdx.x & 31, place = rank * 32 + (threadIdx.x >> 5);
    const u32 share = (p.vocab + 128 * RANKS - 1) / (128 * RANKS) * 4, first = min(place * share, p.vocab), last = min(first + share, p.vocab);
    // All blocks of the row have begun.
    sync_row();
    tell(&offers[place], as_word(best_after(x, p.vocab, first, last, 0.0f, 0, true)));
    sync_row();
    float max = 0.0f, norm = 0.0f;
    for (u32 nth = 0; nth < p.k; nth++) {
        Choice best = {NONE, -INFINITY_F};
        for (u32 i = lane; i < RANKS * 32; i += 32) {
            const Choice offer = {(u32)offers[i], __uint_as_float((u32)(offers[i] >> 32))};
            if (is_before(offer.weight, offer.index, best.weight, best.index)) best = offer;
        }
        for (int step = 16; step > 0; step >>= 1) {
            const Choice other = {__shfl_xor_sync(0xffffffffu, best.index, step), __shfl_xor_sync(0xffffffffu, best.weight, step)};
            if (is_before(other.weight, other.index, best.weight, best.index)) best = other;
        }
        if (nth == 0) {
            max = best.weight;
            float sum = 0.0f;
            const u32 from = rank * 32 * share, to = min(from + 32 * share, p.vocab);
            for_elements(x, p.vocab, from, to, threadIdx.x, blockDim.x, [&](float v, u32) {
                if (!isnan(v)) sum += expf(v - max);
            });
            sum = block_sum(sum, room);
            if (threadIdx.x < 32) tell(&sums[rank], __float_as_uint(sum));
            sync_row();
            float total = 0.0f;
            for (u32 i = 0; i < RANKS; i++) total += __uint_as_float((u32)sums[i]);
            norm = (float)((double)max + log((double)total));
        }
        if (rank == 0 && threadIdx.x == 0) choices[nth] = {best.index, best.index == NONE ? -INFINITY_F : best.weight - norm};
        if (nth + 1 == p.k) break;
        sync_row();
        if (best.index != NONE && best.index >= first && best.index < last)
            tell(&offers[place], as_word(best_after(x, p.vocab, first, last, best.weight, best.index, false)));
        sync_row();
    }
}
