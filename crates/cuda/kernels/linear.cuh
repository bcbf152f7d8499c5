// y = x W' for up to 32 rows, any mix of weight formats in one launch.
//
// A unit is 2 x 128 outputs (two halves of one matrix, or the same half of a gate and an up matrix) over all columns; a stage
// is a unit's next 256 columns (128 of float weights), one piece of memory a half.
// Stages of all units in order are dealt to the blocks in equal shares of bytes: block b takes stages start[b]..start[b + 1],
// so it may begin inside a unit. The block that holds a unit's first stage gathers what later blocks summed of it, in
// order; they did so first of all, so it seldom waits.
// In a block stages pass through a ring of slots, which is filled with weights before the input is there (pdl_wait); 8 warps
// take 2 x 16 outputs each of a stage's first columns and 8 of its second, and meet at the unit's end.
// Shares are a function of shapes, formats and the number of blocks, never of rows: so are all orders of sums.
#pragma once
#include "linear_sums.cuh"

#define MAX_PARTS 6
#define MAX_TILES 4
#define MAX_BLOCKS 256
#define WARPS 16
#define THREADS (32 * WARPS)

enum Format : u32 {
    FORMAT_F16, FORMAT_Q4_0, FORMAT_Q4_1, FORMAT_Q5_0, FORMAT_Q5_1, FORMAT_Q8_0, FORMAT_IQ4_NL, FORMAT_MXFP4,
    FORMAT_Q2_K, FORMAT_Q3_K, FORMAT_Q4_K, FORMAT_Q5_K, FORMAT_Q6_K, FORMAT_IQ4_XS,
};

// COMMON: F16, Q8_0, Q4_K, Q5_K, Q6_K. Code that is not there is not fetched: a step of a Q4_K_M model is 6 % faster than with
// all formats in one kernel.
enum Formats { COMMON, ALL };

struct Part {
    u64 weights[2];  // packed tiles; equal unless paired
    u64 scales[2];   // f32 per output, or 0
    u64 bias[2];     // f32 per output, or 0
    u64 out;         // f32 [rows, n_out]
    u32 format;
    u32 n_out;
    u32 paired;        // 0: a unit is two halves of 128 outputs; 1: the same half of both matrices
    u32 n_stages;      // to a unit
    u32 n_records;     // along the columns
    u32 stage_records;
    u32 tile_bytes;
    u32 first_item;    // of all stages of all units of the launch
};

// GLU: of a pair. GLU_JOIN: of what `out` holds and this.
enum Epilogue : u32 { STORE, ADD, GLU, GLU_JOIN };

struct LinearParams {
    Part parts[MAX_PARTS];
    u64 image;     // of this group of rows
    u64 rest;
    u64 count;     // u32: rows of the step
    u64 gate;      // f32 [rows], or 0
    u64 partials;  // f32, 32 KiB a block, all bits set between launches
    u32 first_row;
    u32 n_parts;
    u32 n_slots, slot_bytes;
    u32 cells_at;  // where in a slot the input lies
    u32 n_cells;   // blocks of 128 columns
    u32 epilogue;
    u32 glu_kind;
    float glu_alpha, glu_limit;
    u32 start[MAX_BLOCKS + 1];
    u32 pad;
};

struct Segment {
    u32 part, unit, stage, end;
};

__device__ __forceinline__ Segment segment_at(const LinearParams& p, u32 item, u32 end) {
    u32 i = 0;
    while (i + 1 < p.n_parts && p.parts[i + 1].first_item <= item) i++;
    const u32 local = item - p.parts[i].first_item, n_stages = p.parts[i].n_stages, unit = local / n_stages, stage = local % n_stages;
    const u32 left = end - item;
    return {i, unit, stage, stage + left < n_stages ? stage + left : n_stages};
}

// Tiles of 16 outputs in a half.
__device__ __forceinline__ u32 half_tiles(const Part& part, u32 half) {
    const u32 tiles = (part.n_out + 15) / 16, before = half * 8;
    return tiles <= before ? 0 : tiles - before < 8 ? tiles - before : 8;
}

// The ring of slots that stages pass through. The warps take turns at copying: at the start of a stage one of them refills the slot
// that all have left `lag` stages ago. (The last to leave doing so at once needs an atomic's answer in every warp and stage, and a
// warp only for copying costs all others registers.)
template <int TILES>
struct Ring {
    const LinearParams& p;
    u8* slots;
    u32 full, empty;  // addresses: two barriers a slot
    u32 slot, parity;

