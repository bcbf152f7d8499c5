// Makes the image of an input (image.cuh): one warp a block of 128 columns of a row.
#include "image.cuh"

struct ImageParams {
    u64 x;      // f32 [bucket, cols]
    u64 image;
    u64 count;  // u32: rows
    u32 cols, n_tiles, group_tiles, pad;
};

// Grid: (blocks of 128 columns / 8, bucket). 256 threads.
extern "C" __global__ void __launch_bounds__(256) make_image(const __grid_constant__ ImageParams p) {
    const u32 row = blockIdx.y, block = blockIdx.x * 8 + (threadIdx.x >> 5), column = block * 128 + (threadIdx.x & 31) * 4;
    const ImageShape shape = {(p.cols + 127) / 128, p.n_tiles, p.group_tiles};
    pdl_next();
    pdl_wait();
    if (block >= shape.n_blocks || row >= *(const u32*)p.count) return;
    const float* x = (const float*)p.x + (u64)row * p.cols;
    float v[4];
    if (column + 4 <= p.cols && p.cols % 4 == 0) {
        const float4 f = *(const float4*)(x + column);
        v[0] = f.x, v[1] = f.y, v[2] = f.z, v[3] = f.w;
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] = column + i < p.cols ? x[column + i] : 0.0f;
    }
    image_store((u8*)p.image, shape, row, block, v);
}
