// A norm and, beside it, the logits of a router that reads it: blocks of the one have a row each, blocks of the other 8 outputs (experts, or a
// shared one's gate) of some rows. These read rows before their norm, which they divide their own sums by, so nobody waits for a norm. All in
// f32. A block's warps share the columns, not the outputs: each number of a row is read once a block. The last block to be done with some rows chooses their experts.
#include "norm.cuh"
#include "route.cuh"

#define ROUTER_THREADS NARROW_NORM_THREADS
#define ROUTER_WARPS (ROUTER_THREADS / 32)
#define ROUTER_OUTPUTS 8u
#define ROUTER_PARTS 2
// Rows that are on their way at once.
#define ROUTER_ROWS 4u

struct RouterPart {
    const float *weight, *bias;  // [n_out, width]; [n_out] or none
    float* out;                  // [rows, n_out]
    u32 n_out, pad;
};
struct NormRouter {
    Norm norm;
    RouterPart parts[ROUTER_PARTS];
    u32 n_outputs;     // of all parts
    u32 n_blocks;      // of the grid that have outputs; rows' norms are behind them
    u32 rows_a_block;  // of those
    u32 pad;
    Router router;
    u32* done;         // blocks, of each rows_a_block rows; zero again behind the launch
};

// An output, found among the parts.
struct RouterOutput {
    const RouterPart& part;
    u32 index;
    __device__ __forceinline__ RouterOutput(const NormRouter& p, u32 o) : part(p.parts[o < p.parts[0].n_out ? 0 : 1]), index(o < p.parts[0].n_out ? o : o - p.parts[0].n_out) {}
};

__device__ __forceinline__ float dot(float4 a, float4 b, float sum) {
    sum = __fmaf_rn(a.x, b.x, sum), sum = __fmaf_rn(a.y, b.y, sum);
    return __fmaf_rn(a.w, b.w, __fmaf_rn(a.z, b.z, sum));
}

// Adds up eight sums of each lane over the warp; lanes 4 i to 4 i + 3 get the ith.
__device__ __forceinline__ float sum_of_eight(float (&sums)[ROUTER_OUTPUTS]) {
    const u32 lane = threadIdx.x & 31;
#pragma unroll
    for (u32 half = 4; half > 0; half /= 2) {
        const bool is_upper = lane & 4 * half;
#pragma unroll
        for (u32 i = 0; i < half; i++) {
            const float sent = is_upper ? sums[i] : sums[i + half], kept = is_upper ? sums[i + half] : sums[i];
            sums[i] = kept + __shfl_xor_sync(0xffffffffu, sent, 4 * half);
        }
    }
    sums[0] += __shfl_xor_sync(0xffffffffu, sums[0], 2);
    return sums[0] + __shfl_xor_sync(0xffffffffu, sums[0], 1);
}

