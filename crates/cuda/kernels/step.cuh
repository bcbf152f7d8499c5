// The data of a step as `step_data.rs` packs it.
#pragma once
#include "common.cuh"

// How keys and values are stored.
#define F32_KV 0u
#define F16_KV 1u
#define BF16_KV 2u
#define NO_PARENT 0xffffffffu
#define PAGE 64u
#define GRID 16u
#define PATH 16u
#define WINDOW_ROWS 48u
#define CONV_ROWS 4u
#define TAP_ROWS 32u
// Earlier rows that a recurrent row can need, from its grid on.
#define REACH 32u
// In `pasts`: a committed row, at this place of the kept window. Other rows are of the step: place among the sequence's
// rows in the upper half, row in the lower.
#define KEPT 0x80000000u

// Sure rows of a sequence, from its first on, from which on they count as a prompt's (`step_data.rs` counts the others).
#define PROMPT_ROWS 16u
// `walks` of attention and recurrent layers where a plan has rows of prompts only: there is no launch for others.
#define ALL_WALK 2u

struct Row {
    u32 token, seq, pos, parent;
    // Place among the sequence's rows; where its key and value go; whether it is accepted whatever comes.
    u32 local, kv_slot, is_sure, pad;
};

struct Seq {
    u32 slot, committed, n_sure, stored_grid;
    // Its rows are seq_rows[first .. first + n_rows].
    u32 first, n_rows, pad0, pad1;
};

struct Step {
    // rows, logit rows, sequences, rows before those of prompts, rows that do not walk (recurrent_walk.cu)
    const u32* counts;
    const Row* rows;
    const u32* paths;  // [row, PATH]: KV slots of the row's path past the sure rows
    const u32* pasts;  // [row, REACH]: the rows at positions from its grid up to its parent's, as it sees them
    const u32* logit_rows;
    const Seq* seqs;
    const u32* seq_rows;
    const u32* table_at;  // [sequence, class]
    const u32* tables;
    u32 n_classes, pad;
};

__device__ __forceinline__ u32 past_row(u32 past) { return past & 0xffff; }
__device__ __forceinline__ u32 past_local(u32 past) { return past >> 16; }

__device__ __forceinline__ u32 page_of(const Step& s, u32 seq, u32 cls, u32 slot) {
    return s.tables[s.table_at[seq * s.n_classes + cls] + slot / PAGE];
}

// The KV slot of position `pos` as the row sees it.
__device__ __forceinline__ u32 slot_of(const Step& s, u32 row, u32 sure_end, u32 pos) {
    return pos < sure_end ? pos : s.paths[row * PATH + (pos - sure_end)];
}

__device__ __forceinline__ u32 grid_of(u32 pos) { return pos < GRID ? 0 : (pos - GRID) / GRID * GRID; }

// Numbers of a row, by block `nth` of so many: four at a time where they lie so, and four of those on their way at once. (One at a time, taps of five layers
// took 25 us.)
__device__ __forceinline__ void copy_row(float* to, const float* from, u32 n, u32 nth = 0, u32 n_blocks = 1) {
    const u32 first = nth * blockDim.x + threadIdx.x, stride = n_blocks * blockDim.x;
    if ((((u64)to | (u64)from) & 15) != 0 || n % 4 != 0) {
        for (u32 i = first; i < n; i += stride) to[i] = from[i];
        return;
    }
    for (u32 i = first; i < n / 4; i += 4 * stride) {
        float4 x[4];
#pragma unroll
        for (u32 k = 0; k < 4; k++)
            if (i + k * stride < n / 4) x[k] = ((const float4*)from)[i + k * stride];
#pragma unroll
        for (u32 k = 0; k < 4; k++)
            if (i + k * stride < n / 4) ((float4*)to)[i + k * stride] = x[k];
    }
}
