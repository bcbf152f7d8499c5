// Q4_K and Q5_K: integer scales of groups of 32, and one f16 pair for all of them. Group sums are multiplied by their scale in
// f32 and added up over 128 columns before d and dmin. (Scaling the codes instead, exact as well, costs 64 multiplications a half
// stage whatever the rows, where this costs 32 a tile of rows; with what unpacking f16 scales took, it was slower at 8 and
// equal at 32 rows.)
#pragma once
#include "linear_blocks.cuh"

// Scales and minima of Q4_K and Q5_K, 32 bytes for outputs g and g + 8: four scales and four minima of the first half, the
// d pair, the same of the second half, the dmin pair.
struct ScalesAndMinima {
    u32 s[2], m, d, dmin;
    __device__ __forceinline__ ScalesAndMinima(const u8* tile, int half, Lane l) {
        const uint4 w = *(const uint4*)(tile + l.g * 32 + half * 16);
        const u32 last = ((w.x >> 12) & 0x000f000f) | ((w.y >> 8) & 0x00f000f0) | ((w.z >> 4) & 0x0f000f00);
        s[0] = w.x, s[1] = w.y;
        m = l.t & 1 ? last : w.z;
        d = load_word(tile + l.g * 32 + 12), dmin = load_word(tile + l.g * 32 + 28);
    }
    // Of group i of 4, times 2^-24.
    __device__ __forceinline__ float2 scale(int i) const {
        const u32 pair = (s[i >> 1] >> (6 * (i & 1))) & 0x003f003f;
        return make_float2(low_float(pair), high_float(pair));
    }
    // Each group of 32 meets two sums of 16.
    __device__ __forceinline__ void least(u32 (&a)[4]) const {
        const u32 first = m & 0x003f003f, second = (m >> 6) & 0x003f003f;
        a[0] = low_twice(first), a[1] = high_twice(first), a[2] = low_twice(second), a[3] = high_twice(second);
    }
    __device__ __forceinline__ float2 outer() const { return scale_pair(d, TWO_24 * TWO_24, TWO_24 * TWO_20); }
    __device__ __forceinline__ float2 least_outer() const { return scale_pair(dmin, -TWO_24, -TWO_24); }
};

struct Q4K : ScalesAndMinima {
    uint4 codes[2];
    __device__ __forceinline__ Q4K(const u8* tile, int half, Lane l) : ScalesAndMinima(tile, half, l) {
        const u8* at = tile + 256 + half * 1024 + l.lane * 16;
        codes[0] = *(const uint4*)at, codes[1] = *(const uint4*)(at + 512);
    }
    __device__ __forceinline__ void step(int j, u32 (&a)[4]) const { nibbles(word_of(codes[j >> 2], j & 3), a); }
};

struct Q5K : ScalesAndMinima {
    uint4 codes[2];
    u32 fifth[2];
    __device__ __forceinline__ Q5K(const u8* tile, int half, Lane l) : ScalesAndMinima(tile, half, l) {
        const u8* at = tile + 256 + half * 1024 + l.lane * 16;
        codes[0] = *(const uint4*)at, codes[1] = *(const uint4*)(at + 512);
        fifth[0] = load_word(tile + 2304 + half * 256 + l.lane * 4), fifth[1] = load_word(tile + 2432 + half * 256 + l.lane * 4);
    }
    __device__ __forceinline__ void step(int j, u32 (&a)[4]) const {
        fives(word_of(codes[j >> 2], j & 3), fifth[j >> 2], j & 3, a);
    }
};
