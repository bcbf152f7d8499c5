// A value head shared out to two blocks of a cluster: each has half the columns of S, deltas and outputs, and prepares and
// finishes half the rows of a tile. What a block prepares it writes into its peer's shared memory too.
#pragma once
#include "recurrent_rows.cuh"

#define COLUMNS (DIM / 2)
// Of a block: with eight of them most cycles waited for the last instruction.
#define PAIR_WARPS 16u
// Of the tile, whose inputs, factors and norm are this block's.
#define ROWS (TILE / 2)
// Rows of the step whose keys and deltas are at hand, each at its place among the sequence's rows modulo this: the tile's and
// the 16 before it, which is as far back as prompts reach.
#define RING (2 * TILE)
// Of keys and deltas at hand: the window's, then the ring's.
#define PLACES (WINDOW_ROWS + RING)
#define FAR 0xffffffffu

// How much an earlier row counts for a row: e^{decay} (k_j . q) and e^{decay} (k_j . k).
struct Term {
    float q, k;
    u32 place;  // FAR: only in memory
    u32 past;
};

struct PairRoom {
    float keys[PLACES][STRIDE];
    float deltas[PLACES][COLUMNS];  // a tile's own are v first, then what is left of it, then delta
    float queries[TILE][STRIDE];
    union {
        float2 products[TILE][PLACES + 4];  // of keys with a row's q and k
        float sums[4][TILE][2][COLUMNS];    // then S^T q and S^T k over each quarter of the channels
    };
    // S, and S some grids on, for deep drafts.
    float4 state[2][PAIR_WARPS][DIM / 32][32];
    float taps[3][4][DIM];
    Term terms[TILE][REACH];  // of rows before the tile, from the grid on
    float own_k[TILE][TILE];  // [earlier row of the tile, row - earlier row - 1]
    float own_q[TILE][TILE];  // [row, earlier row or itself]
    float out[ROWS][DIM];     // of this block's rows, before the norm
    float window_g[WINDOW_ROWS];
    float g[RING], beta[TILE], whole[TILE];
    u32 row[TILE], pos[TILE];
    u32 ancestors[TILE];  // among the tile's rows
    u32 is_far[TILE];     // whether it sees rows that are not at hand
    u32 is_last;
};

// Arrivals and waits of both blocks. What was written before the one, there too, is seen behind the other.
__device__ __forceinline__ void pair_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ __forceinline__ void pair_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

struct Half : Head<true, PairRoom> {
    u32 rank;

    __device__ __forceinline__ u32 column() const { return rank * COLUMNS; }
    __device__ __forceinline__ Part part() const {
        const u32 warp = threadIdx.x >> 5;
        return {column() + warp % 4 * 16, warp / 4 * (DIM / 4)};
    }
    __device__ __forceinline__ u32 ring_place(u32 local) const { return WINDOW_ROWS + local % RING; }
    __device__ __forceinline__ u32 place_of(u32 past) const {
        if (past & KEPT) return past & ~KEPT;
        return past_local(past) + TILE >= local ? ring_place(past_local(past)) : FAR;
    }

    // Into both blocks' shared memory.
    __device__ __forceinline__ u32 peer(const void* to) const {
        u32 there;
        asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"((u32)__cvta_generic_to_shared(to)), "r"(rank ^ 1));
        return there;
    }
    __device__ __forceinline__ void share(float* to, float4 x) const {
        *(float4*)to = x;
        store_peer(to, x);
    }
    __device__ __forceinline__ void share(void* to, u32 x) const {
        *(u32*)to = x;
        asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(peer(to)), "r"(x) : "memory");
    }
    __device__ __forceinline__ void share(float* to, float x) const { share((void*)to, __float_as_uint(x)); }
    __device__ __forceinline__ void store_peer(float* to, float4 x) const {
        asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(peer(to)), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w)
                     : "memory");
    }
};

