// A sequence's only row, as most are where many sequences are decoded: all before it is kept. The arithmetic is recurrent.cu's,
// number by number, with few barriers, for heads of 128 channels. Blocks take heads in turn: copies of what comes next begin as soon
// as there is room for it, those of the first head before the kernel before this one ends, but for its own inputs, and a head's
// convolution is done beside the head before. S is in shared memory, so that code is short, and two blocks fit a multiprocessor.
#include "linear_ptx.cuh"
#include "recurrent_head.cuh"

// Kept rows at hand: all from the row's grid on, and in plain decoding those of a fold.
#define LONE_ROWS 32u

// What is waited for together.
enum Group { INPUTS, KEYS, STATE, DELTAS, GROUPS };

// A value head of a sequence, which is the step's so-manieth.
struct Turn {
    Seq seq;
    u32 nth, h, row, is_there;
};

// Pairs are for turns of even and odd number.
struct LoneRoom {
    float4 state[WARPS][DIM / 8][32];
    float window_keys[LONE_ROWS][STRIDE];
    float window_deltas[LONE_ROWS][DIM], window_g[LONE_ROWS];
    float inputs[3][4][DIM];                   // of the convolution, for q, k and v: this row, then one, two and three back
    float vectors[2][2][STRIDE], values[2][DIM];  // q and k; v
    float sums[2][2][DIM];                     // S^T q and S^T k; then o and delta
    float2 products[LONE_ROWS + TILE];         // of the kept keys, then of its own, with q and k
    float gates[4];                            // a and its bias, b, the decay
    u64 arrived[GROUPS];
    Turn later;
    float g[2], beta[2];
    u32 row[2], is_last, pad;
};
using Lone = Head<true, LoneRoom>;

__device__ __forceinline__ u32 arrived(const LoneRoom& room, Group group) { return shared_address(&room.arrived[group]); }
__device__ __forceinline__ void await(const LoneRoom& room, Group group, u32 turn) { barrier_wait(arrived(room, group), turn & 1); }
// The thread's copies so far count for the group.
__device__ __forceinline__ void end_group(const LoneRoom& room, Group group) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(arrived(room, group)) : "memory");
}

__device__ __forceinline__ u32 first_of(const Lone& head, u32 part) { return part == 0 ? head.q_at() : part == 1 ? head.k_at() : head.v_at(); }
__device__ __forceinline__ u32 n_near(const Seq& seq) { return min(seq.committed - seq.stored_grid, LONE_ROWS); }

// What earlier steps left of the convolution's inputs, then what this one has. All copies are by all warps, a vector each at a time:
// by one lane each they would begin one after another.
__device__ __forceinline__ void copy_kept_inputs(const Lone& head) {
    const u32 pos = head.seq.committed;
#pragma unroll
    for (u32 i = threadIdx.x >> 5; i < 9; i += WARPS) {
        const u32 part = i / 3, back = i % 3 + 1;
        if (pos >= back) copy_async(head, head.room.inputs[part][back], head.kept_row(pos - back) + first_of(head, part), DIM);
    }
}
__device__ __forceinline__ void copy_new_inputs(const Lone& head, u32 r) {
    const Recurrent& p = head.p;
    const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    if (warp >= 1 && warp < 4) copy_async(head, head.room.inputs[warp - 1][0], p.qkv + (u64)r * head.width() + first_of(head, warp - 1), DIM);
    if (warp == 4 && lane < 4) {
        const float* from = lane == 0 ? p.a + (u64)r * p.value_heads : lane == 1 ? p.dt_bias : lane == 2 ? p.b + (u64)r * p.value_heads : p.decay;
        copy_4(shared_address(&head.room.gates[lane]), from + head.h);
    }
    end_group(head.room, INPUTS);
}
// The last of the kept rows, from column `from` on.
__device__ __forceinline__ void copy_window(const Lone& head, float* to, u32 stride, u32 from) {
    const u32 warp = threadIdx.x >> 5, len = head.window_len();
    const float* rows = head.window_row(0) + from;
    u32 pos = head.seq.committed - 1 - warp, place = pos % WINDOW_ROWS;
#pragma unroll 1
    for (u32 i = warp; i < n_near(head.seq); i += WARPS) {
        copy_async(head, to + pos % LONE_ROWS * stride, rows + place * len, DIM);
        pos -= WARPS;
        place = place < WARPS ? place + WINDOW_ROWS - WARPS : place - WARPS;
    }
}
__device__ __forceinline__ void copy_keys(const Lone& head) {
    copy_window(head, head.room.window_keys[0], STRIDE, head.q_at());
    end_group(head.room, KEYS);
}
__device__ __forceinline__ void copy_state(const Lone& head) {
    if (threadIdx.x >= COPY_LANES) return;
    copy_expect(arrived(head.room, STATE), 4 * DIM * DIM);
    copy_input(shared_address(head.room.state), (const u8*)stored_state(head), 4 * DIM * DIM, arrived(head.room, STATE));
    copy_commit(arrived(head.room, STATE));
}
__device__ __forceinline__ void copy_deltas(const Lone& head) {
    const u32 i = 32 * WARPS - 1 - threadIdx.x;
    copy_window(head, head.room.window_deltas[0], DIM, head.keys() + head.h * DIM);
    if (i < n_near(head.seq)) {
        const u32 pos = head.seq.committed - 1 - i;
        copy_4(shared_address(&head.room.window_g[pos % LONE_ROWS]), head.window_row(pos) + head.keys() + head.deltas() + head.h);
    }
    end_group(head.room, DELTAS);
}

