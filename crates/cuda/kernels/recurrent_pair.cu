// The gated delta rule as in recurrent.cu, number by number, each value head by the two blocks of a cluster; for heads of 128
// channels on devices that have clusters. S is in shared memory, so that code is short: it is run once for each tile, which are of 16 rows, or one
// of 32.
#include "recurrent_pair_products.cuh"

// S of a warp's 16 columns and a quarter of the channels, as it is folded.
using Quarter = SharedState<DIM / 32, 4>;

// The 16 rows from `grid` side by side, where not all are kept: some are of tiles before this one.
__device__ __forceinline__ void gather_rows(const Half<TILE>& head, u32 grid) {
    PairRoom<TILE>& room = head.room;
    const u32 j = threadIdx.x >> 5, lane = threadIdx.x & 31, pos = grid + j, local = pos - head.seq.committed;
    const bool is_far = pos >= head.seq.committed && local + TILE < head.local;
    __syncthreads();
    if (is_far) {
        const u32 row = head.p.step.seq_rows[head.seq.first + local];
        *(float4*)&room.folded_keys[j][4 * lane] = *(const float4*)(head.key_row(row) + 4 * lane);
        *(float2*)&room.folded_deltas[j][2 * lane] = *(const float2*)(head.delta_row(row) + head.column() + 2 * lane);
        room.folded_g[j] = head.p.gates[(u64)row * 2 * head.p.value_heads + head.h];
    } else {
        const u32 place = pos < head.seq.committed ? pos % WINDOW_ROWS : Places<TILE>::PAST + local % TILE;
        *(float4*)&room.folded_keys[j][4 * lane] = *(const float4*)&room.keys[place][4 * lane];
        *(float2*)&room.folded_deltas[j][2 * lane] = *(const float2*)&room.deltas[place][2 * lane];
        room.folded_g[j] = room.g[place];
    }
    __syncthreads();
}
// The 16 rows from `grid`, which are sure.
template <u32 R>
__device__ __forceinline__ void fold_rows(const Half<R>& head, Quarter& to, const Quarter& s, u32 grid) {
    PairRoom<R>& room = head.room;
    const u32 place = grid % WINDOW_ROWS;
    const float *keys = room.keys[place], *deltas = room.deltas[place], *g = room.g + place;
    if constexpr (R == TILE) {
        if (grid + GRID > head.seq.committed) {
            gather_rows(head, grid);
            keys = room.folded_keys[0], deltas = room.folded_deltas[0], g = room.folded_g;
        }
    }
    const auto row_at = [&](u32 j) { return Folded{keys + STRIDE * j, deltas + COLUMNS * j - head.column()}; };
    fold(to, s, head.part(), DIM, DIM, row_at, [&](u32 j) { return g[j]; });
}

// S at two grids: the tile's, and one further on, which deep drafts see.
struct States {
    Quarter s, further;
    u32 at, further_at;
};

// Sure rows before the tile alone move S, so that it moves while the tile's inputs come.
template <u32 R>
__device__ __forceinline__ void move_state(const Half<R>& head, States& states, u32 grid) {
    const u32 lane = threadIdx.x & 31;
    const u32 deepest = __reduce_max_sync(0xffffffffu, lane < head.n_tile ? grid_of(head.room.pos[lane]) : 0);
#pragma unroll 1
    for (;;) {
        Quarter to = states.s;
        const u32 from = states.at;
        if (states.at < grid) {
            states.at += GRID;
        } else if (deepest > states.at && states.further_at <= states.at) {
            to = states.further;
            states.further_at = states.at + GRID;
        } else {
            return;
        }
        copies_done();
        fold_rows(head, to, states.s, from);
    }
}

