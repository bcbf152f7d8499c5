// Sums of a unit that several blocks made parts of.
//
// Blocks that have nothing to do after a unit share out its rows; each gathers what all summed of its own, in their order. (One block
// for all rows of a unit took 12 us with 32 rows, while the others waited.) The sums are their own message: a flag beside them would
// cost a second trip to memory and a fence.
#pragma once
#include "linear_params.cuh"
#include "linear_ptx.cuh"
#include "linear_sums.cuh"

// A place of the partial sums that holds nothing: a NaN that no arithmetic makes.
#define NOTHING 0xffffffffu
__device__ __forceinline__ bool arrived(const float4& v) {
    return __float_as_uint(v.x) != NOTHING && __float_as_uint(v.y) != NOTHING && __float_as_uint(v.z) != NOTHING && __float_as_uint(v.w) != NOTHING;
}

// Of a row of the group, the unit's outputs from `output` on.
__device__ __forceinline__ float* partial_of(const LinearParams& p, u32 place, u32 row, u32 output) {
    return (float*)p.partials + ((u64)place * 8 * MAX_TILES + row) * UNIT_OUTPUTS + output;
}

// Rows of a group that a block ends.
struct OwnRows {
    // That change places in shared memory; more of them do so in the block's place for sums. (Two passes over shared memory kept a
    // warp's sums in registers all the while, and the compiler kept them in memory during the stages.)
    static constexpr u32 NEAR = 2 * WARPS;
    u32 first, n;
    __device__ __forceinline__ OwnRows(const Segment& s, u32 n_rows) {
        const u32 each = LINEAR_CHAINED && n_rows <= s.n_owners ? 1 : (n_rows + s.n_owners - 1) / s.n_owners;
        first = s.owner * each, n = s.owner >= s.n_owners || first >= n_rows ? 0 : n_rows - first < each ? n_rows - first : each;
    }
    __device__ __forceinline__ bool is_near(u32 row) const { return row - first < (n < NEAR ? n : NEAR); }
};

// Leaves sums of the other rows for those who end them: straight from where the products left them, 32 bytes of a row together.
template <int TILES>
__device__ __forceinline__ void leave_sums(const LinearParams& p, const Segment& s, const OwnRows& own, u32 n_rows, const Sums<TILES>& sums) {
    const Lane l;
    float* const to = partial_of(p, s.first_place + s.own, 2 * l.t, (threadIdx.x >> 5) * 16 + l.g);
#pragma unroll
    for (int n = 0; n < TILES; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const u32 row = n * 8 + 2 * l.t + i;
            if (row >= n_rows || own.is_near(row)) continue;
            store_fresh(to + (n * 8 + i) * UNIT_OUTPUTS, sums[n][i]), store_fresh(to + (n * 8 + i) * UNIT_OUTPUTS + 8, sums[n][i + 2]);
        }
}

// With up to 16 rows: what the unit's segments summed of a few rows, brought to shared memory by all warps. A cell is one segment's sums of
// one row, four outputs a lane and four of those 128 on; each warp has CELLS of them at a time, so that all of 16 rows come in one trip to memory.
// (Lanes that ask for eight segments' sums each, as with more rows, are 680 more instructions, and what runs once in a launch costs what fetching
// it costs: 0.8 us.)
template <u32 CELLS>
struct GatheredByWarps {
    // Of a cell: two halves of a row's outputs.
    static constexpr u32 BYTES = UNIT_OUTPUTS * 4;
    u32 log_parts;      // segments at once, as a power of two
    u32 rows_at_once;
    float4* from[CELLS];  // what was asked for, or null
    float4 first[CELLS], second[CELLS];

