// The delta rule of a prompt's rows, of which only S and the deltas follow one another: four blocks a value head, a share of the
// columns each, go through blocks of 16 positions. A turn adds up one of them, while the next meets S and that before enters it.
#include "recurrent_walk.cuh"

// Of blocks of positions: those whose keys are at hand, from the one before to the one three on; whose deltas are; and
// of what a single turn needs.
#define KEY_SLOTS 5u
#define DELTA_SLOTS 4u
#define TURN_SLOTS 3u
// Columns of a block: the larger the share, the more of the work on keys and queries is done once; with 64 a 4B would use
// half of the device.
#define COLUMNS 32u
// Warps that have S, 16 columns and a quarter of the channels each; that have rows, four columns a thread; that copy for them two turns ahead (when
// all did, each waited in every turn for a row's number and for its gates).
#define STATE_WARPS 8u
#define ROW_WARPS 4u
#define COPY_WARPS 4u
#define RULE_WARPS (STATE_WARPS + ROW_WARPS + COPY_WARPS)

struct RuleRoom {
    float keys[KEY_SLOTS][TILE][STRIDE];
    float deltas[DELTA_SLOTS][TILE][COLUMNS];  // v first
    float g[DELTA_SLOTS][TILE];
    float queries[TURN_SLOTS][TILE][STRIDE];
    float sums[2][4][TILE][2][COLUMNS];  // S^T q and S^T k over each quarter of the channels
    float2 before[TURN_SLOTS][TILE][REACH];
    float own_q[TURN_SLOTS][TILE][TILE], own_k[TURN_SLOTS][TILE][TILE];
    float whole[TURN_SLOTS][TILE], beta[TURN_SLOTS][TILE];
    u32 row[TURN_SLOTS][TILE];
    float left[2][TILE];  // of a block's rows at its end, and of what was before: `FoldWeights`
    float left_of_all[4];
};

struct Walk {
    const Recurrent& p;
    RuleRoom& room;
    Seq seq;
    u32 h, key_head, column, last;

    __device__ __forceinline__ void copy(const void* to, const void* from) const {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from) : "memory");
    }
    // Kept rows from `grid` on, at their places.
    __device__ __forceinline__ void load_kept(u32 grid) const {
        const Widths width = widths_of(p);
        constexpr u32 PARTS = 32 + COLUMNS / 4;
        for (u32 i = threadIdx.x; i < (seq.committed - grid) * PARTS; i += 32 * RULE_WARPS) {
            const u32 pos = grid + i / PARTS, part = i % PARTS, block = pos / TILE, place = pos % TILE;
            const float* row = window_row(p, seq, pos);
            if (part < 32) copy(&room.keys[block % KEY_SLOTS][place][4 * part], row + key_head * DIM + 4 * part);
            else copy(&room.deltas[block % DELTA_SLOTS][place][4 * (part - 32)], row + width.keys + h * DIM + column + 4 * (part - 32));
            if (part == 0) room.g[block % DELTA_SLOTS][place] = row[width.keys + width.deltas + h];
        }
    }
    // What is left of a whole block's rows at its end, for the turn after its own.
    __device__ __forceinline__ void weigh_fold(u32 number) const {
        const u32 lane = threadIdx.x & 31;
        const FoldWeights weights = fold_weights([&](u32 j) { return room.g[number % DELTA_SLOTS][j]; });
        if (lane < TILE) room.left[number % 2][lane] = weights.each;
        if (lane == 0) room.left_of_all[number % 2] = weights.all;
    }
};

// Of the warps that copy. All that a lane's addresses need is worked out once: with a branch for each array a turn took 1400
// instructions.
struct WalkCopies {
    const Walk& walk;
    u32 copier;
    const float *vector, *value, *term;  // of row 0
    u32 vector_to, value_to, term_to;    // of slot 0, place 0
    u32 width;                           // of prepared rows
    u32 term_width, term_slot, term_place;