// S^T q and S^T k of eight rows from `first` that `wanted` has a bit for, over a warp's 16 columns and half the channels. Sums of 32
// channels, then of two such, then, in `add_earlier`, of two of those: the order of `state_products`.
template <u32 R>
__device__ __forceinline__ void multiply_state(const Half<R>& head, u32 nth, u32 first, u32 wanted) {
    PairRoom<R>& room = head.room;
    const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane / 4, t = lane % 4, column = warp % 4, half = warp / 4 % 2;
    Vectors vectors = vectors_at(head, first);
    vectors.at[0] += 64 * half, vectors.at[1] += 64 * half;
    const float4* s = &room.state[nth][column + 8 * half][0][lane];
    // Of even and odd columns.
    float sum[2][4];
#pragma unroll
    for (u32 quarter = 0; quarter < 2; quarter++) {
        Sums sums[2];
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            const float4 x = s[32 * (PAIR_WARPS * quarter + i)];
            const Split s0 = split(x.x), s1 = split(x.y), s2 = split(x.z), s3 = split(x.w);
            const uint4 whole = vectors.whole(4 * quarter + i), rest = vectors.rest(4 * quarter + i);
            sums[0].add(whole, rest, make_uint4(s0.high, s1.high, s0.low, s1.low));
            sums[1].add(whole, rest, make_uint4(s2.high, s3.high, s2.low, s3.low));
        }
#pragma unroll
        for (u32 n = 0; n < 2; n++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) sum[n][i] = quarter ? sum[n][i] + sums[n].sum(i) : sums[n].sum(i);
    }
    if (!(wanted >> (first + g) & 1)) return;
    float* to = &room.sums[half][first + g][0][16 * column + 4 * t];
    *(float4*)to = make_float4(sum[0][0], sum[1][0], sum[0][1], sum[1][1]);
    *(float4*)(to + COLUMNS) = make_float4(sum[0][2], sum[1][2], sum[0][3], sum[1][3]);
}
// Of all rows of the tile: half of the warps have the first eight of 16, half the others.
template <u32 R>
__device__ __forceinline__ void read_state(const Half<R>& head, u32 at) {
    const u32 lane = threadIdx.x & 31;
    const u32 near = __ballot_sync(0xffffffffu, grid_of(head.room.pos[lane % R]) == at);
#pragma unroll 1
    for (u32 nth = 0; nth < R / TILE * 2; nth++) {
        const u32 first = threadIdx.x / (16 * PAIR_WARPS) * 8 + nth / 2 * TILE;
        const u32 wanted = head.all_rows() & 0xffu << first & (nth % 2 ? ~near : near);
        if (wanted) multiply_state(head, nth % 2, first, wanted);
    }
}

// A warp's row from here on, a lane two of its columns.
__device__ __forceinline__ void add_scaled(float2& sum, float factor, float2 x) {
    sum.x = __fmaf_rn(factor, x.x, sum.x);
    sum.y = __fmaf_rn(factor, x.y, sum.y);
}

