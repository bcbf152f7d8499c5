// A prompt's rows through a recurrent layer, by blocks of 16 absolute positions. Convolution, gates, products of keys and
// their decays do not depend on S, so all blocks of rows have them worked out at once (`walk_prepare`, `walk_weigh`); then
// two or four blocks a value head, a share of the columns each, go through the rows (`walk_rule`); then norm, and what is kept
// (`walk_finish`). The arithmetic is recurrent.cu's, number by number.
#include "keep.cuh"
#include "recurrent_rows.cuh"

// The sequence, the row's place in it and its position, for a place among all rows.
struct Place {
    Seq seq;
    u32 local, pos, row;
    bool is_walked;
};
__device__ __forceinline__ Place place_of(const Recurrent& p, u32 index) {
    Place at = {};
    if (index >= p.step.counts[0]) return at;
    at.row = p.step.seq_rows[index];
    at.seq = p.step.seqs[p.step.rows[at.row].seq];
    at.local = index - at.seq.first;
    at.pos = at.seq.committed + at.local;
    at.is_walked = is_walked(p, at.seq);
    return at;
}

struct Widths {
    u32 keys, deltas, all, window;
};
__device__ __forceinline__ Widths widths_of(const Recurrent& p) {
    const u32 keys = p.key_heads * DIM, deltas = p.value_heads * DIM;
    return {keys, deltas, 2 * keys + deltas, keys + deltas + p.value_heads};
}
__device__ __forceinline__ const float* window_row(const Recurrent& p, const Seq& seq, u32 pos) {
    return p.window + ((u64)seq.slot * WINDOW_ROWS + pos % WINDOW_ROWS) * widths_of(p).window;
}

// Grid: (heads of q, k and v, one more for the gates; rows / 8). A warp per row.
extern "C" __global__ void __launch_bounds__(256) walk_prepare(const __grid_constant__ Recurrent p) {
    const Widths width = widths_of(p);
    const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, index = blockIdx.y * WARPS + warp;
    const u32 n_parts = 2 * p.key_heads + p.value_heads, channel = blockIdx.x * DIM + 4 * lane;
    const Place at = place_of(p, index);
    float4 taps[4];
    if (blockIdx.x < n_parts)
#pragma unroll
        for (u32 i = 0; i < 4; i++) taps[i] = ((const float4*)p.conv)[channel + i];
    pdl_wait();
    pdl_next();
    if (!at.is_walked) return;
    if (blockIdx.x == n_parts) {
        for (u32 h = lane; h < p.value_heads; h += 32) {
            const u64 r = at.row;
            const float a = p.a[r * p.value_heads + h] + p.dt_bias[h], b = p.b[r * p.value_heads + h];
            float* gates = p.gates + r * 2 * p.value_heads + h;
            gates[0] = p.decay[h] * (a > 20.0f ? a : log1pf(quick_exp(a)));
            gates[p.value_heads] = quick_sigmoid(b);
        }
        return;
    }
    float4 x[4];
#pragma unroll
    for (u32 back = 0; back < 4; back++) {
        x[back] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (back <= at.local) {
            x[back] = *(const float4*)(p.qkv + (u64)p.step.seq_rows[index - back] * width.all + channel);
        } else if (back <= at.pos) {
            const u64 kept = (u64)at.seq.slot * CONV_ROWS + (at.pos - back) % CONV_ROWS;
            x[back] = *(const float4*)(p.kept + kept * width.all + channel);
        }
    }
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int back = 3; back >= 0; back--) {
        const auto tap = [&](const float4& of) { return back == 3 ? of.x : back == 2 ? of.y : back == 1 ? of.z : of.w; };
        sum.x = __fmaf_rn(tap(taps[0]), x[back].x, sum.x);
        sum.y = __fmaf_rn(tap(taps[1]), x[back].y, sum.y);
        sum.z = __fmaf_rn(tap(taps[2]), x[back].z, sum.z);
        sum.w = __fmaf_rn(tap(taps[3]), x[back].w, sum.w);
    }
    float4 y = make_float4(sum.x * quick_sigmoid(sum.x), sum.y * quick_sigmoid(sum.y), sum.z * quick_sigmoid(sum.z),
                           sum.w * quick_sigmoid(sum.w));
    if (blockIdx.x < 2 * p.key_heads)
        y = scaled(y, (blockIdx.x < p.key_heads ? rsqrtf((float)DIM) : 1.0f) * rsqrtf(length_squared(y) + 1e-6f));
    *(float4*)(p.prepared + (u64)at.row * width.all + channel) = y;
}

