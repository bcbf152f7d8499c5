// The token that each row's sequence draws: bias, penalties, temperature, top-k, top-p, min-p, noise. Definition: Sampler in
// plan/src/draw, to the bit; weights are whole numbers, so that threads may add them in any order.
// A row's blocks read its logits two to four times: for the best, for a histogram of distances from it, for those that may be
// kept (to shared memory if they are few), and, where neither top-k nor top-p leaves few, for the draw.
#include "chance.cuh"
#include "row_cluster.cuh"

#define BINS 1024u
#define BIN_BITS 10
#define TOKEN_BITS 20
// Candidates that a block keeps.
#define LISTED 1024u
// Tokens whose weights' halves of 16 bits can be summed in 32.
#define SUMMED 65536u

// As step_data.rs packs it.
#define DRAWS 1u
#define GREEDY 2u
#define COUNTS_DRAFTED 4u
struct Drawing {
    u32 kind, top_k;
    float scale;
    u32 least_weight;
    u64 share, seed;
    u32 choice;
    float repetition, frequency, presence;
    u32 listed, n_listed, pad0, pad1;
};
struct Adjustment {
    u32 token;
    float bias;
    u32 answered_and_prompt;
};

struct Sample {
    Step step;
    const float* logits;  // [rows, vocab]
    Choice* choices;      // [rows]
    u32 vocab, pad;
};

// What bias and penalties know of a row's tokens.
struct Past {
    const Drawing* how;
    const Adjustment* listed;
    const u32* drafted;
    u32 n_drafted;
};

// Called, not copied into every loop: few tokens come to it, and the kernel took 40 s to compile.
__device__ __noinline__ float adjusted(Past past, float l, u32 token) {
    Adjustment change = {token, 0.0f, 0};
    u32 low = 0, high = past.how->n_listed;
    while (low < high) {
        const u32 middle = (low + high) / 2;
        if (past.listed[middle].token < token) low = middle + 1;
        else high = middle;
    }
    if (low < past.how->n_listed && past.listed[low].token == token) change = past.listed[low];
    u32 answered = change.answered_and_prompt >> 1;
    for (u32 i = 0; i < past.n_drafted; i++) answered += past.drafted[i] == token;
    l = __fadd_rn(l, change.bias);
    if (answered == 0 && (change.answered_and_prompt & 1) == 0) return l;
    l = l > 0.0f ? __fdiv_rn(l, past.how->repetition) : __fmul_rn(l, past.how->repetition);
    if (answered == 0) return l;
    return __fsub_rn(l, __fadd_rn(past.how->presence, __fmul_rn(__uint2float_rn(answered), past.how->frequency)));
}

// Nearer first, then the lower token.
__device__ __forceinline__ u64 rank_of(u32 token, float distance) {
    return (u64)__float2uint_rz(__fmul_rn(distance, 33554432.0f)) << TOKEN_BITS | token;
}

// The first so many bits of ranks that are kept.
struct Limit {
    u64 prefix;
    u32 shift;
    __device__ __forceinline__ bool holds(u64 rank) const { return rank >> shift <= prefix; }
};

// A block's share of a row.
struct Candidates {
    const float* x;
    Past past;
    u32 vocab;
    float scale, most;
    bool is_changed, is_listed;
    // Which tokens are changed, by their last 15 bits: where a share is larger, others are looked up in vain.
    const u32* changed;
    const u64* list;
    const u32* n_kept;
    Limit by_number, by_weight;

    __device__ __forceinline__ float scaled(float l, u32 token) const {
        if (is_changed && changed[token / 32 % BINS] >> token % 32 & 1) l = adjusted(past, l, token);
        return __fmul_rn(l, scale);
    }

    // Calls `each(token, distance, rank)` on what is left of tokens first..last.
    template <class Each>
    __device__ __forceinline__ void each(u32 first, u32 last, Each call) const {
        auto look = [&](u32 token, float distance) {
            const u64 rank = rank_of(token, distance);
            if (by_number.holds(rank) && by_weight.holds(rank)) call(token, distance, rank);
        };
        if (is_listed) {
            for (u32 i = threadIdx.x; i < *n_kept; i += blockDim.x) look((u32)list[i], __uint_as_float((u32)(list[i] >> 32)));
            return;
        }
        for_elements<2>(x, vocab, first, last, threadIdx.x, blockDim.x, [&](float l, u32 token) {
            const float distance = __fsub_rn(most, scaled(l, token));
            if (distance >= 0.0f && distance < REACH_OF_CHANCE) look(token, distance);
        });
    }
};