// What S and the rows before the tile give row t: o, and v less it.
template <u32 R>
__device__ __forceinline__ float2 add_earlier(const Half<R>& head, u32 t) {
    PairRoom<R>& room = head.room;
    const u32 at = 2 * (threadIdx.x & 31), pos = room.pos[t];
    const u32 n_before = pos - grid_of(pos) - __popc(room.ancestors[t]);
    const auto sum_of = [&](u32 is_key) {
        const float2 a = *(const float2*)&room.sums[0][t][is_key][at], b = *(const float2*)&room.sums[1][t][is_key][at];
        return make_float2(a.x + b.x, a.y + b.y);
    };
    float2* place = (float2*)&room.deltas[Places<R>::OWN + t][at];
    const float2* all_terms = room.terms_of(t);
    const float whole = room.whole[t];
    float2 o = sum_of(0), e = *place;
    o = make_float2(o.x * whole, o.y * whole);
    add_scaled(e, -whole, sum_of(1));
    if (R > TILE || head.local <= TILE) {
        // All are at hand, eight at least.
#pragma unroll 1
        for (u32 j = 0; j < n_before; j += 8) {
            float4 terms[4];
            float2 deltas[8];
            const uint4 places[2] = {*(const uint4*)&room.pasts[t][j], *(const uint4*)&room.pasts[t][j + 4]};
#pragma unroll
            for (u32 i = 0; i < 4; i++) terms[i] = *(const float4*)&all_terms[j + 2 * i];
#pragma unroll
            for (u32 i = 0; i < 8; i++) {
                const uint4& four = places[i / 4];
                deltas[i] = *(const float2*)&room.deltas[i % 4 == 0 ? four.x : i % 4 == 1 ? four.y : i % 4 == 2 ? four.z : four.w][at];
            }
#pragma unroll
            for (u32 i = 0; i < 8; i++) {
                if (j + i >= n_before) break;
                add_scaled(o, i % 2 ? terms[i / 2].z : terms[i / 2].x, deltas[i]);
                add_scaled(e, i % 2 ? -terms[i / 2].w : -terms[i / 2].y, deltas[i]);
            }
        }
    } else {
#pragma unroll 1
        for (u32 j = 0; j < n_before; j++) {
            const u32 past = room.pasts[t][j], place = head.place_of(past);
            const float2 term = all_terms[j];
            const float* far = head.delta_row(past_row(past)) + head.column();
            const float2 delta = *(const float2*)((place == FAR ? far : room.deltas[place]) + at);
            add_scaled(o, term.x, delta);
            add_scaled(e, -term.y, delta);
        }
    }
    *place = e;
    return o;
}

// delta_j = beta_j e_j, then out of every later row of the tile that comes from j. A warp has four columns, a lane every eighth row of one; all
// that does not wait for another row is there before.
template <u32 R>
__device__ __forceinline__ void solve(const Half<R>& head) {
    PairRoom<R>& room = head.room;
    const u32 lane = threadIdx.x & 31, row = lane / 4, column = 4 * (threadIdx.x >> 5) + lane % 4;
    float e[R / 8], beta[R / 8], terms[R / 8][R];
    u32 ancestors[R / 8];
#pragma unroll
    for (u32 i = 0; i < R / 8; i++) {
        const u32 t = row + 8 * i;
        const bool is_there = t < head.n_tile;
        e[i] = is_there ? room.deltas[Places<R>::OWN + t][column] : 0.0f;
        beta[i] = is_there ? room.beta[t] : 0.0f;
        ancestors[i] = is_there ? room.ancestors[t] : 0;
#pragma unroll
        for (u32 j = 0; j < 8 + 8 * i; j += 4) *(float4*)&terms[i][j] = *(const float4*)&room.own_k[t][j];
    }
#pragma unroll
    for (u32 eight = 0; eight < R / 8; eight++) {
        if (eight && head.n_tile <= 8 * eight) break;
#pragma unroll
        for (u32 j = 8 * eight; j < 8 * eight + 8; j++) {
            const float delta = __shfl_sync(0xffffffffu, e[eight] * beta[eight], j % 8 * 4 + lane % 4);
#pragma unroll
            for (u32 i = eight; i < R / 8; i++)
                if (ancestors[i] >> j & 1) e[i] = __fmaf_rn(-terms[i][j], delta, e[i]);
        }
    }
#pragma unroll
    for (u32 i = 0; i < R / 8; i++)
        if (row + 8 * i < head.n_tile) room.deltas[Places<R>::OWN + row + 8 * i][column] = e[i] * beta[i];
}

