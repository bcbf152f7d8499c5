// The end of a unit: sums of all columns become outputs, and where the next op reads them, their image.
//
// A norm between two linear ops is made by both: the first writes the image of its outputs times the norm's weights, and of each 128
// of them the sum of their squares; the second's ends divide a row's sums by the root of their mean.
//
// A warp's sums lie as tensor cores left them, two outputs of two rows in a lane. They change places in shared memory, and are then
// taken by rows, four outputs a lane: one short loop for any number of rows, whole lines of memory, and what an image is made of.
// (Each lane finishing what it had was 5000 instructions with 32 rows, and its reads 32 bytes apart.)
#pragma once
#include "linear_gather.cuh"
#include "linear_ring.cuh"
#include "linear_sums.cuh"

// In a chain all else waits for an end, and its code is met several times.
#define PARTS_AT_ONCE (LINEAR_CHAINED ? 4 : 1)
// What an op before this one made. (No function: other machine code comes of one, with two registers more and spills for 64 rows.)
#if LINEAR_CHAINED
#define MADE(from, i) load_fresh((from) + (i))
#define FIRST_FACTOR(p) (p).first_factor
#else
#define MADE(from, i) (from)[i]
#define FIRST_FACTOR(p) 0u
#endif
// By the warps that multiply: in a chain there are others beside them.
__device__ __forceinline__ void meet() {
#if LINEAR_CHAINED
    asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory");
#else
    __syncthreads();
#endif
}

// With up to so many tiles of rows sums are gathered by warps, and only some warps wait for the launch ahead.
#define FEW_TILES 2
// Of others' sums a warp gathers so many cells at a time: with 16 rows two, where it has a second slot for them.
#if HAS_WGMMA
#define HAS_OTHER_SLOT 1
#define GATHERED_CELLS(TILES) TILES
#else
#define HAS_OTHER_SLOT 0
#define GATHERED_CELLS(TILES) 1
#endif
#define ROW_BYTES 1040u  // 256 outputs; what is past them keeps rows in different banks

// Shared memory beside the rings, which begin where a line of 128 bytes does: 16 bytes off, stages took 13 % longer.
struct __align__(128) Room {
    u64 inputs_full[MAX_INPUTS], inputs_empty[MAX_INPUTS];
    float scale[UNIT_OUTPUTS], bias[UNIT_OUTPUTS], weight[UNIT_OUTPUTS];
    float factor[8 * MAX_TILES];  // of each row's sums (a multiple of the warps)
    u32 n_rows;                   // that there are
};

// Where rows' sums change places: two rows in each warp's slot for weights that nobody reads or fills at a segment's end. (A room
// of its own left inputs four slots with 32 rows; with six a bare kernel took 78 us a layer instead of 83, this one no less.)
// (Written as row % NEAR / 2, NVRTC 13.0 took odd rows undivided.)
struct Rows {
    u8* first;
    u32 stride;
    int to_other;  // slot of a warp, where there is one
    __device__ __forceinline__ float* at(u32 row, u32 output) const { return (float*)(first + (row % OwnRows::NEAR >> 1) * stride + (row & 1) * ROW_BYTES) + output; }
    // What was gathered, two cells in a slot: in the other slots, as sums are gathered when no stages are left to read those; else where 16 rows leave room.
    __device__ __forceinline__ u8* gathered(u32 cell) const {
        return first + (HAS_OTHER_SLOT ? to_other : WARPS / 2 * (int)stride) + (cell >> 1) * stride + (cell & 1) * GatheredByWarps<1>::BYTES;
    }
};

// What the unit's sums are multiplied by and what is added, on its way to shared memory: asked for long before it is needed, as it
// comes from memory. Every lane waits for its own copies and the block meets before it reads them.
__device__ __forceinline__ void ask_for_scales(const LinearParams& p, const Part& part, u32 unit, Room& room) {
    const u32 i = threadIdx.x % UNIT_OUTPUTS, half = i / 128, which = part.paired ? half : 0;
    const u32 output = (part.paired ? unit : 2 * unit + half) * 128 + i % 128, o = output < part.n_out ? output : 0;
    const bool is_scale = threadIdx.x < UNIT_OUTPUTS;
    const u64 from = is_scale ? part.scales[which] : part.bias[which];
    float* to = is_scale ? &room.scale[i] : &room.bias[i];
    if (from) copy_4(shared_address(to), (const float*)from + o);
    else *to = 0.0f;
    if (is_scale && p.next_weight) copy_4(shared_address(&room.weight[i]), (const float*)p.next_weight + o);
}

