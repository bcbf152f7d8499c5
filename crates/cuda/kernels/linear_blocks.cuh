// Weights of block formats as A fragments: codes become f16 without a conversion.
//
// The bits of a small integer n are the subnormal f16 n * 2^-24, and tensor cores take subnormals at full speed. So a code is
// masked into place and multiplied as it is; the power of two goes into the scale. Codes 4 bits higher carry 16 times that:
// packed words are laid out so that all codes of outputs g are low and all of g + 8 high, and each accumulator knows its own.
//
// Words (repack/planes.rs writes them; half h of a word is the first, then the second column of a register's pair):
//   plane4  one word a step of 16 columns: bits 4r of half h hold register r's code
//   plane2  one word two steps: bits 4r + 2e          plane1  one word four steps: bits 4r + j
//
// A format here sums groups by their own scale in f32. It is made for 64 columns ("quad") of a tile of 16 outputs and has
//   step(j, a)   register values of step j of 4           scale(i)  f32 scale of group i for outputs g and g + 8
//   GROUP        steps to a group                         least(i)  f16 minimum pair of group i, where HAS_LEAST
//   outer(tile)  what all sums of the tile are multiplied by
#pragma once
#include "linear_ptx.cuh"

struct Lane {
    u32 lane, g, t;
    __device__ __forceinline__ Lane() : lane(threadIdx.x & 31), g((threadIdx.x & 31) >> 2), t(threadIdx.x & 3) {}
};

#define TWO_24 16777216.0f
#define TWO_20 1048576.0f

__device__ __forceinline__ u32 word_of(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }
__device__ __forceinline__ u32 load_word(const u8* p) { return *(const u32*)p; }

// Fields of 6 bits, 8 to three words: pairs 0..2 in bits 0..11 of each word, the fourth in the bits left over.
struct Fields {
    u32 w[3];
    __device__ __forceinline__ Fields(const u8* p) { w[0] = load_word(p), w[1] = load_word(p + 4), w[2] = load_word(p + 8); }
    __device__ __forceinline__ u32 last() const {
        return ((w[0] >> 12) & 0x000f000f) | ((w[1] >> 8) & 0x00f000f0) | ((w[2] >> 4) & 0x0f000f00);
    }
    // Fields 2i and 2i + 1 of outputs g (low half) and g + 8.
    __device__ __forceinline__ u32 pair(int i) const { return i == 0 ? w[0] : i == 1 ? w[1] : i == 2 ? w[2] : last(); }
};

// Codes of 4 bits plus `bias` (of the low codes and of the high ones) as f16.
__device__ __forceinline__ void nibbles(u32 w, u32 (&a)[4]) {
    const u32 v = w >> 8;
    a[0] = w & 0x000f000f, a[1] = w & 0x00f000f0, a[2] = v & 0x000f000f, a[3] = v & 0x00f000f0;
}
// ... and a fifth bit from plane1, for step j.
__device__ __forceinline__ void fives(u32 w, u32 h, int j, u32 (&a)[4]) {
    nibbles(w, a);
    const u32 x = h << (4 - j), y = h >> (4 + j);
    a[0] |= x & 0x00100010, a[1] |= x & 0x01000100, a[2] |= y & 0x00100010, a[3] |= y & 0x01000100;
}
// ... and two more bits from plane2, for step e of its two.
__device__ __forceinline__ void sixes(u32 w, u32 h, int e, u32 (&a)[4]) {
    nibbles(w, a);
    const u32 x = h << (4 - 2 * e), y = h >> (4 + 2 * e);
    a[0] |= x & 0x00300030, a[1] |= x & 0x03000300, a[2] |= y & 0x00300030, a[3] |= y & 0x03000300;
}
__device__ __forceinline__ void shift_codes(u32 (&a)[4], u32 low, u32 high) {
    a[0] = half2_add(a[0], low), a[1] = half2_add(a[1], high), a[2] = half2_add(a[2], low), a[3] = half2_add(a[3], high);
}
__device__ __forceinline__ float2 scale_pair(u32 halves, float low, float high) {
    return make_float2(low_float(halves) * low, high_float(halves) * high);
}

