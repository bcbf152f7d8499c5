// A block a value head: its S in registers, what a row ends with, and what is kept at the end.
#pragma once
#include "recurrent_rows.cuh"

template <bool FULL, typename SHARED>
__device__ __forceinline__ Head<FULL, SHARED> head_of(const Recurrent& p, SHARED& room, const Seq& seq, u32 h) {
    const u32 group = p.value_heads / p.key_heads;
    return {p, room, seq, h, p.tiled ? h % p.key_heads : h / group, p.tiled ? h < p.key_heads : h % group == 0, 0, 0};
}
template <bool FULL, typename SHARED>
__device__ __forceinline__ float* stored_state(const Head<FULL, SHARED>& head) {
    return head.p.state + ((u64)head.seq.slot * head.p.value_heads + head.h) * head.key_dim() * head.value_dim();
}

// S of a warp's 16 columns.
using Whole = RegisterState<DIM / 8>;
__device__ __forceinline__ Part own_part() { return {(threadIdx.x >> 5) * 16, 0}; }

// The 16 rows from `grid`, which are sure: kept, or of tiles before this one.
template <bool FULL, typename SHARED>
__device__ __forceinline__ void fold_rows(const Head<FULL, SHARED>& head, Whole& s, u32 grid) {
    const Recurrent& p = head.p;
    auto& room = head.room;
    const u32 committed = head.seq.committed;
    const auto row_of = [&](u32 pos) { return p.step.seq_rows[head.seq.first + pos - committed]; };
    const auto row_at = [&](u32 j) {
        const u32 pos = grid + j, place = pos % WINDOW_ROWS;
        if (pos < committed) return Folded{room.window_keys[place], room.window_deltas[place]};
        const u32 row = row_of(pos);
        return Folded{head.key_row(row), head.delta_row(row)};
    };
    const auto g_at = [&](u32 j) {
        const u32 pos = grid + j;
        if (pos < committed) return room.window_g[pos % WINDOW_ROWS];
        return p.gates[(u64)row_of(pos) * 2 * p.value_heads + head.h];
    };
    fold(s, s, own_part(), head.key_dim(), head.value_dim(), row_at, g_at);
}

// A row's output, normed and gated where this launch does that.
template <bool FULL, typename SHARED>
__device__ __forceinline__ void put_row(const Head<FULL, SHARED>& head, u32 r, float4 o, float4 gate, float4 weight) {
    const Recurrent& p = head.p;
    const u64 place = (u64)r * head.deltas() + head.h * head.value_dim();
    if (!(p.mode & NORMS)) return head.store(p.out + place, head.value_dim(), o);
    float squares = length_squared(o);
    if (!FULL) {
        const u32 at = 4 * (threadIdx.x & 31);
        const float x[4] = {o.x, o.y, o.z, o.w};
        squares = 0.0f;
        for (u32 i = 0; i < 4; i++)
            if (at + i < head.value_dim()) squares = __fmaf_rn(x[i], x[i], squares);
        squares = warp_sum(squares);
    }
    o = scaled(o, rsqrtf(squares / (float)head.value_dim() + p.eps));
    const float y[4] = {o.x * weight.x * gate.x * quick_sigmoid(gate.x), o.y * weight.y * gate.y * quick_sigmoid(gate.y),
                        o.z * weight.z * gate.z * quick_sigmoid(gate.z), o.w * weight.w * gate.w * quick_sigmoid(gate.w)};
    head.store(p.normed + place, head.value_dim(), make_float4(y[0], y[1], y[2], y[3]));
    if (p.image) image_store(p.image, p.shape, r, head.h, y);
}

// Of the step's sequence `nth`: what the value heads of a key head share enters the window when the last of them is done with what it pushes out.
template <bool FULL, typename SHARED>
__device__ __forceinline__ void keep_shared(const Head<FULL, SHARED>& head, u32 nth) {
    const Recurrent& p = head.p;
    const u32 n_sure = head.seq.n_sure, group = p.value_heads / p.key_heads, at = 4 * (threadIdx.x & 31);
    if (!head.keeps_late()) return;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)
        head.room.is_last = atomicInc(p.done + nth * p.key_heads + head.key_head, group - 1) == group - 1;
    __syncthreads();
    if (!head.room.is_last) return;
    __threadfence();
    for (u32 local = (n_sure > WINDOW_ROWS ? n_sure - WINDOW_ROWS : 0) + (threadIdx.x >> 5); local < n_sure; local += WARPS) {
        const u64 r = p.step.seq_rows[head.seq.first + local];
        const u32 pos = head.seq.committed + local;
        float *window = head.window_row(pos) + head.q_at(), *kept = head.kept_row(pos);
        const float *key = p.prepared + r * head.width() + head.k_at(), *row = p.qkv + r * head.width();
#pragma unroll
        for (u32 i = 0; i < 4; i++)
            // Perhaps another block's, so not from a cache of this one.
            if (at + i < head.key_dim()) window[at + i] = __ldcg(key + at + i);
        if (local + CONV_ROWS < n_sure) continue;
        head.store(kept + head.q_at(), head.key_dim(), head.load(row + head.q_at(), head.key_dim()));
        head.store(kept + head.k_at(), head.key_dim(), head.load(row + head.k_at(), head.key_dim()));
    }
}

