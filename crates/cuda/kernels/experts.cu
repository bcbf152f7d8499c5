// The chosen experts' feed-forward layers on weights as files hold them: a warp per (row, expert, output).
#include "choice.cuh"
#include "dot.cuh"
#include "step.cuh"

struct ExpertGlu {
    const u32* n_rows;
    const float* x;
    const Choice* choices;  // [rows, k]
    float* out;             // [rows, k, width]
    Weight gate, up;
    const float *gate_bias, *up_bias;
    u32 k, cols, width, stride, up_row, glu_kind;
    float alpha, limit;
};

extern "C" __global__ void __launch_bounds__(256) expert_glu(const __grid_constant__ ExpertGlu p) {
    pdl_wait();
    pdl_next();
    const u32 row = blockIdx.y / p.k, o = blockIdx.x * 8 + (threadIdx.x >> 5);
    if (row >= *p.n_rows || o >= p.width) return;
    const u32 expert = p.choices[blockIdx.y].index;
    const float* x = p.x + (u64)row * p.cols;
    const u64 first = (u64)expert * p.stride;
    float g = dot_one(p.gate, first + o, x, p.cols);
    float u = dot_one(p.up, first + p.up_row + o, x, p.cols);
    if (p.gate_bias) g += p.gate_bias[(u64)expert * p.width + o];
    if (p.up_bias) u += p.up_bias[(u64)expert * p.width + o];
    if ((threadIdx.x & 31) == 0) p.out[(u64)blockIdx.y * p.width + o] = glu(p.glu_kind, p.alpha, p.limit, g, u);
}

struct ExpertAdd {
    const u32* n_rows;
    const float* h;  // [rows, k, width]
    const Choice* choices;
    float* stream;  // [rows, hidden]
    Weight down;
    const float* bias;
    u32 k, width, hidden, pad;
};

// Experts in the order of the choice, so that a row's sum has one order.
extern "C" __global__ void __launch_bounds__(256) expert_add(const __grid_constant__ ExpertAdd p) {
    pdl_wait();
    pdl_next();
    const u32 row = blockIdx.y, o = blockIdx.x * 8 + (threadIdx.x >> 5);
    if (row >= *p.n_rows || o >= p.hidden) return;
    float* stream = p.stream + (u64)row * p.hidden + o;
    float sum = *stream;
    for (u32 rank = 0; rank < p.k; rank++) {
        const Choice c = p.choices[row * p.k + rank];
        const u64 at = (u64)c.index * p.hidden + o;
        float y = dot_one(p.down, at, p.h + ((u64)row * p.k + rank) * p.width, p.width);
        if (p.bias) y += p.bias[at];
        sum = __fmaf_rn(c.weight, y, sum);
    }
    if ((threadIdx.x & 31) == 0) *stream = sum;
}