struct Q4_0 {
    static constexpr int GROUP = 2;
    static constexpr bool HAS_LEAST = false;
    uint4 codes;
    u32 d[2];
    __device__ __forceinline__ Q4_0(const u8* tile, int, Lane l) {
        codes = *(const uint4*)(tile + l.lane * 16);
        d[0] = load_word(tile + 512 + l.g * 4), d[1] = load_word(tile + 544 + l.g * 4);
    }
    __device__ __forceinline__ void step(int j, u32 (&a)[4]) const {
        nibbles(word_of(codes, j), a);
        shift_codes(a, 0x80088008, 0x80808080);
    }
    __device__ __forceinline__ float2 scale(int i) const { return scale_pair(d[i], TWO_24, TWO_20); }
    __device__ __forceinline__ u32 least(int) const { return 0; }
    static __device__ __forceinline__ float2 outer(const u8*, Lane) { return make_float2(1.0f, 1.0f); }
};

struct Q4_1 {
    static constexpr int GROUP = 2;
    static constexpr bool HAS_LEAST = true;
    uint4 codes;
    u32 d[2], m[2];
    __device__ __forceinline__ Q4_1(const u8* tile, int, Lane l) {
        codes = *(const uint4*)(tile + l.lane * 16);
        d[0] = load_word(tile + 512 + l.g * 4), d[1] = load_word(tile + 544 + l.g * 4);
        m[0] = load_word(tile + 576 + l.g * 4), m[1] = load_word(tile + 608 + l.g * 4);
    }
    __device__ __forceinline__ void step(int j, u32 (&a)[4]) const { nibbles(word_of(codes, j), a); }
    __device__ __forceinline__ float2 scale(int i) const { return scale_pair(d[i], TWO_24, TWO_20); }
    __device__ __forceinline__ u32 least(int i) const { return m[i]; }
    static __device__ __forceinline__ float2 outer(const u8*, Lane) { return make_float2(1.0f, 1.0f); }
};

struct Q5_0 {
    static constexpr int GROUP = 2;
    static constexpr bool HAS_LEAST = false;
    uint4 codes;
    u32 fifth, d[2];
    __device__ __forceinline__ Q5_0(const u8* tile, int, Lane l) {
        codes = *(const uint4*)(tile + l.lane * 16);
        fifth = load_word(tile + 512 + l.lane * 4);
        d[0] = load_word(tile + 640 + l.g * 4), d[1] = load_word(tile + 672 + l.g * 4);
    }
    __device__ __forceinline__ void step(int j, u32 (&a)[4]) const {
        fives(word_of(codes, j), fifth, j, a);
        shift_codes(a, 0x80108010, 0x81008100);
    }
    __device__ __forceinline__ float2 scale(int i) const { return scale_pair(d[i], TWO_24, TWO_20); }
    __device__ __forceinline__ u32 least(int) const { return 0; }
    static __device__ __forceinline__ float2 outer(const u8*, Lane) { return make_float2(1.0f, 1.0f); }
};

struct Q5_1 {
    static constexpr int GROUP = 2;
    static constexpr bool HAS_LEAST = true;
    uint4 codes;
    u32 fifth, d[2], m[2];
    __device__ __forceinline__ Q5_1(const u8* tile, int, Lane l) {
        codes = *(const uint4*)(tile + l.lane * 16);
        fifth = load_word(tile + 512 + l.lane * 4);
        d[0] = load_word(tile + 640 + l.g * 4), d[1] = load_word(tile + 672 + l.g * 4);
        m[0] = load_word(tile + 704 + l.g * 4), m[1] = load_word(tile + 736 + l.g * 4);
    }
    __device__ __forceinline__ void step(int j, u32 (&a)[4]) const { fives(word_of(codes, j), fifth, j, a); }
    __device__ __forceinline__ float2 scale(int i) const { return scale_pair(d[i], TWO_24, TWO_20); }
    __device__ __forceinline__ u32 least(int i) const { return m[i]; }
    static __device__ __forceinline__ float2 outer(const u8*, Lane) { return make_float2(1.0f, 1.0f); }
};