// A block of 16 positions of a prompt: rows at places `first` to `end` of it.
struct Block {
    Seq seq;
    u32 number, first, end;
    bool is_there;
    // Positions from the grid to its first, none for the first block of all; all places before its own rows.
    __device__ __forceinline__ u32 n_back() const { return number ? TILE : 0; }
    __device__ __forceinline__ u32 grid() const { return number ? (number - 1) * TILE : 0; }
    __device__ __forceinline__ u32 index(u32 place) const { return seq.first + number * TILE + place - seq.committed; }
};
__device__ __forceinline__ Block block_at(const Seq& seq, u32 number) {
    const u32 end = seq.committed + seq.n_sure;
    return {seq, number, number == seq.committed / TILE ? seq.committed % TILE : 0, min(TILE, end - number * TILE), true};
}
__device__ __forceinline__ Block find_block(const Recurrent& p, u32 nth) {
    const u32 n_seqs = p.step.counts[2];
#pragma unroll 1
    for (u32 s = 0; s < n_seqs; s++) {
        const Seq seq = p.step.seqs[s];
        if (!is_walked(p, seq)) continue;
        const u32 first = seq.committed / TILE, n = (seq.committed + seq.n_sure - 1) / TILE - first + 1;
        if (nth < n) return block_at(seq, first + nth);
        nth -= n;
    }
    return {};
}

struct WeighRoom {
    float keys[REACH][STRIDE];  // by position from the grid
    float queries[TILE][STRIDE];
    float2 products[TILE][REACH];
    u32 row[TILE];
};

// Grid: (key heads, blocks of positions).
extern "C" __global__ void __launch_bounds__(256) walk_weigh(const __grid_constant__ Recurrent p) {
    __shared__ WeighRoom room;
    const Widths width = widths_of(p);
    const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane / 4, t = lane % 4, key_head = blockIdx.x;
    const Block block = find_block(p, blockIdx.y);
    const u32 n_back = block.n_back(), grid = block.grid(), committed = block.seq.committed;
    if (block.is_there && threadIdx.x >= block.first && threadIdx.x < block.end)
        room.row[threadIdx.x] = p.step.seq_rows[block.index(threadIdx.x)];
    if (!block.is_there) return pdl_idle();
    pdl_wait();
    pdl_next();
    __syncthreads();
    for (u32 j = warp; j < n_back + block.end; j += WARPS) {
        const u32 pos = grid + j;
        const float* key = window_row(p, block.seq, pos) + key_head * DIM;
        if (pos >= committed) {
            const u64 row = j >= n_back ? room.row[j - n_back] : p.step.seq_rows[block.seq.first + pos - committed];
            const float* prepared = p.prepared + row * width.all + key_head * DIM;
            key = prepared + width.keys;
            if (j >= n_back) *(float4*)&room.queries[j - n_back][4 * lane] = *(const float4*)(prepared + 4 * lane);
        }
        *(float4*)&room.keys[j][4 * lane] = *(const float4*)(key + 4 * lane);
    }
    __syncthreads();
    {
        const u32 rows = warp / 2 * 4, keys = warp % 2 * 16, place = rows + g / 2;
        float products[4];
        key_products(room.keys[keys + g], room.keys[keys + g + 8], g % 2 ? room.keys[n_back + place] : room.queries[place], products);
        room.products[rows + t][keys + g] = make_float2(products[0], products[1]);
        room.products[rows + t][keys + g + 8] = make_float2(products[2], products[3]);
    }
    __syncthreads();
    const u32 group = p.value_heads / p.key_heads, n_rows = block.end - block.first, n_before = n_back + block.first;
    for (u32 item = warp; item < n_rows * group; item += WARPS) {
        const u32 place = block.first + item / group, h = p.tiled ? item % group * p.key_heads + key_head : key_head * group + item % group;
        const u32 n = n_back + place, j = lane, pos = grid + j;
        float decay = 0.0f;
        if (j <= n) {
            if (pos < committed) {
                decay = window_row(p, block.seq, pos)[width.keys + width.deltas + h];
            } else {
                const u64 row = j >= n_back ? room.row[j - n_back] : p.step.seq_rows[block.seq.first + pos - committed];
                decay = p.gates[row * 2 * p.value_heads + h];
            }
        }
#pragma unroll
        for (u32 step = 1; step < 32; step *= 2) {
            const float further = __shfl_down_sync(0xffffffffu, decay, step);
            if (j + step < 32) decay += further;
        }
        const float weight = quick_exp(__shfl_down_sync(0xffffffffu, decay, 1));
        const u64 at = (u64)room.row[place] * p.value_heads + h;
        if (j == 0) p.walked.whole[at] = quick_exp(decay);
        if (j == n) p.walked.own_q[at * TILE + place] = room.products[place][j].x;
        if (j >= n) continue;
        const float2 product = room.products[place][j];
        if (j < n_before) {
            p.walked.before[at * REACH + j] = make_float2(weight * product.x, weight * product.y);
        } else {
            p.walked.own_q[at * TILE + j - n_back] = weight * product.x;
            p.walked.own_k[((u64)room.row[j - n_back] * p.value_heads + h) * TILE + place] = weight * product.y;
        }
    }
}

