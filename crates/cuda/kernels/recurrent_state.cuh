// S of one value head in the registers of a block, laid out so that it is an operand of tensor cores for the products with
// queries and keys and their result when it is folded. Numbers of 24 bits go in as two of 11 (tf32), and the product of
// the two small parts is left out: what f32 sums would lose.
//
// Warp w has columns 16w .. 16w + 15. Lane (g, t) = (lane / 4, lane % 4) has of channels 8i + 2t and 8i + 2t + 1 columns
// 16w + 2g and 16w + 2g + 1: s[4i] and s[4i + 1] of the first column, s[4i + 2] and s[4i + 3] of the second.
#pragma once
#include "step.cuh"

// Channels and columns of a head, at most.
#define DIM 128u
// Vectors in shared memory, so that eight of them, or four rows of keys, meet different banks.
#define STRIDE 136u
#define TILE 16u
#define STATE 64u
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

// The state of a head in memory: [key_dim, value_dim].
__device__ __forceinline__ void load_state(float (&s)[STATE], const float* from, u32 key_dim, u32 value_dim) {
    const u32 lane = threadIdx.x & 31, column = (threadIdx.x >> 5) * 16 + lane / 4 * 2, t = lane % 4;
#pragma unroll
    for (u32 n = 0; n < STATE / 2; n++) {
        const u32 channel = n / 2 * 8 + 2 * t + n % 2;
        float2 x = make_float2(0.0f, 0.0f);
        if (channel < key_dim && column < value_dim) x = *(const float2*)(from + channel * value_dim + column);
        s[n / 2 * 4 + n % 2] = x.x;
        s[n / 2 * 4 + n % 2 + 2] = x.y;
    }
}
__device__ __forceinline__ void store_state(const float (&s)[STATE], float* to, u32 key_dim, u32 value_dim) {
    const u32 lane = threadIdx.x & 31, column = (threadIdx.x >> 5) * 16 + lane / 4 * 2, t = lane % 4;
#pragma unroll
    for (u32 n = 0; n < STATE / 2; n++) {
        const u32 channel = n / 2 * 8 + 2 * t + n % 2;
        if (channel < key_dim && column < value_dim)
            *(float2*)(to + channel * value_dim + column) = make_float2(s[n / 2 * 4 + n % 2], s[n / 2 * 4 + n % 2 + 2]);
    }
}

// sums[row] = (S^T q, S^T k) for the rows of the tile that `wanted` has a bit for. Four rows, query and key of each, are
// the eight columns of B; no row meets another's numbers. Eight rows at a time: all 16 unrolled were slower to fetch than
// to run.
__device__ __forceinline__ void state_products(const float (&s)[STATE], const float (*vectors)[2][STRIDE],
                                               float (*sums)[2][DIM], u32 wanted) {
    const u32 lane = threadIdx.x & 31, g = lane / 4, t = lane % 4, column = (threadIdx.x >> 5) * 16 + 2 * g;
#pragma unroll 1
    for (u32 first = 0; wanted >> first; first += 8) {
        if (!(wanted >> first & 255)) continue;
        const bool has_second = wanted >> first & 0xf0;
        float high[2][4], left[2][4], right[2][4];
#pragma unroll
        for (u32 n = 0; n < 2; n++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) high[n][i] = left[n][i] = right[n][i] = 0.0f;
        const float* from = &vectors[first][0][0] + g * STRIDE + 2 * t;
#pragma unroll
        for (u32 i = 0; i < STATE / 4; i++) {
            const Split s0 = split(s[4 * i]), s1 = split(s[4 * i + 1]), s2 = split(s[4 * i + 2]), s3 = split(s[4 * i + 3]);
            const u32 whole[4] = {s0.high, s2.high, s1.high, s3.high}, rest[4] = {s0.low, s2.low, s1.low, s3.low};
#pragma unroll
            for (u32 n = 0; n < 2; n++) {
                if (n == 1 && !has_second) continue;
                const float2 x = *(const float2*)(from + n * 8 * STRIDE + 8 * i);
                const Split x0 = split(x.x), x1 = split(x.y);
                mma_tf32(high[n], whole, x0.high, x1.high);
                mma_tf32(left[n], rest, x0.high, x1.high);
                mma_tf32(right[n], whole, x0.low, x1.low);
            }
        }
#pragma unroll
        for (u32 n = 0; n < 2; n++) {
            const u32 row = first + 4 * n + t;
            if (!(wanted >> row & 1)) continue;
            float sum[4];
#pragma unroll
            for (u32 i = 0; i < 4; i++) sum[i] = high[n][i] + (left[n][i] + right[n][i]);
            *(float2*)&sums[row][0][column] = make_float2(sum[0], sum[2]);
            *(float2*)&sums[row][1][column] = make_float2(sum[1], sum[3]);
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

// One of the 16 rows of a fold.
struct Folded {
    const float *key, *delta;
};

// s = e^{sum of g} s + sum_j e^{decay from j to the end} k_j delta_j^T. `row_at` finds row j's key and delta, `g_at` its g.
template <typename RowAt, typename GAt>
__device__ __forceinline__ void fold(float (&s)[STATE], u32 key_dim, u32 value_dim, RowAt row_at, GAt g_at) {
    const u32 lane = threadIdx.x & 31, g = lane / 4, t = lane % 4, column = (threadIdx.x >> 5) * 16 + 2 * g;
    float decay = g_at(lane % GRID);
#pragma unroll
    for (u32 step = 1; step < GRID; step *= 2) {
        const float other = __shfl_down_sync(0xffffffffu, decay, step, GRID);
        if (lane % GRID + step < GRID) decay += other;
    }
    const float after = __shfl_down_sync(0xffffffffu, decay, 1, GRID);
    const float weight = quick_exp(lane % GRID + 1 < GRID ? after : 0.0f), all = quick_exp(__shfl_sync(0xffffffffu, decay, 0));
    Split deltas[2][4];
    const float* keys[2][2];
#pragma unroll
    for (u32 half = 0; half < 2; half++)
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            const u32 j = 8 * half + 4 * i + t;
            const Folded row = row_at(j);
            float2 delta = make_float2(0.0f, 0.0f);
            if (column < value_dim) delta = *(const float2*)(row.delta + column);
            const float w = __shfl_sync(0xffffffffu, weight, j);
            deltas[half][2 * i] = split(w * delta.x);
            deltas[half][2 * i + 1] = split(w * delta.y);
            keys[half][i] = row.key;
        }
    // Keys are read one round ahead.
    const auto key_at = [&](u32 i, u32 n) { return 8 * i + g < key_dim ? keys[n / 2][n % 2][8 * i + g] : 0.0f; };
    float next[4] = {key_at(0, 0), key_at(0, 1), key_at(0, 2), key_at(0, 3)};
#pragma unroll
    for (u32 i = 0; i < STATE / 4; i++) {
        const float now[4] = {next[0], next[1], next[2], next[3]};
        if (i + 1 < STATE / 4)
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
#pragma unroll
        for (u32 n = 0; n < 4; n++) s[4 * i + n] = __fmaf_rn(all, s[4 * i + n], high[n] + (left[n] + right[n]));
    }
}
