// Products of four warps together, which read weights from registers and inputs from shared memory, and run beside the
// instructions that follow: only sm_90a has them. More rows take no more of a warp's time.
#pragma once
#include "common.cuh"
#include "image.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HAS_WGMMA 1

// Where a step's 16 columns of the input lie, in squares of 8 x 8 values, 128 bytes each: the second 8 columns after the first, the
// next 8 rows `tile_bytes` on. `at`: the low word, of a step's place in shared memory; a step on is WGMMA_STEP more.
#define WGMMA_STEP (256u >> 4)
__device__ __forceinline__ u32 wgmma_place(u32 shared) { return shared >> 4 | (128u >> 4) << 16; }
__device__ __forceinline__ u64 wgmma_input(u32 at, u32 tile_bytes) { return at | (u64)(tile_bytes >> 4) << 32; }

__device__ __forceinline__ void wgmma_operands(u32 (&a)[4]) { asm volatile("" : "+r"(a[0]), "+r"(a[1]), "+r"(a[2]), "+r"(a[3])::"memory"); }
__device__ __forceinline__ void wgmma_sums(float (&d)[4]) { asm volatile("" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])::"memory"); }
// Registers that ordinary instructions wrote may be read by what follows.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until no more than LEFT groups are under way.
template <int LEFT>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

// A role's share of the registers.
template <int N>
__device__ __forceinline__ void registers_more() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N>
__device__ __forceinline__ void registers_fewer() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

// d = A B + (d or nothing): A 4 x 16 outputs x 16 columns, B 16 columns x 8 TILES rows.
#define D(n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define D4(n) D(n), D(n + 1), D(n + 2), D(n + 3)
#define P8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define P16 P8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define P24 P16 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define P32 P24 ",%24,%25,%26,%27,%28,%29,%30,%31"
// Name and type; names of the sums, of A, B and whether to add; operands of the sums.
#define WGMMA(NAME, TYPE, TILES, N, D_NAMES, A_NAMES, B_NAME, ADD_NAME, ...)                                                      \
    __device__ __forceinline__ void NAME(float (&d)[TILES][4], const u32 (&a)[4], u64 b, u32 add) {                                \
        asm volatile("{ .reg .pred p; setp.ne.b32 p, " ADD_NAME ", 0;\nwgmma.mma_async.sync.aligned.m64n" N "k16.f32." TYPE "." TYPE \
                     " {" D_NAMES "}, {" A_NAMES "}, " B_NAME ", p, 1, 1, 0; }"                                                    \
                     : __VA_ARGS__                                                                                                 \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));                                              \
    }
WGMMA(wgmma, "f16", 1, "8", "%0,%1,%2,%3", "%4,%5,%6,%7", "%8", "%9", D(0))
WGMMA(wgmma, "f16", 2, "16", P8, "%8,%9,%10,%11", "%12", "%13", D(0), D(1))
WGMMA(wgmma, "f16", 3, "24", P8 ",%8,%9,%10,%11", "%12,%13,%14,%15", "%16", "%17", D(0), D(1), D(2))
WGMMA(wgmma, "f16", 4, "32", P16, "%16,%17,%18,%19", "%20", "%21", D4(0))
WGMMA(wgmma, "f16", 6, "48", P24, "%24,%25,%26,%27", "%28", "%29", D4(0), D(4), D(5))
WGMMA(wgmma, "f16", 8, "64", P32, "%32,%33,%34,%35", "%36", "%37", D4(0), D4(4))
WGMMA(wgmma_bf16, "bf16", 1, "8", "%0,%1,%2,%3", "%4,%5,%6,%7", "%8", "%9", D(0))
WGMMA(wgmma_bf16, "bf16", 2, "16", P8, "%8,%9,%10,%11", "%12", "%13", D(0), D(1))
WGMMA(wgmma_bf16, "bf16", 4, "32", P16, "%16,%17,%18,%19", "%20", "%21", D4(0))
WGMMA(wgmma_bf16, "bf16", 8, "64", P32, "%32,%33,%34,%35", "%36", "%37", D4(0), D4(4))
#undef D
#endif
