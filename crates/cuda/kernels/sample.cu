// The token that each row's sequence draws: bias, penalties, temperature, top-k, top-p, min-p, noise. Definition: Sampler in
// plan/src/draw, to the bit; weights are whole numbers, so that threads may add them in any order.
// H200, 248 320 tokens, us for 1 / 16 / 64 rows: greedy 8 / 10 / 32, temperature 20 / 26 / 73, top-k 20 and top-p 24 / 29 / 85,
// top-p 39 / 49 / 133 (of flat logits, by histograms, 100 / 134 / 339). One block a row: 34, 127, 90, 136 for 1 row.
// A row's blocks read its logits for the best, then for those that may be drawn. Top-k and top-p mostly keep few: tokens at least as
// good as the so-manieth of the warps' best ones are no more than a block can sort; otherwise histograms find where they end.
#include "chance.cuh"
#include "listed.cuh"
#include "row_cluster.cuh"

// As many as threads of a block.
#define BINS THREADS
#define BIN_BITS 9
// Ranks have 30 bits of distance and these, six times BIN_BITS.
#define TOKEN_BITS 24
#define TOP_SHIFT (5 * BIN_BITS)
// Candidates that one block puts in order.
#define FEW 256u
// Best ones of parts of a row that are compared to find how far the best tokens reach: of a warp each, or of four lanes where a row has one block.
#define PLACES 128u
// The most of a top-k, and the number of tokens that should do for a top-p: half as many again are as good as the last of them.
#define FEW_PLACES (PLACES * 3 / 4)
// Tokens whose weights' halves of 16 bits can be summed in 32, with as many that are changed.
#define SUMMED 32768u
#define MARKS 1024u
#define ALL (~0ull)

// For all sequences of a step that says nothing of it.
__device__ const Drawing PLAIN = {GREEDY, 0, 1.0f, 0, ALL, 0, 0, 1.0f, 0.0f, 0.0f, 0, 0, REACH_OF_CHANCE, 0};
struct Sample {
    Step step;
    const float* logits;  // [rows, vocab]
    Choice* choices;      // [rows]
    u32 vocab, pad;
};

// Nearer first, then the lower token.
__device__ __forceinline__ u64 rank_of(u32 token, float distance) {
    return (u64)__float2uint_rz(__fmul_rn(distance, 33554432.0f)) << TOKEN_BITS | token;
}

// A block's share of a row: tokens from..to.
struct Share {
    const float* x;
    u32 vocab, from, to;
    float scale, most;
    // What bias and penalties change: tokens of the list, and drafted ones behind it.
    const Drawing* how;
    const Adjustment* listed;
    const u32 *marks, *drafted;
    u32 n_drafted, first_listed, end_listed;
    bool is_changed, has_extra;

    __device__ __forceinline__ float adjusted(float l, Adjustment change) const {
        u32 answered = change.answered_and_prompt >> 1;
        for (u32 i = 0; i < n_drafted; i++) answered += drafted[i] == change.token;
        l = __fadd_rn(l, change.bias);
        if (answered == 0 && (change.answered_and_prompt & 1) == 0) return l;
        l = l > 0.0f ? __fdiv_rn(l, how->repetition) : __fmul_rn(l, how->repetition);
        if (answered == 0) return l;
        return __fsub_rn(l, __fadd_rn(how->presence, __fmul_rn(__uint2float_rn(answered), how->frequency)));
    }

    // By any thread, of any token.
    __device__ float adjusted(u32 token) const {
        const u32 at = find(listed, how->n_listed, token);
        const bool is_listed = at < how->n_listed && listed[at].token == token;
        return adjusted(x[token], is_listed ? listed[at] : Adjustment{token, 0.0f, 0});
    }

    // Marks are of a token's last 15 bits: in larger shares another token may have made one.
    __device__ __forceinline__ bool is_marked(u32 token) const {
        if ((marks[token / 32 % MARKS] >> token % 32 & 1) == 0) return false;
        if (to - from <= 32 * MARKS) return true;
        const u32 at = find(listed, how->n_listed, token);
        bool is_it = at < how->n_listed && listed[at].token == token;
        for (u32 i = 0; i < n_drafted; i++) is_it |= drafted[i] == token;
        return is_it;
    }

