// Rows of a recurrent layer as the block of a value head sees them: their inputs, what they keep in shared memory, and how
// much each earlier row counts for them.
#pragma once
#include "image.cuh"
#include "keep.cuh"
#include "recurrent_state.cuh"

// What a launch does: the op before the rule, the rule, the gated norm behind it.
#define PREPARES 1u
#define RULES 2u
#define NORMS 4u

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
};

struct Room {
    float window_keys[WINDOW_ROWS][STRIDE];
    float window_deltas[WINDOW_ROWS][DIM];
    float vectors[TILE][2][STRIDE];  // q and k; then, in place of the first, the norm's gate
    // S^T q and S^T k; then o and v less all that is known; then, in place of the second, delta.
    float sums[TILE][2][DIM];
    float taps[3][4][DIM];      // of the convolution, for q, k and v, the oldest first
    float2 terms[TILE][REACH];  // for k and q, of rows before the tile, from the grid on
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
template <bool FULL>
struct Head {
    const Recurrent& p;
    Room& room;
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
            *(float4*)(x + at) = v;
        } else {
            if (at < n) x[at] = v.x;
            if (at + 1 < n) x[at + 1] = v.y;
            if (at + 2 < n) x[at + 2] = v.z;
            if (at + 3 < n) x[at + 3] = v.w;
        }
    }
};