// The kept rows from the stored grid on, and the taps. They are of earlier steps.
__device__ __forceinline__ void stage(const Half& head) {
    const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const Recurrent& p = head.p;
    PairRoom& room = head.room;
    const auto copy = [](float* to, const float* from) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from) : "memory");
    };
    for (u32 pos = head.seq.stored_grid + warp; pos < head.seq.committed; pos += PAIR_WARPS) {
        const float* row = head.window_row(pos);
        const u32 place = pos % WINDOW_ROWS;
        copy(&room.keys[place][4 * lane], row + head.q_at() + 4 * lane);
        if (lane < COLUMNS / 4)
            copy(&room.deltas[place][4 * lane], row + head.keys() + head.h * DIM + head.column() + 4 * lane);
        if (lane == 31) room.window_g[place] = row[head.keys() + head.deltas() + head.h];
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    if (p.mode & PREPARES)
        for (u32 i = threadIdx.x; i < 3 * DIM; i += 32 * PAIR_WARPS) {
            const u32 part = i / DIM, channel = i % DIM;
            const float4 taps = ((const float4*)p.conv)[(part == 0 ? head.q_at() : part == 1 ? head.k_at() : head.v_at()) + channel];
            room.taps[part][0][channel] = taps.x;
            room.taps[part][1][channel] = taps.y;
            room.taps[part][2][channel] = taps.z;
            room.taps[part][3][channel] = taps.w;
        }
}

// A row of a tile as a warp finds it in the step's data, a lane for each of its pasts.
struct Found {
    u32 row, pos, past;
};
__device__ __forceinline__ void find_first(const Half& head, Found& found, u32 local) {
    const u32 at = local + (threadIdx.x >> 5);
    if (at < head.seq.n_rows) found.row = head.p.step.seq_rows[head.seq.first + at];
}
__device__ __forceinline__ void find_rest(const Half& head, Found& found, u32 local) {
    if (local + (threadIdx.x >> 5) >= head.seq.n_rows) return;
    found.pos = head.p.step.rows[found.row].pos;
    found.past = head.p.step.pasts[found.row * REACH + (threadIdx.x & 31)];
}
__device__ __forceinline__ void put_rows(const Half& head, const Found& found) {
    PairRoom& room = head.room;
    const u32 lane = threadIdx.x & 31, t = threadIdx.x >> 5;
    if (t >= head.n_tile) return;
    const u32 past = found.past, n = found.pos - grid_of(found.pos), other = past_local(past) - head.local;
    const bool is_in_tile = lane < n && !(past & KEPT) && other < TILE;
    const u32 ancestors = __reduce_or_sync(0xffffffffu, is_in_tile ? 1u << other : 0);
    room.terms[t][lane].past = past;
    if (lane == 0) {
        room.row[t] = found.row;
        room.pos[t] = found.pos;
        room.ancestors[t] = ancestors;
    }
}

// Four channels of row t before the convolution, and at up to three positions back as the row sees them.
__device__ __forceinline__ void load_path(const Half& head, u32 t, u32 channel, float4 (&x)[4]) {
    const PairRoom& room = head.room;
    const float* qkv = head.p.qkv + channel;
    const u32 pos = room.pos[t], n = pos - grid_of(pos);
    x[0] = *(const float4*)(qkv + (u64)room.row[t] * head.width());
#pragma unroll
    for (u32 back = 1; back < 4; back++) {
        x[back] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (pos < back) continue;
        const u32 past = room.terms[t][n - back].past;
        x[back] = *(const float4*)(past & KEPT ? head.kept_row(pos - back) + channel : qkv + (u64)past_row(past) * head.width());
    }
}
// Convolution and SiLU.
__device__ __forceinline__ float4 convolved(const PairRoom& room, u32 part, u32 at, const float4 (&x)[4]) {
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int back = 3; back >= 0; back--) {
        const float4 tap = *(const float4*)&room.taps[part][3 - back][at];
        sum.x = __fmaf_rn(tap.x, x[back].x, sum.x);
        sum.y = __fmaf_rn(tap.y, x[back].y, sum.y);
        sum.z = __fmaf_rn(tap.z, x[back].z, sum.z);
        sum.w = __fmaf_rn(tap.w, x[back].w, sum.w);
    }
    return make_float4(sum.x * quick_sigmoid(sum.x), sum.y * quick_sigmoid(sum.y), sum.z * quick_sigmoid(sum.z),
                       sum.w * quick_sigmoid(sum.w));
}

__device__ __forceinline__ void find_gates(const Half& head) {
    const Recurrent& p = head.p;
    PairRoom& room = head.room;
    const u32 t = threadIdx.x & 31;
    if (t >= head.n_tile) return;
    const u64 r = room.row[t];
    const float* gates = p.gates + r * 2 * p.value_heads + head.h;
    float g, beta;
    if (p.mode & PREPARES) {
        const float a = p.a[r * p.value_heads + head.h] + p.dt_bias[head.h], b = p.b[r * p.value_heads + head.h];
        g = p.decay[head.h] * (a > 20.0f ? a : log1pf(quick_exp(a)));
        beta = quick_sigmoid(b);
    } else {
        g = gates[0];
        beta = gates[p.value_heads];
    }
    room.g[(head.local + t) % RING] = g;
    room.beta[t] = beta;
}

