// Rows that see drafts, or few: committed chunks by blocks of their own, then every row's tail, then a row's chunks in order.
#pragma once
#include "attention_tiles.cuh"

template <int D, int MT, bool BF16>
struct Chunks : Attend<D, MT, BF16> {
    using Base = Attend<D, MT, BF16>;
    using L = Layout<D, MT>;
    using Base::p, Base::room, Base::kind, Base::acc, Base::NT, Base::M, Base::N_WARPS, Base::N_THREADS, Base::pairs,
        Base::find_pairs, Base::load_queries, Base::load_page, Base::held_at, Base::score, Base::weigh, Base::add_values,
        Base::gate_at, Base::put, Base::find_places;

    __device__ __forceinline__ float* partial(const Pair& pair, u32 chunk) const {
        return p.partials + (((u64)pair.slot * p.heads + pair.head) * MAX_CHUNKS + chunk) * (D + 4);
    }

    // What the pairs see of the chunk at hand. The first page's copies have been begun.
    __device__ __forceinline__ void run_chunk(const Work& w, u32 n_tiles) {
        u64 next = held_at(w, w.page + 1);
        const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane / 4, t = lane % 4, m = warp / 8, eighth = warp % 8;
#pragma unroll
        for (u32 n = 0; n < NT; n++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) acc[n][i] = 0.0f;
        const auto nothing = [] { asm volatile("cp.async.commit_group;" ::: "memory"); };
        // Before the places of the first page give way to those of the second, its copies have been begun by all.
        if (kind == TAIL) __syncthreads();
#pragma unroll 1
        for (u32 page = w.page; page <= w.last; page++) {
            const bool has_next = page < w.last;
            // Looked up a page ahead of its use: what tables say comes from afar.
            const u64 held = next;
            next = held_at(w, page + 2);
            if constexpr (STAGES(D) == 2) {
                const u32 stage = (page - w.page) % 2;
                if (has_next) find_places(w, page + 1);
                asm volatile("cp.async.wait_group 1;" ::: "memory");
                __syncthreads();
                has_next ? load_page(0, 1 - stage, held) : nothing();
                has_next ? load_page(1, 1 - stage, held) : nothing();
                score(stage, n_tiles);
                __syncthreads();
                weigh(page);
                asm volatile("cp.async.wait_group 2;" ::: "memory");
                __syncthreads();
                add_values(stage, n_tiles);
            } else {
                asm volatile("cp.async.wait_group 1;" ::: "memory");
                __syncthreads();
                if (has_next) find_places(w, page + 1);
                score(0, n_tiles);
                __syncthreads();
                has_next ? load_page(0, 0, held) : nothing();
                weigh(page);
                asm volatile("cp.async.wait_group 1;" ::: "memory");
                __syncthreads();
                add_values(0, n_tiles);
                __syncthreads();
                has_next ? load_page(1, 0, held) : nothing();
            }
        }
        __syncthreads();
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const Pair& pair = pairs()[16 * m + g + 8 * half];
            if (pair.head == ~0u) continue;
            float* to = partial(pair, w.chunk) + 4 + eighth * (D / 8) + 2 * t;
#pragma unroll
            for (u32 n = 0; n < NT; n++) *(float2*)(to + 8 * n) = make_float2(acc[n][2 * half], acc[n][2 * half + 1]);
        }
        if (threadIdx.x < M && pairs()[threadIdx.x].head != ~0u) {
            Pair& pair = pairs()[threadIdx.x];
            *(float2*)partial(pair, w.chunk) = make_float2(pair.max, pair.total);
            pair.max = -INFINITY_F;
            pair.total = 0.0f;
        }
    }

    // A row's chunks in order, for the heads of its key head that are this block's.
    __device__ __forceinline__ void put_together(const Work& w) const {
        const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, n_heads = p.heads / p.kv_heads / p.n_finishers;
        const u32 first = chunk_of(w.from / PAGE), n = chunk_of((w.end - 1) / PAGE) - first + 1;
        float4* factors = (float4*)(room + L::KEYS);  // [head, chunk]: of what was before, of the chunk; its total
        Pair pair = pairs()[0];
        const u32 first_head = w.first_head + w.finisher * n_heads;
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
        __syncthreads();
        // Four channels a thread: as many heads at once as fit, and whole blocks of 128 columns a warp's.
        constexpr u32 THREADS = D / 4;
        const u32 channel = threadIdx.x % THREADS * 4;
#pragma unroll 1
        for (u32 i = threadIdx.x / THREADS; i < n_heads; i += N_THREADS / THREADS) {
            pair.head = first_head + i;
            const float* from = partial(pair, first) + 4 + channel;
            const float4 gate = gate_at(w.row, pair.head, channel);
            float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            float total = merge_start(p, pair.head).total;
#pragma unroll 8
            for (u32 c = 0; c < n; c++) {
                const float4 f = factors[i * MAX_CHUNKS + c], v = __ldcg((const float4*)(from + c * (D + 4)));
                x.x = __fmaf_rn(f.y, v.x, x.x * f.x);
                x.y = __fmaf_rn(f.y, v.y, x.y * f.x);
                x.z = __fmaf_rn(f.y, v.z, x.z * f.x);
                x.w = __fmaf_rn(f.y, v.w, x.w * f.x);
                total = __fmaf_rn(f.z, f.y, total * f.x);
            }
            put(w.row, pair.head, channel, x, 1.0f / total, gate);
        }
    }

    // A committed chunk of some sequence, if there are as many.
    __device__ __forceinline__ bool find_chunk(u32 item, Work& w) const {
        const u32 group = p.heads / p.kv_heads, most = M / group, n_seqs = p.step.counts[2];
#pragma unroll 1
        for (u32 s = 0; s < n_seqs; s++) {
            const Seq seq = p.step.seqs[s];
            const Span span = span_of(p, seq, most);
            const u32 shared_by = span.n_groups * p.kv_heads, n = shared_by * span.n_chunks;
            if (item >= n) {
                item -= n;
                continue;
            }
            // Later chunks are longer: they go first.
            w.chunk = span.first_chunk + span.n_chunks - 1 - item / shared_by;
            w.page = max(chunk_start(w.chunk), from_of(p, seq.committed) / PAGE);
            w.last = chunk_start(w.chunk + 1) - 1;
            w.seq = s;
            w.kv_head = item % p.kv_heads;
            w.first_index = span.first_index + item / p.kv_heads % span.n_groups * most;
            w.n_rows = min(most, span.end_index - w.first_index);
            return true;
        }
        return false;
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
        w.page = max(chunk_start(chunk_of(seq.committed / PAGE)), w.from / PAGE);
        const Span span = span_of(p, seq, most);
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
#pragma unroll 1
            for (u32 item = blockIdx.x;; item += p.n_shared) {
                if (kind != TAIL) {
                    if (!find_chunk(item, w)) return is_first ? pdl_idle() : void();
                    w.counter = w.first_index;
                    w.first_head = w.kv_head * (p.heads / p.kv_heads);
                } else {
                    w.chunk = chunk_of(w.page);
                    w.last = min((w.end - 1) / PAGE, chunk_start(w.chunk + 1) - 1);
                }
                const u32 n_tiles = (w.n_rows * (p.heads / p.kv_heads) + 15) / 16;
                const bool is_new = is_first || kind != TAIL;
                if (is_new) find_pairs(w);
                find_places(w, w.page);
                if (kind == TAIL && is_first) {
                    pdl_wait();
                    pdl_next();
                }
                const u64 held = held_at(w, w.page);
                __syncthreads();
                load_page(0, 0, held);
                load_page(1, 0, held);
                if (kind != TAIL && is_first) {
                    pdl_wait();
                    pdl_next();
                }
                is_first = false;
                if (is_new) load_queries(n_tiles);
                run_chunk(w, n_tiles);
                __threadfence();
                __syncthreads();
                if (kind != TAIL) {
                    if (threadIdx.x == 0) atomicAdd(p.done + (w.counter - p.first_row) * p.kv_heads + w.kv_head, 1);
                    continue;
                }
                w.page = w.last + 1;
                if (w.page > (w.end - 1) / PAGE) break;
            }
        }
        u32* done = p.done + (w.counter - p.first_row) * p.kv_heads + w.kv_head;
        u32* tail = p.done + 2 * p.n_counters + (w.first_index - p.first_row) * p.kv_heads + w.kv_head;
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
        if (others.x && atomicInc(done + p.n_counters, others.y * p.n_finishers - 1) == others.y * p.n_finishers - 1) *done = 0;
        if (shares_tail && atomicAdd(tail, 1) == p.n_finishers) *tail = 0;
    }
};

template <int D, int MT, bool BF16>
__device__ __forceinline__ void attend_tiles(const Attention& p) {
    extern __shared__ __align__(16) u8 room[];
    Chunks<D, MT, BF16> block = {{p, room, blockIdx.x >= p.n_shared ? TAIL : SHARED, {}}};
    block.run();
}

#define TILES(D, MT, BLOCKS, BF16, NAME)                                                                                     \
    extern "C" __global__ void __launch_bounds__(256 * MT, BLOCKS) NAME##_##D##_##MT(const __grid_constant__ Attention p) { \
        attend_tiles<D, MT, BF16>(p);                                                                                        \
    }
