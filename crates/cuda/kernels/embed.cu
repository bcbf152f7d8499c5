// out[r] = table[token[r]], decoded. Several blocks per row: one took 10 us for 5120 numbers.
#include "angles.cuh"
#include "quant.cuh"

struct Embed {
    Step step;
    const u8* table;
    u64 row_bytes;
    float* out;
    u32 type, width, blocks, pad;  // blocks of a row
    Angles angles;
};

extern "C" __global__ void __launch_bounds__(256) embed(const __grid_constant__ Embed p) {
    pdl_wait();
    pdl_next();
    const u32 r = blockIdx.x;
    if (r >= p.step.counts[0]) return;
    if (blockIdx.y == p.blocks) return make_angles(p.angles, p.step.rows[r].pos, r);
    const u8* row = p.table + p.step.rows[r].token * p.row_bytes;
    float* out = p.out + (u64)r * p.width;
    FOR_TYPE(p.type, {
        for (u32 i = blockIdx.y * blockDim.x + threadIdx.x; i < p.width; i += p.blocks * blockDim.x) out[i] = decode<T>(row, i);
    })
}
