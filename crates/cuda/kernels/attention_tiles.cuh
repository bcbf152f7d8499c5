// Softmax attention on tensor cores, over keys and values of 16 bits. Pages go in chunks whose bounds are absolute
// positions, so a row's sums have one order whoever is beside it.
//
// Blocks share out the chunks that are committed: one chunk or several short ones, one key head, and up to MT x 16 (row, head) pairs
// at a time, so that a page is read once for all of them. Then each has a row and a key head: what the row sees from the first
// chunk on that is not wholly committed, gathered along its path, and the row's chunks put together in order when others are
// done with theirs, for which all blocks must run at once. Where rows are few, more blocks put together, some of the heads each.
//
// A prompt's rows have a launch of their own: a block walks all chunks of a group of rows and puts them together as it goes.
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
    // Of a walk: all chunks so far.
    Merge all;
};

// Rows and the part of the context that a block works on.
struct Work {
    u32 seq, kv_head, first_head;
    u32 first_index, n_rows;  // places in `seq_rows`
    u32 sure_end;
    u32 counter;              // of the chunks that its rows share
    u32 page, last;           // pages at hand
    u32 n_chunks;             // of them
    u32 is_cut;               // committed pages of a chunk that goes on; of a tail: it begins with such a chunk
    u32 row, from, end;       // of a tail: its row and what that sees
    u32 finisher;             // which of the row's
};

// Where a page lies, if not in one piece: position by position in `places`; nowhere.
#define GATHERED 0xfffffffffffffffeull
#define NOWHERE 0xffffffffffffffffull

// What a block works on next, and where its first page lies.
struct Ahead {
    Work work;
    u64 held;
};

// A row's own pages, how many chunks of others it waits for, and how many wait for the same.
struct Tail {
    Work work;
    u32 n_others, n_waiting, is_there;
};

// What a block does; tails see rows along their path.
enum Kind { SHARED, TAIL, WALK };

template <int D, int MT, bool BF16, u32 TILE_WARPS = 8, class LAYOUT = Layout<D, MT>>
struct Attend {
    using L = LAYOUT;
    // Eight warps to each tile of 16 pairs: of 8 positions each for the scores, of an eighth of the channels for the values.
    static constexpr u32 NT = D / 64, M = 16 * MT, N_WARPS = TILE_WARPS * MT, N_THREADS = 32 * N_WARPS;
    const Attention& p;
    u8* room;
    Kind kind;
    float acc[NT][4];

    __device__ __forceinline__ Pair* pairs() const { return (Pair*)(room + L::PAIRS); }
    __device__ __forceinline__ u64* places() const { return (u64*)(room + L::PAIRS + M * sizeof(Pair)); }

    // Who the pairs are: rows of the work, heads of the key head.
    __device__ __forceinline__ void find_pairs(const Work& w) const {
        const u32 m = threadIdx.x, group = p.heads / p.kv_heads;
        if (m >= M) return;
        Pair pair = {0, 0, 0, 0, -INFINITY_F, 0.0f, 0.0f, ~0u, {-INFINITY_F, 0.0f}};
        if (m < w.n_rows * group) {
            const u32 index = w.first_index + m / group;
            pair.row = p.step.seq_rows[index];
            pair.slot = index - p.first_row;
            pair.head = w.first_head + m % group;
            const u32 pos = p.step.rows[pair.row].pos;
            pair.from = from_of(p, pos);
            // What is committed is before every row.
            pair.end = kind != SHARED ? end_of(p, w.sure_end, pos) : ~0u;
            if (kind == WALK) pair.all = merge_start(p, pair.head);
        }
        pairs()[m] = pair;
    }

