// A row enters the kept window of a recurrent layer, and its input the convolution's.
#pragma once
#include "step.cuh"

struct KeptLayer {
    const float *prepared, *preconv, *gates, *delta;
    float *window, *conv;
    u32 key_heads, value_heads, key_dim, value_dim;
};

// By one block, or by one of so many.
__device__ __forceinline__ void keep_row(const KeptLayer& l, u32 slot, u32 pos, u32 row, bool keeps_conv, u32 nth = 0, u32 n_blocks = 1) {
    const u32 keys = l.key_heads * l.key_dim, deltas = l.value_heads * l.value_dim;
    const u32 len = keys + deltas + l.value_heads, width = 2 * keys + deltas;
    const u32 first = nth * blockDim.x + threadIdx.x, stride = n_blocks * blockDim.x;
    float* window = l.window + ((u64)slot * WINDOW_ROWS + pos % WINDOW_ROWS) * len;
    for (u32 i = first; i < keys; i += stride) window[i] = l.prepared[(u64)row * width + keys + i];
    for (u32 i = first; i < deltas; i += stride) window[keys + i] = l.delta[(u64)row * deltas + i];
    for (u32 i = first; i < l.value_heads; i += stride) window[keys + deltas + i] = l.gates[(u64)row * 2 * l.value_heads + i];
    if (!keeps_conv) return;
    float* conv = l.conv + ((u64)slot * CONV_ROWS + pos % CONV_ROWS) * width;
    for (u32 i = first; i < width; i += stride) conv[i] = l.preconv[(u64)row * width + i];
}
