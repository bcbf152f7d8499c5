// Rows of a recurrent layer as the block of a value head sees them: their inputs, what they keep in shared memory, and how
// much each earlier row counts for them.
#pragma once
#include "image.cuh"
#include "recurrent_state.cuh"

// What a launch does: the op before the rule, the rule, the gated norm behind it.
#define PREPARES 1u
#define RULES 2u
#define NORMS 4u

// What a prompt's rows count for each other, by row and value head.
struct Walked {
    float2* before;  // [REACH]: rows before the tile, from the grid on, for q and k
    float* own_q;    // [TILE]: rows of the tile at this or earlier places, for q
    float* own_k;    // [TILE]: for k of the row at each later place of the tile
    float* whole;    // the decay from the grid
};

struct Recurrent {
    Step step;
    const float *qkv, *b, *a, *conv, *decay, *dt_bias;  // of the op before
    const float *gate, *weight;                         // of the norm
    float *prepared, *gates, *delta, *out, *normed;
    float* keys;  // [row, value head, DIM]: every head's own copy, which nobody else has to have written
    float *state, *window, *kept;
    u32* done;  // [sequence, key head], zero between launches
    u8* image;  // of `normed` for the linear kernels, where they want one and a head is one of its blocks
    float eps;
    u32 key_heads, value_heads, key_dim, value_dim, tiled, mode;
    ImageShape shape;
    // Whether prompts (recurrent_walk.cu; or ALL_WALK) and lone rows have launches of their own.
    u32 walks, has_lone;
    Walked walked;
};

// a / b for numbers below 2^20, in six instructions: half is more than what rounding may take.
__device__ __forceinline__ u32 small_quotient(u32 a, u32 b) { return (u32)__fdividef((float)a + 0.5f, (float)b); }

// Sequences that are nothing but a prompt's rows.
__device__ __forceinline__ bool is_walked(const Recurrent& p, const Seq& seq) {
    return p.walks == ALL_WALK || (p.walks && seq.n_sure == seq.n_rows && seq.n_sure >= PROMPT_ROWS);
}

// Sequences of one row, which have a launch of their own (recurrent_lone.cu) where it does all that is done here.
__device__ __forceinline__ bool is_lone(const Recurrent& p, const Seq& seq) { return p.has_lone && seq.n_rows == 1; }

// Keys that all rows of a tile may meet: the window's places, then the tile's own, then those of the 32 rows before it.
#define OLDER_KEYS (WINDOW_ROWS + TILE)
#define NEAR_KEYS (OLDER_KEYS + REACH)
// A row of their products, so that four of them meet different banks.
#define NEAR_STRIDE (NEAR_KEYS + 4)

struct Room {
    float window_keys[WINDOW_ROWS][STRIDE];
    float window_deltas[WINDOW_ROWS][DIM];
    float vectors[TILE][2][STRIDE];  // q and k; then, in place of the first, the norm's gate
    union {
        // Products of the near keys with a row's q and k.
        float2 products[TILE][NEAR_STRIDE];
        // Then S^T q and S^T k; then o and v less all that is known; then, in place of the second, delta.
        float sums[TILE][2][DIM];
    };
    float taps[3][4][DIM];      // of the convolution, for q, k and v, the oldest first
    float2 terms[TILE][REACH];  // for q and k, of rows before the tile, from the grid on
    float own_k[TILE][TILE];    // [earlier row of the tile, row - earlier row - 1]
    float own_q[TILE][TILE];    // [row, earlier row or itself]
    u32 pasts[TILE][REACH];
    float window_g[WINDOW_ROWS];
    float g[TILE], beta[TILE], whole[TILE];
    u32 row[TILE], pos[TILE];
    u32 ancestors[TILE];  // among the tile's rows
    u32 is_last;
};

// A value head of one sequence, and the tile of its rows that is at hand. FULL: its vectors have DIM numbers, and rows of
// all arrays begin at 16 bytes.
template <bool FULL, typename SHARED = Room>
struct Head {
    const Recurrent& p;
    SHARED& room;
    Seq seq;
    u32 h, key_head;
    bool is_owner;  // of what the value heads of a key head share
    u32 local, n_tile;

