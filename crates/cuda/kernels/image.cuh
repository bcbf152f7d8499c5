// The image of an input: rows of activations as tensor cores read them.
//
// A block of 128 columns of 8 rows ("cell", 2080 bytes):
//   2048  f16 values in squares of 8 rows x 8 columns, 16 bytes a row, as ldmatrix and wgmma read them: two squares to a step of
//         16 columns, whose columns 4t, 4t + 1 are the first square's 2t, 2t + 1 and 4t + 2, 4t + 3 the second's (weights are
//         packed alike)
//     32  f32 power of two per row: value = f16 * scale
// and beside it a cell of 2048 bytes with what the rounding to f16 left out, read by float weights only.
// The scale is the block's own, so whoever holds 128 columns of a row can write them, and no row needs a second pass.
// Columns past the input's width are zeros. Rows past the count are not written: a row reaches only its own results.
#pragma once
#include "common.cuh"

#define CELL_BYTES 2080u
#define CELL_SCALES 2048u
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

// Four values of a row by each lane of a warp, 128 columns of it: the exponent of the largest. (Magnitudes compare as their bits do, which one instruction
// does for a warp: five shuffles were 0.06 us of every unit's end.)
__device__ __forceinline__ int image_exponent(const float (&x)[4]) {
    const u32 largest = __reduce_max_sync(0xffffffffu, __float_as_uint(fmaxf(fmaxf(fabsf(x[0]), fabsf(x[1])), fmaxf(fabsf(x[2]), fabsf(x[3])))));
    const int exponent = (int)(largest >> 23) - 127;
    // Zero keeps 1; infinities stay so.
    return largest == 0 || exponent == 128 ? 10 : exponent < -110 ? -110 : exponent;
}
// Into a cell and, if anybody reads that, what is beside it.
template <bool HAS_REST = true>
__device__ __forceinline__ void image_store_in(u8* cell, u8* rest, u32 in_tile, const float (&x)[4], int exponent) {
    const u32 lane = threadIdx.x & 31;
    // The largest magnitude goes to 1024..2048.
    const float up = __uint_as_float((u32)(10 - exponent + 127) << 23);

    u16 value[4], left[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float scaled = x[i] * up;
        value[i] = f32_to_f16(scaled);
        left[i] = f32_to_f16(scaled - f16_to_f32(value[i]));
    }
    const u32 at = (lane >> 2) * 256 + in_tile * 16 + (lane & 3) * 4;
    *(u32*)(cell + at) = value[0] | (u32)value[1] << 16, *(u32*)(cell + at + 128) = value[2] | (u32)value[3] << 16;
    if (HAS_REST) *(u32*)(rest + at) = left[0] | (u32)left[1] << 16, *(u32*)(rest + at + 128) = left[2] | (u32)left[3] << 16;
    if (lane == 0) *(float*)(cell + CELL_SCALES + in_tile * 4) = __uint_as_float((u32)(exponent - 10 + 127) << 23);
}
__device__ __forceinline__ void image_store_in(u8* cell, u8* rest, u32 in_tile, const float (&x)[4]) {
    image_store_in(cell, rest, in_tile, x, image_exponent(x));
}

// Where columns of a row are, from 128 block onwards.
struct ImagePlace {
    u8 *cell, *rest;
};
__device__ __forceinline__ ImagePlace image_place(u8* image, ImageShape s, u32 row, u32 block) {
    const u32 group = row / 8 / s.group_tiles, tiles = tiles_of_group(s, group);
    u8* base = image + group_offset(s, group);
    const u64 at = (u64)block * tiles + row / 8 % s.group_tiles;
    return {base + at * CELL_BYTES, base + (u64)s.n_blocks * tiles * CELL_BYTES + at * REST_BYTES};
}
__device__ __forceinline__ void image_store(u8* image, ImageShape s, u32 row, u32 block, const float (&x)[4]) {
    const ImagePlace place = image_place(image, s, row, block);
    image_store_in(place.cell, place.rest, row % 8, x);
}
