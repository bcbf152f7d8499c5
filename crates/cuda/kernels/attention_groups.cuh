// A page through four warps that multiply together (sm_90a), for prompts' rows and for others: number by number as tiles of 16 have it
// (`mma` and `wgmma` round alike there).
//
// A group of four warps has 8 NP (row, head) pairs, and waits for no other; four more warps copy pages. Pairs are the columns of
// all products: scores are keys (operand A, from registers) times queries, results values (A again) times weights, so that queries and weights
// are what the tensor cores read from shared memory, and a page's keys and values are read once by 32 pairs, where tiles of 16 read them once
// and the queries twice.
//
// Lanes hold results as `mma` leaves them: rows g and g + 8 of a warp's 16, pairs 8n + 2t and the next. Of scores these are positions 8 warp + g
// and 32 more, of results channels. What a softmax knows of a pair is in the lanes that own it, the same in each of the four warps: lane (g, t)
// has pair 8(g / 2) + 2t + g % 2, where g counts from 0 again at 2 NP.
#pragma once
#include "attention_tiles.cuh"
#include "linear_ptx.cuh"
#include "linear_wgmma.cuh"

#if HAS_WGMMA

template <bool BF16, u32 N>
__device__ __forceinline__ void wgmma_16(float (&d)[N][4], const u32 (&a)[4], u64 b, u32 add) {
    if constexpr (BF16) wgmma_bf16(d, a, b, add);
    else wgmma(d, a, b, add);
}

