// Accepted rows become permanent: compacted to the places of their positions. Nothing is computed again.
#include "keep.cuh"

struct KvLayer {
    void* kv;
    u32 kv_heads, d, cls, type;
};

// accepted: [sequence, 1 + PATH]: how many rows after the sure ones, then those rows.
struct CommitKv {
    Step step;
    const u32* accepted;
    const KvLayer* layers;
};

template <typename T>
__device__ __forceinline__ void compact(T* kv, const CommitKv& p, const KvLayer& l, u32 plane, u32 s, u32 i) {
    const u32* rows = p.accepted + s * (1 + PATH);
    // A row's slot is never before its position, so going forward overwrites nothing that is still to be moved.
    for (u32 n = 0; n < rows[0]; n++) {
        const Row row = p.step.rows[rows[1 + n]];
        const u32 from = row.kv_slot, to = row.pos;
        if (from == to) continue;
        const u64 a = ((u64)page_of(p.step, s, l.cls, from) * 2 * l.kv_heads + plane) * PAGE + from % PAGE;
        const u64 b = ((u64)page_of(p.step, s, l.cls, to) * 2 * l.kv_heads + plane) * PAGE + to % PAGE;
        kv[b * l.d + i] = kv[a * l.d + i];
    }
}

// A block per (layer, head of k or v, sequence), a thread per channel.
extern "C" __global__ void __launch_bounds__(256) commit_kv(const __grid_constant__ CommitKv p) {
    pdl_wait();
    const KvLayer l = p.layers[blockIdx.x];
    if (blockIdx.y >= 2 * l.kv_heads) return;
    for (u32 i = threadIdx.x; i < l.d; i += blockDim.x) {
        if (l.type != F32_KV) compact((u16*)l.kv, p, l, blockIdx.y, blockIdx.z, i);
        else compact((float*)l.kv, p, l, blockIdx.y, blockIdx.z, i);
    }
}

struct CommitRecurrent {
    Step step;
    const u32* accepted;
    const KeptLayer* layers;
};

// A block per (layer, accepted row, sequence).
extern "C" __global__ void __launch_bounds__(256) commit_recurrent(const __grid_constant__ CommitRecurrent p) {
    pdl_wait();
    const u32* rows = p.accepted + blockIdx.z * (1 + PATH);
    if (blockIdx.y >= rows[0]) return;
    const u32 row = rows[1 + blockIdx.y];
    // Of two rows with one place in the convolution's ring the later must win.
    keep_row(p.layers[blockIdx.x], p.step.seqs[blockIdx.z].slot, p.step.rows[row].pos, row, blockIdx.y + CONV_ROWS >= rows[0]);
}

#define MAX_TAPS 16

struct CommitTaps {
    Step step;
    const u32* accepted;
    float* taps;  // [slot, TAP_ROWS, width]
    u32 width, n;
    const float* acts[MAX_TAPS];
    u32 widths[MAX_TAPS];
};

// A block per (one of the last TAP_ROWS sure rows or an accepted one, sequence). Of rows with one place the later wins.
extern "C" __global__ void __launch_bounds__(256) commit_taps(const __grid_constant__ CommitTaps p) {
    pdl_wait();
    const Seq seq = p.step.seqs[blockIdx.y];
    const u32* rows = p.accepted + blockIdx.y * (1 + PATH);
    const u32 total = seq.n_sure + rows[0], first = total > TAP_ROWS ? total - TAP_ROWS : 0, i = first + blockIdx.x;
    if (i >= total) return;
    const u32 row = i < seq.n_sure ? p.step.seq_rows[seq.first + i] : rows[1 + i - seq.n_sure];
    float* out = p.taps + ((u64)seq.slot * TAP_ROWS + p.step.rows[row].pos % TAP_ROWS) * p.width;
    for (u32 t = 0; t < p.n; t++) {
        const u32 width = p.widths[t];
        for (u32 c = threadIdx.x; c < width; c += blockDim.x) out[c] = p.acts[t][(u64)row * width + c];
        out += width;
    }
}
