// The gated delta rule from the grid state and window; the formulas are in crates/plan/src/op.rs. Columns of S do not meet,
// so a block takes 32 columns of one value head of one sequence and all its rows, one after another: lane = column,
// warp = a quarter of the key channels. Sums have one order whatever the rows beside.
#include "keep.cuh"

#define COLUMNS 32u
#define PARTS 4u
#define REACH 32u

struct Recurrent {
    Step step;
    const float *prepared, *gates, *window;
    float *delta, *out, *state;
    u32 key_heads, value_heads, key_dim, value_dim, tiled, pad;
};

struct Past {
    const float *k, *delta;
    float g;
};

struct Head {
    const Recurrent& p;
    Seq seq;
    u32 h, key_head, keys, width, column;

    // A row of this step.
    __device__ Past step_row(u32 row) const {
        const float* x = p.prepared + (u64)row * width;
        return {x + keys + key_head * p.key_dim, p.delta + ((u64)row * p.value_heads + h) * p.value_dim,
                p.gates[(u64)row * 2 * p.value_heads + h]};
    }
    // A committed row, from the window.
    __device__ Past kept_row(u32 pos) const {
        const u32 deltas = p.value_heads * p.value_dim, len = keys + deltas + p.value_heads;
        const float* row = p.window + ((u64)seq.slot * WINDOW_ROWS + pos % WINDOW_ROWS) * len;
        return {row + key_head * p.key_dim, row + keys + h * p.value_dim, row[keys + deltas + h]};
    }
    // The row at `pos` as the row `row` sees it.
    __device__ Past past(u32 row, u32 pos) const {
        if (pos < seq.committed) return kept_row(pos);
        const u32 sure_end = seq.committed + seq.n_sure;
        const u32 local = pos < sure_end ? pos - seq.committed : p.step.paths[row * PATH + pos - sure_end] - seq.committed;
        return step_row(p.step.seq_rows[seq.first + local]);
    }
};

// s = e^{sum of g} s + sum_j e^{decay from j to the end} k_j delta_j^T over the 16 rows from `grid`, which are sure.
__device__ __forceinline__ void fold(const Head& head, float* s, u32 grid, float* k_tile, Past* pasts) {
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, dk = head.p.key_dim;
    __shared__ float weights[GRID + 1];
    __syncthreads();
    if (threadIdx.x < GRID) pasts[threadIdx.x] = head.past(0, grid + threadIdx.x);
    __syncthreads();
    if (threadIdx.x <= GRID) {
        // weights[j]: from just after row j to the end, summed from the end; weights[GRID]: over all.
        const int first = threadIdx.x == GRID ? 0 : threadIdx.x + 1;
        float decay = 0.0f;
        for (int j = GRID - 1; j >= first; j--) decay += pasts[j].g;
        weights[threadIdx.x] = expf(decay);
    }
    for (u32 i = threadIdx.x; i < GRID * dk; i += blockDim.x) k_tile[i] = pasts[i / dk].k[i % dk];
    __syncthreads();
    if (head.column >= head.p.value_dim) return;
    float deltas[GRID];
#pragma unroll
    for (int j = 0; j < GRID; j++) deltas[j] = weights[j] * pasts[j].delta[head.column];
    for (u32 a = warp; a < dk; a += PARTS) {
        float x = weights[GRID] * s[a * COLUMNS + lane];
#pragma unroll
        for (int j = 0; j < GRID; j++) x = __fmaf_rn(k_tile[j * dk + a], deltas[j], x);
        s[a * COLUMNS + lane] = x;
    }
}

