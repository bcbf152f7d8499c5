// Softmax attention of a row over its own past, for keys and values of 32 bits and head sizes that attention_tiles.cuh does
// not have. A block takes up to G heads that share keys, one row, and one of SPLITS runs
// of pages of 64 absolute positions; the last block of a (row, heads) to end combines the runs in order. Which pages a run
// has is decided by the row's own position alone, so no neighbour changes a bit.
#include "attention_parts.cuh"

#define SPLITS 32u

// E values at element `at`.
template <int E>
__device__ __forceinline__ void load_chunk(const void* kv, u32 type, u64 at, float out[E]) {
    if (type == BF16_KV) {
#pragma unroll
        for (int i = 0; i < E; i++) out[i] = bf16_to_f32(((const u16*)kv)[at + i]);
    } else if (type == F16_KV) {
        if constexpr (E == 8) {
            const uint4 x = *(const uint4*)((const u16*)kv + at);
            const u32 w[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
            for (int i = 0; i < 4; i++) {
                out[2 * i] = f16_to_f32((u16)w[i]);
                out[2 * i + 1] = f16_to_f32((u16)(w[i] >> 16));
            }
        } else if constexpr (E == 4) {
            const uint2 x = *(const uint2*)((const u16*)kv + at);
            out[0] = f16_to_f32((u16)x.x);
            out[1] = f16_to_f32((u16)(x.x >> 16));
            out[2] = f16_to_f32((u16)x.y);
            out[3] = f16_to_f32((u16)(x.y >> 16));
        } else {
#pragma unroll
            for (int i = 0; i < E; i++) out[i] = f16_to_f32(((const u16*)kv)[at + i]);
        }
    } else {
#pragma unroll
        for (int i = 0; i < E; i++) out[i] = ((const float*)kv)[at + i];
    }
}

__device__ __forceinline__ float load_one(const void* kv, u32 type, u64 at) {
    if (type == F32_KV) return ((const float*)kv)[at];
    const u16 h = ((const u16*)kv)[at];
    return type == F16_KV ? f16_to_f32(h) : bf16_to_f32(h);
}

template <int G, int E>
__device__ __forceinline__ void attend(const Attention& p) {
    __shared__ u64 places[PAGE];
    __shared__ float scores[G][PAGE];
    __shared__ float shrink[G], maxima[G], totals[G];
    __shared__ u32 is_last;
    const u32 split = blockIdx.x, r = p.first_row + blockIdx.z;
    if (r >= p.step.counts[0]) return;
    const u32 group = p.heads / p.kv_heads;
    const u32 kv_head = blockIdx.y / p.head_blocks, block = blockIdx.y % p.head_blocks;
    const u32 first_head = kv_head * group + block * G, n_heads = min((u32)G, group - block * G);
    const Row row = p.step.rows[r];
    const Seq seq = p.step.seqs[row.seq];
    const u32 sure_end = seq.committed + seq.n_sure;
    const u32 from = p.window && row.pos + 1 > p.window ? row.pos + 1 - p.window : 0;
    const u32 end = p.see_ahead ? max(sure_end, row.pos + 1) : row.pos + 1;
    const u32 first_page = from / PAGE, n_pages = (end - 1) / PAGE - first_page + 1;
    const u32 run = (n_pages + SPLITS - 1) / SPLITS, n_runs = (n_pages + run - 1) / run;
    if (split >= n_runs) return;

    const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, n_warps = blockDim.x >> 5;
    const bool has_chunk = lane * E < p.d;
    const u64 values = (u64)p.kv_heads * PAGE * p.d;  // from a key to its value
    float q[G][E], acc[G];
#pragma unroll
    for (int g = 0; g < G; g++) {
        acc[g] = 0.0f;
        const float* head = p.q + ((u64)r * p.heads + first_head + min((u32)g, n_heads - 1)) * p.q_stride;
#pragma unroll
        for (int e = 0; e < E; e++) q[g][e] = has_chunk ? head[lane * E + e] : 0.0f;
    }
    if (threadIdx.x < G) {
        maxima[threadIdx.x] = -INFINITY_F;
        totals[threadIdx.x] = 0.0f;
    }
    const u32 last_page = min(first_page + (split + 1) * run, first_page + n_pages);
    for (u32 page = first_page + split * run; page < last_page; page++) {
        const u32 start = page * PAGE;
        __syncthreads();
        if (threadIdx.x < PAGE) {
            const u32 pos = start + threadIdx.x;
            u64 place = ~0ull;
            if (pos >= from && pos < end) {
                const u32 slot = slot_of(p.step, r, sure_end, pos);
                const u64 physical = page_of(p.step, row.seq, p.cls, slot);
                place = ((physical * 2 * p.kv_heads + kv_head) * PAGE + slot % PAGE) * p.d;
            }
            places[threadIdx.x] = place;
        }
        __syncthreads();
        for (u32 at = warp; at < PAGE; at += n_warps) {
            const u64 place = places[at];
            float k[E];
#pragma unroll
            for (int e = 0; e < E; e++) k[e] = 0.0f;
            if (place != ~0ull && has_chunk) load_chunk<E>(p.kv, p.kv_type, place + lane * E, k);
#pragma unroll
            for (int g = 0; g < G; g++) {
                float dot = 0.0f;
#pragma unroll
                for (int e = 0; e < E; e++) dot = __fmaf_rn(q[g][e], k[e], dot);
                dot = warp_sum(dot);
                if (lane == 0) scores[g][at] = place == ~0ull ? -INFINITY_F : p.scale * dot;
            }
        }
        __syncthreads();
        // A warp per head folds the page into the running softmax. A run has no page without a visible position.
        for (u32 g = warp; g < G; g += n_warps) {
            const float a = scores[g][lane], b = scores[g][lane + 32];
            const float old = maxima[g], now = fmaxf(old, warp_max(fmaxf(a, b)));
            const float ea = expf(a - now), eb = expf(b - now);
            scores[g][lane] = ea;
            scores[g][lane + 32] = eb;
            const float sum = warp_sum(ea + eb);
            __syncwarp();
            if (lane == 0) {
                const float factor = expf(old - now);
                shrink[g] = factor;
                maxima[g] = now;
                totals[g] = __fmaf_rn(totals[g], factor, sum);
            }
        }
        __syncthreads();
        if (threadIdx.x < p.d) {
#pragma unroll
            for (int g = 0; g < G; g++) acc[g] *= shrink[g];
#pragma unroll 8
            for (u32 at = 0; at < PAGE; at++) {
                const u64 place = places[at];
                const float v = place == ~0ull ? 0.0f : load_one(p.kv, p.kv_type, place + values + threadIdx.x);
#pragma unroll
                for (int g = 0; g < G; g++) acc[g] = __fmaf_rn(scores[g][at], v, acc[g]);
            }
        }
    }
    // What this run found, for whoever ends last.
    const u64 stride = p.d + 2, per_head = SPLITS * stride;
    float* mine = p.partials + ((u64)blockIdx.z * p.heads + first_head) * per_head + split * stride;
#pragma unroll
    for (int g = 0; g < G; g++)
        if (g < n_heads && threadIdx.x < p.d) mine[g * per_head + 2 + threadIdx.x] = acc[g];
    __syncthreads();
    if (threadIdx.x < n_heads) {
        mine[threadIdx.x * per_head] = maxima[threadIdx.x];
        mine[threadIdx.x * per_head + 1] = totals[threadIdx.x];
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)
        // Wraps to zero with the last, ready for the next launch.
        is_last = atomicInc(p.done + (u64)blockIdx.z * gridDim.y + blockIdx.y, n_runs - 1) == n_runs - 1;
    __syncthreads();
    if (!is_last) return;
    __threadfence();
    __shared__ __align__(16) float whole[256];
    for (u32 g = 0; g < n_heads; g++) {
        const u32 head = first_head + g;
        if (threadIdx.x < p.d) {
            const float* runs = p.partials + ((u64)blockIdx.z * p.heads + head) * per_head;
            float max = p.sinks ? p.sinks[head] : -INFINITY_F;
            for (u32 s = 0; s < n_runs; s++) max = fmaxf(max, __ldcg(runs + s * stride));
            float total = p.sinks ? expf(p.sinks[head] - max) : 0.0f, sum = 0.0f;
            for (u32 s = 0; s < n_runs; s++) {
                const float weight = expf(__ldcg(runs + s * stride) - max);
                total = __fmaf_rn(weight, __ldcg(runs + s * stride + 1), total);
                sum = __fmaf_rn(weight, __ldcg(runs + s * stride + 2 + threadIdx.x), sum);
            }
            sum /= total;
            if (p.gated) sum *= sigmoid(p.q[((u64)r * p.heads + head) * p.q_stride + p.d + threadIdx.x]);
            p.out[((u64)r * p.heads + head) * p.d + threadIdx.x] = sum;
            whole[threadIdx.x] = sum;
        }
        if (!p.image) continue;
        __syncthreads();
        if (warp < p.d / 128) {
            const float4 four = *(const float4*)(whole + 128 * warp + 4 * lane);
            const float x[4] = {four.x, four.y, four.z, four.w};
            image_store(p.image, p.shape, r, head * (p.d / 128) + warp, x);
        }
        __syncthreads();
    }
}

#define ENTRY(G, E)                                                                                      \
    extern "C" __global__ void __launch_bounds__(256) attention_##G##_##E(const __grid_constant__ Attention p) { \
        pdl_wait();                                                                                      \
        pdl_next();                                                                                      \
        attend<G, E>(p);                                                                                 \
    }
ENTRY(1, 1) ENTRY(1, 2) ENTRY(1, 4) ENTRY(1, 8)
ENTRY(2, 1) ENTRY(2, 2) ENTRY(2, 4) ENTRY(2, 8)
ENTRY(4, 1) ENTRY(4, 2) ENTRY(4, 4) ENTRY(4, 8)
ENTRY(8, 1) ENTRY(8, 2) ENTRY(8, 4) ENTRY(8, 8)