// Bytes, stored plus 128: of output g, then of g + 8.
struct Q8_0 {
    static constexpr int GROUP = 2;
    static constexpr bool HAS_LEAST = false;
    uint4 codes[2];
    u32 d[2];
    __device__ __forceinline__ Q8_0(const u8* tile, int, Lane l) {
        codes[0] = *(const uint4*)(tile + l.lane * 16), codes[1] = *(const uint4*)(tile + 512 + l.lane * 16);
        d[0] = load_word(tile + 1024 + l.g * 4), d[1] = load_word(tile + 1056 + l.g * 4);
    }
    __device__ __forceinline__ void step(int j, u32 (&a)[4]) const {
        const u32 low = word_of(codes[j >> 1], 2 * (j & 1)), high = word_of(codes[j >> 1], 2 * (j & 1) + 1);
        a[0] = bytes_of(low, 0, 0x4140), a[2] = bytes_of(low, 0, 0x4342);
        a[1] = bytes_of(high, 0, 0x4140), a[3] = bytes_of(high, 0, 0x4342);
        shift_codes(a, 0x80808080, 0x80808080);
    }
    __device__ __forceinline__ float2 scale(int i) const { return scale_pair(d[i], TWO_24, TWO_24); }
    __device__ __forceinline__ u32 least(int) const { return 0; }
    static __device__ __forceinline__ float2 outer(const u8*, Lane) { return make_float2(1.0f, 1.0f); }
};

// 16 values plus 128 as bytes, looked up by byte selection: the code's low 3 bits choose among 8 bytes in two registers, its
// top bit between the two halves of the table. Words hold codes in the order r0 r1 of the first column, r0 r1 of the
// second, r2 r3, r2 r3.
struct Values {
    u32 v[4];
};
__device__ __forceinline__ void looked_up(u32 w, const Values& table, u32 (&a)[4]) {
    const u32 low = w & 0x77777777, top = ((w & 0x88888888) >> 1) | 0x32103210;
    const u32 x = bytes_of(bytes_of(table.v[0], table.v[1], low), bytes_of(table.v[2], table.v[3], low), top);
    const u32 y = bytes_of(bytes_of(table.v[0], table.v[1], low >> 16), bytes_of(table.v[2], table.v[3], low >> 16), top >> 16);
    a[0] = x & 0x00ff00ff, a[1] = (x >> 8) & 0x00ff00ff, a[2] = y & 0x00ff00ff, a[3] = (y >> 8) & 0x00ff00ff;
    shift_codes(a, 0x80808080, 0x80808080);
}
// -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113
__device__ __forceinline__ Values iq4_values() { return {{0x3f2d1801u, 0x766a5d4fu, 0xa6998d81u, 0xf1d9c5b5u}}; }
// 0, 1, 2, 3, 4, 6, 8, 12 and their negatives
__device__ __forceinline__ Values mxfp4_values() { return {{0x83828180u, 0x8c888684u, 0x7d7e7f80u, 0x74787a7cu}}; }

struct Iq4Nl {
    static constexpr int GROUP = 2;
    static constexpr bool HAS_LEAST = false;
    uint4 codes;
    u32 d[2];
    __device__ __forceinline__ Iq4Nl(const u8* tile, int, Lane l) {
        codes = *(const uint4*)(tile + l.lane * 16);
        d[0] = load_word(tile + 512 + l.g * 4), d[1] = load_word(tile + 544 + l.g * 4);
    }
    __device__ __forceinline__ void step(int j, u32 (&a)[4]) const { looked_up(word_of(codes, j), iq4_values(), a); }
    __device__ __forceinline__ float2 scale(int i) const { return scale_pair(d[i], TWO_24, TWO_24); }
    __device__ __forceinline__ u32 least(int) const { return 0; }
    static __device__ __forceinline__ float2 outer(const u8*, Lane) { return make_float2(1.0f, 1.0f); }
};