    __device__ __forceinline__ u32 key_dim() const { return FULL ? DIM : p.key_dim; }
    __device__ __forceinline__ u32 value_dim() const { return FULL ? DIM : p.value_dim; }
    __device__ __forceinline__ u32 keys() const { return p.key_heads * key_dim(); }
    __device__ __forceinline__ u32 deltas() const { return p.value_heads * value_dim(); }
    __device__ __forceinline__ u32 width() const { return 2 * keys() + deltas(); }
    __device__ __forceinline__ u32 window_len() const { return keys() + deltas() + p.value_heads; }
    // Whether what enters the window pushes out rows that other heads of the key head may not have read: of more than one
    // row, and of one where the window is full, as behind a whole path of drafts that was accepted.
    __device__ __forceinline__ bool keeps_late() const {
        return seq.n_sure > 1 || seq.committed - seq.stored_grid >= WINDOW_ROWS;
    }
    // Of this head's q, k and v in a row.
    __device__ __forceinline__ u32 q_at() const { return key_head * key_dim(); }
    __device__ __forceinline__ u32 k_at() const { return keys() + q_at(); }
    __device__ __forceinline__ u32 v_at() const { return 2 * keys() + h * value_dim(); }
    __device__ __forceinline__ float* window_row(u32 pos) const {
        return p.window + ((u64)seq.slot * WINDOW_ROWS + pos % WINDOW_ROWS) * window_len();
    }
    __device__ __forceinline__ float* kept_row(u32 pos) const {
        return p.kept + ((u64)seq.slot * CONV_ROWS + pos % CONV_ROWS) * width();
    }
    __device__ __forceinline__ float* delta_row(u32 row) const { return p.delta + (u64)row * deltas() + h * value_dim(); }
    __device__ __forceinline__ float* key_row(u32 row) const { return p.keys + ((u64)row * p.value_heads + h) * DIM; }

    // A lane's four numbers of a vector of n in memory; zeros past its end.
    __device__ __forceinline__ float4 load(const float* x, u32 n) const {
        const u32 at = 4 * (threadIdx.x & 31);
        if (FULL) return *(const float4*)(x + at);
        return make_float4(at < n ? x[at] : 0.0f, at + 1 < n ? x[at + 1] : 0.0f, at + 2 < n ? x[at + 2] : 0.0f,
                           at + 3 < n ? x[at + 3] : 0.0f);
    }
    __device__ __forceinline__ void store(float* x, u32 n, float4 v) const {
        const u32 at = 4 * (threadIdx.x & 31);
        if (FULL) {
            asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(x + at), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
        } else {
            if (at < n) x[at] = v.x;
            if (at + 1 < n) x[at + 1] = v.y;
            if (at + 2 < n) x[at + 2] = v.z;
            if (at + 3 < n) x[at + 3] = v.w;
        }
    }
};

// Begins to copy a lane's four numbers into shared memory.
template <bool FULL, typename SHARED>
__device__ __forceinline__ void copy_async(const Head<FULL, SHARED>& head, float* to, const float* from, u32 n) {
    const u32 at = 4 * (threadIdx.x & 31);
    if (FULL) {
        const u32 place = (u32)__cvta_generic_to_shared(to + at);
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(place), "l"(from + at) : "memory");
    } else {
        *(float4*)(to + at) = head.load(from, n);
    }
}
__device__ __forceinline__ void copies_done() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// The kept rows from the stored grid on, and the taps, into shared memory. They are of earlier steps.
template <bool FULL>
__device__ __forceinline__ void stage(const Head<FULL>& head) {
    const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const Recurrent& p = head.p;
    auto& room = head.room;
    if (p.mode & RULES)
        for (u32 pos = head.seq.stored_grid + warp; pos < head.seq.committed; pos += WARPS) {
            const u32 place = pos % WINDOW_ROWS;
            const float* row = head.window_row(pos);
            copy_async(head, room.window_keys[place], row + head.q_at(), head.key_dim());
            copy_async(head, room.window_deltas[place], row + head.keys() + head.h * head.value_dim(), head.value_dim());
        }
    if (p.mode & RULES)
        for (u32 pos = head.seq.stored_grid + threadIdx.x; pos < head.seq.committed; pos += 32 * WARPS)
            room.window_g[pos % WINDOW_ROWS] = head.window_row(pos)[head.keys() + head.deltas() + head.h];
    if (p.mode & PREPARES)
        for (u32 item = warp; item < 3 * DIM / 32; item += WARPS) {
            const u32 part = item / (DIM / 32), channel = item % (DIM / 32) * 32 + lane;
            const u32 first = part == 0 ? head.q_at() : part == 1 ? head.k_at() : head.v_at();
            float4 taps = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (channel < (part < 2 ? head.key_dim() : head.value_dim())) taps = ((const float4*)p.conv)[first + channel];
            room.taps[part][0][channel] = taps.x;
            room.taps[part][1][channel] = taps.y;
            room.taps[part][2][channel] = taps.z;
            room.taps[part][3][channel] = taps.w;
        }
}