// STEPS of 1024 columns hold a row.
template <u32 STEPS>
__device__ __forceinline__ void route_outputs(const NormRouter& p, u32 first_output, u32 first_row, u32 end) {
    // By warp: a row's sums and, last, its squares'. Two, so that one barrier a turn is enough.
    __shared__ float partial[2][ROUTER_ROWS][ROUTER_OUTPUTS + 1][ROUTER_WARPS];
    const u32 chunks = p.norm.width / 4, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    // Each times the norm's weight, and there before the rows are.
    float4 weight[STEPS][ROUTER_OUTPUTS];
#pragma unroll
    for (u32 s = 0; s < STEPS; s++)
#pragma unroll
        for (u32 o = 0; o < ROUTER_OUTPUTS; o++) {
            const u32 c = s * ROUTER_THREADS + threadIdx.x;
            const RouterOutput of(p, first_output + o);
            weight[s][o] = c < chunks && first_output + o < p.n_outputs ? ((const float4*)of.part.weight)[(u64)of.index * chunks + c] : zero;
        }
#pragma unroll
    for (u32 s = 0; s < STEPS; s++) {
        const u32 c = s * ROUTER_THREADS + threadIdx.x;
        const float4 v = c < chunks ? ((const float4*)p.norm.weight)[c] : zero;
#pragma unroll
        for (u32 o = 0; o < ROUTER_OUTPUTS; o++) {
            float4& w = weight[s][o];
            w = make_float4(__fmul_rn(w.x, v.x), __fmul_rn(w.y, v.y), __fmul_rn(w.z, v.z), __fmul_rn(w.w, v.w));
        }
    }
    pdl_wait();
    pdl_next();
#pragma unroll 1
    for (u32 row = first_row, turn = 0; row < end; row += ROUTER_ROWS, turn ^= 1) {
        const u32 n = min(end - row, ROUTER_ROWS);
        const float4* from = (const float4*)p.norm.x + (u64)row * chunks;
        float4 x[ROUTER_ROWS][STEPS];
#pragma unroll
        for (u32 r = 0; r < ROUTER_ROWS; r++)
#pragma unroll
            for (u32 s = 0; s < STEPS; s++) {
                const u32 c = s * ROUTER_THREADS + threadIdx.x;
                x[r][s] = r < n && c < chunks ? from[r * chunks + c] : zero;
            }
#pragma unroll
        for (u32 r = 0; r < ROUTER_ROWS; r++) {
            if (r >= n) break;
            float sums[ROUTER_OUTPUTS], squares = 0.0f;
#pragma unroll
            for (u32 o = 0; o < ROUTER_OUTPUTS; o++) sums[o] = 0.0f;
#pragma unroll
            for (u32 s = 0; s < STEPS; s++) {
                squares = dot(x[r][s], x[r][s], squares);
#pragma unroll
                for (u32 o = 0; o < ROUTER_OUTPUTS; o++) sums[o] = dot(x[r][s], weight[s][o], sums[o]);
            }
            const float sum = sum_of_eight(sums);
            squares = warp_sum(squares);
            if (lane % 4 == 0) partial[turn][r][lane / 4][warp] = sum;
            if (lane == 1) partial[turn][r][ROUTER_OUTPUTS][warp] = squares;
        }
        __syncthreads();
        const u32 r = threadIdx.x / ROUTER_OUTPUTS, o = threadIdx.x % ROUTER_OUTPUTS;
        if (r >= n || first_output + o >= p.n_outputs) continue;
        float sum = 0.0f, squares = 0.0f;
#pragma unroll
        for (u32 w = 0; w < ROUTER_WARPS; w++) sum += partial[turn][r][o][w], squares += partial[turn][r][ROUTER_OUTPUTS][w];
        const RouterOutput of(p, first_output + o);
        const float scale = 1.0f / sqrtf(squares / (float)p.norm.width + p.norm.eps);
        of.part.out[(u64)(row + r) * of.part.n_out + of.index] = __fmaf_rn(sum, scale, of.part.bias ? of.part.bias[of.index] : 0.0f);
    }
}

// By a block whose logits of these rows are stored: of the `n_blocks` that have them the last sees all logits.
__device__ __forceinline__ void choose_if_last(const NormRouter& p, u32* done, u32 n_blocks, u32 first_row, u32 end) {
    __shared__ bool is_last;
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        is_last = atomicInc(done, n_blocks - 1) == n_blocks - 1;
        __threadfence();
    }
    __syncthreads();
    if (!is_last) return;
    for (u32 row = first_row + (threadIdx.x >> 5); row < end; row += ROUTER_WARPS) route_row(p.router, row);
}

template <u32 STEPS>
__device__ __forceinline__ void norm_and_route(const NormRouter& p) {
    __shared__ float room[2 * ROUTER_WARPS];
    if (blockIdx.x >= p.n_blocks) return norm_chunks<ROUTER_THREADS>(p.norm, blockIdx.x - p.n_blocks, room);
    const u32 n_groups = (p.n_outputs + ROUTER_OUTPUTS - 1) / ROUTER_OUTPUTS, part = blockIdx.x / n_groups, first_row = part * p.rows_a_block;
    const u32 end = min(first_row + p.rows_a_block, *p.norm.n_rows);
    route_outputs<STEPS>(p, blockIdx.x % n_groups * ROUTER_OUTPUTS, first_row, end);
    if (first_row < end) choose_if_last(p, p.done + part, n_groups, first_row, end);
}
extern "C" __global__ void __launch_bounds__(ROUTER_THREADS) norm_and_route_2(const __grid_constant__ NormRouter p) { norm_and_route<2>(p); }
extern "C" __global__ void __launch_bounds__(ROUTER_THREADS) norm_and_route_4(const __grid_constant__ NormRouter p) { norm_and_route<4>(p); }