// Four numbers of a row of `width`, from `first` on.
struct Four {
    float* at;
    u32 n;  // of them that there are
    __device__ __forceinline__ Four(u64 rows, u32 width, u32 row, u32 first)
        : at((float*)rows + (u64)row * width + first), n(first >= width ? 0 : width - first < 4 ? width - first : 4) {}
    __device__ __forceinline__ bool is_whole() const { return n == 4 && ((u64)at & 15) == 0; }
    __device__ __forceinline__ void load(float (&x)[4]) const {
        if (is_whole()) {
            // By warps that need not have waited for the launch ahead themselves.
            const float4 v = load_fresh((const float4*)at);
            x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
        } else {
#pragma unroll
            for (u32 i = 0; i < 4; i++) x[i] = i < n ? load_fresh(at + i) : 0.0f;
        }
    }
    __device__ __forceinline__ void store(const float (&x)[4]) const {
        if (is_whole()) {
            *(float4*)at = make_float4(x[0], x[1], x[2], x[3]);
        } else {
#pragma unroll
            for (u32 i = 0; i < 4; i++)
                if (i < n) at[i] = x[i];
        }
    }
};

// Four of the unit's outputs, of their sums.
__device__ __forceinline__ void scaled(float4 sum, const Room& room, u32 output, float by, float (&y)[4]) {
    sum.x *= by, sum.y *= by, sum.z *= by, sum.w *= by;
    const float4 scale = *(const float4*)&room.scale[output], bias = *(const float4*)&room.bias[output];
    y[0] = fmaf(sum.x, scale.x, bias.x), y[1] = fmaf(sum.y, scale.y, bias.y), y[2] = fmaf(sum.z, scale.z, bias.z), y[3] = fmaf(sum.w, scale.w, bias.w);
}

// Rows of the launch's group that there are. Known before the launch ahead has ended.
template <int TILES>
__device__ __forceinline__ u32 rows_of_group(const LinearParams& p) {
    const u32 count = *(const u32*)p.count, there = count <= p.first_row ? 0 : count - p.first_row;
    return there < 8 * TILES ? there : 8 * TILES;
}

// The first row is the last warp's, as the first warp begins with the inputs.
__device__ __forceinline__ u32 row_of_warp(u32 warp) { return WARPS - 1 - warp; }

// One over the size of a row, by a warp.
__device__ __forceinline__ float row_factor(const LinearParams& p, u32 row, u32 n_rows) {
    const u32 lane = threadIdx.x & 31;
    const float* from = (const float*)p.squares + (u64)(p.first_row + (row < n_rows ? row : 0)) * p.n_cells;
    float squares[4];
#pragma unroll
    for (u32 k = 0; k < 4; k++) squares[k] = k * 32 + lane < p.n_cells ? MADE(from, k * 32 + lane) : 0.0f;
#pragma unroll 1
    for (u32 i = 128; i < p.n_cells; i += 32) squares[0] += i + lane < p.n_cells ? MADE(from, i + lane) : 0.0f;
    return rsqrtf(__fmaf_rn(warp_sum(squares[0] + squares[1] + squares[2] + squares[3]), p.per_column, p.eps));
}

// What each row's sums are multiplied by, where its norm did not divide it: a warp's rows, while the first input is on its way. (Made at
// the ends of units it held them up by a trip to memory, and so did asking for the number of rows there.) No branch that could look
// different from lane to lane: the stages that follow would be longer for it.
template <int TILES>
__device__ __forceinline__ void make_factors(const LinearParams& p, Room& room, u32 warp, u32 n_rows) {
#pragma unroll
    for (u32 first = 0; first < 8 * TILES; first += WARPS) {
        const u32 row = first + row_of_warp(warp);
        float factor = 1.0f;
        if (p.squares) factor = row_factor(p, row, n_rows);
        if ((threadIdx.x & 31) == 0 && p.squares && row < n_rows) room.factor[row] = factor;
    }
}