// Behind `turn`, or from it on, the first that is this block's and a lone row's. `step` is how far the next one is.
__device__ __forceinline__ Turn find_turn(const Recurrent& p, Turn turn, Turn step, bool is_next) {
    const u32 n_seqs = p.step.counts[2];
#pragma unroll 1
    for (;; is_next = true) {
        if (is_next) {
            turn.nth += step.nth, turn.h += step.h;
            if (turn.h >= p.value_heads) turn.nth++, turn.h -= p.value_heads;
        }
        turn.is_there = turn.nth < n_seqs;
        if (!turn.is_there) return turn;
        turn.seq = p.step.seqs[turn.nth];
        turn.row = p.step.seq_rows[turn.seq.first];
        if (is_lone(p, turn.seq)) return turn;
    }
}
__device__ __forceinline__ Turn turn_at(const Recurrent& p, u32 i) { return {{}, i / p.value_heads, i % p.value_heads, 0, 0}; }

// The taps of a lane's four channels, which wait in registers, of q, k or v, as each is a warp's.
struct Taps {
    float4 of[4];
};
__device__ __forceinline__ void load_taps(const Lone& head, Taps& taps) {
    const u32 part = threadIdx.x >> 5;
    if (part >= 3) return;
#pragma unroll
    for (u32 i = 0; i < 4; i++) taps.of[i] = ((const float4*)head.p.conv)[first_of(head, part) + 4 * (threadIdx.x & 31) + i];
}
// What a row brings along, once its inputs are there: q, k and v, by a warp each, and the gates.
__device__ __forceinline__ void prepare(const Lone& head, u32 turn, const Taps& taps) {
    LoneRoom& room = head.room;
    const u32 part = threadIdx.x >> 5, at = 4 * (threadIdx.x & 31), pos = head.seq.committed, odd = turn % 2;
    if (part >= 3 && threadIdx.x != 96) return;
    await(room, INPUTS, turn);
    if (part == 3) return put_gates(head, odd, room.gates[0], room.gates[1], room.gates[2], room.gates[3]);
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f), x = sum;
#pragma unroll
    for (int back = 3; back >= 0; back--) {
        x = *(const float4*)&room.inputs[part][back][at];
        if (pos < back) x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        const auto tap = [&](u32 i) { return back == 3 ? taps.of[i].x : back == 2 ? taps.of[i].y : back == 1 ? taps.of[i].z : taps.of[i].w; };
        sum.x = __fmaf_rn(tap(0), x.x, sum.x);
        sum.y = __fmaf_rn(tap(1), x.y, sum.y);
        sum.z = __fmaf_rn(tap(2), x.z, sum.z);
        sum.w = __fmaf_rn(tap(3), x.w, sum.w);
    }
    const float4 y = activate(head, {odd, part}, sum);
    if (part == 2) *(float4*)&room.values[odd][at] = y;
    if (part == 2 || (head.is_owner && !head.keeps_late())) head.store(head.kept_row(pos) + first_of(head, part), DIM, x);
}