    // `most` rows at once: a warp each, or two.
    __device__ __forceinline__ GatheredByWarps(u32 n_parts, u32 most) {
        log_parts = min(32 - __clz(n_parts - 1), 4);
        rows_at_once = min(CELLS * WARPS >> log_parts, most);
    }
    // Sums of segments from `first_part` on, of the block's own rows from the `at`th on.
    __device__ __forceinline__ void ask(const LinearParams& p, const Segment& s, const OwnRows& own, u32 at, u32 first_part) {
#pragma unroll
        for (u32 c = 0; c < CELLS; c++) {
            const u32 cell = (threadIdx.x >> 5) + c * WARPS, nth = first_part + (cell & ((1 << log_parts) - 1)), row = cell >> log_parts;
            from[c] = nullptr;
            // The block's own are in shared memory.
            if (row >= rows_at_once || at + row >= own.n || nth >= s.n_parts || nth == s.own) continue;
            from[c] = (float4*)partial_of(p, s.first_place + nth, own.first + at + row, (threadIdx.x & 31) * 4);
            first[c] = load_fresh(from[c]), second[c] = load_fresh(from[c] + 32);
        }
    }
    // Waits for what was asked for, and leaves its places in memory empty.
    template <class Place>
    __device__ __forceinline__ void put(const Place& place) {
        const float nothing = __uint_as_float(NOTHING);
#pragma unroll
        for (u32 c = 0; c < CELLS; c++) {
            if (!from[c]) continue;
            while (!arrived(first[c]) || !arrived(second[c])) first[c] = load_fresh(from[c]), second[c] = load_fresh(from[c] + 32);
            store_fresh(from[c], make_float4(nothing, nothing, nothing, nothing)), store_fresh(from[c] + 32, make_float4(nothing, nothing, nothing, nothing));
            float4* const at = (float4*)place.gathered((threadIdx.x >> 5) + c * WARPS) + (threadIdx.x & 31);
            at[0] = first[c], at[32] = second[c];
        }
    }
};

// With more rows: what the unit's segments summed of four outputs of a row, and of a pair of those 128 on: asked for some time before it is needed.
struct GatheredByLane {
    // Units of 5120 x 17408 are made by 7 or 8 blocks: asking all at once costs one trip to memory. Those of pairs by two or three.
    static constexpr u32 AT_ONCE = 8, STRIDE = 8 * MAX_TILES * UNIT_OUTPUTS / 4;
    float4 values[AT_ONCE];

    static __device__ __forceinline__ float4* place(float* from, bool is_pair, u32 i) {
        return (float4*)from + (is_pair ? i / 2 * STRIDE + i % 2 * 32 : i * STRIDE);
    }
    // `skip`: the segment whose sums are at hand, if any.
    __device__ __forceinline__ void ask(const Segment& s, u32 skip, float* from, bool is_pair, u32 first) {
        const u32 n = is_pair ? 2 * s.n_parts : s.n_parts;
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++)
            if (first + i < n && (is_pair ? (first + i) / 2 : first + i) != skip) values[i] = load_fresh(place(from, is_pair, first + i));
    }
    // The sums of all segments in order; `sum` and `up` are those of `skip`. Leaves the others' places empty.
    __device__ __forceinline__ void add_to(const Segment& s, u32 skip, float4& sum, float4& up, float* from, bool is_pair) {
        const float nothing = __uint_as_float(NOTHING);
        const u32 n = is_pair ? 2 * s.n_parts : s.n_parts;
        float4 all = make_float4(0.0f, 0.0f, 0.0f, 0.0f), all_up = all;
#pragma unroll 1
        for (u32 first = 0; first < n; first += AT_ONCE) {
            if (first > 0) ask(s, skip, from, is_pair, first);
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; i++) {
                if (first + i >= n) break;
                if ((is_pair ? (first + i) / 2 : first + i) == skip) {
                    values[i] = i % 2 && is_pair ? up : sum;
                } else {
                    float4* at = place(from, is_pair, first + i);
                    while (!arrived(values[i])) values[i] = load_fresh(at);
                    store_fresh(at, make_float4(nothing, nothing, nothing, nothing));
                }
                if (i % 2 && is_pair) all_up.x += values[i].x, all_up.y += values[i].y, all_up.z += values[i].z, all_up.w += values[i].w;
                else all.x += values[i].x, all.y += values[i].y, all.z += values[i].z, all.w += values[i].w;
            }
        }
        sum = all, up = all_up;
    }
};
