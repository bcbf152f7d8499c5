// The image of an input: rows of activations as tensor cores read them.
//
// A block of 128 columns of 8 rows ("cell", 2336 bytes):
//   2048  f16 values as B fragments of mma.m16n8k16, 32 columns to 512 bytes: lane (row, t) holds columns 4t..4t+3 of the
//         first 16 columns, then of the second 16
//    256  sums of 16 columns as one more B fragment: 8 sums as f16, then what their rounding left out
//     32  f32 power of two per row: value = f16 * scale
// and beside it a cell of 2048 bytes with what the rounding to f16 left out, read by float weights only.
// The scale is the block's own, so whoever holds 128 columns of a row can write them, and no row needs a second pass.
// Columns past the input's width are zeros. Rows past the count are not written: a row reaches only its own results.
#pragma once
#include "common.cuh"

#define CELL_BYTES 2336u
#define CELL_SUMS 2048u
#define CELL_SCALES 2304u
#define REST_BYTES 2048u

struct ImageShape {
    u32 n_blocks;     // of 128 columns
    u32 n_tiles;      // of 8 rows in the bucket
    u32 group_tiles;  // of one launch of the linear kernels: images are laid out in groups of them
};

__device__ __forceinline__ u32 tiles_of_group(ImageShape s, u32 group) {
    const u32 left = s.n_tiles - group * s.group_tiles;
    return left < s.group_tiles ? left : s.group_tiles;
}
__device__ __forceinline__ u64 group_offset(ImageShape s, u32 group) {
    return (u64)group * s.group_tiles * s.n_blocks * (CELL_BYTES + REST_BYTES);
}

// Four values of a row by each lane of a warp: columns 128 block + 4 lane onwards.
__device__ __forceinline__ void image_store(u8* image, ImageShape s, u32 row, u32 block, const float (&x)[4]) {
    const u32 lane = threadIdx.x & 31, group = row / 8 / s.group_tiles, tiles = tiles_of_group(s, group);
    const u32 tile = row / 8 % s.group_tiles, in_tile = row % 8;
    u8* base = image + group_offset(s, group);
    u8* cell = base + ((u64)block * tiles + tile) * CELL_BYTES;
    u8* rest = base + (u64)s.n_blocks * tiles * CELL_BYTES + ((u64)block * tiles + tile) * REST_BYTES;

    const float largest = warp_max(fmaxf(fmaxf(fabsf(x[0]), fabsf(x[1])), fmaxf(fabsf(x[2]), fabsf(x[3]))));
    // The largest magnitude goes to 1024..2048: 16 of them still sum to a finite f16. Zero keeps 1; infinities stay so.
    int exponent = (int)(__float_as_uint(largest) >> 23) - 127;
    exponent = largest == 0.0f || exponent == 128 ? 10 : exponent < -110 ? -110 : exponent;
    const float up = __uint_as_float((u32)(10 - exponent + 127) << 23);

    u16 value[4], left[4];
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float scaled = x[i] * up;
        value[i] = f32_to_f16(scaled);
        const float kept = f16_to_f32(value[i]);
        left[i] = f32_to_f16(scaled - kept);
        sum += kept;
    }
    const u32 at = (lane >> 3) * 512 + (in_tile * 4 + (lane & 3)) * 16 + ((lane >> 2) & 1) * 8;
    *(uint2*)(cell + at) = make_uint2(value[0] | (u32)value[1] << 16, value[2] | (u32)value[3] << 16);
    *(uint2*)(rest + at) = make_uint2(left[0] | (u32)left[1] << 16, left[2] | (u32)left[3] << 16);

    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    if ((lane & 3) == 0) {
        const u16 coarse = f32_to_f16(sum);
        u16* sums = (u16*)(cell + CELL_SUMS + in_tile * 32);
        sums[lane >> 2] = coarse;
        sums[8 + (lane >> 2)] = f32_to_f16(sum - f16_to_f32(coarse));
    }
    if (lane == 0) *(float*)(cell + CELL_SCALES + in_tile * 4) = __uint_as_float((u32)(exponent - 10 + 127) << 23);
}
