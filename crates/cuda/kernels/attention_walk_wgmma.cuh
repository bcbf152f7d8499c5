// A prompt's rows where four warps multiply together (sm_90a): the walk of attention_walk.cuh, number by number (`mma` and `wgmma` round
// alike there).
//
// Two groups of four warps have 32 (row, head) pairs each and wait for each other nowhere; four more warps copy pages for them. Pairs are the columns of
// all products: scores are keys (operand A, from registers) times queries, results values (A again) times weights, so that queries and weights
// are what the tensor cores read from shared memory, and a page's keys and values are read once by 32 pairs, where tiles of 16 read them once
// and the queries twice.
//
// Lanes hold results as `mma` leaves them: rows g and g + 8 of a warp's 16, pairs 8n + 2t and the next. Of scores these are positions 8 warp + g
// and 32 more, of results channels. What a softmax knows of a pair is in the lane that owns it, the same in each of the four warps: lane (g, t)
// has pair 8(g / 2) + 2t + g % 2.
#pragma once
#include "attention_walk.cuh"
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

template <int D>
struct GroupLayout {
    static constexpr u32 GROUPS = 2, PAIRS_OF_GROUP = 32;
    // Of keys, two rows and a gap between them: a quarter of a warp reads both at once.
    static constexpr u32 KEY_PAIR = 4 * D + 64, VALUE_STRIDE = 2 * D + 16;
    static constexpr u32 KEYS = 0, VALUES = PAGE / 2 * KEY_PAIR, STAGE = VALUES + PAGE * VALUE_STRIDE;
    // Squares of 8 pairs x 8 numbers: 64 rows of a group, first the queries' larger parts, then what those left out; of weights likewise.
    static constexpr u32 SQUARE = 128, QUERY_EIGHT = D / 8 * SQUARE, QUERIES = 2 * STAGE, GROUP_QUERIES = 8 * QUERY_EIGHT;
    static constexpr u32 WEIGHT_EIGHT = PAGE / 8 * SQUARE, WEIGHTS = QUERIES + GROUPS * GROUP_QUERIES, PART_WEIGHTS = 4 * WEIGHT_EIGHT;
    static constexpr u32 SHARES = WEIGHTS + GROUPS * 2 * PART_WEIGHTS, GROUP_SHARES = PAGE / 2 * PAIRS_OF_GROUP * 4;
    static constexpr u32 LARGEST = SHARES + GROUPS * GROUP_SHARES, GROUP_LARGEST = 4 * PAIRS_OF_GROUP * 4;
    // Of every pair: what is left of the chunk so far; where a chunk ends, what is left of those before it, and its own share.
    static constexpr u32 FACTORS = LARGEST + GROUPS * GROUP_LARGEST, BARRIERS = FACTORS + 3 * GROUPS * PAIRS_OF_GROUP * 4;
    // Of both stages and planes: a page's keys (values) are there; they are no longer needed.
    static constexpr u32 FULL = BARRIERS, EMPTY = FULL + 4 * 8;
    static constexpr u32 PAIRS = EMPTY + 4 * 8;
    static __device__ __forceinline__ u32 key_row(u32 at) { return at / 2 * KEY_PAIR + at % 2 * (2 * D + 64); }
};

template <int D, bool BF16>
struct GroupWalk : Attend<D, WALK_TILES, BF16, 2, GroupLayout<D>> {
    using L = GroupLayout<D>;
    using Base = Attend<D, WALK_TILES, BF16, 2, L>;
    using Base::p, Base::room, Base::M, Base::pairs, Base::find_pairs, Base::held_at, Base::gate_at, Base::put;
    static constexpr u32 N_THREADS = 32 * 4 * L::GROUPS;  // without the warps that copy
    static constexpr u32 COPY_THREADS = 128;
    // Times 64 channels of a result; eights of a group's pairs.
    static constexpr u32 NC = D / 64, NP = L::PAIRS_OF_GROUP / 8;

    // Of the pair that a lane owns: what it sees, the chunk at hand, and all before it.
    struct Softmax {
        u32 from, end;
        float max, all_max;
    };
    // Of pair 8 warp + lane / 4.
    struct Totals {
        float chunk, all;
    };

    __device__ __forceinline__ u32 full(u32 stage, u32 plane) const { return shared_address(room + L::FULL) + (2 * stage + plane) * 8; }
    __device__ __forceinline__ u32 empty(u32 stage, u32 plane) const { return shared_address(room + L::EMPTY) + (2 * stage + plane) * 8; }