    // Calls `call(logit, token)` on this thread's tokens of first..last.
    template <u32 AT_ONCE, class Call>
    __device__ __forceinline__ void each(u32 first, u32 last, Call call) const {
        for_elements<AT_ONCE>(x, vocab, first, last, threadIdx.x, THREADS, [&](float l, u32 token) {
            if (!is_changed || !is_marked(token)) call(l, token);
        });
        if (!is_changed || first != from) return;
        // One more turn for a drafted token that is not listed.
        const u32 end = end_listed + (has_extra ? THREADS : 0);
        for (u32 i = first_listed + threadIdx.x; i < end; i += THREADS) {
            const Adjustment change = i < end_listed ? listed[i] : Adjustment{drafted[threadIdx.x], 0.0f, 0};
            call(adjusted(x[change.token], change), change.token);
        }
    }

    // Of an infinite logit it is negative.
    __device__ __forceinline__ float distance(float l) const { return __fsub_rn(most, __fmul_rn(l, scale)); }

    // Calls `call(token, distance)` on those nearer than `reach`.
    template <class Call>
    __device__ __forceinline__ void each_near(u32 first, u32 last, float reach, Call call) const {
        each<2>(first, last, [&](float l, u32 token) {
            const float d = distance(l);
            if (d < reach && d >= 0.0f) call(token, d);
        });
    }
};

// The candidate that the noise favours.
struct Draw {
    u64 chance;
    Choice best;

    __device__ __forceinline__ void offer(u32 token, float distance) {
        const u32 bits = bits_of(chance, token);
        if (can_reach(bits, best.weight + distance)) offer(token, distance, bits);
    }
    __device__ __forceinline__ void offer(u32 token, float distance, u32 bits) {
        const Choice drawn = {token, __fsub_rn(gumbel(bits), distance)};
        if (is_before(drawn, best)) best = drawn;
    }
};

__device__ __forceinline__ void offer(u64* offers, Choice best) {
#if __CUDA_ARCH__ >= 900
    tell(&offers[blockIdx.x % RANKS * (THREADS / 32) + threadIdx.x / 32], as_word(warp_best(best)));
#else
    for (int step = 2; step > 0; step >>= 1) {
        const Choice other = {__shfl_xor_sync(0xffffffffu, best.index, step), __shfl_xor_sync(0xffffffffu, best.weight, step)};
        if (is_before(other, best)) best = other;
    }
    offers[threadIdx.x / 4] = as_word(best);
#endif
}

// The first so many bits of ranks that are kept.
struct Limit {
    u64 prefix;
    u32 shift;
    __device__ __forceinline__ bool holds(u64 rank) const { return rank >> shift <= prefix; }
};