// Blocks of positions at hand: that before, the one at hand, the next, and the one on its way.
#define SLOTS 4u
// Warps that have S, each 16 columns and a quarter of the channels; those that have rows, four columns a thread; all.
#define STATE_WARPS(COLUMNS) (COLUMNS / 4)
#define ROW_WARPS(COLUMNS) (COLUMNS / 8)
#define RULE_WARPS(COLUMNS) (STATE_WARPS(COLUMNS) + ROW_WARPS(COLUMNS))

template <u32 COLUMNS>
struct RuleRoom {
    float keys[SLOTS][TILE][STRIDE];
    float deltas[SLOTS][TILE][COLUMNS];  // v first
    float g[SLOTS][TILE];
    float queries[2][TILE][STRIDE];
    float4 state[STATE_WARPS(COLUMNS)][DIM / 32][32];
    float sums[2][4][TILE][2][COLUMNS];  // S^T q and S^T k over each quarter of the channels
    float2 before[2][TILE][REACH];
    float own_q[2][TILE][TILE], own_k[2][TILE][TILE];
    float whole[2][TILE], beta[2][TILE];
    u32 row[2][TILE];
};

template <u32 COLUMNS>
struct Walk {
    const Recurrent& p;
    RuleRoom<COLUMNS>& room;
    Seq seq;
    u32 h, key_head, column, last;

