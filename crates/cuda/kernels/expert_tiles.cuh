// The chosen experts' feed-forward layers on weights in tiles.
//
// A block takes an expert and 64 outputs of its gate and its up matrix, or 128 of its down matrix; each of 8 warps sums 16 of them
// over all columns, for all rows that chose the expert, 8 or 16 at a time. Where experts are fewer than (row, choice) pairs each has blocks; else the first
// pair that names an expert is the one whose blocks do the work, so nothing is sorted. Blocks in front of those take an expert that all rows have, some
// rows each.
// A row's sums have one order whatever rows stand beside it.
#pragma once
#include "choice.cuh"
#include "expert_inputs.cuh"
#include "linear_params.cuh"

#define EXPERT_WARPS 8
#define EXPERT_THREADS (32 * EXPERT_WARPS)
#define MAX_CHOOSERS 2048  // rows of the largest bucket

// Of a stack.
struct ExpertMatrix {
    u64 tiles, scales;
    u64 bias;             // f32 [experts, outputs], or 0
    u32 n_tiles;          // of all experts
    u32 stride, first;    // outputs of an expert in the stack, and the first of them that count
    u32 pad;
};

// Of all experts that rows choose among, or of one that every row has.
struct ExpertProduct {
    ExpertInput input;
    float* out;             // [pairs, n_out]
    ExpertMatrix parts[2];  // gate and up, or down alone
    u32 format, stage_bytes, n_stages, n_out;
};

enum WhoseProduct { CHOSEN, SHARED_BY_ALL };

struct ExpertParams {
    const u32* n_rows;
    const Choice* choices;  // [rows, k]
    ExpertProduct products[2];
    const u32* n_shared_rows;  // that have the shared one
    u32 shared_blocks;         // of the grid's first dimension: its blocks are the first, 8 TILES rows each
    u32 n_experts;             // that have blocks each; 0: pairs have
    u32 n_inputs;              // stages that have inputs in shared memory
    u32 k, paired, glu_kind;
    float alpha, limit;
};

// A warp's weights, and its two slots for a stage of them; places of inputs.
struct Tiles {
    const u8* from;
    u32 stride;  // of stages
    u8 *slots, *inputs;
    u32 n_inputs;
    template <class F>
    __device__ __forceinline__ const u8* slot(u32 stage) const { return slots + (stage & 1) * F::STAGE_BYTES; }
};

template <class F>
__device__ __forceinline__ void copy_stage(const Tiles& tiles, u32 stage) {
    const u32 lane_at = (threadIdx.x & 31) * 16, to = shared_address(tiles.slot<F>(stage));
#pragma unroll
    for (u32 i = 0; i < F::STAGE_BYTES; i += 512)
        if (i + 512 <= F::STAGE_BYTES || i + lane_at < F::STAGE_BYTES) copy_16(to + lane_at + i, tiles.from + (u64)stage * tiles.stride + lane_at + i);
    copies_end_group();
}
template <class F, int TILES>
__device__ __forceinline__ void sum_stage(Sums<TILES>& acc, const ExpertProduct& p, const Tiles& tiles, u32 stage, const u8* inputs) {
    F w(tiles.slot<F>(stage));
    const u32 cell = shared_address(inputs);
    sum_stage_by_warp<F, TILES>(acc, w, cell, cell + TILES * CELL_BYTES, 2 * stage + 1 < p.input.n_cells);
}

// `work`, told the format of the weights.
template <Formats FORMATS, class Work>
__device__ __forceinline__ void by_format(u32 format, const Work& work) {
    switch (format) {
    case FORMAT_F16: return work.template run<F16>();
    case FORMAT_Q8_0: return work.template run<Q8_0>();
    case FORMAT_Q4_K: return work.template run<Q4K>();
    case FORMAT_Q5_K: return work.template run<Q5K>();
    case FORMAT_Q6_K: return work.template run<Q6K>();
    case FORMAT_MXFP4: return work.template run<Mxfp4>();
    }
    if constexpr (FORMATS == ALL) {
        switch (format) {
        case FORMAT_Q4_0: return work.template run<Q4_0>();
        case FORMAT_Q4_1: return work.template run<Q4_1>();
        case FORMAT_Q5_0: return work.template run<Q5_0>();
        case FORMAT_Q5_1: return work.template run<Q5_1>();
        case FORMAT_IQ4_NL: return work.template run<Iq4Nl>();
        case FORMAT_Q2_K: return work.template run<Q2K>();
        case FORMAT_Q3_K: return work.template run<Q3K>();
        case FORMAT_IQ4_XS: return work.template run<Iq4Xs>();
        }
    }
}