extern "C" __global__ void __launch_bounds__(128) recurrent(const __grid_constant__ Recurrent p) {
    extern __shared__ float room[];
    __shared__ Past pasts[REACH];
    __shared__ float decays[REACH], from_k[REACH], from_q[REACH], sums[4][PARTS][COLUMNS];
    __shared__ float own_dot, whole;
    pdl_wait();
    pdl_next();
    const u32 s_index = blockIdx.z;
    if (s_index >= p.step.counts[2]) return;
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, dk = p.key_dim, dv = p.value_dim;
    float *s = room, *ahead = s + dk * COLUMNS, *k_tile = ahead + dk * COLUMNS, *k = k_tile + GRID * dk, *q = k + dk;
    const u32 h = blockIdx.y, keys = p.key_heads * dk;
    const u32 key_head = p.tiled ? h % p.key_heads : h / (p.value_heads / p.key_heads);
    const Head head = {p, p.step.seqs[s_index], h, key_head, keys, 2 * keys + p.value_heads * dv, blockIdx.x * COLUMNS + lane};
    const bool has_column = head.column < dv;
    float* stored = p.state + ((u64)head.seq.slot * p.value_heads + h) * dk * dv + head.column;
    for (u32 a = warp; a < dk; a += PARTS) s[a * COLUMNS + lane] = has_column ? stored[(u64)a * dv] : 0.0f;

    u32 at = head.seq.stored_grid, ahead_at = 0xffffffffu;
    for (u32 local = 0; local < head.seq.n_rows; local++) {
        const u32 r = p.step.seq_rows[head.seq.first + local], pos = p.step.rows[r].pos, grid = grid_of(pos);
        if (local < head.seq.n_sure)
            for (; at < grid; at += GRID) fold(head, s, at, k_tile, pasts);
        float* from = s;
        if (grid != at) {
            // A deep draft: one grid further, which only committed rows decide.
            if (ahead_at == 0xffffffffu) {
                __syncthreads();
                for (u32 a = warp; a < dk; a += PARTS) ahead[a * COLUMNS + lane] = s[a * COLUMNS + lane];
                ahead_at = at;
            }
            for (; ahead_at < grid; ahead_at += GRID) fold(head, ahead, ahead_at, k_tile, pasts);
            from = ahead;
        }
        __syncthreads();
        const u32 n = pos - grid;
        const float* x = p.prepared + (u64)r * head.width;
        const float g = p.gates[(u64)r * 2 * p.value_heads + h], beta = p.gates[((u64)r * 2 + 1) * p.value_heads + h];
        if (threadIdx.x < n) pasts[threadIdx.x] = head.past(r, grid + threadIdx.x);
        for (u32 i = threadIdx.x; i < dk; i += blockDim.x) {
            q[i] = x[key_head * dk + i];
            k[i] = x[keys + key_head * dk + i];
        }
        __syncthreads();
        // Decay from just after each past row to this one, summed backwards from the row itself: prefix sums reach -1500
        // and their differences would lose the digits that matter.
        if (warp == 0) {
            float decay = g;
            for (int j = (int)n - 1; j > (int)lane; j--) decay += pasts[j].g;
            if (lane < n) decays[lane] = expf(decay);
            if (lane == 0) {
                if (n > 0) decay += pasts[0].g;
                whole = expf(decay);
            }
        }
        for (u32 j = warp; j <= n; j += PARTS) {
            const float* past_k = j < n ? pasts[j].k : k;
            float kk = 0.0f, kq = 0.0f;
            for (u32 i = lane; i < dk; i += 32) {
                kk = __fmaf_rn(past_k[i], k[i], kk);
                kq = __fmaf_rn(past_k[i], q[i], kq);
            }
            kk = warp_sum(kk);
            kq = warp_sum(kq);
            if (lane == 0) {
                if (j < n) {
                    from_k[j] = kk;
                    from_q[j] = kq;
                } else {
                    own_dot = kq;
                }
            }
        }
        float sk = 0.0f, sq = 0.0f;
        for (u32 a = warp; a < dk; a += PARTS) {
            const float v = from[a * COLUMNS + lane];
            sk = __fmaf_rn(v, k[a], sk);
            sq = __fmaf_rn(v, q[a], sq);
        }
        sums[0][warp][lane] = sk;
        sums[1][warp][lane] = sq;
        __syncthreads();
        float dk_sum = 0.0f, dq_sum = 0.0f;
        if (has_column)
            for (u32 j = warp; j < n; j += PARTS) {
                const float weighted = decays[j] * pasts[j].delta[head.column];
                dk_sum = __fmaf_rn(from_k[j], weighted, dk_sum);
                dq_sum = __fmaf_rn(from_q[j], weighted, dq_sum);
            }
        sums[2][warp][lane] = dk_sum;
        sums[3][warp][lane] = dq_sum;
        __syncthreads();
        if (warp == 0 && has_column) {
            float total[4];
#pragma unroll
            for (int t = 0; t < 4; t++) total[t] = (sums[t][0][lane] + sums[t][1][lane]) + (sums[t][2][lane] + sums[t][3][lane]);
            const u64 place = ((u64)r * p.value_heads + h) * dv + head.column;
            const float delta = beta * (x[2 * keys + h * dv + head.column] - __fmaf_rn(whole, total[0], total[2]));
            p.delta[place] = delta;
            p.out[place] = __fmaf_rn(own_dot, delta, __fmaf_rn(whole, total[1], total[3]));
        }
    }
    __syncthreads();
    if (at != head.seq.stored_grid && has_column)
        for (u32 a = warp; a < dk; a += PARTS) stored[(u64)a * dv] = s[a * COLUMNS + lane];
}

// Sure rows enter the window once every head is done with what they push out. A block per (row of the last WINDOW_ROWS,
// sequence).
struct RecurrentKeep {
    Step step;
    KeptLayer layer;
};

extern "C" __global__ void __launch_bounds__(256) recurrent_keep(const __grid_constant__ RecurrentKeep p) {
    pdl_wait();
    pdl_next();
    if (blockIdx.y >= p.step.counts[2]) return;
    const Seq seq = p.step.seqs[blockIdx.y];
    const u32 first = seq.n_sure > WINDOW_ROWS ? seq.n_sure - WINDOW_ROWS : 0, i = first + blockIdx.x;
    if (i >= seq.n_sure) return;
    keep_row(p.layer, seq.slot, seq.committed + i, p.step.seq_rows[seq.first + i], i + CONV_ROWS >= seq.n_sure);
}
