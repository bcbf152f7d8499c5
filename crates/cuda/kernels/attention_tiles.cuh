// Softmax attention on tensor cores, over keys and values of 16 bits. Pages go in chunks whose bounds are absolute
// positions, so a row's sums have one order whoever is beside it.
//
// The first blocks of the grid share out the chunks that are committed: one chunk, one key head, and up to MT x 16 (row,
// head) pairs at a time, so that a page is read once for all of them. The last blocks have a row and a key head each: what
// the row sees from the first chunk on that is not wholly committed, gathered along its path, and then the row's chunks put
// together in order. They wait for the first ones, which were started before them.
#pragma once
#include "attention_parts.cuh"

// What a chunk is worked on with; offsets into shared memory.
template <int D, int MT>
struct Layout {
    static constexpr u32 KEY_STRIDE = 2 * D + 64, VALUE_STRIDE = 2 * D + 16, SCORE_STRIDE = PAGE + 4, WEIGHT_STRIDE = 2 * PAGE + 16;
    static constexpr u32 KEYS = 0, VALUES = KEYS + PAGE * KEY_STRIDE, QUERIES = VALUES + PAGE * VALUE_STRIDE;
    static constexpr u32 SCORES = QUERIES + MT * D * 64, WEIGHTS = SCORES + MT * 16 * SCORE_STRIDE * 4;
    static constexpr u32 PAIRS = WEIGHTS + 2 * MT * 16 * WEIGHT_STRIDE;
};

struct Pair {
    u32 row;       // of the step; its slot among the launch's rows
    u32 slot;
    u32 from, end; // positions it sees
    float max, total, shrink;
    u32 head;      // ~0: none
};

// Rows and the part of the context that a block works on.
struct Work {
    u32 seq, kv_head, first_head;
    u32 first_index, n_rows;  // places in `seq_rows`
    u32 committed, sure_end;
    bool is_tail;
};

template <int D, int MT, bool BF16>
struct Attend {
    using L = Layout<D, MT>;
    static constexpr u32 NT = D / 64, M = 16 * MT;
    const Attention& p;
    u8* room;
    float acc[MT][NT][4];

    __device__ __forceinline__ Pair* pairs() const { return (Pair*)(room + L::PAIRS); }
    __device__ __forceinline__ u64* places() const { return (u64*)(room + L::PAIRS + M * sizeof(Pair)); }

    // Who the pairs are: rows of the work, heads of the key head.
    __device__ __forceinline__ void find_pairs(const Work& w) const {
        const u32 m = threadIdx.x, group = p.heads / p.kv_heads;
        if (m >= M) return;
        Pair pair = {0, 0, 0, 0, -INFINITY_F, 0.0f, 0.0f, ~0u};
        if (m < w.n_rows * group) {
            const u32 index = w.first_index + m / group;
            pair.row = p.step.seq_rows[index];
            pair.slot = index - p.first_row;
            pair.head = w.first_head + m % group;
            const u32 pos = p.step.rows[pair.row].pos;
            pair.from = from_of(p, pos);
            pair.end = w.is_tail ? end_of(p, w.sure_end, pos) : ~0u;
        }
        pairs()[m] = pair;
    }

