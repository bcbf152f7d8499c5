// The gated delta rule from the grid state and window; the formulas are in crates/plan/src/op.rs. Columns of S do not meet,
// so a block takes 32 columns of one value head of one sequence and all its rows: lane = column, warp = a quarter of the
// key channels, whose part of S a thread keeps in registers. Rows go in tiles: what S gives them and how much each earlier
// row counts is worked out for a tile at once, and only the deltas follow one another, a warp with a lane per column.
// Every sum has one order, whatever the rows beside.
#include "image.cuh"
#include "keep.cuh"

#define COLUMNS 32u
#define PARTS 4u
#define TILE 16u
// Deltas of the step's last rows at hand; older ones are read back.
#define RING 64u

struct Recurrent {
    Step step;
    const float *prepared, *gates, *window;
    const float2* dots;  // of recurrent_prepare
    float *delta, *out, *state;
    u32 key_heads, value_heads, key_dim, value_dim, tiled, pad;
};

// How much an earlier row counts, and where its delta is: below WINDOW_ROWS + RING in the table, from there on a row.
struct Term {
    float k, q;
    u32 where, pad;
};

template <u32 DK>
struct Room {
    float qk[TILE][2][DK];
    float sums[TILE][2][PARTS][COLUMNS];
    Term terms[TILE][REACH];
    float deltas[WINDOW_ROWS + RING][COLUMNS];
    float gs[WINDOW_ROWS + RING];
    float whole[TILE], own[TILE], beta[TILE];
    // Of the tile's rows: which of the step, and its position.
    u32 row[TILE], pos[TILE];
};

struct Head {
    Seq seq;
    u32 h, key_head, keys, width, column;
    bool has_column;
};

// s = e^{sum of g} s + sum_j e^{decay from j to the end} k_j delta_j^T over the 16 rows from `grid`, which are sure.
template <u32 R>
__device__ __forceinline__ void fold(const Recurrent& p, const Head& head, float (&s)[R], u32 grid) {
    const u32 deltas = p.value_heads * p.value_dim, len = head.keys + deltas + p.value_heads, first = (threadIdx.x >> 5) * R;
    // The row at `grid + j`: its key, delta and g.
    const auto row_at = [&](u32 j, const float*& k, float& delta, float& g) {
        const u32 pos = grid + j;
        const float* d;
        if (pos < head.seq.committed) {
            const float* row = p.window + ((u64)head.seq.slot * WINDOW_ROWS + pos % WINDOW_ROWS) * len;
            k = row + head.key_head * p.key_dim + first;
            d = row + head.keys + head.h * p.value_dim;
            g = row[head.keys + deltas + head.h];
        } else {
            const u64 row = p.step.seq_rows[head.seq.first + pos - head.seq.committed];
            k = p.prepared + row * head.width + head.keys + head.key_head * p.key_dim + first;
            d = p.delta + row * deltas + head.h * p.value_dim;
            g = p.gates[row * 2 * p.value_heads + head.h];
        }
        delta = head.has_column ? d[head.column] : 0.0f;
    };
    float sum[R], decay = 0.0f;
#pragma unroll
    for (u32 i = 0; i < R; i++) sum[i] = 0.0f;
    // Unrolled whole it took a minute and a half to compile.
#pragma unroll 2
    for (int j = GRID - 1; j >= 0; j--) {
        const float* k;
        float delta, g;
        row_at(j, k, delta, g);
        const float weighted = expf(decay) * delta;
        decay += g;
#pragma unroll
        for (u32 i = 0; i < R; i++)
            if (first + i < p.key_dim) sum[i] = __fmaf_rn(k[i], weighted, sum[i]);
    }
    const float whole = expf(decay);
#pragma unroll
    for (u32 i = 0; i < R; i++) s[i] = __fmaf_rn(whole, s[i], sum[i]);
}

// What the state gives a row: this thread's part of S^T q and S^T k.
template <u32 R>
__device__ __forceinline__ void read_state(const float (&s)[R], const float* q, const float* k, float& sq, float& sk) {
    sq = 0.0f;
    sk = 0.0f;
#pragma unroll
    for (u32 i = 0; i < R; i += 4) {
        const float4 a = *(const float4*)(q + i), b = *(const float4*)(k + i);
        sq = __fmaf_rn(s[i], a.x, sq);
        sk = __fmaf_rn(s[i], b.x, sk);
        sq = __fmaf_rn(s[i + 1], a.y, sq);
        sk = __fmaf_rn(s[i + 1], b.y, sk);
        sq = __fmaf_rn(s[i + 2], a.z, sq);
        sk = __fmaf_rn(s[i + 2], b.z, sk);
        sq = __fmaf_rn(s[i + 3], a.w, sq);
        sk = __fmaf_rn(s[i + 3], b.w, sk);
    }
}

