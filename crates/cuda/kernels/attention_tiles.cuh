// Softmax attention on tensor cores, over keys and values of 16 bits. Pages go in chunks whose bounds are absolute
// positions, so a row's sums have one order whoever is beside it.
//
// The first blocks of the grid share out the chunks that are committed: one chunk, one key head, and up to MT x 16 (row,
// head) pairs at a time, so that a page is read once for all of them. The last blocks have a row and a key head each: what
// the row sees from the first chunk on that is not wholly committed, gathered along its path, and then the row's chunks put
// together in order. They wait for the first ones, which were started before them.
#pragma once
#include "attention_parts.cuh"

// Pages of keys and values in shared memory: two, so that one is on its way while the other is worked on, where there is
// room. Launches ask for as much (ops/attention.rs).
#if __CUDA_ARCH__ == 900 || __CUDA_ARCH__ == 1000
#define STAGES(D) 2u
#else
#define STAGES(D) (D < 256 ? 2u : 1u)
#endif

// What a chunk is worked on with; offsets into shared memory.
template <int D, int MT>
struct Layout {
    static constexpr u32 KEY_STRIDE = 2 * D + 64, VALUE_STRIDE = 2 * D + 16, SCORE_STRIDE = PAGE + 4, WEIGHT_STRIDE = 2 * PAGE + 16;
    static constexpr u32 KEYS = 0, VALUES = PAGE * KEY_STRIDE, STAGE = VALUES + PAGE * VALUE_STRIDE, QUERIES = STAGES(D) * STAGE;
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
    u32 sure_end;
    u32 counter;              // of the chunks that its rows share
    u32 chunk, page, last;    // pages of the chunk at hand
    u32 row, from, end;       // of a tail: its row and what that sees
};

