// Rotary angles of a row, by a block. Kernels that only read a step's data make them beside their own work.
#pragma once
#include "step.cuh"

struct Angles {
    const float* inv_freq;
    float* out;  // [row, cosines and sines]
    float magnitude;
    u32 n;
};

// The angle in f32, as the reference implementations take it; its sine and cosine in f64.
__device__ __forceinline__ void make_angles(const Angles& p, u32 pos, u32 r) {
    float* out = p.out + (u64)r * 2 * p.n;
    for (u32 i = threadIdx.x; i < p.n; i += blockDim.x) {
        double s, c;
        sincos((double)((float)pos * p.inv_freq[i]), &s, &c);
        out[i] = (float)c * p.magnitude;
        out[p.n + i] = (float)s * p.magnitude;
    }
}