// A row's delta, for later tiles at hand too; a sure row's numbers of this head enter the window, and of its key head if this block owns it
// and no other head may still read what they overwrite.
template <u32 R>
__device__ __forceinline__ void keep_own(const Half<R>& head, u32 t, bool is_last) {
    using P = Places<R>;
    const Recurrent& p = head.p;
    PairRoom<R>& room = head.room;
    const u32 local = head.local + t, at = 2 * (threadIdx.x & 31), column = head.column() + at, pos = room.pos[t];
    const float2 delta = *(const float2*)&room.deltas[P::OWN + t][at];
    if (R == TILE && !is_last) {
        *(float2*)&room.deltas[P::PAST + local % TILE][at] = delta;
        room.g[P::PAST + local % TILE] = room.g[P::OWN + t];
    }
    *(float2*)(head.delta_row(room.row[t]) + column) = delta;
    if (local >= head.seq.n_sure || local + WINDOW_ROWS < head.seq.n_sure) return;
    float *window = head.window_row(pos), *kept = head.kept_row(pos);
    const float* row = p.qkv + (u64)room.row[t] * head.width();
    const auto keep = [&](u32 at) { *(float2*)(kept + at) = *(const float2*)(row + at); };
    *(float2*)(window + head.keys() + head.h * DIM + column) = delta;
    if (column == 0) window[head.keys() + head.deltas() + head.h] = room.g[P::OWN + t];
    if (local + CONV_ROWS >= head.seq.n_sure) keep(head.v_at() + column);
    if (!head.is_owner || head.keeps_late()) return;
    keep(head.q_at() + column);
    keep(head.k_at() + column);
}

// Row t's output: the rows of the tile it comes from and itself added; to the block that norms it, or out.
template <u32 R>
__device__ __forceinline__ void finish(const Half<R>& head, u32 t, float2 o) {
    using P = Places<R>;
    const Recurrent& p = head.p;
    PairRoom<R>& room = head.room;
    const u32 at = 2 * (threadIdx.x & 31), ancestors = room.ancestors[t];
    const auto delta_of = [&](u32 j) { return *(const float2*)&room.deltas[P::OWN + j][at]; };
#pragma unroll
    for (u32 first = 0; first < R; first += 8) {
        if (!(ancestors >> first)) break;
        float4 terms[2];
        float2 deltas[8];
#pragma unroll
        for (u32 i = 0; i < 2; i++) terms[i] = *(const float4*)&room.own_q[t][first + 4 * i];
#pragma unroll
        for (u32 j = 0; j < 8; j++) deltas[j] = delta_of(first + j);
#pragma unroll
        for (u32 j = 0; j < 8; j++)
            if (ancestors >> (first + j) & 1)
                add_scaled(o, j % 4 == 0 ? terms[j / 4].x : j % 4 == 1 ? terms[j / 4].y : j % 4 == 2 ? terms[j / 4].z : terms[j / 4].w, deltas[j]);
    }
    add_scaled(o, room.own_q[t][t], delta_of(t));
    if (!(p.mode & NORMS)) {
        *(float2*)(p.out + (u64)room.row[t] * head.deltas() + head.h * DIM + head.column() + at) = o;
        return;
    }
    float2* to = (float2*)&room.out[t % P::ROWS][head.column() + at];
    if (t / P::ROWS == head.rank) *to = o;
    else head.tell(OUTPUTS, to, o);
}

// `gate` and `by`, its sigmoid, and the place in the image are known before.
template <u32 R>
__device__ __forceinline__ void norm_row(const Half<R>& head, u32 t, float4 weight, float4 gate, float4 by, ImagePlace image) {
    const Recurrent& p = head.p;
    const u32 at = 4 * (threadIdx.x & 31), r = head.room.row[t];
    float4 o = *(const float4*)&head.room.out[t % Places<R>::ROWS][at];
    o = scaled(o, rsqrtf(length_squared(o) / (float)DIM + p.eps));
    const float y[4] = {o.x * weight.x * gate.x * by.x, o.y * weight.y * gate.y * by.y, o.z * weight.z * gate.z * by.z, o.w * weight.w * gate.w * by.w};
    *(float4*)(p.normed + (u64)r * head.deltas() + head.h * DIM + at) = make_float4(y[0], y[1], y[2], y[3]);
    if (p.image) image_store_in(image.cell, image.rest, r % 8, y);
}