// Products of 16 kept keys, or of its own, with q and k.
__device__ __forceinline__ void multiply_keys(LoneRoom& room, u32 odd, u32 first) {
    const u32 lane = threadIdx.x & 31, g = lane / 4, place = first + g;
    const bool is_own = first == LONE_ROWS;
    float products[4];
    key_products(is_own ? room.vectors[odd][1] : room.window_keys[place], is_own ? room.vectors[odd][1] : room.window_keys[place + 8],
                 room.vectors[odd][g % 2], products);
    if (lane % 4) return;
    room.products[place] = make_float2(products[0], products[1]);
    room.products[place + 8] = make_float2(products[2], products[3]);
}

using InRoom = SharedState<DIM / 8, 4>;

// The 16 kept rows from `grid`; those that are not at hand, behind a long path of accepted drafts, from memory.
__device__ __forceinline__ void fold_kept(const Lone& head, InRoom& s, u32 grid) {
    const LoneRoom& room = head.room;
    const u32 near = head.seq.committed - n_near(head.seq);
    const auto row_at = [&](u32 j) {
        const u32 pos = grid + j, place = pos % LONE_ROWS;
        const float* row = head.window_row(pos);
        if (pos >= near) return Folded{room.window_keys[place], room.window_deltas[place]};
        return Folded{row + head.q_at(), row + head.keys() + head.h * DIM};
    };
    const auto g_at = [&](u32 j) {
        const u32 pos = grid + j;
        return pos >= near ? room.window_g[pos % LONE_ROWS] : head.window_row(pos)[head.keys() + head.deltas() + head.h];
    };
    fold(s, s, own_part(), DIM, DIM, row_at, g_at);
}

