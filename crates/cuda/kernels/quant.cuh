// One element of a row of blocks. Definitions: crates/formats/src/quant. Products in the same order as there, without
// contraction, so that decoded weights are the same to the bit.
#pragma once
#include "common.cuh"

// DType of crates/formats, by its place in the enum.
enum Type {
    F32 = 0, F16 = 1, BF16 = 2, F64 = 3,
    Q4_0 = 9, Q4_1 = 10, Q5_0 = 11, Q5_1 = 12, Q8_0 = 13,
    Q2_K = 14, Q3_K = 15, Q4_K = 16, Q5_K = 17, Q6_K = 18, IQ4_NL = 19, IQ4_XS = 20, MXFP4 = 21
};

__device__ const signed char IQ4_VALUES[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
__device__ const signed char MXFP4_VALUES[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

__device__ __forceinline__ float half_at(const u8* p) { return f16_to_f32((u16)(p[0] | p[1] << 8)); }
__device__ __forceinline__ u32 nibble32(const u8* qs, u32 e) { return e < 16 ? qs[e] & 15 : qs[e - 16] >> 4; }
__device__ __forceinline__ float mxfp4_scale(u32 e) {
    return __uint_as_float(e == 0 ? 0x00200000u : e == 1 ? 0x00400000u : (e - 1) << 23);
}
// Scale and minimum, 6 bits each, of sub-block s of Q4_K and Q5_K.
__device__ __forceinline__ void scale_and_min(const u8* sc, u32 s, float& scale, float& min) {
    const u32 a = s < 4 ? sc[s] & 63 : (sc[s + 4] & 15) | (sc[s - 4] >> 6 << 4);
    const u32 m = s < 4 ? sc[s + 4] & 63 : (sc[s + 4] >> 4) | (sc[s] >> 6 << 4);
    scale = (float)a;
    min = (float)m;
}

template <int T>
__device__ __forceinline__ float decode(const u8* row, u32 i) {
    if (T == F32) return ((const float*)row)[i];
    if (T == F16) return f16_to_f32(((const u16*)row)[i]);
    if (T == BF16) return bf16_to_f32(((const u16*)row)[i]);
    if (T == F64) return (float)((const double*)row)[i];
    if (T == Q4_0) {
        const u8* b = row + (u64)(i / 32) * 18;
        return __fmul_rn(half_at(b), (float)((int)nibble32(b + 2, i % 32) - 8));
    }
    if (T == Q4_1) {
        const u8* b = row + (u64)(i / 32) * 20;
        return __fadd_rn(__fmul_rn(half_at(b), (float)nibble32(b + 4, i % 32)), half_at(b + 2));
    }
    if (T == Q5_0 || T == Q5_1) {
        const u32 e = i % 32, at = T == Q5_0 ? 2 : 4;
        const u8* b = row + (u64)(i / 32) * (T == Q5_0 ? 22 : 24);
        const u32 high = b[at + e / 8] >> (e % 8) & 1;
        const u32 code = nibble32(b + at + 4, e) | high << 4;
        if (T == Q5_0) return __fmul_rn(half_at(b), (float)((int)code - 16));
        return __fadd_rn(__fmul_rn(half_at(b), (float)code), half_at(b + 2));
    }
    if (T == Q8_0) {
        const u8* b = row + (u64)(i / 32) * 34;
        return __fmul_rn(half_at(b), (float)(signed char)b[2 + i % 32]);
    }
    const u32 e = i % 256, h = e / 128, j = e % 128 / 32, l = e % 32;
    if (T == Q2_K) {
        const u8* b = row + (u64)(i / 256) * 84;
        const u32 scale = b[e / 16], code = b[16 + 32 * h + l] >> (2 * j) & 3;
        return __fsub_rn(__fmul_rn(__fmul_rn(half_at(b + 80), (float)(scale & 15)), (float)code),
                         __fmul_rn(half_at(b + 82), (float)(scale >> 4)));
    }
    if (T == Q3_K) {
        const u8* b = row + (u64)(i / 256) * 110;
        const u8* sc = b + 96;
        const u32 k = e / 16;
        const u32 low_scale = k < 8 ? sc[k] & 15 : sc[k - 8] >> 4;
        const int scale = (int)(low_scale | (sc[8 + k % 4] >> (2 * (k / 4)) & 3) << 4) - 32;
        const int low = b[32 + 32 * h + l] >> (2 * j) & 3;
        const int code = (b[l] >> (4 * h + j) & 1) ? low : low - 4;
        return __fmul_rn(__fmul_rn(half_at(b + 108), (float)scale), (float)code);
    }
    if (T == Q4_K || T == Q5_K) {
        const u8* b = row + (u64)(i / 256) * (T == Q4_K ? 144 : 176);
        const u32 s = e / 32;
        float scale, min;
        scale_and_min(b + 4, s, scale, min);
        u32 code = b[(T == Q4_K ? 16 : 48) + 32 * (s / 2) + l] >> (4 * (s % 2)) & 15;
        if (T == Q5_K) code |= (b[16 + l] >> s & 1) << 4;
        return __fsub_rn(__fmul_rn(__fmul_rn(half_at(b), scale), (float)code), __fmul_rn(half_at(b + 2), min));
    }
    if (T == Q6_K) {
        const u8* b = row + (u64)(i / 256) * 210;
        const u32 low = b[64 * h + 32 * (j & 1) + l] >> (4 * (j / 2)) & 15;
        const u32 high = b[128 + 32 * h + l] >> (2 * j) & 3;
        const int code = (int)(low | high << 4) - 32;
        return __fmul_rn(__fmul_rn(half_at(b + 208), (float)(signed char)b[192 + e / 16]), (float)code);
    }
    if (T == IQ4_NL) {
        const u8* b = row + (u64)(i / 32) * 18;
        return __fmul_rn(half_at(b), (float)IQ4_VALUES[nibble32(b + 2, i % 32)]);
    }
    if (T == IQ4_XS) {
        const u8* b = row + (u64)(i / 256) * 136;
        const u32 s = e / 32;
        const u32 low = b[4 + s / 2] >> (4 * (s % 2)) & 15, high = (b[2] | b[3] << 8) >> (2 * s) & 3;
        const float scale = __fmul_rn(half_at(b), (float)((int)(low | high << 4) - 32));
        return __fmul_rn(scale, (float)IQ4_VALUES[nibble32(b + 8 + 16 * s, l)]);
    }
    if (T == MXFP4) {
        const u8* b = row + (u64)(i / 32) * 17;
        return __fmul_rn(mxfp4_scale(b[0]), (float)MXFP4_VALUES[nibble32(b + 1, i % 32)]);
    }
    return 0.0f;
}

// Runs `BODY` with T the run-time type.
#define FOR_TYPE(type, BODY)                                            \
    switch (type) {                                                     \
        case F32: { constexpr int T = F32; BODY } break;                \
        case F16: { constexpr int T = F16; BODY } break;                \
        case BF16: { constexpr int T = BF16; BODY } break;              \
        case F64: { constexpr int T = F64; BODY } break;                \
        case Q4_0: { constexpr int T = Q4_0; BODY } break;              \
        case Q4_1: { constexpr int T = Q4_1; BODY } break;              \
        case Q5_0: { constexpr int T = Q5_0; BODY } break;              \
        case Q5_1: { constexpr int T = Q5_1; BODY } break;              \
        case Q8_0: { constexpr int T = Q8_0; BODY } break;              \
        case Q2_K: { constexpr int T = Q2_K; BODY } break;              \
        case Q3_K: { constexpr int T = Q3_K; BODY } break;              \
        case Q4_K: { constexpr int T = Q4_K; BODY } break;              \
        case Q5_K: { constexpr int T = Q5_K; BODY } break;              \
        case Q6_K: { constexpr int T = Q6_K; BODY } break;              \
        case IQ4_NL: { constexpr int T = IQ4_NL; BODY } break;          \
        case IQ4_XS: { constexpr int T = IQ4_XS; BODY } break;          \
        case MXFP4: { constexpr int T = MXFP4; BODY } break;            \
    }