// Which rows the tile has and what each of them sees. A warp takes two of them, here and wherever a row is one warp's.
template <bool FULL>
__device__ __forceinline__ void find_rows(const Head<FULL>& head) {
    const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const Step& step = head.p.step;
    Room& room = head.room;
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        const u32 t = 2 * warp + i;
        if (t >= head.n_tile) continue;
        const u32 r = step.seq_rows[head.seq.first + head.local + t];
        const u32 pos = step.rows[r].pos, n = pos - grid_of(pos), past = step.pasts[r * REACH + lane];
        const u32 other = past_local(past) - head.local;
        const bool is_in_tile = lane < n && !(past & KEPT) && other < TILE;
        const u32 ancestors = __reduce_or_sync(0xffffffffu, is_in_tile ? 1u << other : 0);
        room.pasts[t][lane] = past;
        if (lane == 0) {
            room.row[t] = r;
            room.pos[t] = pos;
            room.ancestors[t] = ancestors;
        }
    }
}

__device__ __forceinline__ float length_squared(float4 x) {
    return warp_sum(__fmaf_rn(x.w, x.w, __fmaf_rn(x.z, x.z, __fmaf_rn(x.y, x.y, x.x * x.x))));
}
__device__ __forceinline__ float4 scaled(float4 x, float by) { return make_float4(x.x * by, x.y * by, x.z * by, x.w * by); }

// One of q, k and v of a row of the tile.
struct Item {
    u32 t, part;
};

// The lane's four channels before the convolution, at the row and up to three positions back as it sees them.
template <bool FULL>
__device__ __forceinline__ void load_inputs(const Head<FULL>& head, Item item, float4 (&x)[4]) {
    const Recurrent& p = head.p;
    const Room& room = head.room;
    const u32 pos = room.pos[item.t], n = pos - grid_of(pos);
    const u32 first = item.part == 0 ? head.q_at() : item.part == 1 ? head.k_at() : head.v_at();
    const u32 width = item.part < 2 ? head.key_dim() : head.value_dim();
    x[0] = head.load(p.qkv + (u64)room.row[item.t] * head.width() + first, width);
#pragma unroll
    for (u32 back = 1; back < 4; back++) {
        x[back] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (pos < back) continue;
        const u32 past = room.pasts[item.t][n - back];
        const float* from = past & KEPT ? head.kept_row(pos - back) : p.qkv + (u64)past_row(past) * head.width();
        x[back] = head.load(from + first, width);
    }
}

// Of a lane's four channels, each with its four taps; inputs are at the row and up to three positions back.
__device__ __forceinline__ float4 convolved(const float4 (&taps)[4], const float4 (&x)[4]) {
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int back = 3; back >= 0; back--) {
        const auto tap = [&](u32 i) { return back == 3 ? taps[i].x : back == 2 ? taps[i].y : back == 1 ? taps[i].z : taps[i].w; };
        sum.x = __fmaf_rn(tap(0), x[back].x, sum.x);
        sum.y = __fmaf_rn(tap(1), x[back].y, sum.y);
        sum.z = __fmaf_rn(tap(2), x[back].z, sum.z);
        sum.w = __fmaf_rn(tap(3), x[back].w, sum.w);
    }
    return sum;
}

