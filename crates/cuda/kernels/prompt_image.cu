// Makes the input of the prompt kernels (prompt_image.cuh): one block a row, which is read twice: its largest magnitude decides the
// power of two.
#include "prompt_image.cuh"

struct PromptImageParams {
    u64 x;       // f32 [bucket, cols]
    u64 image;
    u64 scales;  // f32 [bucket]: what undoes a row's power of two
    u64 count;   // u32: rows of the step
    u64 written; // u32: of those, rows before the prompts'
    u32 cols;
    u32 eights;  // of rows, in the bucket
};

// Grid: bucket. 256 threads.
extern "C" __global__ void __launch_bounds__(256) make_prompt_image(const __grid_constant__ PromptImageParams p) {
    __shared__ float room[8];
    pdl_next();
    pdl_wait();
    const u32 written = *(const u32*)p.written, row = blockIdx.x;
    if (written + row >= *(const u32*)p.count) return;
    const float* x = (const float*)p.x + (u64)(written + row) * p.cols;
    const bool whole = p.cols % 16 == 0;

    float largest = 0.0f;
    if (whole) {
        for (u32 i = threadIdx.x; i < p.cols / 4; i += 256) {
            const float4 v = ((const float4*)x)[i];
            largest = fmaxf(largest, fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w))));
        }
    } else {
        for (u32 i = threadIdx.x; i < p.cols; i += 256) largest = fmaxf(largest, fabsf(x[i]));
    }
    largest = warp_max(largest);
    if ((threadIdx.x & 31) == 0) room[threadIdx.x >> 5] = largest;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 8; i++) largest = fmaxf(largest, room[i]);

    const PromptPower power(largest);
    if (threadIdx.x == 0) ((float*)p.scales)[row] = power.down;

    // A thread a step of 16 columns.
    for (u32 step = threadIdx.x; step < (p.cols + 127) / 128 * 8; step += 256) {
        float v[16];
        if (whole && step * 16 < p.cols) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float4 f = ((const float4*)x)[step * 4 + i];
                v[4 * i] = f.x, v[4 * i + 1] = f.y, v[4 * i + 2] = f.z, v[4 * i + 3] = f.w;
            }
        } else {
#pragma unroll
            for (int i = 0; i < 16; i++) v[i] = step * 16 + i < p.cols ? x[step * 16 + i] : 0.0f;
        }
        u32 pair[8];
#pragma unroll
        for (int i = 0; i < 8; i++) pair[i] = power.pair(v[2 * i], v[2 * i + 1]);
        const PromptStep to((u8*)p.image, p.eights, row, step);
        *(uint4*)to.at(0) = make_uint4(pair[0], pair[2], pair[4], pair[6]);
        *(uint4*)to.at(1) = make_uint4(pair[1], pair[3], pair[5], pair[7]);
    }
}
