// Accepted rows become permanent: compacted to the places of their positions. Nothing is computed again.
#include "keep.cuh"

#define MAX_TAPS 16
#define MAX_SEQS 64

struct KvLayer {
    void* kv;
    u32 kv_heads, d, cls, type;
};

struct Taps {
    float* kept;  // [slot, TAP_ROWS, width]
    u32 width, n;
    const float* acts[MAX_TAPS];
    u32 widths[MAX_TAPS];
};

// One tap of one of the last TAP_ROWS rows of `n_sure` sure and `rows[0]` accepted ones. Of rows with one place the later wins.
__device__ __forceinline__ void keep_tap(const Step& step, const Taps& taps, const Seq& seq, const u16* rows, u32 nth) {
    const u32 total = seq.n_sure + (rows ? rows[0] : 0), first = total > TAP_ROWS ? total - TAP_ROWS : 0, i = first + nth / taps.n, tap = nth % taps.n;
    if (i >= total) return;
    const u32 row = i < seq.n_sure ? step.seq_rows[seq.first + i] : rows[1 + i - seq.n_sure];
    float* out = taps.kept + ((u64)seq.slot * TAP_ROWS + step.rows[row].pos % TAP_ROWS) * taps.width;
    for (u32 t = 0; t < tap; t++) out += taps.widths[t];
    copy_row(out, taps.acts[tap] + (u64)row * taps.widths[tap], taps.widths[tap]);
}

struct SureTaps {
    Step step;
    Taps taps;
};

// At the end of a step: a block per (tap of one of the last TAP_ROWS sure rows, sequence), for as many sequences as the step's
// data says.
extern "C" __global__ void __launch_bounds__(256) sure_taps(const __grid_constant__ SureTaps p) {
    if (blockIdx.y >= p.step.counts[2]) return pdl_idle();
    const Seq seq = p.step.seqs[blockIdx.y];
    pdl_wait();
    keep_tap(p.step, p.taps, seq, nullptr, blockIdx.x);
}

struct ToHost {
    const u32* counts;
    const u32* from;
    u32* to;  // host memory that the device can write
    u32 words, pad;
};

// What is read of a step's logit rows, `words` of each. A copy at the end of a graph takes 5 us, this kernel less than 2.
extern "C" __global__ void __launch_bounds__(256) to_host(const __grid_constant__ ToHost p) {
    const u32 n = p.counts[1] * p.words;
    pdl_wait();
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) p.to[i] = p.from[i];
}

struct Commit {
    Step step;
    Taps taps;
    const KvLayer* kv;
    const KeptLayer* kept;
    // Blocks of a sequence: heads of k or v of a layer, then accepted rows of a layer, then taps.
    u32 kv_blocks, planes, kept_blocks, longest;
    u32 first, pad;
    // Of a sequence: how many rows after the sure ones, then those rows. Where a round found them, or, as they are few, with
    // the launch.
    const u16* found;
    u16 accepted[MAX_SEQS][1 + PATH];
};

// Where accepted rows' keys or values are and where they go to, in units of a head; the same where nothing moves.
struct Moves {
    u64 from[PATH], to[PATH];
};

template <typename T>
__device__ __forceinline__ void compact(T* kv, const Moves& moves, u32 n, u32 d, u32 i) {
    // All are read before one is written, and asked for together.
    T x[PATH];
#pragma unroll
    for (u32 k = 0; k < PATH; k++)
        if (k < n && moves.from[k] != moves.to[k]) x[k] = kv[moves.from[k] * d + i];
#pragma unroll
    for (u32 k = 0; k < PATH; k++)
        if (k < n && moves.from[k] != moves.to[k]) kv[moves.to[k] * d + i] = x[k];
}

// All of it in one launch, a sequence for each blockIdx.y: three took the host longer than the device.
extern "C" __global__ void __launch_bounds__(256) commit(const __grid_constant__ Commit p) {
    const u32 s = p.first + blockIdx.y;
    const u16* rows = p.found ? p.found + s * (1 + PATH) : p.accepted[blockIdx.y];
    u32 block = blockIdx.x;
    pdl_wait();
    if (s >= p.step.counts[2]) return;
    if (block < p.kv_blocks) {
        const KvLayer l = p.kv[block / p.planes];
        const u32 plane = block % p.planes;
        if (plane >= 2 * l.kv_heads) return;
        __shared__ Moves moves;
        if (threadIdx.x < rows[0]) {
            const Row row = p.step.rows[rows[1 + threadIdx.x]];
            const auto at = [&](u32 slot) { return ((u64)page_of(p.step, s, l.cls, slot) * 2 * l.kv_heads + plane) * PAGE + slot % PAGE; };
            moves.from[threadIdx.x] = at(row.kv_slot), moves.to[threadIdx.x] = at(row.pos);
        }
        __syncthreads();
        for (u32 i = threadIdx.x; i < l.d; i += blockDim.x) {
            if (l.type != F32_KV) compact((u16*)l.kv, moves, rows[0], l.d, i);
            else compact((float*)l.kv, moves, rows[0], l.d, i);
        }
        return;
    }
    block -= p.kv_blocks;
    const Seq seq = p.step.seqs[s];
    if (block < p.kept_blocks) {
        const u32 n = block % p.longest;
        if (n >= rows[0]) return;
        // Of two rows with one place in the convolution's ring the later must win.
        keep_row(p.kept[block / p.longest], seq.slot, p.step.rows[rows[1 + n]].pos, rows[1 + n], n + CONV_ROWS >= rows[0]);
        return;
    }
    keep_tap(p.step, p.taps, seq, rows, block - p.kept_blocks);
}
