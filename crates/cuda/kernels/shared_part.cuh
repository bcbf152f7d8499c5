// What an expert that every row has adds to a row, behind those that the row chose.
#pragma once
#include "common.cuh"

struct SharedPart {
    const float* parts;  // [rows, width], or none
    const float* gates;  // [rows], before their sigmoid
    const u32* n_rows;   // that have one here: rows of prompts get theirs by their own kernels
    __device__ __forceinline__ bool is_of(u32 row) const { return parts && row < *n_rows; }
    // Its sigmoid, rounded one by one: two kernels make it, to the bit.
    __device__ __forceinline__ float factor(u32 row) const { return 1.0f / __fadd_rn(1.0f, expf(-gates[row])); }
};