    __device__ __forceinline__ u32 cells(const Part& part, u32 stage, u32& first) const {
        // Float weights may be several planes of all columns, one after the other, that meet the same input.
        if (part.format == FORMAT_F16) return first = stage % p.n_cells, 1;
        first = stage * 2;
        return p.n_cells - first < 2 ? 1 : 2;
    }
    __device__ __forceinline__ void copy_stage_weights(const Segment& s, u32 to_slot) const {
        const Part& part = p.parts[s.part];
        const u32 record = s.stage * part.stage_records, rest = part.n_records - record;
        const u32 n = rest < part.stage_records ? rest : part.stage_records;
        const u32 barrier = full + to_slot * 8, to = shared_address(slots) + to_slot * p.slot_bytes;
        u32 bytes[2];
        u64 from[2];
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            const u32 half = part.paired ? s.unit : 2 * s.unit + i, tiles = half_tiles(part, half);
            bytes[i] = n * tiles * part.tile_bytes;
            from[i] = part.weights[i] + ((u64)half * 8 * part.n_records + (u64)record * tiles) * part.tile_bytes;
        }
        u32 first, n_cells = cells(part, s.stage, first);
        copy_expect(barrier, bytes[0] + bytes[1] + n_cells * TILES * (CELL_BYTES + (part.format == FORMAT_F16 ? REST_BYTES : 0)));
        copy_weights(to, (const u8*)from[0], bytes[0], barrier);
        if (bytes[1]) copy_weights(to + part.stage_records * 8 * part.tile_bytes, (const u8*)from[1], bytes[1], barrier);
    }
    __device__ __forceinline__ void copy_stage_input(const Segment& s, u32 to_slot) const {
        const Part& part = p.parts[s.part];
        u32 first, n_cells = cells(part, s.stage, first);
        const u32 barrier = full + to_slot * 8, to = shared_address(slots) + to_slot * p.slot_bytes + p.cells_at;
        copy_input(to, (const u8*)p.image + (u64)first * TILES * CELL_BYTES, n_cells * TILES * CELL_BYTES, barrier);
        if (part.format == FORMAT_F16)
            copy_input(to + TILES * CELL_BYTES, (const u8*)p.rest + (u64)first * TILES * REST_BYTES, n_cells * TILES * REST_BYTES, barrier);
        copy_commit(barrier);
    }
    // By one warp. Weights do not wait for the step's earlier kernels; the input does. Slots are filled side by side where one lane
    // can start a copy: what a launch's parameters say is slow to read the first time, and must not be read slot after slot.
    __device__ __forceinline__ void fill(u32 item, u32 end) const {
        const u32 lane = threadIdx.x & 31, n = end - item < p.n_slots ? end - item : p.n_slots;
        if (COPY_LANES == 1) {
            const Segment s = lane < n ? segment_at(p, item + lane, end) : Segment{};
            if (lane < n) copy_stage_weights(s, lane);
            pdl_wait();
            if (lane < n) copy_stage_input(s, lane);
        } else {
            for (u32 i = 0; i < n; i++) copy_stage_weights(segment_at(p, item + i, end), i);
            pdl_wait();
            for (u32 i = 0; i < n; i++) copy_stage_input(segment_at(p, item + i, end), i);
        }
    }
    __device__ __forceinline__ const u8* wait() const {
        barrier_wait(full + slot * 8, parity);
        return slots + slot * p.slot_bytes;
    }
    __device__ __forceinline__ void leave() {
        __syncwarp();
        if ((threadIdx.x & 31) == 0) barrier_arrive(empty + slot * 8);
        if (++slot == p.n_slots) slot = 0, parity ^= 1;
    }
    // Before stage `item` of first..end.
    __device__ __forceinline__ void refill(u32 first, u32 item, u32 end) const {
        const u32 lag = p.n_slots > 3 ? 2 : 1, done = item - first;
        if (done < lag || done % WARPS != threadIdx.x >> 5 || item - lag + p.n_slots >= end) return;
        const bool wrapped = slot < lag;
        const u32 left = wrapped ? slot + p.n_slots - lag : slot - lag;
        barrier_wait(empty + left * 8, parity ^ (wrapped ? 1 : 0));
        if ((threadIdx.x & 31) < COPY_LANES) {
            const Segment s = segment_at(p, item - lag + p.n_slots, end);
            copy_stage_weights(s, left);
            copy_stage_input(s, left);
        }
        __syncwarp();
    }
};

