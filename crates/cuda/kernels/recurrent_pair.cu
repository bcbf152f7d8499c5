// The gated delta rule as in recurrent.cu, number by number, each value head by the two blocks of a cluster; for heads of 128
// channels on devices that have clusters. S is in shared memory, so that code is short: it is run once for each tile.
#include "recurrent_pair.cuh"

// S of a warp's 16 columns and a quarter of the channels.
using Quarter = SharedState<DIM / 32, 4>;

// The 16 rows from `grid`, which are sure: kept, or of tiles before this one.
__device__ __forceinline__ void fold_rows(const Half& head, Quarter& to, const Quarter& s, u32 grid) {
    const Recurrent& p = head.p;
    PairRoom& room = head.room;
    const u32 committed = head.seq.committed;
    const auto row_of = [&](u32 local) { return p.step.seq_rows[head.seq.first + local]; };
    const auto at_hand = [&](u32 pos) {
        if (pos < committed) return pos % WINDOW_ROWS;
        return pos - committed + TILE >= head.local ? head.ring_place(pos - committed) : FAR;
    };
    const auto row_at = [&](u32 j) {
        const u32 pos = grid + j, place = at_hand(pos);
        if (place != FAR) return Folded{room.keys[place], room.deltas[place] - head.column()};
        const u32 row = row_of(pos - committed);
        return Folded{head.key_row(row), head.delta_row(row)};
    };
    const auto g_at = [&](u32 j) {
        const u32 pos = grid + j, place = at_hand(pos);
        if (place == FAR) return p.gates[(u64)row_of(pos - committed) * 2 * p.value_heads + head.h];
        return place < WINDOW_ROWS ? room.window_g[place] : room.g[place - WINDOW_ROWS];
    };
    fold(to, s, head.part(), DIM, DIM, row_at, g_at);
}

// S^T q and S^T k of all rows of the tile, which are at `at` or, deep drafts, further; then S moves to the grid of the next
// tile, while the rows that takes are still at hand.
__device__ __forceinline__ void read_state(const Half& head, Quarter& s, Quarter& further, u32& at, u32 next) {
    PairRoom& room = head.room;
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    u32 todo = (1u << head.n_tile) - 1;
    const auto from = [&](u32 first) { return vector_at(head, first); };
    const auto to = [&](u32 row, u32 is_key) { return &room.sums[warp / 4][row][is_key][warp % 4 * 16]; };
    Quarter now_at = s;
#pragma unroll 1
    for (u32 now = at;; now += GRID) {
        const u32 here = __ballot_sync(0xffffffffu, lane < head.n_tile && grid_of(room.pos[lane % TILE]) == now);
        if (here) state_products<2>(now_at, head.part().channel, here, from, to);
        todo &= ~here;
        if (!todo && now >= next) break;
        Quarter then = now < next ? s : further;
        fold_rows(head, then, now_at, now);
        now_at = then;
    }
    at = next;
}

// What S and the rows before the tile give row t: o, and v less it. Here and in `finish` half a warp has a row.
__device__ __forceinline__ float4 add_earlier(const Half& head, u32 t) {
    PairRoom& room = head.room;
    const u32 at = 4 * (threadIdx.x & 15), pos = room.pos[t];
    const u32 n_before = pos - grid_of(pos) - __popc(room.ancestors[t]);
    const auto sum_of = [&](u32 is_key) {
        const auto of = [&](u32 quarter) { return *(const float4*)&room.sums[quarter][t][is_key][at]; };
        const float4 a = of(0), b = of(1), c = of(2), d = of(3);
        return make_float4((a.x + b.x) + (c.x + d.x), (a.y + b.y) + (c.y + d.y), (a.z + b.z) + (c.z + d.z), (a.w + b.w) + (c.w + d.w));
    };
    const float whole = room.whole[t];
    float4 o = scaled(sum_of(0), whole), e = *(const float4*)&room.deltas[head.ring_place(head.local + t)][at];
    add_scaled(e, -whole, sum_of(1));
    if (!room.is_far[t]) {
#pragma unroll 4
        for (u32 j = 0; j < n_before; j++) {
            const Term term = room.terms[t][j];
            const float4 delta = *(const float4*)&room.deltas[term.place][at];
            add_scaled(o, term.q, delta);
            add_scaled(e, -term.k, delta);
        }
    } else {
#pragma unroll 1
        for (u32 j = 0; j < n_before; j++) {
            const Term term = room.terms[t][j];
            const float* far = head.delta_row(past_row(term.past)) + head.column();
            const float4 delta = *(const float4*)((term.place == FAR ? far : room.deltas[term.place]) + at);
            add_scaled(o, term.q, delta);
            add_scaled(e, -term.k, delta);
        }
    }
    *(float4*)&room.deltas[head.ring_place(head.local + t)][at] = e;
    return o;
}