    // Queries in two parts each. A step's 16 columns are the channels that attention_tiles.cuh puts there.
    __device__ __forceinline__ void load_queries() const {
#pragma unroll 4
        for (u32 unit = threadIdx.x; unit < M * D / 8; unit += N_THREADS) {
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

    // Of the warps that copy: a page's keys (0) or values (1), `n` positions of it.
    __device__ __forceinline__ void copy_plane(u32 plane, u32 stage, u64 held, u32 n) const {
        constexpr u32 CHUNKS = D / 8, STEP = COPY_THREADS / CHUNKS;
        const u32 first = threadIdx.x % COPY_THREADS / CHUNKS, chunk = threadIdx.x % CHUNKS;
        const u32 to = shared_address(room + stage * L::STAGE) + (plane ? L::VALUES + first * L::VALUE_STRIDE : L::KEYS + L::key_row(first)) + chunk * 16;
        const u16* from = (const u16*)p.kv + (plane ? (u64)p.kv_heads * PAGE * D : 0) + held + first * D + chunk * 8;
#pragma unroll 8
        for (u32 i = 0; i < PAGE / STEP; i++)
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to + i * STEP / 2 * (plane ? 2 * L::VALUE_STRIDE : L::KEY_PAIR)),
                         "l"(from + i * STEP * D), "r"(i * STEP + first < n ? 16 : 0)
                         : "memory");
        copies_arrive(full(stage, plane));
    }
    __device__ __forceinline__ void copy_pages(const Work& w) const {
        u64 held = held_at(w, w.page);
#pragma unroll 1
        for (u32 page = w.page, i = 0; page <= w.last; page++, i++) {
            const u64 next = held_at(w, page + 1);
            const u32 n = min(PAGE, w.end - page * PAGE), parity = (i / 2 + 1) % 2;
#pragma unroll
            for (u32 plane = 0; plane < 2; plane++) {
                barrier_wait(empty(i % 2, plane), parity);
                copy_plane(plane, i % 2, held, n);
            }
            held = next;
        }
        asm volatile("cp.async.wait_all;" ::: "memory");
    }

    // What a group's four warps have stored is there for all of them.
    static __device__ __forceinline__ void meet(u32 group) { asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory"); }
    __device__ __forceinline__ void leave(u32 barrier) const {
        __syncwarp();
        if ((threadIdx.x & 31) == 0) barrier_arrive(barrier);
    }

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

    // Of a lane's eight pairs what their owners have.
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
        return of[0];
    }

