// Rows that see drafts, or few: committed chunks by blocks of their own, then every row's tail, then a row's chunks in order.
#pragma once
#include "attention_tiles.cuh"

template <int D, int MT, bool BF16>
struct Chunks : Attend<D, MT, BF16> {
    using Base = Attend<D, MT, BF16>;
    using L = Layout<D, MT>;
    using Base::p, Base::room, Base::kind, Base::acc, Base::NT, Base::M, Base::N_WARPS, Base::N_THREADS, Base::pairs,
        Base::find_pairs, Base::load_queries, Base::load_page, Base::held_at, Base::score, Base::weigh, Base::add_values,
        Base::gate_at, Base::put, Base::find_places, Base::places;
    u32 stage = 0;  // of the page at hand

    __device__ __forceinline__ Ahead& ahead() const { return *(Ahead*)(places() + PAGE); }

    __device__ __forceinline__ float* partial(const Pair& pair, u32 chunk) const {
        return p.partials + (((u64)pair.slot * p.heads + pair.head) * MAX_CHUNKS + chunk) * (D + 4);
    }

    // Of those that the rows from `index` on share, or of the row there: chunks done; blocks that waited for them; a row's tail;
    // a chunk that its rows go on with.
    enum Counter { DONE, WAITED, TAILS, CUT };
    __device__ __forceinline__ u32* counter(Counter which, u32 index, const Work& w) const {
        return p.done + which * p.n_counters + (index - p.first_row) * p.kv_heads + w.kv_head;
    }

    // How committed chunks are shared out, which one warp knows: short ones of the same rows go in so many runs, of which what
    // begins and ends them is done once; all of that comes to so many items.
    struct Sharing {
        u32 n_runs, n_items;
    };
    __device__ __forceinline__ u32 run_of(const Span& span, const Sharing& sharing) const { return (span.n_short() + sharing.n_runs - 1) / sharing.n_runs; }
    __device__ __forceinline__ u32 n_items_of(const Span& span, const Sharing& sharing) const {
        const u32 n_short = span.n_short(), run = max(run_of(span, sharing), 1);
        return span.n_groups * p.kv_heads * (span.n_chunks - n_short + (n_short + run - 1) / run);
    }
    __device__ __forceinline__ Span span_at(u32 seq) const {
        return seq < p.step.counts[2] ? span_of(p, p.step.seqs[seq], M / (p.heads / p.kv_heads)) : Span{};
    }
    __device__ __forceinline__ Sharing share() const {
        const u32 lane = threadIdx.x & 31, n_seqs = p.step.counts[2];
        Sharing sharing = {1, 0};
        u32 n_groups = 0;
        for (u32 first = 0; first < n_seqs; first += 32) n_groups += __reduce_add_sync(0xffffffffu, span_at(first + lane).n_groups);
        sharing.n_runs = max(p.n_shared / max(n_groups * p.kv_heads, 1), 1);
        for (u32 first = 0; first < n_seqs; first += 32) sharing.n_items += __reduce_add_sync(0xffffffffu, n_items_of(span_at(first + lane), sharing));
        return sharing;
    }
    // The item's rows and pages, by that warp, a lane a sequence.
    __device__ __forceinline__ void find_chunks(const Sharing& sharing, u32 item) const {
        const u32 lane = threadIdx.x & 31;
        if (item >= sharing.n_items) {
            if (lane == 0) ahead().held = ~0ull;
            return;
        }
#pragma unroll 1
        for (u32 first = 0;; first += 32) {
            const Span span = span_at(first + lane);
            const u32 n = n_items_of(span, sharing);
            u32 end = n;
#pragma unroll
            for (u32 step = 1; step < 32; step *= 2) {
                const u32 other = __shfl_up_sync(0xffffffffu, end, step);
                if (lane >= step) end += other;
            }
            const u32 is_before = __ballot_sync(0xffffffffu, item < end);
            if (!is_before) {
                item -= __shfl_sync(0xffffffffu, end, 31);
                continue;
            }
            if (lane + 1 != __ffs(is_before)) return;
            item -= end - n;
            const u32 shared_by = span.n_groups * p.kv_heads, nth = item / shared_by, n_short = span.n_short(), n_long = span.n_chunks - n_short;
            Work w = {};
            if (nth < n_long) {
                // Later chunks are longer: they go first.
                const u32 chunk = span.first_chunk + span.n_chunks - 1 - nth;
                w.is_cut = span.is_cut && nth == 0;
                w.page = max(chunk_start(chunk), span.first_page);
                w.last = (w.is_cut ? span.end_page : chunk_start(chunk + 1)) - 1;
                w.n_chunks = 1;
            } else {
                const u32 run = run_of(span, sharing), begin = (nth - n_long) * run;
                w.n_chunks = min(run, n_short - begin);
                w.page = span.first_chunk + begin;
                w.last = w.page + w.n_chunks - 1;
            }
            w.seq = first + lane;
            w.kv_head = item % p.kv_heads;
            w.first_head = w.kv_head * (p.heads / p.kv_heads);
            const u32 most = M / (p.heads / p.kv_heads);
            w.first_index = span.first_index + item / p.kv_heads % span.n_groups * most;
            w.counter = w.first_index;
            w.n_rows = min(most, span.end_index - w.first_index);
            ahead() = {w, held_at(w, w.page)};
            return;
        }
    }
    // Of the items that no block began with, the next. The counter is zero again when all have been asked for and every block has
    // been told once that there is no more.
    __device__ __forceinline__ u32 next_item(const Sharing& sharing) const {
        u32 item = 0;
        if ((threadIdx.x & 31) == 0) item = p.n_shared + atomicInc(p.done + 4 * p.n_counters, sharing.n_items - 1);
        return __shfl_sync(0xffffffffu, item, 0);
    }