// Queries and keys of the block's rows, for both blocks; its columns of all rows' values.
__device__ __forceinline__ void prepare_rows(const Half& head) {
    const Recurrent& p = head.p;
    PairRoom& room = head.room;
    const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    // Eight warps have a row's query and key, eight two rows' values.
    const u32 own = head.rank * ROWS + warp, t = 2 * (warp - ROWS) + lane / 16;
    const u32 column = head.column() + 4 * (lane % 16);
    const bool has_own = warp < ROWS && own < head.n_tile, has_value = warp >= ROWS && t < head.n_tile;
    float4 q, k, v;
    if (p.mode & PREPARES) {
        float4 xq[4], xk[4], xv[4];
        if (has_own) load_path(head, own, head.q_at() + 4 * lane, xq);
        if (has_own) load_path(head, own, head.k_at() + 4 * lane, xk);
        if (has_value) load_path(head, t, head.v_at() + column, xv);
        if (warp == PAIR_WARPS - 1) find_gates(head);
        if (has_own) {
            q = convolved(room, 0, 4 * lane, xq);
            k = convolved(room, 1, 4 * lane, xk);
            q = scaled(q, rsqrtf((float)DIM) * rsqrtf(length_squared(q) + 1e-6f));
            k = scaled(k, rsqrtf(length_squared(k) + 1e-6f));
        }
        if (has_value) v = convolved(room, 2, column, xv);
    } else {
        if (warp == PAIR_WARPS - 1) find_gates(head);
        const float* row = p.prepared + 4 * lane;
        if (has_own) q = *(const float4*)(row + (u64)room.row[own] * head.width() + head.q_at());
        if (has_own) k = *(const float4*)(row + (u64)room.row[own] * head.width() + head.k_at());
        if (has_value) v = *(const float4*)(p.prepared + (u64)room.row[t] * head.width() + head.v_at() + column);
    }
    if (has_own) {
        head.share(&room.queries[own][4 * lane], q);
        head.share(&room.keys[head.ring_place(head.local + own)][4 * lane], k);
    }
    if (has_value) *(float4*)&room.deltas[head.ring_place(head.local + t)][4 * (lane % 16)] = v;
}

// The same to memory. Behind `pair_arrive`, which would wait until it is there: 4 % of the time.
__device__ __forceinline__ void keep_prepared(const Half& head) {
    const Recurrent& p = head.p;
    const PairRoom& room = head.room;
    const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const u32 own = head.rank * ROWS + warp, t = 2 * (warp - ROWS) + lane / 16;
    if (warp < ROWS && own < head.n_tile) {
        const u64 r = room.row[own];
        const float4 k = *(const float4*)&room.keys[head.ring_place(head.local + own)][4 * lane];
        if (p.mode & PREPARES && head.is_owner) {
            float* row = p.prepared + r * head.width() + 4 * lane;
            *(float4*)(row + head.q_at()) = *(const float4*)&room.queries[own][4 * lane];
            *(float4*)(row + head.k_at()) = k;
        }
        // Only rows of larger trees look so far back.
        if (head.seq.n_rows > TILE) *(float4*)(head.key_row(r) + 4 * lane) = k;
    }
    if (!(p.mode & PREPARES) || warp < ROWS) return;
    if (t < head.n_tile)
        *(float4*)(p.prepared + (u64)room.row[t] * head.width() + head.v_at() + head.column() + 4 * (lane % 16)) =
            *(const float4*)&room.deltas[head.ring_place(head.local + t)][4 * (lane % 16)];
    if (warp < PAIR_WARPS - 1 || head.rank > 0 || lane >= head.n_tile) return;
    float* gates = p.gates + (u64)room.row[lane] * 2 * p.value_heads + head.h;
    gates[0] = room.g[(head.local + lane) % RING];
    gates[p.value_heads] = room.beta[lane];
}

// The lane's vector, query or key, of the four rows of the tile from `first` on.
__device__ __forceinline__ const float* vector_at(const Half& head, u32 first) {
    const u32 g = (threadIdx.x & 31) / 4, row = first + g / 2;
    return g % 2 ? head.room.keys[head.ring_place(head.local + row)] : head.room.queries[row];
}