// What the convolution gave: SiLU, and q and k to length one.
__device__ __forceinline__ float4 quick_silu(float4 x) {
    return make_float4(x.x * quick_sigmoid(x.x), x.y * quick_sigmoid(x.y), x.z * quick_sigmoid(x.z), x.w * quick_sigmoid(x.w));
}
__device__ __forceinline__ float4 to_length_one(u32 part, u32 key_dim, float4 y) {
    return scaled(y, (part == 0 ? rsqrtf((float)key_dim) : 1.0f) * rsqrtf(length_squared(y) + 1e-6f));
}
template <bool FULL>
__device__ __forceinline__ void activate(const Head<FULL>& head, Item item, float4 sum) {
    Room& room = head.room;
    const u32 at = 4 * (threadIdx.x & 31), r = room.row[item.t];
    float4 y = quick_silu(sum);
    float* row = head.p.prepared + (u64)r * head.width();
    if (item.part == 2) return head.store(row + head.v_at(), head.value_dim(), y);
    y = to_length_one(item.part, head.key_dim(), y);
    *(float4*)&room.vectors[item.t][item.part][at] = y;
    if (head.is_owner) head.store(row + item.part * head.keys() + head.q_at(), head.key_dim(), y);
    // Later tiles read keys back; drafts of one sure row that fit into a tile have none.
    if (item.part == 1 && (head.seq.n_rows > TILE || head.seq.n_sure > 1)) *(float4*)(head.key_row(r) + at) = y;
}

// Convolution along the row's path.
template <bool FULL>
__device__ __forceinline__ void convolve(const Head<FULL>& head, Item item, const float4 (&x)[4]) {
    const u32 at = 4 * (threadIdx.x & 31);
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int back = 3; back >= 0; back--) {
        const float4 tap = *(const float4*)&head.room.taps[item.part][3 - back][at];
        sum.x = __fmaf_rn(tap.x, x[back].x, sum.x);
        sum.y = __fmaf_rn(tap.y, x[back].y, sum.y);
        sum.z = __fmaf_rn(tap.z, x[back].z, sum.z);
        sum.w = __fmaf_rn(tap.w, x[back].w, sum.w);
    }
    activate(head, item, sum);
}

// Decay and beta of a row, from what is theirs of the op's inputs.
struct Gates {
    float g, beta;
};
__device__ __forceinline__ Gates gates_of(float a, float bias, float b, float decay) {
    a += bias;
    return {decay * (a > 20.0f ? a : log1pf(quick_exp(a))), quick_sigmoid(b)};
}
template <bool FULL, typename SHARED>
__device__ __forceinline__ void store_gates(const Head<FULL, SHARED>& head, u32 r, Gates x) {
    float* gates = head.p.gates + (u64)r * 2 * head.p.value_heads + head.h;
    gates[0] = x.g;
    gates[head.p.value_heads] = x.beta;
}
template <bool FULL>
__device__ __forceinline__ void find_gates(const Head<FULL>& head, u32 t) {
    const Recurrent& p = head.p;
    const u32 r = head.room.row[t];
    const u64 at = (u64)r * p.value_heads + head.h;
    const Gates x = gates_of(p.a[at], p.dt_bias[head.h], p.b[at], p.decay[head.h]);
    store_gates(head, r, x);
    head.room.g[t] = x.g;
    head.room.beta[t] = x.beta;
}

// Inputs of all rows of the tile; those of two items are on their way while one is worked on.
template <bool FULL>
__device__ __forceinline__ void convolve_rows(const Head<FULL>& head) {
    const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, n_items = 3 * head.n_tile;
    const auto item_at = [&](u32 i) { return Item{i / 3, i % 3}; };
    float4 x[4], next[4], later[4];
    if (warp < n_items) load_inputs(head, item_at(warp), x);
    if (warp + WARPS < n_items) load_inputs(head, item_at(warp + WARPS), next);
    // Gates, a lane a row, by the warp with the fewest items.
    if (warp == WARPS - 1 && lane < head.n_tile) find_gates(head, lane);
#pragma unroll 1
    for (u32 i = warp; i < n_items; i += WARPS) {
        if (i + 2 * WARPS < n_items) load_inputs(head, item_at(i + 2 * WARPS), later);
        convolve(head, item_at(i), x);
#pragma unroll
        for (u32 back = 0; back < 4; back++) x[back] = next[back], next[back] = later[back];
    }
}