// By a warp: 128 outputs of a row of the group become what the next op reads.
template <int TILES>
__device__ __forceinline__ void make_next(const LinearParams& p, u32 n_out, u32 row, u32 cell, const float4& weight, float (&x)[4]) {
    float squares = 0.0f;
    if (p.next_weight) {
        if (p.next_tap) Four(p.next_tap, n_out, p.first_row + row, cell * 128 + (threadIdx.x & 31) * 4).store(x);
#pragma unroll
        for (u32 k = 0; k < 4; k++) squares = __fmaf_rn(x[k], x[k], squares);
        x[0] *= weight.x, x[1] *= weight.y, x[2] *= weight.z, x[3] *= weight.w;
    }
    const int exponent = image_exponent(x);
    // Shuffles, between which the image can be made.
    if (p.next_weight) squares = warp_sum(squares);
    // Images are laid out in groups of as many rows as a launch has: what the shape would say of the group is known here.
    const u32 tile = cell * TILES + row / 8;
    image_store_in((u8*)p.next_image + tile * CELL_BYTES, (u8*)p.next_image + p.next_cells * TILES * CELL_BYTES + tile * REST_BYTES, row % 8, x, exponent);
    if (p.next_weight && (threadIdx.x & 31) == 0) ((float*)p.next_squares)[(p.first_row + row) * p.next_cells + cell] = squares;
#if LINEAR_CHAINED
    // With all that the warp has stored.
    __syncwarp();
    if (p.ready && (threadIdx.x & 31) == 0) asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"((u32*)p.ready + cell) : "memory");
#endif
}

// 128 outputs of a row of the group, or as many pairs: gates, whose ups lie 128 further. A warp's, four a lane.
struct Item {
    u32 row, in_unit, cell;  // in_unit: of this lane's four
    __device__ __forceinline__ Item(const Segment& s, bool is_pair, u32 row, u32 half) : row(row) {
        in_unit = half * 128 + (threadIdx.x & 31) * 4, cell = is_pair ? s.unit : 2 * s.unit + half;
    }
    __device__ __forceinline__ Four out(const LinearParams& p, const Part& part) const {
        return Four(part.out, part.n_out, p.first_row + row, cell * 128 + (threadIdx.x & 31) * 4);
    }
    // What it is added to or multiplied with: asked for some time before it is needed.
    __device__ __forceinline__ void load_before(const LinearParams& p, const Part& part, float (&before)[4]) const {
        if (p.epilogue == ADD || p.epilogue == GLU_JOIN) out(p, part).load(before);
    }
};

// All sums of an item become outputs, and the next op's input.
template <int TILES>
__device__ __forceinline__ void end_item(const LinearParams& p, const Part& part, const Room& room, const Item& item, float4 sum, float4 up_sum, const float (&before)[4]) {
    const Four out = item.out(p, part);
    const bool is_pair = part.paired;
    const float by = room.factor[FIRST_FACTOR(p) + item.row];
    float x[4];
    scaled(sum, room, item.in_unit, by, x);
    if (p.epilogue == ADD) {
        const float gate = p.gate ? sigmoid(load_fresh((const float*)p.gate + p.first_row + item.row)) : 1.0f;
#pragma unroll
        for (int k = 0; k < 4; k++) x[k] = before[k] + (p.gate ? gate * x[k] : x[k]);
    } else if (p.epilogue != STORE) {
        float up[4] = {x[0], x[1], x[2], x[3]};
        if (is_pair) scaled(up_sum, room, 128 + item.in_unit, by, up);
#pragma unroll
        for (int k = 0; k < 4; k++) x[k] = glu(p.glu_kind, p.glu_alpha, p.glu_limit, is_pair ? x[k] : before[k], up[k]);
    }
    out.store(x);
    if (!p.next_image || item.cell >= p.next_cells) return;
#pragma unroll
    for (int k = 0; k < 4; k++) x[k] = k < out.n ? x[k] : 0.0f;
    make_next<TILES>(p, part.n_out, item.row, item.cell, *(const float4*)&room.weight[item.in_unit], x);
}

// Of the block's own rows, whose sums `keep` brings to shared memory, once others' are on their way.
template <int TILES, class Keep>
__device__ __forceinline__ void end_rows(const LinearParams& p, const Segment& s, const Room& room, const Rows& rows, const OwnRows& own, const Keep& keep) {
    const Part& part = p.parts[s.part];
    const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, half = part.paired ? 0 : warp % 2;
    GatheredByWarps<GATHERED_CELLS(TILES)> gathered(s.n_parts, part.paired ? WARPS : WARPS / 2);
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f), up_sum = sum;
    u32 at = 0, first_part = 0;
    // Nearly always once.
