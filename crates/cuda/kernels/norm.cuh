// A norm of a row by a block, for kernels that make norms: the row in registers, and its image.
#pragma once
#include "image.cuh"
#include "prompt_image.cuh"
#include "step.cuh"

struct Norm {
    const u32* n_rows;
    const float* x;
    const float* weight;
    float *out, *tap;      // `out` may be none where rows have images
    u8* image;             // of `out` for the linear kernels, where they want one
    u8* prompt_image;      // of prompts' rows, for their kernels, or none
    float* prompt_scales;  // of its rows
    const u32* written;    // rows before prompts'
    float eps;
    u32 width;
    ImageShape shape;
    u32 eights;            // of rows, in the prompts' image
};

// Of a block: fewer for rows of up to 4096, of which a multiprocessor then has more on their way. The width alone decides which, so a row's bits do not depend on others.
#define NORM_THREADS 512u
#define NARROW_NORM_THREADS 256u
// Four numbers side by side that a thread keeps between the sum and the product, so often.
#define KEPT_CHUNKS 4u

// A row of a prompt as its kernels read it; `largest` of this thread's numbers.
template <u32 N>
__device__ __forceinline__ void store_prompt_row(const Norm& p, u32 row, const float4 (&y)[KEPT_CHUNKS], float largest, float* room) {
    largest = warp_max(largest);
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = largest;
    __syncthreads();
    const PromptPower power(warp_max(threadIdx.x % 32 < N / 32 ? room[threadIdx.x % 32] : 0.0f));
    if (threadIdx.x == 0) p.prompt_scales[row] = power.down;
#pragma unroll
    for (u32 n = 0; n < KEPT_CHUNKS; n++) {
        const u32 c = n * N + threadIdx.x;
        if (c >= (p.width + 127) / 128 * 32) break;
        const PromptStep to(p.prompt_image, p.eights, row, c / 4);
        *(u32*)(to.at(0) + c % 4 * 4) = power.pair(y[n].x, y[n].y), *(u32*)(to.at(1) + c % 4 * 4) = power.pair(y[n].z, y[n].w);
    }
}

// Row r, of whole chunks, all of which fit. `room`: two numbers a warp.
template <u32 N>
__device__ __forceinline__ void norm_chunks(const Norm& p, u32 r, float* room) {
    const u32 written = p.prompt_image ? *p.written : 0xffffffffu;
    const bool is_there = r < *p.n_rows;
    float4 kept[KEPT_CHUNKS], weight[KEPT_CHUNKS];
    const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (u32 n = 0; n < KEPT_CHUNKS; n++) {
        const u32 c = n * N + threadIdx.x;
        weight[n] = 4 * c < p.width ? ((const float4*)p.weight)[c] : zero;
    }
    pdl_wait();
    pdl_next();
    if (!is_there) return;
    const u64 first = (u64)r * p.width / 4;
#pragma unroll
    for (u32 n = 0; n < KEPT_CHUNKS; n++) {
        const u32 c = n * N + threadIdx.x;
        kept[n] = 4 * c < p.width ? ((const float4*)p.x)[first + c] : zero;
    }
    float squares = 0.0f;
#pragma unroll
    for (u32 n = 0; n < KEPT_CHUNKS; n++) {
        squares = __fmaf_rn(kept[n].x, kept[n].x, squares);
        squares = __fmaf_rn(kept[n].y, kept[n].y, squares);
        squares = __fmaf_rn(kept[n].z, kept[n].z, squares);
        squares = __fmaf_rn(kept[n].w, kept[n].w, squares);
    }
    // Every warp adds up what all of them have: one barrier instead of three, of which a norm of one row is half made.
    const float part = warp_sum(squares);
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = part;
    __syncthreads();
    const float sum = warp_sum(threadIdx.x % 32 < N / 32 ? room[threadIdx.x % 32] : 0.0f);
    const float scale = 1.0f / sqrtf(sum / (float)p.width + p.eps);
    float largest = 0.0f;
#pragma unroll
    for (u32 n = 0; n < KEPT_CHUNKS; n++) {
        const u32 c = n * N + threadIdx.x, block = c / 32;
        const float4 k = kept[n], w = weight[n];
        const float y[4] = {k.x * scale * w.x, k.y * scale * w.y, k.z * scale * w.z, k.w * scale * w.w};
        kept[n] = make_float4(y[0], y[1], y[2], y[3]);
        largest = fmaxf(largest, fmaxf(fmaxf(fabsf(y[0]), fabsf(y[1])), fmaxf(fabsf(y[2]), fabsf(y[3]))));
        if (4 * c < p.width) {
            if (p.out) ((float4*)p.out)[first + c] = kept[n];
            if (p.tap) ((float4*)p.tap)[first + c] = k;
        }
        if (p.image && block < p.shape.n_blocks) image_store(p.image, p.shape, r, block, y);
    }
    if (r >= written) store_prompt_row<N>(p, r - written, kept, largest, room + N / 32);
}
