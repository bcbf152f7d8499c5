// The end of a tile: sums of all columns become outputs, 16 rows at a time by way of shared memory. Registers cannot be counted
// through in a loop, and the same text for every one of 128 sums was 370 KB of instructions: so they move up.
#pragma once
#include "linear_formats.cuh"
#include "prompt_params.cuh"

#define SEAT_ROWS 16u
#define SEAT_FLOATS 36u  // 16 outputs of both halves; what is past them keeps rows in different banks

// A warp's place in shared memory.
struct PromptSeat {
    float rows[SEAT_ROWS][SEAT_FLOATS];
};

// Outputs have one writer each, so an addition that memory makes gives the bits of any other, and nobody waits for what was there.
__device__ __forceinline__ void add_at(float* p, float v) { asm volatile("red.global.add.f32 [%0], %1;" ::"l"(p), "f"(v) : "memory"); }

// What becomes of a warp's 16 outputs of each half.
struct PromptOutputs {
    const PromptParams& p;
    const PromptPart& part;
    u32 first_row, n_rows;  // of the tile, past those that are written
    u32 written;
    u32 lane;
    // Of this lane's output; of a gate and an up matrix the latter's in [1], and lanes 16 to 31 have the outputs of lanes 0 to 15.
    u32 output;
    float* out;
    float scale[2], bias[2];
    bool is_there;

    __device__ __forceinline__ PromptOutputs(const PromptParams& p, const PromptTile& tile, u32 place, u32 written)
        : p(p), part(*tile.part), first_row(tile.first_row), n_rows(tile.n_rows), written(written), lane(threadIdx.x & 31) {
        const u32 half = lane >> 4, which = part.paired && p.epilogue != PROMPT_GLU ? half : 0;
        output = tile.outputs(half) * 128 + place * 16 + (lane & 15);
        out = (float*)part.out[which];
        is_there = output < part.n_out;
        const u32 known = is_there ? output : 0;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const u64 of = part.bias[which | i];
            scale[i] = ((const float*)part.scales[which | i])[known];
            bias[i] = of ? ((const float*)of)[known] : 0.0f;
        }
    }

    __device__ __forceinline__ float* at(u32 row) const { return out + (u64)(written + first_row + row) * part.n_out + output; }

    // Rows `first` to `first` + 16 of the tile.
    __device__ __forceinline__ void write(const PromptSeat& seat, u32 first) const {
        const u32 n = at_most(n_rows - first, SEAT_ROWS), mine = lane & 15;
        const float factors = mine < n ? ((const float*)p.scales)[first_row + first + mine] : 0.0f;
        const float gates = p.gate && mine < n ? sigmoid(((const float*)p.gate)[written + first_row + first + mine]) : 1.0f;
        if (p.epilogue == PROMPT_GLU) {
            // Two rows at a time: half the lanes would have nothing to do.
#pragma unroll 4
            for (u32 i = 0; i < SEAT_ROWS / 2; i++) {
                const u32 r = 2 * i + (lane >> 4);
                const float factor = __shfl_sync(0xffffffffu, factors, r);
                const float gate = fmaf(seat.rows[r][mine] * factor, scale[0], bias[0]);
                const float up = fmaf(seat.rows[r][16 + mine] * factor, scale[1], bias[1]);
                if (is_there && r < n) *at(first + r) = glu(p.glu_kind, p.glu_alpha, p.glu_limit, gate, up);
            }
            return;
        }
#pragma unroll 4
        for (u32 r = 0; r < n; r++) {
            const float y = fmaf(seat.rows[r][lane] * __shfl_sync(0xffffffffu, factors, r), scale[0], bias[0]);
            const float gated = p.gate ? y * __shfl_sync(0xffffffffu, gates, r) : y;
            float* to = at(first + r);
            if (!is_there) continue;
            if (p.epilogue == PROMPT_ADD) add_at(to, gated);
            else *to = p.epilogue == PROMPT_GLU_JOIN ? glu(p.glu_kind, p.glu_alpha, p.glu_limit, *to, y) : y;
        }
    }
};

template <int N>
__device__ __forceinline__ void finish_tile(const PromptParams& p, const PromptTile& tile, u32 place, u32 written, PromptSeat& seat,
                                            float (&sums)[2][N / 2]) {
    const Lane l;
    const PromptOutputs outputs(p, tile, place, written);
#pragma unroll 1
    for (u32 first = 0; first < tile.n_rows; first += SEAT_ROWS) {
        __syncwarp();
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int k = 0; k < 4; k++)
#pragma unroll
                for (int h = 0; h < 2; h++) seat.rows[8 * n + 2 * l.t + (k & 1)][16 * h + 8 * (k >> 1) + l.g] = sums[h][4 * n + k];
        __syncwarp();
        outputs.write(seat, first);
        // The next rows' sums move to where these were.
#pragma unroll
        for (int i = 0; i + 8 < N / 2; i++) sums[0][i] = sums[0][i + 8], sums[1][i] = sums[1][i + 8];
    }
}
