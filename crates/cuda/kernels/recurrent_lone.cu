// A sequence's only row, as most are where many sequences are decoded: all before it is kept. The arithmetic is recurrent.cu's,
// number by number, with half the barriers; what it reads is on its way before the kernel before this one ends, but for its own
// inputs; and two blocks fit a multiprocessor, so that one reads while the other computes.
#include "recurrent_head.cuh"

struct LoneRoom {
    float window_keys[WINDOW_ROWS][STRIDE];
    float window_deltas[WINDOW_ROWS][DIM];
    float vectors[1][2][STRIDE], values[DIM];  // q and k; v
    float taps[3][DIM][4], inputs[3][3][DIM];  // of the convolution, for q, k and v: the oldest first; one, two and three rows back
    float weight[DIM], gate[DIM];              // of the norm
    float sums[2][DIM], ends[2][DIM];          // S^T q and S^T k; o and delta
    float2 products[WINDOW_ROWS + TILE];       // of the kept keys, then of its own, with q and k
    float window_g[WINDOW_ROWS];
    float g[1], beta[1];
    u32 row[1], is_last;
};

__device__ __forceinline__ void copy_four(float* to, const float* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from) : "memory");
}
__device__ __forceinline__ void copy_one(float* to, const float* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from) : "memory");
}
__device__ __forceinline__ void end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Asks L2 for S and the deltas of what the block does next: computing takes as long as reading, and two blocks do not keep memory
// busy.
__device__ __forceinline__ void ask_for(const Recurrent& p, u32 item) {
    const u32 h = item % p.value_heads, nth = item / p.value_heads;
    if (nth >= p.step.counts[2] || !is_lone(p, p.step.seqs[nth])) return;
    const Seq seq = p.step.seqs[nth];
    const auto ask = [](const float* at) { asm volatile("prefetch.global.L2 [%0];" ::"l"(at)); };
    const u32 size = p.key_dim * p.value_dim, deltas = p.value_heads * p.value_dim, keys = p.key_heads * p.key_dim;
    const float* state = p.state + ((u64)seq.slot * p.value_heads + h) * size;
    for (u32 i = 32 * threadIdx.x; i < size; i += 32 * blockDim.x) ask(state + i);
    const u32 n_parts = (p.value_dim + 31) / 32;
    for (u32 i = threadIdx.x; i < (seq.committed - seq.stored_grid) * n_parts; i += blockDim.x) {
        const u32 place = (seq.stored_grid + i / n_parts) % WINDOW_ROWS;
        ask(p.window + ((u64)seq.slot * WINDOW_ROWS + place) * (keys + deltas + p.value_heads) + keys + h * p.value_dim + i % n_parts * 32);
    }
}

