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

// A row's output, normed and gated where this launch does that. `image_at()`: its place in the image, perhaps found before.
template <bool FULL, typename SHARED, typename ImageAt>
__device__ __forceinline__ void put_row(const Head<FULL, SHARED>& head, u32 r, float4 o, float4 gate, float4 weight, ImageAt image_at) {
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
    if (!p.image) return;
    const ImagePlace to = image_at();
    image_store_in(to.cell, to.rest, r % 8, y);
}

template <bool FULL, typename SHARED>
__device__ __forceinline__ void keep_shared(const Head<FULL, SHARED>& head, u32 nth) {
    keep_shared<WARPS, false>(head, nth, head.p.value_heads / head.p.key_heads);
}