    // Queries as fragments, in two parts each. A lane's eight channels of 32 lie side by side, as its part of a key does.
    __device__ __forceinline__ void load_queries() const {
        for (u32 unit = threadIdx.x; unit < MT * D / 16 * 32; unit += 256) {
            const u32 lane = unit % 32, step = unit / 32 % (D / 16), tile = unit / 32 / (D / 16);
            const u32 channel = step / 2 * 32 + lane % 4 * 8 + step % 2 * 4;
            u32 high[4], low[4];
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                const Pair& pair = pairs()[16 * tile + lane / 4 + 8 * half];
                float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                if (pair.head != ~0u) x = *(const float4*)(p.q + ((u64)pair.row * p.heads + pair.head) * p.q_stride + channel);
                in_two<BF16>(x.x, x.y, high[half], low[half]);
                in_two<BF16>(x.z, x.w, high[half + 2], low[half + 2]);
            }
            uint4* to = (uint4*)(room + L::QUERIES) + (tile * (D / 16) + step) * 64 + lane;
            to[0] = make_uint4(high[0], high[1], high[2], high[3]);
            to[32] = make_uint4(low[0], low[1], low[2], low[3]);
        }
    }

    // Begins to copy a page's keys (0) or values (1). `places` has where each position is, or ~0.
    __device__ __forceinline__ void load_page(u32 plane) const {
        constexpr u32 CHUNKS = D / 8;
        const u32 base = (u32)__cvta_generic_to_shared(room + (plane ? L::VALUES : L::KEYS));
        const u32 stride = plane ? L::VALUE_STRIDE : L::KEY_STRIDE;
        const u64 further = plane ? (u64)p.kv_heads * PAGE * D : 0;
#pragma unroll
        for (u32 i = 0; i < PAGE * CHUNKS / 256; i++) {
            const u32 unit = i * 256 + threadIdx.x, at = unit / CHUNKS, chunk = unit % CHUNKS;
            const u64 place = places()[at];
            const u16* from = (const u16*)p.kv + (place == ~0ull ? 0 : place + further + chunk * 8);
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(base + at * stride + chunk * 16), "l"(from),
                         "r"(place == ~0ull ? 0 : 16)
                         : "memory");
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }

    // Where the positions of a page are, as the work's row sees them. Behind it there must be a barrier.
    __device__ __forceinline__ void find_places(const Work& w, u32 page) const {
        if (threadIdx.x >= PAGE) return;
        const u32 pos = page * PAGE + threadIdx.x;
        u64 place = ~0ull;
        if (!w.is_tail || pos < pairs()[0].end) {
            u32 slot = pos;
            if (w.is_tail) slot = slot_of(p.step, pairs()[0].row, w.sure_end, pos);
            place = (((u64)page_of(p.step, w.seq, p.cls, slot) * 2 * p.kv_heads + w.kv_head) * PAGE + slot % PAGE) * D;
        }
        places()[threadIdx.x] = place;
    }

    // Scores of the page's 64 positions, eight of them a warp's.
    __device__ __forceinline__ void score() const {
        const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane / 4, t = lane % 4;
        float high[MT][4], low[MT][4];
#pragma unroll
        for (u32 m = 0; m < MT; m++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) high[m][i] = low[m][i] = 0.0f;
        const u8* keys = room + L::KEYS + (8 * warp + g) * L::KEY_STRIDE + 16 * t;
        const uint4* queries = (const uint4*)(room + L::QUERIES) + lane;
#pragma unroll 4
        for (u32 c = 0; c < D / 32; c++) {
            const uint4 k = *(const uint4*)(keys + 64 * c);
#pragma unroll
            for (u32 m = 0; m < MT; m++) {
                const uint4* q = queries + (m * (D / 16) + 2 * c) * 64;
                mma16<BF16>(high[m], q[0], k.x, k.y);
                mma16<BF16>(low[m], q[32], k.x, k.y);
                mma16<BF16>(high[m], q[64], k.z, k.w);
                mma16<BF16>(low[m], q[96], k.z, k.w);
            }
        }
        float* scores = (float*)(room + L::SCORES) + 8 * warp + 2 * t;
#pragma unroll
        for (u32 m = 0; m < MT; m++) {
            *(float2*)(scores + (16 * m + g) * L::SCORE_STRIDE) = make_float2(high[m][0] + low[m][0], high[m][1] + low[m][1]);
            *(float2*)(scores + (16 * m + g + 8) * L::SCORE_STRIDE) = make_float2(high[m][2] + low[m][2], high[m][3] + low[m][3]);
        }
    }

    // The page into each pair's running softmax, powers of two; a warp takes every eighth pair.
    __device__ __forceinline__ void weigh(u32 page) const {
        const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
        const float scale = p.scale * 1.4426950408889634f;
#pragma unroll 2
        for (u32 m = warp; m < M; m += 8) {
            Pair& pair = pairs()[m];
            if (pair.head == ~0u) continue;
            const float* scores = (const float*)(room + L::SCORES) + m * L::SCORE_STRIDE;
            const u32 pos = page * PAGE + lane;
            const float a = pos >= pair.from && pos < pair.end ? scale * scores[lane] : -INFINITY_F;
            const float b = pos + 32 >= pair.from && pos + 32 < pair.end ? scale * scores[lane + 32] : -INFINITY_F;
            const float old = pair.max, now = fmaxf(old, warp_max(fmaxf(a, b)));
            // A page before the row's window changes nothing.
            const float zero = now == -INFINITY_F ? 0.0f : now;
            const float ea = power(a - zero), eb = power(b - zero), sum = warp_sum(ea + eb);
            u16* weights = (u16*)(room + L::WEIGHTS + m * L::WEIGHT_STRIDE) + lane;
            u16* rest = (u16*)((u8*)weights + M * L::WEIGHT_STRIDE);
            weights[0] = to_16<BF16>(ea);
            weights[32] = to_16<BF16>(eb);
            rest[0] = to_16<BF16>(ea - from_16<BF16>(weights[0]));
            rest[32] = to_16<BF16>(eb - from_16<BF16>(weights[32]));
            if (lane == 0) {
                const float shrink = power(old - zero);
                pair.max = now;
                pair.shrink = shrink;
                pair.total = __fmaf_rn(pair.total, shrink, sum);
            }
        }
    }

    // Weighted values; an eighth of the channels a warp's.
    __device__ __forceinline__ void add_values() {
        const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane / 4;
#pragma unroll
        for (u32 m = 0; m < MT; m++) {
            const float a = pairs()[16 * m + g].shrink, b = pairs()[16 * m + g + 8].shrink;
#pragma unroll
            for (u32 n = 0; n < NT; n++) acc[m][n][0] *= a, acc[m][n][1] *= a, acc[m][n][2] *= b, acc[m][n][3] *= b;
        }
        const u32 values = (u32)__cvta_generic_to_shared(room + L::VALUES) + (lane % 16) * L::VALUE_STRIDE + (warp * (D / 8) + lane / 16 * 8) * 2;
        const u32 weights = (u32)__cvta_generic_to_shared(room + L::WEIGHTS) + (lane % 16) * L::WEIGHT_STRIDE + lane / 16 * 16;
#pragma unroll
        for (u32 step = 0; step < PAGE / 16; step++) {
            u32 v[NT][2];
            if constexpr (NT == 1) {
                load_transposed(v[0], values + step * 16 * L::VALUE_STRIDE);
            } else {
#pragma unroll
                for (u32 n = 0; n < NT; n += 2) load_transposed(v[n], v[n + 1], values + step * 16 * L::VALUE_STRIDE + n * 16);
            }
#pragma unroll
            for (u32 m = 0; m < MT; m++) {
                const uint4 high = load_matrices(weights + m * 16 * L::WEIGHT_STRIDE + step * 32);
                const uint4 low = load_matrices(weights + (M + m * 16) * L::WEIGHT_STRIDE + step * 32);
#pragma unroll
                for (u32 n = 0; n < NT; n++) {
                    mma16<BF16>(acc[m][n], high, v[n][0], v[n][1]);
                    mma16<BF16>(acc[m][n], low, v[n][0], v[n][1]);
                }
            }
        }
    }

    __device__ __forceinline__ float* partial(const Pair& pair, u32 chunk) const {
        return p.partials + (((u64)pair.slot * p.heads + pair.head) * MAX_CHUNKS + chunk) * (D + 2);
    }

    // What the pairs see of pages `first` to `last`, all of one chunk. The first page's copies have been begun.
    __device__ __forceinline__ void run_chunk(const Work& w, u32 chunk, u32 first, u32 last) {
        const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane / 4, t = lane % 4;
#pragma unroll
        for (u32 m = 0; m < MT; m++)
#pragma unroll
            for (u32 n = 0; n < NT; n++)
#pragma unroll
                for (u32 i = 0; i < 4; i++) acc[m][n][i] = 0.0f;
        for (u32 page = first; page <= last; page++) {
            const bool has_next = page < last;
            asm volatile("cp.async.wait_group 1;" ::: "memory");
            __syncthreads();
            if (has_next) find_places(w, page + 1);
            score();
            __syncthreads();
            if (has_next) load_page(0);
            else asm volatile("cp.async.commit_group;" ::: "memory");
            weigh(page);
            asm volatile("cp.async.wait_group 1;" ::: "memory");
            __syncthreads();
            add_values();
            __syncthreads();
            if (has_next) load_page(1);
            else asm volatile("cp.async.commit_group;" ::: "memory");
        }
#pragma unroll
        for (u32 m = 0; m < MT; m++)
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                const Pair& pair = pairs()[16 * m + g + 8 * half];
                if (pair.head == ~0u) continue;
                float* to = partial(pair, chunk) + 2 + warp * (D / 8) + 2 * t;
#pragma unroll
                for (u32 n = 0; n < NT; n++) *(float2*)(to + 8 * n) = make_float2(acc[m][n][2 * half], acc[m][n][2 * half + 1]);
            }
        if (threadIdx.x < M && pairs()[threadIdx.x].head != ~0u) {
            Pair& pair = pairs()[threadIdx.x];
            *(float2*)partial(pair, chunk) = make_float2(pair.max, pair.total);
            pair.max = -INFINITY_F;
            pair.total = 0.0f;
        }
    }

    // A row's chunks in order, for all heads of its key head.
    __device__ __forceinline__ void put_together(const Work& w) const {
        const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, group = p.heads / p.kv_heads;
        const Pair row = pairs()[0];
        const u32 first = chunk_of(row.from / PAGE), n = chunk_of((row.end - 1) / PAGE) - first + 1;
        float* weights = (float*)(room + L::KEYS);           // [head, chunk]
        float* whole = weights + 16 * MAX_CHUNKS;            // 256 numbers
        for (u32 i = warp; i < group; i += 8) {
            Pair pair = row;
            pair.head = w.first_head + i;
            const float sink = p.sinks ? p.sinks[pair.head] * 1.4426950408889634f : -INFINITY_F;
            float max = sink, total = 0.0f;
            for (u32 c = lane; c < n; c += 32) max = fmaxf(max, __ldcg(partial(pair, first + c)));
            max = warp_max(max);
            for (u32 c = lane; c < n; c += 32) {
                const float weight = power(__ldcg(partial(pair, first + c)) - max);
                weights[i * MAX_CHUNKS + c] = weight;
                total = __fmaf_rn(weight, __ldcg(partial(pair, first + c) + 1), total);
            }
            total = warp_sum(total);
            if (p.sinks) total += power(sink - max);
            __syncwarp();
            for (u32 c = lane; c < n; c += 32) weights[i * MAX_CHUNKS + c] /= total;
        }
        __syncthreads();
        const u32 channel = threadIdx.x % D;
        for (u32 i = threadIdx.x / D; i < (group + 256 / D - 1) / (256 / D) * (256 / D); i += 256 / D) {
            Pair pair = row;
            pair.head = w.first_head + i;
            float sum = 0.0f;
            if (i < group) {
                const float* from = partial(pair, first) + 2 + channel;
#pragma unroll 8
                for (u32 c = 0; c < n; c++) sum = __fmaf_rn(weights[i * MAX_CHUNKS + c], __ldcg(from + c * (D + 2)), sum);
                if (p.gated) sum *= sigmoid(p.q[((u64)row.row * p.heads + pair.head) * p.q_stride + D + channel]);
                p.out[((u64)row.row * p.heads + pair.head) * D + channel] = sum;
                whole[threadIdx.x] = sum;
            }
            if constexpr (D % 128 == 0) {
                if (!p.image) continue;
                __syncthreads();
                const u32 head = i - threadIdx.x / D + warp * 128 / D;
                if (warp < 2 && head < group) {
                    const float4 four = *(const float4*)(whole + 128 * warp + 4 * lane);
                    const float x[4] = {four.x, four.y, four.z, four.w};
                    image_store(p.image, p.shape, row.row, (w.first_head + head) * (D / 128) + warp % (D / 128), x);
                }
                __syncthreads();
            }
        }
    }

    // A committed chunk of some sequence, if there are as many.
    __device__ __forceinline__ bool find_work(u32 item, Work& w, u32& chunk, u32& first_page, u32& counter) const {
        const u32 group = p.heads / p.kv_heads, most = M / group, n_seqs = p.step.counts[2];
        for (u32 s = 0; s < n_seqs; s++) {
            const Seq seq = p.step.seqs[s];
            const Span span = span_of(p, seq, most);
            const u32 n = span.n_groups * p.kv_heads * span.n_chunks;
            if (item >= n) {
                item -= n;
                continue;
            }
            const u32 nth = item / (p.kv_heads * span.n_chunks), kv_head = item / span.n_chunks % p.kv_heads;
            chunk = span.first_chunk + item % span.n_chunks;
            first_page = max(chunk_start(chunk), from_of(p, seq.committed) / PAGE);
            const u32 first = span.first_index + nth * most;
            w = {s, kv_head, kv_head * group, first, min(most, span.end_index - first), seq.committed, seq.committed + seq.n_sure, false};
            counter = (first - p.first_row) * p.kv_heads + kv_head;
            return true;
        }
        return false;
    }

    __device__ __forceinline__ void run_committed() {
        bool is_first = true;
        for (u32 item = blockIdx.x; item < ~0u - p.n_shared; item += p.n_shared) {
            Work w;
            u32 chunk, first, counter;
            if (!find_work(item, w, chunk, first, counter)) break;
            // The step's data and committed pages are there before the kernel before this one ends; queries are not.
            find_pairs(w);
            find_places(w, first);
            __syncthreads();
            load_page(0);
            load_page(1);
            if (is_first) {
                pdl_wait();
                pdl_next();
                is_first = false;
            }
            load_queries();
            run_chunk(w, chunk, first, chunk_start(chunk + 1) - 1);
            __threadfence();
            __syncthreads();
            if (threadIdx.x == 0) atomicAdd(p.done + counter, 1);
        }
    }

    // `most`: rows that share chunks.
    __device__ __forceinline__ void run_tail(u32 most) {
        const u32 nth = blockIdx.x - p.n_shared, index = p.first_row + nth / p.kv_heads, kv_head = nth % p.kv_heads;
        if (index >= p.step.counts[0]) return;
        const u32 group = p.heads / p.kv_heads;
        const Row row = p.step.rows[p.step.seq_rows[index]];
        const Seq seq = p.step.seqs[row.seq];
        const Span span = span_of(p, seq, most);
        const Work w = {row.seq, kv_head, kv_head * group, index, 1, seq.committed, seq.committed + seq.n_sure, true};
        find_pairs(w);
        pdl_wait();
        pdl_next();
        __syncthreads();
        load_queries();
        const Pair me = pairs()[0];
        const u32 last_page = (me.end - 1) / PAGE;
        // All chunks that are not wholly committed; what is before the row's window counts for nothing.
        u32 page = max(chunk_start(chunk_of(seq.committed / PAGE)), me.from / PAGE);
        while (page <= last_page) {
            const u32 chunk = chunk_of(page), last = min(last_page, chunk_start(chunk + 1) - 1);
            find_places(w, page);
            __syncthreads();
            load_page(0);
            load_page(1);
            run_chunk(w, chunk, page, last);
            page = last + 1;
        }
        const u32 first = span.first_index + (index - span.first_index) / most * most;
        u32* done = p.done + (first - p.first_row) * p.kv_heads + kv_head;
        __threadfence();
        if (threadIdx.x == 0 && span.n_chunks) {
            while (load_acquire(done) < span.n_chunks) {}
        }
        __syncthreads();
        __threadfence();
        put_together(w);
        // The last row of those that share the chunks clears the counter for the next launch.
        if (threadIdx.x == 0 && span.n_chunks) {
            const u32 n_rows = min(most, span.end_index - first);
            if (atomicInc(done + p.n_counters, n_rows - 1) == n_rows - 1) *done = 0;
        }
    }
};

template <int D, int MT, bool BF16>
__device__ __forceinline__ void attend_tiles(const Attention& p) {
    extern __shared__ __align__(16) u8 room[];
    if (blockIdx.x < p.n_shared) {
        Attend<D, MT, BF16> block = {p, room, {}};
        block.run_committed();
    } else {
        // The heads of one row are at most 16.
        Attend<D, 1, BF16> block = {p, room, {}};
        block.run_tail(16 * MT / (p.heads / p.kv_heads));
    }
}

#define TILES(D, MT, BLOCKS, BF16, NAME)                                                                                     \
    extern "C" __global__ void __launch_bounds__(256, BLOCKS) NAME##_##D##_##MT(const __grid_constant__ Attention p) { \
        attend_tiles<D, MT, BF16>(p);                                                                                        \
    }