template <u32 R>
__device__ __forceinline__ void recur(const Recurrent& p, const Seq& here, u32 h, u8* bytes) {
    static_assert(sizeof(PairRoom<R>) <= PAIR_BYTES, "more than a block can have");
    const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    // Heads of a key head stand `key_heads` apart, or side by side.
    const u32 divisor = p.tiled ? p.key_heads : small_quotient(p.value_heads, p.key_heads), quotient = small_quotient(h, divisor);
    const u32 rest = h - quotient * divisor;
    Half<R> head = {{p, *(PairRoom<R>*)bytes, here, h, p.tiled ? rest : quotient, (p.tiled ? quotient : rest) == 0, 0, 0}, blockIdx.x % 2};
    const Seq& seq = head.seq;
    PairRoom<R>& room = head.room;
    if (threadIdx.x == 0) {
        for (u32 i = 0; i < TELLS; i++) barrier_init(shared_address(&room.told[i]), 1);
        barrier_init_visible();
    }
    pair_arrive();
    float* stored = p.state + ((u64)seq.slot * p.value_heads + h) * DIM * DIM;
    States states = {{&room.state[0][warp][0][lane]}, {&room.state[1][warp][0][lane]}, seq.stored_grid, 0};
    Found<R> found, next_found;
    Kept kept;
    find_first(head, found, 0);
    if (p.mode & PREPARES) copy_taps(head);
    load_kept(head, kept);
    copy_state(states.s, head.part(), stored);
    find_rest(head, found, 0);
    put_kept(head, kept);

    // The row whose norm is this warp's.
    const u32 own = warp < Places<R>::ROWS ? head.rank * Places<R>::ROWS + warp : R;
    // A tile's grid is that of its first row if that is sure, and its rows' all the way to the first sure one past it.
    const auto grid_at = [&](u32 local, u32 from) {
        return local < seq.n_sure ? max(from, grid_of(seq.committed + local)) : from;
    };
    u32 grid = grid_at(0, seq.stored_grid);
#pragma unroll 1
    for (u32 tile = 0; head.local < seq.n_rows; tile++) {
        u32 end = min(head.local + R, seq.n_rows);
        if (R == TILE && head.local < seq.n_sure) {
            // The first position with a further grid.
            const u32 cut = max(grid + 2 * GRID, seq.committed + head.local + 1) - seq.committed;
            if (cut < seq.n_sure) end = min(end, cut);
        }
        head.n_tile = end - head.local;
        const bool is_last = R > TILE || end == seq.n_rows;
        const u32 next = is_last ? grid : grid_at(end, grid);
        put_rows(head, found);
        if (head.local == 0) {
            // All but S.
            copies_wait<1>();
            pair_wait();
        }
        __syncthreads();
        Sources<R> sources;
        Inputs<R> in;
        find_inputs(head, sources);
        if (head.local == 0) {
            pdl_wait();
            pdl_next();
        }
        load_inputs(head, sources, in);
        // While they come.
        move_state(head, states, grid);
        const Prepared<R> prepared = prepare_rows(head, in);
        if (threadIdx.x == 0) head.meet(VECTORS, (head.n_tile - head.n_own()) * 2 * WIDE);
        copies_done();
        __syncthreads();
        keep_prepared(head, prepared);
        if (!is_last) find_first(head, next_found, end);
        // Of 16 rows by warps that multiply no keys: there are eights for eight warps at most.
        const u32 n_weigh = PAIR_WARPS / (R == TILE ? 2 : 1);
        const auto weigh_rows = [&] {
            if (warp >= PAIR_WARPS - n_weigh)
                for (u32 t = warp - (PAIR_WARPS - n_weigh); t < head.n_tile; t += n_weigh) weigh(head, t);
        };
        if (R > TILE) weigh_rows();
        head.await_peer(VECTORS, tile);
        multiply_keys(head, grid);
        if (R == TILE) weigh_rows();
        if (threadIdx.x == 0) head.meet(PRODUCTS, n_eights(head, grid, head.rank ^ 1) * 8 * 8 * 2);
        if (!is_last) find_rest(head, next_found, end);
        // Sums take the place of keys.
        if (R > TILE) __syncthreads();
        read_state(head, states.at);
        __syncthreads();
        head.await_peer(PRODUCTS, tile);
        float2 o[R / PAIR_WARPS];
        for_rows<R>(head.n_tile, [&](u32 i, u32 t) {
            if constexpr (R == TILE)
                if (!is_last) keep_key(head, t);
            put_terms(head, t, found.pos[i], found.past[i]);
            o[i] = add_earlier(head, t);
        });
        const bool norms = p.mode & NORMS && own < head.n_tile;
        float4 weight, gate, by;
        if (norms) {
            weight = *(const float4*)(p.weight + 4 * lane);
            gate = *(const float4*)(p.gate + (u64)room.row[own] * head.deltas() + h * DIM + 4 * lane);
        }
        __syncthreads();
        solve(head);
        __syncthreads();
        for_rows<R>(head.n_tile, [&](u32 i, u32 t) { finish(head, t, o[i]); });
        if (threadIdx.x == 0) head.meet(OUTPUTS, p.mode & NORMS ? head.n_own() * COLUMNS : 0);
        for_rows<R>(head.n_tile, [&](u32, u32 t) { keep_own(head, t, is_last); });
        ImagePlace image;
        if (norms) {
            by = make_float4(quick_sigmoid(gate.x), quick_sigmoid(gate.y), quick_sigmoid(gate.z), quick_sigmoid(gate.w));
            image = image_place(p.image, p.shape, room.row[own], h);
        }
        // Also between the halves that are this block's.
        __syncthreads();
        head.await_peer(OUTPUTS, tile);
        if (norms) norm_row(head, own, weight, gate, by, image);
        if (R > TILE) break;
        // What the next tile overwrites has been read.
        __syncthreads();
        head.local = end;
        grid = next;
        found = next_found;
    }
    if (states.at != seq.stored_grid) store_state(states.s, head.part(), stored, DIM, DIM);
    keep_shared<PAIR_WARPS, true>(head, blockIdx.y, 2 * (p.value_heads / p.key_heads));
}