template <u32 DK>
__device__ __forceinline__ void recur(const Recurrent& p) {
    extern __shared__ __align__(16) u8 bytes[];
    Room<DK>& room = *(Room<DK>*)bytes;
    constexpr u32 R = DK / PARTS;
    // Until `pdl_wait` only what earlier steps left: the step's data, S and the window.
    if (blockIdx.z >= p.step.counts[2]) return pdl_wait();
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, dk = p.key_dim, dv = p.value_dim, h = blockIdx.y;
    const u32 keys = p.key_heads * dk, key_head = p.tiled ? h % p.key_heads : h / (p.value_heads / p.key_heads);
    const u32 column = blockIdx.x * COLUMNS + lane;
    const Head head = {p.step.seqs[blockIdx.z], h, key_head, keys, 2 * keys + p.value_heads * dv, column, column < dv};
    const Seq& seq = head.seq;
    float* stored = p.state + ((u64)seq.slot * p.value_heads + h) * dk * dv + column;
    float s[R], ahead[R];
#pragma unroll
    for (u32 i = 0; i < R; i++) {
        const u32 a = warp * R + i;
        s[i] = head.has_column && a < dk ? stored[(u64)a * dv] : 0.0f;
    }
    // The kept rows from the stored grid on.
    const u32 deltas = p.value_heads * dv, len = keys + deltas + p.value_heads;
    for (u32 pos = seq.stored_grid + warp; pos < seq.committed; pos += PARTS) {
        const u32 at = pos % WINDOW_ROWS;
        const float* row = p.window + ((u64)seq.slot * WINDOW_ROWS + at) * len;
        room.deltas[at][lane] = head.has_column ? row[keys + h * dv + column] : 0.0f;
        if (lane == 0) room.gs[at] = row[keys + deltas + h];
    }

    pdl_wait();
    pdl_next();
    u32 at = seq.stored_grid, ahead_at = 0;
    bool has_ahead = false;
    for (u32 local = 0; local < seq.n_rows;) {
        if (local < seq.n_sure)
            for (const u32 grid = grid_of(seq.committed + local); at < grid; at += GRID) fold(p, head, s, at);
        u32 end = local + 1;
        while (end < seq.n_rows && end < local + TILE && !(end < seq.n_sure && grid_of(seq.committed + end) > at)) end++;
        const u32 n_tile = end - local;
        for (u32 t = warp; t < n_tile; t += PARTS) {
            const u64 r = p.step.seq_rows[seq.first + local + t];
            if (lane == 0) {
                room.row[t] = (u32)r;
                room.pos[t] = p.step.rows[r].pos;
            }
            const float* x = p.prepared + r * head.width + key_head * dk;
            for (u32 i = lane; i < DK; i += 32) {
                room.qk[t][0][i] = i < dk ? x[i] : 0.0f;
                room.qk[t][1][i] = i < dk ? x[keys + i] : 0.0f;
            }
            if (lane == 0) {
                room.gs[WINDOW_ROWS + (local + t) % RING] = p.gates[r * 2 * p.value_heads + h];
                room.beta[t] = p.gates[(r * 2 + 1) * p.value_heads + h];
            }
        }
        __syncthreads();
        for (u32 t = warp; t < n_tile; t += PARTS) {
            const u32 mine = local + t, r = room.row[t], pos = room.pos[t], n = pos - grid_of(pos);
            const float2* dots = p.dots + ((u64)r * p.key_heads + key_head) * REACH;
            const float2 dot = lane <= n ? dots[lane] : make_float2(0.0f, 0.0f);
            u32 where = 0;
            float g = 0.0f;
            if (lane < n) {
                const u32 past = p.step.pasts[r * REACH + lane];
                if (past & KEPT) {
                    where = past & ~KEPT;
                    g = room.gs[where];
                } else {
                    // A tile may overwrite the ring's oldest, so only what is nearer is taken from it.
                    const u32 other = p.step.rows[past].local;
                    where = other + RING >= local + TILE ? WINDOW_ROWS + other % RING : WINDOW_ROWS + RING + past;
                    g = p.gates[(u64)past * 2 * p.value_heads + h];
                }
            }
            // Decay from just after each past row to this one, summed backwards from the row itself: prefix sums reach
            // -1500 and their differences would lose the digits that matter.
            float decay = room.gs[WINDOW_ROWS + mine % RING], all = decay;
            for (int j = (int)n - 1; j >= 0; j--) {
                const float other = __shfl_sync(0xffffffffu, g, j);
                all += other;
                if (j > (int)lane) decay = all;
            }
            const float weight = expf(decay);
            room.terms[t][lane] = {weight * dot.x, weight * dot.y, where, 0};
            if (lane == n) room.own[t] = dot.y;
            if (lane == 0) room.whole[t] = expf(all);
        }
        for (u32 t = 0; t < n_tile; t++) {
            const u32 grid = grid_of(room.pos[t]);
            float sq, sk;
            const float *q = room.qk[t][0] + warp * R, *k = room.qk[t][1] + warp * R;
            if (grid == at) {
                read_state<R>(s, q, k, sq, sk);
            } else {
                // A deep draft: one grid further, which only committed rows decide.
                if (!has_ahead) {
#pragma unroll
                    for (u32 i = 0; i < R; i++) ahead[i] = s[i];
                    ahead_at = at;
                    has_ahead = true;
                }
                for (; ahead_at < grid; ahead_at += GRID) fold(p, head, ahead, ahead_at);
                read_state<R>(ahead, q, k, sq, sk);
            }
            room.sums[t][0][warp][lane] = sq;
            room.sums[t][1][warp][lane] = sk;
        }
        __syncthreads();
        if (warp == 0) {
            for (u32 t = 0; t < n_tile; t++) {
                const u32 mine = local + t, r = room.row[t], n = room.pos[t] - grid_of(room.pos[t]);
                const u64 place = (u64)r * deltas + h * dv + column;
                const float v = head.has_column ? p.prepared[(u64)r * head.width + 2 * keys + h * dv + column] : 0.0f;
                const auto& sums = room.sums[t];
                float o = room.whole[t] * ((sums[0][0][lane] + sums[0][1][lane]) + (sums[0][2][lane] + sums[0][3][lane]));
                float d = room.whole[t] * ((sums[1][0][lane] + sums[1][1][lane]) + (sums[1][2][lane] + sums[1][3][lane]));
#pragma unroll 4
                for (u32 j = 0; j < n; j++) {
                    const Term term = room.terms[t][j];
                    float delta = 0.0f;
                    if (term.where < WINDOW_ROWS + RING) delta = room.deltas[term.where][lane];
                    else if (head.has_column) delta = p.delta[(u64)(term.where - WINDOW_ROWS - RING) * deltas + h * dv + column];
                    d = __fmaf_rn(term.k, delta, d);
                    o = __fmaf_rn(term.q, delta, o);
                }
                const float delta = room.beta[t] * (v - d);
                room.deltas[WINDOW_ROWS + mine % RING][lane] = delta;
                if (head.has_column) {
                    p.delta[place] = delta;
                    p.out[place] = __fmaf_rn(room.own[t], delta, o);
                }
                __syncwarp();
            }
        }
        __syncthreads();
        local = end;
    }
    if (at != seq.stored_grid && head.has_column) {
#pragma unroll
        for (u32 i = 0; i < R; i++)
            if (warp * R + i < dk) stored[(u64)(warp * R + i) * dv] = s[i];
    }
}