    __device__ __forceinline__ static u32 shared(const void* at) { return (u32)__cvta_generic_to_shared(at); }
    __device__ __forceinline__ WalkCopies(const Walk& walk, u32 copier) : walk(walk), copier(copier) {
        const Recurrent& p = walk.p;
        RuleRoom& room = walk.room;
        const Widths widths = widths_of(p);
        const u32 lane = threadIdx.x & 31, h = walk.h, heads = p.value_heads, part = 4 * (lane % 4);
        width = widths.all;
        vector = p.prepared + (is_key() ? widths.keys : 0) + walk.key_head * DIM + 4 * lane;
        vector_to = shared(is_key() ? &room.keys[0][0][4 * lane] : &room.queries[0][0][4 * lane]);
        value = p.prepared + 2 * widths.keys + h * DIM + walk.column + 4 * lane;
        value_to = shared(&room.deltas[0][0][4 * lane]);
        // Lanes 0 to 23 have 16 bytes of a row's terms, 24 to 26 a word.
        const auto is = [&](const float* from, u32 row_width, const void* to, u32 slot, u32 place) {
            term = from, term_width = row_width, term_to = shared(to), term_slot = slot, term_place = place;
        };
        constexpr u32 OWN = sizeof(room.own_q[0]), ROW = sizeof(room.own_q[0][0]), WORDS = sizeof(room.whole[0]);
        if (lane < 16) is((const float*)(p.walked.before + h * REACH + 2 * lane), heads * REACH * 2, &room.before[0][0][2 * lane], sizeof(room.before[0]), sizeof(room.before[0][0]));
        else if (lane < 20) is(p.walked.own_q + h * TILE + part, heads * TILE, &room.own_q[0][0][part], OWN, ROW);
        else if (lane < 24) is(p.walked.own_k + h * TILE + part, heads * TILE, &room.own_k[0][0][part], OWN, ROW);
        else if (lane == 24) is(p.walked.whole + h, heads, room.whole[0], WORDS, 4);
        else if (lane == 25) is(p.gates + h, 2 * heads, room.g[0], WORDS, 4);
        else is(p.gates + heads + h, 2 * heads, room.beta[0], WORDS, 4);
    }
    __device__ __forceinline__ bool is_key() const { return copier % 2; }
    // Without a branch: those of a turn took longer than its copies.
    __device__ __forceinline__ static void copy(u32 to, const float* from, bool is_there) {
        asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0;\n@p cp.async.cg.shared.global [%0], [%1], 16; }" ::"r"(to), "l"(from), "r"((u32)is_there) : "memory");
    }
    __device__ __forceinline__ static void copy_word(u32 to, const float* from, bool is_there) {
        asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0;\n@p cp.async.ca.shared.global [%0], [%1], 4; }" ::"r"(to), "l"(from), "r"((u32)is_there) : "memory");
    }
    // A lane each.
    __device__ __forceinline__ u32 find_rows(u32 number) const {
        const u32 place = threadIdx.x & 31;
        if (number > walk.last) return 0;
        const Block block = block_at(walk.seq, number);
        return place >= block.first && place < block.end ? walk.p.step.seq_rows[block.index(place)] : 0;
    }
    // What S meets of a block: two warps for queries, two for keys.
    __device__ __forceinline__ void load_vectors(u32 number, u32 rows) const {
        if (number > walk.last) return;
        const Block block = block_at(walk.seq, number);
        const u32 to = vector_to + (is_key() ? number % KEY_SLOTS : number % TURN_SLOTS) * (u32)sizeof(walk.room.keys[0]);
#pragma unroll
        for (u32 i = 0; i < TILE / 2; i++) {
            const u32 place = copier / 2 * (TILE / 2) + i, row = __shfl_sync(0xffffffffu, rows, place);
            copy(to + place * STRIDE * 4, vector + (u64)row * width, place >= block.first && place < block.end);
        }
    }
    // And what its rows need besides.
    __device__ __forceinline__ void load_rows(u32 number, u32 rows) const {
        if (number > walk.last) return;
        const Block block = block_at(walk.seq, number);
        const u32 lane = threadIdx.x & 31, now = number % TURN_SLOTS, slot = number % DELTA_SLOTS;
        const u32 values = value_to + slot * (u32)sizeof(walk.room.deltas[0]), terms = term_to + (lane == 25 ? slot : now) * term_slot;
#pragma unroll
        for (u32 i = 0; i < TILE / COPY_WARPS; i++) {
            const u32 place = copier * (TILE / COPY_WARPS) + i, row = __shfl_sync(0xffffffffu, rows, place), to = terms + place * term_place;
            const bool is_there = place >= block.first && place < block.end;
            copy(values + place * COLUMNS * 4, value + (u64)row * width, is_there && lane < COLUMNS / 4);
            copy(to, term + (u64)row * term_width, is_there && lane < 24);
            copy_word(to, term + (u64)row * term_width, is_there && lane >= 24 && lane < 27);
        }
        if (lane < TILE && copier == 0) walk.room.row[now][lane] = rows;
    }
};

// Of the warps that have S.
struct WalkState {
    const Walk& walk;
    RegisterState<DIM / 4 / 8> s;
    Part part;

