// Weights of block formats as A fragments of f16: code times scale plus offset, one f16x2 fma for two weights.
//
// The bits of a small integer n are the subnormal f16 n * 2^-24, which multiplies at full speed: a code is masked into place and
// never converted. Codes of outputs g lie 4 bits lower than those of g + 8, which so carry 16 times that; each output's own power
// of two (repack/scales.rs: it makes the scales fit f16, and is undone on the sums) takes that in.
// A weight is rounded once, to f16, as its scale is: 1.4e-4 of it in the root mean square, below what the input's rounding does.
//
// Words (repack/planes.rs writes them; half h of a word is the first, then the second column of a register's pair):
//   plane4  one word a step of 16 columns: bits 4r of half h hold register r's code
//   plane2  one word two steps: bits 4r + 2e          plane1  one word four steps: bits 4r + j
//
// A format is made for a stage of a tile of 16 outputs (four records of 64 columns, or one of 256), and goes through its halves of 128
// columns and their quads of 64:
//   begin(h)              reads what half h needs (of some linear_chain.cuh asks for begin_codes(h), made_by_lane() and take() instead)
//   step(q, j, a)         register values of step j of quad q
//   scales(q, j, s, m)    scale and offset of outputs g (low half) and g + 8, for steps j that begin a group
#pragma once
#include "linear_ptx.cuh"

struct Lane {
    u32 lane, g, t;
    __device__ __forceinline__ Lane() : lane(threadIdx.x & 31), g((threadIdx.x & 31) >> 2), t(threadIdx.x & 3) {}
};

__device__ __forceinline__ u32 word_of(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }
__device__ __forceinline__ u32 load_word(const u8* p) { return *(const u32*)p; }

// Integers below 1024 in both halves as f16: 0x6400 is 1024.
__device__ __forceinline__ u32 half2_integers(u32 v) { return half2_add(v | 0x64006400, 0xe400e400); }

// Fields of 6 bits, 8 to three words: pairs 0..2 in bits 0..11 of each word, the fourth in the bits left over.
struct Fields {
    u32 w[3];
    __device__ __forceinline__ void load(const u8* p) { w[0] = load_word(p), w[1] = load_word(p + 4), w[2] = load_word(p + 8); }
    // Fields 2i and 2i + 1 of outputs g (low half) and g + 8.
    __device__ __forceinline__ u32 pair(int i) const {
        return i < 3 ? w[i] : ((w[0] >> 12) & 0x000f000f) | ((w[1] >> 8) & 0x00f000f0) | ((w[2] >> 4) & 0x0f000f00);
    }
    __device__ __forceinline__ u32 field(int i) const { return (pair(i >> 1) >> (6 * (i & 1))) & 0x003f003f; }
};

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
// Codes of 2 bits, for step e of the word's two.
__device__ __forceinline__ void twos(u32 w, int e, u32 (&a)[4]) {
    const u32 x = w >> (2 * e), y = w >> (8 + 2 * e);
    a[0] = x & 0x00030003, a[1] = x & 0x00300030, a[2] = y & 0x00030003, a[3] = y & 0x00300030;
}

// Formats of 32 columns a scale, in tiles of 64: words of codes, perhaps fifth bits, then scales d of outputs g and g + 8.
template <int CODE_BYTES, int TILE_BYTES, u32 MINUS>
struct Blocks32 {
    const u8* stage;
    const u8* tile[2];
    u32 d[2][2];
    Lane l;
    __device__ __forceinline__ Blocks32(const u8* from) : stage(from) {}
    __device__ __forceinline__ void begin_scales(int half) {
#pragma unroll
        for (int q = 0; q < 2; q++) {
            tile[q] = stage + (2 * half + q) * TILE_BYTES;
            d[q][0] = load_word(tile[q] + CODE_BYTES + l.g * 4), d[q][1] = load_word(tile[q] + CODE_BYTES + 32 + l.g * 4);
        }
    }
    // A code stands for itself less a constant.
    __device__ __forceinline__ void scales(int q, int j, u32& s, u32& m) const {
        if (j & 1) return;
        s = d[q][j >> 1], m = half2_mul(s, MINUS);
    }
    // Or plus the group's own offset.
    __device__ __forceinline__ void scales_and_offsets(int q, int j, u32& s, u32& m) const {
        if (j & 1) return;
        s = d[q][j >> 1], m = load_word(tile[q] + CODE_BYTES + 64 + (j >> 1) * 32 + l.g * 4);
    }
    __device__ __forceinline__ uint4 words(int q) const { return *(const uint4*)(tile[q] + l.lane * 16); }
};

