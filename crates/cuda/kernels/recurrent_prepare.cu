// Convolution along the row's path, SiLU, q and k to length one, the gates of the delta rule, and the products of each
// row's key and query with the keys before it, which all value heads of a key head share.
//
// Blocks of a key head take a sequence each (y), a warp per row; the others take a row each (y), a warp per value head.
#include "step.cuh"

struct RecurrentPrepare {
    Step step;
    const float *qkv, *b, *a, *conv, *decay, *dt_bias, *kept, *window;
    float *out, *gates;
    float2* dots;  // [row, key head, REACH]: (k_j . k, k_j . q) from the grid on, the row's own last
    u32 key_heads, value_heads, key_dim, value_dim;
};

// Where a row's inputs at positions p, p-1, p-2, p-3 are, as it sees them; before the sequence starts there are none.
struct Inputs {
    const float* at[4];
};

__device__ __forceinline__ Inputs inputs_of(const RecurrentPrepare& p, u32 r, u32 width) {
    const Row row = p.step.rows[r];
    const u32 slot = p.step.seqs[row.seq].slot, n = row.pos - grid_of(row.pos);
    Inputs inputs = {{p.qkv + (u64)r * width, nullptr, nullptr, nullptr}};
#pragma unroll
    for (u32 back = 1; back < 4; back++) {
        if (row.pos < back) continue;
        const u32 past = p.step.pasts[r * REACH + n - back];
        inputs.at[back] = past & KEPT ? p.kept + ((u64)slot * CONV_ROWS + (row.pos - back) % CONV_ROWS) * width
                                      : p.qkv + (u64)past * width;
    }
    return inputs;
}

// Channels first .. first + n of row r, convolved, by a warp; returns the sum of their squares.
__device__ __forceinline__ float convolve(const RecurrentPrepare& p, const Inputs& inputs, u32 r, u32 width, u32 first, u32 n) {
    float squares = 0.0f;
#pragma unroll 4
    for (u32 i = threadIdx.x & 31; i < n; i += 32) {
        const u32 c = first + i;
        const float4 taps = *(const float4*)(p.conv + 4 * c);
        float sum = 0.0f;
        if (inputs.at[3]) sum = __fmaf_rn(taps.x, inputs.at[3][c], sum);
        if (inputs.at[2]) sum = __fmaf_rn(taps.y, inputs.at[2][c], sum);
        if (inputs.at[1]) sum = __fmaf_rn(taps.z, inputs.at[1][c], sum);
        sum = __fmaf_rn(taps.w, inputs.at[0][c], sum);
        const float y = silu(sum);
        p.out[(u64)r * width + c] = y;
        squares = __fmaf_rn(y, y, squares);
    }
    return squares;
}

#define WARPS 16u
// Earlier rows of an item, all loaded before the first is used.
#define BATCH 8u

// Products of a row's key and query with BATCH keys before it.
__device__ __forceinline__ void key_products(const RecurrentPrepare& p, u32 h, u32 r, u32 batch, u32 slot, u32 width) {
    const u32 lane = threadIdx.x & 31, keys = p.key_heads * p.key_dim;
    const u32 window_len = keys + p.value_heads * p.value_dim + p.value_heads;
    const u32 pos = p.step.rows[r].pos, n = pos - grid_of(pos), first = batch * BATCH;
    if (first > n) return;
    const float *q = p.out + (u64)r * width + h * p.key_dim, *k = q + keys;
    const float* past[BATCH];
#pragma unroll
    for (u32 i = 0; i < BATCH; i++) {
        const u32 j = first + i, at = j < n ? p.step.pasts[r * REACH + j] : r;
        past[i] = at & KEPT ? p.window + ((u64)slot * WINDOW_ROWS + (at & ~KEPT)) * window_len + h * p.key_dim
                            : p.out + (u64)at * width + keys + h * p.key_dim;
    }
    float kk[BATCH], kq[BATCH];
#pragma unroll
    for (u32 i = 0; i < BATCH; i++) kk[i] = kq[i] = 0.0f;
    for (u32 c = lane; c < p.key_dim; c += 32) {
        const float kc = k[c], qc = q[c];
        float x[BATCH];
#pragma unroll
        for (u32 i = 0; i < BATCH; i++) x[i] = past[i][c];
#pragma unroll
        for (u32 i = 0; i < BATCH; i++) {
            kk[i] = __fmaf_rn(x[i], kc, kk[i]);
            kq[i] = __fmaf_rn(x[i], qc, kq[i]);
        }
    }
    float2* dots = p.dots + ((u64)r * p.key_heads + h) * REACH + first;
#pragma unroll
    for (u32 i = 0; i < BATCH; i++) {
        const float a = warp_sum(kk[i]), b = warp_sum(kq[i]);
        if (lane == i && first + i <= n) dots[i] = make_float2(a, b);
    }
}

