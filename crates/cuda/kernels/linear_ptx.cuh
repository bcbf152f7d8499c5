// Instructions the linear kernels need by name.
#pragma once
#include "common.cuh"

__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

__device__ __forceinline__ const u8* shared_at(u32 address) { return (const u8*)__cvta_shared_to_generic(address); }
// A number kept in a register: what can be made again the compiler makes again, in every stage.
__device__ __forceinline__ u32 kept(u32 v) {
    asm volatile("" : "+r"(v));
    return v;
}
// (An address by a read of a special register, that takes as long as a load.)
__device__ __forceinline__ u32 shared_register(const void* p) { return kept(shared_address(p)); }

// 16 bytes at once, whatever of them is used where.
__device__ __forceinline__ uint4 load_shared_16(u32 address) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address) : "memory");
    return v;
}

__device__ __forceinline__ void barrier_init(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_arrive(u32 barrier) {
    asm volatile("{ .reg .b64 t; mbarrier.arrive.shared.b64 t, [%0]; }" ::"r"(barrier) : "memory");
}
// Before a copy may complete on them.
__device__ __forceinline__ void barrier_init_visible() {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
// The loop is inside: one that the compiler sees makes all that follows look different from lane to lane, and 40 moves to uniform
// registers were made of it in every stage.
__device__ __forceinline__ void barrier_wait(u32 barrier, u32 parity) {
#if __CUDA_ARCH__ >= 900
#define WAIT "mbarrier.try_wait.parity.shared.b64"
#else
#define WAIT "mbarrier.test_wait.parity.shared.b64"
#endif
    asm volatile("{ .reg .pred p;\nagain: " WAIT " p, [%0], %1;\n@!p bra again; }" ::"r"(barrier), "r"(parity) : "memory");
#undef WAIT
}

// Of two with the same parity. Once each is most often enough.
__device__ __forceinline__ void barriers_wait(u32 first, u32 second, u32 parity) {
    asm volatile(
        "{ .reg .pred p, q;\n"
        "mbarrier.try_wait.parity.shared.b64 p, [%0], %2;\n"
        "mbarrier.try_wait.parity.shared.b64 q, [%1], %2;\n"
        "and.pred p, p, q;\n@p bra done;\n"
        "first: mbarrier.try_wait.parity.shared.b64 p, [%0], %2;\n@!p bra first;\n"
        "second: mbarrier.try_wait.parity.shared.b64 p, [%1], %2;\n@!p bra second;\n"
        "done: }" ::"r"(first), "r"(second), "r"(parity) : "memory");
}

// What lanes stored in shared memory is there for tensor cores and for the copy engine, once they have met.
__device__ __forceinline__ void fence_for_async() {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// Copies into shared memory that a lane waits for itself, in groups.
__device__ __forceinline__ void copy_16(u32 to, const u8* from) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void copy_4(u32 to, const float* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
// The lane's copies so far count as an arrival at a barrier.
__device__ __forceinline__ void copies_arrive(u32 barrier) { asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory"); }
__device__ __forceinline__ void copies_end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until no more than N groups are on their way.
template <int N>
__device__ __forceinline__ void copies_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// Copies into shared memory that complete on a barrier. From sm_90 a single lane starts one and the copy engine counts bytes;
// before, all lanes of a warp copy a share each and arrive when their own copies have landed.
#if __CUDA_ARCH__ >= 900
#define COPY_LANES 1u
__device__ __forceinline__ void copy_expect(u32 barrier, u32 bytes) {
    asm volatile("{ .reg .b64 t; mbarrier.arrive.expect_tx.shared.b64 t, [%0], %1; }" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void copy_input(u32 to, const u8* from, u32 bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
                 "r"(bytes), "r"(barrier)
                 : "memory");
}
__device__ __forceinline__ void copy_commit(u32) {}
// What nobody reads again soon.
__device__ __forceinline__ void copy_weights(u32 to, u64 from, u32 bytes, u32 barrier, u64 policy) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(to), "l"(from), "r"(bytes),
                 "r"(barrier), "l"(policy)
                 : "memory");
}
#else
#define COPY_LANES 32u
__device__ __forceinline__ void copy_expect(u32, u32) {}
__device__ __forceinline__ void copy_input(u32 to, const u8* from, u32 bytes, u32) {
    for (u32 at = (threadIdx.x & 31) * 16; at < bytes; at += 512) copy_16(to + at, from + at);
}
__device__ __forceinline__ void copy_commit(u32 barrier) { copies_arrive(barrier); }
#endif

// d += A B: A 16 outputs x 16 columns, B 16 columns x 8 rows, f16 with f32 sums.
__device__ __forceinline__ void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// B fragments of two steps of 16 columns: each lane says where a row of one of four squares is.
__device__ __forceinline__ uint4 load_squares(u32 of_lane) {
    uint4 v;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(of_lane));
    return v;
}
// From 512 bytes of a cell.
__device__ __forceinline__ uint4 load_columns_32(u32 cell) { return load_squares(cell + (threadIdx.x & 31) * 16); }

__device__ __forceinline__ u32 half2_mul(u32 a, u32 b) {
    u32 d;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}
__device__ __forceinline__ u32 half2_add(u32 a, u32 b) {
    u32 d;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}
__device__ __forceinline__ u32 half2_fma(u32 a, u32 b, u32 c) {
    u32 d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
__device__ __forceinline__ u32 bytes_of(u32 a, u32 b, u32 which) { return __byte_perm(a, b, which); }
// a * the low half of b + the low half of c; and the high. (Written so, the instruction takes a half twice; a byte
// permutation before it would be an instruction of its own.)
__device__ __forceinline__ u32 half2_fma_low(u32 a, u32 b, u32 c) {
    u32 d;
    asm("{ .reg .b16 bl, bh, cl, ch; .reg .b32 bb, cc; mov.b32 {bl, bh}, %2; mov.b32 {cl, ch}, %3; mov.b32 bb, {bl, bl}; mov.b32 cc, {cl, cl};\n"
        "fma.rn.f16x2 %0, %1, bb, cc; }"
        : "=r"(d)
        : "r"(a), "r"(b), "r"(c));
    return d;
}
__device__ __forceinline__ u32 half2_fma_high(u32 a, u32 b, u32 c) {
    u32 d;
    asm("{ .reg .b16 bl, bh, cl, ch; .reg .b32 bb, cc; mov.b32 {bl, bh}, %2; mov.b32 {cl, ch}, %3; mov.b32 bb, {bh, bh}; mov.b32 cc, {ch, ch};\n"
        "fma.rn.f16x2 %0, %1, bb, cc; }"
        : "=r"(d)
        : "r"(a), "r"(b), "r"(c));
    return d;
}

// Past L1, which other blocks' stores do not reach, and not moved or merged.
__device__ __forceinline__ float4 load_fresh(const float4* p) {
    float4 v;
    asm volatile("ld.relaxed.gpu.global.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ float load_fresh(const float* p) {
    float v;
    asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ void store_fresh(float4* p, float4 v) {
    asm volatile("st.relaxed.gpu.global.v4.f32 [%0], {%1,%2,%3,%4};" ::"l"(p), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
}
__device__ __forceinline__ void store_fresh(float* p, float v) { asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" ::"l"(p), "f"(v) : "memory"); }