__device__ __forceinline__ void recur(const Recurrent& p) {
    extern __shared__ __align__(16) u8 bytes[];
    LoneRoom& room = *(LoneRoom*)bytes;
    const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, at = 4 * lane;
    const Turn step = turn_at(p, gridDim.x);
    Turn now = find_turn(p, turn_at(p, blockIdx.x), step, false);
    if (!now.is_there) return pdl_idle();
    Turn next = find_turn(p, now, step, true);
    const auto head_at = [&](const Turn& turn) { return head_of<true>(p, room, turn.seq, turn.h); };
    if (threadIdx.x == 0) {
        for (u32 i = 0; i < GROUPS; i++) barrier_init(arrived(room, (Group)i), i == STATE ? COPY_LANES : 32 * WARPS);
        barrier_init_visible();
        room.row[0] = now.row;
        room.row[1] = next.row;
    }
    __syncthreads();
    Taps taps;
    float4 weight = make_float4(0.0f, 0.0f, 0.0f, 0.0f), gate = weight;
    if (p.mode & NORMS) weight = *(const float4*)(p.weight + at);
    {
        const Lone head = head_at(now);
        load_taps(head, taps);
        copy_kept_inputs(head);
        copy_keys(head);
        copy_state(head);
        copy_deltas(head);
        pdl_wait();
        pdl_next();
        copy_new_inputs(head, now.row);
        prepare(head, 0, taps);
        __syncthreads();
    }
    if (next.is_there) {
        const Lone head = head_at(next);
        load_taps(head, taps);
        copy_kept_inputs(head);
        copy_new_inputs(head, next.row);
    }
    InRoom s = {&room.state[warp][0][lane]};
#pragma unroll 1
    for (u32 turn = 0;; turn++) {
        const Lone head = head_at(now), after = head_at(next);
        const Seq& seq = head.seq;
        const u32 pos = seq.committed, grid = grid_of(pos), n = pos - grid, r = now.row, odd = turn % 2;
        if (warp == 3 && p.mode & NORMS) gate = *(const float4*)(p.gate + (u64)r * head.deltas() + head.h * DIM + at);
        if (warp < 4) {
            if (next.is_there) prepare(after, turn + 1, taps);
        } else if (warp < 7) {
            if (warp < 6) await(room, KEYS, turn);
            multiply_keys(room, odd, 16 * (warp - 4));
        } else {
            // What it reads comes from afar, and nobody else has to wait for it.
            const Turn later = find_turn(p, next, step, true);
            if (lane == 0) room.later = later;
        }
        await(room, STATE, turn);
        if (grid != seq.stored_grid) {
            await(room, KEYS, turn);
            await(room, DELTAS, turn);
        }
#pragma unroll 1
        for (u32 from = seq.stored_grid; from < grid; from += GRID) fold_kept(head, s, from);
        // The other columns of the products are this row's again.
        const auto vector_at = [&](u32 row) { return room.vectors[odd][lane / 4 % 2]; };
        const auto sum_at = [&](u32 row, u32 is_key) { return &room.sums[odd][is_key][own_part().column]; };
        state_products<1>(s, 0, 1, vector_at, sum_at);
        if (grid != seq.stored_grid) {
            store_state(s, own_part(), stored_state(head), DIM, DIM);
#if __CUDA_ARCH__ >= 900
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
        }
        __syncthreads();
        if (next.is_there) {
            copy_state(after);
            copy_keys(after);
        }
        const Turn later = room.later;
        if (later.is_there) {
            const Lone head = head_at(later);
            load_taps(head, taps);
            copy_kept_inputs(head);
            copy_new_inputs(head, later.row);
            if (threadIdx.x == 0) room.row[odd] = later.row;
        }
        float* window = head.window_row(pos);
        if (warp == 4 && head.is_owner && !head.keeps_late()) head.store(window + head.q_at(), DIM, *(const float4*)&room.vectors[odd][1][at]);
        if (threadIdx.x == 32 * 5) window[head.keys() + head.deltas() + head.h] = room.g[odd];
        await(room, DELTAS, turn);
        // What each earlier row counts for it, which every warp finds for itself, a lane an earlier row.
        const u32 place = (grid + lane) % LONE_ROWS;
        const float2 product = room.products[place];
        const Weighed weighed = weigh_row(lane < n ? room.window_g[place] : lane == n ? room.g[odd] : 0.0f);
        const float2 term = make_float2(weighed.each * product.x, weighed.each * product.y);
        // Half a warp has o of 16 columns, the other half v less what is known; so it has the factors of 16 rows, and of 16 more.
        const u32 is_key = lane / 16, column = own_part().column + lane % 16;
        const float other = __shfl_xor_sync(0xffffffffu, is_key ? term.x : -term.y, 16), own = is_key ? -term.y : term.x;
        const float factors[2] = {is_key ? other : own, is_key ? own : other};
        float y = weighed.whole * room.sums[odd][is_key][column];
        if (is_key) y = __fmaf_rn(-weighed.whole, room.sums[odd][1][column], room.values[odd][column]);
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const float* delta = &room.window_deltas[(grid + 16 * half) % LONE_ROWS][column];
#pragma unroll 4
            for (u32 j = 0; j + 16 * half < min(n, 16 + 16 * half); j++) y = __fmaf_rn(__shfl_sync(0xffffffffu, factors[half], j, 16), delta[j * DIM], y);
        }
        if (is_key) y *= room.beta[odd];
        const float delta = __shfl_down_sync(0xffffffffu, y, 16);
        if (!is_key) y = __fmaf_rn(room.products[LONE_ROWS].x, delta, y);
        room.sums[odd][is_key][column] = y;
        __syncthreads();
        if (next.is_there) copy_deltas(after);
        if (warp == 3) {
            put_row(head, r, *(const float4*)&room.sums[odd][0][at], gate, weight);
        } else if (warp == 7) {
            const float4 d = *(const float4*)&room.sums[odd][1][at];
            head.store(head.delta_row(r), DIM, d);
            head.store(window + head.keys() + head.h * DIM, DIM, d);
        }
        keep_shared(head, now.nth);
        if (!next.is_there) return;
        now = next, next = later;
    }
}

// Grid: as many blocks as run at once, or fewer; they take value heads of sequences in turn.
extern "C" __global__ void __launch_bounds__(256, 2) lone_full(const __grid_constant__ Recurrent p) { recur(p); }