template <int TILE_BYTES>
struct Fours : Blocks32<512, TILE_BYTES, 0x80808008> {
    static constexpr u32 STAGE_BYTES = 4 * TILE_BYTES;
    uint4 codes[2];
    __device__ __forceinline__ Fours(const u8* from) : Blocks32<512, TILE_BYTES, 0x80808008>(from) {}
    __device__ __forceinline__ void begin(int half) { this->begin_scales(half), codes[0] = this->words(0), codes[1] = this->words(1); }
    __device__ __forceinline__ void step(int q, int j, u32 (&a)[4]) const { nibbles(word_of(codes[q], j), a); }
};
using Q4_0 = Fours<576>;
struct Q4_1 : Fours<640> {
    __device__ __forceinline__ Q4_1(const u8* from) : Fours(from) {}
    __device__ __forceinline__ void scales(int q, int j, u32& s, u32& m) const { scales_and_offsets(q, j, s, m); }
};

template <int TILE_BYTES>
struct Fives : Blocks32<640, TILE_BYTES, 0x81008010> {
    static constexpr u32 STAGE_BYTES = 4 * TILE_BYTES;
    uint4 codes[2];
    u32 fifth[2];
    __device__ __forceinline__ Fives(const u8* from) : Blocks32<640, TILE_BYTES, 0x81008010>(from) {}
    __device__ __forceinline__ void begin(int half) {
        this->begin_scales(half);
#pragma unroll
        for (int q = 0; q < 2; q++) codes[q] = this->words(q), fifth[q] = load_word(this->tile[q] + 512 + this->l.lane * 4);
    }
    __device__ __forceinline__ void step(int q, int j, u32 (&a)[4]) const { fives(word_of(codes[q], j), fifth[q], j, a); }
};
using Q5_0 = Fives<704>;
struct Q5_1 : Fives<768> {
    __device__ __forceinline__ Q5_1(const u8* from) : Fives(from) {}
    __device__ __forceinline__ void scales(int q, int j, u32& s, u32& m) const { scales_and_offsets(q, j, s, m); }
};

// Bytes, stored plus 128: of output g, then of g + 8.
struct Q8_0 : Blocks32<1024, 1088, 0x80808080> {
    static constexpr u32 STAGE_BYTES = 4352;
    uint4 codes[2][2];
    __device__ __forceinline__ Q8_0(const u8* from) : Blocks32(from) {}
    __device__ __forceinline__ void begin(int half) {
        begin_scales(half);
#pragma unroll
        for (int q = 0; q < 2; q++) codes[q][0] = words(q), codes[q][1] = *(const uint4*)(tile[q] + 512 + l.lane * 16);
    }
    __device__ __forceinline__ void step(int q, int j, u32 (&a)[4]) const {
        const u32 low = word_of(codes[q][j >> 1], 2 * (j & 1)), high = word_of(codes[q][j >> 1], 2 * (j & 1) + 1);
        a[0] = bytes_of(low, 0, 0x4140), a[2] = bytes_of(low, 0, 0x4342);
        a[1] = bytes_of(high, 0, 0x4140), a[3] = bytes_of(high, 0, 0x4342);
    }
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
}
// -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113
__device__ __forceinline__ Values iq4_values() { return {{0x3f2d1801u, 0x766a5d4fu, 0xa6998d81u, 0xf1d9c5b5u}}; }
// 0, 1, 2, 3, 4, 6, 8, 12 and their negatives
__device__ __forceinline__ Values mxfp4_values() { return {{0x83828180u, 0x8c888684u, 0x7d7e7f80u, 0x74787a7cu}}; }

