// Pages of committed chunks and tails by warps that each multiply by themselves.
#pragma once
#include "attention_sharing.cuh"

template <int D, int MT, bool BF16>
struct Chunks : Sharing<Chunks<D, MT, BF16>, D, Attend<D, MT, BF16>, 256 * MT, 0> {
    using Base = Sharing<Chunks<D, MT, BF16>, D, Attend<D, MT, BF16>, 256 * MT, 0>;
    using typename Base::Counter;
    using Base::p, Base::room, Base::kind, Base::acc, Base::NT, Base::M, Base::FINDS, Base::pairs, Base::load_queries, Base::load_page, Base::held_at, Base::score,
        Base::weigh, Base::add_values, Base::find_places, Base::partial, Base::counter, Base::ahead, Base::find_chunks, Base::next_item, Base::share;
    u32 stage = 0;  // of the page at hand

    __device__ __forceinline__ void run_roles() {
        if (threadIdx.x >= FINDS) {
            share();
            find_chunks(blockIdx.x);
        }
        this->template work<true, true>();
    }
    static __device__ __forceinline__ void meet_all() { __syncthreads(); }
    static __device__ __forceinline__ void meet_block() { __syncthreads(); }
    template <bool MULTIPLIES>
    static __device__ __forceinline__ void meet_row() {
        __syncthreads();
    }
    __device__ __forceinline__ void begin_page(u64 held) const {
        if (held == GATHERED) pdl_wait();
        load_page(0, stage, held);
        load_page(1, stage, held);
    }

    // What the pairs see of the pages at hand. The first one's copies have been begun; those of what the block does next are begun
    // behind the last one's: of another item, or where there is none, of what lies at `behind`.
    template <bool MULTIPLIES, bool COPIES>
    __device__ __forceinline__ void run_pages(const Work& w, u64 behind) {
        const u32 n_tiles = (w.n_rows * (p.heads / p.kv_heads) + 15) / 16;
        const bool finds = kind == SHARED && threadIdx.x >= FINDS;
        load_queries(n_tiles);
        u64 next = held_at(w, w.page + 1);
        const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane / 4, t = lane % 4, m = warp / 8, eighth = warp % 8;
        const u32 channel = eighth * (D / 8) + 2 * t;
        const bool goes_on = kind == TAIL && w.is_cut;
        if (goes_on) {
            if (threadIdx.x == 0)
                while (load_acquire(counter(Counter::CUT, w.counter, w)) == 0) {}
            __syncthreads();
        }
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const Pair& pair = pairs()[16 * m + g + 8 * half];
            const float* from = partial(pair, chunk_of(w.page)) + 4 + channel;
#pragma unroll
            for (u32 n = 0; n < NT; n++) {
                const float2 x = goes_on && pair.head != ~0u ? __ldcg((const float2*)(from + 8 * n)) : make_float2(0.0f, 0.0f);
                acc[n][2 * half] = x.x;
                acc[n][2 * half + 1] = x.y;
            }
        }
        if (goes_on && threadIdx.x < M && pairs()[threadIdx.x].head != ~0u) {
            Pair& pair = pairs()[threadIdx.x];
            const float2 x = __ldcg((const float2*)partial(pair, chunk_of(w.page)));
            pair.max = x.x;
            pair.total = x.y;
        }
        // Before the places of the first page give way to those of the second, its copies have been begun by all.
        if (kind == TAIL) __syncthreads();
#pragma unroll 1
        for (u32 page = w.page; page <= w.last; page++) {
            const u32 chunk = chunk_of(page);
            const bool is_last = page == w.last, ends_chunk = is_last || chunk_of(page + 1) != chunk;
            const auto end = [&](const Pair& pair) { *(float2*)partial(pair, chunk) = make_float2(pair.max, pair.total); };
            // Looked up a page ahead of its use: what tables say comes from afar.
            u64 held = next;
            next = held_at(w, page + 2);
            if (STAGES(D) == 2 && kind == TAIL && !is_last) find_places(w, page + 1);
            // As late as its first page can still be on its way behind the last one of these: whoever is first has the next item.
            if (finds && page == (w.page < w.last ? w.last - 1 : w.last)) find_chunks(next_item());
            asm volatile("cp.async.wait_group 1;" ::: "memory");
            __syncthreads();
            if (is_last) held = kind == SHARED && ahead().held != NOWHERE ? ahead().held : behind;
            const auto load_next = [&](u32 plane, u32 to) {
                if (held != NOWHERE) load_page(plane, to, held);
                else asm volatile("cp.async.commit_group;" ::: "memory");
            };
            if constexpr (STAGES(D) == 2) {
                load_next(0, 1 - stage);
                load_next(1, 1 - stage);
                score(stage, n_tiles);
                __syncthreads();
                weigh(page, ends_chunk, end);
                asm volatile("cp.async.wait_group 2;" ::: "memory");
                __syncthreads();
                add_values(stage, n_tiles);
                stage = 1 - stage;
            } else {
                if (kind == TAIL && !is_last) find_places(w, page + 1);
                score(0, n_tiles);
                __syncthreads();
                load_next(0, 0);
                weigh(page, ends_chunk, end);
                asm volatile("cp.async.wait_group 1;" ::: "memory");
                __syncthreads();
                add_values(0, n_tiles);
                __syncthreads();
                load_next(1, 0);
            }
            if (!ends_chunk || m >= n_tiles) continue;
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                const Pair& pair = pairs()[16 * m + g + 8 * half];
                float* to = partial(pair, chunk) + 4 + channel;
#pragma unroll
                for (u32 n = 0; n < NT; n++) {
                    if (pair.head != ~0u) *(float2*)(to + 8 * n) = make_float2(acc[n][2 * half], acc[n][2 * half + 1]);
                    acc[n][2 * half] = acc[n][2 * half + 1] = 0.0f;
                }
            }
        }
    }
};

template <int D, int MT, bool BF16>
__device__ __forceinline__ void attend_tiles(const Attention& p) {
    extern __shared__ __align__(16) u8 room[];
    Chunks<D, MT, BF16> block = {{{p, room, SHARED, {}}, {}}, 0};
    block.run();
}