struct Mxfp4 {
    static constexpr int GROUP = 2;
    static constexpr bool HAS_LEAST = false;
    uint4 codes;
    u32 e[2];
    __device__ __forceinline__ Mxfp4(const u8* tile, int, Lane l) {
        codes = *(const uint4*)(tile + l.lane * 16);
        e[0] = *(const u16*)(tile + 512 + l.g * 2), e[1] = *(const u16*)(tile + 528 + l.g * 2);
    }
    __device__ __forceinline__ void step(int j, u32 (&a)[4]) const { looked_up(word_of(codes, j), mxfp4_values(), a); }
    // 2^(e - 128), of which the two smallest are subnormal.
    static __device__ __forceinline__ float power(u32 e) { return __uint_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23); }
    __device__ __forceinline__ float2 scale(int i) const { return make_float2(power(e[i] & 255), power(e[i] >> 8)); }
    __device__ __forceinline__ u32 least(int) const { return 0; }
    static __device__ __forceinline__ float2 outer(const u8*, Lane) { return make_float2(TWO_24, TWO_24); }
};

struct Q6K {
    static constexpr int GROUP = 1;
    static constexpr bool HAS_LEAST = false;
    uint4 codes;
    uint2 top, scales;
    __device__ __forceinline__ Q6K(const u8* tile, int quad, Lane l) {
        codes = *(const uint4*)(tile + quad * 512 + l.lane * 16);
        top = *(const uint2*)(tile + 2048 + quad * 256 + l.lane * 8);
        scales = *(const uint2*)(tile + 3072 + l.g * 32 + quad * 8);
    }
    __device__ __forceinline__ void step(int j, u32 (&a)[4]) const {
        sixes(word_of(codes, j), j < 2 ? top.x : top.y, j & 1, a);
        shift_codes(a, 0x80208020, 0x82008200);
    }
    // Scales are stored plus 128; a byte below 2^23 becomes a float by its exponent, faster than a conversion.
    __device__ __forceinline__ float2 scale(int i) const {
        const u32 w = i < 2 ? scales.x : scales.y, at = 2 * (i & 1);
        return make_float2(__uint_as_float(bytes_of(w, 0x4b000000, 0x7650 + at)) - 8388736.0f,
                           __uint_as_float(bytes_of(w, 0x4b000000, 0x7651 + at)) - 8388736.0f);
    }
    __device__ __forceinline__ u32 least(int) const { return 0; }
    static __device__ __forceinline__ float2 outer(const u8* tile, Lane l) {
        return scale_pair(load_word(tile + 3328 + l.g * 4), TWO_24, TWO_20);
    }
};

struct Iq4Xs {
    static constexpr int GROUP = 2;
    static constexpr bool HAS_LEAST = false;
    uint4 codes;
    u32 fields;
    __device__ __forceinline__ Iq4Xs(const u8* tile, int quad, Lane l) {
        codes = *(const uint4*)(tile + quad * 512 + l.lane * 16);
        fields = Fields(tile + 2048 + l.g * 12).pair(quad);
    }
    __device__ __forceinline__ void step(int j, u32 (&a)[4]) const { looked_up(word_of(codes, j), iq4_values(), a); }
    __device__ __forceinline__ float2 scale(int i) const {
        const u32 pair = (fields >> (6 * i)) & 0x003f003f;
        return make_float2(__uint_as_float(0x4b000000 | (pair & 63)) - 8388640.0f,
                           __uint_as_float(0x4b000000 | (pair >> 16)) - 8388640.0f);
    }
    __device__ __forceinline__ u32 least(int) const { return 0; }
    static __device__ __forceinline__ float2 outer(const u8* tile, Lane l) {
        return scale_pair(load_word(tile + 2144 + l.g * 4), TWO_24, TWO_24);
    }
};