extern "C" __global__ void CLUSTER __launch_bounds__(1024) sample(const __grid_constant__ Sample p) {
    __shared__ u64 offers[2][PLACES], sums[2][RANKS], found[3], weights[BINS], counts[BINS], slice_counts[BINS / RANKS], list[LISTED];
    // Halves of weights while they are summed, then the weights of this block's slice of the bins.
    __shared__ u64 halves[BINS];
    __shared__ u32 changed[BINS], drafted[PATH], n_kept;
    u32 *low = (u32*)halves, *high = low + BINS;
    u64* slice_weights = halves;
    pdl_wait();
    pdl_next();
    const u32 nth = blockIdx.x / RANKS, rank = blockIdx.x % RANKS, me = threadIdx.x, lane = me & 31, place = rank * 32 + me / 32;
    if (nth >= p.step.counts[1]) return;
    const u32* words = p.step.counts;
    const Row row = p.step.rows[p.step.logit_rows[nth]];
    const Drawing& how = ((const Drawing*)(words + words[7]))[row.seq];
    if ((how.kind & DRAWS) == 0) {
        if (rank == 0 && me == 0) p.choices[nth] = {NONE, 0.0f};
        return;
    }
    const u32 span = 32 * share_of_warp(p.vocab), from = min(rank * span, p.vocab), to = min(from + span, p.vocab);
    // Read once: the compiler cannot know that no atomic changes them.
    const u32 top_k = how.top_k, least_weight = how.least_weight;
    const u64 share = how.share;

    const Seq seq = p.step.seqs[row.seq];
    const u32 sure_end = seq.committed + seq.n_sure;
    Past past = {&how, (const Adjustment*)(words + how.listed), drafted, 0};
    if (how.kind & COUNTS_DRAFTED) past.n_drafted = row.pos + 1 > sure_end ? row.pos + 1 - sure_end : 0;
    Candidates left = {p.logits + (u64)nth * p.vocab, past, p.vocab, how.scale, 0.0f, how.n_listed + past.n_drafted > 0, false,
                       changed, list, &n_kept, {~0ull, 0}, {~0ull, 0}};
    if (left.is_changed) {
        auto mark = [&](u32 token) {
            if (token >= from && token < to) atomicOr(&changed[token / 32 % BINS], 1u << token % 32);
        };
        changed[me] = 0;
        __syncthreads();
        for (u32 i = me; i < how.n_listed; i += blockDim.x) mark(past.listed[i].token);
        if (me < past.n_drafted) {
            const u32 local = p.step.paths[p.step.logit_rows[nth] * PATH + me] - seq.committed;
            drafted[me] = p.step.rows[p.step.seq_rows[seq.first + local]].token;
            mark(drafted[me]);
        }
    }
    // All blocks of the row have begun, and this one's marks are made.
    sync_row();
    Choice best = {NONE, -INFINITY_F};
    for_elements<4>(left.x, p.vocab, from, to, me, blockDim.x, [&](float l, u32 token) {
        const float v = left.scaled(l, token);
        if (v > best.weight && v < INFINITY_F) best = {token, v};
    });
    tell(&offers[0][place], as_word(warp_best(best)));
    sync_row();
    const Choice most = best_offer(offers[0]);
    if (most.index == NONE || how.kind & GREEDY) {
        if (rank == 0 && me == 0) p.choices[nth] = {most.index, 0.0f};
        return;
    }

    left.most = most.weight;

    // By number, then by weight: in order of rank, those are kept that have less than `needed` before them. Found bits by bits,
    // until the last one kept is alone in its bin.
    for (u32 by_weight = 0; by_weight < 2; by_weight++) {
        if (by_weight ? share == ~0ull : top_k == 0) continue;
        u64 needed = top_k, before = 0, prefix = 0;
        for (u32 shift = 4 * BIN_BITS;; shift -= BIN_BITS) {
            counts[me] = weights[me] = 0;
            low[me] = high[me] = 0;
            if (me == 0) found[0] = ~0ull;
            __syncthreads();
            for (u32 first = from; first == from || (first < to && !left.is_listed); first += SUMMED) {
                left.each(first, min(first + SUMMED, to), [&](u32, float distance, u64 r) {
                    if (r >> (shift + BIN_BITS) != prefix) return;
                    const u32 bin = r >> shift & (BINS - 1);
                    atomicAdd((u32*)&counts[bin], 1);
                    if (by_weight) {
                        const u32 weight = weight_at(distance);
                        atomicAdd(&low[bin], weight & 0xffff);
                        atomicAdd(&high[bin], weight >> 16);
                    }
                });
                __syncthreads();
                weights[me] += by_weight ? low[me] + ((u64)high[me] << 16) : 0;
                low[me] = high[me] = 0;
                __syncthreads();
            }
            sync_row();
            // Each block sums its slice of the bins over all blocks.
            const u32 bin = rank * (BINS / RANKS) + me / RANKS;
            u64 count = ask(&counts[bin], me % RANKS), weight = by_weight ? ask(&weights[bin], me % RANKS) : count;
#pragma unroll
            for (u32 step = 1; step < RANKS; step *= 2) {
                count += __shfl_xor_sync(0xffffffffu, count, step);
                weight += __shfl_xor_sync(0xffffffffu, weight, step);
            }
            slice_counts[me / RANKS] = count;
            slice_weights[me / RANKS] = weight;
            __syncthreads();
            const u32 per_lane = BINS / RANKS / 32;
            count = weight = 0;
            if (me < 32) {
                for (u32 i = lane * per_lane; i < (lane + 1) * per_lane; i++) count += slice_counts[i], weight += slice_weights[i];
#pragma unroll
                for (u32 step = 1; step < 32; step *= 2) {
                    const u64 count_below = __shfl_up_sync(0xffffffffu, count, step), weight_below = __shfl_up_sync(0xffffffffu, weight, step);
                    if (lane >= step) count += count_below, weight += weight_below;
                }
                tell(&sums[0][rank], __shfl_sync(0xffffffffu, count, 31));
                tell(&sums[1][rank], __shfl_sync(0xffffffffu, weight, 31));
            }
            sync_row();
            u64 total = 0;
            for (u32 i = 0; i < RANKS; i++) {
                if (i < rank) count += sums[0][i], weight += sums[1][i];
                total += sums[1][i];
            }
            if (by_weight && shift == 4 * BIN_BITS) needed = max(1ull, __umul64hi(total << 8, share));
            weight += before;
            if (me < 32) {
                // A lane's sums reach to the end of its bins; back to where `needed` is met.
                u32 i = (lane + 1) * per_lane;
                const bool is_reached = weight >= needed;
                while (is_reached && i > lane * per_lane && weight - slice_weights[i - 1] >= needed) i--, weight -= slice_weights[i], count -= slice_counts[i];
                const bool is_here = is_reached && i > lane * per_lane;
                const u32 who = __ballot_sync(0xffffffffu, is_here);
                if (who) {
                    const u32 at = is_here ? i - 1 : 0, of = __ffs(who) - 1;
                    const u64 bin_count = slice_counts[at], before_bin = weight - slice_weights[at];
                    tell(&found[0], __shfl_sync(0xffffffffu, bin_count << 32 | (rank * (BINS / RANKS) + at), of));
                    tell(&found[1], __shfl_sync(0xffffffffu, before_bin, of));
                    tell(&found[2], __shfl_sync(0xffffffffu, count, of));
                }
            }
            sync_row();
            const u64 where = found[0], n_to_there = found[2];
            before = found[1];
            __syncthreads();
            // All there is does not reach it.
            if (where == ~0ull) break;
            prefix = prefix << BIN_BITS | (u32)where;
            if (!left.is_listed && shift == 4 * BIN_BITS && n_to_there <= LISTED) {
                if (me == 0) n_kept = 0;
                __syncthreads();
                left.each(from, to, [&](u32 token, float distance, u64 r) {
                    if (r >> shift <= prefix) list[atomicAdd(&n_kept, 1)] = (u64)__float_as_uint(distance) << 32 | token;
                });
                __syncthreads();
                left.is_listed = true;
            }
            if (where >> 32 == 1 || shift == 0) {
                (by_weight ? left.by_weight : left.by_number) = {prefix, shift};
                break;
            }
        }
    }

    const u64 chance = mix(how.seed ^ (u64)how.choice << 32 ^ (row.pos + 1));
    best = {NONE, -INFINITY_F};
    // Where all is kept the best is, and rules most others out.
    if (top_k == 0 && share == ~0ull) best = {most.index, gumbel(chance, most.index)};
    left.each(from, to, [&](u32 token, float distance, u64) {
        if (__fsub_rn(MOST_CHANCE, distance) < best.weight || (least_weight > 0 && weight_at(distance) < least_weight)) return;
        const Choice drawn = {token, __fsub_rn(gumbel(chance, token), distance)};
        if (is_before(drawn, best)) best = drawn;
    });
    tell(&offers[1][place], as_word(warp_best(best)));
    sync_row();
    best = best_offer(offers[1]);
    if (rank == 0 && me == 0)
        p.choices[nth] = {best.index, __fsub_rn(most.weight, __fmul_rn(adjusted(past, left.x[best.index], best.index), left.scale))};
}