// The same where another launch has done it.
template <bool FULL>
__device__ __forceinline__ void load_row(const Head<FULL>& head, u32 t) {
    const Recurrent& p = head.p;
    Room& room = head.room;
    const u32 at = 4 * (threadIdx.x & 31), r = room.row[t];
    const float* row = p.prepared + (u64)r * head.width();
    *(float4*)&room.vectors[t][0][at] = head.load(row + head.q_at(), head.key_dim());
    const float4 k = head.load(row + head.k_at(), head.key_dim());
    *(float4*)&room.vectors[t][1][at] = k;
    *(float4*)(head.key_row(r) + at) = k;
    if (at == 0) {
        const float* gates = p.gates + (u64)r * 2 * p.value_heads + head.h;
        room.g[t] = gates[0];
        room.beta[t] = gates[p.value_heads];
    }
}

// Place among the near keys of what a row of the tile sees; NEAR_KEYS and above: not among them.
template <bool FULL>
__device__ __forceinline__ u32 near_place(const Head<FULL>& head, u32 past) {
    if (past & KEPT) return past & ~KEPT;
    const u32 local = past_local(past);
    if (local >= head.local) return WINDOW_ROWS + local - head.local;
    return local + REACH >= head.local ? OLDER_KEYS + local + REACH - head.local : NEAR_KEYS;
}

// Products of the tile's queries and keys with all keys they can meet: near ones at once, those of rows further back, which
// only large trees have, row by row. Which of them share an instruction changes no product.
template <bool FULL>
__device__ __forceinline__ void multiply_keys(const Head<FULL>& head, u32 grid) {
    Room& room = head.room;
    const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane / 4, t = lane % 4;
    const u32 n_near = (head.n_tile + 3) / 4 * (NEAR_KEYS / 16);
    const auto near_key = [&](u32 place) -> const float* {
        if (place < WINDOW_ROWS) return room.window_keys[place];
        if (place < OLDER_KEYS) return room.vectors[place - WINDOW_ROWS][1];
        const u32 local = head.local + place - NEAR_KEYS;
        // Before the first row there is none, and nobody asks for the product.
        return local < head.local ? head.key_row(head.p.step.seq_rows[head.seq.first + local]) : room.vectors[0][1];
    };
#pragma unroll 1
    for (u32 item = warp; item < n_near; item += WARPS) {
        const u32 rows = item / (NEAR_KEYS / 16) * 4, keys = item % (NEAR_KEYS / 16) * 16;
        if (keys >= OLDER_KEYS ? head.local == 0 : keys < WINDOW_ROWS && grid >= head.seq.committed) continue;
        float products[4];
        key_products(near_key(keys + g), near_key(keys + g + 8), room.vectors[rows][0] + g * STRIDE, products);
        room.products[rows + t][keys + g] = make_float2(products[0], products[1]);
        room.products[rows + t][keys + g + 8] = make_float2(products[2], products[3]);
    }
    if (head.local <= REACH) return;
#pragma unroll 1
    for (u32 item = warp; item < head.n_tile * (REACH / 16); item += WARPS) {
        const u32 row = item / 2, pos = room.pos[row], n = pos - grid_of(pos), first = item % 2 * 16 + g;
        const auto is_far = [&](u32 j) { return j < n && near_place(head, room.pasts[row][j]) == NEAR_KEYS; };
        const auto key_of = [&](u32 j) -> const float* {
            return is_far(j) ? head.key_row(past_row(room.pasts[row][j])) : room.vectors[row][1];
        };
        if (!__any_sync(0xffffffffu, is_far(first) || is_far(first + 8))) continue;
        float products[4];
        key_products(key_of(first), key_of(first + 8), room.vectors[row / 4 * 4][0] + g * STRIDE, products);
        if (t != row % 4) continue;
        if (is_far(first)) room.terms[row][first] = make_float2(products[0], products[1]);
        if (is_far(first + 8)) room.terms[row][first + 8] = make_float2(products[2], products[3]);
    }
}

