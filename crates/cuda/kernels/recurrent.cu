// The gated delta rule from the grid state and window, with what goes before it (convolution, gates) and behind it (gated
// norm); the formulas are in crates/plan/src/op.rs. A block takes one value head of one sequence and all its rows, in tiles
// of 16: S in registers, and only the deltas of a tile's rows follow one another. What value heads of a key head share is
// worked out by each of them: cheaper than a kernel of its own. Every sum has one order, whatever the rows beside.
#include "recurrent_head.cuh"

// What S and the rows before the tile give row t: o, and v less it.
template <bool FULL>
__device__ __forceinline__ void add_earlier(const Head<FULL>& head, u32 t) {
    const Recurrent& p = head.p;
    Room& room = head.room;
    const u32 at = 4 * (threadIdx.x & 31), r = room.row[t], pos = room.pos[t], grid = grid_of(pos);
    const u32 n = pos - grid, n_before = n - __popc(room.ancestors[t]);
    const u32 n_kept = head.seq.committed > grid ? min(n, head.seq.committed - grid) : 0;
    float4 gate;
    if (p.mode & NORMS) gate = head.load(p.gate + (u64)r * head.deltas() + head.h * head.value_dim(), head.value_dim());
    float4 e = head.load(p.prepared + (u64)r * head.width() + head.v_at(), head.value_dim());
    const float whole = room.whole[t];
    float4 o = scaled(*(const float4*)&room.sums[t][0][at], whole);
    add_scaled(e, -whole, *(const float4*)&room.sums[t][1][at]);
    u32 place = grid % WINDOW_ROWS;
#pragma unroll 4
    for (u32 j = 0; j < n_kept; j++) {
        const float2 term = room.terms[t][j];
        const float4 delta = *(const float4*)&room.window_deltas[place][at];
        place = place + 1 == WINDOW_ROWS ? 0 : place + 1;
        add_scaled(o, term.x, delta);
        add_scaled(e, -term.y, delta);
    }
#pragma unroll 4
    for (u32 j = n_kept; j < n_before; j++) {
        const float2 term = room.terms[t][j];
        const float4 delta = head.load(head.delta_row(past_row(room.pasts[t][j])), head.value_dim());
        add_scaled(o, term.x, delta);
        add_scaled(e, -term.y, delta);
    }
    *(float4*)&room.sums[t][0][at] = o;
    *(float4*)&room.sums[t][1][at] = e;
    if (p.mode & NORMS) *(float4*)&room.vectors[t][0][at] = gate;
}

// delta_j = beta_j e_j, then out of every later row of the tile that comes from j. A thread per column. Nothing is stored on
// the way, so that what is read does not wait for it.
__device__ __forceinline__ void solve(Room& room, u32 n_tile) {
    const u32 column = threadIdx.x, lane = column & 31;
    const u32 ancestors = lane < n_tile ? room.ancestors[lane] : 0;
    float e[TILE];
#pragma unroll
    for (u32 t = 0; t < TILE; t++) e[t] = t < n_tile ? room.sums[t][1][column] : 0.0f;
#pragma unroll
    for (u32 j = 0; j < TILE; j++) {
        if (j >= n_tile) break;
        e[j] *= room.beta[j];
        const u32 from_j = __ballot_sync(0xffffffffu, ancestors >> j & 1) >> (j + 1);
        // Read whether it counts or not, ahead of what decides that.
        __align__(16) float terms[TILE];
#pragma unroll
        for (u32 i = 0; i + j + 1 < TILE; i += 4) *(float4*)(terms + i) = *(const float4*)&room.own_k[j][i];
#pragma unroll
        for (u32 i = 0; i + j + 1 < TILE; i++)
            if (from_j >> i & 1) e[j + 1 + i] = __fmaf_rn(-terms[i], e[j], e[j + 1 + i]);
    }
#pragma unroll
    for (u32 t = 0; t < TILE; t++)
        if (t < n_tile) room.sums[t][1][column] = e[t];
}