// What a warp reads of a stage.
struct View {
    u32 at[2], stride[2];  // of the two halves of outputs: its tile of a slot's first record, and from record to record
    bool busy;
    __device__ __forceinline__ View(const Part& part, const Segment& s, u32 warp) {
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            // A warp without a tile reads another's, in bounds, and its sums are not stored.
            const u32 tiles = half_tiles(part, part.paired ? s.unit : 2 * s.unit + i), place = warp < tiles ? warp : 0;
            stride[i] = tiles * part.tile_bytes;
            at[i] = (i * part.stage_records * 8 + place) * part.tile_bytes;
            busy = (i && busy) || warp < tiles;
        }
    }
    __device__ __forceinline__ const u8* tile(const u8* slot, int i, u32 record) const { return slot + at[i] + record * stride[i]; }
};

// 128 columns of a format that few files are mostly made of.
template <int TILES>
__device__ __forceinline__ void sum_rare(Sums<TILES>& acc, u32 format, const u8* const (&tile)[2], int half, const u8* cell) {
    switch (format) {
    case FORMAT_Q2_K: sum_scaled<Q2K, TILES>(acc, tile, half, cell); break;
    case FORMAT_Q3_K: sum_scaled<Q3K, TILES>(acc, tile, half, cell); break;
    default:
#pragma unroll
        for (int i = 0; i < 2; i++) sum_blocks<Iq4Xs, TILES>(acc, tile, 2 * half + i, cell, i);
    }
}
// ... and 64 columns.
template <int TILES>
__device__ __forceinline__ void sum_rare_64(Sums<TILES>& acc, u32 format, const u8* const (&tile)[2], const u8* cell, int place) {
    switch (format) {
    case FORMAT_Q4_0: sum_blocks<Q4_0, TILES>(acc, tile, 0, cell, place); break;
    case FORMAT_Q4_1: sum_blocks<Q4_1, TILES>(acc, tile, 0, cell, place); break;
    case FORMAT_Q5_0: sum_blocks<Q5_0, TILES>(acc, tile, 0, cell, place); break;
    case FORMAT_Q5_1: sum_blocks<Q5_1, TILES>(acc, tile, 0, cell, place); break;
    case FORMAT_IQ4_NL: sum_blocks<Iq4Nl, TILES>(acc, tile, 0, cell, place); break;
    default: sum_blocks<Mxfp4, TILES>(acc, tile, 0, cell, place); break;
    }
}

// Adds what this warp reads of a stage: of its first or second (`half`) columns.
template <Formats FORMATS, int TILES>
__device__ __forceinline__ void sum_stage(Sums<TILES>& acc, const LinearParams& p, u32 format, const View& view, const u8* slot, u32 n_records,
                                          int half) {
    const u8* cell = slot + p.cells_at;
    if (format == FORMAT_F16) {
        if ((u32)half >= n_records) return;
        const u8* const tile[2] = {view.tile(slot, 0, half), view.tile(slot, 1, half)};
        return sum_floats<TILES>(acc, tile, cell, cell + TILES * CELL_BYTES, half);
    }
    cell += half * TILES * CELL_BYTES;
    if (format >= FORMAT_Q2_K) {
        const u8* const tile[2] = {view.tile(slot, 0, 0), view.tile(slot, 1, 0)};
        if (format == FORMAT_Q4_K) {
            sum_grouped<Q4K, TILES>(acc, tile, half, cell);
        } else if (format == FORMAT_Q5_K) {
            sum_grouped<Q5K, TILES>(acc, tile, half, cell);
        } else if (format == FORMAT_Q6_K) {
#pragma unroll
            for (int i = 0; i < 2; i++) sum_blocks<Q6K, TILES>(acc, tile, 2 * half + i, cell, i);
        } else if constexpr (FORMATS == ALL) {
            sum_rare<TILES>(acc, format, tile, half, cell);
        }
        return;
    }
    // Records of 64 columns, up to 4 to a stage: this half's two, as far as there are.
#pragma unroll 1
    for (u32 i = 0; i < 2 && 2 * half + i < n_records; i++) {
        const u8* const tile[2] = {view.tile(slot, 0, 2 * half + i), view.tile(slot, 1, 2 * half + i)};
        if (format == FORMAT_Q8_0) {
            sum_blocks<Q8_0, TILES>(acc, tile, 0, cell, i);
        } else if constexpr (FORMATS == ALL) {
            sum_rare_64<TILES>(acc, format, tile, cell, i);
        }
    }
}

__device__ __forceinline__ float scaled_by(u64 scales, u64 bias, u32 output, float v) {
    if (scales) v *= ((const float*)scales)[output];
    if (bias) v += ((const float*)bias)[output];
    return v;
}

