// Sums of 16 outputs x 8 rows over half a stage, for each family of formats. The order of every sum is fixed by the format, so
// a row gets the same bits whatever stands in the other columns and however many tiles of rows there are.
#pragma once
#include "image.cuh"
#include "linear_grouped.cuh"
#include "linear_scaled.cuh"

// Two tiles of outputs by TILES tiles of rows.
template <int TILES>
struct Sums {
    float v[2][TILES][4];
    __device__ __forceinline__ Sums() {
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int n = 0; n < TILES; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) v[m][n][i] = 0.0f;
    }
};

__device__ __forceinline__ uint4 columns_32(const u8* cell, int i, Lane l) { return *(const uint4*)(cell + i * 512 + l.lane * 16); }
__device__ __forceinline__ float2 row_scales(const u8* cell, Lane l) { return *(const float2*)(cell + CELL_SCALES + l.t * 8); }
__device__ __forceinline__ uint2 column_sums(const u8* cell, Lane l) { return *(const uint2*)(cell + CELL_SUMS + l.lane * 8); }

__device__ __forceinline__ void add_scaled(float (&sum)[4], float2 scale, const float (&group)[4]) {
    sum[0] = fmaf(scale.x, group[0], sum[0]), sum[1] = fmaf(scale.x, group[1], sum[1]);
    sum[2] = fmaf(scale.y, group[2], sum[2]), sum[3] = fmaf(scale.y, group[3], sum[3]);
}

// acc += row scale * (outer * part)
__device__ __forceinline__ void fold(float (&acc)[4], const float (&part)[4], float2 outer, float2 rows) {
    acc[0] = fmaf(rows.x, outer.x * part[0], acc[0]), acc[1] = fmaf(rows.y, outer.x * part[1], acc[1]);
    acc[2] = fmaf(rows.x, outer.y * part[2], acc[2]), acc[3] = fmaf(rows.y, outer.y * part[3], acc[3]);
}

// The end of 128 columns: acc += row scale * (outer * part + least outer * (minima x sums of the input)).
template <class F, int TILES>
__device__ __forceinline__ void finish_half(Sums<TILES>& acc, Sums<TILES>& part, const F (&w)[2], const u8* cell, bool has_least, Lane l) {
#pragma unroll
    for (int m = 0; m < 2; m++) {
        u32 a[4];
        if (has_least) w[m].least(a);
        const float2 outer = w[m].outer(), less = w[m].least_outer();
#pragma unroll
        for (int n = 0; n < TILES; n++) {
            const float2 rows = row_scales(cell + n * CELL_BYTES, l);
            float(&sum)[4] = part.v[m][n];
            sum[0] *= outer.x, sum[1] *= outer.x, sum[2] *= outer.y, sum[3] *= outer.y;
            if (has_least) {
                const uint2 sums = column_sums(cell + n * CELL_BYTES, l);
                float least[4];
                mma_first(least, a, sums.x, sums.y);
                add_scaled(sum, less, least);
            }
            float(&to)[4] = acc.v[m][n];
            to[0] = fmaf(rows.x, sum[0], to[0]), to[1] = fmaf(rows.y, sum[1], to[1]);
            to[2] = fmaf(rows.x, sum[2], to[2]), to[3] = fmaf(rows.y, sum[3], to[3]);
        }
    }
}

// 32 columns of all row tiles.
template <int TILES>
__device__ __forceinline__ void load_columns(uint4 (&x)[TILES], const u8* cell, int i, Lane l) {
#pragma unroll
    for (int n = 0; n < TILES; n++) x[n] = columns_32(cell + n * CELL_BYTES, i, l);
}

// 128 columns of a format of linear_scaled.cuh. `cell`: the block's cell of the first row tile.
template <class F, int TILES>
__device__ __forceinline__ void sum_scaled(Sums<TILES>& acc, const u8* const (&tile)[2], int half, const u8* cell) {
    const Lane l;
    const F w[2] = {F(tile[0], half, l), F(tile[1], half, l)};
    Sums<TILES> part;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint4 x[TILES];
        load_columns(x, cell, i, l);
#pragma unroll
        for (int m = 0; m < 2; m++) {
            u32 a[4], b[4];
            w[m].step(2 * i, a);
            w[m].step(2 * i + 1, b);
#pragma unroll
            for (int n = 0; n < TILES; n++) mma(part.v[m][n], a, x[n].x, x[n].y);
#pragma unroll
            for (int n = 0; n < TILES; n++) mma(part.v[m][n], b, x[n].z, x[n].w);
        }
    }
    finish_half(acc, part, w, cell, F::HAS_LEAST, l);
}

