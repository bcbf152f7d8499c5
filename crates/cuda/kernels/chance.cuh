// Noise and weights of a draw, line by line as plan/src/draw/chance.rs has them. Every operation is rounded by itself: hosts and
// devices must give the same bits.
#pragma once
#include "common.cuh"

#define REACH_OF_CHANCE 32.0f
#define MOST_CHANCE 22.9f
#define LN2_HIGH 0.6933594f
#define LN2_LOW -2.1219444e-4f

__device__ __forceinline__ float mul_add(float a, float b, float c) { return __fadd_rn(__fmul_rn(a, b), c); }

__device__ __forceinline__ u64 mix(u64 x) {
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 32) * 0xd6e8feb86659fd93ull;
    x = (x ^ x >> 32) * 0xd6e8feb86659fd93ull;
    return x ^ x >> 32;
}

// ln(2^exponent (1 + f))
__device__ __forceinline__ float ln(float exponent, float f) {
    const float square = __fmul_rn(f, f);
    float p = 7.0376836e-2f;
    p = mul_add(p, f, -1.151461e-1f);
    p = mul_add(p, f, 1.1676999e-1f);
    p = mul_add(p, f, -1.2420141e-1f);
    p = mul_add(p, f, 1.4249323e-1f);
    p = mul_add(p, f, -1.6668058e-1f);
    p = mul_add(p, f, 2.0000715e-1f);
    p = mul_add(p, f, -2.4999994e-1f);
    p = mul_add(p, f, 3.333333e-1f);
    const float low = __fadd_rn(__fmul_rn(__fmul_rn(p, f), square), __fmul_rn(exponent, LN2_LOW));
    return __fadd_rn(__fadd_rn(f, __fsub_rn(low, __fmul_rn(0.5f, square))), __fmul_rn(exponent, LN2_HIGH));
}

// y = 2^exponent (1 + above)
__device__ __forceinline__ void split(float y, float& exponent, float& above) {
    const int bits = __float_as_int(y), e = (bits - 0x3f3504f3) >> 23;
    exponent = __int2float_rn(e);
    above = __fsub_rn(__int_as_float(bits - (int)((u32)e << 23)), 1.0f);
}

__device__ __forceinline__ u32 bits_of(u64 chance, u32 token) { return (u32)(mix(chance ^ token) >> 32); }

// Called: inside unrolled loops it would be most of a kernel.
__device__ __noinline__ float gumbel(u32 bits) {
    const float x = mul_add(__uint2float_rn(bits), 1.0f / 4294967296.0f, 1.0f / 8589934592.0f);
    float exponent, above;
    split(fmaxf(__fsub_rn(1.0f, x), 1.0f / 33554432.0f), exponent, above);
    split(-ln(exponent, exponent == 0.0f ? -x : above), exponent, above);
    return -ln(exponent, above);
}

// Whether noise of these bits can be `least`, or as good as: most tokens of a row end here, in a fifth of the instructions. Noise g
// is at least that only for bits of less than e^-g; the thousandth is for roundings, of this estimate as well.
__device__ __forceinline__ bool can_reach(u32 bits, float least) {
    float most;
    asm("ex2.approx.f32 %0, %1;" : "=f"(most) : "f"(-1.44269504f * least));
    // Bits as a number from 1 to 2, rounded down.
    return __uint_as_float(0x3f800000u | bits >> 9) <= 1.001f * most + 1.0f;
}

// e^-distance in units of 2^-31
__device__ __forceinline__ u32 weight_at(float distance) {
    const float n = __fsub_rn(mul_add(distance, -1.44269504f, 12582912.0f), 12582912.0f);
    const float r = __fsub_rn(__fsub_rn(-distance, __fmul_rn(n, LN2_HIGH)), __fmul_rn(n, LN2_LOW));
    float p = 1.9875691e-4f;
    p = mul_add(p, r, 1.3981999e-3f);
    p = mul_add(p, r, 8.333452e-3f);
    p = mul_add(p, r, 4.1665796e-2f);
    p = mul_add(p, r, 1.6666665e-1f);
    p = mul_add(p, r, 5e-1f);
    const float e = __fadd_rn(__fadd_rn(__fmul_rn(__fmul_rn(p, r), r), r), 1.0f);
    return __float2uint_rz(__fmul_rn(e, __int_as_float((__float2int_rz(n) + 127 + 31) << 23)));
}
