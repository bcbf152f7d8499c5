// Norms each head of q and k, rotates them, and writes k and v to the layer's pages. A warp per (row, head).
#include "step.cuh"

struct AttentionPrepare {
    Step step;
    float *q, *k;  // q may be absent
    const float *v, *angles, *q_norm, *k_norm;
    void* kv;  // [page, k or v, kv head, position, d]
    float q_eps, k_eps;
    u32 heads, kv_heads, d, q_stride, rotary, pairs, cls, kv_type;
};

__device__ __forceinline__ void store_kv(const AttentionPrepare& p, u64 at, float x) {
    if (p.kv_type == F16_KV) ((u16*)p.kv)[at] = f32_to_f16(x);
    else if (p.kv_type == BF16_KV) ((u16*)p.kv)[at] = f32_to_bf16(x);
    else ((float*)p.kv)[at] = x;
}

extern "C" __global__ void __launch_bounds__(128) attention_prepare(const __grid_constant__ AttentionPrepare p) {
    extern __shared__ float room[];
    const u32 r = blockIdx.x, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const u32 q_heads = p.q ? p.heads : 0;
    u32 unit = blockIdx.y * 4 + warp;
    // The step's data and the angles are there before the kernel before this one ends.
    const bool is_there = r < p.step.counts[0] && unit < q_heads + 2 * p.kv_heads;
    const Row row = is_there ? p.step.rows[r] : Row{};
    const u32 page = is_there ? page_of(p.step, row.seq, p.cls, row.kv_slot) : 0;
    pdl_wait();
    pdl_next();
    if (!is_there) return;
    const u64 place = (u64)(row.kv_slot % PAGE) * p.d, run = (u64)PAGE * p.d;
    if (unit >= q_heads + p.kv_heads) {
        const u32 h = unit - q_heads - p.kv_heads;
        const u64 at = ((u64)(page * 2 + 1) * p.kv_heads + h) * run + place;
        for (u32 i = lane; i < p.d; i += 32) store_kv(p, at + i, p.v[((u64)r * p.kv_heads + h) * p.d + i]);
        return;
    }
    const bool is_q = unit < q_heads;
    const u32 h = is_q ? unit : unit - q_heads;
    float* x = is_q ? p.q + ((u64)r * p.heads + h) * p.q_stride : p.k + ((u64)r * p.kv_heads + h) * p.d;
    const float* weight = is_q ? p.q_norm : p.k_norm;
    float* head = room + warp * p.d;
    float scale = 1.0f, squares = 0.0f;
    for (u32 i = lane; i < p.d; i += 32) {
        const float v = x[i];
        head[i] = v;
        squares = __fmaf_rn(v, v, squares);
    }
    if (weight) {
        scale = 1.0f / sqrtf(warp_sum(squares) / (float)p.d + (is_q ? p.q_eps : p.k_eps));
        for (u32 i = lane; i < p.d; i += 32) head[i] = __fmul_rn(__fmul_rn(head[i], scale), weight[i]);
    }
    __syncwarp();
    const u32 half = p.rotary / 2;
    const float *cos = p.angles + (u64)r * p.rotary, *sin = cos + half;
    for (u32 i = lane; i < half; i += 32) {
        const u32 a = p.pairs ? 2 * i : i, b = p.pairs ? 2 * i + 1 : i + half;
        const float xa = head[a], xb = head[b];
        // Rounded as the definition rounds: a key that falls beside its half float costs a 2000th.
        head[a] = __fsub_rn(__fmul_rn(xa, cos[i]), __fmul_rn(xb, sin[i]));
        head[b] = __fadd_rn(__fmul_rn(xb, cos[i]), __fmul_rn(xa, sin[i]));
    }
    __syncwarp();
    const u64 at = ((u64)(page * 2) * p.kv_heads + h) * run + place;
    for (u32 i = lane; i < p.d; i += 32) {
        x[i] = head[i];
        if (!is_q) store_kv(p, at + i, head[i]);
    }
}