struct Iq4Nl : Blocks32<512, 576, 0x80808080> {
    static constexpr u32 STAGE_BYTES = 2304;
    uint4 codes[2];
    __device__ __forceinline__ Iq4Nl(const u8* from) : Blocks32(from) {}
    __device__ __forceinline__ void begin(int half) { begin_scales(half), codes[0] = words(0), codes[1] = words(1); }
    __device__ __forceinline__ void step(int q, int j, u32 (&a)[4]) const { looked_up(word_of(codes[q], j), iq4_values(), a); }
};

// Scales are exponents of f16, a byte for each output and 32 columns.
struct Mxfp4 {
    static constexpr u32 STAGE_BYTES = 2176;
    const u8* stage;
    const u8* tile[2];
    uint4 codes[2];
    Lane l;
    __device__ __forceinline__ Mxfp4(const u8* from) : stage(from) {}
    __device__ __forceinline__ void begin(int half) {
#pragma unroll
        for (int q = 0; q < 2; q++) tile[q] = stage + (2 * half + q) * (STAGE_BYTES / 4), codes[q] = *(const uint4*)(tile[q] + l.lane * 16);
    }
    __device__ __forceinline__ void step(int q, int j, u32 (&a)[4]) const { looked_up(word_of(codes[q], j), mxfp4_values(), a); }
    __device__ __forceinline__ void scales(int q, int j, u32& s, u32& m) const {
        if (j & 1) return;
        s = bytes_of(*(const u16*)(tile[q] + 512 + (j >> 1) * 16 + l.g * 2), 0, 0x1404) << 2, m = half2_mul(s, 0x80808080);
    }
};

// Scales and minima of Q4_K and Q5_K: each lane t makes those of one group of 32 columns of either half, and the others ask it: made by all four lanes
// they were a quarter of all instructions. 32 bytes for outputs g and g + 8:
//   words 0..3  lane t's, for g in the low half and g + 8 in the high one: bits 0..5 the scale of group t, 6..11 its minimum, 12..15 of group 4 + t the
//               scale's low bits
//   words 4, 5  of g and of g + 8, a byte a lane: bits 0..5 the minimum of group 4 + t, 6..7 its scale's high bits
//   words 6, 7  d, and what minima are multiplied by: minus dmin
// (d and dmin by 4 bits in each of eight words, which leaves each group a word of its own, took 15 instructions more of a stage's 250.)
struct ScalesAndMinima {
    u32 own, others, d, dmin, s, m;
    // Which bytes of words 4 and 5 are a lane's: the first of each half of what they make.
    static __device__ __forceinline__ u32 bytes_of_lane(u32 t) { return t * 0x1111 + 0x4400; }
    // `words`: those of the lane's outputs; `own_word`: the lane's own of them; `which`: its `bytes_of_lane`.
    __device__ __forceinline__ ScalesAndMinima(const u8* words, const u8* own_word, u32 which) : own(load_word(own_word)) {
        const uint4 v = *(const uint4*)(words + 16);
        others = bytes_of(v.x, v.y, which), d = v.z, dmin = v.w;
    }
    // (1024 + scale) d - 1024 d: exact but for one rounding. Minima are subnormal integers, like codes.
    __device__ __forceinline__ void begin_scales(int half) {
        const u32 scale = half ? ((own >> 12) & 0x000f000f) | ((others >> 2) & 0x00300030) : own & 0x003f003f;
        s = half2_fma(scale | 0x64006400, d, half2_mul(d, 0xe400e400)), m = half2_mul((half ? others : own >> 6) & 0x003f003f, dmin);
    }
    __device__ __forceinline__ void scales(int q, int j, u32& to_s, u32& to_m) const {
        if (j & 1) return;
        to_s = __shfl_sync(0xffffffffu, s, 2 * q + (j >> 1), 4), to_m = __shfl_sync(0xffffffffu, m, 2 * q + (j >> 1), 4);
    }
    // What a lane makes for all of its outputs', and what they take of it: of group i of each half, from what lane i made.
    __device__ __forceinline__ uint4 made_by_lane() {
        uint4 v;
        begin_scales(0), v.x = s, v.y = m;
        begin_scales(1), v.z = s, v.w = m;
        return v;
    }
    static __device__ __forceinline__ void take(const uint4& made, int half, int j, u32& to_s, u32& to_m) {
        if (j & 1) return;
        to_s = half ? made.z : made.x, to_m = half ? made.w : made.y;
    }
};

