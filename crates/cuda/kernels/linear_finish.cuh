// The end of a unit: sums of all columns become outputs, and where the next op reads a pair's, its image.
//
// A warp's sums lie as tensor cores left them, two outputs of two rows in a lane. They change places in shared memory, and are then
// taken by rows, four outputs a lane: one short loop for any number of rows, whole lines of memory, and what an image is made of.
// (Each lane finishing what it had was 5000 instructions with 32 rows, and its reads 32 bytes apart.)
#pragma once
#include "linear_gather.cuh"
#include "linear_ring.cuh"
#include "linear_sums.cuh"

#define ROW_BYTES 1040u  // 256 outputs; what is past them keeps rows in different banks

// Shared memory beside the rings.
struct Room {
    u64 inputs_full[MAX_INPUTS], inputs_empty[MAX_INPUTS];
    float scale[UNIT_OUTPUTS], bias[UNIT_OUTPUTS];
};

// Where a row's sums change places: two rows in each warp's slot for weights that nobody reads or fills at a segment's end. (A
// room of its own left inputs four slots with 32 rows; with six a bare kernel took 78 us a layer instead of 83, this one no less.)
struct Rows {
    u8* first;
    u32 stride;
    __device__ __forceinline__ float* at(u32 row, u32 output) const { return (float*)(first + (row >> 1) * stride + (row & 1) * ROW_BYTES) + output; }
};

// What the unit's sums are multiplied by and what is added, on its way to shared memory: asked for long before it is needed, as it
// comes from memory. Every lane waits for its own copies and the block meets before it reads them.
__device__ __forceinline__ void ask_for_scales(const Part& part, u32 unit, Room& room) {
    const u32 i = threadIdx.x % UNIT_OUTPUTS, half = i / 128, which = part.paired ? half : 0;
    const u32 output = (part.paired ? unit : 2 * unit + half) * 128 + i % 128, o = output < part.n_out ? output : 0;
    const bool is_scale = threadIdx.x < UNIT_OUTPUTS;
    const u64 from = is_scale ? part.scales[which] : part.bias[which];
    float* to = is_scale ? &room.scale[i] : &room.bias[i];
    if (from) copy_4(shared_address(to), (const float*)from + o);
    else *to = 0.0f;
}

// Four outputs of a row: `part.out` from `output` on.
struct Four {
    float* at;
    u32 n;  // of them that there are
    __device__ __forceinline__ Four(const Part& part, u32 row, u32 output)
        : at((float*)part.out + (u64)row * part.n_out + output), n(output >= part.n_out ? 0 : part.n_out - output < 4 ? part.n_out - output : 4) {}
    __device__ __forceinline__ bool is_whole() const { return n == 4 && ((u64)at & 15) == 0; }
    __device__ __forceinline__ void load(float (&x)[4]) const {
        if (is_whole()) {
            const float4 v = *(const float4*)at;
            x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
        } else {
#pragma unroll
            for (u32 i = 0; i < 4; i++) x[i] = i < n ? at[i] : 0.0f;
        }
    }
    __device__ __forceinline__ void store(const float (&x)[4]) const {
        if (is_whole()) {
            *(float4*)at = make_float4(x[0], x[1], x[2], x[3]);
        } else {
#pragma unroll
            for (u32 i = 0; i < 4; i++)
                if (i < n) at[i] = x[i];
        }
    }
};

// Four of the unit's sums, whole, scaled.
__device__ __forceinline__ void whole(const LinearParams& p, const Segment& s, const Room& room, Rows rows, u32 row, u32 output, float (&y)[4]) {
    float4 sum = *(const float4*)rows.at(row, output);
    if (s.n_partials > 0) gather(p, s, row, output, sum);
    const float4 scale = *(const float4*)&room.scale[output], bias = *(const float4*)&room.bias[output];
    y[0] = fmaf(sum.x, scale.x, bias.x), y[1] = fmaf(sum.y, scale.y, bias.y), y[2] = fmaf(sum.z, scale.z, bias.z), y[3] = fmaf(sum.w, scale.w, bias.w);
}

// By all warps of a block: the end of a segment.
template <int TILES>
__device__ __forceinline__ void finish(const LinearParams& p, const Segment& s, const Room& room, Rows rows, const Sums<TILES>& sums) {
    const Lane l;
    const u32 warp = threadIdx.x >> 5, count = *(const u32*)p.count;
    const bool is_part = s.n_partials == IS_PARTIAL;
    const Part& part = p.parts[s.part];
    copies_wait<0>();
    __syncthreads();
#pragma unroll
    for (int n = 0; n < TILES; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) *rows.at(n * 8 + 2 * l.t + (i & 1), warp * 16 + l.g + (i >> 1) * 8) = sums[n][i];
    __syncthreads();
    // A warp takes 128 outputs of a row; of a pair gates, whose ups lie 128 further.
    const bool is_pair = part.paired && !is_part;
    const u32 there = count <= p.first_row ? 0 : count - p.first_row, n_rows = there < 8 * TILES ? there : 8 * TILES;
#pragma unroll 1
    for (u32 i = warp; i < (is_pair ? n_rows : 2 * n_rows); i += WARPS) {
        const u32 row = is_pair ? i : i / 2, half = is_pair ? 0 : i % 2, in_unit = half * 128 + l.lane * 4;
        if (is_part) {
            store_fresh(partial_of(p, s.partial, row, in_unit), *(const float4*)rows.at(row, in_unit));
            continue;
        }
        const Four out(part, p.first_row + row, (is_pair ? s.unit : 2 * s.unit + half) * 128 + l.lane * 4);
        float before[4], x[4];
        if (p.epilogue == ADD || p.epilogue == GLU_JOIN) out.load(before);
        whole(p, s, room, rows, row, in_unit, x);
        if (p.epilogue == ADD) {
            const float gate = p.gate ? sigmoid(((const float*)p.gate)[p.first_row + row]) : 1.0f;
#pragma unroll
            for (int k = 0; k < 4; k++) x[k] = before[k] + (p.gate ? gate * x[k] : x[k]);
        } else if (p.epilogue != STORE) {
            float up[4] = {x[0], x[1], x[2], x[3]};
            if (is_pair) whole(p, s, room, rows, row, 128 + in_unit, up);
#pragma unroll
            for (int k = 0; k < 4; k++) x[k] = glu(p.glu_kind, p.glu_alpha, p.glu_limit, is_pair ? x[k] : before[k], up[k]);
        }
        out.store(x);
        if (!p.next_image) continue;
#pragma unroll
        for (int k = 0; k < 4; k++) x[k] = k < out.n ? x[k] : 0.0f;
        image_store((u8*)p.next_image, p.next_shape, p.first_row + row, s.unit, x);
    }
    // The rows' places are the next stage's.
    __syncthreads();
}
