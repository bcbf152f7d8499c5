// The k largest logits of each row as log-probabilities, best first, the lower token first among equals. Each warp of a row's
// blocks knows the best of its share that comes after the last one taken, and only the warp that gave one looks again.
#include "row_cluster.cuh"

struct TopTokens {
    const u32* n_rows;
    const float* logits;  // [rows, vocab]
    Choice* choices;      // [rows, k]
    u32 vocab, k;
};

// The best of elements first..last that comes after `taken`; NaN and minus infinity never do.
__device__ __forceinline__ Choice best_after(const float* x, u32 vocab, u32 first, u32 last, Choice taken, bool any) {
    Choice best = {NONE, -INFINITY_F};
    for_elements<4>(x, vocab, first, last, threadIdx.x & 31, 32, [&](float v, u32 i) {
        if (v > best.weight && (any || is_before(taken, {i, v}))) best = {i, v};
    });
    return warp_best(best);
}

extern "C" __global__ void CLUSTER __launch_bounds__(THREADS, 2) top_tokens(const __grid_constant__ TopTokens p) {
    __shared__ u64 offers[WARPS], sums[RANKS];
    __shared__ float room[33];
    pdl_wait();
    pdl_next();
    const u32 row = blockIdx.x / RANKS, rank = blockIdx.x % RANKS;
    if (row >= *p.n_rows) return;
    const float* x = p.logits + (u64)row * p.vocab;
    Choice* choices = p.choices + (u64)row * p.k;
    const u32 place = rank * (THREADS / 32) + (threadIdx.x >> 5);
    const u32 share = share_of_warp(p.vocab), first = min(place * share, p.vocab), last = min(first + share, p.vocab);
    // All blocks of the row have begun.
    sync_row();
    tell(&offers[place], as_word(best_after(x, p.vocab, first, last, {0, 0.0f}, true)));
    sync_row();
    float max = 0.0f, norm = 0.0f;
    for (u32 nth = 0; nth < p.k; nth++) {
        const Choice best = best_of<WARPS>(offers);
        if (nth == 0) {
            max = best.weight;
            float sum = 0.0f;
            const u32 from = min(rank * (THREADS / 32) * share, p.vocab), to = min(from + THREADS / 32 * share, p.vocab);
            for_elements<4>(x, p.vocab, from, to, threadIdx.x, blockDim.x, [&](float v, u32) {
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
            tell(&offers[place], as_word(best_after(x, p.vocab, first, last, best, false)));
        sync_row();
    }
}
