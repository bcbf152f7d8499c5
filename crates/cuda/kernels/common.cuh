// Types and small functions of every kernel. No system header: users have a driver, not a toolkit.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define INFINITY_F __int_as_float(0x7f800000)

// Programmatic dependent launch: `pdl_wait` before anything another kernel of the step wrote is touched, `pdl_next` to let
// the next kernel's blocks come in. Nothing before sm_90.
__device__ __forceinline__ void pdl_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void pdl_next() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// For a block without work. One of a launch waits all the same: a launch that ends before the one ahead of it would let
// the next begin too early. That one's blocks may come in meanwhile, and wait too.
__device__ __forceinline__ void pdl_idle() {
    pdl_next();
    if (blockIdx.x + blockIdx.y + blockIdx.z == 0) pdl_wait();
}

__device__ __forceinline__ float f16_to_f32(u16 h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}
__device__ __forceinline__ u16 f32_to_f16(float f) {
    u16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}
__device__ __forceinline__ u16 f32_to_bf16(float f) {
    u16 h;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}
__device__ __forceinline__ float bf16_to_f32(u16 h) { return __uint_as_float((u32)h << 16); }

// Sums over a warp; the order is fixed by the lane, and every lane gets the same bits.
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}
__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}

// Sum over a block of at most 1024 threads, given to all of them. `room`: 33 floats of shared memory.
__device__ __forceinline__ float block_sum(float x, float* room) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, n_warps = (blockDim.x + 31) >> 5;
    x = warp_sum(x);
    if (lane == 0) room[warp] = x;
    __syncthreads();
    if (warp == 0) {
        float y = warp_sum(lane < n_warps ? room[lane] : 0.0f);
        if (lane == 0) room[32] = y;
    }
    __syncthreads();
    const float total = room[32];
    __syncthreads();
    return total;
}

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ __forceinline__ float silu(float x) { return x * sigmoid(x); }

// kind 0: silu(g) u.  kind 1: min(g, limit) sigmoid(alpha min(g, limit)) (clamp(u) + 1).
__device__ __forceinline__ float glu(u32 kind, float alpha, float limit, float g, float u) {
    if (kind == 0) return silu(g) * u;
    const float a = fminf(g, limit);
    return a * sigmoid(alpha * a) * (fminf(fmaxf(u, -limit), limit) + 1.0f);
}
