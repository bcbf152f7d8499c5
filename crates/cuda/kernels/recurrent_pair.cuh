// A value head shared out to two blocks of a cluster: each has half the columns of S, deltas and outputs, and prepares and
// norms half the rows of a tile. What a block prepares it writes into its peer's shared memory too. Blocks hardly wait for the kernel ahead,
// for they do not fit beside its own, so what counts is all between a block's first and its last instruction.
#pragma once
#include "linear_ptx.cuh"
#include "recurrent_rows.cuh"

#define COLUMNS (DIM / 2)
// Of a block: with eight of them most cycles waited for the last instruction.
#define PAIR_WARPS 16u
// Of the tile, whose vectors, products and norm are this block's.
#define ROWS (TILE / 2)
// Places of keys and deltas at hand: the window's, those of the 16 rows before the tile, which is as far back as prompts reach, and the
// tile's own.
#define PAST_PLACES WINDOW_ROWS
#define OWN_PLACES (WINDOW_ROWS + TILE)
#define PLACES (OWN_PLACES + TILE)
#define FAR 0xffffffffu

// Queries and keys are split once, for all that meet them. Keys that are met, the right side of products, have of two channels the first
// parts and then the rests in a vector of four; those of odd places stand in another order, so that two rows' meet different banks.
#define WIDE (2 * DIM)
__device__ __forceinline__ u32 mix_of(u32 place) { return (place & 1) << 2; }

// What blocks tell each other in each tile: queries and keys, products of keys, outputs before the norm.
enum Told { VECTORS, PRODUCTS, OUTPUTS, TELLS };

struct PairRoom {
    float keys[OWN_PLACES][WIDE];
    union {
        float folded_keys[TILE][WIDE];    // of a fold, gathered; behind the others, so that a place finds them
        float sums[2][TILE][2][COLUMNS];  // then S^T q and S^T k over each half of the channels
    };
    float vectors[TILE][2 * WIDE];      // queries and keys of the tile (`Vectors`)
    float deltas[PLACES][COLUMNS];      // a tile's own are v first, then what is left of it, then delta
    float2 products[TILE][PLACES + 4];  // of keys with a row's q and k
    // Of every fourth channel of q, then of those behind these; of k; of the block's columns of v.
    float4 taps[2 * DIM + COLUMNS];
    // S, and S a grid on, for deep drafts.
    float4 state[2][PAIR_WARPS][DIM / 32][32];
    // How much rows before the tile count for a row, from its grid on: e^{decay} (k_j . q) and e^{decay} (k_j . k).
    float2 terms[TILE][REACH];
    u32 pasts[TILE][REACH];
    float weights[TILE][REACH], whole[TILE];  // e^{decay}: what is left of each of them, and of S
    // Rows of the tile the same: [row, earlier row], and for q itself. So wide that eight rows meet different banks.
    float own_k[TILE][TILE + 4];
    float own_q[TILE][TILE];
    union {
        float folded_deltas[TILE][COLUMNS];
        float out[ROWS][DIM];  // of this block's rows, before the norm
    };
    float4 notes[TELLS];
    u64 told[TELLS];
    float g[PLACES], beta[TILE], folded_g[TILE];
    u32 row[TILE], pos[TILE];
    u32 ancestors[TILE];  // among the tile's rows
    u32 is_last;
};

// What a lane has of a key in products: channels 8 i + 2 t and the next one.
struct WideKey {
    const uint4 *even, *odd;
    __device__ __forceinline__ WideKey(const float* key, u32 mix) {
        const uint4* first = (const uint4*)key + (threadIdx.x & 3);
        even = first + mix;
        odd = first + (4 - mix);
    }
    __device__ __forceinline__ uint4 at(u32 i) const { return (i % 2 ? odd : even)[4 * (i & ~1u)]; }
};
__device__ __forceinline__ void put_wide(float* key, u32 mix, float4 x) {
    const Split a = split(x.x), b = split(x.y), c = split(x.z), d = split(x.w);
    uint4* to = (uint4*)key + (2 * (threadIdx.x & 31) ^ mix);
    to[0] = make_uint4(a.high, b.high, a.low, b.low);
    to[1] = make_uint4(c.high, d.high, c.low, d.low);
}
// And in a fold: channel `first` + 8 i.
struct FoldedKey {
    const u32 *even, *odd;
    FoldedKey() = default;
    __device__ __forceinline__ FoldedKey(const float* key, u32 mix, u32 first) {
        const u32* at = (const u32*)key + 4 * (first / 2) + first % 2;
        even = at + 4 * mix;
        odd = at + (16 - 4 * mix);
    }
};
__device__ __forceinline__ Split channel_of(const FoldedKey& key, u32, u32 i) {
    const u32* at = (i % 2 ? key.odd : key.even) + 16 * (i & ~1u);
    return {at[0], at[2]};
}
struct WideFolded {
    FoldedKey key;
    const float* delta;
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

struct Half : Head<true, PairRoom> {
    u32 rank;