    // What the pairs see of the pages at hand. The first one's copies have been begun; those of what the block does next are begun
    // behind the last one's.
    __device__ __forceinline__ void run_pages(const Work& w, u32 n_tiles, bool finds, const Sharing& sharing) {
        u64 next = held_at(w, w.page + 1);
        const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane / 4, t = lane % 4, m = warp / 8, eighth = warp % 8;
        const u32 channel = eighth * (D / 8) + 2 * t;
        const bool goes_on = kind == TAIL && w.is_cut;
        if (goes_on) {
            if (threadIdx.x == 0)
                while (load_acquire(counter(CUT, w.counter, w)) == 0) {}
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
            if (STAGES(D) == 2 && !is_last) find_places(w, page + 1);
            // As late as its first page can still be on its way behind the last one of these: whoever is first has the next item.
            if (finds && page == (w.page < w.last ? w.last - 1 : w.last)) find_chunks(sharing, next_item(sharing));
            asm volatile("cp.async.wait_group 1;" ::: "memory");
            __syncthreads();
            if (is_last) held = kind == SHARED ? ahead().held : ~0ull;
            const auto load_next = [&](u32 plane, u32 to) {
                if (held != ~0ull) load_page(plane, to, held);
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
                if (!is_last) find_places(w, page + 1);
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

    // A row's chunks in order, for the heads of its key head that are this block's. As many of them as there is room for are on
    // their way at once: one after another they took longer than the chunks themselves.
    __device__ __forceinline__ void put_together(const Work& w) const {
        // Four channels a thread: as many heads at once as fit, and whole blocks of 128 columns a warp's.
        constexpr u32 THREADS = D / 4, HEADS = N_THREADS / THREADS;
        const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, n_heads = p.heads / p.kv_heads / p.n_finishers;
        const u32 first = chunk_of(w.from / PAGE), n = chunk_of((w.end - 1) / PAGE) - first + 1;
        const u32 channel = threadIdx.x % THREADS * 4, own = threadIdx.x / THREADS;
        float4* factors = (float4*)(room + L::KEYS);  // [head, chunk]: of what was before, of the chunk; its total
        float* values = (float*)(factors + n_heads * MAX_CHUNKS);  // [chunk, head, channel]
        const u32 at_once = min(n_heads, HEADS), most = (L::QUERIES - n_heads * MAX_CHUNKS * 16) / (at_once * D * 4);
        Pair pair = pairs()[0];
        const u32 first_head = w.first_head + w.finisher * n_heads;
        const auto copy = [&](u32 head, u32 chunk) {
            pair.head = first_head + head + own;
            if (own >= at_once || head + own >= n_heads) return;
            const float* from = partial(pair, first + chunk) + 4 + channel;
            u32 to = (u32)__cvta_generic_to_shared(values + own * D + channel);
#pragma unroll 4
            for (u32 c = min(most, n - chunk); c > 0; c--, from += D + 4, to += at_once * D * 4)
                asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
        };
        copy(0, 0);
#pragma unroll 1
        for (u32 i = warp; i < n_heads; i += N_WARPS) {
            pair.head = first_head + i;
            float before = merge_start(p, pair.head).max;
            float2 found[(MAX_CHUNKS + 31) / 32];
#pragma unroll
            for (u32 c = 0; c < (MAX_CHUNKS + 31) / 32; c++) {
                found[c] = make_float2(-INFINITY_F, 0.0f);
                if (32 * c + lane < n) found[c] = __ldcg((const float2*)partial(pair, first + 32 * c + lane));
            }
#pragma unroll
            for (u32 c = 0; c < (MAX_CHUNKS + 31) / 32; c++) {
                if (32 * c >= n) break;
                // The largest up to each chunk.
                float now = fmaxf(before, found[c].x);
#pragma unroll
                for (u32 step = 1; step < 32; step *= 2) {
                    const float other = __shfl_up_sync(0xffffffffu, now, step);
                    if (lane >= step) now = fmaxf(now, other);
                }
                const float last = __shfl_up_sync(0xffffffffu, now, 1);
                Merge all = {lane == 0 ? before : last, 0.0f};
                const float2 f = merge(all, found[c].x, 0.0f);
                if (32 * c + lane < n) factors[i * MAX_CHUNKS + 32 * c + lane] = make_float4(f.x, f.y, found[c].y, 0.0f);
                before = __shfl_sync(0xffffffffu, now, 31);
            }
        }
#pragma unroll 1
        for (u32 head = 0; head < n_heads; head += HEADS) {
            const bool has_head = own < at_once && head + own < n_heads;
            const u32 h = first_head + head + own;
            const float4 gate = has_head ? gate_at(w.row, h, channel) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            float total = has_head ? merge_start(p, h).total : 0.0f;
#pragma unroll 1
            for (u32 chunk = 0; chunk < n; chunk += most) {
                if (head + chunk > 0) {
                    __syncthreads();
                    copy(head, chunk);
                }
                asm volatile("cp.async.wait_all;" ::: "memory");
                __syncthreads();
                if (!has_head) continue;
                const float4* f = factors + (head + own) * MAX_CHUNKS + chunk;
                const float* from = values + own * D + channel;
#pragma unroll 4
                for (u32 c = min(most, n - chunk); c > 0; c--, f++, from += at_once * D) {
                    const float4 v = *(const float4*)from;
                    x.x = __fmaf_rn(f->y, v.x, x.x * f->x);
                    x.y = __fmaf_rn(f->y, v.y, x.y * f->x);
                    x.z = __fmaf_rn(f->y, v.z, x.z * f->x);
                    x.w = __fmaf_rn(f->y, v.w, x.w * f->x);
                    total = __fmaf_rn(f->z, f->y, total * f->x);
                }
            }
            if (has_head) put(w.row, h, channel, x, 1.0f / total, gate);
        }
    }

    // The block's row; the chunks that are not wholly committed are its own. Returns how many it has to wait for, and the
    // rows that wait for them with it.
    __device__ __forceinline__ uint2 find_tail(Work& w) const {
        const u32 nth = (blockIdx.x - p.n_shared) / p.n_finishers, most = M / (p.heads / p.kv_heads);
        w.finisher = (blockIdx.x - p.n_shared) % p.n_finishers;
        w.first_index = p.first_row + nth / p.kv_heads;
        w.kv_head = nth % p.kv_heads;
        w.n_rows = 1;
        w.row = p.step.seq_rows[w.first_index];
        const Row row = p.step.rows[w.row];
        const Seq seq = p.step.seqs[row.seq];
        w.seq = row.seq;
        w.sure_end = seq.committed + seq.n_sure;
        w.from = from_of(p, row.pos);
        w.end = end_of(p, w.sure_end, row.pos);
        const Span span = span_of(p, seq, most);
        const u32 chunk = chunk_of(span.end_page);
        w.page = max(span.is_cut ? span.end_page : chunk_start(chunk), w.from / PAGE);
        w.last = (w.end - 1) / PAGE;
        w.is_cut = span.is_cut && chunk_of(w.page) == chunk;
        const u32 first = span.first_index + (w.first_index - span.first_index) / most * most;
        w.counter = first;
        return make_uint2(span.n_chunks, min(most, span.end_index - first));
    }

    // Whether the block's row is there and not walked.
    __device__ __forceinline__ bool has_row() const {
        const u32 index = p.first_row + (blockIdx.x - p.n_shared) / p.n_finishers / p.kv_heads;
        if (index >= p.step.counts[0]) return false;
        const Seq seq = p.step.seqs[p.step.rows[p.step.seq_rows[index]].seq];
        return index >= seq.first + n_walked(p, seq);
    }

    __device__ __forceinline__ void run() {
        Work w = {};
        uint2 others = {};
        // Soon said of a step that is all prompts, whose bucket has 16 of these launches.
        if (p.walks && !p.step.counts[4]) return pdl_idle();
        if (kind == TAIL) {
            if (!has_row()) return pdl_idle();
            others = find_tail(w);
            w.first_head = w.kv_head * (p.heads / p.kv_heads);
        }
        // Steps' data and committed pages are there before the kernel before this one ends; queries and tails are not.
        bool is_first = true;
        if (kind == TAIL && w.finisher > 0) {
            if (threadIdx.x == 0) pairs()[0].slot = w.first_index - p.first_row;
            pdl_wait();
            pdl_next();
        } else {
            const bool finds = kind == SHARED && threadIdx.x >= N_THREADS - 32;
            Sharing sharing = {};
            if (finds) {
                sharing = share();
                find_chunks(sharing, blockIdx.x);
            }
#pragma unroll 1
            do {
                u64 held = 0;
                if (kind == SHARED) {
                    __syncthreads();
                    w = ahead().work;
                    held = ahead().held;
                    if (held == ~0ull) return is_first ? pdl_idle() : void();
                }
                const u32 n_tiles = (w.n_rows * (p.heads / p.kv_heads) + 15) / 16;
                find_pairs(w);
                find_places(w, w.page);
                if (kind == TAIL) {
                    pdl_wait();
                    pdl_next();
                }
                __syncthreads();
                if (is_first) {
                    load_page(0, 0, held);
                    load_page(1, 0, held);
                    if (kind == SHARED) {
                        pdl_wait();
                        pdl_next();
                    }
                }
                is_first = false;
                load_queries(n_tiles);
                run_pages(w, n_tiles, finds, sharing);
                __threadfence();
                __syncthreads();
                if (kind == SHARED && threadIdx.x == 0) {
                    if (w.is_cut) atomicAdd(counter(CUT, w.counter, w), 1);
                    atomicAdd(counter(DONE, w.counter, w), w.n_chunks);
                }
            } while (kind == SHARED);
        }
        u32 *done = counter(DONE, w.counter, w), *tail = counter(TAILS, w.first_index, w);
        const bool shares_tail = p.n_finishers > 1;
        if (threadIdx.x == 0) {
            if (shares_tail && w.finisher == 0) atomicAdd(tail, 1);
            while (others.x && load_acquire(done) < others.x) {}
            while (shares_tail && load_acquire(tail) == 0) {}
        }
        __syncthreads();
        __threadfence();
        put_together(w);
        if (threadIdx.x != 0) return;
        // The last block of those that wait for the same counter clears it for the next launch.
        const u32 n_waiting = others.y * p.n_finishers;
        if (others.x && atomicInc(counter(WAITED, w.counter, w), n_waiting - 1) == n_waiting - 1) *done = *counter(CUT, w.counter, w) = 0;
        if (shares_tail && atomicAdd(tail, 1) == p.n_finishers) *tail = 0;
    }
};

template <int D, int MT, bool BF16>
__device__ __forceinline__ void attend_tiles(const Attention& p) {
    extern __shared__ __align__(16) u8 room[];
    Chunks<D, MT, BF16> block = {{p, room, blockIdx.x >= p.n_shared ? TAIL : SHARED, {}}, 0};
    block.run();
}

#define TILES(D, MT, BLOCKS, BF16, NAME)                                                                                     \
    extern "C" __global__ void __launch_bounds__(256 * MT, BLOCKS) NAME##_##D##_##MT(const __grid_constant__ Attention p) { \
        attend_tiles<D, MT, BF16>(p);                                                                                        \
    }
