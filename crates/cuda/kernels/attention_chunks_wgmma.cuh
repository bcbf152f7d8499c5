// Pages of committed chunks and tails where four warps multiply together (sm_90a). Every number is that of attention_chunks.cuh.
#pragma once
#include "attention_chunks.cuh"
#include "attention_groups.cuh"

#if HAS_WGMMA

template <class SELF, int D, bool BF16, u32 NP, u32 GROUPS>
using GroupSharing = Sharing<SELF, D, Groups<D, BF16, Attend<D, (NP * GROUPS + 1) / 2, BF16, 2, GroupLayout<D, NP, GROUPS, 1>>>, 128 * GROUPS, 128>;

template <int D, bool BF16, u32 NP, u32 GROUPS>
struct GroupChunks : GroupSharing<GroupChunks<D, BF16, NP, GROUPS>, D, BF16, NP, GROUPS> {
    using Base = GroupSharing<GroupChunks<D, BF16, NP, GROUPS>, D, BF16, NP, GROUPS>;
    using typename Base::L, typename Base::Counter, typename Base::Softmax;
    using Base::p, Base::room, Base::kind, Base::NC, Base::N_THREADS, Base::COPY_THREADS, Base::FINDS, Base::pairs, Base::places, Base::held_at, Base::find_places, Base::partial,
        Base::counter, Base::ahead, Base::find_chunks, Base::next_item, Base::share, Base::full, Base::empty, Base::init_barriers, Base::leave, Base::load_queries,
        Base::begin_scores, Base::weigh, Base::add_page, Base::idle_page, Base::own_pair, Base::pair_of_total;
    u32 n_pages = 0, n_begun = 0;  // pages so far; whether copies of the next are under way

    static __device__ __forceinline__ void meet_all() { asm volatile("bar.sync 3, %0;" ::"n"(N_THREADS) : "memory"); }
    // Both roles, each in a place of its own: `__syncthreads` would have to be one and the same for all.
    static __device__ __forceinline__ void meet_block() { asm volatile("bar.sync 0, %0;" ::"n"(N_THREADS + COPY_THREADS) : "memory"); }
    // Those that multiply, and the warp that knows when others are done.
    template <bool MULTIPLIES>
    static __device__ __forceinline__ void meet_row() {
        if (MULTIPLIES) {
            asm volatile("bar.sync 5, %0;" ::"n"(N_THREADS + 32) : "memory");
        } else if (threadIdx.x >= FINDS) {
            __syncwarp();
            asm volatile("bar.arrive 5, %0;" ::"n"(N_THREADS + 32) : "memory");
        }
    }

    static __device__ __forceinline__ void copiers_meet() { asm volatile("bar.sync 4, %0;" ::"n"(COPY_THREADS) : "memory"); }

    __device__ __forceinline__ void run_roles() {
        if (threadIdx.x < N_THREADS) {
            if (GROUPS > 1) registers_more<216>();
            return this->template work<true, false>();
        }
        if (GROUPS > 1) registers_fewer<72>();
        if (threadIdx.x >= FINDS) {
            if (threadIdx.x == FINDS) {
                init_barriers(N_THREADS / 32);
                barrier_init_visible();
            }
            share();
            find_chunks(blockIdx.x);
        }
        this->template work<false, true>();
    }

    __device__ __forceinline__ void begin_page(u64) const {}

    // The pages at hand, but for a first one that is under way, and the first of what the block does next: of another item, or where there is none,
    // what lies at `behind`.
    __device__ __forceinline__ void copy_pages(const Work& w, u64 behind) {
        const u32 n = w.last - w.page + 1;
        u64 next = held_at(w, w.page + n_begun);
#pragma unroll 1
        for (u32 nth = n_begun;; nth++) {
            u64 held = next;
            next = held_at(w, w.page + nth + 1);
            if (nth == n) {
                // As late as can be: whoever is first has the next item. The launch ahead may count items too.
                pdl_wait();
                if (kind == SHARED && threadIdx.x >= FINDS) find_chunks(next_item());
                copiers_meet();
                held = kind == SHARED && ahead().held != NOWHERE ? ahead().held : behind;
                n_begun = held != NOWHERE;
                if (held == NOWHERE) return;
            } else if (kind == TAIL && nth > 0) {
                copiers_meet();
                find_places(w, w.page + nth, threadIdx.x - N_THREADS);
                copiers_meet();
            }
            // A page's positions lie side by side, and finding that out for every copy took longer than memory (7 % at 32 000 tokens and 32 rows).
            if (held != GATHERED) {
#pragma unroll
                for (u32 plane = 0; plane < 2; plane++) this->template copy_plane<false>(plane, n_pages + nth, [&](u32 at) { return held + at * D; });
            } else {
                // Made by the kernel before this one.
                pdl_wait();
#pragma unroll 1
                for (u32 plane = 0; plane < 2; plane++) this->template copy_plane<true>(plane, n_pages + nth, [&](u32 at) { return places()[at]; });
            }
            if (nth == n) return;
        }
    }

    // A group without pairs.
    __device__ __forceinline__ void pass(const Work& w, u32 group) const {
#pragma unroll 1
        for (u32 i = n_pages; i <= n_pages + w.last - w.page; i++) {
#pragma unroll
            for (u32 plane = 0; plane < 2; plane++) {
                barrier_wait(full(i % 2, plane), i / 2 % 2);
                leave(empty(i % 2, plane));
            }
            idle_page(group);
        }
    }