__device__ __forceinline__ void key_block(const RecurrentPrepare& p, u32 h, u32 s, u32 width) {
    const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const bool is_there = s < p.step.counts[2];
    const Seq seq = is_there ? p.step.seqs[s] : Seq{};
    const u32 keys = p.key_heads * p.key_dim;
    u32 r = warp / 2 < seq.n_rows ? p.step.seq_rows[seq.first + warp / 2] : 0;
    // The step's data is there before the kernel before this one ends; its results are not.
    Inputs inputs = {};
    if (is_there && warp / 2 < seq.n_rows) inputs = inputs_of(p, r, width);
    pdl_wait();
    pdl_next();
    if (!is_there) return;
    for (u32 item = warp; item < 2 * seq.n_rows; item += WARPS) {
        if (item != warp) {
            r = p.step.seq_rows[seq.first + item / 2];
            inputs = inputs_of(p, r, width);
        }
        const u32 first = (item % 2) * keys + h * p.key_dim;
        const float squares = convolve(p, inputs, r, width, first, p.key_dim);
        const float scale = (item % 2 ? 1.0f : 1.0f / sqrtf((float)p.key_dim)) / sqrtf(warp_sum(squares) + 1e-6f);
        for (u32 i = lane; i < p.key_dim; i += 32) p.out[(u64)r * width + first + i] *= scale;
    }
    __syncthreads();
    const u32 batches = REACH / BATCH;
    for (u32 item = warp; item < batches * seq.n_rows; item += WARPS)
        key_products(p, h, p.step.seq_rows[seq.first + item / batches], item % batches, seq.slot, width);
}

extern "C" __global__ void __launch_bounds__(512) recurrent_prepare(const __grid_constant__ RecurrentPrepare p) {
    const u32 keys = p.key_heads * p.key_dim, width = 2 * keys + p.value_heads * p.value_dim;
    if (blockIdx.x < p.key_heads) return key_block(p, blockIdx.x, blockIdx.y, width);
    const u32 r = blockIdx.y, h = (blockIdx.x - p.key_heads) * WARPS + (threadIdx.x >> 5);
    const bool is_there = r < p.step.counts[0] && h < p.value_heads;
    Inputs inputs = {};
    if (is_there) inputs = inputs_of(p, r, width);
    pdl_wait();
    pdl_next();
    if (!is_there) return;
    convolve(p, inputs, r, width, 2 * keys + h * p.value_dim, p.value_dim);
    if ((threadIdx.x & 31) == 0) {
        const float x = p.a[(u64)r * p.value_heads + h] + p.dt_bias[h];
        const float softplus = x > 20.0f ? x : log1pf(expf(x));
        float* gates = p.gates + (u64)r * 2 * p.value_heads;
        gates[h] = p.decay[h] * softplus;
        gates[p.value_heads + h] = sigmoid(p.b[(u64)r * p.value_heads + h]);
    }
}