// 128 columns of a format of linear_grouped.cuh.
template <class F, int TILES>
__device__ __forceinline__ void sum_grouped(Sums<TILES>& acc, const u8* const (&tile)[2], int half, const u8* cell) {
    const Lane l;
    const F w[2] = {F(tile[0], half, l), F(tile[1], half, l)};
    Sums<TILES> part;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint4 x[TILES];
        load_columns(x, cell, i, l);
#pragma unroll
        for (int m = 0; m < 2; m++) {
            u32 a[4], b[4];
            w[m].step(2 * i, a);
            w[m].step(2 * i + 1, b);
            const float2 s = w[m].scale(i);
            float group[TILES][4];
#pragma unroll
            for (int n = 0; n < TILES; n++) mma_first(group[n], a, x[n].x, x[n].y);
#pragma unroll
            for (int n = 0; n < TILES; n++) mma(group[n], b, x[n].z, x[n].w);
#pragma unroll
            for (int n = 0; n < TILES; n++) add_scaled(part.v[m][n], s, group[n]);
        }
    }
    finish_half(acc, part, w, cell, true, l);
}

// 64 columns of a format of linear_blocks.cuh: the first or second (`place`) of the cell.
template <class F, int TILES>
__device__ __forceinline__ void sum_blocks(Sums<TILES>& acc, const u8* const (&tile)[2], int quad, const u8* cell, int place) {
    const Lane l;
    const F w[2] = {F(tile[0], quad, l), F(tile[1], quad, l)};
    Sums<TILES> part;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint4 x[TILES];
        load_columns(x, cell, 2 * place + i, l);
#pragma unroll
        for (int m = 0; m < 2; m++) {
            u32 a[4], b[4];
            w[m].step(2 * i, a);
            w[m].step(2 * i + 1, b);
            const float2 s = w[m].scale(F::GROUP == 2 ? i : 2 * i), s2 = F::GROUP == 2 ? s : w[m].scale(2 * i + 1);
            float group[TILES][4];
#pragma unroll
            for (int n = 0; n < TILES; n++) mma_first(group[n], a, x[n].x, x[n].y);
            if (F::GROUP == 1) {
#pragma unroll
                for (int n = 0; n < TILES; n++) add_scaled(part.v[m][n], s, group[n]);
            }
#pragma unroll
            for (int n = 0; n < TILES; n++)
                if (F::GROUP == 1) mma_first(group[n], b, x[n].z, x[n].w);
                else mma(group[n], b, x[n].z, x[n].w);
#pragma unroll
            for (int n = 0; n < TILES; n++) add_scaled(part.v[m][n], s2, group[n]);
        }
    }
#pragma unroll
    for (int m = 0; m < 2; m++) {
        const float2 outer = F::outer(tile[m], l);
        // Minima meet the cell's sums; those of the other 64 columns get zeros.
        const u32 first = (l.t & 1) == place ? w[m].least(0) : 0, second = (l.t & 1) == place ? w[m].least(1) : 0;
        const u32 a[4] = {low_twice(first), high_twice(first), low_twice(second), high_twice(second)};
#pragma unroll
        for (int n = 0; n < TILES; n++) {
            if (F::HAS_LEAST) {
                const uint2 sums = column_sums(cell + n * CELL_BYTES, l);
                mma(part.v[m][n], a, sums.x, sums.y);
            }
            fold(acc.v[m][n], part.v[m][n], outer, row_scales(cell + n * CELL_BYTES, l));
        }
    }
}

// 64 columns of f16 weights, with what the input's rounding to f16 left out (`rest`).
template <int TILES>
__device__ __forceinline__ void sum_floats(Sums<TILES>& acc, const u8* const (&tile)[2], const u8* cell, const u8* rest, int place) {
    const Lane l;
    Sums<TILES> part;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint4 w[2][2];
#pragma unroll
        for (int m = 0; m < 2; m++)
            w[m][0] = columns_32(tile[m], 2 * i, l), w[m][1] = columns_32(tile[m], 2 * i + 1, l);
#pragma unroll
        for (int n = 0; n < TILES; n++) {
            const uint4 x = columns_32(cell + n * CELL_BYTES, 2 * place + i, l), y = columns_32(rest + n * REST_BYTES, 2 * place + i, l);
#pragma unroll
            for (int m = 0; m < 2; m++) {
                const u32 a[4] = {w[m][0].x, w[m][0].y, w[m][0].z, w[m][0].w}, b[4] = {w[m][1].x, w[m][1].y, w[m][1].z, w[m][1].w};
                mma(part.v[m][n], a, x.x, x.y);
                mma(part.v[m][n], a, y.x, y.y);
                mma(part.v[m][n], b, x.z, x.w);
                mma(part.v[m][n], b, y.z, y.w);
            }
        }
    }
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int n = 0; n < TILES; n++)
            fold(acc.v[m][n], part.v[m][n], make_float2(1.0f, 1.0f), row_scales(cell + n * CELL_BYTES, l));
}
