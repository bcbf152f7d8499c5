// A prompt's rows: a block walks all chunks that a group of them sees and puts them together as it goes.
//
// Two warps to each of four tiles of 16 (row, head) pairs: every second eight positions of a page are one's for the scores, half of
// the channels for the values. What a pair's softmax needs stays in the registers of its lanes; the two warps hand each other
// largest scores, weights and a share of the sum, and wait for no others within a page. (Eight warps to a tile, with three
// barriers of all a page: 9400 cycles for a page and 48 pairs of 256 channels, H200.) Every number is that of
// attention_chunks.cuh.
#pragma once
#include "attention_tiles.cuh"

#define WALK_TILES 4

// Rows of a prompt that share what they see, `pairs` with their heads, if there are as many groups.
__device__ __forceinline__ bool find_walked(const Attention& p, u32 pairs, u32 nth, Work& w) {
    const u32 most = pairs / (p.heads / p.kv_heads), n_seqs = p.step.counts[2];
#pragma unroll 1
    for (u32 s = 0; s < n_seqs; s++) {
        const Seq seq = p.step.seqs[s];
        const u32 n = n_walked(p, seq), n_groups = (n + most - 1) / most;
        if (nth >= n_groups) {
            nth -= n_groups;
            continue;
        }
        // Later rows see more: they go first.
        const u32 first = (n_groups - 1 - nth) * most;
        w.seq = s;
        w.sure_end = seq.committed + seq.n_sure;
        w.first_index = seq.first + first;
        w.n_rows = min(most, n - first);
        w.page = from_of(p, seq.committed + first) / PAGE;
        w.end = end_of(p, w.sure_end, seq.committed + first + w.n_rows - 1);
        w.last = (w.end - 1) / PAGE;
        return true;
    }
    return false;
}

template <int D>
struct WalkLayout {
    using Pages = Layout<D, WALK_TILES>;
    static constexpr u32 KEY_STRIDE = Pages::KEY_STRIDE, VALUE_STRIDE = Pages::VALUE_STRIDE, WEIGHT_STRIDE = Pages::WEIGHT_STRIDE;
    static constexpr u32 KEYS = Pages::KEYS, VALUES = Pages::VALUES, STAGE = Pages::STAGE, QUERIES = Pages::QUERIES, WEIGHTS = Pages::SCORES;
    static constexpr u32 SHARES = WEIGHTS + 2 * WALK_TILES * 16 * WEIGHT_STRIDE, LARGEST = SHARES + WALK_TILES * 32 * 16;
    static constexpr u32 PAIRS = LARGEST + WALK_TILES * 2 * 16 * 4;
};

template <int D, bool BF16>
struct Walk : Attend<D, WALK_TILES, BF16, 2, WalkLayout<D>> {
    using L = WalkLayout<D>;
    using Base = Attend<D, WALK_TILES, BF16, 2, L>;
    using Base::p, Base::room, Base::kind, Base::M, Base::N_THREADS, Base::pairs, Base::find_pairs, Base::load_queries, Base::load_page,
        Base::held_at, Base::gate_at, Base::put;
    // Eights of channels of a warp, and of positions.
    static constexpr u32 NC = D / 16, NP = PAGE / 16;

    // Of a lane's two pairs: what they see, the chunk at hand, and all before it. The total is right in a tile's first warp.
    struct Softmax {
        u32 from, end;
        float max, total;
        Merge all;
    };

    // Scores of the warp's eights of positions, of pairs g and g + 8.
    __device__ __forceinline__ void score(u32 stage, u32 tile, u32 half, float (&scores)[NP][4]) const {
        float low[NP][4];
        this->template score_eights<NP, 2, 2>(stage, tile, half, scores, low);
#pragma unroll
        for (u32 n = 0; n < NP; n++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) scores[n][i] += low[n][i];
    }

