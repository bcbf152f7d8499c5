// The end of a tile: sums of all columns become outputs, 16 rows at a time. Registers cannot be counted through in a loop, and the
// same text for every one of 128 sums was 370 KB of instructions: so they move up.
//
// A lane stores what it has: eight lanes write 32 bytes of a row side by side, which is what memory takes at once. By way of
// shared memory, 128 bytes at a time, the end of a tile was 40 % of its time over 2560 columns (H200).
#pragma once
#include "linear_formats.cuh"
#include "prompt_params.cuh"

#define FINISH_ROWS 16u

// Outputs have one writer each, so an addition that memory makes gives the bits of any other, and nobody waits for what was there.
__device__ __forceinline__ void add_at(float* p, float v) { asm volatile("red.global.add.f32 [%0], %1;" ::"l"(p), "f"(v) : "memory"); }

// What becomes of a lane's outputs: g and g + 8 of the warp's 16 in each half.
struct PromptOutputs {
    const PromptParams& p;
    u32 first_row, n_rows;  // of the tile, past those that are written
    u32 n_out, t, kind;
    const float* gates;     // of the tile's first row, or none
    float* out[2];          // of the tile's first row
    float scale[2][2], bias[2][2];
    u32 is_there;           // a bit each

    __device__ __forceinline__ PromptOutputs(const PromptParams& p, const PromptTile& tile, u32 place, u32 written)
        : p(p), first_row(tile.first_row), n_rows(tile.n_rows), n_out(tile.part->n_out), t(threadIdx.x & 3), kind(p.epilogue),
          gates(p.gate ? (const float*)p.gate + written + first_row : nullptr), is_there(0) {
        // Kept: read again for every row, each time was a wait.
        asm volatile("" : "+r"(kind), "+l"(gates));
        const PromptPart& part = *tile.part;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const u32 which = part.paired ? h : 0, output = tile.outputs(h) * 128 + place * 16 + (threadIdx.x >> 2 & 7);
            out[h] = (float*)part.out[which] + (u64)(written + first_row) * n_out + output;
#pragma unroll
            for (int u = 0; u < 2; u++) {
                const bool is_known = output + 8 * u < n_out;
                const u32 known = is_known ? output + 8 * u : 0;
                is_there |= (u32)is_known << (2 * h + u);
                scale[h][u] = ((const float*)part.scales[which])[known];
                bias[h][u] = part.bias[which] ? ((const float*)part.bias[which])[known] : 0.0f;
            }
        }
    }

    // What undoes the powers of two of a lane's two rows of the eight from `first` on; of rows that are not there, another's.
    __device__ __forceinline__ float2 factors(u32 first) const {
        const float* of = (const float*)p.scales + first_row;
        return make_float2(of[at_most(first + 2 * t, n_rows - 1)], of[at_most(first + 2 * t + 1, n_rows - 1)]);
    }

    // The lane's two rows of the eight from `first` on, whose sums are the first four.
    template <int COUNT>
    __device__ __forceinline__ void write(const float (&sums)[2][COUNT], float2 factors, u32 first) const {
        const u32 row = first + 2 * t;
        // A bit for each of the eight numbers that is wanted.
        const u32 wanted = (row < n_rows ? is_there : 0) | (row + 1 < n_rows ? is_there << 4 : 0);
        float y[8];
#pragma unroll
        for (int k = 0; k < 8; k++)
            y[k] = fmaf(sums[k / 2 % 2][2 * (k % 2) + k / 4] * (k < 4 ? factors.x : factors.y), scale[k / 2 % 2][k % 2], bias[k / 2 % 2][k % 2]);
        float* to[2] = {out[0] + (u64)row * n_out, out[1] + (u64)row * n_out};
        const auto at = [&](int k) { return (k & 2 ? to[1] : to[0]) + (k & 4 ? n_out : 0) + 8 * (k & 1); };
        if (kind == PROMPT_GLU) {
            float z[4];
#pragma unroll
            for (int k = 0; k < 4; k++) z[k] = glu(p.glu_kind, p.glu_alpha, p.glu_limit, y[k / 2 * 4 + k % 2], y[k / 2 * 4 + k % 2 + 2]);
#pragma unroll
            for (int k = 0; k < 4; k++)
                if (wanted >> (k / 2 * 4 + k % 2) & 1) *at(k / 2 * 4 + k % 2) = z[k];
        } else if (kind == PROMPT_GLU_JOIN) {
            // Seldom, and so a loop.
#pragma unroll 1
            for (int k = 0; k < 8; k++) {
                if (wanted >> k & 1) *at(k) = glu(p.glu_kind, p.glu_alpha, p.glu_limit, *at(k), y[0]);
#pragma unroll
                for (int i = 0; i < 7; i++) y[i] = y[i + 1];
            }
        } else if (kind == PROMPT_ADD) {
            if (gates) {
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const float gate = sigmoid(gates[at_most(row + i, n_rows - 1)]);
#pragma unroll
                    for (int k = 0; k < 4; k++) y[4 * i + k] *= gate;
                }
            }
#pragma unroll
            for (int k = 0; k < 8; k++)
                if (wanted >> k & 1) add_at(at(k), y[k]);
        } else if (wanted == 255) {
#pragma unroll
            for (int k = 0; k < 8; k++) *at(k) = y[k];
        } else {
#pragma unroll
            for (int k = 0; k < 8; k++)
                if (wanted >> k & 1) *at(k) = y[k];
        }
    }
};

template <int N>
__device__ __forceinline__ void finish_tile(const PromptParams& p, const PromptTile& tile, u32 place, u32 written, float (&sums)[2][N / 2]) {
    const PromptOutputs outputs(p, tile, place, written);
    float2 next = outputs.factors(0);
#pragma unroll 1
    for (u32 first = 0; first < tile.n_rows; first += FINISH_ROWS) {
#pragma unroll 1
        for (u32 n = 0; n < FINISH_ROWS; n += 8) {
            const float2 factors = next;
            next = outputs.factors(first + n + 8);
            outputs.write(sums, factors, first + n);
#pragma unroll
            for (int i = 0; i < 4; i++) sums[0][i] = sums[0][i + 4], sums[1][i] = sums[1][i + 4];
        }
        // The next rows' sums move to where these were.
#pragma unroll
        for (int i = 0; i + 8 < N / 2; i++) sums[0][i] = sums[0][i + 8], sums[1][i] = sums[1][i + 8];
    }
}
