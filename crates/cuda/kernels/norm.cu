// out[r] = x[r] / sqrt(mean(x[r]^2) + eps) . weight; a tap receives x[r] unchanged. A block per row.
#include "norm.cuh"

extern "C" __global__ void __launch_bounds__(NORM_THREADS) rms_norm(const __grid_constant__ Norm p) {
    __shared__ float room[33];
    if (p.width % 4 == 0 && p.width <= 4 * KEPT_CHUNKS * NORM_THREADS) return norm_chunks<NORM_THREADS>(p, blockIdx.x, room);
    const u32 r = blockIdx.x;
    pdl_wait();
    pdl_next();
    if (r >= *p.n_rows) return;
    const float* x = p.x + (u64)r * p.width;
    float squares = 0.0f;
    for (u32 i = threadIdx.x; i < p.width; i += NORM_THREADS) squares = __fmaf_rn(x[i], x[i], squares);
    const float scale = 1.0f / sqrtf(block_sum(squares, room) / (float)p.width + p.eps);
    for (u32 i = threadIdx.x; i < p.width; i += NORM_THREADS) {
        if (p.tap) p.tap[(u64)r * p.width + i] = x[i];
        p.out[(u64)r * p.width + i] = x[i] * scale * p.weight[i];
    }
}

// Rows of whole chunks, up to 4 * KEPT_CHUNKS * NARROW_NORM_THREADS numbers.
extern "C" __global__ void __launch_bounds__(NARROW_NORM_THREADS) rms_norm_narrow(const __grid_constant__ Norm p) {
    __shared__ float room[2 * NARROW_NORM_THREADS / 32];
    norm_chunks<NARROW_NORM_THREADS>(p, blockIdx.x, room);
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