    // The page into the softmax of the lane's pairs; the weights into shared memory. Gives what is left of the chunk so far.
    __device__ __forceinline__ float2 weigh(u32 page, bool is_inner, u32 tile, u32 half, float (&scores)[NP][4], Softmax (&softmax)[2]) const {
        const auto both = [&] { asm volatile("bar.sync %0, 64;" ::"r"(tile + 1) : "memory"); };
        const u32 lane = threadIdx.x & 31, g = lane / 4, t = lane % 4;
        const float scale = p.scale * 1.4426950408889634f;
        float(*largest)[16] = (float(*)[16])(room + L::LARGEST) + 2 * tile;
        float most[2] = {-INFINITY_F, -INFINITY_F};
#pragma unroll
        for (u32 n = 0; n < NP; n++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                const u32 pos = page * PAGE + 16 * n + 8 * half + 2 * t + i % 2;
                const bool is_seen = is_inner || (pos >= softmax[i / 2].from && pos < softmax[i / 2].end);
                scores[n][i] = is_seen ? scale * scores[n][i] : -INFINITY_F;
                most[i / 2] = fmaxf(most[i / 2], scores[n][i]);
            }
#pragma unroll
        for (u32 r = 0; r < 2; r++) {
            most[r] = fmaxf(most[r], __shfl_xor_sync(0xffffffffu, most[r], 1));
            most[r] = fmaxf(most[r], __shfl_xor_sync(0xffffffffu, most[r], 2));
            if (t == 0) largest[half][g + 8 * r] = most[r];
        }
        both();
        float now[2], zero[2], shrink[2];
#pragma unroll
        for (u32 r = 0; r < 2; r++) {
            now[r] = fmaxf(softmax[r].max, fmaxf(most[r], largest[half ^ 1][g + 8 * r]));
            // A page before the row's window changes nothing.
            zero[r] = now[r] == -INFINITY_F ? 0.0f : now[r];
            shrink[r] = power(softmax[r].max - zero[r]);
            softmax[r].max = now[r];
        }
        // In the order of `warp_sum` over the page: positions 32 apart, then 16; 8, which the other warp has; 4, 2 and 1.
        float sums[4];
        u8* weights = room + L::WEIGHTS + (16 * tile + g) * L::WEIGHT_STRIDE + (8 * half + 2 * t) * 2;
#pragma unroll
        for (u32 n = 0; n < NP; n++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) scores[n][i] = power(scores[n][i] - zero[i / 2]);
#pragma unroll
        for (u32 i = 0; i < 4; i++) sums[i] = (scores[0][i] + scores[2][i]) + (scores[1][i] + scores[3][i]);
#pragma unroll
        for (u32 n = 0; n < NP; n++)
#pragma unroll
            for (u32 r = 0; r < 2; r++) {
                u32 high, low;
                in_two<BF16>(scores[n][2 * r], scores[n][2 * r + 1], high, low);
                u8* to = weights + 8 * r * L::WEIGHT_STRIDE + 32 * n;
                *(u32*)to = high;
                *(u32*)(to + M * L::WEIGHT_STRIDE) = low;
            }
        float4* share = (float4*)(room + L::SHARES) + 32 * tile + lane;
        if (half) *share = make_float4(sums[0], sums[1], sums[2], sums[3]);
        both();
        if (!half) {
            const float4 other = *share;
            sums[0] += other.x, sums[1] += other.y, sums[2] += other.z, sums[3] += other.w;
#pragma unroll
            for (u32 step = 2; step > 0; step >>= 1)
#pragma unroll
                for (u32 i = 0; i < 4; i++) sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], step);
#pragma unroll
            for (u32 r = 0; r < 2; r++) softmax[r].total = __fmaf_rn(softmax[r].total, shrink[r], sums[2 * r] + sums[2 * r + 1]);
        }
        return make_float2(shrink[0], shrink[1]);
    }

    // Weighted values of the warp's channels.
    __device__ __forceinline__ void add_values(u32 stage, u32 tile, u32 half, float (&acc)[NC][4]) const {
        const u32 lane = threadIdx.x & 31;
        const u32 values = (u32)__cvta_generic_to_shared(room + stage * L::STAGE + L::VALUES) + (lane % 16) * L::VALUE_STRIDE +
                           (half * (D / 2) + lane / 16 * 8) * 2;
        const u32 weights = (u32)__cvta_generic_to_shared(room + L::WEIGHTS) + (16 * tile + lane % 16) * L::WEIGHT_STRIDE + lane / 16 * 16;
#pragma unroll
        for (u32 step = 0; step < PAGE / 16; step++) {
            const uint4 high = load_matrices(weights + step * 32);
            const uint4 low = load_matrices(weights + M * L::WEIGHT_STRIDE + step * 32);
#pragma unroll
            for (u32 n = 0; n < NC; n += 2) {
                u32 v[2][2];
                load_transposed(v[0], v[1], values + step * 16 * L::VALUE_STRIDE + n * 16);
#pragma unroll
                for (u32 i = 0; i < 2; i++) {
                    mma16<BF16>(acc[n + i], high, v[i][0], v[i][1]);
                    mma16<BF16>(acc[n + i], low, v[i][0], v[i][1]);
                }
            }
        }
    }

    __device__ __forceinline__ void walk() const {
        Work w = {};
        if (!find_walked(p, M, blockIdx.x / p.kv_heads, w)) return pdl_idle();
        w.kv_head = blockIdx.x % p.kv_heads;
        w.first_head = w.kv_head * (p.heads / p.kv_heads);
        const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane / 4, t = lane % 4, tile = warp / 2, half = warp % 2;
        const u32 n_tiles = (w.n_rows * (p.heads / p.kv_heads) + 15) / 16;
        find_pairs(w);
        const auto n_of = [&](u32 page) { return min(PAGE, w.end - page * PAGE); };
        const auto load = [&](u32 stage, u64 held, u32 page) {
            load_page(0, stage, held, n_of(page));
            load_page(1, stage, held, n_of(page));
        };
        u64 held = held_at(w, w.page), next = held_at(w, w.page + 1);
        __syncthreads();
        pdl_wait();
        pdl_next();
        load(0, held, w.page);
        load_queries(n_tiles);
        Softmax softmax[2];
        u32 from = 0, end = ~0u;
#pragma unroll
        for (u32 r = 0; r < 2; r++) {
            const Pair& pair = pairs()[16 * tile + g + 8 * r];
            softmax[r] = {pair.from, pair.end, -INFINITY_F, 0.0f, pair.all};
            if (pair.head != ~0u) from = max(from, pair.from), end = min(end, pair.end);
        }
        from = __reduce_max_sync(0xffffffffu, from), end = __reduce_min_sync(0xffffffffu, end);
        float all[NC][4], acc[NC][4];
#pragma unroll
        for (u32 n = 0; n < NC; n++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) all[n][i] = acc[n][i] = 0.0f;
#pragma unroll 1
        for (u32 page = w.page; page <= w.last; page++) {
            const bool has_next = page < w.last, ends_chunk = !has_next || chunk_of(page + 1) != chunk_of(page);
            const bool begins_chunk = page == w.page || chunk_of(page - 1) != chunk_of(page);
            const u32 stage = STAGES(D) == 2 ? (page - w.page) % 2 : 0;
            held = next;
            next = held_at(w, page + 2);
            asm volatile("cp.async.wait_all;" ::: "memory");
            __syncthreads();
            if (STAGES(D) == 2 && has_next) load(1 - stage, held, page + 1);
            if (tile < n_tiles) {
                float scores[NP][4];
                score(stage, tile, half, scores);
                const float2 shrink = weigh(page, page * PAGE >= from && page * PAGE + PAGE <= end, tile, half, scores, softmax);
                if (!begins_chunk)
#pragma unroll
                    for (u32 n = 0; n < NC; n++) acc[n][0] *= shrink.x, acc[n][1] *= shrink.x, acc[n][2] *= shrink.y, acc[n][3] *= shrink.y;
                add_values(stage, tile, half, acc);
            }
            if (STAGES(D) == 1 && has_next) {
                __syncthreads();
                load(0, held, page + 1);
            }
            if (!ends_chunk) continue;
            float2 factors[2];
#pragma unroll
            for (u32 r = 0; r < 2; r++) {
                factors[r] = merge(softmax[r].all, softmax[r].max, softmax[r].total);
                softmax[r].max = -INFINITY_F, softmax[r].total = 0.0f;
            }
#pragma unroll
            for (u32 n = 0; n < NC; n++)
#pragma unroll
                for (u32 i = 0; i < 4; i++) {
                    all[n][i] = __fmaf_rn(factors[i / 2].y, acc[n][i], all[n][i] * factors[i / 2].x);
                    acc[n][i] = 0.0f;
                }
        }
        // Through shared memory, so that a warp has 128 channels of a row.
        __syncthreads();
        constexpr u32 ROW = D + 8;
        float* sums = (float*)room;
#pragma unroll
        for (u32 n = 0; n < NC; n++)
#pragma unroll
            for (u32 r = 0; r < 2; r++)
                *(float2*)(sums + (16 * tile + g + 8 * r) * ROW + half * (D / 2) + 8 * n + 2 * t) = make_float2(all[n][2 * r], all[n][2 * r + 1]);
        if (half == 0 && t < 2) pairs()[16 * tile + g + 8 * t].all.total = t ? softmax[1].all.total : softmax[0].all.total;
        __syncthreads();
        constexpr u32 THREADS = D / 4;
        const u32 channel = threadIdx.x % THREADS * 4;
#pragma unroll 2
        for (u32 m = threadIdx.x / THREADS; m < M; m += N_THREADS / THREADS) {
            const Pair& pair = pairs()[m];
            if (pair.head == ~0u) break;
            const float4 gate = gate_at(pair.row, pair.head, channel);
            put(pair.row, pair.head, channel, *(const float4*)(sums + m * ROW + channel), 1.0f / pair.all.total, gate);
        }
    }
};
