#include "expert_tiles.cuh"
#include "shared_part.cuh"

EXPERT_KERNEL(expert_tiles_1, COMMON, 1)
EXPERT_KERNEL(expert_tiles_2, COMMON, 2)

struct ExpertSum {
    const u32* n_rows;
    const float* parts;     // [rows, k, hidden]
    const Choice* choices;  // [rows, k]
    float* stream;          // [rows, hidden]
    u32 k, hidden;
    SharedPart shared;
};

// A row's experts in the order of its choice, then the one that all have.
extern "C" __global__ void __launch_bounds__(256) expert_sum(const __grid_constant__ ExpertSum p) {
    pdl_wait();
    pdl_next();
    const u32 row = blockIdx.y, o = blockIdx.x * 256 + threadIdx.x;
    if (row >= *p.n_rows || o >= p.hidden) return;
    float sum = p.stream[(u64)row * p.hidden + o];
#pragma unroll 4
    for (u32 pair = row * p.k; pair < (row + 1) * p.k; pair++) sum = __fmaf_rn(p.choices[pair].weight, p.parts[(u64)pair * p.hidden + o], sum);
    if (p.shared.is_of(row)) sum = __fmaf_rn(p.shared.factor(row), p.shared.parts[(u64)row * p.hidden + o], sum);
    p.stream[(u64)row * p.hidden + o] = sum;
}
