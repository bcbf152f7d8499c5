// A prompt's rows through a recurrent layer, by blocks of 16 absolute positions. Convolution, gates, products of keys and
// their decays do not depend on S, so all blocks of rows have them worked out at once (`walk_prepare`, `walk_weigh`); then
// four blocks a value head, a share of the columns each, go through the rows (recurrent_rule.cu); then norm, and what is kept
// (`walk_finish`). The arithmetic is recurrent.cu's, number by number.
#include "keep.cuh"
#include "recurrent_walk.cuh"

// Rows of a warp, so that what a convolution sees of the rows before is read once.
#define PREPARE_ROWS 8u

// The place behind one that is there.
__device__ __forceinline__ Place place_behind(const Recurrent& p, Place at, u32 index, u32 row) {
    if (at.local + 1 >= at.seq.n_rows) return place_of(p, index);
    at.local++, at.pos++, at.row = row;
    return at;
}

// Grid: (heads of q, k and v, one more for the gates; rows / 64).
extern "C" __global__ void __launch_bounds__(256) walk_prepare(const __grid_constant__ Recurrent p) {
    const Widths width = widths_of(p);
    const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, first = (blockIdx.y * WARPS + warp) * PREPARE_ROWS, count = p.step.counts[0];
    const u32 n_parts = 2 * p.key_heads + p.value_heads, channel = blockIdx.x * DIM + 4 * lane;
    const u32 n_rows = first < count ? min(PREPARE_ROWS, count - first) : 0, rows = lane < n_rows ? p.step.seq_rows[first + lane] : 0;
    Place at = place_of(p, first);
    float4 taps[4];
    if (blockIdx.x < n_parts)
#pragma unroll
        for (u32 i = 0; i < 4; i++) taps[i] = ((const float4*)p.conv)[channel + i];
    pdl_wait();
    pdl_next();
    if (blockIdx.x == n_parts) {
#pragma unroll 1
        for (u32 r = 0; r < n_rows; r++) {
            if (r > 0) at = place_behind(p, at, first + r, __shfl_sync(0xffffffffu, rows, r));
            for (u32 h = lane; at.is_walked && h < p.value_heads; h += 32) {
                const u64 row = at.row;
                const float a = p.a[row * p.value_heads + h] + p.dt_bias[h], b = p.b[row * p.value_heads + h];
                float* gates = p.gates + row * 2 * p.value_heads + h;
                gates[0] = p.decay[h] * (a > 20.0f ? a : log1pf(quick_exp(a)));
                gates[p.value_heads] = quick_sigmoid(b);
            }
        }
        return;
    }
    // The row `back` before one at `at`, where that is no row of the warp's.
    const auto load_back = [&](u32 index, u32 back) {
        if (back <= at.local) return *(const float4*)(p.qkv + (u64)p.step.seq_rows[index - back] * width.all + channel);
        if (back > at.pos) return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        const u64 kept = (u64)at.seq.slot * CONV_ROWS + (at.pos - back) % CONV_ROWS;
        return *(const float4*)(p.kept + kept * width.all + channel);
    };
    float4 own[PREPARE_ROWS], before[3];
#pragma unroll
    for (u32 r = 0; r < PREPARE_ROWS; r++) {
        const u64 row = __shfl_sync(0xffffffffu, rows, r);
        if (r < n_rows) own[r] = *(const float4*)(p.qkv + row * width.all + channel);
    }
    if (n_rows > 0)
#pragma unroll
        for (u32 back = 1; back < 4; back++) before[back - 1] = load_back(first, back);
#pragma unroll
    for (u32 r = 0; r < PREPARE_ROWS; r++) {
        if (r >= n_rows) return;
        if (r > 0) at = place_behind(p, at, first + r, __shfl_sync(0xffffffffu, rows, r));
        float4 x[4] = {own[r]};
#pragma unroll
        for (u32 back = 1; back < 4; back++) {
            x[back] = back <= r ? own[r - min(back, r)] : before[back - 1 - min(r, back - 1)];
            if (r > 0 && at.local < back) x[back] = load_back(first + r, back);
        }
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
        for (int back = 3; back >= 0; back--) {
            const auto tap = [&](const float4& of) { return back == 3 ? of.x : back == 2 ? of.y : back == 1 ? of.z : of.w; };
            sum.x = __fmaf_rn(tap(taps[0]), x[back].x, sum.x);
            sum.y = __fmaf_rn(tap(taps[1]), x[back].y, sum.y);
            sum.z = __fmaf_rn(tap(taps[2]), x[back].z, sum.z);
            sum.w = __fmaf_rn(tap(taps[3]), x[back].w, sum.w);
        }
        float4 y = make_float4(sum.x * quick_sigmoid(sum.x), sum.y * quick_sigmoid(sum.y), sum.z * quick_sigmoid(sum.z),
                               sum.w * quick_sigmoid(sum.w));
        if (blockIdx.x < 2 * p.key_heads)
            y = scaled(y, (blockIdx.x < p.key_heads ? rsqrtf((float)DIM) : 1.0f) * rsqrtf(length_squared(y) + 1e-6f));
        if (at.is_walked) *(float4*)(p.prepared + (u64)at.row * width.all + channel) = y;
    }
}

struct WeighRoom {
    float keys[REACH][STRIDE];  // by position from the grid
    float queries[TILE][STRIDE];
    float2 products[TILE][REACH];
    u32 row[TILE];
};

