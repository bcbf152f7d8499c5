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

template <int TILES>
__device__ __forceinline__ void fold(Sums<TILES>& acc, const Sums<TILES>& sum, const u8* cell) {
#pragma unroll
    for (int n = 0; n < TILES; n++) {
        const float2 rows = *(const float2*)(cell + n * CELL_BYTES + CELL_SCALES + (threadIdx.x & 3) * 8);
        acc[n][0] = fmaf(rows.x, sum[n][0], acc[n][0]), acc[n][1] = fmaf(rows.y, sum[n][1], acc[n][1]);
        acc[n][2] = fmaf(rows.x, sum[n][2], acc[n][2]), acc[n][3] = fmaf(rows.y, sum[n][3], acc[n][3]);
    }
}

// The weights of a quad of 64 columns.
template <class F>
__device__ __forceinline__ void quad_weights(const F& w, int q, u32 (&a)[4][4]) {
    u32 s = 0, m = 0;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        w.step(q, j, a[j]);
        if constexpr (!IsFloat<F>::value) {
            w.scales(q, j, s, m);
            a[j][0] = half2_fma_low(a[j][0], s, m), a[j][1] = half2_fma_high(a[j][1], s, m);
            a[j][2] = half2_fma_low(a[j][2], s, m), a[j][3] = half2_fma_high(a[j][3], s, m);
        }
    }
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
#if HAS_WGMMA
// Products of a quad, which go on while the next quad's weights are made.
template <class F, int TILES>
__device__ __forceinline__ void multiply_quad(Sums<TILES>& sum, u32 (&a)[4][4], int q, u32 cell, u32 rest) {
    const u64 x = wgmma_input(wgmma_place(cell), CELL_BYTES) + 4 * q * WGMMA_STEP, y = wgmma_input(wgmma_place(rest), REST_BYTES) + 4 * q * WGMMA_STEP;
    // Registers are as they are before the fence, or the compiler lets products wait for each other.
#pragma unroll
    for (int j = 0; j < 4; j++) wgmma_operands(a[j]);
    wgmma_fence();
#pragma unroll
    for (int j = 0; j < 4; j++) {
        wgmma(sum, a[j], x + j * WGMMA_STEP, q + j);
        if constexpr (IsFloat<F>::value) wgmma(sum, a[j], y + j * WGMMA_STEP, 1);
    }
    wgmma_commit();
}
template <int TILES>
__device__ __forceinline__ void finish_sums(Sums<TILES>& sum) {
#pragma unroll
    for (int n = 0; n < TILES; n++) wgmma_sums(sum[n]);
}

template <class F, int TILES>
__device__ __forceinline__ void sum_stage(Sums<TILES>& acc, F& w, u32 cell, u32 next, bool two_halves) {
    Sums<TILES> first;
    u32 a[4][4], b[4][4];
    w.begin(0);
    quad_weights(w, 0, a);
    multiply_quad<F, TILES>(first, a, 0, cell, next);
    quad_weights(w, 1, b);
    multiply_quad<F, TILES>(first, b, 1, cell, next);
    if (IsFloat<F>::value || !two_halves) {
        wgmma_wait<0>();
        finish_sums<TILES>(first);
        fold<TILES>(acc, first, shared_at(cell));
        return;
    }
    w.begin(1);
    wgmma_wait<1>();
    quad_weights(w, 0, a);
    if constexpr (TILES > 2) {
        // No registers for a second set of sums: the first is folded before the next products begin.
        wgmma_wait<0>();
        finish_sums<TILES>(first);
        fold<TILES>(acc, first, shared_at(cell));
        multiply_quad<F, TILES>(first, a, 0, next, next);
        quad_weights(w, 1, b);
        multiply_quad<F, TILES>(first, b, 1, next, next);
        wgmma_wait<0>();
        finish_sums<TILES>(first);
        fold<TILES>(acc, first, shared_at(next));
    } else {
        Sums<TILES> second;
        multiply_quad<F, TILES>(second, a, 0, next, next);
        wgmma_wait<1>();
        finish_sums<TILES>(first);
        fold<TILES>(acc, first, shared_at(cell));
        quad_weights(w, 1, b);
        multiply_quad<F, TILES>(second, b, 1, next, next);
        wgmma_wait<0>();
        finish_sums<TILES>(second);
        fold<TILES>(acc, second, shared_at(next));
    }
}
#else
template <class F, int TILES>
__device__ __forceinline__ void sum_stage(Sums<TILES>& acc, F& w, u32 cell, u32 next, bool two_halves) {
    sum_stage_by_warp<F, TILES>(acc, w, cell, next, two_halves);
}
#endif
