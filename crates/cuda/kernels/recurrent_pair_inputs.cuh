// A tile's queries, keys, values and gates, for both blocks of a pair.
#pragma once
#include "recurrent_pair.cuh"

// What a warp prepares: a row's query and key, or two rows' values of the block's columns. Of 16 rows eight warps have the one, eight the other; of
// 32 every warp both. The last one has the gates too, a lane a row.
template <u32 R>
struct Items {
    static constexpr u32 N = R / TILE;
    static __device__ __forceinline__ bool has_vectors(u32 item) { return R == TILE ? threadIdx.x < 32 * Places<R>::ROWS : item == 0; }
};
template <u32 R>
__device__ __forceinline__ u32 own_row(const Half<R>& head, u32 item) {
    const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    return Items<R>::has_vectors(item) ? head.rank * Places<R>::ROWS + warp : 2 * (warp - (PAIR_WARPS - R / 2)) + lane / 16;
}
template <u32 R>
__device__ __forceinline__ u32 own_channel(const Half<R>& head, u32 item) {
    const u32 lane = threadIdx.x & 31;
    return Items<R>::has_vectors(item) ? head.q_at() + 4 * lane : head.v_at() + head.column() + 4 * (lane % 16);
}
template <u32 R>
__device__ __forceinline__ bool has_gates(const Half<R>& head) { return threadIdx.x >= 32 * (PAIR_WARPS - 1) && (threadIdx.x & 31) < head.n_tile; }

// So that the taps of a lane's four channels, of q, of k or of v, stand 32 or 16 apart.
template <u32 R>
__device__ __forceinline__ void copy_taps(const Half<R>& head) {
    const u32 i = threadIdx.x, part = i / DIM, in_part = i % DIM, n = part < 2 ? 32 : 16;
    if (i >= 2 * DIM + COLUMNS) return;
    const u32 first = part == 0 ? head.q_at() : part == 1 ? head.k_at() : head.v_at() + head.column();
    copy_16(shared_address(&head.room.taps[i]), (const u8*)((const float4*)head.p.conv + first + 4 * (in_part % n) + in_part / n));
}

// Where a lane's four channels come from: at the row, then one, two and three positions back as it sees them; perhaps nowhere.
template <u32 R>
struct Sources {
    const float* from[Items<R>::N][4];
};
template <u32 R>
__device__ __forceinline__ void find_inputs(const Half<R>& head, Sources<R>& in) {
    const Recurrent& p = head.p;
    const PairRoom<R>& room = head.room;
#pragma unroll
    for (u32 item = 0; item < Items<R>::N; item++) {
        const float*(&from)[4] = in.from[item];
        const u32 t = own_row(head, item), channel = own_channel(head, item);
#pragma unroll
        for (u32 back = 0; back < 4; back++) from[back] = nullptr;
        if (t >= head.n_tile) continue;
        const u32 pos = room.pos[t], n = pos - grid_of(pos);
        const auto at = [&](const float* x, u32 row) { return x + (u64)row * head.width() + channel; };
        from[0] = at(p.mode & PREPARES ? p.qkv : p.prepared, room.row[t]);
#pragma unroll
        for (u32 back = 1; back < 4; back++) {
            if (pos < back || !(p.mode & PREPARES)) continue;
            const u32 past = room.pasts[t][n - back];
            from[back] = past & KEPT ? head.kept_row(pos - back) + channel : at(p.qkv, past_row(past));
        }
    }
    // Here, and not when they are needed.
#pragma unroll
    for (u32 i = 0; i < 4 * Items<R>::N; i++) asm volatile("" : "+l"(in.from[i / 4][i % 4]));
}

template <u32 R>
struct Inputs {
    float4 x[Items<R>::N][4], k[4];  // q or v; k
    Gates gates;                     // a and b, or what they give
    float bias, decay;
};
template <u32 R>
__device__ __forceinline__ void load_inputs(const Half<R>& head, const Sources<R>& in, Inputs<R>& y) {
    const Recurrent& p = head.p;
#pragma unroll
    for (u32 item = 0; item < Items<R>::N; item++) {
        const auto load = [&](u32 back, u32 further) {
            const float* from = in.from[item][back];
            return from ? __ldcg((const float4*)(from + further)) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        };
#pragma unroll
        for (u32 back = 0; back < 4; back++) {
            y.x[item][back] = load(back, 0);
            if (Items<R>::has_vectors(item)) y.k[back] = load(back, head.keys());
        }
    }
    if (!has_gates(head)) return;
    const u64 r = head.room.row[threadIdx.x & 31], at = r * p.value_heads + head.h;
    if (p.mode & PREPARES) {
        y.gates = {__ldcg(p.a + at), __ldcg(p.b + at)};
        y.bias = p.dt_bias[head.h], y.decay = p.decay[head.h];
    } else {
        const float* gates = p.gates + r * 2 * p.value_heads + head.h;
        y.gates = {gates[0], gates[p.value_heads]};
    }
}