    __device__ __forceinline__ void copy(const void* to, const void* from) const {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from) : "memory");
    }
    __device__ __forceinline__ u64 row_at(const Block& block, u32 place) const { return p.step.seq_rows[block.index(place)]; }
    // Begins to copy what S meets of a block: queries and keys, a warp at a time.
    __device__ __forceinline__ void load_vectors(u32 number) const {
        if (number > last) return;
        const Block block = block_at(seq, number);
        const Widths width = widths_of(p);
        const u32 at = 4 * (threadIdx.x & 31);
#pragma unroll
        for (u32 n = 0; n < 2 * TILE; n += RULE_WARPS(COLUMNS)) {
            const u32 i = n + (threadIdx.x >> 5), place = i / 2, is_key = i % 2;
            if (place < block.first || place >= block.end) continue;
            const float* row = p.prepared + row_at(block, place) * width.all + key_head * DIM + at;
            copy(is_key ? &room.keys[number % SLOTS][place][at] : &room.queries[number % 2][place][at], row + is_key * width.keys);
        }
    }
    // And what its rows need besides, a warp a row.
    __device__ __forceinline__ void load_rows(u32 number) const {
        const u32 lane = threadIdx.x & 31, now = number % 2;
        if (number > last) return;
        const Block block = block_at(seq, number);
        const Widths width = widths_of(p);
#pragma unroll
        for (u32 n = 0; n < TILE; n += RULE_WARPS(COLUMNS)) {
            const u32 place = n + (threadIdx.x >> 5);
            if (place < block.first || place >= block.end) continue;
            const u64 row = row_at(block, place), at = row * p.value_heads + h;
            if (lane < COLUMNS / 4)
                copy(&room.deltas[number % SLOTS][place][4 * lane], p.prepared + row * width.all + 2 * width.keys + h * DIM + column + 4 * lane);
            if (lane < 16) {
                copy(&room.before[now][place][2 * lane], p.walked.before + at * REACH + 2 * lane);
            } else if (lane < 24) {
                const u32 part = 4 * (lane % 4);
                if (lane < 20) copy(&room.own_q[now][place][part], p.walked.own_q + at * TILE + part);
                else copy(&room.own_k[now][place][part], p.walked.own_k + at * TILE + part);
            } else if (lane == 24) {
                const float* gates = p.gates + row * 2 * p.value_heads + h;
                room.row[now][place] = (u32)row;
                room.whole[now][place] = p.walked.whole[at];
                room.g[number % SLOTS][place] = gates[0];
                room.beta[now][place] = gates[p.value_heads];
            }
        }
    }
    // Kept rows from `grid` on, at their places.
    __device__ __forceinline__ void load_kept(u32 grid) const {
        const Widths width = widths_of(p);
        constexpr u32 PARTS = 32 + COLUMNS / 4;
        for (u32 i = threadIdx.x; i < (seq.committed - grid) * PARTS; i += 32 * RULE_WARPS(COLUMNS)) {
            const u32 pos = grid + i / PARTS, part = i % PARTS, slot = pos / TILE % SLOTS, place = pos % TILE;
            const float* row = window_row(p, seq, pos);
            if (part < 32) copy(&room.keys[slot][place][4 * part], row + key_head * DIM + 4 * part);
            else copy(&room.deltas[slot][place][4 * (part - 32)], row + width.keys + h * DIM + column + 4 * (part - 32));
            if (part == 0) room.g[slot][place] = row[width.keys + width.deltas + h];
        }
    }
};

// Of the warps that have S.
template <u32 COLUMNS>
struct WalkState {
    const Walk<COLUMNS>& walk;
    SharedState<DIM / 32> s;  // of 16 columns and a quarter of the channels
    Part part;

    // The 16 rows of a block, all of them sure and done.
    __device__ __forceinline__ void add(u32 number) {
        RuleRoom<COLUMNS>& room = walk.room;
        const u32 slot = number % SLOTS;
        const auto row_at = [&](u32 j) { return Folded{room.keys[slot][j], room.deltas[slot][j] - walk.column}; };
        const auto g_at = [&](u32 j) { return room.g[slot][j]; };
        fold(s, s, part, DIM, DIM, row_at, g_at);
    }
    __device__ __forceinline__ void multiply(u32 number) const {
        RuleRoom<COLUMNS>& room = walk.room;
        const u32 warp = threadIdx.x >> 5, g = (threadIdx.x & 31) / 4;
        const Block block = block_at(walk.seq, number);
        const auto from = [&](u32 first) {
            return g % 2 ? room.keys[number % SLOTS][first + g / 2] : room.queries[number % 2][first + g / 2];
        };
        const auto to = [&](u32 row, u32 is_key) { return &room.sums[number % 2][warp / (COLUMNS / 16)][row][is_key][warp % (COLUMNS / 16) * 16]; };
        state_products<2>(s, part.channel, (1u << block.end) - (1u << block.first), from, to);
    }
};