extern "C" __global__ void CLUSTER __launch_bounds__(THREADS, 2) sample(const __grid_constant__ Sample p) {
    static_assert(WARPS == PLACES || 4 * PLACES == THREADS, "a place is offered for");
    __shared__ u64 offers[2][PLACES], told[2][RANKS], found[2], weights[BINS], counts[BINS], slice_counts[BINS / RANKS], list[FEW];
    // Halves of weights while they are summed, then the weights of this block's slice of the bins.
    __shared__ u64 halves[BINS];
    __shared__ u32 marks[MARKS], drafted[PATH], n_few;
    __shared__ float near;
    pdl_wait();
    pdl_next();
    const u32 nth = blockIdx.x / RANKS, rank = blockIdx.x % RANKS, me = threadIdx.x, lane = me & 31;
    if (nth >= p.step.counts[1]) return;
    const u32* words = p.step.counts;
    const u32 at_row = p.step.logit_rows[nth];
    const Row row = p.step.rows[at_row];
    const Drawing& how = words[7] == 0 ? PLAIN : ((const Drawing*)(words + words[7]))[row.seq];
    const u32 kind = how.kind;
    // Read once: the compiler cannot know that no atomic changes them.
    const u32 top_k = how.top_k, least_weight = how.least_weight, n_listed = how.n_listed;
    const u64 top_p = how.share;
    const float reach = how.reach;
    const u32 span = THREADS / 32 * share_of_warp(p.vocab), from = min(rank * span, p.vocab), to = min(from + span, p.vocab);
    Share left = {p.logits + (u64)nth * p.vocab, p.vocab, from, to, how.scale, 0.0f, &how, (const Adjustment*)(p.step.tables + how.listed), marks, drafted, 0, 0, 0, false, false};
    const Seq seq = p.step.seqs[row.seq];
    const u32 sure_end = seq.committed + seq.n_sure;
    if (kind & COUNTS) left.n_drafted = row.pos + 1 > sure_end ? row.pos + 1 - sure_end : 0;
    left.is_changed = n_listed + left.n_drafted > 0;
    if (me == 0) n_few = 0;
    if (left.is_changed) {
        auto mark = [&](u32 token) { atomicOr(&marks[token / 32 % MARKS], 1u << token % 32); };
        for (u32 i = me; i < MARKS; i += THREADS) marks[i] = 0;
        if (me < left.n_drafted) {
            const u32 local = p.step.paths[at_row * PATH + me] - seq.committed;
            drafted[me] = p.step.rows[p.step.seq_rows[seq.first + local]].token;
        }
        __syncthreads();
        left.first_listed = find(left.listed, n_listed, from);
        left.end_listed = find(left.listed, n_listed, to);
        for (u32 i = left.first_listed + me; i < left.end_listed; i += THREADS) mark(left.listed[i].token);
        if (me < left.n_drafted && drafted[me] >= from && drafted[me] < to) {
            const u32 at = find(left.listed, n_listed, drafted[me]);
            left.has_extra = at == n_listed || left.listed[at].token != drafted[me];
            for (u32 i = 0; i < me; i++) left.has_extra &= drafted[i] != drafted[me];
            mark(drafted[me]);
        }
    }
    // All blocks of the row have begun, and this one's marks are made.
    sync_row();

    Choice best = {NONE, -INFINITY_F};
    left.each<4>(from, to, [&](float l, u32 token) {
        const Choice scaled = {token, __fmul_rn(l, left.scale)};
        if (scaled.weight < INFINITY_F && is_before(scaled, best)) best = scaled;
    });
    offer(offers[0], best);
    sync_row();
    const Choice most = best_of<PLACES>(offers[0]);
    if (most.index == NONE || kind & GREEDY) {
        if (rank == 0 && me == 0) p.choices[nth] = {most.index, most.index == NONE ? INFINITY_F : 0.0f};
        return;
    }
    left.most = most.weight;
    Draw draw = {mix(how.seed ^ (u64)how.choice << 32 ^ (row.pos + 1)), {NONE, -INFINITY_F}};
    // Among all of them, over the whole row.
    auto finish = [&] {
        offer(offers[1], draw.best);
        sync_row();
        const u32 token = best_of<PLACES>(offers[1]).index;
        if (rank != 0 || me != 0) return;
        // The best one is always drawn from, unless logits change under this: no address is made of no token.
        p.choices[nth] = {token, token == NONE ? INFINITY_F : __fsub_rn(most.weight, __fmul_rn(left.adjusted(token), left.scale))};
    };

    if (top_k == 0 && top_p == ALL) {
        draw.best = {most.index, gumbel(bits_of(draw.chance, most.index))};
        // No branch before all is known of a token: several are under way at once.
        left.each<2>(from, to, [&](float l, u32 token) {
            const float d = left.distance(l);
            const u32 bits = bits_of(draw.chance, token);
            const bool is_near = d < reach & d >= 0.0f & can_reach(bits, draw.best.weight + d);
            if (is_near && (least_weight == 0 || weight_at(d) >= least_weight)) draw.offer(token, d, bits);
        });
        finish();
        return;
    }

    const u32 n_places = top_k > 0 ? top_k : FEW_PLACES;
    if (n_places <= FEW_PLACES) {
        // Not nearer than the last one that counts.
        if (me < PLACES) {
            const u64 mine = offers[0][me];
            const Choice offer = {(u32)mine, __uint_as_float((u32)(mine >> 32))};
            u32 n_before = 0;
            for (u32 i = 0; i < PLACES; i++) {
                const u64 word = offers[0][i];
                n_before += is_before({(u32)word, __uint_as_float((u32)(word >> 32))}, offer) || (word == mine && i < me);
            }
            if (n_before == n_places - 1) near = __fsub_rn(most.weight, offer.weight);
        }
        __syncthreads();
        const float last = near;
        u64 weight = 0;
        auto collect = [&](u32 token, float d) {
            const u32 at = d <= last ? atomicAdd(&n_few, 1) : FEW;
            if (at < FEW) list[at] = (u64)__float_as_uint(d) << 32 | token;
        };
        if (top_k > 0) left.each_near(from, to, reach, collect);
        else
            left.each<2>(from, to, [&](float l, u32 token) {
                const float d = left.distance(l);
                const bool is_near = d < reach & d >= 0.0f;
                weight += weight_at(is_near ? d : REACH_OF_CHANCE);
                if (is_near & d <= last) collect(token, d);
            });
        weights[me] = weight;
        __syncthreads();
        if (me < 32) {
            weight = 0;
            for (u32 i = lane; i < THREADS; i += 32) weight += weights[i];
            for (int step = 16; step > 0; step >>= 1) weight += __shfl_xor_sync(0xffffffffu, weight, step);
            tell(&told[0][rank], n_few);
            tell(&told[1][rank], weight);
        }
        sync_row();
        u64 n = 0, total = 0;
        for (u32 i = 0; i < RANKS; i++) n += told[0][i], total += told[1][i];
        if (n <= FEW) {
            // Every block puts all of them in order and draws: none has to wait for another.
            u32 filled = 0;
            for (u32 i = 0; i < RANKS; i++) {
                for (u32 j = me; j < told[0][i]; j += THREADS) counts[filled + j] = ask(&list[j], i);
                filled += told[0][i];
            }
            __syncthreads();
            const u32 token = me < n ? (u32)counts[me] : 0;
            const float distance = me < n ? __uint_as_float((u32)(counts[me] >> 32)) : 0.0f;
            const u64 mine = rank_of(token, distance);
            __syncthreads();
            if (me < n) counts[me] = mine;
            __syncthreads();
            u32 n_before = 0;
            if (me < n)
                for (u32 i = 0; i < n; i++) n_before += counts[i] < mine;
            const bool is_counted = me < n && (top_k == 0 || n_before < top_k);
            weights[me] = weight = is_counted ? weight_at(distance) : 0;
            __syncthreads();
            u64 before = 0, all = 0;
            if (me < n && top_p != ALL)
                for (u32 i = 0; i < n; i++) {
                    all += weights[i];
                    if (counts[i] < mine) before += weights[i];
                }
            const u64 needed = top_p == ALL ? ALL : max(1ull, __umul64hi((top_k > 0 ? all : total) << 8, top_p));
            // Where these do not weigh enough, the same for all blocks, more than these are kept.
            if (!__syncthreads_or(me < n && top_p != ALL && all < needed)) {
                if (is_counted && before < needed && weight >= least_weight) draw.offer(token, distance);
                finish();
                return;
            }
        }
    }

    // By number, then by weight: in order of rank, those are kept that have less than `needed` before them. Found bits by bits,
    // until the last one kept is alone in its bin.
    Limit by_number = {ALL, 0}, by_weight = {ALL, 0};
    u32 *low = (u32*)halves, *high = low + BINS;
    u64* slice_weights = halves;
    for (u32 weighs = 0; weighs < 2; weighs++) {
        if (weighs ? top_p == ALL : top_k == 0) continue;
        u64 needed = top_k, before = 0, prefix = 0;
        for (u32 shift = TOP_SHIFT;; shift -= BIN_BITS) {
            counts[me] = weights[me] = 0;
            low[me] = high[me] = 0;
            if (me == 0) found[0] = ALL;
            __syncthreads();
            for (u32 first = from; first == from || first < to; first += SUMMED) {
                left.each_near(first, min(first + SUMMED, to), reach, [&](u32 token, float distance) {
                    const u64 r = rank_of(token, distance);
                    if (r >> (shift + BIN_BITS) != prefix || !by_number.holds(r)) return;
                    const u32 bin = r >> shift & (BINS - 1);
                    atomicAdd((u32*)&counts[bin], 1);
                    if (weighs) {
                        const u32 weight = weight_at(distance);
                        atomicAdd(&low[bin], weight & 0xffff);
                        atomicAdd(&high[bin], weight >> 16);
                    }
                });
                __syncthreads();
                weights[me] += low[me] + ((u64)high[me] << 16);
                low[me] = high[me] = 0;
                __syncthreads();
            }
            sync_row();
            // Each block sums its slice of the bins over all blocks.
            const u32 bin = rank * (BINS / RANKS) + me / RANKS;
            u64 count = ask(&counts[bin], me % RANKS), weight = weighs ? ask(&weights[bin], me % RANKS) : count;
#pragma unroll
            for (u32 step = 1; step < RANKS; step *= 2) {
                count += __shfl_xor_sync(0xffffffffu, count, step);
                weight += __shfl_xor_sync(0xffffffffu, weight, step);
            }
            slice_counts[me / RANKS] = count;
            slice_weights[me / RANKS] = weight;
            __syncthreads();
            const u32 per_lane = BINS / RANKS / 32;
            weight = 0;
            if (me < 32) {
                for (u32 i = lane * per_lane; i < (lane + 1) * per_lane; i++) weight += slice_weights[i];
#pragma unroll
                for (u32 step = 1; step < 32; step *= 2) {
                    const u64 below = __shfl_up_sync(0xffffffffu, weight, step);
                    if (lane >= step) weight += below;
                }
                tell(&told[0][rank], __shfl_sync(0xffffffffu, weight, 31));
            }
            sync_row();
            u64 total = 0;
            for (u32 i = 0; i < RANKS; i++) {
                if (i < rank) weight += told[0][i];
                total += told[0][i];
            }
            if (weighs && shift == TOP_SHIFT) needed = max(1ull, __umul64hi(total << 8, top_p));
            weight += before;
            if (me < 32) {
                // A lane's sum reaches to the end of its bins; back to where `needed` is met.
                u32 i = (lane + 1) * per_lane;
                while (weight >= needed && i > lane * per_lane && weight - slice_weights[i - 1] >= needed) weight -= slice_weights[--i];
                const bool is_here = weight >= needed && i > lane * per_lane;
                const u32 who = __ballot_sync(0xffffffffu, is_here);
                if (who) {
                    const u32 at = is_here ? i - 1 : 0, of = __ffs(who) - 1;
                    tell(&found[0], __shfl_sync(0xffffffffu, slice_counts[at] << 32 | (rank * (BINS / RANKS) + at), of));
                    tell(&found[1], __shfl_sync(0xffffffffu, weight - slice_weights[at], of));
                }
            }
            sync_row();
            const u64 where = found[0];
            before = found[1];
            __syncthreads();
            // All there is does not reach it.
            if (where == ALL) break;
            prefix = prefix << BIN_BITS | (u32)where;
            if (where >> 32 == 1 || shift == 0) {
                (weighs ? by_weight : by_number) = {prefix, shift};
                break;
            }
        }
    }
    left.each_near(from, to, reach, [&](u32 token, float distance) {
        const u64 r = rank_of(token, distance);
        if (by_number.holds(r) && by_weight.holds(r) && (least_weight == 0 || weight_at(distance) >= least_weight)) draw.offer(token, distance);
    });
    finish();
}