    // Sums of a chunk go to where they are put together, or come from there. Lanes beside each other have channels beside each other, eight
    // and eight: two exchange one each, so that sixteen are stored at once.
    __device__ __forceinline__ void store_sums(const Pair* of_group, u32 warp, u32 chunk, const float (&acc)[NC][NP][4]) const {
        const u32 lane = threadIdx.x & 31, g = lane / 4, odd_g = g % 2;
#pragma unroll
        for (u32 n = 0; n < NP; n++)
#pragma unroll
            for (u32 odd = 0; odd < 2; odd++) {
                const Pair& pair = of_group[8 * n + 2 * (lane % 4) + odd];
                float* to = partial(pair, chunk) + 4 + 16 * warp + g - odd_g + 8 * odd_g;
#pragma unroll
                for (u32 block = 0; block < NC; block++) {
                    const float low = acc[block][n][odd], high = acc[block][n][2 + odd];
                    const float other = __shfl_xor_sync(0xffffffffu, odd_g ? low : high, 4);
                    if (pair.head != ~0u) *(float2*)(to + 64 * block) = odd_g ? make_float2(other, high) : make_float2(low, other);
                }
            }
    }
    __device__ __forceinline__ void load_sums(const Pair* of_group, u32 warp, u32 chunk, float (&acc)[NC][NP][4]) const {
        const u32 lane = threadIdx.x & 31;
#pragma unroll
        for (u32 n = 0; n < NP; n++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                const Pair& pair = of_group[8 * n + 2 * (lane % 4) + i % 2];
                const float* from = partial(pair, chunk) + 4 + 16 * warp + lane / 4 + i / 2 * 8;
#pragma unroll
                for (u32 block = 0; block < NC; block++) acc[block][n][i] = pair.head == ~0u ? 0.0f : __ldcg(from + 64 * block);
            }
    }

    // A group's pairs through all pages.
    __device__ __forceinline__ void multiply(const Work& w, u32 group, u32 warp) const {
        const u32 lane = threadIdx.x & 31;
        const Pair* const of_group = pairs() + L::PAIRS_OF_GROUP * group;
        const Pair &own = of_group[own_pair()], &of_total = of_group[pair_of_total(warp)];
        Softmax softmax = {own.from, own.end, -INFINITY_F, 0.0f};
        float total = 0.0f;
        const u32 from = __reduce_max_sync(0xffffffffu, own.head == ~0u ? 0 : own.from), end = __reduce_min_sync(0xffffffffu, own.head == ~0u ? ~0u : own.end);
        float acc[NC][NP][4] = {};
        bool begins_chunk = !(kind == TAIL && w.is_cut);
        if (!begins_chunk) {
            if (lane == 0)
                while (load_acquire(counter(Counter::CUT, w.counter, w)) == 0) {}
            __syncwarp();
            const u32 chunk = chunk_of(w.page);
            load_sums(of_group, warp, chunk, acc);
            if (own.head != ~0u) softmax.max = __ldcg(partial(own, chunk));
            if (of_total.head != ~0u) total = __ldcg(partial(of_total, chunk) + 1);
        }
        float scores[2 * NP][4];
        begin_scores(n_pages, group, warp, scores);
        wgmma_wait<0>();
#pragma unroll 1
        for (u32 page = w.page, i = n_pages; page <= w.last; page++, i++) {
            const u32 chunk = chunk_of(page);
            const bool ends_chunk = page == w.last || chunk_of(page + 1) != chunk;
            const auto end_chunk = [&](Softmax& s) {
                if (ends_chunk) {
                    if (warp == 0 && lane < 8 * NP && own.head != ~0u) *partial(own, chunk) = s.max;
                    s.max = -INFINITY_F;
                }
                return make_float2(0.0f, 0.0f);
            };
            const float3 factors = weigh(page, page * PAGE >= from && page * PAGE + PAGE <= end, group, warp, scores, softmax, end_chunk);
            add_page(i, page < w.last, group, warp, begins_chunk, factors.x, acc, scores, total);
            if (ends_chunk) {
                if (lane % 4 == 0 && (NP == 4 || warp == 0) && of_total.head != ~0u) partial(of_total, chunk)[1] = total;
                store_sums(of_group, warp, chunk, acc);
                total = 0.0f;
            }
            begins_chunk = ends_chunk;
            wgmma_wait<0>();
        }
    }

    template <bool MULTIPLIES, bool COPIES>
    __device__ __forceinline__ void run_pages(const Work& w, u64 behind) {
        if (COPIES) {
            copy_pages(w, behind);
        } else {
            const u32 warp = __shfl_sync(0xffffffffu, threadIdx.x >> 5, 0), group = warp / 4, n = w.n_rows * (p.heads / p.kv_heads);
            load_queries((n + 7) / 8);
            fence_for_async();
            meet_all();
            if (L::PAIRS_OF_GROUP * group < n) multiply(w, group, warp % 4);
            else pass(w, group);
        }
        n_pages += w.last - w.page + 1;
    }
};

template <int D, bool BF16, u32 NP, u32 GROUPS>
__device__ __forceinline__ void attend_groups(const Attention& p) {
    extern __shared__ __align__(128) u8 room[];
    GroupChunks<D, BF16, NP, GROUPS> block = {{{{p, room, SHARED, {}}}, {}}};
    block.run();
}
#define TILES(D, MT, BF16, NAME)                                                                                                                    \
    extern "C" __global__ void __launch_bounds__(MT == 1 ? 256 : 384, 1) NAME##_##D##_##MT(const __grid_constant__ Attention p) { \
        attend_groups<D, BF16, MT == 1 ? 1 : 4, MT == 1 ? 1 : 2>(p);                                                                                \
    }
#else
#define TILES(D, MT, BF16, NAME)                                                                                          \
    extern "C" __global__ void __launch_bounds__(256 * MT, 1) NAME##_##D##_##MT(const __grid_constant__ Attention p) { \
        attend_tiles<D, MT, BF16>(p);                                                                                     \
    }
#endif
