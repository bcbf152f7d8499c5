// Ops that move rows: select, load taps, concat; and the rotary angles. One block or several per row.
#include "angles.cuh"

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
    u32 width, blocks;  // of a row
    Angles angles;
};

extern "C" __global__ void __launch_bounds__(256) load_taps(const __grid_constant__ LoadTaps p) {
    pdl_wait();
    pdl_next();
    const u32 r = blockIdx.x;
    if (r >= p.step.counts[0]) return;
    if (blockIdx.y == p.blocks) return make_angles(p.angles, p.step.rows[r].pos, r);
    const Row row = p.step.rows[r];
    const float* x = p.taps + ((u64)p.step.seqs[row.seq].slot * TAP_ROWS + row.pos % TAP_ROWS) * p.width;
    copy_row(p.out + (u64)r * p.width, x, p.width, blockIdx.y, p.blocks);
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

struct AnglesAlone {
    Step step;
    Angles angles;
};

extern "C" __global__ void __launch_bounds__(128) angles(const __grid_constant__ AnglesAlone p) {
    pdl_wait();
    pdl_next();
    const u32 r = blockIdx.x;
    if (r < p.step.counts[0]) make_angles(p.angles, p.step.rows[r].pos, r);
}
