// A value head shared out to two blocks of a cluster: each has half the columns of S, deltas and outputs, and prepares and
// norms half the rows of a tile. What a block prepares it writes into its peer's shared memory too. Blocks hardly wait for the kernel ahead,
// for they do not fit beside its own, so what counts is all between a block's first and its last instruction.
#pragma once
#include "linear_ptx.cuh"
#include "recurrent_rows.cuh"

#define COLUMNS (DIM / 2)
// Of a block: with eight of them most cycles waited for the last instruction.
#define PAIR_WARPS 16u
// Its shared memory: what a multiprocessor of compute capability 9.0 has for one.
#define PAIR_BYTES (227 * 1024)
#define FAR 0xffffffffu

// Queries and keys of a tile are split once, for all that meet them.
#define WIDE (2 * DIM)

// What blocks tell each other in each tile: queries and keys, products of keys, outputs before the norm.
enum Told { VECTORS, PRODUCTS, OUTPUTS, TELLS };

// Rows go in tiles of R, which is 16 or 32: one of 32 takes 31 000 cycles where two of 16 take 36 000, for fewer meetings and waits. There is no room for
// rows of other tiles beside 32, so that they have to be all there are (`is_one_tile`).
template <u32 R>
struct Places {
    // Of the tile, whose vectors, products and norm are this block's.
    static constexpr u32 ROWS = R / 2;
    // Places of keys and deltas at hand: the window's, those of the 16 rows before the tile, which is as far back as prompts reach, and the
    // tile's own.
    static constexpr u32 PAST = WINDOW_ROWS, OWN = PAST + (R == TILE ? TILE : 0), ALL = OWN + R;
};

// S^T q and S^T k over each half of the channels.
template <u32 R>
using StateSums = float[2][R][2][COLUMNS];

// Of every fourth channel of q, then of those behind these; of k; of the block's columns of v.
using Taps = float4[2 * DIM + COLUMNS];

// What has the same room one after the other, and what only tiles of one size have.
template <u32 R>
struct Shared;
template <>
struct Shared<TILE> {
    float keys[Places<TILE>::OWN][STRIDE];
    union {
        float folded_keys[TILE][STRIDE];  // of a fold, gathered
        StateSums<TILE> sums;
    };
    Taps taps;
    union {
        float folded_deltas[TILE][COLUMNS];
        float out[TILE / 2][DIM];  // of this block's rows, before the norm
    };
    float folded_g[TILE];
    float2 terms[TILE][REACH];
    __device__ __forceinline__ float2* terms_of(u32 t) { return terms[t]; }
    float2 products[TILE][Places<TILE>::ALL + 4];
};
template <>
struct Shared<2 * TILE> {
    union {
        float keys[WINDOW_ROWS][STRIDE];
        StateSums<2 * TILE> sums;
    };
    union {
        Taps taps;
        float out[TILE][DIM];
    };
    // A row's terms are made of its products.
    float2 products[2 * TILE][Places<2 * TILE>::ALL + 4];
    __device__ __forceinline__ float2* terms_of(u32 t) { return products[t]; }
};

template <u32 R>
struct PairRoom : Shared<R> {
    // `keys`: of every place but the tile's. `products`: of keys with a row's q and k. `terms_of` a row: how much rows before the tile count for
    // it, from its grid on, e^{decay} (k_j . q) and e^{decay} (k_j . k).
    float vectors[R][2 * WIDE];             // queries and keys of the tile (`Vectors`)
    float deltas[Places<R>::ALL][COLUMNS];  // a tile's own are v first, then what is left of it, then delta
    // S, and S a grid on, for deep drafts.
    float4 state[2][PAIR_WARPS][DIM / 32][32];
    u32 pasts[R][REACH];                // what the step's data says of them; then where their deltas are
    float weights[R][REACH], whole[R];  // e^{decay}: what is left of each of them, and of S
    // Rows of the tile the same: [row, earlier row], and for q itself. So wide that eight rows meet different banks.
    float own_k[R][R + 4];
    float own_q[R][R];
    float4 notes[TELLS];
    u64 told[TELLS];
    float g[Places<R>::ALL], beta[R];
    u32 row[R], pos[R];
    u32 ancestors[R];  // among the tile's rows
    u32 is_last;
};

