// The inputs of experts in shared memory, in the form of image.cuh: what a stage of weights meets of up to 8 TILES rows.
//
// With one tile of rows all that there is room for comes at once, so that from then on no warp waits for another: with one row to an expert a stage's
// trip to L2 took longer than its products (Qwen3-30B-A3B's shapes, a row: 0.48 ms a step in place of 0.51). With two, inputs come a stage ahead, beside the
// products: prompts' rows took 10 % longer the other way.
#pragma once
#include "image.cuh"
#include "linear_sums.cuh"

// Rows of a product: of the step, or of its pairs of a row and an expert.
struct ExpertInput {
    const float* x;         // [pairs / x_pairs, cols]
    u32 x_pairs, cols, n_cells, pad;
    // Of a row. (No buffer has as many numbers as 32 bits count: that would be 16 GB.)
    __device__ __forceinline__ u32 first_of(u32 pair) const { return pair / x_pairs * cols; }
    // Four columns of the row that begins at `first`.
    __device__ __forceinline__ void load(u32 first, u32 column, float (&x4)[4]) const {
        const float* from = x + first + column;
#pragma unroll
        for (u32 i = 0; i < 4; i++) x4[i] = 0.0f;
        if (cols % 4 == 0) {
            if (column >= cols) return;
            const float4 v = *(const float4*)from;
            x4[0] = v.x, x4[1] = v.y, x4[2] = v.z, x4[3] = v.w;
        } else {
#pragma unroll
            for (u32 i = 0; i < 4; i++)
                if (column + i < cols) x4[i] = from[i];
        }
    }
    // The so-manieth cell of a stage: planes of float weights meet the same columns.
    __device__ __forceinline__ u32 cell_of(bool is_float, u32 stage, u32 nth) const { return is_float ? stage % n_cells : 2 * stage + nth; }
};

// A stage's place.
template <int TILES>
struct StageInputs {
    u8* at;
    static __device__ __forceinline__ u32 bytes(bool is_float) { return TILES * (is_float ? CELL_BYTES + REST_BYTES : 2 * CELL_BYTES); }
    // By a warp: 128 columns of a row.
    __device__ __forceinline__ void store(bool is_float, u32 cell, u32 row, const float (&x)[4]) const {
        u8 *to = at + (cell * TILES + row / 8) * CELL_BYTES, *rest = at + TILES * CELL_BYTES + row / 8 * REST_BYTES;
        const int exponent = image_exponent(x);
        if (is_float) image_store_in<true>(to, rest, row % 8, x, exponent);
        else image_store_in<false>(to, rest, row % 8, x, exponent);
    }
};

// Of some stages at once and up to 8 rows, 128 columns of a row by a warp. Rows that are not there keep what was in their places: it reaches only
// their own sums.
__device__ __forceinline__ void bring_inputs(const ExpertInput& input, bool is_float, const u16* pairs, u32 n_rows, u32 first_stage, u32 n_stages, u8* to) {
    constexpr u32 AT_ONCE = 4;
    const u32 warp = threadIdx.x >> 5, n_warps = blockDim.x / 32, column = (threadIdx.x & 31) * 4, n_cells = is_float ? 1 : 2, n_items = n_rows * n_stages * n_cells;
#pragma unroll 1
    for (u32 first = warp; first < n_items; first += AT_ONCE * n_warps) {
        float x[AT_ONCE][4];
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++) {
            const u32 item = first + i * n_warps, nth = item / n_rows;
            if (item >= n_items) break;
            input.load(input.first_of(pairs[item % n_rows]), input.cell_of(is_float, first_stage + nth / n_cells, nth % n_cells) * 128 + column, x[i]);
        }
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++) {
            const u32 item = first + i * n_warps, nth = item / n_rows;
            if (item >= n_items) break;
            StageInputs<1>{to + nth / n_cells * StageInputs<1>::bytes(is_float)}.store(is_float, nth % n_cells, item % n_rows, x[i]);
        }
    }
}

// A warp's share of a stage's, in registers: of rows warp and warp + 8.
template <bool IS_FLOAT, int TILES>
struct Ahead {
    static constexpr u32 CELLS = IS_FLOAT ? 1 : 2, NO_ROW = 0xffffffffu;
    u32 first[TILES];
    float x[TILES][CELLS][4];
    __device__ __forceinline__ Ahead(const ExpertInput& input, const u16* pairs, u32 n) {
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            const u32 row = t * 8 + (threadIdx.x >> 5);
            first[t] = row < n ? input.first_of(pairs[row]) : NO_ROW;
        }
    }
    __device__ __forceinline__ void ask(const ExpertInput& input, u32 stage) {
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (u32 c = 0; c < CELLS; c++) {
#pragma unroll
                for (u32 i = 0; i < 4; i++) x[t][c][i] = 0.0f;
                if (first[t] != NO_ROW) input.load(first[t], input.cell_of(IS_FLOAT, stage, c) * 128 + (threadIdx.x & 31) * 4, x[t][c]);
            }
    }
    __device__ __forceinline__ void store(StageInputs<TILES> to) const {
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (u32 c = 0; c < CELLS; c++) to.store(IS_FLOAT, c, t * 8 + (threadIdx.x >> 5), x[t][c]);
    }
};
