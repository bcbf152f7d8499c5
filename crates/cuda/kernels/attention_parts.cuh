// Parameters of the attention kernels; chunks of the context and instructions of those on tensor cores.
#pragma once
#include "image.cuh"
#include "step.cuh"

struct Attention {
    Step step;
    const float* q;
    float* out;
    const void* kv;  // [page, k or v, kv head, position, d]
    const float* sinks;
    // On tensor cores [row of the launch, head, MAX_CHUNKS, 4 + d]: max, sum, none, none, weighted values. Otherwise
    // [row of the launch, head, SPLITS, d + 2] without the gap.
    float* partials;
    u32* done;  // zero between launches: [row, kv head] four times, one more; otherwise [row, kv head, head block]
    u8* image;  // of `out` for the linear kernels, where they want one and a warp has whole blocks of it
    float scale;
    // Rows of the launch: `n_rows` from the first, of `seq_rows` on tensor cores, otherwise of the step.
    u32 first_row, n_rows, heads, kv_heads, d, q_stride, window, see_ahead, cls, kv_type, gated;
    u32 head_blocks;            // of the heads that share a key head, where blocks do not take all of them
    u32 n_blocks, n_counters;   // of the launch; from a counter to its second, third and fourth
    u32 n_finishers;            // blocks that put a row's chunks together, each for some of the heads of a key head
    u32 walks;                  // whether prompts' rows have a launch of their own, or ALL_WALK
    ImageShape shape;
};

// Bounds of chunks: one page at first, so that a short context fills the device, then more, so that a long one leaves few
// results to put together. The last has no end.
#define MAX_CHUNKS 124u
#define SHORT_CHUNKS 32u  // of one page
__device__ __forceinline__ u32 chunk_of(u32 page) {
    const u32 chunk = page < SHORT_CHUNKS ? page : page < 128 ? 32 + (page - 32) / 8 : page < 512 ? 44 + (page - 128) / 16 : 68 + (page - 512) / 64;
    return min(chunk, MAX_CHUNKS - 1);
}
__device__ __forceinline__ u32 chunk_start(u32 chunk) {
    if (chunk >= MAX_CHUNKS) return ~0u;
    return chunk < SHORT_CHUNKS ? chunk : chunk < 44 ? 32 + (chunk - 32) * 8 : chunk < 68 ? 128 + (chunk - 44) * 16 : 512 + (chunk - 68) * 64;
}

// Positions a row sees.
__device__ __forceinline__ u32 from_of(const Attention& p, u32 pos) { return p.window && pos + 1 > p.window ? pos + 1 - p.window : 0; }
__device__ __forceinline__ u32 end_of(const Attention& p, u32 sure_end, u32 pos) { return p.see_ahead ? max(sure_end, pos + 1) : pos + 1; }

// Rows of a sequence, from its first on, that a launch of their own takes: a prompt's, whose keys lie in pages as
// committed ones do.
__device__ __forceinline__ u32 n_walked(const Attention& p, const Seq& seq) {
    return p.walks == ALL_WALK || (p.walks && seq.n_sure >= PROMPT_ROWS) ? seq.n_sure : 0;
}

// A sequence's rows of the launch, in groups that share chunks, and the committed pages. The last chunk may have more of them than
// there are: its rows then go on from what those give (`is_cut`).
struct Span {
    u32 first_index, end_index, n_groups, first_page, end_page, first_chunk, n_chunks;
    bool is_cut;
    __device__ __forceinline__ u32 n_short() const { return min(first_chunk + n_chunks, SHORT_CHUNKS) - min(first_chunk, SHORT_CHUNKS); }
};
__device__ __forceinline__ Span span_of(const Attention& p, const Seq& seq, u32 most) {
    Span s;
    s.first_index = max(seq.first + n_walked(p, seq), p.first_row);
    s.end_index = min(seq.first + seq.n_rows, p.first_row + p.n_rows);
    s.n_groups = s.first_index < s.end_index ? (s.end_index - s.first_index + most - 1) / most : 0;
    s.first_page = from_of(p, seq.committed) / PAGE;
    s.end_page = seq.committed / PAGE;
    s.first_chunk = chunk_of(s.first_page);
    const u32 end_chunk = chunk_of(s.end_page);
    s.is_cut = max(chunk_start(end_chunk), s.first_page) < s.end_page;
    s.n_chunks = end_chunk - s.first_chunk + s.is_cut;
    return s;
}

__device__ __forceinline__ float power(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// A running softmax over chunks, in order: what was there is to be multiplied by `old`, the chunk's by `added`.
struct Merge {
    float max, total;
};
__device__ __forceinline__ float2 merge(Merge& all, float max, float total) {
    const float now = fmaxf(all.max, max), zero = now == -INFINITY_F ? 0.0f : now;
    const float old = power(all.max - zero), added = power(max - zero);
    all.max = now;
    all.total = __fmaf_rn(total, added, all.total * old);
    return make_float2(old, added);
}
__device__ __forceinline__ Merge merge_start(const Attention& p, u32 head) {
    if (!p.sinks) return {-INFINITY_F, 0.0f};
    return {p.sinks[head] * 1.4426950408889634f, 1.0f};
}

template <bool BF16>
__device__ __forceinline__ u16 to_16(float x) {
    return BF16 ? f32_to_bf16(x) : f32_to_f16(x);
}
template <bool BF16>
__device__ __forceinline__ float from_16(u16 h) {
    return BF16 ? bf16_to_f32(h) : f16_to_f32(h);
}
// Two numbers as two of 16 bits, and two more with what that left out.
template <bool BF16>
__device__ __forceinline__ void in_two(float a, float b, u32& high, u32& low) {
    const u16 ha = to_16<BF16>(a), hb = to_16<BF16>(b);
    high = ha | (u32)hb << 16;
    low = to_16<BF16>(a - from_16<BF16>(ha)) | (u32)to_16<BF16>(b - from_16<BF16>(hb)) << 16;
}

template <bool BF16>
__device__ __forceinline__ void mma16(float (&d)[4], uint4 a, u32 b0, u32 b1) {
    if (BF16)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}
// 16 rows of 16 numbers from shared memory as an operand A: lanes have the addresses of rows, then of their second halves.
__device__ __forceinline__ uint4 load_matrices(u32 from) {
    uint4 a;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(a.x), "=r"(a.y), "=r"(a.z), "=r"(a.w) : "r"(from) : "memory");
    return a;
}
// 16 rows of 16 (8) numbers as two (one) operands B.
__device__ __forceinline__ void load_transposed(u32 (&first)[2], u32 (&second)[2], u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(first[0]), "=r"(first[1]), "=r"(second[0]), "=r"(second[1])
                 : "r"(from)
                 : "memory");
}
__device__ __forceinline__ void load_transposed(u32 (&only)[2], u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];" : "=r"(only[0]), "=r"(only[1]) : "r"(from) : "memory");
}
__device__ __forceinline__ u32 load_acquire(const u32* p) {
    u32 v;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
