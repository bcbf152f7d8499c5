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