    __device__ __forceinline__ Folded folded(u32 number, u32 j) const {
        const RuleRoom& room = walk.room;
        return {room.keys[number % KEY_SLOTS][j], room.deltas[number % DELTA_SLOTS][j] - walk.column};
    }
    // The 16 rows of a block, all of them sure and done: the one before that at hand, or an earlier one.
    __device__ __forceinline__ void add(u32 number) {
        const RuleRoom& room = walk.room;
        const auto left_at = [&](u32 j) { return room.left[number % 2][j]; };
        fold_weighed(s, s, part, DIM, DIM, [&](u32 j) { return folded(number, j); }, left_at, room.left_of_all[number % 2]);
    }
    __device__ __forceinline__ void add_kept(u32 number) {
        const auto g_at = [&](u32 j) { return walk.room.g[number % DELTA_SLOTS][j]; };
        fold(s, s, part, DIM, DIM, [&](u32 j) { return folded(number, j); }, g_at);
    }
    __device__ __forceinline__ void multiply(u32 number) const {
        RuleRoom& room = walk.room;
        const u32 warp = threadIdx.x >> 5, g = (threadIdx.x & 31) / 4;
        const float* vectors = (g % 2 ? room.keys[number % KEY_SLOTS] : room.queries[number % TURN_SLOTS])[g / 2];
        const auto from = [&](u32 first) { return vectors + first * STRIDE; };
        const auto to = [&](u32 row, u32 is_key) { return room.sums[number % 2][warp / 2][row][is_key] + warp % 2 * 16; };
        // Rows that are not there have sums that nobody reads.
        state_products<4, true>(s, part.channel, 0, from, to);
    }
};

