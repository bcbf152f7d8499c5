// The chosen experts' feed-forward layers on weights in tiles.
//
// A block takes an expert and 64 outputs of its gate and its up matrix, or 128 of its down matrix; each of 8 warps sums 16 of them
// over all columns, for all rows that chose the expert, 8 or 16 at a time. The first (row, choice) pair that names an expert is
// the one whose blocks do the work, so nothing is sorted. Blocks in front of those take an expert that all rows have, some rows each. The input is brought into the form of image.cuh a stage ahead: experts'
// rows are few, and gathering them from an image would cost as much.
// A row's sums have one order whatever rows stand beside it.
#pragma once
#include "linear_params.cuh"
#include "linear_sums.cuh"
#include "route.cuh"

#define EXPERT_WARPS 8
#define EXPERT_THREADS (32 * EXPERT_WARPS)
#define MAX_CHOOSERS 2048  // rows of the largest bucket
#define MAX_CHOOSING 64     // rows whose experts a launch chooses itself

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
    const float* x;         // [pairs / x_pairs, cols]
    float* out;             // [pairs, n_out]
    ExpertMatrix parts[2];  // gate and up, or down alone
    u32 format, stage_bytes, n_stages, n_cells;
    u32 x_pairs, cols, n_out, pad;
};

enum WhoseProduct { CHOSEN, SHARED_BY_ALL };

struct ExpertParams {
    const u32* n_rows;
    const Choice* choices;  // [rows, k]
    ExpertProduct products[2];
    const u32* n_shared_rows;  // that have the shared one
    u32 shared_blocks;         // of the grid's first dimension: its blocks are the first, 8 TILES rows each
    u32 k, paired, glu_kind;
    float alpha, limit;
    Router router;  // of rows for which nobody has chosen yet; no logits: `choices` are there
};

// A warp's share of a stage's inputs: of rows warp and warp + 8 the stage's cells, a stage ahead in registers.
template <int TILES, int CELLS>
struct Ahead {
    float x[TILES][CELLS][4];
    __device__ __forceinline__ void ask(const ExpertProduct& p, const u16* rows, u32 n, u32 stage) {
        const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
        // Planes of float weights meet the same columns.
        const u32 first_cell = CELLS == 1 ? stage % p.n_cells : 2 * stage;
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int c = 0; c < CELLS; c++) {
                const u32 row = t * 8 + warp, column = (first_cell + c) * 128 + lane * 4;
                const float* from = p.x + (u64)(row < n ? rows[row] / p.x_pairs : 0) * p.cols + column;
#pragma unroll
                for (u32 i = 0; i < 4; i++) x[t][c][i] = 0.0f;
                if (row >= n) continue;
                if (p.cols % 4 == 0) {
                    if (column >= p.cols) continue;
                    const float4 v = *(const float4*)from;
                    x[t][c][0] = v.x, x[t][c][1] = v.y, x[t][c][2] = v.z, x[t][c][3] = v.w;
                } else {
#pragma unroll
                    for (u32 i = 0; i < 4; i++)
                        if (column + i < p.cols) x[t][c][i] = from[i];
                }
            }
    }
    __device__ __forceinline__ void store(u8* to) const {
        const ImageShape shape = {CELLS, TILES, TILES};
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int c = 0; c < CELLS; c++) image_store(to, shape, t * 8 + (threadIdx.x >> 5), c, x[t][c]);
    }
};

