// What a launch of the prompt kernels does: matrices that share an input, for all rows of prompts of a step.
//
// A unit is 2 x 128 outputs over all columns (two halves of one matrix, or the same half of two: a gate and an up matrix, or two
// that have less than a half each), a tile those of N rows. Tiles of all units are dealt to the blocks in turn; a tile is one block's alone and goes through the columns in
// their order, so a row's bits depend neither on N nor on the rows beside it.
#pragma once
#include "prompt_image.cuh"

#define PROMPT_PARTS 9
#define SUM_WARPS 8u           // of 16 outputs of each half
// And a warp that copies; where registers are dealt to warpgroups, a warpgroup.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define PROMPT_WGMMA 1
#define PROMPT_THREADS 384u
#else
#define PROMPT_WGMMA 0
#define PROMPT_THREADS 288u
#endif
#define MAX_PROMPT_SLOTS 16u
#define NO_TILE 0xffffffffu
#define CUT_ROWS 128           // of tiles that can be cut in two

// `Format::id` in repack/layout.rs.
enum PromptFormat : u32 {
    PROMPT_F16, PROMPT_Q4_0, PROMPT_Q4_1, PROMPT_Q5_0, PROMPT_Q5_1, PROMPT_Q8_0, PROMPT_IQ4_NL, PROMPT_MXFP4,
    PROMPT_Q2_K, PROMPT_Q3_K, PROMPT_Q4_K, PROMPT_Q5_K, PROMPT_Q6_K, PROMPT_IQ4_XS,
};

// GLU: of a pair. GLU_JOIN: of what `out` holds and this.
enum PromptEpilogue : u32 { PROMPT_STORE, PROMPT_ADD, PROMPT_GLU, PROMPT_GLU_JOIN };

struct PromptPart {
    u64 weights[2];  // packed tiles; equal unless paired
    u64 scales[2];   // f32 per output
    u64 bias[2];     // f32 per output, or 0
    u64 out[2];      // f32 [rows of the step, n_out]
    u32 format;
    u32 n_out;
    u32 paired;      // 0: a unit is two halves of 128 outputs; 1: the same half of both matrices
    u32 n_records;   // along the columns
    u32 stage_records;
    u32 tile_bytes;  // of a record
    u32 first_unit;
    u32 pad;
};

struct PromptParams {
    u64 image, scales;  // prompt_image.cu's
    u64 gate;           // f32 [rows of the step], or 0
    u64 count;          // u32: rows of the step
    u64 written;        // u32: of those, rows before the prompts'
    u32 n_parts, n_units;
    u32 long_units, long_turns;   // the first units, if any, take as long as so many others
    u32 eights;         // of rows, in the image
    u32 n_cells;        // of 128 columns, in the image
    u32 epilogue, glu_kind;
    float glu_alpha, glu_limit;
    u32 n_inputs;                 // slots of the ring of inputs
    u32 n_weights, weight_bytes;  // of the ring of weights
    u32 pad;
    PromptPart parts[PROMPT_PARTS];
};

__device__ __forceinline__ u32 at_most(u32 a, u32 b) { return a < b ? a : b; }

// Whose turn which tile is. Blocks take turns; a tile that takes longer has several. Where the last turn would have work for half of
// the blocks or fewer, its tiles are cut in two: units from `whole_units` on go by half the rows.
struct PromptTurns {
    u32 n_long, long_turns;
    u32 n_whole, whole_units;  // tiles from `n_whole` on are cut
    u32 end;                   // of all turns
    __device__ __forceinline__ PromptTurns(const PromptParams& p, u32 rows, u32 tile_rows, bool may_cut) {
        const u32 row_tiles = (rows + tile_rows - 1) / tile_rows, half_tiles = (2 * rows + tile_rows - 1) / tile_rows, n = p.n_units * row_tiles;
        // Where one turn has room for all, none is longer than that: a second one would begin behind the last tile, at blocks whose first it is. (There are as
        // many blocks as the bucket's rows have tiles, and these rows may be fewer: a block that copied what nobody sums never ended.)
        n_long = n > gridDim.x && p.long_units * row_tiles <= gridDim.x ? p.long_units * row_tiles : 0, long_turns = p.long_turns;
        n_whole = n, whole_units = p.n_units, end = n + n_long * (long_turns - 1);
        const u32 left = n ? (end % gridDim.x + row_tiles - 1) / row_tiles : 0;
        if (!may_cut || end < gridDim.x * long_turns || left + p.long_units > p.n_units || left * half_tiles > gridDim.x) return;
        whole_units -= left, n_whole -= left * row_tiles, end -= left * (row_tiles - half_tiles);
    }
    // The tile of block blockIdx.x's turn `at`, or none where its last is still under way.
    __device__ __forceinline__ u32 tile(u32 at) const {
        const u32 turn = at / gridDim.x, kept = at_most(turn, long_turns - 1);
        return turn > 0 && turn < long_turns && blockIdx.x < n_long ? NO_TILE : at - kept * n_long;
    }
};

// A tile of a part.
struct PromptTile {
    const PromptPart* part;
    u32 unit;  // of the part
    u32 first_row, n_rows;
    __device__ __forceinline__ PromptTile(const PromptParams& p, u32 first_unit, u32 index, u32 tile_rows, u32 rows) {
        const u32 row_tiles = (rows + tile_rows - 1) / tile_rows, of_all = first_unit + index / row_tiles;
        u32 i = 0;
        while (i + 1 < p.n_parts && p.parts[i + 1].first_unit <= of_all) i++;
        part = &p.parts[i], unit = of_all - part->first_unit;
        first_row = index % row_tiles * tile_rows, n_rows = at_most(rows - first_row, tile_rows);
    }
    // Which 128 outputs its half `h` is.
    __device__ __forceinline__ u32 outputs(u32 h) const { return part->paired ? unit : 2 * unit + h; }
    // Tiles of 16 outputs there.
    __device__ __forceinline__ u32 n_tiles(u32 h) const {
        const u32 before = outputs(h) * 8, all = (part->n_out + 15) / 16;
        return all > before ? at_most(all - before, 8) : 0;
    }
    __device__ __forceinline__ u32 n_stages() const { return (part->n_records + part->stage_records - 1) / part->stage_records; }
    __device__ __forceinline__ u32 stage_records(u32 stage) const {
        return at_most(part->n_records - stage * part->stage_records, part->stage_records);
    }
    // Cells of 128 columns in a stage: a record is half of one, or all of the stage two.
    __device__ __forceinline__ u32 stage_cells(u32 stage) const { return part->stage_records == 1 ? 2 : (stage_records(stage) + 1) / 2; }
    // Where a stage of half `h` begins; its tiles follow each other.
    __device__ __forceinline__ const u8* weights(u32 h, u32 stage) const {
        const u64 half = (u64)outputs(h) * 8 * part->n_records, before = (u64)stage * part->stage_records * n_tiles(h);
        return (const u8*)part->weights[part->paired ? h : 0] + (half + before) * part->tile_bytes;
    }
};
