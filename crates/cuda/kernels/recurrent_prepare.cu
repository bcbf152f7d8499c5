// Convolution along the row's path, SiLU, q and k to length one, the gates of the delta rule, and the products of each
// row's key and query with the keys before it, which all value heads of a key head share.
//
// Blocks of a key head take a sequence each (y), a warp per row; the others take a row each (y), a warp per value head.
#include "step.cuh"

#define REACH 32u

struct RecurrentPrepare {
    Step step;
    const float *qkv, *b, *a, *conv, *decay, *dt_bias, *kept, *window;
    float *out, *gates;
    float2* dots;  // [row, key head, REACH]: (k_j . k, k_j . q) from the grid on, the row's own last
    u32 key_heads, value_heads, key_dim, value_dim;
};

// Channels first .. first + n of row r, convolved, by a warp; returns the sum of their squares.
__device__ __forceinline__ float convolve(const RecurrentPrepare& p, u32 r, u32 width, u32 first, u32 n) {
    const Row row = p.step.rows[r];
    const Seq seq = p.step.seqs[row.seq];
    // The inputs at positions p, p-1, p-2, p-3 as this row sees them; before the sequence starts they are zero.
    const float* inputs[4];
    u32 at = r;
#pragma unroll
    for (u32 back = 0; back < 4; back++) {
        inputs[back] = nullptr;
        if (row.pos < back) continue;
        const u32 pos = row.pos - back;
        if (pos >= seq.committed) {
            inputs[back] = p.qkv + (u64)at * width;
            at = p.step.rows[at].parent;
        } else {
            inputs[back] = p.kept + ((u64)seq.slot * CONV_ROWS + pos % CONV_ROWS) * width;
        }
    }
    float squares = 0.0f;
    for (u32 i = threadIdx.x & 31; i < n; i += 32) {
        const u32 c = first + i;
        const float4 taps = *(const float4*)(p.conv + 4 * c);
        float sum = 0.0f;
        if (inputs[3]) sum = __fmaf_rn(taps.x, inputs[3][c], sum);
        if (inputs[2]) sum = __fmaf_rn(taps.y, inputs[2][c], sum);
        if (inputs[1]) sum = __fmaf_rn(taps.z, inputs[1][c], sum);
        sum = __fmaf_rn(taps.w, inputs[0][c], sum);
        const float y = silu(sum);
        p.out[(u64)r * width + c] = y;
        squares = __fmaf_rn(y, y, squares);
    }
    return squares;
}

__device__ __forceinline__ void key_block(const RecurrentPrepare& p, u32 h, u32 s, u32 width) {
    if (s >= p.step.counts[2]) return;
    const Seq seq = p.step.seqs[s];
    const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, n_warps = blockDim.x >> 5;
    const u32 keys = p.key_heads * p.key_dim, sure_end = seq.committed + seq.n_sure;
    for (u32 item = warp; item < 2 * seq.n_rows; item += n_warps) {
        const u32 r = p.step.seq_rows[seq.first + item / 2], first = (item % 2) * keys + h * p.key_dim;
        const float squares = convolve(p, r, width, first, p.key_dim);
        const float scale = (item % 2 ? 1.0f : 1.0f / sqrtf((float)p.key_dim)) / sqrtf(warp_sum(squares) + 1e-6f);
        for (u32 i = lane; i < p.key_dim; i += 32) p.out[(u64)r * width + first + i] *= scale;
    }
    __syncthreads();
    const u32 window_len = keys + p.value_heads * p.value_dim + p.value_heads;
    // Eight earlier rows an item.
    for (u32 item = warp; item < 4 * seq.n_rows; item += n_warps) {
        const u32 r = p.step.seq_rows[seq.first + item / 4], pos = p.step.rows[r].pos, grid = grid_of(pos), n = pos - grid;
        const float *q = p.out + (u64)r * width + h * p.key_dim, *k = q + keys;
        for (u32 j = item % 4 * 8; j < min(item % 4 * 8 + 8, n + 1); j++) {
            const u32 at = grid + j;
            const float* past = k;
            if (j < n && at < seq.committed) {
                past = p.window + ((u64)seq.slot * WINDOW_ROWS + at % WINDOW_ROWS) * window_len + h * p.key_dim;
            } else if (j < n) {
                const u32 local = slot_of(p.step, r, sure_end, at) - seq.committed;
                past = p.out + (u64)p.step.seq_rows[seq.first + local] * width + keys + h * p.key_dim;
            }
            float kk = 0.0f, kq = 0.0f;
            for (u32 i = lane; i < p.key_dim; i += 32) {
                const float x = past[i];
                kk = __fmaf_rn(x, k[i], kk);
                kq = __fmaf_rn(x, q[i], kq);
            }
            kk = warp_sum(kk);
            kq = warp_sum(kq);
            if (lane == 0) p.dots[((u64)r * p.key_heads + h) * REACH + j] = make_float2(kk, kq);
        }
    }
}

extern "C" __global__ void __launch_bounds__(256) recurrent_prepare(const __grid_constant__ RecurrentPrepare p) {
    pdl_wait();
    pdl_next();
    const u32 keys = p.key_heads * p.key_dim, width = 2 * keys + p.value_heads * p.value_dim;
    if (blockIdx.x < p.key_heads) return key_block(p, blockIdx.x, blockIdx.y, width);
    const u32 r = blockIdx.y, h = (blockIdx.x - p.key_heads) * 8 + (threadIdx.x >> 5);
    if (r >= p.step.counts[0] || h >= p.value_heads) return;
    convolve(p, r, width, 2 * keys + h * p.value_dim, p.value_dim);
    if ((threadIdx.x & 31) == 0) {
        const float x = p.a[(u64)r * p.value_heads + h] + p.dt_bias[h];
        const float softplus = x > 20.0f ? x : log1pf(expf(x));
        float* gates = p.gates + (u64)r * 2 * p.value_heads;
        gates[h] = p.decay[h] * softplus;
        gates[p.value_heads + h] = sigmoid(p.b[(u64)r * p.value_heads + h]);
    }
}