    __device__ __forceinline__ u32 column() const { return rank * COLUMNS; }
    __device__ __forceinline__ Part part() const {
        const u32 warp = threadIdx.x >> 5;
        return {column() + warp % 4 * 16, warp / 4 * (DIM / 4)};
    }
    __device__ __forceinline__ u32 place_of(u32 past) const {
        const u32 other = past_local(past);
        if (past & KEPT) return past & ~KEPT;
        return other >= local ? OWN_PLACES + other - local : other + TILE >= local ? PAST_PLACES + other % TILE : FAR;
    }
    // Of those the tile has.
    __device__ __forceinline__ u32 n_own() const { return n_tile > rank * ROWS ? min(n_tile - rank * ROWS, ROWS) : 0; }

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

// Behind them the peer's shared memory is there, and its barriers.
__device__ __forceinline__ void pair_arrive() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ __forceinline__ void pair_wait() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }

// The kept rows from the stored grid on, up to three a warp. They are of earlier steps. Keys and g are in registers first, so that all
// that comes from memory is on its way before one waits.
struct Kept {
    float4 keys[WINDOW_ROWS / PAIR_WARPS];
    float g[WINDOW_ROWS / PAIR_WARPS];
};
template <typename Each>
__device__ __forceinline__ void for_kept(const Half& head, Each each) {
    const u32 n_rows = head.seq.committed - head.seq.stored_grid;
    u32 nth = threadIdx.x >> 5, place = (head.seq.stored_grid + nth) % WINDOW_ROWS;
#pragma unroll
    for (u32 i = 0; i < WINDOW_ROWS / PAIR_WARPS; i++) {
        if (nth < n_rows) each(i, place);
        nth += PAIR_WARPS;
        place = place + PAIR_WARPS < WINDOW_ROWS ? place + PAIR_WARPS : place + PAIR_WARPS - WINDOW_ROWS;
    }
}
__device__ __forceinline__ void load_kept(const Half& head, Kept& kept) {
    const u32 lane = threadIdx.x & 31;
    for_kept(head, [&](u32 i, u32 place) {
        const float* row = head.window_row(0) + place * head.window_len();
        const float* deltas = row + head.keys() + head.h * DIM + head.column() + 4 * lane;
        kept.keys[i] = *(const float4*)(row + head.q_at() + 4 * lane);
        if (lane < COLUMNS / 4) copy_16(shared_address(&head.room.deltas[place][4 * lane]), (const u8*)deltas);
        kept.g[i] = row[head.keys() + head.deltas() + head.h];
    });
    copies_end_group();
}
__device__ __forceinline__ void put_kept(const Half& head, const Kept& kept) {
    for_kept(head, [&](u32 i, u32 place) {
        put_wide(head.room.keys[place], mix_of(place), kept.keys[i]);
        head.room.g[place] = kept.g[i];
    });
}

// A row of a tile as a warp finds it in the step's data, a lane for each of its pasts.
struct Found {
    u32 row, pos, past;
};
__device__ __forceinline__ void find_first(const Half& head, Found& found, u32 local) {
    const u32 at = local + (threadIdx.x >> 5);
    // Not moved behind other loads: those of `find_rest` wait for it.
    if (at < head.seq.n_rows) asm volatile("ld.global.u32 %0, [%1];" : "=r"(found.row) : "l"(head.p.step.seq_rows + head.seq.first + at));
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
    room.pasts[t][lane] = past;
    if (lane == 0) {
        room.row[t] = found.row;
        room.pos[t] = found.pos;
        room.ancestors[t] = ancestors;
    }
}

// Where a lane's four channels come from: at the row, then one, two and three positions back as it sees them; perhaps nowhere. Eight warps have a
// row's query and key, eight two rows' values of the block's columns; the last one the gates too, a lane a row.
struct Sources {
    const float* from[4];
};
struct Inputs {
    float4 x[4], k[4];  // q or v; k
    Gates gates;        // a and b, or what they give
    float bias, decay;
};
__device__ __forceinline__ bool has_vectors() { return threadIdx.x < 32 * ROWS; }
__device__ __forceinline__ u32 own_row(const Half& head) {
    const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    return has_vectors() ? head.rank * ROWS + warp : 2 * (warp - ROWS) + lane / 16;
}
__device__ __forceinline__ u32 own_channel(const Half& head) {
    const u32 lane = threadIdx.x & 31;
    return has_vectors() ? head.q_at() + 4 * lane : head.v_at() + head.column() + 4 * (lane % 16);
}
// So that the taps of a lane's four channels, of q, of k or of v, stand 32 or 16 apart.
__device__ __forceinline__ void copy_taps(const Half& head) {
    const u32 i = threadIdx.x, part = i / DIM, in_part = i % DIM, n = part < 2 ? 32 : 16;
    if (i >= 2 * DIM + COLUMNS) return;
    const u32 first = part == 0 ? head.q_at() : part == 1 ? head.k_at() : head.v_at() + head.column();
    copy_16(shared_address(&head.room.taps[i]), (const u8*)((const float4*)head.p.conv + first + 4 * (in_part % n) + in_part / n));
}
__device__ __forceinline__ void find_inputs(const Half& head, Sources& in) {
    const Recurrent& p = head.p;
    const PairRoom& room = head.room;
    const u32 t = own_row(head), channel = own_channel(head);
#pragma unroll
    for (u32 back = 0; back < 4; back++) in.from[back] = nullptr;
    if (t >= head.n_tile) return;
    const u32 pos = room.pos[t], n = pos - grid_of(pos);
    const auto at = [&](const float* x, u32 row) { return x + (u64)row * head.width() + channel; };
    in.from[0] = at(p.mode & PREPARES ? p.qkv : p.prepared, room.row[t]);
#pragma unroll
    for (u32 back = 1; back < 4; back++) {
        if (pos < back || !(p.mode & PREPARES)) continue;
        const u32 past = room.pasts[t][n - back];
        in.from[back] = past & KEPT ? head.kept_row(pos - back) + channel : at(p.qkv, past_row(past));
    }
    // Here, and not when they are needed.
#pragma unroll
    for (u32 back = 0; back < 4; back++) asm volatile("" : "+l"(in.from[back]));
}
__device__ __forceinline__ bool has_gates(const Half& head) { return threadIdx.x >= 32 * (PAIR_WARPS - 1) && (threadIdx.x & 31) < head.n_tile; }
__device__ __forceinline__ void load_inputs(const Half& head, const Sources& in, Inputs& y) {
    const Recurrent& p = head.p;
    const auto load = [&](u32 back, u32 further) {
        return in.from[back] ? __ldcg((const float4*)(in.from[back] + further)) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    };
#pragma unroll
    for (u32 back = 0; back < 4; back++) {
        y.x[back] = load(back, 0);
        if (has_vectors()) y.k[back] = load(back, head.keys());
    }
    if (!has_gates(head)) return;
    const u64 r = head.room.row[threadIdx.x & 31], at = r * p.value_heads + head.h;
    if (p.mode & PREPARES) {
        y.gates = {__ldcg(p.a + at), __ldcg(p.b + at)};
        y.bias = p.dt_bias[head.h], y.decay = p.decay[head.h];
    } else {
        const float* gates = p.gates + r * 2 * p.value_heads + head.h;
        y.gates = {gates[0], gates[p.value_heads]};
    }
}

// A row's query and key, to both blocks.
__device__ __forceinline__ void put_vectors(const Half& head, u32 t, float4 q, float4 k) {
    const u32 lane = threadIdx.x & 31, swaps = (t + lane / 2) % 2;
    uint4* to = (uint4*)head.room.vectors[t] + 4 * lane;
    const auto put = [&](u32 i, float2 q, float2 k) {
        const Split q0 = split(q.x), q1 = split(q.y), k0 = split(k.x), k1 = split(k.y);
        const uint4 whole = make_uint4(q0.high, k0.high, q1.high, k1.high), rest = make_uint4(q0.low, k0.low, q1.low, k1.low);
        uint4 *first = to + 2 * i + swaps, *second = to + 2 * i + (1 - swaps);
        head.tell(VECTORS, first, whole);
        head.tell(VECTORS, second, rest);
        *first = whole;
        *second = rest;
    };
    put(0, make_float2(q.x, q.y), make_float2(k.x, k.y));
    put(1, make_float2(q.z, q.w), make_float2(k.z, k.w));
}

// Queries and keys of the block's rows, for both blocks; its columns of all rows' values; gates.
struct Prepared {
    float4 x, k;  // q or v; k
    Gates gates;
};
__device__ __forceinline__ Prepared prepare_rows(const Half& head, const Inputs& in) {
    const Recurrent& p = head.p;
    PairRoom& room = head.room;
    const u32 lane = threadIdx.x & 31, t = own_row(head);
    const auto convolved_of = [&](const float4(&x)[4], bool is_key) {
        const u32 first = has_vectors() ? is_key * DIM + lane : 2 * DIM + lane % 16, step = has_vectors() ? 32 : 16;
        const float4 taps[4] = {room.taps[first], room.taps[first + step], room.taps[first + 2 * step], room.taps[first + 3 * step]};
        return quick_silu(convolved(taps, x));
    };
    Prepared y = {in.x[0], in.k[0], in.gates};
    if (has_gates(head)) {
        if (p.mode & PREPARES) y.gates = gates_of(in.gates.g, in.bias, in.gates.beta, in.decay);
        room.g[OWN_PLACES + lane] = y.gates.g;
        room.beta[lane] = y.gates.beta;
    }
    if (has_vectors()) {
        if (p.mode & PREPARES) {
            y.x = to_length_one(0, DIM, convolved_of(in.x, false));
            y.k = to_length_one(1, DIM, convolved_of(in.k, true));
        }
        if (t < head.n_tile) put_vectors(head, t, y.x, y.k);
    } else {
        if (p.mode & PREPARES) y.x = convolved_of(in.x, false);
        if (t < head.n_tile) *(float4*)&room.deltas[OWN_PLACES + t][4 * (lane % 16)] = y.x;
    }
    return y;
}
// The same to memory. Gates by both blocks, so that each reads what it wrote.
__device__ __forceinline__ void keep_prepared(const Half& head, const Prepared& y) {
    const Recurrent& p = head.p;
    const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, t = own_row(head);
    const bool is_kept = has_vectors() && head.is_owner && t < head.n_tile;
    // A sure row's key enters the window, unless other heads may still read what it overwrites.
    if (is_kept && head.local + t < head.seq.n_sure && !head.keeps_late()) *(float4*)(head.window_row(head.room.pos[t]) + own_channel(head)) = y.k;
    if (!(p.mode & PREPARES)) return;
    if (warp == PAIR_WARPS - 1 && lane < head.n_tile) store_gates(head, head.room.row[lane], y.gates);
    if (has_vectors() ? !is_kept : t >= head.n_tile) return;
    float* row = p.prepared + (u64)head.room.row[t] * head.width() + own_channel(head);
    *(float4*)row = y.x;
    if (has_vectors()) *(float4*)(row + head.keys()) = y.k;
}
// Keys of the tile for later ones, at hand and in memory, where rows of large trees look for them.
__device__ __forceinline__ void keep_keys(const Half& head, u32 t) {
    const u32 lane = threadIdx.x & 31, swaps = (t + lane / 2) % 2, place = PAST_PLACES + (head.local + t) % TILE;
    const uint4* from = (const uint4*)head.room.vectors[t] + 4 * lane;
    // Of a zero only the first part has a sign.
    const auto sum = [](u32 high, u32 low) { return copysignf(__uint_as_float(high) + __uint_as_float(low), __uint_as_float(high)); };
    const uint4 whole[2] = {from[swaps], from[2 + swaps]}, rest[2] = {from[1 - swaps], from[3 - swaps]};
    const float4 k = make_float4(sum(whole[0].y, rest[0].y), sum(whole[0].w, rest[0].w), sum(whole[1].y, rest[1].y), sum(whole[1].w, rest[1].w));
    put_wide(head.room.keys[place], mix_of(place), k);
    *(float4*)(head.key_row(head.room.row[t]) + 4 * lane) = k;
}

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
__device__ __forceinline__ Vectors vectors_at(const Half& head, u32 first) {
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

// Eights of keys that the rows of block `rank` meet: the window's from the grid on, those of the rows before the tile, the tile's but later ones.
__device__ __forceinline__ u32 n_window(const Half& head, u32 grid) { return grid < head.seq.committed ? (head.seq.committed - grid + 7) / 8 : 0; }
__device__ __forceinline__ u32 n_eights(const Half& head, u32 grid, u32 rank) {
    return head.n_tile > rank * ROWS ? n_window(head, grid) + (head.local ? 2 : 0) + 1 + rank : 0;
}
// Products of queries and keys with all keys they can meet: those at hand at once, the block's rows', for both blocks; those of rows further
// back, which only large trees have, row by row. Which of them share an instruction changes no product.
__device__ __forceinline__ void multiply_keys(const Half& head, u32 grid) {
    PairRoom& room = head.room;
    const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane / 4, t = lane % 4, rows = head.rank * ROWS, near = n_window(head, grid);
#pragma unroll 1
    for (u32 item = warp; item < n_eights(head, grid, head.rank); item += PAIR_WARPS) {
        const u32 keys = item < near ? (grid + 8 * item) % WINDOW_ROWS : (head.local ? PAST_PLACES : OWN_PLACES) + 8 * (item - near);
        Sums sums;
        if (keys < OWN_PLACES) {
            const WideKey key(room.keys[keys + g], mix_of(g));
            sums = key_products<8>(vectors_at(head, rows), [&](u32 i) { return key.at(i); });
        } else {
            const Vectors own = vectors_at(head, keys - OWN_PLACES);
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
            const float2 x = key ? *(const float2*)(key + 8 * i) : make_float2(0.0f, 0.0f);
            const Split a = split(x.x), b = split(x.y);
            return make_uint4(a.high, b.high, a.low, b.low);
        });
        if (g != row % 8) continue;
        if (is_far(first + 2 * t)) room.terms[row][first + 2 * t] = make_float2(sums.sum(0), sums.sum(2));
        if (is_far(first + 2 * t + 1)) room.terms[row][first + 2 * t + 1] = make_float2(sums.sum(1), sums.sum(3));
    }
}

// What is left of each row before row t, a lane each, and of S.
__device__ __forceinline__ void weigh(const Half& head, u32 t) {
    const Recurrent& p = head.p;
    PairRoom& room = head.room;
    const u32 j = threadIdx.x & 31, n = room.pos[t] - grid_of(room.pos[t]), past = room.pasts[t][j], place = head.place_of(past);
    // Decay from just after each past row to this one, summed from the row's end: sums from the grid reach -1500 and their
    // differences would lose the digits that matter.
    float decay = 0.0f;
    if (j < n) decay = place == FAR ? p.gates[(u64)past_row(past) * 2 * p.value_heads + head.h] : room.g[place];
    if (j == n) decay = room.g[OWN_PLACES + t];
    const Weighed weighed = weigh_row(decay);
    room.weights[t][j] = weighed.each;
    room.whole[t] = weighed.whole;
}
// How much each row before the warp's row counts for it.
__device__ __forceinline__ void put_terms(const Half& head, const Found& found) {
    PairRoom& room = head.room;
    const u32 t = threadIdx.x >> 5, j = threadIdx.x & 31, n = found.pos - grid_of(found.pos), past = found.past;
    const u32 place = head.place_of(past), other = place - OWN_PLACES;
    const bool is_far = place == FAR;
    if (j == n) room.own_q[t][t] = room.products[t][OWN_PLACES + t].x;
    if (j < n) {
        const float2 product = is_far ? room.terms[t][j] : room.products[t][place];
        const float weight = room.weights[t][j];
        const float2 term = make_float2(weight * product.x, weight * product.y);
        if (is_far || place < OWN_PLACES) {
            room.terms[t][j] = term;
        } else {
            room.own_q[t][other] = term.x;
            room.own_k[t][other] = term.y;
        }
    }
    __syncwarp();
}
