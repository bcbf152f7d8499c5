// Norms each head of q and k, rotates them, and writes k and v to the layer's pages. A warp per (row, head). Of a draft's taps, which
// have no q, all layers go in one launch.
#include "step.cuh"

#define MAX_LAYERS 8

struct Keys {
    float* k;
    const float *v, *norm;
    void* kv;  // [page, k or v, kv head, position, d]
    u32 cls, pad;
};

struct AttentionPrepare {
    Step step;
    float* q;  // may be absent
    const float *angles, *q_norm;
    float q_eps, k_eps;
    u32 heads, kv_heads, d, q_stride, rotary, pairs, kv_type, pad;
    Keys layers[MAX_LAYERS];
};

__device__ __forceinline__ void store_kv(void* kv, u32 type, u64 at, float x) {
    if (type == F16_KV) ((u16*)kv)[at] = f32_to_f16(x);
    else if (type == BF16_KV) ((u16*)kv)[at] = f32_to_bf16(x);
    else ((float*)kv)[at] = x;
}

// Numbers of a head that a lane has, and pairs of them that are rotated.
#define SHARES 8u

extern "C" __global__ void __launch_bounds__(128) attention_prepare(const __grid_constant__ AttentionPrepare p) {
    extern __shared__ float room[];
    const Keys& layer = p.layers[blockIdx.z];
    const u32 r = blockIdx.x, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const u32 q_heads = p.q ? p.heads : 0, unit = blockIdx.y * 4 + warp, half = p.rotary / 2;
    const bool is_q = unit < q_heads, is_v = unit >= q_heads + p.kv_heads;
    const u32 h = is_q ? unit : is_v ? unit - q_heads - p.kv_heads : unit - q_heads;
    const float* weight = is_v ? nullptr : is_q ? p.q_norm : layer.norm;
    // The step's data and the weights are there before the kernel before this one ends; the angles may be what that makes.
    const bool is_there = r < p.step.counts[0] && unit < q_heads + 2 * p.kv_heads;
    const Row row = is_there ? p.step.rows[r] : Row{};
    const u32 page = is_there ? page_of(p.step, row.seq, layer.cls, row.kv_slot) : 0;
    const float *cos = p.angles + (u64)r * p.rotary, *sin = cos + half;
    float x[SHARES], w[SHARES], c[SHARES / 2], s[SHARES / 2];
#pragma unroll
    for (u32 n = 0; n < SHARES; n++) w[n] = is_there && weight && 32 * n + lane < p.d ? weight[32 * n + lane] : 1.0f;
    pdl_wait();
    pdl_next();
    if (!is_there) return;
    float* from = is_q ? p.q + ((u64)r * p.heads + h) * p.q_stride : layer.k + ((u64)r * p.kv_heads + h) * p.d;
    const float* source = is_v ? layer.v + ((u64)r * p.kv_heads + h) * p.d : from;
#pragma unroll
    for (u32 n = 0; n < SHARES; n++) x[n] = 32 * n + lane < p.d ? source[32 * n + lane] : 0.0f;
#pragma unroll
    for (u32 n = 0; n < SHARES / 2; n++) {
        const bool turns = !is_v && 32 * n + lane < half;
        c[n] = turns ? cos[32 * n + lane] : 1.0f;
        s[n] = turns ? sin[32 * n + lane] : 0.0f;
    }
    const u64 at = ((u64)(page * 2 + is_v) * p.kv_heads + h) * PAGE * p.d + (u64)(row.kv_slot % PAGE) * p.d;
    if (is_v) {
#pragma unroll
        for (u32 n = 0; n < SHARES; n++)
            if (32 * n + lane < p.d) store_kv(layer.kv, p.kv_type, at + 32 * n + lane, x[n]);
        return;
    }
    float* head = room + warp * p.d;
    if (weight) {
        float squares = 0.0f;
#pragma unroll
        for (u32 n = 0; n < SHARES; n++) squares = __fmaf_rn(x[n], x[n], squares);
        const float scale = 1.0f / sqrtf(warp_sum(squares) / (float)p.d + (is_q ? p.q_eps : p.k_eps));
#pragma unroll
        for (u32 n = 0; n < SHARES; n++) x[n] = __fmul_rn(__fmul_rn(x[n], scale), w[n]);
    }
#pragma unroll
    for (u32 n = 0; n < SHARES; n++)
        if (32 * n + lane < p.d) head[32 * n + lane] = x[n];
    __syncwarp();
#pragma unroll
    for (u32 n = 0; n < SHARES / 2; n++) {
        const u32 i = 32 * n + lane;
        if (i >= half) break;
        const u32 a = p.pairs ? 2 * i : i, b = p.pairs ? 2 * i + 1 : i + half;
        const float xa = head[a], xb = head[b];
        // Rounded as the definition rounds: a key that falls beside its half float costs a 2000th.
        head[a] = __fsub_rn(__fmul_rn(xa, c[n]), __fmul_rn(xb, s[n]));
        head[b] = __fadd_rn(__fmul_rn(xb, c[n]), __fmul_rn(xa, s[n]));
    }
    __syncwarp();
#pragma unroll
    for (u32 n = 0; n < SHARES; n++) {
        const u32 i = 32 * n + lane;
        if (i >= p.d) break;
        from[i] = head[i];
        if (!is_q) store_kv(layer.kv, p.kv_type, at + i, head[i]);
    }
}
