// Rows and blocks of positions of the prompts of a step (recurrent_walk.cu, recurrent_rule.cu).
#pragma once
#include "recurrent_rows.cuh"

// The sequence, the row's place in it and its position, for a place among all rows.
struct Place {
    Seq seq;
    u32 local, pos, row;
    bool is_walked;
};
__device__ __forceinline__ Place place_of(const Recurrent& p, u32 index) {
    Place at = {};
    if (index >= p.step.counts[0]) return at;
    at.row = p.step.seq_rows[index];
    at.seq = p.step.seqs[p.step.rows[at.row].seq];
    at.local = index - at.seq.first;
    at.pos = at.seq.committed + at.local;
    at.is_walked = is_walked(p, at.seq);
    return at;
}

struct Widths {
    u32 keys, deltas, all, window;
};
__device__ __forceinline__ Widths widths_of(const Recurrent& p) {
    const u32 keys = p.key_heads * DIM, deltas = p.value_heads * DIM;
    return {keys, deltas, 2 * keys + deltas, keys + deltas + p.value_heads};
}
__device__ __forceinline__ const float* window_row(const Recurrent& p, const Seq& seq, u32 pos) {
    return p.window + ((u64)seq.slot * WINDOW_ROWS + pos % WINDOW_ROWS) * widths_of(p).window;
}

// A block of 16 positions of a prompt: rows at places `first` to `end` of it.
struct Block {
    Seq seq;
    u32 number, first, end;
    bool is_there;
    // Positions from the grid to its first, none for the first block of all; all places before its own rows.
    __device__ __forceinline__ u32 n_back() const { return number ? TILE : 0; }
    __device__ __forceinline__ u32 grid() const { return number ? (number - 1) * TILE : 0; }
    __device__ __forceinline__ u32 index(u32 place) const { return seq.first + number * TILE + place - seq.committed; }
};
__device__ __forceinline__ Block block_at(const Seq& seq, u32 number) {
    const u32 end = seq.committed + seq.n_sure;
    return {seq, number, number == seq.committed / TILE ? seq.committed % TILE : 0, min(TILE, end - number * TILE), true};
}
__device__ __forceinline__ Block find_block(const Recurrent& p, u32 nth) {
    const u32 n_seqs = p.step.counts[2];
#pragma unroll 1
    for (u32 s = 0; s < n_seqs; s++) {
        const Seq seq = p.step.seqs[s];
        if (!is_walked(p, seq)) continue;
        const u32 first = seq.committed / TILE, n = (seq.committed + seq.n_sure - 1) / TILE - first + 1;
        if (nth < n) return block_at(seq, first + nth);
        nth -= n;
    }
    return {};
}