struct Begin {
    const Tiles& tiles;
    template <class F>
    __device__ __forceinline__ void run() const {
        copy_stage<F>(tiles, 0);
    }
};
// Of stages whose inputs are there.
struct SumStages {
    Sums<1>& acc;
    const ExpertProduct& p;
    const Tiles& tiles;
    u32 first, end;
    template <class F>
    __device__ __forceinline__ void run() const {
        const u8* inputs = tiles.inputs;
#pragma unroll 1
        for (u32 stage = first; stage < end; stage++, inputs += StageInputs<1>::bytes(IsFloat<F>::value)) {
            copies_wait<0>();
            __syncwarp();
            if (stage + 1 < p.n_stages) copy_stage<F>(tiles, stage + 1);
            sum_stage<F, 1>(acc, p, tiles, stage, inputs);
        }
    }
};
// Of all stages, their inputs a stage ahead.
template <int TILES>
struct SumAhead {
    Sums<TILES>& acc;
    const ExpertProduct& p;
    const Tiles& tiles;
    const u16* pairs;
    u32 n;
    template <class F>
    __device__ __forceinline__ void run() const {
        constexpr bool IS_FLOAT = IsFloat<F>::value;
        const auto inputs = [&](u32 stage) { return tiles.inputs + (stage & 1) * StageInputs<TILES>::bytes(IS_FLOAT); };
        copy_stage<F>(tiles, 0);
        Ahead<IS_FLOAT, TILES> ahead(p.input, pairs, n);
        ahead.ask(p.input, 0);
        ahead.store({inputs(0)});
#pragma unroll 1
        for (u32 stage = 0; stage < p.n_stages; stage++) {
            copies_wait<0>();
            __syncthreads();
            const bool goes_on = stage + 1 < p.n_stages;
            if (goes_on) copy_stage<F>(tiles, stage + 1), ahead.ask(p.input, stage + 1);
            sum_stage<F, TILES>(acc, p, tiles, stage, inputs(stage));
            if (goes_on) ahead.store({inputs(stage + 1)});
        }
        // The next rows begin with what the last stage may still be read from.
        __syncthreads();
    }
};

// A warp's 16 outputs of up to 8 TILES pairs, over all columns.
template <Formats FORMATS, int TILES>
__device__ __forceinline__ void sum_pairs(Sums<TILES>& acc, const ExpertProduct& p, const Tiles& tiles, const u16* pairs, u32 n) {
    if constexpr (TILES > 1) {
        by_format<FORMATS>(p.format, SumAhead<TILES>{acc, p, tiles, pairs, n});
    } else {
        // Formats are told three times, so that inputs are brought by code that is there once: with it in each format's, 900 bytes of registers spilled.
        by_format<FORMATS>(p.format, Begin{tiles});
#pragma unroll 1
        for (u32 first = 0; first < p.n_stages; first += tiles.n_inputs) {
            const u32 end = min(p.n_stages, first + tiles.n_inputs);
            bring_inputs(p.input, p.format == FORMAT_F16, pairs, min(n, 8), first, end - first, tiles.inputs);
            __syncthreads();
            by_format<FORMATS>(p.format, SumStages{acc, p, tiles, first, end});
            // The next stages' inputs take the places of these, or the next pairs'.
            __syncthreads();
        }
    }
}

// The pairs that chose the expert, in order; none where one of them is before `own`.
__device__ __forceinline__ u32 choosers(const Choice* choices, u32 expert, u32 own, u32 n_pairs, u16* mine) {
    __shared__ u32 counts[2][EXPERT_WARPS];
    const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    u32 n = 0;
#pragma unroll 1
    for (u32 first = 0, turn = 0; first < n_pairs; first += EXPERT_THREADS, turn ^= 1) {
        const u32 pair = first + threadIdx.x;
        const bool is_mine = pair < n_pairs && choices[pair].index == expert;
        const u32 which = __ballot_sync(0xffffffffu, is_mine);
        if (lane == 0) counts[turn][warp] = __popc(which);
        if (__syncthreads_or(is_mine && pair < own)) return 0;
        u32 before = n;
#pragma unroll
        for (u32 w = 0; w < EXPERT_WARPS; w++) {
            const u32 count = counts[turn][w];
            n += count;
            if (w < warp) before += count;
        }
        if (is_mine) mine[before + __popc(which & ((1u << lane) - 1))] = (u16)pair;
    }
    __syncthreads();
    return n;
}

