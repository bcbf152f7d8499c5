// Ops that move rows: select, load taps, concat; and the rotary angles. One block or several per row.
#include "step.cuh"

struct Select {
    Step step;
    const float* x;
    float* out;
    u32 width, pad;
};

extern "C" __global__ void __launch_bounds__(256) select_rows(const __grid_constant__ Select p) {
    pdl_wait();
    pdl_next();
    const u32 i = blockIdx.x;
    if (i >= p.step.counts[1]) return;
    const float* x = p.x + (u64)p.step.logit_rows[i] * p.width;
    copy_row(p.out + (u64)i * p.width, x, p.width, blockIdx.y, gridDim.y);
}

struct LoadTaps {
    Step step;
    const float* taps;  // [slot, TAP_ROWS, width]
    float* out;
    u32 width, pad;
};

extern "C" __global__ void __launch_bounds__(256) load_taps(const __grid_constant__ LoadTaps p) {
    pdl_wait();
    pdl_next();
    const u32 r = blockIdx.x;
    if (r >= p.step.counts[0]) return;
    const Row row = p.step.rows[r];
    const float* x = p.taps + ((u64)p.step.seqs[row.seq].slot * TAP_ROWS + row.pos % TAP_ROWS) * p.width;
    copy_row(p.out + (u64)r * p.width, x, p.width, blockIdx.y, gridDim.y);
}

#define MAX_XS 16

struct Concat {
    const u32* n_rows;
    float* out;
    u32 n, width;
    const float* xs[MAX_XS];
    u32 widths[MAX_XS];
};

extern "C" __global__ void __launch_bounds__(256) concat(const __grid_constant__ Concat p) {
    pdl_wait();
    pdl_next();
    const u32 r = blockIdx.x;
    if (r >= *p.n_rows) return;
    float* out = p.out + (u64)r * p.width;
    for (u32 x = 0; x < p.n; x++) {
        const u32 width = p.widths[x];
        copy_row(out, p.xs[x] + (u64)r * width, width, blockIdx.y, gridDim.y);
        out += width;
    }
}

struct Angles {
    Step step;
    const float* inv_freq;
    float* out;
    float magnitude;
    u32 n;
};

// The angle in f32, as the reference implementations take it; its sine and cosine in f64.
extern "C" __global__ void __launch_bounds__(128) angles(const __grid_constant__ Angles p) {
    pdl_wait();
    pdl_next();
    const u32 r = blockIdx.x;
    if (r >= p.step.counts[0]) return;
    float* out = p.out + (u64)r * 2 * p.n;
    for (u32 i = threadIdx.x; i < p.n; i += blockDim.x) {
        double s, c;
        sincos((double)((float)p.step.rows[r].pos * p.inv_freq[i]), &s, &c);
        out[i] = (float)c * p.magnitude;
        out[p.n + i] = (float)s * p.magnitude;
    }
}
