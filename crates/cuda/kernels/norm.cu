// out[r] = x[r] / sqrt(mean(x[r]^2) + eps) . weight; a tap receives x[r] unchanged. A block per row.
#include "step.cuh"

struct Norm {
    const u32* n_rows;
    const float *x, *weight;
    float *out, *tap;
    float eps;
    u32 width;
};

// Numbers a thread keeps between the sum and the product; wider rows are read twice.
#define KEPT_NUMBERS 16

extern "C" __global__ void __launch_bounds__(512) rms_norm(const __grid_constant__ Norm p) {
    __shared__ float room[33];
    const u32 r = blockIdx.x;
    const bool is_there = r < *p.n_rows;
    float kept[KEPT_NUMBERS], weight[KEPT_NUMBERS];
    const bool fits = p.width <= KEPT_NUMBERS * 512;
#pragma unroll
    for (int n = 0; n < KEPT_NUMBERS; n++) {
        const u32 i = n * 512 + threadIdx.x;
        weight[n] = fits && i < p.width ? p.weight[i] : 0.0f;
    }
    pdl_wait();
    pdl_next();
    if (!is_there) return;
    const float* x = p.x + (u64)r * p.width;
    float *out = p.out + (u64)r * p.width, *tap = p.tap ? p.tap + (u64)r * p.width : nullptr;
    float squares = 0.0f;
    if (!fits) {
        for (u32 i = threadIdx.x; i < p.width; i += 512) squares = __fmaf_rn(x[i], x[i], squares);
        const float scale = 1.0f / sqrtf(block_sum(squares, room) / (float)p.width + p.eps);
        for (u32 i = threadIdx.x; i < p.width; i += 512) {
            if (tap) tap[i] = x[i];
            out[i] = x[i] * scale * p.weight[i];
        }
        return;
    }
#pragma unroll
    for (int n = 0; n < KEPT_NUMBERS; n++) {
        const u32 i = n * 512 + threadIdx.x;
        kept[n] = i < p.width ? x[i] : 0.0f;
    }
#pragma unroll
    for (int n = 0; n < KEPT_NUMBERS; n++) squares = __fmaf_rn(kept[n], kept[n], squares);
    const float scale = 1.0f / sqrtf(block_sum(squares, room) / (float)p.width + p.eps);
#pragma unroll
    for (int n = 0; n < KEPT_NUMBERS; n++) {
        const u32 i = n * 512 + threadIdx.x;
        if (i >= p.width) break;
        if (tap) tap[i] = kept[n];
        out[i] = kept[n] * scale * weight[n];
    }
}

// Per head: out = rms(x) . weight . silu(gate). A warp per (row, head).
struct GatedNorm {
    const u32* n_rows;
    const float *x, *gate, *weight;
    float* out;
    float eps;
    u32 heads, head_dim, pad;
};

extern "C" __global__ void __launch_bounds__(128) gated_norm(const __grid_constant__ GatedNorm p) {
    pdl_wait();
    pdl_next();
    const u32 r = blockIdx.x, h = blockIdx.y * 4 + (threadIdx.x >> 5), lane = threadIdx.x & 31;
    if (r >= *p.n_rows || h >= p.heads) return;
    const u64 at = ((u64)r * p.heads + h) * p.head_dim;
    float squares = 0.0f;
    for (u32 i = lane; i < p.head_dim; i += 32) squares = __fmaf_rn(p.x[at + i], p.x[at + i], squares);
    const float scale = 1.0f / sqrtf(warp_sum(squares) / (float)p.head_dim + p.eps);
    for (u32 i = lane; i < p.head_dim; i += 32)
        p.out[at + i] = p.x[at + i] * scale * p.weight[i] * silu(p.gate[at + i]);
}