// A sure row's numbers of this head enter the window, and of its key head if this block owns it and no other head may still
// read what they overwrite.
template <bool FULL>
__device__ __forceinline__ void keep_own(const Head<FULL>& head, u32 t, float4 delta) {
    const Recurrent& p = head.p;
    const Room& room = head.room;
    const u32 local = head.local + t, at = 4 * (threadIdx.x & 31), pos = room.pos[t];
    if (local >= head.seq.n_sure || local + WINDOW_ROWS < head.seq.n_sure) return;
    float *window = head.window_row(pos), *kept = head.kept_row(pos);
    const float* row = p.qkv + (u64)room.row[t] * head.width();
    head.store(window + head.keys() + head.h * head.value_dim(), head.value_dim(), delta);
    if (at == 0) window[head.keys() + head.deltas() + head.h] = room.g[t];
    if (local + CONV_ROWS >= head.seq.n_sure)
        head.store(kept + head.v_at(), head.value_dim(), head.load(row + head.v_at(), head.value_dim()));
    if (!head.is_owner || head.keeps_late()) return;
    head.store(window + head.q_at(), head.key_dim(), *(const float4*)&room.vectors[t][1][at]);
    head.store(kept + head.q_at(), head.key_dim(), head.load(row + head.q_at(), head.key_dim()));
    head.store(kept + head.k_at(), head.key_dim(), head.load(row + head.k_at(), head.key_dim()));
}

// Row t's output: the rows of the tile it comes from and itself added, normed and gated where this launch does that.
template <bool FULL>
__device__ __forceinline__ void finish_row(const Head<FULL>& head, u32 t, float4 weight) {
    const Recurrent& p = head.p;
    const Room& room = head.room;
    const u32 at = 4 * (threadIdx.x & 31), r = room.row[t];
    const u32 ancestors = room.ancestors[t];
    float4 o = *(const float4*)&room.sums[t][0][at];
#pragma unroll 4
    for (u32 j = 0; j < t; j++) {
        const float term = room.own_q[t][j];
        const float4 delta = *(const float4*)&room.sums[j][1][at];
        if (ancestors >> j & 1) add_scaled(o, term, delta);
    }
    const float4 delta = *(const float4*)&room.sums[t][1][at];
    add_scaled(o, room.own_q[t][t], delta);
    head.store(head.delta_row(r), head.value_dim(), delta);
    const float4 gate = *(const float4*)&room.vectors[t][0][at];
    put_row(head, r, o, gate, weight, [&] { return image_place(p.image, p.shape, r, head.h); });
    keep_own(head, t, delta);
}

// S^T q and S^T k of all rows of the tile. Sure rows move S to the grid of the first of them; deep drafts see it one grid
// further, which only committed rows decide.
template <bool FULL>
__device__ __forceinline__ void read_state(const Head<FULL>& head, Whole& s, u32& at, u32 grid) {
    Room& room = head.room;
    u32 todo = (1u << head.n_tile) - 1;
    Whole saved;
    bool is_saved = false;
#pragma unroll 1
    for (u32 now = at;; now += GRID) {
        u32 here = __ballot_sync(0xffffffffu, (threadIdx.x & 31) < head.n_tile && grid_of(room.pos[threadIdx.x & 15]) == now);
        const auto vector_at = [&](u32 row) { return room.vectors[row][0] + (threadIdx.x & 31) / 4 * STRIDE; };
        const auto sum_at = [&](u32 row, u32 is_key) { return &room.sums[row][is_key][own_part().column]; };
        if (here) state_products<2>(s, 0, here, vector_at, sum_at);
        todo &= ~here;
        if (!todo) break;
        if (now == grid) {
            saved = s;
            is_saved = true;
        }
        fold_rows(head, s, now);
    }
    at = grid;
    if (is_saved) s = saved;
}