// Stores a warp's 16 outputs of every row there is.
template <int TILES>
__device__ __forceinline__ void finish(const LinearParams& p, const Part& part, const Segment& s, u32 warp, u32 half, u32 count, const float (&v)[TILES][4]) {
    const Lane l;
    const u32 output = (2 * s.unit + half) * 128 + warp * 16 + l.g, row = p.first_row + 2 * l.t;
    float* out = (float*)part.out + (u64)row * part.n_out + output;
    float before[TILES][4];
    if (p.epilogue != STORE) {
#pragma unroll
        for (int n = 0; n < TILES; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (row + n * 8 + (i & 1) < count && output + (i >> 1) * 8 < part.n_out)
                    before[n][i] = out[(u64)(n * 8 + (i & 1)) * part.n_out + (i >> 1) * 8];
    }
#pragma unroll
    for (int n = 0; n < TILES; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const u32 of_row = row + n * 8 + (i & 1), of_output = output + (i >> 1) * 8;
            if (of_row >= count || of_output >= part.n_out) continue;
            float y = scaled_by(part.scales[0], part.bias[0], of_output, v[n][i]);
            if (p.epilogue == ADD) y = before[n][i] + (p.gate ? sigmoid(((const float*)p.gate)[of_row]) * y : y);
            if (p.epilogue == GLU_JOIN) y = glu(p.glu_kind, p.glu_alpha, p.glu_limit, before[n][i], y);
            out[(u64)(n * 8 + (i & 1)) * part.n_out + (i >> 1) * 8] = y;
        }
}
// The same of a gate and an up tile.
template <int TILES>
__device__ __forceinline__ void finish_pair(const LinearParams& p, const Part& part, const Segment& s, u32 warp, u32 count, const float (&gate)[TILES][4],
                                            const float4* up) {
    const Lane l;
#pragma unroll
    for (int n = 0; n < TILES; n++) {
        const float4 from = up[n * 32];
        const float u[4] = {from.x, from.y, from.z, from.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const u32 row = p.first_row + n * 8 + 2 * l.t + (i & 1), output = s.unit * 128 + warp * 16 + l.g + (i >> 1) * 8;
            if (row >= count || output >= part.n_out) continue;
            ((float*)part.out)[(u64)row * part.n_out + output] =
                glu(p.glu_kind, p.glu_alpha, p.glu_limit, scaled_by(part.scales[0], part.bias[0], output, gate[n][i]),
                    scaled_by(part.scales[1], part.bias[1], output, u[i]));
        }
    }
}

__device__ __forceinline__ void pair_barrier(u32 pair) { asm volatile("bar.sync %0, 64;" ::"r"(pair + 1) : "memory"); }

template <int TILES>
__device__ __forceinline__ float4* partial_of(const LinearParams& p, u32 block, u32 warp) {
    return (float4*)p.partials + ((u64)block * WARPS + warp) * (MAX_TILES * 32) + (threadIdx.x & 31);
}

// A place of the partial sums that holds nothing: a NaN that no arithmetic makes.
#define NOTHING 0xffffffffu
__device__ __forceinline__ bool arrived(const float4& v) {
    return __float_as_uint(v.x) != NOTHING && __float_as_uint(v.y) != NOTHING && __float_as_uint(v.z) != NOTHING && __float_as_uint(v.w) != NOTHING;
}

// Adds what the blocks after this one summed of its last unit, in their order, and leaves nothing in its place. The sums are their
// own message: a flag beside them would cost a second trip to memory and a fence.
template <int TILES>
__device__ __forceinline__ void gather(const LinearParams& p, u32 block, u32 unit_end, u32 warp, float (&sum)[TILES][4]) {
    const float nothing = __uint_as_float(NOTHING);
    constexpr u32 AT_ONCE = TILES == 1 ? 4 : TILES == 2 ? 2 : 1;
    for (u32 first = block + 1; first < gridDim.x && p.start[first] < unit_end; first += AT_ONCE) {
        float4 theirs[AT_ONCE][TILES];
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++) {
            // A block without stages has nothing to say.
            const u32 other = first + i;
            const bool there = other < gridDim.x && p.start[other] < unit_end && p.start[other] < p.start[other + 1];
#pragma unroll
            for (int n = 0; n < TILES; n++)
                if (there) theirs[i][n] = load_fresh(partial_of<TILES>(p, other, warp) + n * 32);
        }
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++) {
            const u32 other = first + i;
            if (other >= gridDim.x || p.start[other] >= unit_end || p.start[other] == p.start[other + 1]) continue;
#pragma unroll
            for (int n = 0; n < TILES; n++) {
                float4* from = partial_of<TILES>(p, other, warp) + n * 32;
                while (!arrived(theirs[i][n])) theirs[i][n] = load_fresh(from);
                store_fresh(from, make_float4(nothing, nothing, nothing, nothing));
                sum[n][0] += theirs[i][n].x, sum[n][1] += theirs[i][n].y, sum[n][2] += theirs[i][n].z, sum[n][3] += theirs[i][n].w;
            }
        }
    }
}

