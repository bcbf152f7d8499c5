#include "expert_tiles.cuh"

EXPERT_KERNEL(expert_tiles_1, COMMON, 1)
EXPERT_KERNEL(expert_tiles_2, COMMON, 2)

// What an expert that every row has adds to a row, behind those that the row chose.
struct SharedPart {
    const float* parts;  // [rows, hidden], or none
    const float* gates;  // [rows], before their sigmoid
    const u32* n_rows;   // that have one here: rows of prompts get theirs by their own kernels
    __device__ __forceinline__ bool is_of(u32 row) const { return parts && row < *n_rows; }
    __device__ __forceinline__ float factor(u32 row) const { return sigmoid(gates[row]); }
};
// A norm of the sums that linear ops read: they divide their own sums by the rows' sizes (linear_finish.cuh).
struct NextNorm {
    const u32* n_rows;    // that have an image: rows of prompts have theirs from a norm of their own
    const float* weight;  // or none
    float *squares, *tap; // [rows, blocks], [rows, hidden] or none
    u8* image;
    ImageShape shape;
    u32 pad;
};
struct ExpertSum {
    const u32* n_rows;
    const float* parts;     // [rows, k, hidden]
    const Choice* choices;  // [rows, k]
    float* stream;          // [rows, hidden]
    u32 k, hidden;
    SharedPart shared;
    NextNorm next;
};

#define SUM_WARPS 4

// A row's experts in the order of its choice, then the one that all have. A warp takes 128 columns of a row, four a lane.
extern "C" __global__ void __launch_bounds__(32 * SUM_WARPS) expert_sum(const __grid_constant__ ExpertSum p) {
    const u32 block = blockIdx.x * SUM_WARPS + (threadIdx.x >> 5), column = block * 128 + (threadIdx.x & 31) * 4, row = blockIdx.y;
    const bool is_there = column < p.hidden;
    const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    const float4 weight = p.next.weight && is_there ? *(const float4*)(p.next.weight + column) : zero;
    const bool has_image = p.next.weight && row < *p.next.n_rows;
    const bool is_row = row < *p.n_rows;
    pdl_wait();
    pdl_next();
    if (!is_row || block * 128 >= p.hidden) return;
    const auto at = [&](const float* rows, u32 nth) { return (float4*)(rows + (u64)nth * p.hidden + column); };
    float4 sum = is_there ? *at(p.stream, row) : zero;
    const auto add = [&](float factor, const float* parts, u32 nth) {
        const float4 y = is_there ? *at(parts, nth) : zero;
        sum.x = __fmaf_rn(factor, y.x, sum.x), sum.y = __fmaf_rn(factor, y.y, sum.y);
        sum.z = __fmaf_rn(factor, y.z, sum.z), sum.w = __fmaf_rn(factor, y.w, sum.w);
    };
#pragma unroll 8
    for (u32 pair = row * p.k; pair < (row + 1) * p.k; pair++) add(p.choices[pair].weight, p.parts, pair);
    if (p.shared.is_of(row)) add(p.shared.factor(row), p.shared.parts, row);
    if (is_there) *at(p.stream, row) = sum;
    if (!has_image) return;
    if (p.next.tap && is_there) *at(p.next.tap, row) = sum;
    const float squares = warp_sum(__fmaf_rn(sum.w, sum.w, __fmaf_rn(sum.z, sum.z, __fmaf_rn(sum.y, sum.y, sum.x * sum.x))));
    const float x[4] = {sum.x * weight.x, sum.y * weight.y, sum.z * weight.z, sum.w * weight.w};
    image_store(p.next.image, p.next.shape, row, block, x);
    if ((threadIdx.x & 31) == 0) p.next.squares[row * p.next.shape.n_blocks + block] = squares;
}
