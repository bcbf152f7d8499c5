// S of one value head in the registers or the shared memory of a block, laid out so that it is an operand of tensor cores for
// the products with queries and keys and their result when it is folded. Numbers of 24 bits go in as two of 11 (tf32), and the
// product of the two small parts is left out: what f32 sums would lose.
//
// A warp has 16 columns from `column` and 8 N channels from `channel`. Lane (g, t) = (lane / 4, lane % 4) has of channels
// 8i + 2t and 8i + 2t + 1 columns 2g and 2g + 1: x and y of number i of the first column, z and w of the second.
#pragma once
#include "step.cuh"

// Channels and columns of a head, at most.
#define DIM 128u
// Vectors in shared memory, so that eight of them, or four rows of keys, meet different banks.
#define STRIDE 136u
#define TILE 16u
#define WARPS 8u

// e^x and 1 / x to 2e-7 for the sizes met here, in two instructions: a kernel of this length lives from short code.
__device__ __forceinline__ float quick_exp(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.4426950408889634f));
    return y;
}
__device__ __forceinline__ float quick_sigmoid(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(1.0f + quick_exp(-x)));
    return y;
}

struct Split {
    u32 high, low;
};
// Tensor cores leave out the last 13 bits, so only the first part is rounded here.
__device__ __forceinline__ Split split(float x) {
    const u32 high = (__float_as_uint(x) + 0x1000) & 0xffffe000;
    return {high, __float_as_uint(x - __uint_as_float(high))};
}
// d += A B: A 16 x 8, B 8 x 8.
__device__ __forceinline__ void mma_tf32(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The part of S that a warp has.
struct Part {
    u32 column, channel;
};

// A lane's numbers of it. In registers all loops over them are unrolled; in shared memory they are short, and code that is
// run once or twice costs what fetching it costs.
template <u32 COUNT>
struct RegisterState {
    static constexpr u32 N = COUNT, UNROLL = COUNT;
    float4 s[COUNT];
    __device__ __forceinline__ float4 get(u32 i) const { return s[i]; }
    __device__ __forceinline__ void set(u32 i, float4 x) { s[i] = x; }
};
template <u32 COUNT, u32 AT_ONCE = 1>
struct SharedState {
    static constexpr u32 N = COUNT, UNROLL = AT_ONCE;
    float4* s;  // the lane's first; a warp's lie side by side
    __device__ __forceinline__ float4 get(u32 i) const { return s[32 * i]; }
    __device__ __forceinline__ void set(u32 i, float4 x) { s[32 * i] = x; }
};

// The state of a head in memory: as lanes hold it where it has DIM channels and columns, so that a copy of it is one piece;
// otherwise [key_dim, value_dim].
__device__ __forceinline__ u32 held_at(Part part) { return (part.column / 16 * (DIM / 8) + part.channel / 8) * 32 + (threadIdx.x & 31); }
template <typename State>
__device__ __forceinline__ void load_state(State& state, Part part, const float* from, u32 key_dim, u32 value_dim) {
    const u32 lane = threadIdx.x & 31, column = part.column + lane / 4 * 2, t = lane % 4;
    const bool is_whole = key_dim == DIM && value_dim == DIM;
#pragma unroll
    for (u32 i = 0; i < State::N; i++) {
        if (is_whole) {
            state.set(i, ((const float4*)from)[held_at(part) + 32 * i]);
            continue;
        }
        float2 x[2];
#pragma unroll
        for (u32 n = 0; n < 2; n++) {
            const u32 channel = part.channel + i * 8 + 2 * t + n;
            x[n] = make_float2(0.0f, 0.0f);
            if (channel < key_dim && column < value_dim) x[n] = *(const float2*)(from + channel * value_dim + column);
        }
        state.set(i, make_float4(x[0].x, x[1].x, x[0].y, x[1].y));
    }
}
// Begins to copy a head's of DIM channels and columns; a lane waits for its own numbers only.
template <u32 COUNT, u32 AT_ONCE>
__device__ __forceinline__ void copy_state(const SharedState<COUNT, AT_ONCE>& state, Part part, const float* from) {
#pragma unroll
    for (u32 i = 0; i < COUNT; i++)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((u32)__cvta_generic_to_shared(state.s + 32 * i)),
                     "l"((const float4*)from + held_at(part) + 32 * i)
                     : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <typename State>
__device__ __forceinline__ void store_state(const State& state, Part part, float* to, u32 key_dim, u32 value_dim) {
    const u32 lane = threadIdx.x & 31, column = part.column + lane / 4 * 2, t = lane % 4;
    const bool is_whole = key_dim == DIM && value_dim == DIM;
#pragma unroll
    for (u32 i = 0; i < State::N; i++) {
        const float4 x = state.get(i);
        if (is_whole) {
            ((float4*)to)[held_at(part) + 32 * i] = x;
            continue;
        }
        const float2 pair[2] = {make_float2(x.x, x.z), make_float2(x.y, x.w)};
#pragma unroll
        for (u32 n = 0; n < 2; n++) {
            const u32 channel = part.channel + i * 8 + 2 * t + n;
            if (channel < key_dim && column < value_dim) *(float2*)(to + channel * value_dim + column) = pair[n];
        }
    }
}

// (S^T q, S^T k) over the warp's channels, for the rows of the tile that `wanted` has a bit for. Four rows, query and key of
// each, are the eight columns of B; no row meets another's numbers. Sums of 32 channels, then of two such, then of two of
// those: whoever shares out channels adds up what this adds up. `vector_at(row)`: the lane's vector of the four rows from
// `row` on, a query where lane / 4 is even. `sum_at(row, is_key)`: where the sums of the warp's columns go. GROUPS of four
// rows at a time: all 16 unrolled were slower to fetch than to run. ALL: of 16 rows, whatever is wanted, and vectors are
// read a step before they are met: of a quarter of S, which leaves the registers.
template <u32 GROUPS, bool ALL = false, typename State, typename VectorAt, typename SumAt>
__device__ __forceinline__ void state_products(const State& s, u32 channel, u32 wanted, VectorAt vector_at, SumAt sum_at) {
    const u32 lane = threadIdx.x & 31, g = lane / 4, t = lane % 4;
#pragma unroll 1
    for (u32 first = 0; ALL ? first < TILE : wanted >> first; first += 4 * GROUPS) {
        if (!ALL && !(wanted >> first & ((1u << 4 * GROUPS) - 1))) continue;
        const bool has_second = ALL || wanted >> first >> 4;
        float sum[GROUPS][4], half[GROUPS][4];
        const float* from[GROUPS];
#pragma unroll
        for (u32 n = 0; n < GROUPS; n++) from[n] = vector_at(first + 4 * n) + channel + 2 * t;
        float2 ahead[GROUPS];
        if constexpr (ALL)
#pragma unroll
            for (u32 n = 0; n < GROUPS; n++) ahead[n] = *(const float2*)from[n];
#pragma unroll
        for (u32 quarter = 0; quarter < State::N / 4; quarter++) {
            float high[GROUPS][4], left[GROUPS][4], right[GROUPS][4];
#pragma unroll
            for (u32 n = 0; n < GROUPS; n++)
#pragma unroll
                for (u32 i = 0; i < 4; i++) high[n][i] = left[n][i] = right[n][i] = 0.0f;
#pragma unroll(State::UNROLL < 4 ? State::UNROLL : 4)
            for (u32 i = 4 * quarter; i < 4 * quarter + 4; i++) {
                const float4 x = s.get(i);
                const Split s0 = split(x.x), s1 = split(x.y), s2 = split(x.z), s3 = split(x.w);
                const u32 whole[4] = {s0.high, s2.high, s1.high, s3.high}, rest[4] = {s0.low, s2.low, s1.low, s3.low};
#pragma unroll
                for (u32 n = 0; n < GROUPS; n++) {
                    if (n > 0 && !has_second) continue;
                    float2 v;
                    if constexpr (ALL) {
                        v = ahead[n];
                        if (i + 1 < State::N) ahead[n] = *(const float2*)(from[n] + 8 * (i + 1));
                    } else {
                        v = *(const float2*)(from[n] + 8 * i);
                    }
                    const Split x0 = split(v.x), x1 = split(v.y);
                    mma_tf32(high[n], whole, x0.high, x1.high);
                    mma_tf32(left[n], rest, x0.high, x1.high);
                    mma_tf32(right[n], whole, x0.low, x1.low);
                }
            }
#pragma unroll
            for (u32 n = 0; n < GROUPS; n++)
#pragma unroll
                for (u32 i = 0; i < 4; i++) {
                    const float part = high[n][i] + (left[n][i] + right[n][i]);
                    half[n][i] = quarter % 2 ? half[n][i] + part : part;
                    if (quarter < 2) sum[n][i] = half[n][i];
                    if (quarter == 3) sum[n][i] += half[n][i];
                }
        }
#pragma unroll
        for (u32 n = 0; n < GROUPS; n++) {
            const u32 row = first + 4 * n + t;
            if (!ALL && !(wanted >> row & 1)) continue;
            *(float2*)(sum_at(row, 0) + 2 * g) = make_float2(sum[n][0], sum[n][2]);
            *(float2*)(sum_at(row, 1) + 2 * g) = make_float2(sum[n][1], sum[n][3]);
        }
    }
}

// Products of 16 keys with the queries and keys of four rows, the eight columns of B. The lane has its two keys and its
// vector of B: keys g and g + 8 meet query and key of row t in (products[0], products[1]) and (products[2], products[3]).
__device__ __forceinline__ void key_products(const float* low_key, const float* high_key, const float* vector, float (&products)[4]) {
    const u32 t = threadIdx.x & 3;
    float high[4] = {0.0f, 0.0f, 0.0f, 0.0f}, left[4] = {0.0f, 0.0f, 0.0f, 0.0f}, right[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 4
    for (u32 i = 2 * t; i < DIM; i += 8) {
        const float2 a = *(const float2*)(low_key + i), b = *(const float2*)(high_key + i), x = *(const float2*)(vector + i);
        const Split a0 = split(a.x), a1 = split(a.y), b0 = split(b.x), b1 = split(b.y), x0 = split(x.x), x1 = split(x.y);
        const u32 whole[4] = {a0.high, b0.high, a1.high, b1.high}, rest[4] = {a0.low, b0.low, a1.low, b1.low};
        mma_tf32(high, whole, x0.high, x1.high);
        mma_tf32(left, rest, x0.high, x1.high);
        mma_tf32(right, whole, x0.low, x1.low);
    }
#pragma unroll
    for (u32 i = 0; i < 4; i++) products[i] = high[i] + (left[i] + right[i]);
}

__device__ __forceinline__ void add_scaled(float4& sum, float factor, float4 x) {
    sum.x = __fmaf_rn(factor, x.x, sum.x);
    sum.y = __fmaf_rn(factor, x.y, sum.y);
    sum.z = __fmaf_rn(factor, x.z, sum.z);
    sum.w = __fmaf_rn(factor, x.w, sum.w);
}

// One of the 16 rows of a fold.
struct Folded {
    const float *key, *delta;
};
__device__ __forceinline__ float channel_of(const float* key, u32 channel, u32) { return key[channel]; }
__device__ __forceinline__ Split split(Split x) { return x; }

// The lane's number and all behind it, of N lanes.
template <u32 N>
__device__ __forceinline__ float sum_from_end(float x) {
    const u32 lane = threadIdx.x % N;
#pragma unroll
    for (u32 step = 1; step < N; step *= 2) {
        const float further = __shfl_down_sync(0xffffffffu, x, step, N);
        if (lane + step < N) x += further;
    }
    return x;
}

// What is left of each of 16 rows at their end, by row in `each`, and of what was before them.
struct FoldWeights {
    float each, all;
};
template <typename GAt>
__device__ __forceinline__ FoldWeights fold_weights(GAt g_at) {
    const u32 lane = threadIdx.x & 31;
    const float decay = sum_from_end<GRID>(g_at(lane % GRID));
    const float after = __shfl_down_sync(0xffffffffu, decay, 1, GRID);
    return {quick_exp(lane % GRID + 1 < GRID ? after : 0.0f), quick_exp(__shfl_sync(0xffffffffu, decay, 0))};
}

// to = e^{sum of g} s + sum_j e^{decay from j to the end} k_j delta_j^T. `row_at` finds row j's key and delta, `weight_at` what is left
// of it; `all`: of s. Keys are floats in a row or, to whom has them so, already split (`channel_of`).
template <typename State, typename RowAt, typename WeightAt>
__device__ __forceinline__ void fold_weighed(State& to, const State& s, Part part, u32 key_dim, u32 value_dim, RowAt row_at, WeightAt weight_at, float all) {
    const u32 lane = threadIdx.x & 31, g = lane / 4, t = lane % 4, column = part.column + 2 * g;
    Split deltas[2][4];
    decltype(row_at(0).key) keys[2][2];
#pragma unroll
    for (u32 half = 0; half < 2; half++)
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            const u32 j = 8 * half + 4 * i + t;
            const auto row = row_at(j);
            float2 delta = make_float2(0.0f, 0.0f);
            if (column < value_dim) delta = *(const float2*)(row.delta + column);
            const float w = weight_at(j);
            deltas[half][2 * i] = split(w * delta.x);
            deltas[half][2 * i + 1] = split(w * delta.y);
            keys[half][i] = row.key;
        }
    // Keys are read one round ahead.
    using Key = decltype(channel_of(keys[0][0], 0, 0));
    const auto key_at = [&](u32 i, u32 n) {
        const u32 channel = part.channel + 8 * i + g;
        return channel < key_dim ? channel_of(keys[n / 2][n % 2], channel, i) : Key{};
    };
    Key next[4] = {key_at(0, 0), key_at(0, 1), key_at(0, 2), key_at(0, 3)};
#pragma unroll(State::UNROLL)
    for (u32 i = 0; i < State::N; i++) {
        const Key now[4] = {next[0], next[1], next[2], next[3]};
        const float4 x = s.get(i);
        if (i + 1 < State::N)
#pragma unroll
            for (u32 n = 0; n < 4; n++) next[n] = key_at(i + 1, n);
        float high[4] = {0.0f, 0.0f, 0.0f, 0.0f}, left[4] = {0.0f, 0.0f, 0.0f, 0.0f}, right[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const Split(&d)[4] = deltas[half];
            const u32 whole[4] = {d[0].high, d[1].high, d[2].high, d[3].high}, rest[4] = {d[0].low, d[1].low, d[2].low, d[3].low};
            const Split k0 = split(now[2 * half]), k1 = split(now[2 * half + 1]);
            mma_tf32(high, whole, k0.high, k1.high);
            mma_tf32(left, rest, k0.high, k1.high);
            mma_tf32(right, whole, k0.low, k1.low);
        }
        float sum[4];
#pragma unroll
        for (u32 n = 0; n < 4; n++) sum[n] = high[n] + (left[n] + right[n]);
        to.set(i, make_float4(__fmaf_rn(all, x.x, sum[0]), __fmaf_rn(all, x.y, sum[1]), __fmaf_rn(all, x.z, sum[2]), __fmaf_rn(all, x.w, sum[3])));
    }
}

// The same with each row's g, by `g_at`.
template <typename State, typename RowAt, typename GAt>
__device__ __forceinline__ void fold(State& to, const State& s, Part part, u32 key_dim, u32 value_dim, RowAt row_at, GAt g_at) {
    const FoldWeights weights = fold_weights(g_at);
    const auto weight_at = [&](u32 j) { return __shfl_sync(0xffffffffu, weights.each, j); };
    fold_weighed(to, s, part, key_dim, value_dim, row_at, weight_at, weights.all);
}