    // Queries as fragments, in two parts each. A lane's eight channels of 32 lie side by side, as its part of a key does.
    __device__ __forceinline__ void load_queries(u32 n_tiles) const {
#pragma unroll 1
        for (u32 unit = threadIdx.x; unit < n_tiles * D / 16 * 32; unit += N_THREADS) {
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

    // Begins to copy a page's keys (0) or values (1), `n` positions of it.
    __device__ __forceinline__ void load_page(u32 plane, u32 stage, u64 held, u32 n = PAGE) const {
        constexpr u32 CHUNKS = D / 8, STEP = N_THREADS / CHUNKS;
        const u32 stride = plane ? L::VALUE_STRIDE : L::KEY_STRIDE, chunk = threadIdx.x % CHUNKS;
        u32 at = threadIdx.x / CHUNKS;
        u32 to = (u32)__cvta_generic_to_shared(room + stage * L::STAGE + (plane ? L::VALUES : L::KEYS)) + at * stride + chunk * 16;
        const u16* base = (const u16*)p.kv + (plane ? (u64)p.kv_heads * PAGE * D : 0) + chunk * 8;
        const auto copy = [&](const u16* from, u32 bytes) {
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
            to += STEP * stride;
        };
        if (kind != WALK && held == GATHERED) {
#pragma unroll 2
            for (; at < PAGE; at += STEP) {
                const u64 place = places()[at];
                copy(place == NOWHERE ? base : base + place, place == NOWHERE ? 0 : 16);
            }
        } else {
            // Little is to be done for a copy: a page is a thousand of them, and what waits for it is in a hurry.
            const u16* from = base + held + at * D;
#pragma unroll 4
            for (; at < PAGE; at += STEP, from += STEP * D) copy(from, at < n ? 16 : 0);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }

    // Where the positions of a tail's page are, as its row sees them. Behind it there must be a barrier.
    __device__ __forceinline__ void find_places(const Work& w, u32 page, u32 nth = threadIdx.x) const {
        if (nth >= PAGE) return;
        const u32 pos = page * PAGE + nth;
        places()[nth] = pos < w.end ? place_of(w, slot_of(p.step, w.row, w.sure_end, pos)) : NOWHERE;
    }
    __device__ __forceinline__ u64 place_of(const Work& w, u32 slot) const {
        return (((u64)page_of(p.step, w.seq, p.cls, slot) * 2 * p.kv_heads + w.kv_head) * PAGE + slot % PAGE) * D;
    }
    __device__ __forceinline__ u64 held_at(const Work& w, u32 page) const {
        return kind == TAIL ? GATHERED : page > w.last ? 0 : place_of(w, page * PAGE);
    }

    // Scores of N eights of positions of a page, one in STEP, in the two parts that queries have.
    template <u32 N, u32 STEP, u32 UNROLL>
    __device__ __forceinline__ void score_eights(u32 stage, u32 tile, u32 first, float (&high)[N][4], float (&low)[N][4]) const {
        const u32 lane = threadIdx.x & 31, g = lane / 4, t = lane % 4;
#pragma unroll
        for (u32 n = 0; n < N; n++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) high[n][i] = low[n][i] = 0.0f;
        const u8* keys = room + stage * L::STAGE + L::KEYS + (8 * first + g) * L::KEY_STRIDE + 16 * t;
        const uint4* q = (const uint4*)(room + L::QUERIES) + tile * (D / 16) * 64 + lane;
#pragma unroll UNROLL
        for (u32 c = 0; c < D / 32; c++, q += 128) {
            const uint4 q0 = q[0], q1 = q[32], q2 = q[64], q3 = q[96];
#pragma unroll
            for (u32 n = 0; n < N; n++) {
                const uint4 k = *(const uint4*)(keys + n * 8 * STEP * L::KEY_STRIDE + 64 * c);
                mma16<BF16>(high[n], q0, k.x, k.y);
                mma16<BF16>(low[n], q1, k.x, k.y);
                mma16<BF16>(high[n], q2, k.z, k.w);
                mma16<BF16>(low[n], q3, k.z, k.w);
            }
        }
    }

    // Scores of the page's 64 positions. Where tiles are several, half of their warps have 16 positions each: queries are read
    // from shared memory by every warp of a tile, which then takes most of the time.
    __device__ __forceinline__ void score(u32 stage, u32 n_tiles) const {
        constexpr u32 SPAN = MT > 1 ? 2 : 1;
        const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane / 4, t = lane % 4, m = warp / 8, eighth = warp % 8;
        if (m >= n_tiles || eighth >= 8 / SPAN) return;
        float high[SPAN][4], low[SPAN][4];
        score_eights<SPAN, 1, 4>(stage, m, SPAN * eighth, high, low);
#pragma unroll
        for (u32 n = 0; n < SPAN; n++) {
            float* scores = (float*)(room + L::SCORES) + 8 * (SPAN * eighth + n) + 2 * t;
            *(float2*)(scores + (16 * m + g) * L::SCORE_STRIDE) = make_float2(high[n][0] + low[n][0], high[n][1] + low[n][1]);
            *(float2*)(scores + (16 * m + g + 8) * L::SCORE_STRIDE) = make_float2(high[n][2] + low[n][2], high[n][3] + low[n][3]);
        }
    }

    // The page into each pair's running softmax, powers of two; a warp takes two pairs. `end` takes each pair of a chunk that ends.
    template <typename End>
    __device__ __forceinline__ void weigh(u32 page, bool ends_chunk, End end) const {
        const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
        const float scale = p.scale * 1.4426950408889634f;
#pragma unroll 2
        for (u32 m = warp; m < M; m += N_WARPS) {
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
            // What all lanes have read of the pair gives way.
            __syncwarp();
            if (lane == 0) {
                const float shrink = power(old - zero);
                pair.max = now;
                pair.shrink = shrink;
                pair.total = __fmaf_rn(pair.total, shrink, sum);
                if (ends_chunk) {
                    end(pair);
                    pair.max = -INFINITY_F;
                    pair.total = 0.0f;
                }
            }
        }
    }

    // Weighted values.
    __device__ __forceinline__ void add_values(u32 stage, u32 n_tiles) {
        const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane / 4, m = warp / 8, eighth = warp % 8;
        if (m >= n_tiles) return;
        const float a = pairs()[16 * m + g].shrink, b = pairs()[16 * m + g + 8].shrink;
#pragma unroll
        for (u32 n = 0; n < NT; n++) acc[n][0] *= a, acc[n][1] *= a, acc[n][2] *= b, acc[n][3] *= b;
        const u32 values = (u32)__cvta_generic_to_shared(room + stage * L::STAGE + L::VALUES) + (lane % 16) * L::VALUE_STRIDE +
                           (eighth * (D / 8) + lane / 16 * 8) * 2;
        const u32 weights = (u32)__cvta_generic_to_shared(room + L::WEIGHTS) + (16 * m + lane % 16) * L::WEIGHT_STRIDE + lane / 16 * 16;
#pragma unroll
        for (u32 step = 0; step < PAGE / 16; step++) {
            u32 v[NT][2];
            if constexpr (NT == 1) {
                load_transposed(v[0], values + step * 16 * L::VALUE_STRIDE);
            } else {
#pragma unroll
                for (u32 n = 0; n < NT; n += 2) load_transposed(v[n], v[n + 1], values + step * 16 * L::VALUE_STRIDE + n * 16);
            }
            const uint4 high = load_matrices(weights + step * 32);
            const uint4 low = load_matrices(weights + M * L::WEIGHT_STRIDE + step * 32);
#pragma unroll
            for (u32 n = 0; n < NT; n++) {
                mma16<BF16>(acc[n], high, v[n][0], v[n][1]);
                mma16<BF16>(acc[n], low, v[n][0], v[n][1]);
            }
        }
    }

    __device__ __forceinline__ float4 gate_at(u32 row, u32 head, u32 channel) const {
        if (!p.gated) return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        return *(const float4*)(p.q + ((u64)row * p.heads + head) * p.q_stride + D + channel);
    }
    // Four channels of a row's result.
    __device__ __forceinline__ void put(u32 row, u32 head, u32 channel, float4 sum, float scale, float4 gate) const {
        const u64 at = (u64)row * p.heads + head;
        float x[4] = {sum.x * scale, sum.y * scale, sum.z * scale, sum.w * scale};
        if (p.gated) x[0] *= sigmoid(gate.x), x[1] *= sigmoid(gate.y), x[2] *= sigmoid(gate.z), x[3] *= sigmoid(gate.w);
        *(float4*)(p.out + at * D + channel) = make_float4(x[0], x[1], x[2], x[3]);
        // Of heads of 64 a warp has two side by side.
        if (p.image) image_store(p.image, p.shape, row, (head * D + channel) / 128, x);
    }
};
