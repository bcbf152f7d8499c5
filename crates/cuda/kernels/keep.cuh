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
    float* window = l.window + ((u64)slot * WINDOW_ROWS + pos % WINDOW_ROWS) * len;
    copy_row(window, l.prepared + (u64)row * width + keys, keys, nth, n_blocks);
    copy_row(window + keys, l.delta + (u64)row * deltas, deltas, nth, n_blocks);
    copy_row(window + keys + deltas, l.gates + (u64)row * 2 * l.value_heads, l.value_heads, nth, n_blocks);
    if (!keeps_conv) return;
    copy_row(l.conv + ((u64)slot * CONV_ROWS + pos % CONV_ROWS) * width, l.preconv + (u64)row * width, width, nth, n_blocks);
}