// delta_j = beta_j e_j, then out of every later row of the tile that comes from j. A warp has four columns, a lane two rows of one: a
// loop, where a thread a column had 500 instructions, each fetched for a single pass, a fifth of the time.
__device__ __forceinline__ void solve(const Half& head) {
    PairRoom& room = head.room;
    const u32 lane = threadIdx.x & 31, row = lane / 4, column = 4 * (threadIdx.x >> 5) + lane % 4;
    float e[2];
    u32 ancestors[2];
    float* at[2];
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        const u32 t = row + 8 * i;
        at[i] = &room.deltas[head.ring_place(head.local + t)][column];
        e[i] = t < head.n_tile ? *at[i] : 0.0f;
        ancestors[i] = t < head.n_tile ? room.ancestors[t] : 0;
    }
#pragma unroll
    for (u32 half = 0; half < 2; half++)
#pragma unroll 4
        for (u32 j = 8 * half; j < min(head.n_tile, 8 * half + 8); j++) {
            if (row == j % 8) e[half] *= room.beta[j];
            const float delta = __shfl_sync(0xffffffffu, e[half], j % 8 * 4 + lane % 4);
#pragma unroll
            for (u32 i = half; i < 2; i++)
                if (ancestors[i] >> j & 1) e[i] = __fmaf_rn(-room.own_k[j][row + 8 * i - j - 1], delta, e[i]);
        }
#pragma unroll
    for (u32 i = 0; i < 2; i++)
        if (row + 8 * i < head.n_tile) *at[i] = e[i];
}

// A row's delta; a sure row's numbers of this head enter the window, and of its key head if this block owns it and no other head
// may still read what they overwrite.
__device__ __forceinline__ void keep_own(const Half& head, u32 t) {
    const Recurrent& p = head.p;
    const PairRoom& room = head.room;
    const u32 local = head.local + t, at = 4 * (threadIdx.x & 15), column = head.column() + at, pos = room.pos[t];
    *(float4*)(head.delta_row(room.row[t]) + column) = *(const float4*)&room.deltas[head.ring_place(local)][at];
    if (local >= head.seq.n_sure || local + WINDOW_ROWS < head.seq.n_sure) return;
    float *window = head.window_row(pos), *kept = head.kept_row(pos);
    const float* row = p.qkv + (u64)room.row[t] * head.width();
    const auto keep = [&](u32 at) { *(float4*)(kept + at) = *(const float4*)(row + at); };
    *(float4*)(window + head.keys() + head.h * DIM + column) = *(const float4*)&room.deltas[head.ring_place(local)][at];
    if (column == 0) window[head.keys() + head.deltas() + head.h] = room.g[local % RING];
    if (local + CONV_ROWS >= head.seq.n_sure) keep(head.v_at() + column);
    if (!head.is_owner || head.keeps_late()) return;
    *(float4*)(window + head.q_at() + column) = *(const float4*)&room.keys[head.ring_place(local)][column];
    keep(head.q_at() + column);
    keep(head.k_at() + column);
}

// Row t's output: the rows of the tile it comes from and itself added; to the block that norms it, or out.
__device__ __forceinline__ void finish(const Half& head, u32 t, float4 o) {
    const Recurrent& p = head.p;
    PairRoom& room = head.room;
    const u32 at = 4 * (threadIdx.x & 15), ancestors = room.ancestors[t];
    const auto delta_of = [&](u32 j) { return *(const float4*)&room.deltas[head.ring_place(head.local + j)][at]; };
#pragma unroll 4
    for (u32 j = 0; j < t; j++) {
        const float term = room.own_q[t][j];
        const float4 delta = delta_of(j);
        if (ancestors >> j & 1) add_scaled(o, term, delta);
    }
    const float4 delta = delta_of(t);
    add_scaled(o, room.own_q[t][t], delta);
    if (!(p.mode & NORMS)) {
        *(float4*)(p.out + (u64)room.row[t] * head.deltas() + head.h * DIM + head.column() + at) = o;
        return;
    }
    float* to = &room.out[t % ROWS][head.column() + at];
    if (t / ROWS == head.rank) *(float4*)to = o;
    else head.store_peer(to, o);
}

__device__ __forceinline__ void norm_row(const Half& head, u32 t, float4 weight, float4 gate) {
    const Recurrent& p = head.p;
    const u32 at = 4 * (threadIdx.x & 31), r = head.room.row[t];
    float4 o = *(const float4*)&head.room.out[t % ROWS][at];
    o = scaled(o, rsqrtf(length_squared(o) / (float)DIM + p.eps));
    const float y[4] = {o.x * weight.x * gate.x * quick_sigmoid(gate.x), o.y * weight.y * gate.y * quick_sigmoid(gate.y),
                        o.z * weight.z * gate.z * quick_sigmoid(gate.z), o.w * weight.w * gate.w * quick_sigmoid(gate.w)};
    *(float4*)(p.normed + (u64)r * head.deltas() + head.h * DIM + at) = make_float4(y[0], y[1], y[2], y[3]);
    if (p.image) image_store(p.image, p.shape, r, head.h, y);
}