template <class F, int TILES>
__device__ __forceinline__ void sum_rows(Sums<TILES>& acc, const ExpertProduct& p, const u8* from, u32 stride, u8* slots, u8* inputs, const u16* rows, u32 n) {
    constexpr int CELLS = IsFloat<F>::value ? 1 : 2;
    constexpr u32 INPUT_BYTES = CELLS * TILES * (CELL_BYTES + REST_BYTES);
    const u32 lane_at = (threadIdx.x & 31) * 16;
    auto copy = [&](u32 stage) {
        const u32 to = shared_address(slots) + (stage & 1) * F::STAGE_BYTES;
#pragma unroll
        for (u32 i = 0; i < F::STAGE_BYTES; i += 512)
            if (i + 512 <= F::STAGE_BYTES || i + lane_at < F::STAGE_BYTES) copy_16(to + lane_at + i, from + (u64)stage * stride + lane_at + i);
        copies_end_group();
    };
    Ahead<TILES, CELLS> ahead;
    copy(0);
    ahead.ask(p, rows, n, 0);
    ahead.store(inputs);
#pragma unroll 1
    for (u32 stage = 0; stage < p.n_stages; stage++) {
        copies_wait<0>();
        __syncthreads();
        const bool goes_on = stage + 1 < p.n_stages;
        if (goes_on) copy(stage + 1), ahead.ask(p, rows, n, stage + 1);
        F w(slots + (stage & 1) * F::STAGE_BYTES);
        const u32 cell = shared_address(inputs) + (stage & 1) * INPUT_BYTES;
        sum_stage_by_warp<F, TILES>(acc, w, cell, cell + TILES * CELL_BYTES, 2 * stage + 1 < p.n_cells);
        if (goes_on) ahead.store(inputs + ((stage + 1) & 1) * INPUT_BYTES);
    }
    // The next rows begin with what the last stage may still be read from.
    __syncthreads();
}

template <Formats FORMATS, int TILES>
__device__ __forceinline__ void sum_format(Sums<TILES>& acc, const ExpertProduct& p, const u8* from, u32 stride, u8* slots, u8* inputs, const u16* rows, u32 n) {
#define SUM(F) sum_rows<F, TILES>(acc, p, from, stride, slots, inputs, rows, n)
    switch (p.format) {
    case FORMAT_F16: return SUM(F16);
    case FORMAT_Q8_0: return SUM(Q8_0);
    case FORMAT_Q4_K: return SUM(Q4K);
    case FORMAT_Q5_K: return SUM(Q5K);
    case FORMAT_Q6_K: return SUM(Q6K);
    case FORMAT_MXFP4: return SUM(Mxfp4);
    }
    if constexpr (FORMATS == ALL) {
        switch (p.format) {
        case FORMAT_Q4_0: return SUM(Q4_0);
        case FORMAT_Q4_1: return SUM(Q4_1);
        case FORMAT_Q5_0: return SUM(Q5_0);
        case FORMAT_Q5_1: return SUM(Q5_1);
        case FORMAT_IQ4_NL: return SUM(Iq4Nl);
        case FORMAT_Q2_K: return SUM(Q2K);
        case FORMAT_Q3_K: return SUM(Q3K);
        case FORMAT_IQ4_XS: return SUM(Iq4Xs);
        }
    }
#undef SUM
}

// The pairs that chose the same expert as the block's, in order, and which it is; 0 where an earlier pair has.
__device__ __forceinline__ u32 choosers(const Choice* choices, u32 pair, u32 n_pairs, u16* mine, u32& expert) {
    __shared__ u32 found;
    const u32 lane = threadIdx.x & 31;
    expert = choices[pair].index;
    bool is_taken = false;
    for (u32 i = threadIdx.x; i < pair; i += EXPERT_THREADS) is_taken |= choices[i].index == expert;
    if (__syncthreads_or(is_taken)) return 0;
    if (threadIdx.x < 32) {
        u32 n = 0;
        for (u32 first = pair; first < n_pairs; first += 32) {
            const bool is_mine = first + lane < n_pairs && choices[first + lane].index == expert;
            const u32 which = __ballot_sync(0xffffffffu, is_mine);
            if (is_mine) mine[n + __popc(which & ((1u << lane) - 1))] = (u16)(first + lane);
            n += __popc(which);
        }
        if (lane == 0) found = n;
    }
    __syncthreads();
    return found;
}

