// Convolution along the row's path, SiLU, q and k to length one, and the gates of the delta rule. A warp per (row, head).
#include "step.cuh"

struct RecurrentPrepare {
    Step step;
    const float *qkv, *b, *a, *conv, *decay, *dt_bias, *kept;
    float *out, *gates;
    u32 key_heads, value_heads, key_dim, value_dim;
};

extern "C" __global__ void __launch_bounds__(128) recurrent_prepare(const __grid_constant__ RecurrentPrepare p) {
    pdl_wait();
    pdl_next();
    const u32 r = blockIdx.x, lane = threadIdx.x & 31;
    const u32 unit = blockIdx.y * 4 + (threadIdx.x >> 5);
    if (r >= p.step.counts[0] || unit >= 2 * p.key_heads + p.value_heads) return;
    const Row row = p.step.rows[r];
    const Seq seq = p.step.seqs[row.seq];
    const u32 keys = p.key_heads * p.key_dim, width = 2 * keys + p.value_heads * p.value_dim;
    const bool is_key = unit < 2 * p.key_heads;
    const u32 h = is_key ? unit : unit - 2 * p.key_heads;
    const u32 first = is_key ? h * p.key_dim : 2 * keys + h * p.value_dim, n = is_key ? p.key_dim : p.value_dim;
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
    float* out = p.out + (u64)r * width;
    float squares = 0.0f;
    for (u32 i = lane; i < n; i += 32) {
        const u32 c = first + i;
        float sum = 0.0f;
#pragma unroll
        for (int back = 3; back >= 0; back--)
            if (inputs[back]) sum = __fmaf_rn(p.conv[c * 4 + 3 - back], inputs[back][c], sum);
        const float y = silu(sum);
        out[c] = y;
        squares = __fmaf_rn(y, y, squares);
    }
    if (is_key) {
        const float scale = (h < p.key_heads ? 1.0f / sqrtf((float)p.key_dim) : 1.0f) / sqrtf(warp_sum(squares) + 1e-6f);
        for (u32 i = lane; i < n; i += 32) out[first + i] *= scale;
    } else if (lane == 0) {
        const float x = p.a[(u64)r * p.value_heads + h] + p.dt_bias[h];
        const float softplus = x > 20.0f ? x : log1pf(expf(x));
        float* gates = p.gates + (u64)r * 2 * p.value_heads;
        gates[h] = p.decay[h] * softplus;
        gates[p.value_heads + h] = sigmoid(p.b[(u64)r * p.value_heads + h]);
    }
}
