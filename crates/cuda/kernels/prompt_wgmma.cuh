// The warpgroup's matrix instructions of sm_90a. Four warps together: d += A B with A 64 outputs x 16 columns in registers, a warp's 16
// outputs as in mma.m16n8k16, and B 16 columns x N rows in shared memory, as prompt_image.cuh lays them.
#pragma once
#include "linear_wgmma.cuh"
#include "prompt_params.cuh"

#if PROMPT_WGMMA

// Eight rows of 128 bytes, swizzled; the next eight lie 1024 bytes on. A step of 16 columns is 32 bytes further.
__device__ __forceinline__ u64 wgmma_rows(u32 address) { return (u64)(address >> 4) | 1ull << 16 | (u64)(1024 >> 4) << 32 | 1ull << 62; }

// A lane's sums, and names of as many.
#define S(n) "+f"(d[n])
#define S8(n) S(n), S(n + 1), S(n + 2), S(n + 3), S(n + 4), S(n + 5), S(n + 6), S(n + 7)
#define S16(n) S8(n), S8(n + 8)
#define P48 P32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define P64 P48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define P80 P64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define WGMMA_ROWS(ROWS, COUNT, NAMES, A_NAMES, B_NAME, ...)                                                                      \
    __device__ __forceinline__ void wgmma(float (&d)[COUNT], const u32 (&a)[4], u64 b) {                                           \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" ROWS "k16.f32.f16.f16 {" NAMES "}, {" A_NAMES "}, " B_NAME ", 1, 1, 1, 0;"  \
                     : __VA_ARGS__                                                                                                 \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                                        \
    }
WGMMA_ROWS("64", 32, P32, "%32,%33,%34,%35", "%36", S16(0), S16(16))
WGMMA_ROWS("96", 48, P48, "%48,%49,%50,%51", "%52", S16(0), S16(16), S16(32))
WGMMA_ROWS("128", 64, P64, "%64,%65,%66,%67", "%68", S16(0), S16(16), S16(32), S16(48))
WGMMA_ROWS("160", 80, P80, "%80,%81,%82,%83", "%84", S16(0), S16(16), S16(32), S16(48), S16(64))
#undef S
#endif
