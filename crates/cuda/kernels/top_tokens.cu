// The k largest logits of each row as log-probabilities, best first, the lower token first among equals. Those no worse than the
// k-th of the warps' best ones are found together with the sum of all, and mostly so few that a block puts them in order.
// Otherwise, ties or a larger k, they are taken one by one: only the warp that gave the last one looks again.
#include "row_cluster.cuh"

// Candidates that a block puts in order.
#define FEW 256u

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

__device__ __forceinline__ Choice choice_of(u64 word) { return {(u32)word, __uint_as_float((u32)(word >> 32))}; }

// How many of n choices come before this one; equal ones, which are none at all, in their order.
__device__ __forceinline__ u32 n_before(const u64* words, u32 n, u32 me) {
    const u64 mine = words[me];
    u32 count = 0;
    for (u32 i = 0; i < n; i++) count += is_before(choice_of(words[i]), choice_of(mine)) || (words[i] == mine && i < me);
    return count;
}

extern "C" __global__ void CLUSTER __launch_bounds__(THREADS, 2) top_tokens(const __grid_constant__ TopTokens p) {
    __shared__ u64 offers[WARPS], told[RANKS], few[FEW], all[FEW];
    __shared__ float room[33], least;
    __shared__ u32 n_few;
    pdl_wait();
    pdl_next();
    const u32 row = blockIdx.x / RANKS, rank = blockIdx.x % RANKS, me = threadIdx.x;
    if (row >= *p.n_rows) return;
    const float* x = p.logits + (u64)row * p.vocab;
    const u32 place = rank * (THREADS / 32) + (me >> 5);
    const u32 share = share_of_warp(p.vocab), first = min(place * share, p.vocab), last = min(first + share, p.vocab);
    if (me == 0) n_few = 0;
    // All blocks of the row have begun.
    sync_row();
    tell(&offers[place], as_word(best_after(x, p.vocab, first, last, {0, 0.0f}, true)));
    sync_row();
    Choice best = best_of<WARPS>(offers);
    const float max = best.weight;
    const bool tries_few = p.k <= WARPS;
    if (tries_few && me < WARPS && n_before(offers, WARPS, me) == p.k - 1) least = choice_of(offers[me]).weight;
    __syncthreads();
    const float reach = tries_few ? least : INFINITY_F;
    const u32 from = min(rank * (THREADS / 32) * share, p.vocab), to = min(from + THREADS / 32 * share, p.vocab);
    float sum = 0.0f;
    for_elements<4>(x, p.vocab, from, to, me, THREADS, [&](float v, u32 i) {
        if (!isnan(v)) sum += expf(v - max);
        if (v < reach || !(v > -INFINITY_F)) return;
        const u32 at = atomicAdd(&n_few, 1);
        if (at < FEW) few[at] = as_word({i, v});
    });
    sum = block_sum(sum, room);
    if (me < 32) tell(&told[rank], (u64)n_few << 32 | __float_as_uint(sum));
    sync_row();
    float total = 0.0f;
    u32 n = 0, own_rank = 0, own_first = 0;
    for (u32 i = 0; i < RANKS; i++) {
        total += __uint_as_float((u32)told[i]);
        if (n <= me) own_rank = i, own_first = n;
        n += (u32)(told[i] >> 32);
    }
    const float norm = (float)((double)max + log((double)total));
    const auto put = [&](u32 nth, Choice c) {
        p.choices[(u64)row * p.k + nth] = {c.index, c.index == NONE ? -INFINITY_F : c.weight - norm};
    };
    if (tries_few && n <= FEW) {
        if (rank == 0) {
            if (me < n) all[me] = ask(&few[me - own_first], own_rank);
            __syncthreads();
            const u32 nth = me < n ? n_before(all, n, me) : me;
            if (nth < p.k) put(nth, me < n ? choice_of(all[me]) : Choice{NONE, 0.0f});
        }
        // No block ends before its list has been read.
        sync_row();
        return;
    }
    for (u32 nth = 0;; nth++) {
        if (rank == 0 && me == 0) put(nth, best);
        if (nth + 1 == p.k) break;
        sync_row();
        if (best.index != NONE && best.index >= first && best.index < last)
            tell(&offers[place], as_word(best_after(x, p.vocab, first, last, best, false)));
        sync_row();
        best = best_of<WARPS>(offers);
    }
}
