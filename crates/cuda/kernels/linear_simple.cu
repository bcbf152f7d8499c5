// Products with weights as files hold them, of every type. A warp per output and TILE_ROWS rows; weights are decoded once a
// tile. Correct for everything and fast for nothing: what has no kernel of its own.
#include "dot.cuh"

#define MAX_PARTS 8

struct Part {
    Weight weight;
    const float* bias;
    float* out;
    u32 first_output, pad;  // of the launch
};

struct LinearSimple {
    const u32* n_rows;
    const float* x;
    const float* gate;  // of `add`
    u32 cols, n_parts, n_outputs, kind;  // kind: 0 store, 1 add, 2 glu
    u32 glu_kind;
    float alpha, limit;
    u32 pad;
    Part parts[MAX_PARTS];
};

extern "C" __global__ void __launch_bounds__(256) linear_simple(const __grid_constant__ LinearSimple p) {
    pdl_wait();
    pdl_next();
    const u32 n_rows = *p.n_rows, first = blockIdx.y * TILE_ROWS;
    if (first >= n_rows) return;
    const u32 n = min(n_rows - first, (u32)TILE_ROWS);
    const u32 output = blockIdx.x * 8 + (threadIdx.x >> 5), lane = threadIdx.x & 31;
    if (output >= p.n_outputs) return;
    u32 at = 0;
    if (p.kind == 0)
        while (at + 1 < p.n_parts && output >= p.parts[at + 1].first_output) at++;
    const Part& part = p.parts[at];
    const u32 o = output - part.first_output;
    const float* x = p.x + (u64)first * p.cols;
    float y[TILE_ROWS];
    dot_rows(part.weight, o, x, p.cols, n, y);
    float up[TILE_ROWS];
    if (p.kind == 2) dot_rows(p.parts[1].weight, o, x, p.cols, n, up);
    const float bias = part.bias ? part.bias[o] : 0.0f;
    const u32 width = part.weight.rows;
#pragma unroll
    for (u32 r = 0; r < TILE_ROWS; r++) {
        if (r < n && lane == r) {
            const u32 row = first + r;
            float* out = part.out + (u64)row * width + o;
            const float sum = y[r] + bias;
            if (p.kind == 0) *out = sum;
            else if (p.kind == 1) *out += p.gate ? sigmoid(p.gate[row]) * sum : sum;
            else *out = glu(p.glu_kind, p.alpha, p.limit, sum, up[r]);
        }
    }
}
