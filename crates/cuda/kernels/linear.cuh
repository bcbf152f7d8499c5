// y = x W' for up to 64 rows, any mix of weight formats in one launch.
//
// A block walks its share of stages (linear_params.cuh): each of 16 warps copies and decodes 16 outputs of a stage and multiplies
// them with the stage's columns of all rows (linear_sums.cuh), until the unit or the share ends. What a launch does once is kept
// short and in this order: first weights on their way, then everything that does not need the input, then the input.
#pragma once
#include "linear_finish.cuh"

// Adds `n` stages of the warp's tile. `odd`: the last has only its first 128 columns.
template <class F, int TILES>
__device__ __forceinline__ void sum_stages(Sums<TILES>& acc, Stream& stream, Inputs<TILES>& inputs, u32 n, bool odd) {
#pragma unroll 1
    for (; n > 0; n--) {
        inputs.refill();
        copies_wait<0>();
        __syncwarp();
        if (N_SLOTS(inputs.p) == 2) {
            if (n > 1) stream.copy_next<F::STAGE_BYTES>();
            else stream.segment++, stream.copy_first();
        }
        F w(shared_at(stream.now));
        stream.turn();
        // The same for all lanes, which the compiler no longer knows after the loops at a unit's end: without this it moves every
        // operand's address to uniform registers by itself, 40 instructions a stage.
        const u32 cell = __shfl_sync(0xffffffffu, inputs.wait(), 0);
        sum_stage<F, TILES>(acc, w, cell, cell + TILES * CELL_BYTES, n > 1 || !odd);
        inputs.leave();
        // The only slot is free now; after a segment's last stage the ends of its rows have it first.
        if (N_SLOTS(inputs.p) == 1 && n > 1) stream.copy_next<F::STAGE_BYTES>();
    }
}

template <Formats FORMATS, int TILES>
__device__ __forceinline__ void sum_segment(u32 format, Sums<TILES>& acc, Stream& stream, Inputs<TILES>& inputs, u32 n, bool odd) {
#define SUM(F) sum_stages<F, TILES>(acc, stream, inputs, n, odd)
    switch (format) {
    case FORMAT_F16: return SUM(F16);
    case FORMAT_Q8_0: return SUM(Q8_0);
    case FORMAT_Q4_K: return SUM(Q4K);
    case FORMAT_Q5_K: return SUM(Q5K);
    case FORMAT_Q6_K: return SUM(Q6K);
    }
    if constexpr (FORMATS == ALL) {
        switch (format) {
        case FORMAT_Q4_0: return SUM(Q4_0);
        case FORMAT_Q4_1: return SUM(Q4_1);
        case FORMAT_Q5_0: return SUM(Q5_0);
        case FORMAT_Q5_1: return SUM(Q5_1);
        case FORMAT_IQ4_NL: return SUM(Iq4Nl);
        case FORMAT_MXFP4: return SUM(Mxfp4);
        case FORMAT_Q2_K: return SUM(Q2K);
        case FORMAT_Q3_K: return SUM(Q3K);
        case FORMAT_IQ4_XS: return SUM(Iq4Xs);
        }
    }
#undef SUM
}

template <Formats FORMATS, int TILES>
__device__ __forceinline__ void linear(const LinearParams& p) {
    extern __shared__ __align__(128) u8 shared[];
    Room& room = *(Room*)shared;
    const u32 warp = __shfl_sync(0xffffffffu, threadIdx.x >> 5, 0), base = shared_register(shared);
    const u32 rings = base + (u32)sizeof(Room), inputs_at = rings + WARPS * N_SLOTS(p) * p.slot_bytes, segments_at = inputs_at + p.n_inputs * p.input_bytes;
    const Segment* const segments = (const Segment*)(shared + (segments_at - base));
    const u8* list = (const u8*)p.lists + (u64)blockIdx.x * p.list_bytes;
#pragma unroll 1
    for (u32 at = threadIdx.x * 16; at < p.list_bytes; at += THREADS * 16) copy_16(segments_at + at, list + at);
    copies_end_group();
    const u32 n_rows = rows_of_group<TILES>(p);
    // A warp each: a warp's lanes would do so one after another.
    if ((threadIdx.x & 31) == 0) barrier_init(base + warp * 8, warp < MAX_INPUTS ? COPY_LANES : WARPS * p.leavers);
    barrier_init_visible();
    if (threadIdx.x == 0) room.n_rows = n_rows;
    if (threadIdx.x < 8 * TILES) room.factor[threadIdx.x] = 1.0f;
    copies_wait<0>();
    __syncthreads();
    pdl_next();
    const u32 slot = rings + warp * N_SLOTS(p) * p.slot_bytes;
    Stream stream = {segments, nullptr, 0, N_SLOTS(p) == 2 ? slot + p.slot_bytes : slot, slot};
    stream.copy_first();
    stream.turn();

    Inputs<TILES> inputs = {p, inputs_at, base, base + 8 * MAX_INPUTS, (const u32*)(segments + p.list_segments), segments->n_of_block, 0, (threadIdx.x & 31) < p.leavers};
    // Only who reads what the launch ahead makes waits for its end. With few rows that is the warp that begins with the inputs, and those with a
    // row's factor: the others come to their first input meanwhile, and have fetched the code on the way.
    if (TILES > FEW_TILES || warp == 0 || (p.squares && row_of_warp(warp) < n_rows)) {
        pdl_wait();
        if (warp == 0) inputs.begin();
        make_factors<TILES>(p, room, warp, n_rows);
    }

#pragma unroll 1
    for (const Segment* s = segments; s->n_parts > 0; s++) {
        if (s->owner < s->n_owners) ask_for_scales(p, p.parts[s->part], s->unit, room);
        // With two slots the next stage's copies end the group.
        if (N_SLOTS(p) == 1) copies_end_group();
        Sums<TILES> sums;
#pragma unroll
        for (int i = 0; i < TILES; i++)
#pragma unroll
            for (int k = 0; k < 4; k++) sums[i][k] = 0.0f;
        sum_segment<FORMATS, TILES>(s->format, sums, stream, inputs, s->n, 2 * (s->first_stage + s->n) > p.n_cells);
        finish<TILES>(p, *s, room, {shared + (stream.other - base - warp * N_SLOTS(p) * p.slot_bytes), N_SLOTS(p) * p.slot_bytes, (int)(stream.now - stream.other)}, sums);
        if (N_SLOTS(p) == 1) stream.segment++, stream.copy_first();
    }
}