#define ENTRY(DK)                                                                                              \
    extern "C" __global__ void __launch_bounds__(128, 2) recurrent_##DK(const __grid_constant__ Recurrent p) { \
        recur<DK>(p);                                                                                          \
    }
ENTRY(64)
ENTRY(128)

// Sure rows enter the window once every head is done with what they push out. Blocks of (row, share of it).
struct RecurrentKeep {
    Step step;
    KeptLayer layer;
};

extern "C" __global__ void __launch_bounds__(256) recurrent_keep(const __grid_constant__ RecurrentKeep p) {
    pdl_wait();
    pdl_next();
    if (blockIdx.x < p.step.counts[0]) keep_if_sure(p.step, p.layer, blockIdx.x, blockIdx.y, gridDim.y);
}

// Per head: out = rms(x) . weight . silu(gate), a warp each; and the keeping of the rows, by the same blocks.
struct GatedNormKeep {
    Step step;
    KeptLayer layer;
    const float *x, *gate, *weight;
    float* out;
    u8* image;  // of `out` for the linear kernels, where they want one and a head is one of its blocks
    float eps;
    u32 heads, head_dim;
    ImageShape shape;
};

extern "C" __global__ void __launch_bounds__(128) gated_norm_keep(const __grid_constant__ GatedNormKeep p) {
    const u32 r = blockIdx.x, h = blockIdx.y * 4 + (threadIdx.x >> 5), lane = threadIdx.x & 31;
    const bool is_there = r < p.step.counts[0];
    pdl_wait();
    pdl_next();
    if (!is_there) return;
    if (h < p.heads) {
        const u64 at = ((u64)r * p.heads + h) * p.head_dim;
        // Lanes take channels side by side where the image wants them so; it depends on the shape alone.
        const u32 step = p.head_dim == 128 ? 1 : 32, first = p.head_dim == 128 ? 4 * lane : lane;
        const u32 end = p.head_dim == 128 ? first + 4 : p.head_dim;
        float squares = 0.0f;
        for (u32 i = first; i < end; i += step) squares = __fmaf_rn(p.x[at + i], p.x[at + i], squares);
        const float scale = 1.0f / sqrtf(warp_sum(squares) / (float)p.head_dim + p.eps);
        float y[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 4
        for (u32 i = first, n = 0; i < end; i += step, n++) {
            const float v = p.x[at + i] * scale * p.weight[i] * silu(p.gate[at + i]);
            p.out[at + i] = v;
            if (n == 0) y[0] = v;
            if (n == 1) y[1] = v;
            if (n == 2) y[2] = v;
            if (n == 3) y[3] = v;
        }
        if (p.image) image_store(p.image, p.shape, r, h, y);
    }
    keep_if_sure(p.step, p.layer, r, blockIdx.y, gridDim.y);
}
