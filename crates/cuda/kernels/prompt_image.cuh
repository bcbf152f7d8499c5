// The input of the prompt kernels: rows of prompts as f16 with one power of two a row.
//
// Columns in quads of 64, rows in eights: [quad][8 rows][1024 bytes]. The 1024 bytes are 8 rows of 128, whose 16-byte pieces
// lie at place (piece ^ row): what wgmma calls a swizzle of 128 bytes, and ldmatrix reads without conflicts of banks.
// In a step of 16 columns, piece 0 holds columns 4t, 4t + 1 and piece 1 columns 4t + 2, 4t + 3, as weights are packed.
// Columns past the input's width are zeros up to a whole 128.
//
// Row r of the image is the step's row `written + r`: rows that are being written stand before those of prompts.
#pragma once
#include "common.cuh"

#define EIGHT_BYTES 1024u

__device__ __forceinline__ u32 image_piece(u32 row, u32 piece) { return (row >> 3) * EIGHT_BYTES + (row & 7) * 128 + ((piece ^ row) & 7) * 16; }

// A row's power of two and what undoes it. The largest magnitude goes to 1024..2048. Zero keeps 1; infinities stay so.
struct PromptPower {
    float up, down;
    __device__ __forceinline__ PromptPower(float largest) {
        int exponent = (int)(__float_as_uint(largest) >> 23) - 127;
        exponent = largest == 0.0f || exponent == 128 ? 10 : exponent < -110 ? -110 : exponent;
        up = __uint_as_float((u32)(10 - exponent + 127) << 23), down = __uint_as_float((u32)(exponent - 10 + 127) << 23);
    }
    __device__ __forceinline__ u32 pair(float a, float b) const { return f32_to_f16(a * up) | (u32)f32_to_f16(b * up) << 16; }
};

// Where a step of 16 columns has its first piece of a row; the second is that of `piece + 1`.
struct PromptStep {
    u8* quad;
    u32 row, piece;
    __device__ __forceinline__ PromptStep(u8* image, u32 eights, u32 row, u32 step)
        : quad(image + (u64)(step / 4) * eights * EIGHT_BYTES), row(row), piece(step % 4 * 2) {}
    __device__ __forceinline__ u8* at(u32 which) const { return quad + image_piece(row, piece + which); }
};