// Begins to copy a lane's four numbers into shared memory.
template <bool FULL>
__device__ __forceinline__ void copy_async(const Head<FULL>& head, float* to, const float* from, u32 n) {
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
    Room& room = head.room;
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

// Convolution along the row's path, SiLU, q and k to length one, and the gates.
template <bool FULL>
__device__ __forceinline__ void convolve_row(const Head<FULL>& head, u32 t) {
    const Recurrent& p = head.p;
    Room& room = head.room;
    const u32 at = 4 * (threadIdx.x & 31), r = room.row[t], pos = room.pos[t], n = pos - grid_of(pos);
    const float* inputs[4] = {p.qkv + (u64)r * head.width(), nullptr, nullptr, nullptr};
#pragma unroll
    for (u32 back = 1; back < 4; back++) {
        if (pos < back) continue;
        const u32 past = room.pasts[t][n - back];
        inputs[back] = past & KEPT ? head.kept_row(pos - back) : p.qkv + (u64)past_row(past) * head.width();
    }
    const float a = p.a[(u64)r * p.value_heads + head.h], b = p.b[(u64)r * p.value_heads + head.h];
    const float4 none = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float4 x[3][4];
#pragma unroll
    for (u32 part = 0; part < 3; part++) {
        const u32 first = part == 0 ? head.q_at() : part == 1 ? head.k_at() : head.v_at();
#pragma unroll
        for (u32 back = 0; back < 4; back++)
            x[part][back] = inputs[back] ? head.load(inputs[back] + first, part < 2 ? head.key_dim() : head.value_dim()) : none;
    }
    float4 y[3];
#pragma unroll
    for (u32 part = 0; part < 3; part++) {
        float4 sum = none;
#pragma unroll
        for (int back = 3; back >= 0; back--) {
            if (!inputs[back]) continue;
            const float4 tap = *(const float4*)&room.taps[part][3 - back][at], v = x[part][back];
            sum.x = __fmaf_rn(tap.x, v.x, sum.x);
            sum.y = __fmaf_rn(tap.y, v.y, sum.y);
            sum.z = __fmaf_rn(tap.z, v.z, sum.z);
            sum.w = __fmaf_rn(tap.w, v.w, sum.w);
        }
        y[part] = make_float4(sum.x * quick_sigmoid(sum.x), sum.y * quick_sigmoid(sum.y), sum.z * quick_sigmoid(sum.z),
                              sum.w * quick_sigmoid(sum.w));
    }
    const float4 q = scaled(y[0], rsqrtf((float)head.key_dim()) * rsqrtf(length_squared(y[0]) + 1e-6f));
    const float4 k = scaled(y[1], rsqrtf(length_squared(y[1]) + 1e-6f));
    const float with_bias = a + p.dt_bias[head.h];
    const float g = p.decay[head.h] * (with_bias > 20.0f ? with_bias : log1pf(quick_exp(with_bias))), beta = quick_sigmoid(b);
    float* row = p.prepared + (u64)r * head.width();
    if (head.is_owner) {
        head.store(row + head.q_at(), head.key_dim(), q);
        head.store(row + head.k_at(), head.key_dim(), k);
    }
    head.store(row + head.v_at(), head.value_dim(), y[2]);
    *(float4*)&room.vectors[t][0][at] = q;
    *(float4*)&room.vectors[t][1][at] = k;
    if (at == 0) {
        float* gates = p.gates + (u64)r * 2 * p.value_heads + head.h;
        gates[0] = g;
        gates[p.value_heads] = beta;
        room.g[t] = g;
        room.beta[t] = beta;
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
    *(float4*)&room.vectors[t][1][at] = head.load(row + head.k_at(), head.key_dim());
    if (at == 0) {
        const float* gates = p.gates + (u64)r * 2 * p.value_heads + head.h;
        room.g[t] = gates[0];
        room.beta[t] = gates[p.value_heads];
    }
}

// Earlier rows of an item, all loaded before the first is used.
#define BATCH 8u

// How much BATCH of the rows before row t count for it: e^{decay} (k_j . k) and e^{decay} (k_j . q).
template <bool FULL>
__device__ __forceinline__ void weigh(const Head<FULL>& head, u32 t, u32 batch) {
    const Recurrent& p = head.p;
    Room& room = head.room;
    const u32 lane = threadIdx.x & 31, pos = room.pos[t], n = pos - grid_of(pos), first = batch * BATCH;
    if (first > n) return;
    // A lane for each earlier row: its g and its key.
    const u32 mine = room.pasts[t][lane], other = past_local(mine) - head.local;
    const float *g_at = &room.g[t], *key_at = room.vectors[t][1];
    if (lane < n) {
        const bool is_kept = mine & KEPT, is_in_tile = other < TILE;
        g_at = is_kept ? &room.window_g[mine & ~KEPT] : is_in_tile ? &room.g[other] : p.gates + (u64)past_row(mine) * 2 * p.value_heads + head.h;
        key_at = is_kept ? room.window_keys[mine & ~KEPT] : is_in_tile ? room.vectors[other][1] : head.key_row(past_row(mine));
    }
    const float4 q = *(const float4*)&room.vectors[t][0][4 * lane], k = *(const float4*)&room.vectors[t][1][4 * lane];
    float4 x[BATCH];
#pragma unroll
    for (u32 i = 0; i < BATCH; i++) x[i] = *(const float4*)((const float*)__shfl_sync(0xffffffffu, (u64)key_at, first + i) + 4 * lane);
    // Decay from just after each past row to this one, summed from the row's end: sums from the grid reach -1500 and their
    // differences would lose the digits that matter.
    float decay = lane <= n ? *g_at : 0.0f;
#pragma unroll
    for (u32 step = 1; step < 32; step *= 2) {
        const float other = __shfl_down_sync(0xffffffffu, decay, step);
        if (lane + step < 32) decay += other;
    }
    const float after = __shfl_down_sync(0xffffffffu, decay, 1);
    const float weight = quick_exp(lane < n ? after : 0.0f);
    if (batch == 0 && lane == 0) room.whole[t] = quick_exp(decay);

    float sums[2 * BATCH];
#pragma unroll
    for (u32 i = 0; i < BATCH; i++) {
        sums[2 * i] = __fmaf_rn(x[i].w, k.w, __fmaf_rn(x[i].z, k.z, __fmaf_rn(x[i].y, k.y, x[i].x * k.x)));
        sums[2 * i + 1] = __fmaf_rn(x[i].w, q.w, __fmaf_rn(x[i].z, q.z, __fmaf_rn(x[i].y, q.y, x[i].x * q.x)));
    }
    // All 16 sums over the warp at once: at each step a lane hands half of its sums over, until it has one.
#pragma unroll
    for (u32 step = 16, half = BATCH; step > 1; step /= 2, half /= 2) {
        const bool is_upper = lane & step;
#pragma unroll
        for (u32 i = 0; i < half; i++) {
            const float theirs = __shfl_xor_sync(0xffffffffu, is_upper ? sums[i] : sums[i + half], step);
            sums[i] = (is_upper ? sums[i + half] : sums[i]) + theirs;
        }
    }
    const float sum = sums[0] + __shfl_xor_sync(0xffffffffu, sums[0], 1);
    // Lane 4i + 2 has row i's product with q, lane 4i that with k.
    const u32 j = first + lane / 4;
    const float term = __shfl_sync(0xffffffffu, weight, j) * sum;
    const u32 theirs = __shfl_sync(0xffffffffu, mine, j), place = past_local(theirs) - head.local;
    if (lane % 2 || j > n) return;
    const bool is_q = lane & 2;
    if (j == n) {
        if (is_q) room.own_q[t][t] = term;
    } else if (!(theirs & KEPT) && place < TILE) {
        if (is_q) room.own_q[t][place] = term;
        else room.own_k[place][t - place - 1] = term;
    } else {
        if (is_q) room.terms[t][j].y = term;
        else room.terms[t][j].x = term;
    }
}