#pragma unroll 1
    while (true) {
        gathered.ask(p, s, own, at, first_part);
        if (at + first_part == 0) keep();
        const u32 n_rows = min(own.n - at, gathered.rows_at_once), n_parts = min(s.n_parts - first_part, WARPS);
        const bool is_whole = first_part + n_parts == s.n_parts;
        const u32 nth = part.paired ? warp : warp / 2;
        float before[4] = {};
        if (nth < n_rows) Item(s, part.paired, own.first + at + nth, half).load_before(p, part, before);
        gathered.put(rows);
        meet();
        if (nth < n_rows) {
            const Item item(s, part.paired, own.first + at + nth, half);
#pragma unroll PARTS_AT_ONCE
            for (u32 i = 0; i < n_parts; i++) {
                const float4* from = (const float4*)rows.gathered((nth << gathered.log_parts) + i) + half * 32 + lane;
                if (first_part + i == s.own) from = (const float4*)rows.at(item.row, item.in_unit);
                // Of an item that is no pair the second is nothing.
                const float4 v = from[0], u = from[part.paired ? 32 : 0];
                sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
                up_sum.x += u.x, up_sum.y += u.y, up_sum.z += u.z, up_sum.w += u.w;
            }
            if (is_whole) {
                end_item<TILES>(p, part, room, item, sum, up_sum, before);
                sum = up_sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            }
        }
        first_part = is_whole ? 0 : first_part + n_parts, at = is_whole ? at + gathered.rows_at_once : at;
        if (at >= own.n) return;
        // The places are the next ones'.
        meet();
    }
}

// The same with more rows, items in turn by the warps.
template <int TILES>
__device__ __forceinline__ void end_rows_by_lane(const LinearParams& p, const Segment& s, const Room& room, const Rows& rows, const OwnRows& own) {
    const Part& part = p.parts[s.part];
    const bool is_pair = part.paired;
    const u32 n_items = is_pair ? own.n : 2 * own.n;
    const auto item_at = [&](u32 i) { return Item(s, is_pair, own.first + (is_pair ? i : i / 2), is_pair ? 0 : i % 2); };
    const auto skip = [&](const Item& item) { return own.is_near(item.row) ? (u32)s.own : 0xffffffffu; };
    // Zeros: what only some paths set has to be kept, for all the compiler knows, from one segment's end to the next, and its 36 registers
    // were missing in the stages.
    GatheredByLane gathered = {};
    float asked[4] = {};
    const auto ask = [&](const Item& item) {
        item.load_before(p, part, asked);
        gathered.ask(s, skip(item), partial_of(p, s.first_place, item.row, item.in_unit), is_pair, 0);
    };
    if (threadIdx.x >> 5 < n_items) ask(item_at(threadIdx.x >> 5));
    meet();
#pragma unroll 1
    for (u32 i = threadIdx.x >> 5; i < n_items; i += WARPS) {
        const Item item = item_at(i);
        float4 sum = *(const float4*)rows.at(item.row, item.in_unit), up_sum = *(const float4*)rows.at(item.row, is_pair ? 128 + item.in_unit : item.in_unit);
        gathered.add_to(s, skip(item), sum, up_sum, partial_of(p, s.first_place, item.row, item.in_unit), is_pair);
        const float before[4] = {asked[0], asked[1], asked[2], asked[3]};
        // What the next one needs comes while this one is made.
        if (i + WARPS < n_items) ask(item_at(i + WARPS));
        end_item<TILES>(p, part, room, item, sum, up_sum, before);
    }
}

// By all warps of a block: the end of a segment.
template <int TILES>
__device__ __forceinline__ void finish(const LinearParams& p, const Segment& s, const Room& room, Rows rows, const Sums<TILES>& sums) {
    const Lane l;
    const u32 warp = threadIdx.x >> 5, n_rows = room.n_rows;
    const OwnRows own(s, n_rows);
    // First what others wait for.
    if (s.n > 0 && (s.n_parts > 1 || n_rows > OwnRows::NEAR)) leave_sums<TILES>(p, s, own, n_rows, sums);
    if (own.n == 0) return;
    const auto keep = [&] {
        // All but the next segment's first stage, unless the scales are among its copies. Weights of a chain are not copied by lanes, nor do rows
        // take their places.
        if (N_SLOTS(p) == 2 && s.n > 1 && !LINEAR_CHAINED) copies_wait<1>();
        else copies_wait<0>();
        if (!LINEAR_CHAINED) meet();
        u8* const to = (u8*)rows.at(2 * l.t, warp * 16 + l.g);
#pragma unroll
        for (int n = 0; n < TILES; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                if (!own.is_near(n * 8 + 2 * l.t + i)) continue;
                float* const at = (float*)(to + n * 8 % OwnRows::NEAR / 2 * rows.stride + i * ROW_BYTES);
                at[0] = sums[n][i], at[8] = sums[n][i + 2];
            }
    };
    if constexpr (TILES <= FEW_TILES) {
        end_rows<TILES>(p, s, room, rows, own, keep);
    } else {
        keep();
        end_rows_by_lane<TILES>(p, s, room, rows, own);
    }
    // The rows' places are the next stage's.
    meet();
}
