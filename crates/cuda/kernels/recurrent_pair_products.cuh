// Products of a tile's queries and keys with all keys they can meet, and how much each row counts for another.
#pragma once
#include "recurrent_pair_inputs.cuh"

// Sums of products of eight rows' queries and keys with eight vectors, keys or columns of S: `state_products` and `key_products`, number by
// number. A lane has of row lane / 4 and vectors 2 t and 2 t + 1 those of q and then those of k.
struct Sums {
    float high[4] = {0.0f, 0.0f, 0.0f, 0.0f}, left[4] = {0.0f, 0.0f, 0.0f, 0.0f}, right[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    __device__ __forceinline__ void add(uint4 whole, uint4 rest, uint4 vector) {
        const u32 a[4] = {whole.x, whole.y, whole.z, whole.w}, b[4] = {rest.x, rest.y, rest.z, rest.w};
        mma_tf32(high, a, vector.x, vector.y);
        mma_tf32(left, a, vector.z, vector.w);
        mma_tf32(right, b, vector.x, vector.y);
    }
    __device__ __forceinline__ float sum(u32 i) const { return high[i] + (left[i] + right[i]); }
};
template <u32 R>
__device__ __forceinline__ Vectors vectors_at(const Half<R>& head, u32 first) {
    const u32 t = first + (threadIdx.x & 31) / 4;
    return Vectors(head.room.vectors[t], t);
}
template <u32 AT_ONCE, typename KeyAt>
__device__ __forceinline__ Sums key_products(Vectors vectors, KeyAt key_at) {
    Sums sums;
#pragma unroll(AT_ONCE)
    for (u32 i = 0; i < DIM / 8; i++) sums.add(vectors.whole(i), vectors.rest(i), key_at(i));
    return sums;
}
__device__ __forceinline__ uint4 split_pair(float2 x) {
    const Split a = split(x.x), b = split(x.y);
    return make_uint4(a.high, b.high, a.low, b.low);
}

// Eights of keys that eight rows of block `rank` meet: the window's from the grid on, those of the rows before the tile, the tile's but later ones.
template <u32 R>
__device__ __forceinline__ u32 n_window(const Half<R>& head, u32 grid) { return grid < head.seq.committed ? (head.seq.committed - grid + 7) / 8 : 0; }
template <u32 R>
__device__ __forceinline__ u32 n_met(const Half<R>& head, u32 grid, u32 rank) {
    return n_window(head, grid) + (head.local ? TILE / 8 : 0) + rank * (Places<R>::ROWS / 8) + 1;
}
// Of all its rows.
template <u32 R>
__device__ __forceinline__ u32 n_eights(const Half<R>& head, u32 grid, u32 rank) {
    u32 n = 0;
#pragma unroll
    for (u32 i = 0; i < Places<R>::ROWS / 8; i++)
        if (head.n_tile > rank * Places<R>::ROWS + 8 * i) n += n_met(head, grid, rank) + i;
    return n;
}
// Those at hand at once, the block's rows', for both blocks; those of rows further back, which only large trees have, row by row. Which of them
// share an instruction changes no product.
template <u32 R>
__device__ __forceinline__ void multiply_keys(const Half<R>& head, u32 grid) {
    using P = Places<R>;
    PairRoom<R>& room = head.room;
    const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane / 4, t = lane % 4, near = n_window(head, grid);
    const u32 of_first = n_met(head, grid, head.rank), n = n_eights(head, grid, head.rank);
#pragma unroll 1
    for (u32 item = warp; item < n; item += PAIR_WARPS) {
        const bool is_second = P::ROWS > 8 && item >= of_first;
        const u32 nth = is_second ? item - of_first : item, rows = head.rank * P::ROWS + 8 * is_second;
        const u32 keys = nth < near ? (grid + 8 * nth) % WINDOW_ROWS : (head.local ? P::PAST : P::OWN) + 8 * (nth - near);
        Sums sums;
        if (keys < P::OWN) {
            const float* key = room.keys[keys + g] + 2 * t;
            sums = key_products<8>(vectors_at(head, rows), [&](u32 i) { return split_pair(*(const float2*)(key + 8 * i)); });
        } else {
            const Vectors own = vectors_at(head, keys - P::OWN);
            sums = key_products<8>(vectors_at(head, rows), [&](u32 i) {
                const uint4 whole = own.whole(i), rest = own.rest(i);
                return make_uint4(whole.y, whole.w, rest.y, rest.w);
            });
        }
        uint4* to = (uint4*)&room.products[rows + g][keys + 2 * t];
        const auto bits = [&](u32 i) { return __float_as_uint(sums.sum(i)); };
        const uint4 products = make_uint4(bits(0), bits(2), bits(1), bits(3));
        head.tell(PRODUCTS, to, products);
        *to = products;
    }
    if (head.local <= TILE) return;
#pragma unroll 1
    for (u32 item = warp; item < head.n_tile * (REACH / 8); item += PAIR_WARPS) {
        const u32 row = item / 4, pos = room.pos[row], n = pos - grid_of(pos), first = item % 4 * 8;
        const auto is_far = [&](u32 j) { return j < n && head.place_of(room.pasts[row][j]) == FAR; };
        const float* key = is_far(first + g) ? head.key_row(past_row(room.pasts[row][first + g])) + 2 * t : nullptr;
        if (!__any_sync(0xffffffffu, key != nullptr)) continue;
        const Sums sums = key_products<2>(vectors_at(head, row / 8 * 8), [&](u32 i) {
            return split_pair(key ? *(const float2*)(key + 8 * i) : make_float2(0.0f, 0.0f));
        });
        if (g != row % 8) continue;
        float2* terms = room.terms_of(row);
        if (is_far(first + 2 * t)) terms[first + 2 * t] = make_float2(sums.sum(0), sums.sum(2));
        if (is_far(first + 2 * t + 1)) terms[first + 2 * t + 1] = make_float2(sums.sum(1), sums.sum(3));
    }
}

// What is left of each row before row t, a lane each, and of S.
template <u32 R>
__device__ __forceinline__ void weigh(const Half<R>& head, u32 t) {
    const Recurrent& p = head.p;
    PairRoom<R>& room = head.room;
    const u32 j = threadIdx.x & 31, n = room.pos[t] - grid_of(room.pos[t]), past = room.pasts[t][j], place = head.place_of(past);
    // Decay from just after each past row to this one, summed from the row's end: sums from the grid reach -1500 and their
    // differences would lose the digits that matter.
    float decay = 0.0f;
    if (j < n) decay = place == FAR ? p.gates[(u64)past_row(past) * 2 * p.value_heads + head.h] : room.g[place];
    if (j == n) decay = room.g[Places<R>::OWN + t];
    const Weighed weighed = weigh_row(decay);
    room.weights[t][j] = weighed.each;
    room.whole[t] = weighed.whole;
}
// How much each row before row t of the warp's counts for it; then places of their deltas, where all are at hand.
template <u32 R>
__device__ __forceinline__ void put_terms(const Half<R>& head, u32 t, u32 pos, u32 past) {
    PairRoom<R>& room = head.room;
    const u32 j = threadIdx.x & 31, n = pos - grid_of(pos), place = head.place_of(past), other = place - Places<R>::OWN;
    const bool is_far = place == FAR;
    float2 term = make_float2(0.0f, 0.0f);
    if (j < n) {
        const float2 product = is_far ? room.terms_of(t)[j] : room.products[t][place];
        const float weight = room.weights[t][j];
        term = make_float2(weight * product.x, weight * product.y);
    }
    if (j == n) room.own_q[t][t] = room.products[t][Places<R>::OWN + t].x;
    if (R > TILE || head.local <= TILE) room.pasts[t][j] = j < n ? place : 0;
    // Terms may take the place of products.
    __syncwarp();
    if (j < n) {
        if (is_far || place < Places<R>::OWN) {
            room.terms_of(t)[j] = term;
        } else {
            room.own_q[t][other] = term.x;
            room.own_k[t][other] = term.y;
        }
    }
    __syncwarp();
}