// Four matrices of 8 x 8 numbers of 16 bits, each stored with rows and columns exchanged: lanes have the addresses of rows in shared memory.
__device__ __forceinline__ void store_transposed(u32 to, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

template <int D, u32 NP_, u32 GROUPS_, u32 N_FACTORS>
struct GroupLayout {
    static constexpr u32 NP = NP_, GROUPS = GROUPS_, PAIRS_OF_GROUP = 8 * NP;
    // Of keys, two rows and a gap between them: a quarter of a warp reads both at once.
    static constexpr u32 KEY_PAIR = 4 * D + 64, VALUE_STRIDE = 2 * D + 16;
    static constexpr u32 KEYS = 0, VALUES = PAGE / 2 * KEY_PAIR, STAGE = VALUES + PAGE * VALUE_STRIDE;
    // Squares of 8 pairs x 8 numbers: of a group first the queries' larger parts, then what those left out; of weights likewise.
    static constexpr u32 SQUARE = 128, QUERY_EIGHT = D / 8 * SQUARE, QUERIES = 2 * STAGE, GROUP_QUERIES = 2 * NP * QUERY_EIGHT;
    static constexpr u32 WEIGHT_EIGHT = PAGE / 8 * SQUARE, WEIGHTS = QUERIES + GROUPS * GROUP_QUERIES, PART_WEIGHTS = NP * WEIGHT_EIGHT;
    static constexpr u32 SHARES = WEIGHTS + GROUPS * 2 * PART_WEIGHTS, GROUP_SHARES = PAGE / 2 * PAIRS_OF_GROUP * 4;
    static constexpr u32 LARGEST = SHARES + GROUPS * GROUP_SHARES, GROUP_LARGEST = 4 * PAIRS_OF_GROUP * 4;
    // Of every pair: what is left of the chunk so far; of a walk, where a chunk ends, what is left of those before it, and its own share.
    static constexpr u32 FACTORS = LARGEST + GROUPS * GROUP_LARGEST, BARRIERS = FACTORS + N_FACTORS * GROUPS * PAIRS_OF_GROUP * 4;
    // Of both stages and planes: a page's keys (values) are there; they are no longer needed.
    static constexpr u32 FULL = BARRIERS, EMPTY = FULL + 4 * 8;
    static constexpr u32 PAIRS = EMPTY + 4 * 8;
    static __device__ __forceinline__ u32 key_row(u32 at) { return at / 2 * KEY_PAIR + at % 2 * (2 * D + 64); }
};

// BASE: `Attend` with a GroupLayout.
template <int D, bool BF16, class BASE>
struct Groups : BASE {
    using L = typename BASE::L;
    using BASE::p, BASE::room, BASE::kind, BASE::pairs;
    static constexpr u32 N_THREADS = 128 * L::GROUPS, COPY_THREADS = 128;  // those that multiply, those that copy
    // Times 64 channels of a result; eights of a group's pairs.
    static constexpr u32 NC = D / 64, NP = L::NP;

    // Of the pair that a lane owns: what it sees, the chunk at hand, and all before it.
    struct Softmax {
        u32 from, end;
        float max, all_max;
    };
    // Of a lane's total: which pair of the group's.
    static __device__ __forceinline__ u32 pair_of_total(u32 warp) { return (NP == 4 ? 8 * warp : 0) + (threadIdx.x & 31) / 4; }
    // Of the pair that a lane owns, which.
    static __device__ __forceinline__ u32 own_pair() {
        const u32 lane = threadIdx.x & 31, g = lane / 4 % (2 * NP);
        return 8 * (g / 2) + 2 * (lane % 4) + g % 2;
    }

    __device__ __forceinline__ u32 full(u32 stage, u32 plane) const { return shared_address(room + L::FULL) + (2 * stage + plane) * 8; }
    __device__ __forceinline__ u32 empty(u32 stage, u32 plane) const { return shared_address(room + L::EMPTY) + (2 * stage + plane) * 8; }

    // By a thread, before others go on: how many warps leave a page.
    __device__ __forceinline__ void init_barriers(u32 n_warps) const {
#pragma unroll
        for (u32 i = 0; i < 4; i++) barrier_init(full(i / 2, i % 2), COPY_THREADS), barrier_init(empty(i / 2, i % 2), 32 * n_warps);
    }

    // Queries in two parts each. A step's 16 columns are the channels that attention_tiles.cuh puts there.
    __device__ __forceinline__ void load_queries(u32 n_eights) const {
#pragma unroll 4
        for (u32 unit = threadIdx.x; unit < n_eights * D; unit += N_THREADS) {
            const u32 t = unit % 4, row = unit / 4 % 8, c = unit / 32 % (D / 32), eight = unit / 32 / (D / 32);
            const Pair& pair = pairs()[8 * eight + row];
            float4 x[2] = {make_float4(0.0f, 0.0f, 0.0f, 0.0f), make_float4(0.0f, 0.0f, 0.0f, 0.0f)};
            if (pair.head != ~0u) {
                const float4* from = (const float4*)(p.q + ((u64)pair.row * p.heads + pair.head) * p.q_stride + 32 * c + 8 * t);
                x[0] = from[0], x[1] = from[1];
            }
            u8* to = room + L::QUERIES + eight / NP * L::GROUP_QUERIES + eight % NP * L::QUERY_EIGHT + 4 * c * L::SQUARE + row * 16 + 4 * t;
#pragma unroll
            for (u32 step = 0; step < 2; step++) {
                u32 high[2], low[2];
                in_two<BF16>(x[step].x, x[step].y, high[0], low[0]);
                in_two<BF16>(x[step].z, x[step].w, high[1], low[1]);
#pragma unroll
                for (u32 half = 0; half < 2; half++) {
                    *(u32*)(to + (2 * step + half) * L::SQUARE) = high[half];
                    *(u32*)(to + NP * L::QUERY_EIGHT + (2 * step + half) * L::SQUARE) = low[half];
                }
            }
        }
    }

    // Of the four warps that copy: keys (0) or values (1) of the i-th page, when its place is free. `from(at)`: where a position's channels
    // are; or NOWHERE, if it HAS_GAPS.
    template <bool HAS_GAPS, class From>
    __device__ __forceinline__ void copy_plane(u32 plane, u32 i, From from) const {
        constexpr u32 CHUNKS = D / 8, STEP = COPY_THREADS / CHUNKS;
        const u32 stage = i % 2, first = threadIdx.x % COPY_THREADS / CHUNKS, chunk = threadIdx.x % CHUNKS, step = plane ? STEP * L::VALUE_STRIDE : STEP / 2 * L::KEY_PAIR;
        const u32 to = shared_address(room + stage * L::STAGE) + (plane ? L::VALUES + first * L::VALUE_STRIDE : L::KEYS + L::key_row(first)) + chunk * 16;
        const u16* base = (const u16*)p.kv + (plane ? (u64)p.kv_heads * PAGE * D : 0) + chunk * 8;
        barrier_wait(empty(stage, plane), (i / 2 + 1) % 2);
#pragma unroll 8
        for (u32 k = 0; k < PAGE / STEP; k++) {
            const u64 at = from(k * STEP + first);
            const bool is_gap = HAS_GAPS && at == NOWHERE;
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to + k * step), "l"(is_gap ? base : base + at), "r"(is_gap ? 0 : 16)
                         : "memory");
        }
        copies_arrive(full(stage, plane));
    }

    // What a group's four warps have stored is there for all of them.
    static __device__ __forceinline__ void meet(u32 group) { asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory"); }
    // A group without pairs meets as often as others do in a page: racecheck compares warps by how many barriers they have come to, and where these
    // differ reports accesses that a later barrier of both keeps apart (docs/cuda.md has a kernel of 20 lines that shows it).
    static __device__ __forceinline__ void idle_page(u32 group) { meet(group), meet(group); }
    // By every lane, of what it read itself (see prompt_sums.cuh).
    __device__ __forceinline__ void leave(u32 barrier) const { barrier_arrive(barrier); }

    // Scores of positions 8 warp + g and 32 more, in the two parts that queries have.
    __device__ __forceinline__ void score(u32 stage, u32 group, u32 warp, float (&scores)[2 * NP][4]) const {
        const u32 lane = threadIdx.x & 31, g = lane / 4, t = lane % 4;
        const u8* keys = room + stage * L::STAGE + L::KEYS + L::key_row(8 * warp + g) + 16 * t;
        const u32 queries = wgmma_place(shared_address(room + L::QUERIES) + group * L::GROUP_QUERIES);
#pragma unroll
        for (u32 c = 0; c < D / 32; c += 2) {
            u32 a[4][4];
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                const uint4 first = *(const uint4*)(keys + 64 * (c + i)), second = *(const uint4*)(keys + L::key_row(PAGE / 2) + 64 * (c + i));
                a[2 * i][0] = first.x, a[2 * i][1] = second.x, a[2 * i][2] = first.y, a[2 * i][3] = second.y;
                a[2 * i + 1][0] = first.z, a[2 * i + 1][1] = second.z, a[2 * i + 1][2] = first.w, a[2 * i + 1][3] = second.w;
            }
            wgmma_fence();
#pragma unroll
            for (u32 i = 0; i < 4; i++)
                wgmma_16<BF16>(scores, a[i], wgmma_input(queries + (2 * c + i) * WGMMA_STEP, L::QUERY_EIGHT), c + i > 0);
            wgmma_commit();
            if (c + 2 < D / 32) wgmma_wait<1>();
        }
    }

    __device__ __forceinline__ u32 weights_at(u32 group) const { return shared_address(room + L::WEIGHTS) + group * 2 * L::PART_WEIGHTS; }

    // Of a lane's pairs what their owners have.
    static __device__ __forceinline__ void spread(float of_own, float (&of)[2 * NP]) {
#pragma unroll
        for (u32 j = 0; j < 2 * NP; j++) of[j] = __shfl_sync(0xffffffffu, of_own, 4 * j + threadIdx.x % 4);
    }
    // The largest of each pair over the warp's positions, to the pair's owner.
    static __device__ __forceinline__ float largest_of(float (&of)[2 * NP]) {
        const u32 lane = threadIdx.x & 31;
#pragma unroll
        for (u32 n = NP; n > 0; n /= 2) {
            const bool is_upper = lane & (4 * n);
#pragma unroll
            for (u32 j = 0; j < n; j++) {
                const float kept = is_upper ? of[j + n] : of[j], given = is_upper ? of[j] : of[j + n];
                of[j] = fmaxf(kept, __shfl_xor_sync(0xffffffffu, given, 4 * n));
            }
        }
#pragma unroll
        for (u32 step = 8 * NP; step < 32; step *= 2) of[0] = fmaxf(of[0], __shfl_xor_sync(0xffffffffu, of[0], step));
        return of[0];
    }

    // The page into the softmax of the lane's pair; the weights into shared memory. Gives what is left of the chunk so far, and
    // what `end(softmax)` says of a chunk that ends.
    template <class End>
    __device__ __forceinline__ float3 weigh(u32 page, bool is_inner, u32 group, u32 warp, float (&scores)[2 * NP][4], Softmax& softmax, End end) const {
        const u32 lane = threadIdx.x & 31, g = lane / 4, t = lane % 4, own = own_pair();
        const float scale = p.scale * 1.4426950408889634f;
        float most[2 * NP];
#pragma unroll
        for (u32 n = 0; n < NP; n++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) scores[n][i] = __fmul_rn(scale, scores[n][i] + scores[n + NP][i]);
        if (!is_inner) {
            const u32 pos = page * PAGE + 8 * warp + g;
#pragma unroll
            for (u32 j = 0; j < 2 * NP; j++) {
                const u32 from = __shfl_sync(0xffffffffu, softmax.from, 4 * j + t), end = __shfl_sync(0xffffffffu, softmax.end, 4 * j + t);
#pragma unroll
                for (u32 r = 0; r < 2; r++)
                    if (pos + 32 * r < from || pos + 32 * r >= end) scores[j / 2][2 * r + j % 2] = -INFINITY_F;
            }
        }
#pragma unroll
        for (u32 j = 0; j < 2 * NP; j++) most[j] = fmaxf(scores[j / 2][j % 2], scores[j / 2][2 + j % 2]);
        const float mine = largest_of(most);
        float* largest = (float*)(room + L::LARGEST + group * L::GROUP_LARGEST) + own;
        constexpr u32 P = L::PAIRS_OF_GROUP;
        largest[P * warp] = mine;
        meet(group);
        const float now = fmaxf(softmax.max, fmaxf(fmaxf(largest[0], largest[P]), fmaxf(largest[2 * P], largest[3 * P])));
        // A page before the row's window changes nothing.
        const float zero = now == -INFINITY_F ? 0.0f : now, shrink = power(softmax.max - zero);
        softmax.max = now;
        const float2 ended = end(softmax);
        const float3 factors = make_float3(shrink, ended.x, ended.y);
        if (warp < (kind == WALK ? 3 : 1)) factors_at(warp, group)[own] = warp == 0 ? factors.x : warp == 1 ? factors.y : factors.z;
        float zeros[2 * NP];
        spread(zero, zeros);
#pragma unroll
        for (u32 n = 0; n < NP; n++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) scores[n][i] = power(scores[n][i] - zeros[2 * n + i % 2]);
        // Positions 32 apart are added first.
        float* shares = (float*)(room + L::SHARES + group * L::GROUP_SHARES) + P * (8 * warp + g);
#pragma unroll
        for (u32 n = 0; n < NP; n++)
            *(float2*)(shares + ((8 * n + 2 * t) ^ 8 * (g % NP))) = make_float2(scores[n][0] + scores[n][2], scores[n][1] + scores[n][3]);
        u32 high[2][NP], low[2][NP];
#pragma unroll
        for (u32 r = 0; r < 2; r++)
#pragma unroll
            for (u32 n = 0; n < NP; n++) in_two<BF16>(scores[n][2 * r], scores[n][2 * r + 1], high[r][n], low[r][n]);
        const u32 weights = weights_at(group) + warp * L::SQUARE + lane % 8 * 16, nth = lane / 8;
        if constexpr (NP == 4) {
#pragma unroll
            for (u32 r = 0; r < 2; r++) {
                const u32 to = weights + nth * L::WEIGHT_EIGHT + 4 * r * L::SQUARE;
                store_transposed(to, high[r][0], high[r][1], high[r][2], high[r][3]);
                store_transposed(to + L::PART_WEIGHTS, low[r][0], low[r][1], low[r][2], low[r][3]);
            }
        } else {
            static_assert(NP == 1, "pairs come in one eight or four");
            store_transposed(weights + nth / 2 * L::PART_WEIGHTS + nth % 2 * 4 * L::SQUARE, high[0][0], high[1][0], low[0][0], low[1][0]);
        }
        fence_for_async();
        return factors;
    }
    __device__ __forceinline__ float* factors_at(u32 which, u32 group) const { return (float*)(room + L::FACTORS) + (which * L::GROUPS + group) * L::PAIRS_OF_GROUP; }
    // Of the pairs that a lane has results of.
    __device__ __forceinline__ void factors_of(u32 which, u32 group, float (&of)[2 * NP]) const {
        const float* from = factors_at(which, group) + 2 * (threadIdx.x % 4);
#pragma unroll
        for (u32 n = 0; n < NP; n++) {
            const float2 two = *(const float2*)(from + 8 * n);
            of[2 * n] = two.x, of[2 * n + 1] = two.y;
        }
    }

    // A page's weights of the pair whose total the lane has, added in the order of `warp_sum`: positions 32 apart, which is done, 16, 8, 4, 2
    // and 1.
    __device__ __forceinline__ float sum_of_weights(u32 group, u32 warp) const {
        const u32 lane = threadIdx.x & 31, first = lane % 4;
        const float* shares = (const float*)(room + L::SHARES + group * L::GROUP_SHARES) + L::PAIRS_OF_GROUP * first + (pair_of_total(warp) ^ 8 * (first % NP));
        float x[8];
#pragma unroll
        for (u32 i = 0; i < 8; i++) x[i] = shares[4 * L::PAIRS_OF_GROUP * i];
        float sum = ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        return sum + __shfl_xor_sync(0xffffffffu, sum, 1);
    }
    // Who owns the pair whose total a lane has.
    static __device__ __forceinline__ u32 owner_of_total(u32 warp) {
        const u32 pair = pair_of_total(warp);
        return 4 * (pair / 8 * 2 + pair % 2) + pair % 8 / 2;
    }

    // Values of 16 channels and all of a page's positions.
    __device__ __forceinline__ void load_values(u32 stage, u32 warp, u32 block, u32 (&a)[4][4]) const {
        const u32 lane = threadIdx.x & 31;
        const u32 values = shared_address(room + stage * L::STAGE + L::VALUES) + (lane / 16 * 8 + lane % 8) * L::VALUE_STRIDE +
                           (64 * block + 16 * warp + lane / 8 % 2 * 8) * 2;
#pragma unroll
        for (u32 step = 0; step < 4; step++) {
            u32 first[2], second[2];
            load_transposed(first, second, values + step * 16 * L::VALUE_STRIDE);
            a[step][0] = first[0], a[step][1] = first[1], a[step][2] = second[0], a[step][3] = second[1];
        }
    }
    // Of a lane's sums each; its pair is the 2n + i % 2nd.
    template <class Each>
    static __device__ __forceinline__ void for_sums(Each each) {
#pragma unroll
        for (u32 block = 0; block < NC; block++)
#pragma unroll
            for (u32 n = 0; n < NP; n++)
#pragma unroll
                for (u32 i = 0; i < 4; i++) each(block, n, i);
    }
    // Weighted values.
    __device__ __forceinline__ void add_values(u32 stage, u32 group, u32 warp, bool begins_chunk, float (&acc)[NC][NP][4]) const {
        const u32 weights = wgmma_place(weights_at(group));
#pragma unroll
        for (u32 block = 0; block < NC; block++) {
            u32 a[4][4];
            load_values(stage, warp, block, a);
            if (block == 0) {
                meet(group);
                if (!begins_chunk) {
                    float left[2 * NP];
                    factors_of(0, group, left);
                    for_sums([&](u32 other, u32 n, u32 i) { acc[other][n][i] *= left[2 * n + i % 2]; });
                }
            }
            wgmma_fence();
#pragma unroll
            for (u32 step = 0; step < 4; step++)
#pragma unroll
                for (u32 part = 0; part < 2; part++)
                    wgmma_16<BF16>(acc[block], a[step], wgmma_input(weights + step * WGMMA_STEP + part * (L::PART_WEIGHTS >> 4), L::WEIGHT_EIGHT),
                                   step + part > 0 || !begins_chunk);
            wgmma_commit();
            if (block + 1 < NC) wgmma_wait<1>();
        }
    }

    // The i-th page's scores, which are under way when this ends.
    __device__ __forceinline__ void begin_scores(u32 i, u32 group, u32 warp, float (&scores)[2 * NP][4]) const {
        barrier_wait(full(i % 2, 0), i / 2 % 2);
        score(i % 2, group, warp, scores);
        leave(empty(i % 2, 0));
    }
    // The i-th page's values, and the sum of its weights to a pair's total, of which its owner says what is left. The next page's scores are
    // under way when this ends.
    __device__ __forceinline__ void add_page(u32 i, bool has_next, u32 group, u32 warp, bool begins_chunk, float left, float (&acc)[NC][NP][4],
                                             float (&scores)[2 * NP][4], float& total) const {
        barrier_wait(full(i % 2, 1), i / 2 % 2);
        add_values(i % 2, group, warp, begins_chunk, acc);
        if (has_next) {
            begin_scores(i + 1, group, warp, scores);
            wgmma_wait<1>();
        } else {
            wgmma_wait<0>();
        }
        leave(empty(i % 2, 1));
        const float sum = sum_of_weights(group, warp);
        total = __fmaf_rn(total, __shfl_sync(0xffffffffu, left, owner_of_total(warp)), sum);
    }
};
#endif