// Of the decays g of a row's past, a lane each, and of the row behind them: what is left from just after each past row to this
// one, and of all. Summed from the row's end: sums from the grid reach -1500 and their differences would lose the digits that
// matter.
struct Weighed {
    float each, whole;
};
__device__ __forceinline__ Weighed weigh_row(float decay) {
    decay = sum_from_end<32>(decay);
    const float each = quick_exp(__shfl_down_sync(0xffffffffu, decay, 1));
    return {each, quick_exp(__shfl_sync(0xffffffffu, decay, 0))};
}

// How much each row before row t counts for it: e^{decay} (k_j . q) and e^{decay} (k_j . k).
template <bool FULL>
__device__ __forceinline__ void weigh(const Head<FULL>& head, u32 t) {
    const Recurrent& p = head.p;
    Room& room = head.room;
    const u32 j = threadIdx.x & 31, pos = room.pos[t], n = pos - grid_of(pos);
    const u32 past = room.pasts[t][j], other = past_local(past) - head.local;
    const bool is_kept = past & KEPT, is_in_tile = !is_kept && other < TILE;
    float decay = 0.0f;
    float2 product = make_float2(0.0f, 0.0f);
    if (j < n) {
        decay = is_kept      ? room.window_g[past & ~KEPT]
                : is_in_tile ? room.g[other]
                             : p.gates[(u64)past_row(past) * 2 * p.value_heads + head.h];
        const u32 place = near_place(head, past);
        product = place < NEAR_KEYS ? room.products[t][place] : room.terms[t][j];
    }
    if (j == n) decay = room.g[t];
    const Weighed weighed = weigh_row(decay);
    const float2 term = make_float2(weighed.each * product.x, weighed.each * product.y);
    if (j == 0) room.whole[t] = weighed.whole;
    if (j == n) room.own_q[t][t] = room.products[t][WINDOW_ROWS + t].x;
    if (j >= n) return;
    if (!is_in_tile) {
        room.terms[t][j] = term;
    } else {
        room.own_q[t][other] = term.x;
        room.own_k[other][t - other - 1] = term.y;
    }
}

// Of the step's sequence `nth`: what the value heads of a key head share enters the window when the last of their blocks is done with what
// it pushes out. `ALIGNED`: a lane copies its four channels at once.
template <u32 N_WARPS, bool ALIGNED, typename HEAD>
__device__ __forceinline__ void keep_shared(const HEAD& head, u32 nth, u32 n_blocks) {
    const Recurrent& p = head.p;
    const u32 n_sure = head.seq.n_sure, at = 4 * (threadIdx.x & 31);
    if (!head.keeps_late()) return;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)
        head.room.is_last = atomicInc(p.done + nth * p.key_heads + head.key_head, n_blocks - 1) == n_blocks - 1;
    __syncthreads();
    if (!head.room.is_last) return;
    __threadfence();
    for (u32 local = (n_sure > WINDOW_ROWS ? n_sure - WINDOW_ROWS : 0) + (threadIdx.x >> 5); local < n_sure; local += N_WARPS) {
        const u64 r = p.step.seq_rows[head.seq.first + local];
        const u32 pos = head.seq.committed + local;
        float *window = head.window_row(pos) + head.q_at(), *kept = head.kept_row(pos);
        const float *key = p.prepared + r * head.width() + head.k_at(), *row = p.qkv + r * head.width();
        // Keys are perhaps another block's, so not from a cache of this one. (Where an address is found decides the order of instructions: here
        // it is the measured one.)
        if constexpr (ALIGNED) {
            *(float4*)(head.window_row(pos) + head.q_at() + at) = __ldcg((const float4*)(key + at));
        } else {
#pragma unroll
            for (u32 i = 0; i < 4; i++)
                if (at + i < head.key_dim()) window[at + i] = __ldcg(key + at + i);
        }
        if (local + CONV_ROWS < n_sure) continue;
        if constexpr (ALIGNED) {
            *(float4*)(kept + head.q_at() + at) = *(const float4*)(row + head.q_at() + at);
            *(float4*)(kept + head.k_at() + at) = *(const float4*)(row + head.k_at() + at);
        } else {
            head.store(kept + head.q_at(), head.key_dim(), head.load(row + head.q_at(), head.key_dim()));
            head.store(kept + head.k_at(), head.key_dim(), head.load(row + head.k_at(), head.key_dim()));
        }
    }
}
