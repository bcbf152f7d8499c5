// Sums of a warp's 16 outputs x 8 TILES rows over a stage. Their order is fixed: columns in steps of 16 within 128, then acc += row
// scale * sum. A row gets the same bits whatever stands in the other rows and however many tiles of rows there are.
#pragma once
#include "image.cuh"
#include "linear_formats.cuh"
#include "linear_ptx.cuh"
#include "linear_wgmma.cuh"

// f16 weights; they meet the input, then what its rounding to f16 left out.
struct F16 {
    static constexpr u32 STAGE_BYTES = 4096;
    const u8* stage;
    __device__ __forceinline__ F16(const u8* from) : stage(from) {}
    __device__ __forceinline__ void begin(int) {}
    __device__ __forceinline__ void step(int q, int j, u32 (&a)[4]) const {
        const uint4 w = *(const uint4*)(stage + q * 2048 + j * 512 + (threadIdx.x & 31) * 16);
        a[0] = w.x, a[1] = w.y, a[2] = w.z, a[3] = w.w;
    }
};
template <class F>
struct IsFloat {
    static constexpr bool value = false;
};
template <>
struct IsFloat<F16> {
    static constexpr bool value = true;
};

template <int TILES>
using Sums = float[TILES][4];

// `of_lane`: the cell, as far on as two rows' scales are for each of four lanes.
template <int TILES>
__device__ __forceinline__ void fold_at(Sums<TILES>& acc, const Sums<TILES>& sum, const u8* of_lane) {
#pragma unroll
    for (int n = 0; n < TILES; n++) {
        const float2 rows = *(const float2*)(of_lane + n * CELL_BYTES + CELL_SCALES);
        acc[n][0] = fmaf(rows.x, sum[n][0], acc[n][0]), acc[n][1] = fmaf(rows.y, sum[n][1], acc[n][1]);
        acc[n][2] = fmaf(rows.x, sum[n][2], acc[n][2]), acc[n][3] = fmaf(rows.y, sum[n][3], acc[n][3]);
    }
}
template <int TILES>
__device__ __forceinline__ void fold(Sums<TILES>& acc, const Sums<TILES>& sum, const u8* cell) {
    fold_at<TILES>(acc, sum, cell + (threadIdx.x & 3) * 8);
}

// The weights of N steps of a quad of 64 columns, from an even one on: groups of less than 32 columns have scales of their own.
template <class F, int N>
__device__ __forceinline__ void make_weights(const F& w, int q, int first, u32 (&a)[N][4]) {
    u32 s = 0, m = 0;
#pragma unroll
    for (int j = 0; j < N; j++) {
        w.step(q, first + j, a[j]);
        if constexpr (!IsFloat<F>::value) {
            w.scales(q, first + j, s, m);
            a[j][0] = half2_fma_low(a[j][0], s, m), a[j][1] = half2_fma_high(a[j][1], s, m);
            a[j][2] = half2_fma_low(a[j][2], s, m), a[j][3] = half2_fma_high(a[j][3], s, m);
        }
    }
}

// The weights of a quad of 64 columns.
template <class F>
__device__ __forceinline__ void quad_weights(const F& w, int q, u32 (&a)[4][4]) {
    make_weights(w, q, 0, a);
}

// Both: `cell` is the address of the first 128 columns of the first tile of rows, `next` that of the second 128, or of what
// the rounding of floats left out.
template <class F, int TILES>
__device__ __forceinline__ void sum_stage_by_warp(Sums<TILES>& acc, F& w, u32 cell, u32 next, bool two_halves) {
#pragma unroll
    for (int half = 0; half < (IsFloat<F>::value ? 1 : 2); half++) {
        if (half == 1 && !two_halves) return;
        const u32 at = half ? next : cell;
        Sums<TILES> sum;
#pragma unroll
        for (int n = 0; n < TILES; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) sum[n][i] = 0.0f;
        w.begin(half);
#pragma unroll
        for (int q = 0; q < 2; q++) {
            u32 a[4][4];
            quad_weights(w, q, a);
#pragma unroll
            for (int i = 0; i < 2; i++) {
#pragma unroll
                for (int n = 0; n < TILES; n++) {
                    const uint4 x = load_columns_32(at + n * CELL_BYTES + (2 * q + i) * 512);
                    if constexpr (IsFloat<F>::value) {
                        const uint4 y = load_columns_32(next + n * REST_BYTES + (2 * q + i) * 512);
                        mma(sum[n], a[2 * i], x.x, x.y), mma(sum[n], a[2 * i], y.x, y.y);
                        mma(sum[n], a[2 * i + 1], x.z, x.w), mma(sum[n], a[2 * i + 1], y.z, y.w);
                    } else {
                        mma(sum[n], a[2 * i], x.x, x.y), mma(sum[n], a[2 * i + 1], x.z, x.w);
                    }
                }
            }
        }
        fold<TILES>(acc, sum, shared_at(at));
    }
}