    // The page into the softmax of the lane's pair; the weights into shared memory. Gives what is left of the chunk so far.
    __device__ __forceinline__ float3 weigh(u32 page, bool is_inner, bool ends_chunk, u32 group, u32 warp, float (&scores)[2 * NP][4], Softmax& softmax) const {
        const u32 lane = threadIdx.x & 31, g = lane / 4, t = lane % 4, own = 8 * (g / 2) + 2 * t + g % 2;
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
        largest[32 * warp] = mine;
        meet(group);
        const float now = fmaxf(softmax.max, fmaxf(fmaxf(largest[0], largest[32]), fmaxf(largest[64], largest[96])));
        // A page before the row's window changes nothing.
        const float zero = now == -INFINITY_F ? 0.0f : now, shrink = power(softmax.max - zero);
        softmax.max = now;
        float3 factors = make_float3(shrink, 0.0f, 0.0f);
        if (ends_chunk) {
            Merge merged = {softmax.all_max, 0.0f};
            const float2 two = merge(merged, softmax.max, 0.0f);
            softmax.all_max = merged.max, softmax.max = -INFINITY_F;
            factors.y = two.x, factors.z = two.y;
        }
        if (warp < 3) factors_at(warp, group)[own] = warp == 0 ? factors.x : warp == 1 ? factors.y : factors.z;
        float zeros[2 * NP];
        spread(zero, zeros);
#pragma unroll
        for (u32 n = 0; n < NP; n++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) scores[n][i] = power(scores[n][i] - zeros[2 * n + i % 2]);
        // Positions 32 apart are added first.
        float* shares = (float*)(room + L::SHARES + group * L::GROUP_SHARES) + 32 * (8 * warp + g);
#pragma unroll
        for (u32 n = 0; n < NP; n++)
            *(float2*)(shares + ((8 * n + 2 * t) ^ 8 * (g % 4))) = make_float2(scores[n][0] + scores[n][2], scores[n][1] + scores[n][3]);
        const u32 weights = weights_at(group) + lane / 8 * L::WEIGHT_EIGHT + warp * L::SQUARE + lane % 8 * 16;
#pragma unroll
        for (u32 r = 0; r < 2; r++) {
            u32 high[NP], low[NP];
#pragma unroll
            for (u32 n = 0; n < NP; n++) in_two<BF16>(scores[n][2 * r], scores[n][2 * r + 1], high[n], low[n]);
            store_transposed(weights + 4 * r * L::SQUARE, high[0], high[1], high[2], high[3]);
            store_transposed(weights + 4 * r * L::SQUARE + L::PART_WEIGHTS, low[0], low[1], low[2], low[3]);
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

    // A page's weights of pair 8 warp + lane / 4, added in the order of `warp_sum`: positions 32 apart, which is done, 16, 8, 4, 2 and 1.
    __device__ __forceinline__ float sum_of_weights(u32 group, u32 warp) const {
        const u32 lane = threadIdx.x & 31, first = lane % 4;
        const float* shares = (const float*)(room + L::SHARES + group * L::GROUP_SHARES) + 32 * first + ((8 * warp + lane / 4) ^ 8 * first);
        float x[8];
#pragma unroll
        for (u32 i = 0; i < 8; i++) x[i] = shares[4 * 32 * i];
        float sum = ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        return sum + __shfl_xor_sync(0xffffffffu, sum, 1);
    }
    // Who owns the pair whose total a lane has.
    static __device__ __forceinline__ u32 owner_of_total(u32 warp) {
        const u32 pair = (threadIdx.x & 31) / 4;
        return 4 * (2 * warp + pair % 2) + pair / 2;
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
#pragma unroll
                    for (u32 other = 0; other < NC; other++)
#pragma unroll
                        for (u32 n = 0; n < NP; n++)
#pragma unroll
                            for (u32 i = 0; i < 4; i++) acc[other][n][i] *= left[2 * n + i % 2];
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

    // A group's pairs through all pages.
    __device__ __forceinline__ void walk_pages(const Work& w, u32 group, u32 warp, float (&all)[NC][NP][4], Totals& totals) const {
        const u32 lane = threadIdx.x & 31, g = lane / 4, t = lane % 4, owner = owner_of_total(warp);
        const Pair& own = pairs()[L::PAIRS_OF_GROUP * group + 8 * (g / 2) + 2 * t + g % 2];
        Softmax softmax = {own.from, own.end, -INFINITY_F, own.all.max};
        totals = {0.0f, pairs()[L::PAIRS_OF_GROUP * group + 8 * warp + lane / 4].all.total};
        const u32 from = __reduce_max_sync(0xffffffffu, own.head == ~0u ? 0 : own.from), end = __reduce_min_sync(0xffffffffu, own.head == ~0u ? ~0u : own.end);
        float acc[NC][NP][4];
#pragma unroll
        for (u32 block = 0; block < NC; block++)
#pragma unroll
            for (u32 n = 0; n < NP; n++)
#pragma unroll
                for (u32 i = 0; i < 4; i++) all[block][n][i] = acc[block][n][i] = 0.0f;
        float scores[2 * NP][4];
        const auto begin_scores = [&](u32 i) {
            barrier_wait(full(i % 2, 0), i / 2 % 2);
            score(i % 2, group, warp, scores);
            leave(empty(i % 2, 0));
        };
        begin_scores(0);
        wgmma_wait<0>();
#pragma unroll 1
        for (u32 page = w.page, i = 0; page <= w.last; page++, i++) {
            const bool ends_chunk = page == w.last || chunk_of(page + 1) != chunk_of(page);
            const bool begins_chunk = page == w.page || chunk_of(page - 1) != chunk_of(page);
            const u32 stage = i % 2, parity = i / 2 % 2;
            const float3 factors = weigh(page, page * PAGE >= from && page * PAGE + PAGE <= end, ends_chunk, group, warp, scores, softmax);
            barrier_wait(full(stage, 1), parity);
            add_values(stage, group, warp, begins_chunk, acc);
            // Scores of the next page, while the chunk joins those before it.
            if (page < w.last) {
                begin_scores(i + 1);
                wgmma_wait<1>();
            } else {
                wgmma_wait<0>();
            }
            leave(empty(stage, 1));
            const float sum = sum_of_weights(group, warp);
            totals.chunk = __fmaf_rn(totals.chunk, __shfl_sync(0xffffffffu, factors.x, owner), sum);
            if (ends_chunk) {
                const float old = __shfl_sync(0xffffffffu, factors.y, owner), added = __shfl_sync(0xffffffffu, factors.z, owner);
                totals = {0.0f, __fmaf_rn(totals.chunk, added, totals.all * old)};
                float of_old[2 * NP], of_added[2 * NP];
                factors_of(1, group, of_old);
                factors_of(2, group, of_added);
#pragma unroll
                for (u32 block = 0; block < NC; block++)
#pragma unroll
                    for (u32 n = 0; n < NP; n++)
#pragma unroll
                        for (u32 i = 0; i < 4; i++)
                            all[block][n][i] = __fmaf_rn(of_added[2 * n + i % 2], acc[block][n][i], all[block][n][i] * of_old[2 * n + i % 2]);
            }
            wgmma_wait<0>();
        }
    }

    __device__ __forceinline__ void walk() const {
        Work w = {};
        if (!find_walked(p, M, blockIdx.x / p.kv_heads, w)) return pdl_idle();
        w.kv_head = blockIdx.x % p.kv_heads;
        w.first_head = w.kv_head * (p.heads / p.kv_heads);
        const u32 warp = __shfl_sync(0xffffffffu, threadIdx.x >> 5, 0), group = warp / 4, lane = threadIdx.x & 31, g = lane / 4, t = lane % 4;
        const u32 n_groups = (w.n_rows * (p.heads / p.kv_heads) + L::PAIRS_OF_GROUP - 1) / L::PAIRS_OF_GROUP;
        find_pairs(w);
        if (threadIdx.x == 0)
#pragma unroll
            for (u32 i = 0; i < 4; i++) barrier_init(full(i / 2, i % 2), COPY_THREADS), barrier_init(empty(i / 2, i % 2), 4 * n_groups);
        barrier_init_visible();
        __syncthreads();
        pdl_wait();
        pdl_next();
        if (group >= L::GROUPS) {
            registers_fewer<24>();
            return copy_pages(w);
        }
        registers_more<240>();
        const auto all_groups = [&] { asm volatile("bar.sync 3, %0;" ::"n"(N_THREADS) : "memory"); };
        load_queries();
        fence_for_async();
        all_groups();
        float all[NC][NP][4];
        Totals totals;
        if (group < n_groups) walk_pages(w, group, warp % 4, all, totals);
        // Through shared memory, so that a warp has 128 channels of a row. Gates are asked for before.
        constexpr u32 ROW = D + 4, THREADS = D / 4, STEP = N_THREADS / THREADS, AT_ONCE = M / STEP < 8 ? M / STEP : 8;
        const u32 channel = threadIdx.x % THREADS * 4;
        float4 gates[AT_ONCE];
        const auto load_gates = [&](u32 first) {
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; i++) {
                const Pair& pair = pairs()[first + i * STEP];
                if (pair.head != ~0u) gates[i] = gate_at(pair.row, pair.head, channel);
            }
        };
        load_gates(threadIdx.x / THREADS);
        all_groups();
        float* sums = (float*)room;
        if (group < n_groups) {
            float* to = sums + (L::PAIRS_OF_GROUP * group + 2 * t) * ROW + 16 * (warp % 4) + g;
#pragma unroll
            for (u32 block = 0; block < NC; block++)
#pragma unroll
                for (u32 n = 0; n < NP; n++)
#pragma unroll
                    for (u32 i = 0; i < 4; i++) to[(8 * n + i % 2) * ROW + 64 * block + i / 2 * 8] = all[block][n][i];
            if (lane % 4 == 0) pairs()[8 * warp + lane / 4].all.total = totals.all;
        }
        all_groups();
#pragma unroll 1
        for (u32 first = threadIdx.x / THREADS; first < M; first += AT_ONCE * STEP) {
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; i++) {
                const Pair& pair = pairs()[first + i * STEP];
                if (pair.head == ~0u) continue;
                put(pair.row, pair.head, channel, *(const float4*)(sums + (first + i * STEP) * ROW + channel), 1.0f / pair.all.total, gates[i]);
            }
            if (first + AT_ONCE * STEP < M) load_gates(first + AT_ONCE * STEP);
        }
    }
};
#define WALK_THREADS (3 * 128)
#else
#define WALK_THREADS (64 * WALK_TILES)
#endif

template <int D, bool BF16>
__device__ __forceinline__ void walk_tiles(const Attention& p) {
    extern __shared__ __align__(128) u8 room[];
#if HAS_WGMMA
    const GroupWalk<D, BF16> block = {{p, room, WALK, {}}};
#else
    const Walk<D, BF16> block = {{p, room, WALK, {}}};
#endif
    block.walk();
}

// Grid: (key heads, groups of rows) in one dimension.
#define WALKS(D, BF16, NAME)                                                                                                \
    extern "C" __global__ void __launch_bounds__(WALK_THREADS, 1) NAME##_##D##_walk(const __grid_constant__ Attention p) { \
        walk_tiles<D, BF16>(p);                                                                                             \
    }