// Of the warps that have rows: outputs and deltas of a block.
template <u32 COLUMNS>
__device__ __forceinline__ void walk_rows(const Walk<COLUMNS>& walk, u32 number) {
    const Recurrent& p = walk.p;
    RuleRoom<COLUMNS>& room = walk.room;
    const auto others = [] { asm volatile("bar.sync 1, %0;" ::"n"(32 * ROW_WARPS(COLUMNS)) : "memory"); };
    const Block block = block_at(walk.seq, number);
    const u32 thread = threadIdx.x - 32 * STATE_WARPS(COLUMNS), place = thread / (COLUMNS / 4), at = 4 * (thread % (COLUMNS / 4)), now = number % 2;
    const u32 n_back = block.n_back(), n_before = n_back + block.first, grid = block.grid();
    const bool has_row = place >= block.first && place < block.end;
    float (*deltas)[COLUMNS] = room.deltas[number % SLOTS];
    float4 o = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (has_row) {
        const auto sum_of = [&](u32 is_key) {
            float4 x[4];
#pragma unroll
            for (u32 i = 0; i < 4; i++) x[i] = *(const float4*)&room.sums[now][i][place][is_key][at];
            return make_float4((x[0].x + x[1].x) + (x[2].x + x[3].x), (x[0].y + x[1].y) + (x[2].y + x[3].y),
                               (x[0].z + x[1].z) + (x[2].z + x[3].z), (x[0].w + x[1].w) + (x[2].w + x[3].w));
        };
        const float whole = room.whole[now][place];
        o = scaled(sum_of(0), whole);
        float4 e = *(const float4*)&deltas[place][at];
        add_scaled(e, -whole, sum_of(1));
#pragma unroll 8
        for (u32 j = 0; j < n_before; j++) {
            const float2 term = room.before[now][place][j];
            const u32 pos = grid + j;
            const float4 delta = *(const float4*)&room.deltas[pos / TILE % SLOTS][pos % TILE][at];
            add_scaled(o, term.x, delta);
            add_scaled(e, -term.y, delta);
        }
        *(float4*)&deltas[place][at] = e;
    }
    others();
    if (thread < COLUMNS) {
        float e[TILE];
#pragma unroll
        for (u32 t = 0; t < TILE; t++) e[t] = t >= block.first && t < block.end ? deltas[t][thread] : 0.0f;
#pragma unroll
        for (u32 j = 0; j < TILE; j++) {
            if (j < block.first || j >= block.end) continue;
            e[j] *= room.beta[now][j];
            __align__(16) float terms[TILE];
#pragma unroll
            for (u32 i = (j + 1) / 4 * 4; i < TILE; i += 4) *(float4*)(terms + i) = *(const float4*)&room.own_k[now][j][i];
#pragma unroll
            for (u32 i = j + 1; i < TILE; i++) e[i] = __fmaf_rn(-terms[i], e[j], e[i]);
        }
#pragma unroll
        for (u32 t = 0; t < TILE; t++)
            if (t >= block.first && t < block.end) deltas[t][thread] = e[t];
    }
    others();
    if (!has_row) return;
#pragma unroll 4
    for (u32 j = block.first; j <= place; j++) add_scaled(o, room.own_q[now][place][j], *(const float4*)&deltas[j][at]);
    const u64 to = ((u64)room.row[now][place] * p.value_heads + walk.h) * DIM + walk.column + at;
    *(float4*)(p.delta + to) = *(const float4*)&deltas[place][at];
    *(float4*)(p.out + to) = o;
}

