// Formats whose group scales are small integers: code times scale is below 2048 and so an exact f16. It is formed on the
// codes, and sums run on through 128 columns, where formats of linear_blocks.cuh end one every 16 or 32.
//
// A format here is made for half a tile (128 columns) and has
//   step(j, a)   register values of step j of 8, scaled       outer(..)  f32 scale of outputs g and g + 8
//   least(a)     A fragment of the groups' minima, against the sums of the input, and least_outer, where HAS_LEAST
#pragma once
#include "linear_blocks.cuh"

// Integers below 1024 in both halves as f16: 0x6400 is 1024.
__device__ __forceinline__ u32 half2_integers(u32 v) { return half2_add(v | 0x64006400, 0xe400e400); }

__device__ __forceinline__ void scale_codes(u32 (&a)[4], u32 pair) {
    const u32 low = low_twice(pair), high = high_twice(pair);
    a[0] = half2_mul(a[0], low), a[1] = half2_mul(a[1], high), a[2] = half2_mul(a[2], low), a[3] = half2_mul(a[3], high);
}

// Codes of 2 bits, for step e of the word's two.
__device__ __forceinline__ void twos(u32 w, int e, u32 (&a)[4]) {
    const u32 x = w >> (2 * e), y = w >> (8 + 2 * e);
    a[0] = x & 0x00030003, a[1] = x & 0x00300030, a[2] = y & 0x00030003, a[3] = y & 0x00300030;
}

// Scales and minima of 4 bits, a byte for each output and 16 columns: of g and g + 8 side by side.
struct Q2K {
    static constexpr bool HAS_LEAST = true;
    uint2 codes[2];
    uint4 sm;
    u32 d, dmin, t;
    __device__ __forceinline__ Q2K(const u8* tile, int half, Lane l) : t(l.t) {
        const u8* at = tile + half * 512 + l.lane * 8;
        codes[0] = *(const uint2*)at, codes[1] = *(const uint2*)(at + 256);
        sm = *(const uint4*)(tile + 1024 + l.g * 32 + half * 16);
        d = load_word(tile + 1280 + l.g * 4), dmin = load_word(tile + 1312 + l.g * 4);
    }
    __device__ __forceinline__ void step(int j, u32 (&a)[4]) const {
        const uint2 w = codes[j >> 2];
        twos((j & 2) ? w.y : w.x, j & 1, a);
        const u32 bytes = word_of(sm, j >> 1);
        scale_codes(a, half2_integers(bytes_of(bytes, 0, j & 1 ? 0x4342 : 0x4140) & 0x000f000f));
    }
    __device__ __forceinline__ void least(u32 (&a)[4]) const {
        const u32 first = ((t & 1 ? sm.z : sm.x) >> 4) & 0x0f0f0f0f, second = ((t & 1 ? sm.w : sm.y) >> 4) & 0x0f0f0f0f;
        a[0] = first & 0x00ff00ff, a[1] = (first >> 8) & 0x00ff00ff;
        a[2] = second & 0x00ff00ff, a[3] = (second >> 8) & 0x00ff00ff;
    }
    __device__ __forceinline__ float2 outer() const { return scale_pair(d, TWO_24, TWO_20); }
    __device__ __forceinline__ float2 least_outer() const { return scale_pair(dmin, -TWO_24, -TWO_24); }
};

struct Q3K {
    static constexpr bool HAS_LEAST = false;
    uint2 codes[2];
    u32 third[2], d;
    Fields fields;
    __device__ __forceinline__ Q3K(const u8* tile, int half, Lane l) : fields(tile + 1536 + l.g * 24 + half * 12) {
        const u8* at = tile + half * 512 + l.lane * 8;
        codes[0] = *(const uint2*)at, codes[1] = *(const uint2*)(at + 256);
        third[0] = load_word(tile + 1024 + half * 256 + l.lane * 4), third[1] = load_word(tile + 1152 + half * 256 + l.lane * 4);
        d = load_word(tile + 1728 + l.g * 4);
    }
    __device__ __forceinline__ void step(int j, u32 (&a)[4]) const {
        const uint2 w = codes[j >> 2];
        twos((j & 2) ? w.y : w.x, j & 1, a);
        const u32 h = third[j >> 2], q = j & 3, x = q < 2 ? h << (2 - q) : h >> (q - 2), y = h >> (6 + q);
        a[0] |= x & 0x00040004, a[1] |= x & 0x00400040, a[2] |= y & 0x00040004, a[3] |= y & 0x00400040;
        shift_codes(a, 0x80048004, 0x80408040);
        // Scales are stored plus 32.
        const u32 pair = (fields.pair(j >> 1) >> (6 * (j & 1))) & 0x003f003f;
        scale_codes(a, half2_add(half2_integers(pair), 0xd000d000));
    }
    __device__ __forceinline__ void least(u32 (&)[4]) const {}
    __device__ __forceinline__ float2 outer() const { return scale_pair(d, TWO_24, TWO_20); }
    __device__ __forceinline__ float2 least_outer() const { return make_float2(0.0f, 0.0f); }
};
