// How a sequence's tokens are drawn, and the tokens that its bias and penalties change: plan/src/draw, as step_data.rs packs it.
#pragma once
#include "common.cuh"

#define GREEDY 1u
#define COUNTS 2u
struct Drawing {
    u32 kind, top_k;
    float scale;
    u32 least_weight;
    u64 share, seed;
    u32 choice;
    float repetition, frequency, presence;
    // Where the list lies, in words from the page tables on, and how many there are. By token, each once.
    u32 listed, n_listed;
    // No token at this distance or further can be drawn.
    float reach;
    u32 pad;
};

struct Adjustment {
    u32 token;
    float bias;
    u32 answered_and_prompt;
};

// The first listed token that is not below `token`.
__device__ __noinline__ u32 find(const Adjustment* listed, u32 n, u32 token) {
    u32 low = 0;
    while (low < n) {
        const u32 middle = (low + n) / 2;
        if (listed[middle].token < token) low = middle + 1;
        else n = middle;
    }
    return low;
}

// By a warp: the tokens of lanes whose `joins` is set have joined the answer, once for each. Returns how many are listed then.
// All new ones are let in at once, so that what stands behind them moves once.
__device__ u32 count_answered(Adjustment* listed, u32 n, u32 token, bool joins) {
    const u32 FULL = 0xffffffffu, AT_ONCE = 4, lane = threadIdx.x & 31;
    const u32 all = __ballot_sync(FULL, joins), same = __match_any_sync(FULL, token) & all;
    const u32 place = joins ? find(listed, n, token) : n, answers = __popc(same) << 1;
    const bool speaks = joins && __ffs(same) - 1 == lane, is_listed = joins && place < n && listed[place].token == token;
    if (speaks && is_listed) listed[place].answered_and_prompt += answers;
    __syncwarp();
    const bool is_new = speaks && !is_listed;
    const u32 fresh = __ballot_sync(FULL, is_new);
    u32 n_before = 0, first = n;
    for (u32 left = fresh; left; left &= left - 1) {
        n_before += __shfl_sync(FULL, token, __ffs(left) - 1) < token;
        first = min(first, __shfl_sync(FULL, place, __ffs(left) - 1));
    }
    // From the end on, no write reaches what is still to be read.
    for (u32 end = fresh ? n : first; end > first;) {
        const u32 begin = end - min(end - first, 32 * AT_ONCE);
        Adjustment moved[AT_ONCE];
        u32 steps[AT_ONCE];
#pragma unroll
        for (u32 j = 0; j < AT_ONCE; j++) {
            const u32 i = begin + lane + 32 * j;
            steps[j] = 0;
            if (i < end) moved[j] = listed[i];
        }
        for (u32 left = fresh; left; left &= left - 1) {
            const u32 at = __shfl_sync(FULL, place, __ffs(left) - 1);
#pragma unroll
            for (u32 j = 0; j < AT_ONCE; j++) steps[j] += at <= begin + lane + 32 * j;
        }
        __syncwarp();
#pragma unroll
        for (u32 j = 0; j < AT_ONCE; j++) {
            const u32 i = begin + lane + 32 * j;
            if (i < end) listed[i + steps[j]] = moved[j];
        }
        __syncwarp();
        end = begin;
    }
    if (is_new) listed[place + n_before] = {token, 0.0f, answers};
    return n + __popc(fresh);
}