// Where a lane finds what it needs of a tile, in bytes from its beginning.
struct OfLane {
    u32 words, own;  // of its outputs, of 32 bytes each; and its own among these
    u32 codes;       // of 16 bytes
    u32 bytes;       // ScalesAndMinima::bytes_of_lane
    __device__ __forceinline__ OfLane() {
        const Lane l;
        words = l.g * 32, own = l.g * 32 + l.t * 4, codes = l.lane * 16, bytes = ScalesAndMinima::bytes_of_lane(l.t);
    }
};

struct Q4K : ScalesAndMinima {
    static constexpr u32 STAGE_BYTES = 2304;
    const u8* at;
    uint4 codes[2];
    __device__ __forceinline__ Q4K(const u8* from, const OfLane& l = OfLane()) : ScalesAndMinima(from + l.words, from + l.own, l.bytes), at(from + l.codes + 256) {}
    __device__ __forceinline__ void begin_codes(int half) { codes[0] = *(const uint4*)(at + half * 1024), codes[1] = *(const uint4*)(at + half * 1024 + 512); }
    __device__ __forceinline__ void begin(int half) { begin_scales(half), begin_codes(half); }
    __device__ __forceinline__ void step(int q, int j, u32 (&a)[4]) const { nibbles(word_of(codes[q], j), a); }
};

struct Q5K : Q4K {
    static constexpr u32 STAGE_BYTES = 2816;
    const u8* high;
    u32 fifth[2];
    __device__ __forceinline__ Q5K(const u8* from, const OfLane& l = OfLane()) : Q4K(from, l), high(from + 2304 + l.codes / 4) {}
    __device__ __forceinline__ void begin_codes(int half) {
        Q4K::begin_codes(half);
        fifth[0] = load_word(high + half * 256), fifth[1] = load_word(high + half * 256 + 128);
    }
    __device__ __forceinline__ void begin(int half) { begin_scales(half), begin_codes(half); }
    __device__ __forceinline__ void step(int q, int j, u32 (&a)[4]) const { fives(word_of(codes[q], j), fifth[q], j, a); }
};

struct Q6K {
    static constexpr u32 STAGE_BYTES = 3360;
    const u8* tile;
    OfLane l;
    u32 d;
    uint4 codes[2];
    uint2 top[2];
    uint4 scale;
    __device__ __forceinline__ Q6K(const u8* from, const OfLane& l = OfLane()) : tile(from), l(l), d(load_word(from + 3328 + l.words / 8)) {}
    __device__ __forceinline__ void begin_codes(int half) {
#pragma unroll
        for (int q = 0; q < 2; q++) {
            codes[q] = *(const uint4*)(tile + (2 * half + q) * 512 + l.codes);
            top[q] = *(const uint2*)(tile + 2048 + (2 * half + q) * 256 + l.codes / 2);
        }
    }
    __device__ __forceinline__ void begin(int half) { begin_codes(half), scale = *(const uint4*)(tile + 3072 + l.words + half * 16); }
    __device__ __forceinline__ void step(int q, int j, u32 (&a)[4]) const {
        sixes(word_of(codes[q], j), j < 2 ? top[q].x : top[q].y, j & 1, a);
    }
    // Scales are bytes plus 128, those of two steps in a word; codes are plus 32.
    __device__ __forceinline__ u32 scale_of(u32 word, int j) const { return half2_mul(half2_add(bytes_of(word, 0x64646464, j & 1 ? 0x4342 : 0x4140), 0xe480e480), d); }
    static __device__ __forceinline__ u32 offset_of(u32 s) { return half2_mul(s, 0x82008020); }
    __device__ __forceinline__ void scales(int q, int j, u32& s, u32& m) const { s = scale_of(word_of(scale, 2 * q + (j >> 1)), j), m = offset_of(s); }
    // As of Q4_K, of two steps each.
    __device__ __forceinline__ uint4 made_by_lane() const {
        const u32 first = load_word(tile + 3072 + l.own), second = load_word(tile + 3088 + l.own);
        return make_uint4(scale_of(first, 0), scale_of(first, 1), scale_of(second, 0), scale_of(second, 1));
    }
    static __device__ __forceinline__ void take(const uint4& made, int half, int j, u32& s, u32& m) { s = word_of(made, 2 * half + (j & 1)), m = offset_of(s); }
};