#if __CUDA_ARCH__ >= 900
#define PAIR __cluster_dims__(2, 1, 1)
#else
#define PAIR
#endif
// Grid: (two blocks a value head, sequences).
template <bool ALSO_32>
__device__ __forceinline__ void recur_of(const Recurrent& p) {
    extern __shared__ __align__(16) u8 bytes[];
    // Until `pdl_wait` only what earlier steps left: the step's data, S and the window.
    const u32 n_seqs = p.step.counts[2], h = blockIdx.x / 2;
    const Seq here = p.step.seqs[blockIdx.y];
    if (blockIdx.y >= n_seqs || is_walked(p, here)) return pdl_idle();
    if constexpr (ALSO_32)
        if (is_one_tile(here)) return recur<2 * TILE>(p, here, h, bytes);
    recur<TILE>(p, here, h, bytes);
}
#if __CUDA_ARCH__ >= 900
#define RECUR(ALSO_32) recur_of<ALSO_32>(p)
#else
#define RECUR(ALSO_32)
#endif
#define PAIRED(NAME, ALSO_32) \
    extern "C" __global__ void PAIR __launch_bounds__(32 * PAIR_WARPS, 1) NAME(const __grid_constant__ Recurrent p) { RECUR(ALSO_32); }
// Two kernels, since code that begins 64 KB behind a kernel's start is fetched so late that 16 rows took 27 000 cycles in place of 17 000.
PAIRED(recurrent_pair, false)
PAIRED(recurrent_pair_32, true)
