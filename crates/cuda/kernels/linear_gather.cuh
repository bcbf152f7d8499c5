// Sums of a unit that several blocks made parts of.
//
// The block that holds a unit's first stage gathers what the blocks after it summed of it, in their order; they did so first of all,
// so it seldom waits. The sums are their own message: a flag beside them would cost a second trip to memory and a fence.
#pragma once
#include "linear_params.cuh"
#include "linear_ptx.cuh"

// A place of the partial sums that holds nothing: a NaN that no arithmetic makes.
#define NOTHING 0xffffffffu
__device__ __forceinline__ bool arrived(const float4& v) {
    return __float_as_uint(v.x) != NOTHING && __float_as_uint(v.y) != NOTHING && __float_as_uint(v.z) != NOTHING && __float_as_uint(v.w) != NOTHING;
}

// Of a row of the group, four outputs of the unit from `output` on.
__device__ __forceinline__ float4* partial_of(const LinearParams& p, u32 partial, u32 row, u32 output) {
    return (float4*)((float*)p.partials + ((u64)partial * 8 * MAX_TILES + row) * UNIT_OUTPUTS + output);
}

// Adds to four sums of a row from `output` on, and of a pair to those of 128 on: both ask memory together.
__device__ __forceinline__ void gather(const LinearParams& p, const Segment& s, u32 row, u32 output, bool is_pair, float4& sum, float4& up) {
    // Units of 5120 x 17408 are made by 7 or 8 blocks: asking all at once costs one trip to memory. Those of pairs by two or three.
    constexpr u32 AT_ONCE = 8, STRIDE = 8 * MAX_TILES * UNIT_OUTPUTS / 4;
    const float nothing = __uint_as_float(NOTHING);
    const u32 n = is_pair ? 2 * s.n_partials : s.n_partials;
    float4* const from = partial_of(p, s.partial, row, output);
#define PLACE(i) (from + (is_pair ? (first + (i)) / 2 * STRIDE + (i) % 2 * 32 : (first + (i)) * STRIDE))
#pragma unroll 1
    for (u32 first = 0; first < n; first += AT_ONCE) {
        float4 theirs[AT_ONCE];
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++)
            if (first + i < n) theirs[i] = load_fresh(PLACE(i));
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++) {
            if (first + i >= n) break;
            while (!arrived(theirs[i])) theirs[i] = load_fresh(PLACE(i));
            store_fresh(PLACE(i), make_float4(nothing, nothing, nothing, nothing));
            if (i % 2 && is_pair) up.x += theirs[i].x, up.y += theirs[i].y, up.z += theirs[i].z, up.w += theirs[i].w;
            else sum.x += theirs[i].x, sum.y += theirs[i].y, sum.z += theirs[i].z, sum.w += theirs[i].w;
        }
    }
#undef PLACE
}