// The step's sequence that is this block's. Of those that have no launch of their own there are at most half as many as rows, and
// the grid has room for no more.
__device__ __forceinline__ u32 find_seq(const Recurrent& p) {
    const u32 n_seqs = p.step.counts[2], lane = threadIdx.x & 31;
    u32 n_before = blockIdx.y;
    if (!p.has_lone) return n_before;
    for (u32 first = 0; first < n_seqs; first += 32) {
        const u32 others = __ballot_sync(0xffffffffu, first + lane < n_seqs && !is_lone(p, p.step.seqs[min(first + lane, n_seqs - 1)]));
        const u32 here = __ballot_sync(0xffffffffu, others >> lane & 1 && __popc(others & ((1u << lane) - 1)) == n_before);
        if (here) return first + __ffs(here) - 1;
        n_before -= __popc(others);
    }
    return n_seqs;
}

template <bool FULL>
__device__ __forceinline__ void recur(const Recurrent& p) {
    extern __shared__ __align__(16) u8 bytes[];
    // Until `pdl_wait` only what earlier steps left: the step's data, S and the window.
    const u32 nth = find_seq(p), warp = threadIdx.x >> 5;
    if (nth >= p.step.counts[2] || is_walked(p, p.step.seqs[nth])) return pdl_idle();
    Head<FULL> head = head_of<FULL>(p, *(Room*)bytes, p.step.seqs[nth], blockIdx.x);
    const Seq& seq = head.seq;
    Room& room = head.room;
    float* stored = stored_state(head);
    Whole s;
    if (p.mode & RULES) load_state(s, own_part(), stored, head.key_dim(), head.value_dim());
    stage(head);
    float4 weight = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (p.mode & NORMS) weight = head.load(p.weight, head.value_dim());

    u32 at = seq.stored_grid;
#pragma unroll 1
    while (head.local < seq.n_rows) {
        u32 grid = at, end = head.local + 1;
        if (head.local < seq.n_sure) grid = max(at, grid_of(seq.committed + head.local));
        while (end < seq.n_rows && end < head.local + TILE && !(end < seq.n_sure && grid_of(seq.committed + end) > grid)) end++;
        head.n_tile = end - head.local;
        find_rows(head);
        if (head.local == 0) {
            copies_done();
            pdl_wait();
            pdl_next();
        }
        // Also behind what an earlier tile reads of its rows.
        __syncthreads();
        if (p.mode & PREPARES) convolve_rows(head);
        else
            for (u32 t = 2 * warp; t < min(2 * warp + 2, head.n_tile); t++) load_row(head, t);
        __syncthreads();
        if (p.mode & RULES) {
            multiply_keys(head, grid);
            __syncthreads();
            for (u32 t = 2 * warp; t < min(2 * warp + 2, head.n_tile); t++) weigh(head, t);
            // Their products give way to the state's.
            __syncthreads();
            read_state(head, s, at, grid);
            __syncthreads();
#pragma unroll 1
            for (u32 t = 2 * warp; t < min(2 * warp + 2, head.n_tile); t++) add_earlier(head, t);
            __syncthreads();
            if (threadIdx.x < DIM) solve(room, head.n_tile);
            __syncthreads();
#pragma unroll 1
            for (u32 t = 2 * warp; t < min(2 * warp + 2, head.n_tile); t++) finish_row(head, t, weight);
            // What the next tile overwrites has been read, and what it reads back of this one is written.
            __syncthreads();
        }
        head.local = end;
    }
    if (!(p.mode & RULES)) return;
    if (at != seq.stored_grid) store_state(s, own_part(), stored, head.key_dim(), head.value_dim());
    keep_shared(head, nth);
}

// Grid: (value heads, sequences).
extern "C" __global__ void __launch_bounds__(256, 1) recurrent_full(const __grid_constant__ Recurrent p) { recur<true>(p); }
extern "C" __global__ void __launch_bounds__(256, 1) recurrent_small(const __grid_constant__ Recurrent p) { recur<false>(p); }
