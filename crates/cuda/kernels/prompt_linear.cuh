// y = x W' for the rows of prompts: 256 outputs and N rows at a time, all columns in one order (prompt_params.cuh).
//
// Eight warps sum, two tiles of 16 outputs each; a ninth copies for them, on through the ends of tiles. With wgmma both weights
// and inputs pass through shared memory; else inputs only, and weights go from memory to registers.
#pragma once
#include "prompt_finish.cuh"
#include "prompt_sums.cuh"

template <class F, int N>
__device__ __forceinline__ void make_tile(const PromptParams& p, const PromptTile& tile, u32 place, u32 written, PromptRing& inputs, PromptRing& weights) {
    PromptSums<N> sums;
#pragma unroll
    for (int i = 0; i < N / 2; i++) sums[0][i] = 0.0f, sums[1][i] = 0.0f;
    sum_tile<F, N>(sums, tile, place, inputs, weights);
    finish_tile<N>(p, tile, place, written, sums);
}

// The end of a tile stands once for each format: where sums of several came together in one place, the compiler found too few
// registers and put every wgmma by itself. PROMPT_FORMATS: what a module knows.
template <int N>
__device__ __forceinline__ void make_tile_of(const PromptParams& p, const PromptTile& tile, u32 place, u32 written, PromptRing& inputs,
                                             PromptRing& weights) {
#define MAKE(ID, F) \
    case ID: return make_tile<F, N>(p, tile, place, written, inputs, weights);
    switch (tile.part->format) { PROMPT_FORMATS(MAKE) }
#undef MAKE
}

// All that the block's tiles need, in the order in which it is used. By COPY_LANES lanes of a warp.
template <int N>
__device__ __forceinline__ void copy_tiles(const PromptParams& p, const PromptTurns& turns, u32 rows, PromptRing& inputs, PromptRing& weights) {
#if __CUDA_ARCH__ >= 900
    // What ordinary stores of other kernels wrote is read by the copy engine.
    asm volatile("fence.proxy.async;" ::: "memory");
#endif
    for (u32 at = blockIdx.x; at < turns.end; at += gridDim.x) {
        const u32 t = turns.tile(at);
        if (t == NO_TILE) continue;
        const bool is_whole = t < turns.n_whole;
        const PromptTile tile(p, is_whole ? 0 : turns.whole_units, is_whole ? t : t - turns.n_whole, is_whole ? N : N / 2, rows);
        const u32 n_stages = tile.n_stages(), input_bytes = (tile.n_rows + 7) / 8 * EIGHT_BYTES;
        u32 cell = 0;
        for (u32 stage = 0; stage < n_stages; stage++) {
#if PROMPT_WGMMA
            const u32 of_tile = tile.stage_records(stage) * tile.part->tile_bytes;
            const u32 bytes[2] = {tile.n_tiles(0) * of_tile, tile.n_tiles(1) * of_tile};
            weights.wait_empty();
            copy_expect(weights.full_barrier(), bytes[0] + bytes[1]);
            for (u32 h = 0; h < 2; h++)
                if (bytes[h]) copy_input(weights.slot() + h * (weights.slot_bytes / 2), tile.weights(h, stage), bytes[h], weights.full_barrier());
            weights.next();
#endif
            for (u32 i = 0; i < tile.stage_cells(stage); i++) {
                const u8* from = (const u8*)p.image + ((u64)(2 * cell) * p.eights + tile.first_row / 8) * EIGHT_BYTES;
                inputs.wait_empty();
                copy_expect(inputs.full_barrier(), 2 * input_bytes);
                copy_input(inputs.slot(), from, input_bytes, inputs.full_barrier());
                copy_input(inputs.slot() + inputs.slot_bytes / 2, from + (u64)p.eights * EIGHT_BYTES, input_bytes, inputs.full_barrier());
                copy_commit(inputs.full_barrier());
                inputs.next();
                // A second plane of weights meets the columns again.
                if (++cell == p.n_cells) cell = 0;
            }
        }
    }
}

template <int N>
__device__ __forceinline__ void prompt_linear(const PromptParams& p) {
    extern __shared__ __align__(1024) u8 shared[];
    PromptBarriers& barriers = *(PromptBarriers*)shared;
    const u32 base = shared_register(shared), warp = __shfl_sync(0xffffffffu, threadIdx.x >> 5, 0), lane = threadIdx.x & 31;
    const u32 inputs_at = base + (u32)sizeof(PromptBarriers);
    PromptRing inputs(inputs_at, 2 * (N / 8) * EIGHT_BYTES, p.n_inputs, shared_address(barriers.inputs_full), shared_address(barriers.inputs_empty));
    PromptRing weights(inputs_at + p.n_inputs * inputs.slot_bytes, p.weight_bytes, p.n_weights, shared_address(barriers.weights_full),
                       shared_address(barriers.weights_empty));
    if (threadIdx.x == 0) inputs.init(COPY_LANES, SUM_WARPS), weights.init(1, 32 * SUM_WARPS);
    barrier_init_visible();
    __syncthreads();
    pdl_next();
    pdl_wait();
    const u32 written = *(const u32*)p.written, rows = *(const u32*)p.count - written;
    const PromptTurns turns(p, rows, N, N == CUT_ROWS);
    if (warp >= SUM_WARPS) {
#if PROMPT_WGMMA
        registers_fewer<40>();
#endif
        if (warp == SUM_WARPS && lane < COPY_LANES) copy_tiles<N>(p, turns, rows, inputs, weights);
    } else {
#if PROMPT_WGMMA
        registers_more<232>();
#endif
        u32 at = blockIdx.x;
        for (; at < turns.end; at += gridDim.x) {
            const u32 t = turns.tile(at);
            if (t == NO_TILE) continue;
            if (t >= turns.n_whole) break;
            make_tile_of<N>(p, PromptTile(p, 0, t, N, rows), warp, written, inputs, weights);
        }
        if constexpr (N == CUT_ROWS)
            for (; at < turns.end; at += gridDim.x)
                make_tile_of<N / 2>(p, PromptTile(p, turns.whole_units, turns.tile(at) - turns.n_whole, N / 2, rows), warp, written, inputs,
                                    weights);
    }
}

// Without wgmma there are registers for 64 rows only, and no other tile is asked for.
template <int N>
__device__ __forceinline__ void prompt_entry(const PromptParams& p) {
    if constexpr (PROMPT_WGMMA || N == 64) prompt_linear<N>(p);
    else __trap();
}

#define PROMPT_KERNEL(NAME, N) \
    extern "C" __global__ void __launch_bounds__(PROMPT_THREADS, 1) prompt_##NAME##_##N(const __grid_constant__ PromptParams p) { prompt_entry<N>(p); }
#define PROMPT_KERNELS(NAME) PROMPT_KERNEL(NAME, 64) PROMPT_KERNEL(NAME, 96) PROMPT_KERNEL(NAME, 128)