// The same where the block chooses: its pair is the so-manieth expert of its row, and rows have chosen it too where it is among their
// best. The first block of a row's first pair also stores what the row chose, for the launches behind this one.
__device__ __forceinline__ u32 choose(const ExpertParams& p, u32 pair, u32 n_rows, u16* mine, u32& expert) {
    __shared__ u16 ranks[MAX_CHOOSING];
    __shared__ u32 chosen, found;
    const u32 row = pair / p.k, own_rank = pair % p.k, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    if (warp == 0) {
        const bool stores = own_rank == 0 && blockIdx.y == 0;
        const u32 e = stores ? route_row(p.router, row) : best_experts(p.router.logits + (u64)row * p.router.n_experts, p.router.n_experts, own_rank + 1, [](u32, u32, float) {});
        if (lane == 0) chosen = e;
    }
    __syncthreads();
    expert = chosen;
    for (u32 r = warp; r < n_rows; r += EXPERT_WARPS) {
        const u32 rank = r == row ? own_rank : rank_of(p.router, r, expert);
        if (lane == 0) ranks[r] = (u16)min(rank, p.k);
    }
    __syncthreads();
    if (warp == 0) {
        u32 n = 0;
        bool is_taken = false;
        for (u32 first = 0; first < n_rows; first += 32) {
            const u32 r = first + lane, rank = r < n_rows ? ranks[r] : p.k, which = __ballot_sync(0xffffffffu, rank < p.k);
            if (rank < p.k) mine[n + __popc(which & ((1u << lane) - 1))] = (u16)(r * p.k + rank);
            is_taken |= __any_sync(0xffffffffu, rank < p.k && r < row);
            n += __popc(which);
        }
        if (lane == 0) found = is_taken ? 0 : n;
    }
    __syncthreads();
    return found;
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
        const u32 pair = blockIdx.x - p.shared_blocks, n_rows = *p.n_rows, n_pairs = n_rows * p.k;
        if (pair >= n_pairs) return;
        n = p.router.logits ? choose(p, pair, n_rows, mine, expert) : choosers(p.choices, pair, n_pairs, mine, expert);
    }
    if (n == 0) return;
    const u32 warp = threadIdx.x >> 5;
    const u32 which = p.paired ? warp / 4 : 0, output = p.paired ? blockIdx.y * 64 + warp % 4 * 16 : blockIdx.y * 128 + warp * 16;
    const ExpertMatrix& m = product.parts[which];
    // A warp without outputs reads another's weights, and stores nothing.
    const bool has_outputs = output < product.n_out;
    const u32 first = expert * m.stride + m.first + (has_outputs ? output : 0), tile = first / 16, half = tile / 8;
    const u32 tiles = m.n_tiles - 8 * half < 8 ? m.n_tiles - 8 * half : 8;
    const u8* from = (const u8*)m.tiles + ((u64)half * 8 * product.n_stages + tile % 8) * product.stage_bytes;
    const Lane l;
    float scale[2], bias[2];
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        scale[i] = ((const float*)m.scales)[first + l.g + 8 * i];
        bias[i] = m.bias && has_outputs ? ((const float*)m.bias)[(u64)expert * product.n_out + output + l.g + 8 * i] : 0.0f;
    }
    u8* const slots = shared + warp * 2 * product.stage_bytes;
    u8* const inputs = shared + EXPERT_WARPS * 2 * product.stage_bytes;
#pragma unroll 1
    for (u32 done = 0; done < n; done += 8 * TILES) {
        Sums<TILES> sums;
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int i = 0; i < 4; i++) sums[t][i] = 0.0f;
        sum_format<FORMATS, TILES>(sums, product, from, tiles * product.stage_bytes, slots, inputs, mine + done, n - done);
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
    extern "C" __global__ void __launch_bounds__(EXPERT_THREADS) NAME(const __grid_constant__ ExpertParams p) { experts<FORMATS, TILES>(p); }