template <int D, int MT, bool BF16>
struct Attend {
    using L = Layout<D, MT>;
    static constexpr u32 NT = D / 64, M = 16 * MT;
    const Attention& p;
    u8* room;
    bool is_tail;
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
            // What is committed is before every row.
            pair.end = is_tail ? end_of(p, w.sure_end, pos) : ~0u;
        }
        pairs()[m] = pair;
    }

    // Queries as fragments, in two parts each. A lane's eight channels of 32 lie side by side, as its part of a key does.
    __device__ __forceinline__ void load_queries(u32 n_tiles) const {
#pragma unroll 1
        for (u32 unit = threadIdx.x; unit < n_tiles * D / 16 * 32; unit += 256) {
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

    // Begins to copy a page's keys (0) or values (1). A committed page lies at `held`; of a tail's, `places` has where each
    // position is, or ~0.
    __device__ __forceinline__ void load_page(u32 plane, u32 stage, u64 held) const {
        constexpr u32 CHUNKS = D / 8;
        const u32 base = (u32)__cvta_generic_to_shared(room + stage * L::STAGE + (plane ? L::VALUES : L::KEYS));
        const u32 stride = plane ? L::VALUE_STRIDE : L::KEY_STRIDE;
        const u64 further = plane ? (u64)p.kv_heads * PAGE * D : 0;
#pragma unroll 2
        for (u32 i = 0; i < PAGE * CHUNKS / 256; i++) {
            const u32 unit = i * 256 + threadIdx.x, at = unit / CHUNKS, chunk = unit % CHUNKS;
            const u64 place = is_tail ? places()[at] : held + at * D;
            const u16* from = (const u16*)p.kv + (place == ~0ull ? 0 : place + further + chunk * 8);
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(base + at * stride + chunk * 16), "l"(from),
                         "r"(place == ~0ull ? 0 : 16)
                         : "memory");
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }

    // Where the positions of a tail's page are, as its row sees them. Behind it there must be a barrier.
    __device__ __forceinline__ void find_places(const Work& w, u32 page) const {
        if (!is_tail || threadIdx.x >= PAGE) return;
        const u32 pos = page * PAGE + threadIdx.x;
        places()[threadIdx.x] = pos < w.end ? place_of(w, slot_of(p.step, w.row, w.sure_end, pos)) : ~0ull;
    }
    __device__ __forceinline__ u64 place_of(const Work& w, u32 slot) const {
        return (((u64)page_of(p.step, w.seq, p.cls, slot) * 2 * p.kv_heads + w.kv_head) * PAGE + slot % PAGE) * D;
    }
    // Of a committed page of the chunk.
    __device__ __forceinline__ u64 held_at(const Work& w, u32 page) const {
        return is_tail || page > w.last ? 0 : place_of(w, page * PAGE);
    }

    // Scores of the page's 64 positions, eight of them a warp's.
    __device__ __forceinline__ void score(u32 stage, u32 n_tiles) const {
        const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane / 4, t = lane % 4;
        float high[MT][4], low[MT][4];
#pragma unroll
        for (u32 m = 0; m < MT; m++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) high[m][i] = low[m][i] = 0.0f;
        const u8* keys = room + stage * L::STAGE + L::KEYS + (8 * warp + g) * L::KEY_STRIDE + 16 * t;
        const uint4* queries = (const uint4*)(room + L::QUERIES) + lane;
#pragma unroll 4
        for (u32 c = 0; c < D / 32; c++) {
            const uint4 k = *(const uint4*)(keys + 64 * c);
#pragma unroll
            for (u32 m = 0; m < MT; m++) {
                if (m >= n_tiles) continue;
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
    __device__ __forceinline__ void add_values(u32 stage, u32 n_tiles) {
        const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane / 4;
#pragma unroll
        for (u32 m = 0; m < MT; m++) {
            const float a = pairs()[16 * m + g].shrink, b = pairs()[16 * m + g + 8].shrink;
#pragma unroll
            for (u32 n = 0; n < NT; n++) acc[m][n][0] *= a, acc[m][n][1] *= a, acc[m][n][2] *= b, acc[m][n][3] *= b;
        }
        const u32 values = (u32)__cvta_generic_to_shared(room + stage * L::STAGE + L::VALUES) + (lane % 16) * L::VALUE_STRIDE + (warp * (D / 8) + lane / 16 * 8) * 2;
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
                if (m >= n_tiles) continue;
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
        return p.partials + (((u64)pair.slot * p.heads + pair.head) * MAX_CHUNKS + chunk) * (D + 4);
    }

    // What the pairs see of the chunk at hand. The first page's copies have been begun.
    __device__ __forceinline__ void run_chunk(const Work& w, u32 n_tiles) {
        u64 next = held_at(w, w.page + 1);
        const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane / 4, t = lane % 4;
#pragma unroll
        for (u32 m = 0; m < MT; m++)
#pragma unroll
            for (u32 n = 0; n < NT; n++)
#pragma unroll
                for (u32 i = 0; i < 4; i++) acc[m][n][i] = 0.0f;
        const auto nothing = [] { asm volatile("cp.async.commit_group;" ::: "memory"); };
        // Before the places of the first page give way to those of the second, its copies have been begun by all.
        if (is_tail) __syncthreads();
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
        for (u32 m = 0; m < MT; m++)
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                const Pair& pair = pairs()[16 * m + g + 8 * half];
                if (pair.head == ~0u) continue;
                float* to = partial(pair, w.chunk) + 4 + warp * (D / 8) + 2 * t;
#pragma unroll
                for (u32 n = 0; n < NT; n++) *(float2*)(to + 8 * n) = make_float2(acc[m][n][2 * half], acc[m][n][2 * half + 1]);
            }
        if (threadIdx.x < M && pairs()[threadIdx.x].head != ~0u) {
            Pair& pair = pairs()[threadIdx.x];
            *(float2*)partial(pair, w.chunk) = make_float2(pair.max, pair.total);
            pair.max = -INFINITY_F;
            pair.total = 0.0f;
        }
    }

    // A row's chunks in order, for all heads of its key head.
    __device__ __forceinline__ void put_together(const Work& w) const {
        const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, group = p.heads / p.kv_heads;
        const u32 first = chunk_of(w.from / PAGE), n = chunk_of((w.end - 1) / PAGE) - first + 1;
        float* weights = (float*)(room + L::KEYS);  // [head, chunk]
        Pair pair = pairs()[0];
#pragma unroll 1
        for (u32 i = warp; i < group; i += 8) {
            pair.head = w.first_head + i;
            float max = p.sinks ? p.sinks[pair.head] * 1.4426950408889634f : -INFINITY_F, total = 0.0f;
            const float sink = max;
            float2 found[(MAX_CHUNKS + 31) / 32];
#pragma unroll
            for (u32 c = 0; c < (MAX_CHUNKS + 31) / 32; c++) {
                found[c] = make_float2(-INFINITY_F, 0.0f);
                if (32 * c + lane < n) found[c] = __ldcg((const float2*)partial(pair, first + 32 * c + lane));
            }
#pragma unroll
            for (u32 c = 0; c < (MAX_CHUNKS + 31) / 32; c++) max = fmaxf(max, found[c].x);
            max = warp_max(max);
#pragma unroll
            for (u32 c = 0; c < (MAX_CHUNKS + 31) / 32; c++) {
                found[c].x = power(found[c].x - max);
                total = __fmaf_rn(found[c].x, found[c].y, total);
            }
            total = warp_sum(total);
            if (p.sinks) total += power(sink - max);
#pragma unroll
            for (u32 c = 0; c < (MAX_CHUNKS + 31) / 32; c++)
                if (32 * c + lane < n) weights[i * MAX_CHUNKS + 32 * c + lane] = found[c].x / total;
        }
        __syncthreads();
        // Four channels a thread: as many heads at once as fit, and whole blocks of 128 columns a warp's.
        constexpr u32 THREADS = D / 4;
        const u32 channel = threadIdx.x % THREADS * 4;
#pragma unroll 1
        for (u32 i = threadIdx.x / THREADS; i < group; i += 256 / THREADS) {
            pair.head = w.first_head + i;
            const u64 at = (u64)w.row * p.heads + pair.head;
            float4 gate = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (p.gated) gate = *(const float4*)(p.q + at * p.q_stride + D + channel);
            const float* from = partial(pair, first) + 4 + channel;
            float x[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 8
            for (u32 c = 0; c < n; c++) {
                const float weight = weights[i * MAX_CHUNKS + c];
                const float4 v = __ldcg((const float4*)(from + c * (D + 4)));
                x[0] = __fmaf_rn(weight, v.x, x[0]);
                x[1] = __fmaf_rn(weight, v.y, x[1]);
                x[2] = __fmaf_rn(weight, v.z, x[2]);
                x[3] = __fmaf_rn(weight, v.w, x[3]);
            }
            if (p.gated) x[0] *= sigmoid(gate.x), x[1] *= sigmoid(gate.y), x[2] *= sigmoid(gate.z), x[3] *= sigmoid(gate.w);
            *(float4*)(p.out + at * D + channel) = make_float4(x[0], x[1], x[2], x[3]);
            if (D % 128 == 0 && p.image) image_store(p.image, p.shape, w.row, (pair.head * D + channel) / 128, x);
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
        const u32 nth = blockIdx.x - p.n_shared, most = M / (p.heads / p.kv_heads);
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

    __device__ __forceinline__ void run() {
        Work w = {};
        uint2 others = {};
        if (is_tail) {
            if (p.first_row + (blockIdx.x - p.n_shared) / p.kv_heads >= p.step.counts[0]) return pdl_idle();
            others = find_tail(w);
        }
        // Steps' data and committed pages are there before the kernel before this one ends; queries and tails are not.
        bool is_first = true;
#pragma unroll 1
        for (u32 item = blockIdx.x;; item += p.n_shared) {
            if (!is_tail) {
                if (!find_chunk(item, w)) return is_first ? pdl_idle() : void();
                w.counter = w.first_index;
            } else {
                w.chunk = chunk_of(w.page);
                w.last = min((w.end - 1) / PAGE, chunk_start(w.chunk + 1) - 1);
            }
            w.first_head = w.kv_head * (p.heads / p.kv_heads);
            const u32 n_tiles = (w.n_rows * (p.heads / p.kv_heads) + 15) / 16;
            const bool is_new = is_first || !is_tail;
            if (is_new) find_pairs(w);
            find_places(w, w.page);
            if (is_tail && is_first) {
                pdl_wait();
                pdl_next();
            }
            const u64 held = held_at(w, w.page);
            __syncthreads();
            load_page(0, 0, held);
            load_page(1, 0, held);
            if (!is_tail && is_first) {
                pdl_wait();
                pdl_next();
            }
            is_first = false;
            if (is_new) load_queries(n_tiles);
            run_chunk(w, n_tiles);
            __threadfence();
            __syncthreads();
            if (!is_tail) {
                if (threadIdx.x == 0) atomicAdd(p.done + (w.counter - p.first_row) * p.kv_heads + w.kv_head, 1);
                continue;
            }
            w.page = w.last + 1;
            if (w.page > (w.end - 1) / PAGE) break;
        }
        u32* done = p.done + (w.counter - p.first_row) * p.kv_heads + w.kv_head;
        if (threadIdx.x == 0 && others.x) {
            while (load_acquire(done) < others.x) {}
        }
        __syncthreads();
        __threadfence();
        put_together(w);
        // The last row of those that share the chunks clears the counter for the next launch.
        if (threadIdx.x == 0 && others.x && atomicInc(done + p.n_counters, others.y - 1) == others.y - 1) *done = 0;
    }
};

template <int D, int MT, bool BF16>
__device__ __forceinline__ void attend_tiles(const Attention& p) {
    extern __shared__ __align__(16) u8 room[];
    Attend<D, MT, BF16> block = {p, room, blockIdx.x >= p.n_shared, {}};
    block.run();
}

#define TILES(D, MT, BLOCKS, BF16, NAME)                                                                                     \
    extern "C" __global__ void __launch_bounds__(256, BLOCKS) NAME##_##D##_##MT(const __grid_constant__ Attention p) { \
        attend_tiles<D, MT, BF16>(p);                                                                                        \
    }
