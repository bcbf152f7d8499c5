// A prompt's rows where four warps multiply together (sm_90a): the walk of attention_walk.cuh, number by number.
#pragma once
#include "attention_groups.cuh"
#include "attention_walk.cuh"

#if HAS_WGMMA

template <int D, bool BF16>
struct GroupWalk : Groups<D, BF16, Attend<D, WALK_TILES, BF16, 2, GroupLayout<D, 4, 2, 3>>> {
    using Base = Groups<D, BF16, Attend<D, WALK_TILES, BF16, 2, GroupLayout<D, 4, 2, 3>>>;
    using typename Base::L, typename Base::Softmax;
    using Base::p, Base::room, Base::M, Base::NC, Base::NP, Base::N_THREADS, Base::pairs, Base::find_pairs, Base::held_at, Base::gate_at,
        Base::put, Base::init_barriers, Base::load_queries, Base::begin_scores, Base::weigh, Base::add_page,
        Base::idle_page, Base::factors_of, Base::for_sums, Base::owner_of_total, Base::own_pair, Base::pair_of_total;

    struct Totals {
        float chunk, all;
    };

    __device__ __forceinline__ void copy_pages(const Work& w) const {
        u64 held = held_at(w, w.page);
#pragma unroll 1
        for (u32 page = w.page, i = 0; page <= w.last; page++, i++) {
            const u64 next = held_at(w, page + 1);
            const u32 n = min(PAGE, w.end - page * PAGE);
#pragma unroll
            for (u32 plane = 0; plane < 2; plane++)
                this->template copy_plane<true>(plane, i, [&](u32 at) { return at < n ? held + at * D : NOWHERE; });
            held = next;
        }
        asm volatile("cp.async.wait_all;" ::: "memory");
    }

    // A group's pairs through all pages.
    __device__ __forceinline__ void walk_pages(const Work& w, u32 group, u32 warp, float (&all)[NC][NP][4], Totals& totals) const {
        const u32 owner = owner_of_total(warp);
        const Pair& own = pairs()[L::PAIRS_OF_GROUP * group + own_pair()];
        Softmax softmax = {own.from, own.end, -INFINITY_F, own.all.max};
        totals = {0.0f, pairs()[L::PAIRS_OF_GROUP * group + pair_of_total(warp)].all.total};
        const u32 from = __reduce_max_sync(0xffffffffu, own.head == ~0u ? 0 : own.from), end = __reduce_min_sync(0xffffffffu, own.head == ~0u ? ~0u : own.end);
        float acc[NC][NP][4] = {};
#pragma unroll
        for (u32 i = 0; i < NC * NP * 4; i++) all[i / (4 * NP)][i / 4 % NP][i % 4] = 0.0f;
        float scores[2 * NP][4];
        begin_scores(0, group, warp, scores);
        wgmma_wait<0>();
#pragma unroll 1
        for (u32 page = w.page, i = 0; page <= w.last; page++, i++) {
            const bool ends_chunk = page == w.last || chunk_of(page + 1) != chunk_of(page);
            const bool begins_chunk = page == w.page || chunk_of(page - 1) != chunk_of(page);
            const auto end_chunk = [&](Softmax& s) {
                if (!ends_chunk) return make_float2(0.0f, 0.0f);
                Merge merged = {s.all_max, 0.0f};
                const float2 two = merge(merged, s.max, 0.0f);
                s.all_max = merged.max, s.max = -INFINITY_F;
                return two;
            };
            const float3 factors = weigh(page, page * PAGE >= from && page * PAGE + PAGE <= end, group, warp, scores, softmax, end_chunk);
            add_page(i, page < w.last, group, warp, begins_chunk, factors.x, acc, scores, totals.chunk);
            if (ends_chunk) {
                const float old = __shfl_sync(0xffffffffu, factors.y, owner), added = __shfl_sync(0xffffffffu, factors.z, owner);
                totals = {0.0f, __fmaf_rn(totals.chunk, added, totals.all * old)};
                float of_old[2 * NP], of_added[2 * NP];
                factors_of(1, group, of_old);
                factors_of(2, group, of_added);
                for_sums([&](u32 block, u32 n, u32 i) {
                    all[block][n][i] = __fmaf_rn(of_added[2 * n + i % 2], acc[block][n][i], all[block][n][i] * of_old[2 * n + i % 2]);
                });
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
        if (threadIdx.x == 0) init_barriers(4 * n_groups);
        barrier_init_visible();
        __syncthreads();
        pdl_wait();
        pdl_next();
        if (group >= L::GROUPS) {
            registers_fewer<40>();
            return copy_pages(w);
        }
        registers_more<232>();
        const auto all_groups = [&] { asm volatile("bar.sync 3, %0;" ::"n"(N_THREADS) : "memory"); };
        load_queries(M / 8);
        fence_for_async();
        all_groups();
        float all[NC][NP][4];
        Totals totals;
        if (group < n_groups) walk_pages(w, group, warp % 4, all, totals);
        else
            for (u32 page = w.page; page <= w.last; page++) idle_page(group);
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
            for_sums([&](u32 block, u32 n, u32 i) { to[(8 * n + i % 2) * ROW + 64 * block + i / 2 * 8] = all[block][n][i]; });
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