// Products of the block's queries and keys with all keys they can meet: those at hand at once, those of rows further back,
// which only large trees have, row by row. Which of them share an instruction changes no product.
__device__ __forceinline__ void multiply_keys(const Half& head, u32 grid) {
    PairRoom& room = head.room;
    const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane / 4, t = lane % 4, first_row = head.rank * ROWS;
    const u32 n_own = head.n_tile > first_row ? min(head.n_tile - first_row, ROWS) : 0, n_groups = (n_own + 3) / 4;
    const u32 n_window = grid < head.seq.committed ? WINDOW_ROWS / 16 : 0, n_ring = head.seq.n_rows > TILE ? 2 : 1;
#pragma unroll 1
    for (u32 item = warp; item < n_groups * (n_window + n_ring); item += PAIR_WARPS) {
        const u32 rows = first_row + item % n_groups * 4, tile = item / n_groups;
        const u32 keys = tile < n_window ? 16 * tile : WINDOW_ROWS + 16 * (tile - n_window);
        float products[4];
        key_products(room.keys[keys + g], room.keys[keys + g + 8], vector_at(head, rows), products);
        room.products[rows + t][keys + g] = make_float2(products[0], products[1]);
        room.products[rows + t][keys + g + 8] = make_float2(products[2], products[3]);
    }
    if (head.local <= TILE) return;
#pragma unroll 1
    for (u32 item = warp; item < n_own * (REACH / 16); item += PAIR_WARPS) {
        const u32 row = first_row + item / 2, pos = room.pos[row], n = pos - grid_of(pos), first = item % 2 * 16 + g;
        const auto is_far = [&](u32 j) { return j < n && head.place_of(room.terms[row][j].past) == FAR; };
        const auto key_of = [&](u32 j) -> const float* {
            return is_far(j) ? head.key_row(past_row(room.terms[row][j].past)) : room.queries[row];
        };
        if (!__any_sync(0xffffffffu, is_far(first) || is_far(first + 8))) continue;
        float products[4];
        key_products(key_of(first), key_of(first + 8), vector_at(head, row / 4 * 4), products);
        if (t != row % 4) continue;
        if (is_far(first)) *(float2*)&room.terms[row][first] = make_float2(products[0], products[1]);
        if (is_far(first + 8)) *(float2*)&room.terms[row][first + 8] = make_float2(products[2], products[3]);
    }
}

// How much each row before row t counts for it, for both blocks.
__device__ __forceinline__ void weigh(const Half& head, u32 t) {
    const Recurrent& p = head.p;
    PairRoom& room = head.room;
    const u32 j = threadIdx.x & 31, pos = room.pos[t], n = pos - grid_of(pos);
    const u32 past = room.terms[t][j].past, other = past_local(past) - head.local, place = head.place_of(past);
    const bool is_kept = past & KEPT, is_in_tile = !is_kept && other < TILE, is_far = j < n && place == FAR;
    // Decay from just after each past row to this one, summed from the row's end: sums from the grid reach -1500 and their
    // differences would lose the digits that matter.
    float decay = 0.0f;
    float2 product = make_float2(0.0f, 0.0f);
    if (j < n) {
        decay = is_kept  ? room.window_g[place]
                : is_far ? p.gates[(u64)past_row(past) * 2 * p.value_heads + head.h]
                         : room.g[place - WINDOW_ROWS];
        product = is_far ? *(const float2*)&room.terms[t][j] : room.products[t][place];
    }
    if (j == n) decay = room.g[(head.local + t) % RING];
    decay = sum_from_end<32>(decay);
    const float weight = quick_exp(__shfl_down_sync(0xffffffffu, decay, 1));
    const bool any_far = __any_sync(0xffffffffu, is_far);
    if (j == 0) {
        head.share(&room.whole[t], quick_exp(decay));
        head.share(&room.is_far[t], (u32)any_far);
    }
    if (j == n) head.share(&room.own_q[t][t], room.products[t][head.ring_place(head.local + t)].x);
    if (j >= n) return;
    if (!is_in_tile) {
        head.share((float*)&room.terms[t][j],
                   make_float4(weight * product.x, weight * product.y, __uint_as_float(place), __uint_as_float(past)));
    } else {
        head.share(&room.own_q[t][other], weight * product.x);
        head.share(&room.own_k[other][t - other - 1], weight * product.y);
    }
}