__device__ __forceinline__ void recur(const Recurrent& p) {
    extern __shared__ __align__(16) u8 bytes[];
    // Until `pdl_wait` only what earlier steps left: the step's data, S and the window.
    if (blockIdx.y >= p.step.counts[2] || is_walked(p, p.step.seqs[blockIdx.y])) return pdl_idle();
    const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, h = blockIdx.x / 2, group = p.value_heads / p.key_heads;
    Half head = {{p, *(PairRoom*)bytes, p.step.seqs[blockIdx.y], h, p.tiled ? h % p.key_heads : h / group,
                  p.tiled ? h < p.key_heads : h % group == 0, 0, 0},
                 blockIdx.x % 2};
    const Seq& seq = head.seq;
    PairRoom& room = head.room;
    // Behind the wait the peer's shared memory is there.
    pair_arrive();
    float* stored = p.state + ((u64)seq.slot * p.value_heads + h) * DIM * DIM;
    Quarter s = {&room.state[0][warp][0][lane]}, further = {&room.state[1][warp][0][lane]};
    stage(head);
    copy_state(s, head.part(), stored);
    float4 weight = make_float4(0.0f, 0.0f, 0.0f, 0.0f), gate = weight;
    if (p.mode & NORMS) weight = *(const float4*)(p.weight + 4 * lane);
    Found found;
    find_first(head, found, 0);
    find_rest(head, found, 0);

    // Rows of this block that are one warp's, and rows of both that are half a warp's.
    const u32 own = warp < ROWS ? head.rank * ROWS + warp : TILE, half_row = 2 * warp + lane / 16;
    u32 at = seq.stored_grid;
    // A tile's grid is that of its first row if that is sure, and its rows' all the way to the first sure one past it.
    const auto grid_at = [&](u32 local, u32 from) {
        return local < seq.n_sure ? max(from, grid_of(seq.committed + local)) : from;
    };
    u32 grid = grid_at(0, at);
#pragma unroll 1
    while (head.local < seq.n_rows) {
        u32 end = min(head.local + TILE, seq.n_rows);
        if (head.local < seq.n_sure) {
            // The first position with a further grid.
            const u32 cut = max(grid + 2 * GRID, seq.committed + head.local + 1) - seq.committed;
            if (cut < seq.n_sure) end = min(end, cut);
        }
        head.n_tile = end - head.local;
        const u32 next = end < seq.n_rows ? grid_at(end, grid) : grid;
        put_rows(head, found);
        if (head.local == 0) {
            // All but S.
            asm volatile("cp.async.wait_group 1;" ::: "memory");
            pair_wait();
            pdl_wait();
            pdl_next();
        }
        __syncthreads();
        prepare_rows(head);
        if (p.mode & NORMS && own < head.n_tile)
            gate = *(const float4*)(p.gate + (u64)room.row[own] * head.deltas() + h * DIM + 4 * lane);
        pair_arrive();
        keep_prepared(head);
        find_first(head, found, end);
        pair_wait();
        multiply_keys(head, grid);
        __syncthreads();
        if (own < head.n_tile) weigh(head, own);
        pair_arrive();
        find_rest(head, found, end);
        // Products give way to the state's.
        __syncthreads();
        copies_done();
        read_state(head, s, further, at, next);
        pair_wait();
        __syncthreads();
        float4 o = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (half_row < head.n_tile) o = add_earlier(head, half_row);
        __syncthreads();
        solve(head);
        __syncthreads();
        if (half_row < head.n_tile) finish(head, half_row, o);
        pair_arrive();
        pair_wait();
        if (p.mode & NORMS && own < head.n_tile) norm_row(head, own, weight, gate);
        if (half_row < head.n_tile) keep_own(head, half_row);
        // What the next tile overwrites has been read.
        __syncthreads();
        head.local = end;
        grid = next;
    }
    if (at != seq.stored_grid) store_state(s, head.part(), stored, DIM, DIM);
    keep_shared<PAIR_WARPS, true>(head, blockIdx.y, 2 * (p.value_heads / p.key_heads));
}

#if __CUDA_ARCH__ >= 900
#define PAIR __cluster_dims__(2, 1, 1)
#else
#define PAIR
#endif
// Grid: (two blocks a value head, sequences).
extern "C" __global__ void PAIR __launch_bounds__(32 * PAIR_WARPS, 1) recurrent_pair(const __grid_constant__ Recurrent p) {
#if __CUDA_ARCH__ >= 900
    recur(p);
#endif
}