// What a lane has of a row's query and key, the left side of products: of two channels q's and k's first parts in one vector, their rests in
// another. Which stands first alternates with rows and channels, so that few meet the same banks.
struct Vectors {
    const uint4* at[2];
    __device__ __forceinline__ Vectors(const float* row, u32 t) {
        const uint4* first = (const uint4*)row + 2 * (threadIdx.x & 3);
        at[0] = first + t % 2;
        at[1] = first + (1 - t % 2);
    }
    __device__ __forceinline__ uint4 whole(u32 i) const { return at[i % 2][8 * i]; }
    __device__ __forceinline__ uint4 rest(u32 i) const { return at[1 - i % 2][8 * i]; }
};

template <u32 R>
struct Half : Head<true, PairRoom<R>> {
    using Base = Head<true, PairRoom<R>>;
    using P = Places<R>;
    using Base::room, Base::local, Base::n_tile;
    u32 rank;

    __device__ __forceinline__ u32 column() const { return rank * COLUMNS; }
    __device__ __forceinline__ Part part() const {
        const u32 warp = threadIdx.x >> 5;
        return {column() + warp % 4 * 16, warp / 4 * (DIM / 4)};
    }
    __device__ __forceinline__ u32 place_of(u32 past) const {
        const u32 other = past_local(past);
        if (past & KEPT) return past & ~KEPT;
        return other >= local ? P::OWN + other - local : other + TILE >= local ? P::PAST + other % TILE : FAR;
    }
    // Of those the tile has.
    __device__ __forceinline__ u32 n_own() const { return n_tile > rank * P::ROWS ? min(n_tile - rank * P::ROWS, P::ROWS) : 0; }
    __device__ __forceinline__ u32 all_rows() const { return 0xffffffffu >> (32 - n_tile); }

    __device__ __forceinline__ u32 peer(const void* to) const {
        u32 there;
        asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(to)), "r"(rank ^ 1));
        return there;
    }
    // Into the peer's shared memory, where bytes are counted: a barrier of the cluster would wait for all stores to memory as well.
    __device__ __forceinline__ void tell(Told what, void* to, uint4 x) const {
        asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.u32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(peer(to)), "r"(x.x),
                     "r"(x.y), "r"(x.z), "r"(x.w), "r"(peer(&room.told[what]))
                     : "memory");
    }
    __device__ __forceinline__ void tell(Told what, void* to, float2 x) const {
        asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(peer(to)), "f"(x.x), "f"(x.y),
                     "r"(peer(&room.told[what]))
                     : "memory");
    }
    // A thread's: so many numbers will come. There is a note more, so that no block is a tile ahead of its peer.
    __device__ __forceinline__ void meet(Told what, u32 n) const {
        tell(what, &room.notes[what], make_uint4(0, 0, 0, 0));
        copy_expect(shared_address(&room.told[what]), 4 * n + sizeof(float4));
    }
    __device__ __forceinline__ void await_peer(Told what, u32 tile) const { barrier_wait(shared_address(&room.told[what]), tile & 1); }
};

// Whether 17 to 32 rows need no S but that of their root's grid and, of kept rows alone, the next: no path goes deeper than a grid below the
// last sure row.
__device__ __forceinline__ bool is_one_tile(const Seq& seq) {
    const u32 sure_end = seq.committed + seq.n_sure;
    return seq.n_rows > TILE && seq.n_rows <= 2 * TILE && sure_end <= grid_of(seq.committed) + 2 * GRID && (seq.committed >= GRID || sure_end <= GRID);
}

// Behind them the peer's shared memory is there, and its barriers.
__device__ __forceinline__ void pair_arrive() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ __forceinline__ void pair_wait() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }

// The kept rows from the stored grid on, up to three a warp. They are of earlier steps. g is in registers first, so that all that comes from
// memory is on its way before one waits.
struct Kept {
    float g[WINDOW_ROWS / PAIR_WARPS];
};
template <u32 R, typename Each>
__device__ __forceinline__ void for_kept(const Half<R>& head, Each each) {
    const u32 n_rows = head.seq.committed - head.seq.stored_grid;
    u32 nth = threadIdx.x >> 5, place = (head.seq.stored_grid + nth) % WINDOW_ROWS;
#pragma unroll
    for (u32 i = 0; i < WINDOW_ROWS / PAIR_WARPS; i++) {
        if (nth < n_rows) each(i, place);
        nth += PAIR_WARPS;
        place = place + PAIR_WARPS < WINDOW_ROWS ? place + PAIR_WARPS : place + PAIR_WARPS - WINDOW_ROWS;
    }
}
template <u32 R>
__device__ __forceinline__ void load_kept(const Half<R>& head, Kept& kept) {
    const u32 lane = threadIdx.x & 31;
    for_kept(head, [&](u32 i, u32 place) {
        const float* row = head.window_row(0) + place * head.window_len();
        const float* deltas = row + head.keys() + head.h * DIM + head.column() + 4 * lane;
        kept.g[i] = row[head.keys() + head.deltas() + head.h];
        copy_16(shared_address(&head.room.keys[place][4 * lane]), (const u8*)(row + head.q_at() + 4 * lane));
        if (lane < COLUMNS / 4) copy_16(shared_address(&head.room.deltas[place][4 * lane]), (const u8*)deltas);
    });
    copies_end_group();
}
template <u32 R>
__device__ __forceinline__ void put_kept(const Half<R>& head, const Kept& kept) {
    for_kept(head, [&](u32 i, u32 place) { head.room.g[place] = kept.g[i]; });
}

// A warp's rows of a tile as it finds them in the step's data, a lane for each of their pasts.
template <u32 R>
struct Found {
    static constexpr u32 N = R / PAIR_WARPS;
    u32 row[N], pos[N], past[N];
};
template <u32 R, typename Each>
__device__ __forceinline__ void for_rows(u32 n, Each each) {
#pragma unroll
    for (u32 i = 0; i < Found<R>::N; i++) {
        const u32 t = (threadIdx.x >> 5) + PAIR_WARPS * i;
        if (t < n) each(i, t);
    }
}
template <u32 R>
__device__ __forceinline__ void find_first(const Half<R>& head, Found<R>& found, u32 local) {
    for_rows<R>(head.seq.n_rows - local, [&](u32 i, u32 t) {
        // Not moved behind other loads: those of `find_rest` wait for it.
        asm volatile("ld.global.u32 %0, [%1];" : "=r"(found.row[i]) : "l"(head.p.step.seq_rows + head.seq.first + local + t));
    });
}
template <u32 R>
__device__ __forceinline__ void find_rest(const Half<R>& head, Found<R>& found, u32 local) {
    for_rows<R>(head.seq.n_rows - local, [&](u32 i, u32) {
        found.pos[i] = head.p.step.rows[found.row[i]].pos;
        found.past[i] = head.p.step.pasts[found.row[i] * REACH + (threadIdx.x & 31)];
    });
}
template <u32 R>
__device__ __forceinline__ void put_rows(const Half<R>& head, const Found<R>& found) {
    PairRoom<R>& room = head.room;
    const u32 lane = threadIdx.x & 31;
    for_rows<R>(head.n_tile, [&](u32 i, u32 t) {
        const u32 past = found.past[i], n = found.pos[i] - grid_of(found.pos[i]), other = past_local(past) - head.local;
        const bool is_in_tile = lane < n && !(past & KEPT) && other < R;
        const u32 ancestors = __reduce_or_sync(0xffffffffu, is_in_tile ? 1u << other : 0);
        room.pasts[t][lane] = past;
        if (lane == 0) {
            room.row[t] = found.row[i];
            room.pos[t] = found.pos[i];
            room.ancestors[t] = ancestors;
        }
    });
}