template <bool FULL>
__device__ __forceinline__ void recur(const Recurrent& p, u32 item) {
    extern __shared__ __align__(16) u8 bytes[];
    LoneRoom& room = *(LoneRoom*)bytes;
    const u32 nth = item / p.value_heads;
    const Head<FULL, LoneRoom> head = head_of<FULL>(p, room, p.step.seqs[nth], item % p.value_heads);
    const Seq& seq = head.seq;
    const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, at = 4 * lane;
    const u32 r = p.step.seq_rows[seq.first], pos = seq.committed, grid = grid_of(pos), n = pos - grid;
    const bool keeps_key = head.is_owner && !head.keeps_late();
    // q, k and v, a warp each.
    const u32 first = warp == 0 ? head.q_at() : warp == 1 ? head.k_at() : head.v_at();
    const u32 width = warp < 2 ? head.key_dim() : head.value_dim();
    // All on its way at once, what is waited for first before the rest: S, most of what is read, is needed last.
    const float4 none = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (warp < 3) {
#pragma unroll
        for (u32 back = 1; back < 4; back++)
            if (pos < back) *(float4*)&room.inputs[warp][back - 1][at] = none;
            else copy_async(head, room.inputs[warp][back - 1], head.kept_row(pos - back) + first, width);
#pragma unroll
        for (u32 i = 0; i < 4; i++)
            if (FULL || at + i < width) copy_four(room.taps[warp][at + i], p.conv + 4 * (first + at + i));
    }
    if (warp == 0 && p.mode & NORMS) copy_async(head, room.weight, p.weight, head.value_dim());
    end_group();
    for (u32 pos = seq.stored_grid + warp; pos < seq.committed; pos += WARPS) {
        const u32 place = pos % WINDOW_ROWS;
        const float* row = head.window_row(pos);
        copy_async(head, room.window_keys[place], row + head.q_at(), head.key_dim());
        copy_async(head, room.window_deltas[place], row + head.keys() + head.h * head.value_dim(), head.value_dim());
        if (lane == 0) copy_one(&room.window_g[place], row + head.keys() + head.deltas() + head.h);
    }
    end_group();
    Whole s;
    load_state(s, own_part(), stored_state(head), head.key_dim(), head.value_dim());
    ask_for(p, item + gridDim.x);
    if (threadIdx.x == 0) room.row[0] = r;
    __syncthreads();
    pdl_wait();
    pdl_next();
    if (warp == 0 && p.mode & NORMS) copy_async(head, room.gate, p.gate + (u64)r * head.deltas() + head.h * head.value_dim(), head.value_dim());
    end_group();
    if (warp < 3) {
        const float4 now = head.load(p.qkv + (u64)r * head.width() + first, width);
        asm volatile("cp.async.wait_group 2;" ::: "memory");
        const float4* taps = (const float4*)room.taps[warp][at];
        float4 sum = none;
#pragma unroll
        for (int back = 3; back >= 0; back--) {
            const float4 x = back ? *(const float4*)&room.inputs[warp][back - 1][at] : now;
            const auto tap = [&](u32 i) { return back == 3 ? taps[i].x : back == 2 ? taps[i].y : back == 1 ? taps[i].z : taps[i].w; };
            sum.x = __fmaf_rn(tap(0), x.x, sum.x);
            sum.y = __fmaf_rn(tap(1), x.y, sum.y);
            sum.z = __fmaf_rn(tap(2), x.z, sum.z);
            sum.w = __fmaf_rn(tap(3), x.w, sum.w);
        }
        if (!FULL) sum = make_float4(at < width ? sum.x : 0.0f, at + 1 < width ? sum.y : 0.0f, at + 2 < width ? sum.z : 0.0f, at + 3 < width ? sum.w : 0.0f);
        const float4 y = activate(head, {0, warp}, sum);
        if (warp == 2) *(float4*)&room.values[at] = y;
        if (warp == 2 || keeps_key) head.store(head.kept_row(pos) + first, width, now);
    } else if (threadIdx.x == 96) {
        find_gates(head, 0);
    }
    copies_done();
    __syncthreads();
    // Products with the kept keys and with its own.
    if (warp * 16 < WINDOW_ROWS + TILE && (warp * 16 >= WINDOW_ROWS || n)) {
        const u32 g = lane / 4, place = warp * 16 + g;
        const bool is_own = place >= WINDOW_ROWS;
        float products[4];
        key_products(is_own ? room.vectors[0][1] : room.window_keys[place], is_own ? room.vectors[0][1] : room.window_keys[place + 8],
                     room.vectors[0][g % 2], products);
        if (lane % 4 == 0) {
            room.products[place] = make_float2(products[0], products[1]);
            room.products[place + 8] = make_float2(products[2], products[3]);
        }
    }
#pragma unroll 1
    for (u32 at = seq.stored_grid; at < grid; at += GRID) fold_rows(head, s, at);
    // The other columns of the products are this row's again.
    const auto vector_at = [&](u32 row) { return room.vectors[0][lane / 4 % 2]; };
    const auto sum_at = [&](u32 row, u32 is_key) { return &room.sums[is_key][own_part().column]; };
    state_products<1>(s, 0, 1, vector_at, sum_at);
    if (grid != seq.stored_grid) store_state(s, own_part(), stored_state(head), head.key_dim(), head.value_dim());
    __syncthreads();
    // What each earlier row counts for it, which every warp finds for itself, a lane an earlier row.
    const u32 place = (grid + lane) % WINDOW_ROWS;
    const float2 product = room.products[place];
    const Weighed weighed = weigh_row(lane < n ? room.window_g[place] : lane == n ? room.g[0] : 0.0f);
    const float2 term = make_float2(weighed.each * product.x, weighed.each * product.y);
    // Half a warp has o of 16 columns, the other half v less what is known.
    const u32 is_key = lane / 16, column = own_part().column + lane % 16;
    float y = weighed.whole * room.sums[is_key][column];
    if (is_key) y = __fmaf_rn(-weighed.whole, room.sums[1][column], room.values[column]);
    u32 kept = grid % WINDOW_ROWS;
#pragma unroll 4
    for (u32 j = 0; j < n; j++) {
        const float q = __shfl_sync(0xffffffffu, term.x, j), k = __shfl_sync(0xffffffffu, term.y, j);
        y = __fmaf_rn(is_key ? -k : q, room.window_deltas[kept][column], y);
        kept = kept + 1 == WINDOW_ROWS ? 0 : kept + 1;
    }
    if (is_key) y *= room.beta[0];
    const float delta = __shfl_down_sync(0xffffffffu, y, 16);
    if (!is_key) y = __fmaf_rn(room.products[WINDOW_ROWS].x, delta, y);
    room.ends[is_key][column] = y;
    __syncthreads();
    if (warp == 0) {
        put_row(head, r, *(const float4*)&room.ends[0][at], *(const float4*)&room.gate[at], *(const float4*)&room.weight[at]);
    } else if (warp == 1) {
        const float4 d = *(const float4*)&room.ends[1][at];
        float* window = head.window_row(pos) + head.keys();
        head.store(head.delta_row(r), head.value_dim(), d);
        head.store(window + head.h * head.value_dim(), head.value_dim(), d);
        if (lane == 0) window[head.deltas() + head.h] = room.g[0];
    } else if (warp == 2 && keeps_key) {
        head.store(head.window_row(pos) + head.q_at(), head.key_dim(), *(const float4*)&room.vectors[0][1][at]);
    }
    keep_shared(head, nth);
}

template <bool FULL>
__device__ __forceinline__ void recur_all(const Recurrent& p) {
    bool has_any = false;
#pragma unroll 1
    for (u32 item = blockIdx.x; item < p.value_heads * p.step.counts[2]; item += gridDim.x) {
        if (!is_lone(p, p.step.seqs[item / p.value_heads])) continue;
        // Behind what the one before reads of shared memory.
        if (has_any) __syncthreads();
        has_any = true;
        recur<FULL>(p, item);
    }
    if (!has_any) pdl_idle();
}

// Grid: as many blocks as run at once, or fewer; they take value heads of sequences in turn.
extern "C" __global__ void __launch_bounds__(256, 2) lone_full(const __grid_constant__ Recurrent p) { recur_all<true>(p); }
extern "C" __global__ void __launch_bounds__(256, 2) lone_small(const __grid_constant__ Recurrent p) { recur_all<false>(p); }