// Of up to 8 rows: two halves side by side, whose products do not wait for each other. `scales`: as of `fold_at`. `from`: where the lane's row of the cell's
// first square is.
template <class W>
__device__ __forceinline__ void sum_halves_by_warp(Sums<1>& acc, W& w, u32 scales, u32 from, bool two_halves) {
    Sums<1> sum = {{0.0f, 0.0f, 0.0f, 0.0f}}, other = {{0.0f, 0.0f, 0.0f, 0.0f}};
#pragma unroll
    for (int q = 0; q < 2; q++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            u32 a[2][4], b[2][4];
            const uint4 x = load_squares(from + (2 * q + i) * 512), y = load_squares(from + CELL_BYTES + (2 * q + i) * 512);
            w.begin_group(2 * q + i);
            make_weights(w.first, q, 2 * i, a), make_weights(w.second, q, 2 * i, b);
            mma(sum[0], a[0], x.x, x.y), mma(other[0], b[0], y.x, y.y);
            mma(sum[0], a[1], x.z, x.w), mma(other[0], b[1], y.z, y.w);
        }
    fold_at<1>(acc, sum, shared_at(scales));
    if (two_halves) fold_at<1>(acc, other, shared_at(scales + CELL_BYTES));
}
#if HAS_WGMMA
// Products of N steps from one on, counted in the half, which go on while the next weights are made.
template <class F, int TILES, int N>
__device__ __forceinline__ void multiply(Sums<TILES>& sum, u32 (&a)[N][4], int first, u32 cell, u32 rest) {
    const u64 x = wgmma_input(wgmma_place(cell), CELL_BYTES) + first * WGMMA_STEP, y = wgmma_input(wgmma_place(rest), REST_BYTES) + first * WGMMA_STEP;
    // Registers are as they are before the fence, or the compiler lets products wait for each other.
#pragma unroll
    for (int j = 0; j < N; j++) wgmma_operands(a[j]);
    wgmma_fence();
#pragma unroll
    for (int j = 0; j < N; j++) {
        wgmma(sum, a[j], x + j * WGMMA_STEP, first + j);
        if constexpr (IsFloat<F>::value) wgmma(sum, a[j], y + j * WGMMA_STEP, 1);
    }
    wgmma_commit();
}
template <int TILES>
__device__ __forceinline__ void fold_products(Sums<TILES>& acc, Sums<TILES>& sum, u32 cell) {
#pragma unroll
    for (int n = 0; n < TILES; n++) wgmma_sums(sum[n]);
    fold<TILES>(acc, sum, shared_at(cell));
}

// Up to 32 rows: while the tensor cores have a quad of 64 columns, the next is made.
template <class F, int TILES>
__device__ __forceinline__ void sum_stage_by_quads(Sums<TILES>& acc, F& w, u32 cell, u32 next, bool two_halves) {
    Sums<TILES> first;
    u32 a[4][4], b[4][4];
    w.begin(0);
    quad_weights(w, 0, a);
    multiply<F, TILES>(first, a, 0, cell, next);
    quad_weights(w, 1, b);
    multiply<F, TILES>(first, b, 4, cell, next);
    if (IsFloat<F>::value || !two_halves) {
        wgmma_wait<0>();
        fold_products<TILES>(acc, first, cell);
        return;
    }
    w.begin(1);
    wgmma_wait<1>();
    quad_weights(w, 0, a);
    Sums<TILES> second;
    multiply<F, TILES>(second, a, 0, next, next);
    wgmma_wait<1>();
    fold_products<TILES>(acc, first, cell);
    quad_weights(w, 1, b);
    multiply<F, TILES>(second, b, 4, next, next);
    wgmma_wait<0>();
    fold_products<TILES>(acc, second, next);
}

// With more, two sums of a row tile leave registers for two times 32 columns only.
template <class F, int TILES>
__device__ __forceinline__ void sum_stage_by_pairs(Sums<TILES>& acc, F& w, u32 cell, u32 next, bool two_halves) {
    Sums<TILES> sum;
    u32 a[2][4], b[2][4];
    w.begin(0);
    make_weights(w, 0, 0, a);
#pragma unroll
    for (int half = 0; half < (IsFloat<F>::value ? 1 : 2); half++) {
        const u32 at = half ? next : cell;
        multiply<F, TILES>(sum, a, 0, at, next);
        make_weights(w, 0, 2, b);
        multiply<F, TILES>(sum, b, 2, at, next);
        wgmma_wait<1>();
        make_weights(w, 1, 0, a);
        multiply<F, TILES>(sum, a, 4, at, next);
        wgmma_wait<1>();
        make_weights(w, 1, 2, b);
        multiply<F, TILES>(sum, b, 6, at, next);
        const bool is_last = half == 1 || IsFloat<F>::value || !two_halves;
        if (!is_last) {
            wgmma_wait<1>();
            w.begin(1);
            make_weights(w, 0, 0, a);
        }
        wgmma_wait<0>();
        fold_products<TILES>(acc, sum, at);
        if (is_last) return;
    }
}

template <class F, int TILES>
__device__ __forceinline__ void sum_stage(Sums<TILES>& acc, F& w, u32 cell, u32 next, bool two_halves) {
    if constexpr (TILES > 4) sum_stage_by_pairs<F, TILES>(acc, w, cell, next, two_halves);
    else sum_stage_by_quads<F, TILES>(acc, w, cell, next, two_halves);
}
#else
template <class F, int TILES>
__device__ __forceinline__ void sum_stage(Sums<TILES>& acc, F& w, u32 cell, u32 next, bool two_halves) {
    sum_stage_by_warp<F, TILES>(acc, w, cell, next, two_halves);
}
#endif