// A row's query and key, to both blocks.
template <u32 R>
__device__ __forceinline__ void put_vectors(const Half<R>& head, u32 t, float4 q, float4 k) {
    const u32 lane = threadIdx.x & 31, swaps = (t + lane / 2) % 2;
    uint4* to = (uint4*)head.room.vectors[t] + 4 * lane;
    const auto put = [&](u32 i, float2 q, float2 k) {
        const Split q0 = split(q.x), q1 = split(q.y), k0 = split(k.x), k1 = split(k.y);
        const uint4 whole = make_uint4(q0.high, k0.high, q1.high, k1.high), rest = make_uint4(q0.low, k0.low, q1.low, k1.low);
        uint4 *first = to + 2 * i + swaps, *second = to + 2 * i + (1 - swaps);
        head.tell(VECTORS, first, whole);
        head.tell(VECTORS, second, rest);
        *first = whole;
        *second = rest;
    };
    put(0, make_float2(q.x, q.y), make_float2(k.x, k.y));
    put(1, make_float2(q.z, q.w), make_float2(k.z, k.w));
}

// Queries and keys of the block's rows, for both blocks; its columns of all rows' values; gates.
template <u32 R>
struct Prepared {
    float4 x[Items<R>::N], k;  // q or v; k
    Gates gates;
};
template <u32 R>
__device__ __forceinline__ Prepared<R> prepare_rows(const Half<R>& head, const Inputs<R>& in) {
    const Recurrent& p = head.p;
    PairRoom<R>& room = head.room;
    const u32 lane = threadIdx.x & 31;
    Prepared<R> y;
    y.gates = in.gates;
    if (has_gates(head)) {
        if (p.mode & PREPARES) y.gates = gates_of(in.gates.g, in.bias, in.gates.beta, in.decay);
        room.g[Places<R>::OWN + lane] = y.gates.g;
        room.beta[lane] = y.gates.beta;
    }
#pragma unroll
    for (u32 item = 0; item < Items<R>::N; item++) {
        const bool has_vectors = Items<R>::has_vectors(item);
        const u32 t = own_row(head, item);
        const auto convolved_of = [&](const float4(&x)[4], bool is_key) {
            const u32 first = has_vectors ? is_key * DIM + lane : 2 * DIM + lane % 16, step = has_vectors ? 32 : 16;
            const float4 taps[4] = {room.taps[first], room.taps[first + step], room.taps[first + 2 * step], room.taps[first + 3 * step]};
            return quick_silu(convolved(taps, x));
        };
        y.x[item] = in.x[item][0];
        if (has_vectors) {
            y.k = in.k[0];
            if (p.mode & PREPARES) {
                y.x[item] = to_length_one(0, DIM, convolved_of(in.x[item], false));
                y.k = to_length_one(1, DIM, convolved_of(in.k, true));
            }
            if (t < head.n_tile) put_vectors(head, t, y.x[item], y.k);
        } else {
            if (p.mode & PREPARES) y.x[item] = convolved_of(in.x[item], false);
            if (t < head.n_tile) *(float4*)&room.deltas[Places<R>::OWN + t][4 * (lane % 16)] = y.x[item];
        }
    }
    return y;
}
// The same to memory. Gates by both blocks, so that each reads what it wrote.
template <u32 R>
__device__ __forceinline__ void keep_prepared(const Half<R>& head, const Prepared<R>& y) {
    const Recurrent& p = head.p;
    const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    if (p.mode & PREPARES && warp == PAIR_WARPS - 1 && lane < head.n_tile) store_gates(head, head.room.row[lane], y.gates);
#pragma unroll
    for (u32 item = 0; item < Items<R>::N; item++) {
        const bool has_vectors = Items<R>::has_vectors(item);
        const u32 t = own_row(head, item);
        if (t >= head.n_tile || (has_vectors && !head.is_owner)) continue;
        // A sure row's key enters the window, unless other heads may still read what it overwrites.
        if (has_vectors && head.local + t < head.seq.n_sure && !head.keeps_late())
            *(float4*)(head.window_row(head.room.pos[t]) + own_channel(head, item)) = y.k;
        if (!(p.mode & PREPARES)) continue;
        float* row = p.prepared + (u64)head.room.row[t] * head.width() + own_channel(head, item);
        *(float4*)row = y.x[item];
        if (has_vectors) *(float4*)(row + head.keys()) = y.k;
    }
}
// A row's key for later tiles, at hand and in memory, where rows of large trees look for it.
__device__ __forceinline__ void keep_key(const Half<TILE>& head, u32 t) {
    const u32 lane = threadIdx.x & 31, swaps = (t + lane / 2) % 2, place = Places<TILE>::PAST + (head.local + t) % TILE;
    const uint4* from = (const uint4*)head.room.vectors[t] + 4 * lane;
    // Of a zero only the first part has a sign.
    const auto sum = [](u32 high, u32 low) { return copysignf(__uint_as_float(high) + __uint_as_float(low), __uint_as_float(high)); };
    const uint4 whole[2] = {from[swaps], from[2 + swaps]}, rest[2] = {from[1 - swaps], from[3 - swaps]};
    const float4 k = make_float4(sum(whole[0].y, rest[0].y), sum(whole[0].w, rest[0].w), sum(whole[1].y, rest[1].y), sum(whole[1].w, rest[1].w));
    *(float4*)&head.room.keys[place][4 * lane] = k;
    *(float4*)(head.key_row(head.room.row[t]) + 4 * lane) = k;
}