template <u32 COLUMNS>
__device__ __forceinline__ void walk_all(const Recurrent& p) {
    extern __shared__ __align__(16) u8 bytes[];
    if (blockIdx.y >= p.step.counts[2] || !is_walked(p, p.step.seqs[blockIdx.y])) return pdl_idle();
    const u32 warp = threadIdx.x >> 5, h = blockIdx.x / (DIM / COLUMNS);
    const Seq seq = p.step.seqs[blockIdx.y];
    const u32 first = seq.committed / TILE, end = seq.committed + seq.n_sure, last = (end - 1) / TILE;
    const u32 key_head = p.tiled ? h % p.key_heads : h / (p.value_heads / p.key_heads);
    const Walk<COLUMNS> walk = {p, *(RuleRoom<COLUMNS>*)bytes, seq, h, key_head, blockIdx.x % (DIM / COLUMNS) * COLUMNS, last};
    WalkState<COLUMNS> state = {walk, {&walk.room.state[warp % STATE_WARPS(COLUMNS)][0][threadIdx.x & 31]},
                                {walk.column + warp % (COLUMNS / 16) * 16, warp / (COLUMNS / 16) * (DIM / 4)}};
    float* stored = p.state + ((u64)seq.slot * p.value_heads + h) * DIM * DIM;
    const bool has_state = warp < STATE_WARPS(COLUMNS);
    if (has_state) load_state(state.s, state.part, stored, DIM, DIM);
    walk.load_kept(seq.stored_grid);
    pdl_wait();
    pdl_next();
    walk.load_vectors(first);
    walk.load_rows(first);
    copies_done();
    __syncthreads();
    if (has_state) {
#pragma unroll 1
        for (u32 b = seq.stored_grid / TILE; b + 1 < first; b++) state.add(b);
        state.multiply(first);
    }
    __syncthreads();
    // Where the first of a full window was.
    walk.load_vectors(first + 1);
    copies_done();
    __syncthreads();
#pragma unroll 1
    for (u32 number = first; number <= last; number++) {
        walk.load_vectors(number + 2);
        walk.load_rows(number + 1);
        if (has_state) {
            if (number < last) {
                if (number > 0) state.add(number - 1);
                state.multiply(number + 1);
            }
        } else {
            walk_rows(walk, number);
        }
        copies_done();
        __syncthreads();
    }
    if (has_state && grid_of(end - 1) != seq.stored_grid) store_state(state.s, state.part, stored, DIM, DIM);
}

// Grid: (two blocks a value head, or four; sequences).
#define RULE(COLUMNS)                                                                                                                   \
    extern "C" __global__ void __launch_bounds__(32 * RULE_WARPS(COLUMNS), 1) walk_rule_##COLUMNS(const __grid_constant__ Recurrent p) { \
        walk_all<COLUMNS>(p);                                                                                                           \
    }
RULE(32)
RULE(64)

// Blocks that share what is kept of a row: the last 48 are on the way when all others are done.
#define KEEPERS 8u

// Grid: (value heads / 8, KEEPERS more; rows). A warp per head.
extern "C" __global__ void __launch_bounds__(256) walk_finish(const __grid_constant__ Recurrent p) {
    const u32 lane = threadIdx.x & 31, h = blockIdx.x * WARPS + (threadIdx.x >> 5);
    const Place at = place_of(p, blockIdx.y);
    pdl_wait();
    pdl_next();
    if (!at.is_walked) return;
    if (blockIdx.x + KEEPERS >= gridDim.x) {
        if (at.local + WINDOW_ROWS < at.seq.n_sure) return;
        const KeptLayer layer = {p.prepared, p.qkv, p.gates, p.delta, p.window, p.kept, p.key_heads, p.value_heads, DIM, DIM};
        return keep_row(layer, at.seq.slot, at.pos, at.row, at.local + CONV_ROWS >= at.seq.n_sure,
                        blockIdx.x + KEEPERS - gridDim.x, KEEPERS);
    }
    if (h >= p.value_heads || !(p.mode & NORMS)) return;
    const u64 place = ((u64)at.row * p.value_heads + h) * DIM + 4 * lane;
    const float4 gate = *(const float4*)(p.gate + place), weight = *(const float4*)(p.weight + 4 * lane);
    float4 o = *(const float4*)(p.out + place);
    o = scaled(o, rsqrtf(length_squared(o) / (float)DIM + p.eps));
    const float y[4] = {o.x * weight.x * gate.x * quick_sigmoid(gate.x), o.y * weight.y * gate.y * quick_sigmoid(gate.y),
                        o.z * weight.z * gate.z * quick_sigmoid(gate.z), o.w * weight.w * gate.w * quick_sigmoid(gate.w)};
    *(float4*)(p.normed + place) = make_float4(y[0], y[1], y[2], y[3]);
    if (p.image) image_store(p.image, p.shape, at.row, h, y);
}