// Scales and minima of 4 bits, a byte for each output and 16 columns: of g and g + 8 side by side.
struct Q2K {
    static constexpr u32 STAGE_BYTES = 1344;
    const u8* tile;
    u32 d, dmin;
    uint2 codes[2];
    uint4 sm;
    Lane l;
    __device__ __forceinline__ Q2K(const u8* from)
        : tile(from), d(load_word(from + 1280 + Lane().g * 4)), dmin(load_word(from + 1312 + Lane().g * 4)) {}
    __device__ __forceinline__ void begin(int half) {
#pragma unroll
        for (int q = 0; q < 2; q++) codes[q] = *(const uint2*)(tile + (2 * half + q) * 256 + l.lane * 8);
        sm = *(const uint4*)(tile + 1024 + l.g * 32 + half * 16);
    }
    __device__ __forceinline__ void step(int q, int j, u32 (&a)[4]) const { twos((j & 2) ? codes[q].y : codes[q].x, j & 1, a); }
    __device__ __forceinline__ void scales(int q, int j, u32& s, u32& m) const {
        const u32 both = bytes_of(word_of(sm, 2 * q + (j >> 1)), 0, j & 1 ? 0x4342 : 0x4140);
        s = half2_mul(half2_integers(both & 0x000f000f), d), m = half2_mul((both >> 4) & 0x000f000f, dmin);
    }
};

struct Q3K {
    static constexpr u32 STAGE_BYTES = 1760;
    const u8* tile;
    u32 d, third[2];
    Fields fields;
    uint2 codes[2];
    Lane l;
    __device__ __forceinline__ Q3K(const u8* from) : tile(from), d(load_word(from + 1728 + Lane().g * 4)) {}
    __device__ __forceinline__ void begin(int half) {
#pragma unroll
        for (int q = 0; q < 2; q++) {
            codes[q] = *(const uint2*)(tile + (2 * half + q) * 256 + l.lane * 8);
            third[q] = load_word(tile + 1024 + (2 * half + q) * 128 + l.lane * 4);
        }
        fields.load(tile + 1536 + l.g * 24 + half * 12);
    }
    __device__ __forceinline__ void step(int q, int j, u32 (&a)[4]) const {
        twos((j & 2) ? codes[q].y : codes[q].x, j & 1, a);
        const u32 h = third[q], x = j < 2 ? h << (2 - j) : h >> (j - 2), y = h >> (6 + j);
        a[0] |= x & 0x00040004, a[1] |= x & 0x00400040, a[2] |= y & 0x00040004, a[3] |= y & 0x00400040;
    }
    // Scales are stored plus 32, codes plus 4.
    __device__ __forceinline__ void scales(int q, int j, u32& s, u32& m) const {
        s = half2_mul(half2_add(half2_integers(fields.field(4 * q + j)), 0xd000d000), d), m = half2_mul(s, 0x80408004);
    }
};

struct Iq4Xs {
    static constexpr u32 STAGE_BYTES = 2176;
    const u8* tile;
    u32 d, pair[2];
    uint4 codes[2];
    Lane l;
    __device__ __forceinline__ Iq4Xs(const u8* from) : tile(from), d(load_word(from + 2144 + Lane().g * 4)) {}
    __device__ __forceinline__ void begin(int half) {
        Fields fields;
        fields.load(tile + 2048 + l.g * 12);
#pragma unroll
        for (int q = 0; q < 2; q++) {
            codes[q] = *(const uint4*)(tile + (2 * half + q) * 512 + l.lane * 16);
            pair[q] = half ? fields.pair(2 + q) : fields.pair(q);
        }
    }
    __device__ __forceinline__ void step(int q, int j, u32 (&a)[4]) const { looked_up(word_of(codes[q], j), iq4_values(), a); }
    __device__ __forceinline__ void scales(int q, int j, u32& s, u32& m) const {
        if (j & 1) return;
        const u32 field = (pair[q] >> (6 * (j >> 1))) & 0x003f003f;
        s = half2_mul(half2_add(half2_integers(field), 0xd000d000), d), m = half2_mul(s, 0x80808080);
    }
};