template <Formats FORMATS, int TILES>
__device__ __forceinline__ void linear(const LinearParams& p) {
    extern __shared__ __align__(128) u8 shared[];
    // Barriers, then where the two halves of the columns meet, then the ring.
    const u32 full = shared_address(shared), empty = full + 64;
    float4* meeting = (float4*)(shared + 128);
    Ring<TILES> ring = {p, shared + 128 + 8 * 2 * TILES * 512, full, empty, 0, 0};
    const u32 block = blockIdx.x, warp = threadIdx.x >> 5;

    if (threadIdx.x == 0) {
        for (u32 i = 0; i < p.n_slots; i++) {
            barrier_init(full + i * 8, COPY_LANES);
            barrier_init(empty + i * 8, WARPS);
        }
        barrier_init_visible();
    }
    __syncthreads();
    pdl_next();

    u32 item = p.start[block];
    const u32 end = p.start[block + 1];
    if (warp == 0) ring.fill(item, end);
    pdl_wait();
    const u32 count = *(const u32*)p.count;
    const int half = warp >> 3;
    const u32 place = warp & 7;
    while (item < end) {
        const Segment s = segment_at(p, item, end);
        const Part& part = p.parts[s.part];
        Sums<TILES> acc;
        const View view(part, s, place);
        const u32 format = part.format, stage_records = part.stage_records, stage_end = item + s.end - s.stage;
        u32 n_records = part.n_records - s.stage * stage_records;
#pragma unroll 1
        for (; item < stage_end; item++, n_records -= stage_records) {
            ring.refill(p.start[block], item, end);
            const u8* slot = ring.wait();
            if (view.busy) sum_stage<FORMATS, TILES>(acc, p, format, view, slot, n_records, half);
            ring.leave();
        }

        // Each warp of a pair keeps one of the two tiles and gives the other's sums away.
        float4* seats = meeting + place * (2 * TILES * 32) + (threadIdx.x & 31);
        float mine[TILES][4];
#pragma unroll
        for (int n = 0; n < TILES; n++) {
            const float(&give)[4] = acc.v[1][n];
            const float(&keep)[4] = acc.v[0][n];
            if (half == 0) seats[(TILES + n) * 32] = make_float4(give[0], give[1], give[2], give[3]);
            else seats[n * 32] = make_float4(keep[0], keep[1], keep[2], keep[3]);
        }
        pair_barrier(place);
#pragma unroll
        for (int n = 0; n < TILES; n++) {
            const float4 v = seats[(half * TILES + n) * 32];
            // First columns, then second.
            const float one[4] = {half ? v.x : acc.v[0][n][0], half ? v.y : acc.v[0][n][1], half ? v.z : acc.v[0][n][2], half ? v.w : acc.v[0][n][3]};
            const float two[4] = {half ? acc.v[1][n][0] : v.x, half ? acc.v[1][n][1] : v.y, half ? acc.v[1][n][2] : v.z, half ? acc.v[1][n][3] : v.w};
#pragma unroll
            for (int i = 0; i < 4; i++) mine[n][i] = one[i] + two[i];
        }
        if (s.stage > 0) {
            float4* to = partial_of<TILES>(p, block, warp);
#pragma unroll
            for (int n = 0; n < TILES; n++) store_fresh(to + n * 32, make_float4(mine[n][0], mine[n][1], mine[n][2], mine[n][3]));
        } else {
            gather<TILES>(p, block, part.first_item + (s.unit + 1) * part.n_stages, warp, mine);
            if (part.paired) {
                // The up tile goes to the gate's warp.
                if (half == 1) {
#pragma unroll
                    for (int n = 0; n < TILES; n++) seats[(TILES + n) * 32] = make_float4(mine[n][0], mine[n][1], mine[n][2], mine[n][3]);
                }
                pair_barrier(place);
                if (half == 0) finish_pair<TILES>(p, part, s, place, count, mine, seats + TILES * 32);
            } else {
                finish<TILES>(p, part, s, place, half, count, mine);
            }
        }
        // Until both have read their seats.
        pair_barrier(place);
    }
}
