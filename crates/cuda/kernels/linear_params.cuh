// What a launch of the linear kernels is given.
//
// A unit is 2 x 128 outputs (two halves of one matrix, or the same half of a gate and an up matrix) over all columns; a stage
// is a unit's next 256 columns (128 of float weights). Stages of all units in order are dealt to the blocks in equal shares of
// bytes, so a block may begin and end inside a unit: a segment is the stages of one unit that a block takes. Shares are a
// function of shapes, formats and the number of blocks, never of rows: so are all orders of sums.
// The host writes down each block's segments (repack/deal.rs). Code that runs once a launch is read from memory, 128 bytes
// a trip, and costs more than what it does: with segments found by arithmetic on the device and ends unrolled a launch took
// 3.5 us longer.
#pragma once
#include "image.cuh"

// Whether ops of one launch read what others of it made (linear_chain.cuh).
#ifndef LINEAR_CHAINED
#define LINEAR_CHAINED 0
#endif

#define MAX_PARTS 10
#define MAX_TILES 8
#define WARPS 16
#define THREADS (32 * WARPS)
#define UNIT_OUTPUTS 256

enum Format : u32 {
    FORMAT_F16, FORMAT_Q4_0, FORMAT_Q4_1, FORMAT_Q5_0, FORMAT_Q5_1, FORMAT_Q8_0, FORMAT_IQ4_NL, FORMAT_MXFP4,
    FORMAT_Q2_K, FORMAT_Q3_K, FORMAT_Q4_K, FORMAT_Q5_K, FORMAT_Q6_K, FORMAT_IQ4_XS,
};

// COMMON: F16, Q8_0, Q4_K, Q5_K, Q6_K, and MXFP4 of experts. Code that is not there is not fetched: with the kernels before these a step of a Q4_K_M model
// was 6 % faster than with all formats in one.
enum Formats { COMMON, ALL };

struct Segment {
    u64 weights[2];    // of each half: its first tile's first stage
    u32 tiles[2];      // of 16 outputs in each half
    u32 n;             // stages; 0 where only the unit's end is left to do
    u32 first_stage;   // of the unit
    u32 stage_bytes;   // of a tile
    u32 format;
    u32 part, unit;
    // A unit's segments in order, `n_parts` of them, each with a place for its sums; this is the `own`th, if less. Some share out its rows: this is the
    // `owner`th of `n_owners`, if less. No parts: the block's list ends.
    u32 first_place, n_parts;
    u16 own, owner, n_owners;
    u16 n_of_block;    // in a block's first segment: stages of all
};

struct Part {
    u64 scales[2];  // f32 per output
    u64 bias[2];    // f32 per output, or 0
    u64 out;        // f32 [rows, n_out]
    u32 n_out;
    u32 paired;     // 0: a unit is two halves of 128 outputs; 1: the same half of both matrices
};

// GLU: of a pair. GLU_JOIN: of what `out` holds and this.
enum Epilogue : u32 { STORE, ADD, GLU, GLU_JOIN };

struct LinearParams {
    u64 lists;       // of each block `list_bytes`: `list_segments` segments, then which input each stage needs
    u64 image;       // of this group of rows
    u64 rest;
    u64 count;       // u32: rows of the step
    u64 gate;        // f32 [rows], or 0
    u64 partials;    // f32, 64 KiB each, all bits set between launches
    u64 squares;     // f32 [rows, n_cells], where the image is of rows before their norm divides them: sums of their squares; or 0
    u64 next_image;  // of `out`, this group of rows, made here too; or 0
    u64 next_weight; // f32 per output: of the norm that the image is of; or 0
    u64 next_squares;// f32 [rows, next_cells]: of that norm
    u64 next_tap;    // f32 [rows, n_out], or 0: a copy of `out`
    u32 list_segments;
    u32 first_row;
    u32 n_cells;                // blocks of 128 columns
    u32 slot_bytes;             // of a warp's stage
    u32 n_inputs, log_inputs;   // slots of the block for inputs: a power of two
    u32 input_bytes;
    u32 epilogue;
    u32 glu_kind;
    float glu_alpha, glu_limit;
    u32 next_cells;             // of `next_image`
    Part parts[MAX_PARTS];
    u32 n_slots;                // of a warp, for weights: 2, or 1 where shared memory has no room for more
    float eps, per_column;      // of the norm that `squares` are of: what is added to their mean; one over the columns
    u32 list_bytes;
    u64 ready;                  // of a chain, u32 per 128 columns of `next_image`: rows that are made of it; or 0
    u32 first_factor;           // of a chain: where what its rows are multiplied by is kept; each phase has a place of its own
    u32 leavers;                // lanes of a warp that say that it has left an input: one; or all, for racecheck
};
