// A prompt's rows: a block walks all chunks that a group of them sees and puts them together as it goes.
#pragma once
#include "attention_tiles.cuh"

template <int D, int MT, bool BF16>
struct Walk : Attend<D, MT, BF16> {
    using Base = Attend<D, MT, BF16>;
    using L = Layout<D, MT>;
    using Base::p, Base::room, Base::kind, Base::acc, Base::NT, Base::M, Base::N_WARPS, Base::N_THREADS, Base::pairs,
        Base::find_pairs, Base::load_queries, Base::load_page, Base::held_at, Base::score, Base::weigh, Base::add_values,
        Base::gate_at, Base::put;

    // Rows of a prompt that share what they see, if there are as many groups.
    __device__ __forceinline__ bool find_group(u32 nth, Work& w) const {
        const u32 group = p.heads / p.kv_heads, most = M / group, n_seqs = p.step.counts[2];
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

    __device__ __forceinline__ void walk() {
        Work w = {};
        if (!find_group(blockIdx.x / p.kv_heads, w)) return pdl_idle();
        w.kv_head = blockIdx.x % p.kv_heads;
        w.first_head = w.kv_head * (p.heads / p.kv_heads);
        const u32 n_tiles = (w.n_rows * (p.heads / p.kv_heads) + 15) / 16;
        find_pairs(w);
        const auto n_of = [&](u32 page) { return min(PAGE, w.end - page * PAGE); };
        u64 held = held_at(w, w.page), next = held_at(w, w.page + 1);
        __syncthreads();
        pdl_wait();
        pdl_next();
        load_page(0, 0, held, n_of(w.page));
        load_page(1, 0, held, n_of(w.page));
        load_queries(n_tiles);
        float all[NT][4];
#pragma unroll
        for (u32 n = 0; n < NT; n++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) all[n][i] = acc[n][i] = 0.0f;
        const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane / 4, t = lane % 4, own = warp / 8, eighth = warp % 8;
        const auto nothing = [] { asm volatile("cp.async.commit_group;" ::: "memory"); };
#pragma unroll 1
        for (u32 page = w.page; page <= w.last; page++) {
            const bool has_next = page < w.last, ends_chunk = !has_next || chunk_of(page + 1) != chunk_of(page);
            const u32 stage = STAGES(D) == 2 ? (page - w.page) % 2 : 0;
            held = next;
            next = held_at(w, page + 2);
            asm volatile("cp.async.wait_group 1;" ::: "memory");
            __syncthreads();
            if constexpr (STAGES(D) == 2) {
                has_next ? load_page(0, 1 - stage, held, n_of(page + 1)) : nothing();
                has_next ? load_page(1, 1 - stage, held, n_of(page + 1)) : nothing();
            }
            score(stage, n_tiles);
            __syncthreads();
            if constexpr (STAGES(D) == 1) has_next ? load_page(0, 0, held, n_of(page + 1)) : nothing();
            weigh(page, ends_chunk, [](Pair& pair) { pair.factors = merge(pair.all, pair.max, pair.total); });
            if constexpr (STAGES(D) == 2) asm volatile("cp.async.wait_group 2;" ::: "memory");
            else asm volatile("cp.async.wait_group 1;" ::: "memory");
            __syncthreads();
            add_values(stage, n_tiles);
            if constexpr (STAGES(D) == 1) {
                __syncthreads();
                has_next ? load_page(1, 0, held, n_of(page + 1)) : nothing();
            }
            if (!ends_chunk) continue;
            const float2 a = pairs()[16 * own + g].factors, b = pairs()[16 * own + g + 8].factors;
#pragma unroll
            for (u32 n = 0; n < NT; n++)
#pragma unroll
                for (u32 i = 0; i < 4; i++) {
                    const float2 f = i < 2 ? a : b;
                    all[n][i] = __fmaf_rn(f.y, acc[n][i], all[n][i] * f.x);
                    acc[n][i] = 0.0f;
                }
        }
        // Through shared memory, so that a warp has 128 channels of a row.
        __syncthreads();
        constexpr u32 ROW = D + 8;
        float* sums = (float*)room;
#pragma unroll
        for (u32 n = 0; n < NT; n++)
#pragma unroll
            for (u32 half = 0; half < 2; half++)
                *(float2*)(sums + (16 * own + g + 8 * half) * ROW + eighth * (D / 8) + 8 * n + 2 * t) =
                    make_float2(all[n][2 * half], all[n][2 * half + 1]);
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

template <int D, int MT, bool BF16>
__device__ __forceinline__ void walk_tiles(const Attention& p) {
    extern __shared__ __align__(16) u8 room[];
    Walk<D, MT, BF16> block = {{p, room, WALK, {}}};
    block.walk();
}

// Grid: (key heads, groups of rows) in one dimension.
#define WALKS(D, MT, BF16, NAME)                                                                                             \
    extern "C" __global__ void __launch_bounds__(256 * MT, 1) NAME##_##D##_walk(const __grid_constant__ Attention p) {      \
        walk_tiles<D, MT, BF16>(p);                                                                                          \
    }
