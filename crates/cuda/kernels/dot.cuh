// Products of a weight row with rows of activations, a warp each: lane l takes elements l, l + 32, ... in order, then the
// lanes are summed as `warp_sum` does. The order depends on the number of inputs alone.
#pragma once
#include "quant.cuh"

#define TILE_ROWS 8

struct Weight {
    const u8* data;
    u64 row_bytes;
    u32 type, rows;
};

// acc[r] = W[o] . x[r] for up to TILE_ROWS rows, `n` of which exist; x is [rows, cols].
template <int T>
__device__ __forceinline__ void dot_rows_as(const u8* row, const float* x, u32 cols, u32 n, float acc[TILE_ROWS]) {
    for (u32 i = threadIdx.x & 31; i < cols; i += 32) {
        const float value = decode<T>(row, i);
#pragma unroll
        for (u32 r = 0; r < TILE_ROWS; r++)
            if (r < n) acc[r] = __fmaf_rn(value, x[(u64)r * cols + i], acc[r]);
    }
}

__device__ __forceinline__ void dot_rows(const Weight& w, u64 o, const float* x, u32 cols, u32 n, float acc[TILE_ROWS]) {
    const u8* row = w.data + o * w.row_bytes;
#pragma unroll
    for (u32 r = 0; r < TILE_ROWS; r++) acc[r] = 0.0f;
    FOR_TYPE(w.type, dot_rows_as<T>(row, x, cols, n, acc);)
#pragma unroll
    for (u32 r = 0; r < TILE_ROWS; r++)
        if (r < n) acc[r] = warp_sum(acc[r]);
}

// The same for one row.
template <int T>
__device__ __forceinline__ float dot_one_as(const u8* row, const float* x, u32 cols) {
    float acc = 0.0f;
    for (u32 i = threadIdx.x & 31; i < cols; i += 32) acc = __fmaf_rn(decode<T>(row, i), x[i], acc);
    return acc;
}

__device__ __forceinline__ float dot_one(const Weight& w, u64 o, const float* x, u32 cols) {
    const u8* row = w.data + o * w.row_bytes;
    float acc = 0.0f;
    FOR_TYPE(w.type, acc = dot_one_as<T>(row, x, cols);)
    return warp_sum(acc);
}