// The block's rows of those that all have the shared expert.
template <u32 ROWS>
__device__ __forceinline__ u32 rows_of_shared(const ExpertParams& p, u16* mine) {
    const u32 first = blockIdx.x * ROWS, n_rows = *p.n_shared_rows;
    if (threadIdx.x < ROWS) mine[threadIdx.x] = (u16)(first + threadIdx.x);
    __syncthreads();
    return first < n_rows ? min(n_rows - first, ROWS) : 0;
}

template <Formats FORMATS, int TILES>
__device__ __forceinline__ void experts(const ExpertParams& p) {
    extern __shared__ __align__(128) u8 shared[];
    __shared__ u16 mine[MAX_CHOOSERS];
    __shared__ float ups[EXPERT_THREADS / 2][TILES * 4 + 1];
    pdl_wait();
    pdl_next();
    const bool is_shared = blockIdx.x < p.shared_blocks;
    const ExpertProduct& product = p.products[is_shared ? SHARED_BY_ALL : CHOSEN];
    if (blockIdx.y * (p.paired ? 64 : 128) >= product.n_out) return;
    u32 expert = 0, n;
    if (is_shared) {
        n = rows_of_shared<8 * TILES>(p, mine);
    } else {
        const u32 nth = blockIdx.x - p.shared_blocks, n_pairs = *p.n_rows * p.k;
        if (!p.n_experts && nth >= n_pairs) return;
        expert = p.n_experts ? nth : p.choices[nth].index;
        n = choosers(p.choices, expert, p.n_experts ? 0 : nth, n_pairs, mine);
    }
    if (n == 0) return;
    const u32 warp = threadIdx.x >> 5;
    const u32 which = p.paired ? warp / 4 : 0, output = p.paired ? blockIdx.y * 64 + warp % 4 * 16 : blockIdx.y * 128 + warp * 16;
    const ExpertMatrix& m = product.parts[which];
    // A warp without outputs reads another's weights, and stores nothing.
    const bool has_outputs = output < product.n_out;
    const u32 first = expert * m.stride + m.first + (has_outputs ? output : 0), tile = first / 16, half = tile / 8;
    const u32 n_beside = m.n_tiles - 8 * half < 8 ? m.n_tiles - 8 * half : 8;
    const Tiles tiles = {(const u8*)m.tiles + ((u64)half * 8 * product.n_stages + tile % 8) * product.stage_bytes, n_beside * product.stage_bytes,
                         shared + warp * 2 * product.stage_bytes, shared + EXPERT_WARPS * 2 * product.stage_bytes, p.n_inputs};
    const Lane l;
    float scale[2], bias[2];
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        scale[i] = ((const float*)m.scales)[first + l.g + 8 * i];
        bias[i] = m.bias && has_outputs ? ((const float*)m.bias)[(u64)expert * product.n_out + output + l.g + 8 * i] : 0.0f;
    }
#pragma unroll 1
    for (u32 done = 0; done < n; done += 8 * TILES) {
        Sums<TILES> sums;
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int i = 0; i < 4; i++) sums[t][i] = 0.0f;
        sum_pairs<FORMATS, TILES>(sums, product, tiles, mine + done, n - done);
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                sums[t][i] = __fmaf_rn(sums[t][i], scale[i >> 1], bias[i >> 1]);
                if (which == 1) ups[threadIdx.x - EXPERT_THREADS / 2][t * 4 + i] = sums[t][i];
            }
        if (p.paired) __syncthreads();
        if (which == 1 || !has_outputs) continue;
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const u32 row = done + t * 8 + 2 * l.t + (i & 1);
                if (row >= n) continue;
                const float y = p.paired ? glu(p.glu_kind, p.alpha, p.limit, sums[t][i], ups[threadIdx.x][t * 4 + i]) : sums[t][i];
                product.out[(u64)mine[row] * product.n_out + output + l.g + 8 * (i >> 1)] = y;
            }
    }
}

#define EXPERT_KERNEL(NAME, FORMATS, TILES) \
    extern "C" __global__ void __launch_bounds__(EXPERT_THREADS, 2) NAME(const __grid_constant__ ExpertParams p) { experts<FORMATS, TILES>(p); }