// Grid: (key heads, blocks of positions).
extern "C" __global__ void __launch_bounds__(256) walk_weigh(const __grid_constant__ Recurrent p) {
    __shared__ WeighRoom room;
    const Widths width = widths_of(p);
    const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane / 4, t = lane % 4, key_head = blockIdx.x;
    const Block block = find_block(p, blockIdx.y);
    const u32 n_back = block.n_back(), grid = block.grid(), committed = block.seq.committed;
    if (block.is_there && threadIdx.x >= block.first && threadIdx.x < block.end)
        room.row[threadIdx.x] = p.step.seq_rows[block.index(threadIdx.x)];
    if (!block.is_there) return pdl_idle();
    pdl_wait();
    pdl_next();
    __syncthreads();
    for (u32 j = warp; j < n_back + block.end; j += WARPS) {
        const u32 pos = grid + j;
        const float* key = window_row(p, block.seq, pos) + key_head * DIM;
        if (pos >= committed) {
            const u64 row = j >= n_back ? room.row[j - n_back] : p.step.seq_rows[block.seq.first + pos - committed];
            const float* prepared = p.prepared + row * width.all + key_head * DIM;
            key = prepared + width.keys;
            if (j >= n_back) *(float4*)&room.queries[j - n_back][4 * lane] = *(const float4*)(prepared + 4 * lane);
        }
        *(float4*)&room.keys[j][4 * lane] = *(const float4*)(key + 4 * lane);
    }
    __syncthreads();
    {
        const u32 rows = warp / 2 * 4, keys = warp % 2 * 16, place = rows + g / 2;
        float products[4];
        key_products(room.keys[keys + g], room.keys[keys + g + 8], g % 2 ? room.keys[n_back + place] : room.queries[place], products);
        room.products[rows + t][keys + g] = make_float2(products[0], products[1]);
        room.products[rows + t][keys + g + 8] = make_float2(products[2], products[3]);
    }
    __syncthreads();
    const u32 group = p.value_heads / p.key_heads, n_rows = block.end - block.first, n_before = n_back + block.first;
    for (u32 item = warp; item < n_rows * group; item += WARPS) {
        const u32 place = block.first + item / group, h = p.tiled ? item % group * p.key_heads + key_head : key_head * group + item % group;
        const u32 n = n_back + place, j = lane, pos = grid + j;
        float decay = 0.0f;
        if (j <= n) {
            if (pos < committed) {
                decay = window_row(p, block.seq, pos)[width.keys + width.deltas + h];
            } else {
                const u64 row = j >= n_back ? room.row[j - n_back] : p.step.seq_rows[block.seq.first + pos - committed];
                decay = p.gates[row * 2 * p.value_heads + h];
            }
        }
        decay = sum_from_end<32>(decay);
        const float weight = quick_exp(__shfl_down_sync(0xffffffffu, decay, 1));
        const u64 at = (u64)room.row[place] * p.value_heads + h;
        if (j == 0) p.walked.whole[at] = quick_exp(decay);
        if (j == n) p.walked.own_q[at * TILE + place] = room.products[place][j].x;
        if (j >= n) continue;
        const float2 product = room.products[place][j];
        if (j < n_before) {
            p.walked.before[at * REACH + j] = make_float2(weight * product.x, weight * product.y);
        } else {
            p.walked.own_q[at * TILE + j - n_back] = weight * product.x;
            p.walked.own_k[((u64)room.row[j - n_back] * p.value_heads + h) * TILE + place] = weight * product.y;
        }
    }
}

// Blocks that share what is kept of a row: the last 48 are on the way when all others are done.
#define KEEPERS 8u

// Grid: (value heads / 8, KEEPERS more; rows). A warp per head.
extern "C" __global__ void __launch_bounds__(256) walk_finish(const __grid_constant__ Recurrent p) {
    const u32 lane = threadIdx.x & 31, h = blockIdx.x * WARPS + (threadIdx.x >> 5);
    const Place at = place_of(p, blockIdx.y);
    pdl_wait();
    pdl_next();
    if (!at.is_walked) return;
    if (blockIdx.x + KEEPERS >= gridDim.x) {
        if (at.local + WINDOW_ROWS < at.seq.n_sure) return;
        const KeptLayer layer = {p.prepared, p.qkv, p.gates, p.delta, p.window, p.kept, p.key_heads, p.value_heads, DIM, DIM};
        return keep_row(layer, at.seq.slot, at.pos, at.row, at.local + CONV_ROWS >= at.seq.n_sure,
                        blockIdx.x + KEEPERS - gridDim.x, KEEPERS);
    }
    if (h >= p.value_heads || !(p.mode & NORMS)) return;
    const u64 place = ((u64)at.row * p.value_heads + h) * DIM + 4 * lane;
    const float4 gate = *(const float4*)(p.gate + place), weight = *(const float4*)(p.weight + 4 * lane);
    float4 o = *(const float4*)(p.out + place);
    o = scaled(o, rsqrtf(length_squared(o) / (float)DIM + p.eps));
    const float y[4] = {o.x * weight.x * gate.x * quick_sigmoid(gate.x), o.y * weight.y * gate.y * quick_sigmoid(gate.y),
                        o.z * weight.z * gate.z * quick_sigmoid(gate.z), o.w * weight.w * gate.w * quick_sigmoid(gate.w)};
    *(float4*)(p.normed + place) = make_float4(y[0], y[1], y[2], y[3]);
    if (p.image) image_store(p.image, p.shape, at.row, h, y);
}