// Of the warps that have rows: outputs and deltas of a block. WHOLE: it has 16 rows, and 16 before it.
template <bool WHOLE>
__device__ __forceinline__ void walk_rows(const Walk& walk, const Block& block) {
    const Recurrent& p = walk.p;
    RuleRoom& room = walk.room;
    const auto others = [] { asm volatile("bar.sync 1, %0;" ::"n"(32 * ROW_WARPS) : "memory"); };
    const u32 thread = threadIdx.x - 32 * STATE_WARPS, place = thread / (COLUMNS / 4), at = 4 * (thread % (COLUMNS / 4)), now = block.number % TURN_SLOTS;
    const u32 n_before = WHOLE ? TILE : block.n_back() + block.first, grid = block.grid();
    const u32 first = WHOLE ? 0 : block.first, end = WHOLE ? TILE : block.end;
    const auto is_row = [&](u32 at) { return WHOLE || (at >= first && at < end); };
    const bool has_row = is_row(place);
    float (*deltas)[COLUMNS] = room.deltas[block.number % DELTA_SLOTS];
    float4 o = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (has_row) {
        const auto sum_of = [&](u32 is_key) {
            float4 x[4];
#pragma unroll
            for (u32 i = 0; i < 4; i++) x[i] = *(const float4*)&room.sums[block.number % 2][i][place][is_key][at];
            return make_float4((x[0].x + x[1].x) + (x[2].x + x[3].x), (x[0].y + x[1].y) + (x[2].y + x[3].y),
                               (x[0].z + x[1].z) + (x[2].z + x[3].z), (x[0].w + x[1].w) + (x[2].w + x[3].w));
        };
        const float whole = room.whole[now][place];
        o = scaled(sum_of(0), whole);
        float4 e = *(const float4*)&deltas[place][at];
        add_scaled(e, -whole, sum_of(1));
        const float2* terms = room.before[now][place];
        const auto add = [&](float2 term, const float* delta) {
            add_scaled(o, term.x, *(const float4*)delta);
            add_scaled(e, -term.y, *(const float4*)delta);
        };
        if constexpr (WHOLE) {
            const float* before = &room.deltas[(block.number - 1) % DELTA_SLOTS][0][at];
#pragma unroll
            for (u32 j = 0; j < TILE; j += 2) {
                const float4 two = *(const float4*)(terms + j);
                add(make_float2(two.x, two.y), before + j * COLUMNS);
                add(make_float2(two.z, two.w), before + (j + 1) * COLUMNS);
            }
        } else {
#pragma unroll 1
            for (u32 j = 0; j < n_before; j++) add(terms[j], &room.deltas[(grid + j) / TILE % DELTA_SLOTS][(grid + j) % TILE][at]);
        }
        *(float4*)&deltas[place][at] = e;
    }
    others();
    if (thread < COLUMNS) {
        float e[TILE];
#pragma unroll
        for (u32 t = 0; t < TILE; t++) e[t] = is_row(t) ? deltas[t][thread] : 0.0f;
#pragma unroll
        for (u32 j = 0; j < TILE; j++) {
            if (!is_row(j)) continue;
            e[j] *= room.beta[now][j];
            __align__(16) float terms[TILE];
#pragma unroll
            for (u32 i = (j + 1) / 4 * 4; i < TILE; i += 4) *(float4*)(terms + i) = *(const float4*)&room.own_k[now][j][i];
#pragma unroll
            for (u32 i = j + 1; i < TILE; i++) e[i] = __fmaf_rn(-terms[i], e[j], e[i]);
        }
#pragma unroll
        for (u32 t = 0; t < TILE; t++)
            if (is_row(t)) deltas[t][thread] = e[t];
    }
    others();
    if (!has_row) return;
    const float* terms = room.own_q[now][place];
    if constexpr (WHOLE) {
#pragma unroll
        for (u32 j = 0; j < TILE; j += 4) {
            const float4 four = *(const float4*)(terms + j);
            const float term[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (u32 i = 0; i < 4; i++)
                if (j + i <= place) add_scaled(o, term[i], *(const float4*)&deltas[j + i][at]);
        }
    } else {
#pragma unroll 1
        for (u32 j = first; j <= place; j++) add_scaled(o, terms[j], *(const float4*)&deltas[j][at]);
    }
    const u64 to = ((u64)room.row[now][place] * p.value_heads + walk.h) * DIM + walk.column + at;
    *(float4*)(p.delta + to) = *(const float4*)&deltas[place][at];
    *(float4*)(p.out + to) = o;
}

__device__ __forceinline__ void copies_end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
__device__ __forceinline__ void copies_but_last_done() { asm volatile("cp.async.wait_group 1;" ::: "memory"); }

// Grid: (four blocks a value head; sequences).
extern "C" __global__ void __launch_bounds__(32 * RULE_WARPS, 1) walk_rule(const __grid_constant__ Recurrent p) {
    extern __shared__ __align__(16) u8 bytes[];
    if (blockIdx.y >= p.step.counts[2] || !is_walked(p, p.step.seqs[blockIdx.y])) return pdl_idle();
    const u32 warp = threadIdx.x >> 5, h = blockIdx.x / (DIM / COLUMNS), copier = warp - STATE_WARPS - ROW_WARPS;
    const Seq seq = p.step.seqs[blockIdx.y];
    const u32 first = seq.committed / TILE, end = seq.committed + seq.n_sure, last = (end - 1) / TILE;
    const u32 key_head = p.tiled ? h % p.key_heads : h / (p.value_heads / p.key_heads);
    const Walk walk = {p, *(RuleRoom*)bytes, seq, h, key_head, blockIdx.x % (DIM / COLUMNS) * COLUMNS, last};
    float* stored = p.state + ((u64)seq.slot * p.value_heads + h) * DIM * DIM;
    walk.load_kept(seq.stored_grid);
    // Each role has its own way through the turns, so that none has another's registers. All meet at the same barriers.
    if (warp < STATE_WARPS) {
        WalkState state = {walk, {}, {walk.column + warp % 2 * 16, warp / 2 * (DIM / 4)}};
        load_state(state.s, state.part, stored, DIM, DIM);
        pdl_wait();
        pdl_next();
        copies_done();
        __syncthreads();
#pragma unroll 1
        for (u32 b = seq.stored_grid / TILE; b + 1 < first; b++) state.add_kept(b);
        state.multiply(first);
        __syncthreads();
#pragma unroll 1
        for (u32 number = first; number <= last; number++) {
            if (number < last) {
                if (number > 0) state.add(number - 1);
                state.multiply(number + 1);
            }
            __syncthreads();
        }
        if (grid_of(end - 1) != seq.stored_grid) store_state(state.s, state.part, stored, DIM, DIM);
    } else if (copier >= COPY_WARPS) {
        pdl_wait();
        pdl_next();
        copies_done();
        __syncthreads();
        __syncthreads();
#pragma unroll 1
        for (u32 number = first; number <= last; number++) {
            const Block block = block_at(seq, number);
            if (number > 0 && block.first == 0 && block.end == TILE) walk_rows<true>(walk, block);
            else walk_rows<false>(walk, block);
            __syncthreads();
        }
    } else {
        pdl_wait();
        pdl_next();
        const WalkCopies copies(walk, copier);
        u32 rows = copies.find_rows(first), next = copies.find_rows(first + 1), after = copies.find_rows(first + 2);
        copies.load_vectors(first, rows);
        copies.load_rows(first, rows);
        copies_end_group();
        copies.load_vectors(first + 1, next);
        copies_end_group();
        copies_but_last_done();
        __syncthreads();
        if (first > 0 && copier == 0) walk.weigh_fold(first - 1);
        copies_done();
        __syncthreads();
        copies.load_vectors(first + 2, after);
        copies.load_rows(first + 1, next);
        copies_end_group();
        next = after, after = copies.find_rows(first + 3);
#pragma unroll 1
        for (u32 number = first; number <= last; number++) {
            const u32 further = copies.find_rows(number + 4);
            copies.load_vectors(number + 3, after);
            copies.load_rows(number + 2, next);
            copies_end_group();
            if (copier == 0) walk.weigh_fold(number);
            next = after, after = further;
            copies_but_last_done();
            __syncthreads();
        }
    }
}
