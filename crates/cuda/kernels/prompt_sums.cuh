// Sums over all columns of a tile: a warp's 16 outputs of both halves, all rows of the tile.
//
// Weights are decoded into registers, 64 columns of a half at a time, while the tensor cores work on those before.
#pragma once
#include "linear_sums.cuh"
#include "prompt_ring.cuh"
#include "prompt_wgmma.cuh"

// Sums of rows 8n + 2t and the next, of outputs g and g + 8, are [4n..4n + 3], as mma.m16n8k16 leaves them.
template <int N>
using PromptSums = float[2][N / 2];

#if PROMPT_WGMMA
// Adds a quad of 64 columns. Under way when this returns; what was before is done.
template <int N>
__device__ __forceinline__ void sum_quad(float (&sums)[N / 2], const u32 (&a)[4][4], u32 rows) {
    wgmma_fence();
#pragma unroll
    for (int j = 0; j < 4; j++) wgmma(sums, a[j], wgmma_rows(rows + j * 32));
    wgmma_commit();
    wgmma_wait<1>();
}
#else
template <int N>
__device__ __forceinline__ void sum_quad(float (&sums)[N / 2], const u32 (&a)[4][4], u32 rows) {
    const u32 lane = threadIdx.x & 31;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const u32 from = rows + image_piece(lane & 7, 4 * i + (lane >> 3));
#pragma unroll
        for (int n = 0; n < N / 8; n++) {
            uint4 x;
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                         : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                         : "r"(from + n * EIGHT_BYTES));
            float(&d)[4] = *(float(*)[4]) & sums[4 * n];
            mma(d, a[2 * i], x.x, x.y), mma(d, a[2 * i + 1], x.z, x.w);
        }
    }
}
#endif

// The tile's sums. `place`: of the warp's 16 outputs in their half.
template <class F, int N>
__device__ __forceinline__ void sum_tile(PromptSums<N>& sums, const PromptTile& tile, u32 place, PromptRing& inputs, PromptRing& weights) {
    const bool speaks = (threadIdx.x & 31) == 0;
    const u32 n_stages = tile.n_stages(), tile_bytes = tile.part->tile_bytes;
    bool holds_input = false;
#pragma unroll 1
    for (u32 stage = 0; stage < n_stages; stage++) {
        const u32 n_records = tile.stage_records(stage), n_cells = tile.stage_cells(stage);
#if PROMPT_WGMMA
        weights.wait_full();
#endif
        // Of 128 columns.
#pragma unroll 1
        for (u32 cell = 0; cell < n_cells; cell++) {
            inputs.wait_full();
            // One half after the other: registers for the codes of both are not there.
#pragma unroll
            for (u32 h = 0; h < 2; h++) {
#if PROMPT_WGMMA
                const u8* from = shared_at(weights.slot() + h * (weights.slot_bytes / 2));
                const u32 there = place;
#else
                // Outputs that are not there have weights of others, and are not stored.
                const u32 tiles = tile.n_tiles(h), there = place < tiles ? place : 0;
                const u8* from = tile.weights(tiles ? h : 0, stage);
#endif
                F w(from + there * n_records * tile_bytes);
                w.begin(cell);
#pragma unroll
                for (u32 q = 0; q < 2; q++) {
                    u32 a[4][4];
                    quad_weights(w, q, a);
                    sum_quad<N>(sums[h], a, inputs.slot() + q * (inputs.slot_bytes / 2));
#if PROMPT_WGMMA
                    if (h == 0 && q == 0 && holds_input && speaks) inputs.leave_last();
#endif
                }
#if !PROMPT_WGMMA
                // The next half's weights are not asked for before: the assembler did so for all, and spilled.
                __syncwarp();
#endif
            }
#if PROMPT_WGMMA
            holds_input = true;
#else
            __syncwarp();
            if (speaks) inputs.leave();
#endif
            inputs.next();
        }
#if PROMPT_WGMMA
        // By every lane, of what it read itself. (One for all behind a `__syncwarp` is as good, but that leaves no instruction where the compiler knows lanes to
        // be together, and racecheck then reports the others' reads.)
        weights.leave();
        weights.next();
#endif
    }
#if PROMPT_WGMMA
    wgmma_wait<0>();
    if (holds_input && speaks) inputs.leave_last();
#endif
}
