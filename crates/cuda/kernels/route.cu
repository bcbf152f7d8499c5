// Chooses k experts a row, best first, the lower index first among equals. A warp per row.
#include "choice.cuh"
#include "step.cuh"

struct Route {
    const u32* n_rows;
    const float* logits;  // [rows, n_experts]
    Choice* choices;      // [rows, k]
    u32 n_experts, k, rule, pad;  // rule: 0 softmax of all, renormalised; 1 softmax of all; 2 softmax of the best
};

#define MAX_EXPERTS 1024

extern "C" __global__ void __launch_bounds__(32) route(const __grid_constant__ Route p) {
    __shared__ u8 taken[MAX_EXPERTS];
    pdl_wait();
    pdl_next();
    const u32 row = blockIdx.x, lane = threadIdx.x;
    if (row >= *p.n_rows) return;
    const float* logits = p.logits + (u64)row * p.n_experts;
    Choice* choices = p.choices + (u64)row * p.k;
    for (u32 e = lane; e < p.n_experts; e += 32) taken[e] = 0;
    __syncwarp();
    float max = 0.0f, best_sum = 0.0f;
    for (u32 rank = 0; rank < p.k; rank++) {
        float best = -INFINITY_F;
        u32 at = 0xffffffffu;
        for (u32 e = lane; e < p.n_experts; e += 32) {
            const float x = logits[e];
            // What is not a number comes last, in order.
            if (!taken[e] && (at == 0xffffffffu || x > best || (isnan(best) && !isnan(x)))) {
                best = x;
                at = e;
            }
        }
        for (int step = 16; step > 0; step >>= 1) {
            const float other = __shfl_xor_sync(0xffffffffu, best, step);
            const u32 other_at = __shfl_xor_sync(0xffffffffu, at, step);
            const bool absent = at == 0xffffffffu, other_absent = other_at == 0xffffffffu;
            const bool better = other > best || (isnan(best) && !isnan(other));
            const bool worse = best > other || (isnan(other) && !isnan(best));
            if (!other_absent && (absent || better || (!worse && other_at < at))) {
                best = other;
                at = other_at;
            }
        }
        if (rank == 0) max = best;
        best_sum += expf(best - max);
        if (lane == 0) {
            taken[at] = 1;
            choices[rank] = {at, best};
        }
        __syncwarp();
    }
    float total = best_sum;
    if (p.rule == 1) {
        float sum = 0.0f;
        for (u32 e = lane; e < p.n_experts; e += 32) sum += expf(logits[e] - max);
        total = warp_sum(sum);
    }
    for (u32 rank = lane; rank < p.k; rank += 32) choices[rank].weight = expf(choices[rank].weight - max) / total;
}
