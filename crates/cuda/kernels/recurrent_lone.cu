// A sequence's only row, as most are where many sequences are decoded: all before it is kept. The arithmetic is recurrent.cu's,
// number by number, with few barriers, for heads of 128 channels. Blocks take heads in turn: copies of what comes next begin as soon
// as there is room for it, those of the first head before the kernel before this one ends, but for its own inputs, and a head's
// convolution is done beside the norm of the head before. S is in shared memory, so that code is short, and two blocks fit a
// multiprocessor. In a whole step a turn is met once, so every part of it is there once, and loops are short.
#include "linear_ptx.cuh"
#include "recurrent_head.cuh"

// Kept rows at hand: all from the row's grid on, and in plain decoding those of a fold.
#define LONE_ROWS 32u

// What is waited for together.
enum Group { KEYS, STATE, DELTAS, GROUPS };

// A value head of a sequence, which is the step's so-manieth.
struct Turn {
    Seq seq;
    u32 nth, h, key_head, is_owner, row, is_there;
};

struct LoneRoom {
    float4 state[WARPS][DIM / 8][32];
    float window_keys[LONE_ROWS][STRIDE];
    float window_deltas[LONE_ROWS][DIM], window_g[LONE_ROWS];
    float parts[4][STRIDE];             // q and k as tensor cores take them: their first parts, then their second
    float key[DIM], values[DIM];        // k; v
    float sums[2][DIM];                 // S^T q and S^T k; then o and delta
    float2 products[LONE_ROWS + TILE];  // of the kept keys, then of its own, with q and k
    float weights[LONE_ROWS];           // what is left of each earlier row, from the grid on
    u64 arrived[GROUPS];
    Turn turns[2];         // of even and odd number
    float whole, g, beta;  // what is left of S; decay and beta of the row
    u32 is_last, pad[2];
};
using Lone = Head<true, LoneRoom>;

__device__ __forceinline__ u32 arrived(const LoneRoom& room, Group group) { return shared_address(&room.arrived[group]); }
__device__ __forceinline__ void await(const LoneRoom& room, Group group, u32 turn) { barrier_wait(arrived(room, group), turn & 1); }
// The thread's copies so far count for the group.
__device__ __forceinline__ void end_group(const LoneRoom& room, Group group) { copies_arrive(arrived(room, group)); }

__device__ __forceinline__ u32 n_near(const Seq& seq) { return min(seq.committed - seq.stored_grid, LONE_ROWS); }

// The last of the kept rows, from column `from` on. All copies are by all warps, a vector each at a time: by one lane each they would
// begin one after another.
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

// From head `h` of sequence `nth` on, the first that is this block's and a lone row's.
__device__ __forceinline__ Turn find_turn(const Recurrent& p, u32 n_seqs, u32 nth, u32 h) {
    Turn turn = {};
#pragma unroll 1
    for (;; h += gridDim.x) {
#pragma unroll 1
        for (; h >= p.value_heads; h -= p.value_heads) nth++;
        turn.nth = nth, turn.h = h;
        if (nth >= n_seqs) return turn;
        turn.seq = p.step.seqs[nth];
        if (is_lone(p, turn.seq)) break;
    }
    // Heads of a key head stand `key_heads` apart, or side by side.
    const u32 divisor = p.tiled ? p.key_heads : small_quotient(p.value_heads, p.key_heads), quotient = small_quotient(h, divisor);
    const u32 rest = h - quotient * divisor;
    turn.key_head = p.tiled ? rest : quotient;
    turn.is_owner = (p.tiled ? quotient : rest) == 0;
    turn.row = p.step.seq_rows[turn.seq.first];
    turn.is_there = 1;
    return turn;
}

// What a warp's lanes need of the row's inputs, which waits in registers: of warps 0 to 2 four channels of q, k or v, of warp 4 the gates.
struct Inputs {
    float4 taps[4];
    float4 x[4];  // of the convolution: this row, then one, two and three back. Or a and its bias, b, the decay
};
__device__ __forceinline__ u32 channel_of(const Lone& head) {
    const u32 part = threadIdx.x >> 5;
    return (part == 0 ? head.q_at() : part == 1 ? head.k_at() : head.v_at()) + 4 * (threadIdx.x & 31);
}
// What earlier steps left, then what this one has.
__device__ __forceinline__ void load_kept(const Lone& head, Inputs& in) {
    const Recurrent& p = head.p;
    const u32 warp = threadIdx.x >> 5, pos = head.seq.committed;
    if (warp < 3) {
        const u32 channel = channel_of(head);
        asm volatile("prefetch.global.L2 [%0];" ::"l"((const float4*)p.conv + channel));
#pragma unroll
        for (u32 back = 1; back < 4; back++) {
            in.x[back] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (pos >= back) in.x[back] = load_fresh((const float4*)(head.kept_row(pos - back) + channel));
        }
    } else if (warp == 4) {
        in.x[0].y = p.dt_bias[head.h];
        in.x[0].w = p.decay[head.h];
    }
}
// Taps are asked for before, and come into registers when nothing else needs those.
__device__ __forceinline__ void load_taps(const Lone& head, Inputs& in) {
    if ((threadIdx.x >> 5) >= 3) return;
#pragma unroll
    for (u32 i = 0; i < 4; i++) in.taps[i] = ((const float4*)head.p.conv)[channel_of(head) + i];
}
struct NewInputs {
    const float *first, *second;
};
__device__ __forceinline__ NewInputs find_new(const Lone& head, u32 r) {
    const Recurrent& p = head.p;
    const u64 at = (u64)r * p.value_heads + head.h;
    if ((threadIdx.x >> 5) < 3) return {p.qkv + (u64)r * head.width() + channel_of(head), p.b};
    return {p.a + at, p.b + at};
}
__device__ __forceinline__ void load_new(NewInputs from, Inputs& in) {
    const u32 warp = threadIdx.x >> 5;
    if (warp < 3) {
        in.x[0] = load_fresh((const float4*)from.first);
    } else if (warp == 4) {
        in.x[0].x = load_fresh(from.first);
        in.x[0].z = load_fresh(from.second);
    }
}

// q, k or v.
__device__ __forceinline__ float4 find_vector(LoneRoom& room, const Inputs& in) {
    const u32 part = threadIdx.x >> 5, at = 4 * (threadIdx.x & 31);
    const float4 active = quick_silu(convolved(in.taps, in.x)), y = part == 2 ? active : to_length_one(part, DIM, active);
    if (part > 0) *(float4*)((part == 1 ? room.key : room.values) + at) = y;
    if (part == 2) return y;
    const Split s[4] = {split(y.x), split(y.y), split(y.z), split(y.w)};
    *(uint4*)&room.parts[part][at] = make_uint4(s[0].high, s[1].high, s[2].high, s[3].high);
    *(uint4*)&room.parts[part + 2][at] = make_uint4(s[0].low, s[1].low, s[2].low, s[3].low);
    return y;
}
// Without a branch, so that addresses are found side by side.
__device__ __forceinline__ void store_if(bool stores, float* to, float4 x) {
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %0, 0; @p st.global.v4.f32 [%1], {%2, %3, %4, %5}; }" ::"r"((u32)stores), "l"(to), "f"(x.x),
                 "f"(x.y), "f"(x.z), "f"(x.w)
                 : "memory");
}
// It, its input and its key stay, as far as they are this head's.
__device__ __forceinline__ void keep_vector(const Lone& head, u32 r, float4 x, float4 y) {
    const u32 part = threadIdx.x >> 5, pos = head.seq.committed, channel = channel_of(head);
    const bool is_own = part == 2 || head.is_owner, is_kept = is_own && (part == 2 || !head.keeps_late());
    store_if(is_own, head.p.prepared + (u64)r * head.width() + channel, y);
    store_if(is_kept, head.kept_row(pos) + channel, x);
    store_if(is_kept && part == 1, head.window_row(pos) + channel - head.keys(), y);
}

// Sums of products with q and k of 16 rows of channels, which are the columns of S or keys: as `state_products` and `key_products` have them,
// number by number. Of the eight columns of B a lone row needs four, so that one instruction meets both parts of q and k.
struct Chain {
    float first[4] = {0.0f, 0.0f, 0.0f, 0.0f}, rest[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    // Of the lane's two rows, two channels each, the first row's before the second's.
    __device__ __forceinline__ void add(float4 x, uint2 parts) {
        const Split s0 = split(x.x), s1 = split(x.y), s2 = split(x.z), s3 = split(x.w);
        mma_tf32(first, {s0.high, s2.high, s1.high, s3.high}, parts.x, parts.y);
        mma_tf32(rest, {s0.low, s2.low, s1.low, s3.low}, parts.x, parts.y);
    }
    // Of q and k with the first row, then with the second, in every other lane.
    __device__ __forceinline__ float sum(u32 i) const { return first[i] + (rest[i] + __shfl_xor_sync(0xffffffffu, first[i], 1)); }
};
// What a lane has of q and k.
__device__ __forceinline__ const uint2* own_parts(const LoneRoom& room) {
    const u32 lane = threadIdx.x & 31;
    return (const uint2*)&room.parts[lane / 4 % 4][2 * (lane % 4)];
}

// Of 16 kept keys, or of its own.
__device__ __forceinline__ void multiply_keys(LoneRoom& room, u32 first) {
    const u32 lane = threadIdx.x & 31, place = first + lane / 4;
    const bool is_own = first == LONE_ROWS;
    const float *low = (is_own ? room.key : room.window_keys[place]) + 2 * (lane % 4), *high = is_own ? low : low + 8 * STRIDE;
    const uint2* parts = own_parts(room);
    Chain chain;
#pragma unroll 4
    for (u32 i = 0; i < DIM / 8; i++) {
        const float2 a = *(const float2*)(low + 8 * i), b = *(const float2*)(high + 8 * i);
        chain.add(make_float4(a.x, a.y, b.x, b.y), parts[4 * i]);
    }
    const float2 products[2] = {make_float2(chain.sum(0), chain.sum(1)), make_float2(chain.sum(2), chain.sum(3))};
    if (lane % 4) return;
    room.products[place] = products[0];
    room.products[place + 8] = products[1];
}

// Of the warp's columns of S: sums of 32 channels, then of two such, then of two of those. The four grow side by side.
__device__ __forceinline__ void multiply_state(LoneRoom& room) {
    const u32 lane = threadIdx.x & 31;
    const float4* s = &room.state[threadIdx.x >> 5][0][lane];
    const uint2* parts = own_parts(room);
    Chain quarters[4];
#pragma unroll 1
    for (u32 i = 0; i < 4; i++)
#pragma unroll
        for (u32 quarter = 0; quarter < 4; quarter++) quarters[quarter].add(s[32 * (4 * quarter + i)], parts[4 * (4 * quarter + i)]);
    float sums[4];
#pragma unroll
    for (u32 i = 0; i < 4; i++) sums[i] = (quarters[0].sum(i) + quarters[1].sum(i)) + (quarters[2].sum(i) + quarters[3].sum(i));
    if (lane % 4) return;
    float* to = &room.sums[0][own_part().column + lane / 2];
    *(float2*)to = make_float2(sums[0], sums[2]);
    *(float2*)(to + DIM) = make_float2(sums[1], sums[3]);
}

// The code of a fold is fetched once in 16 rows, so it is short.
using InRoom = SharedState<DIM / 8, 1>;

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

// o and delta of the warp's columns: half a warp has o of 16 columns, the other half v less what is known; so it has the factors of 16 rows,
// and of 16 more.
__device__ __forceinline__ void sum_row(LoneRoom& room, u32 grid, u32 n) {
    const u32 lane = threadIdx.x & 31, is_key = lane / 16, column = own_part().column + lane % 16;
    const float2 product = room.products[(grid + lane) % LONE_ROWS];
    const float each = room.weights[lane], whole = room.whole;
    const float2 term = make_float2(each * product.x, each * product.y);
    const float other = __shfl_xor_sync(0xffffffffu, is_key ? term.x : -term.y, 16), own = is_key ? -term.y : term.x;
    const float first = is_key ? other : own, second = is_key ? own : other;
    float y = whole * room.sums[is_key][column];
    if (is_key) y = __fmaf_rn(-whole, room.sums[1][column], room.values[column]);
#pragma unroll 1
    for (u32 j = 0; j < n; j += 4) {
        const float* delta = &room.window_deltas[(grid + j) % LONE_ROWS][column];
        const float factor = j < 16 ? first : second;
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            const float sum = __fmaf_rn(__shfl_sync(0xffffffffu, factor, j + i, 16), delta[i * DIM], y);
            if (j + i < n) y = sum;
        }
    }
    if (is_key) y *= room.beta;
    const float delta = __shfl_down_sync(0xffffffffu, y, 16);
    if (!is_key) y = __fmaf_rn(room.products[LONE_ROWS].x, delta, y);
    room.sums[is_key][column] = y;
}

__device__ __forceinline__ void recur(const Recurrent& p) {
    extern __shared__ __align__(16) u8 bytes[];
    LoneRoom& room = *(LoneRoom*)bytes;
    const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, at = 4 * lane;
    const u32 n_seqs = p.step.counts[2];
    if (threadIdx.x == 0) {
        for (u32 i = 0; i < GROUPS; i++) barrier_init(arrived(room, (Group)i), i == STATE ? COPY_LANES : 32 * WARPS);
        barrier_init_visible();
    }
    __syncthreads();
    const auto head_at = [&](const Turn& turn) -> Lone { return {p, room, turn.seq, turn.h, turn.key_head, turn.is_owner != 0, 0, 0}; };
    Turn now = find_turn(p, n_seqs, 0, blockIdx.x);
    if (!now.is_there) return pdl_idle();
    Inputs in;
    copy_state(head_at(now));
    copy_keys(head_at(now));
    copy_deltas(head_at(now));
    load_kept(head_at(now), in);
    load_taps(head_at(now), in);
    if (warp == WARPS - 1) room.turns[1] = find_turn(p, n_seqs, now.nth, now.h + gridDim.x);
    NewInputs from = find_new(head_at(now), now.row);
    asm volatile("" : "+l"(from.first), "+l"(from.second));
    __syncthreads();
    pdl_wait();
    pdl_next();
    load_new(from, in);
    InRoom s = {&room.state[warp][0][lane]};
#pragma unroll 1
    for (u32 turn = 0;; turn++) {
        const Turn& next = room.turns[(turn + 1) % 2];
        const bool has_next = next.is_there;
        const Lone head = head_at(now);
        const Seq& seq = head.seq;
        const u32 pos = seq.committed, grid = grid_of(pos), n = pos - grid, r = now.row;
        float4 vector, gate, weight;
        ImagePlace image;
        if (warp < 3) {
            vector = find_vector(room, in);
        } else if (warp == 4) {
            const Gates gates = gates_of(in.x[0].x, in.x[0].y, in.x[0].z, in.x[0].w);
            room.g = gates.g;
            room.beta = gates.beta;
        }
        __syncthreads();
        if (warp < 3) keep_vector(head, r, in.x[0], vector);
        if (has_next) {
            load_kept(head_at(next), in);
            load_new(find_new(head_at(next), next.row), in);
        }
        if (warp == 3) {
            if (p.mode & NORMS) {
                weight = *(const float4*)(p.weight + at);
                gate = load_fresh((const float4*)(p.gate + (u64)r * head.deltas() + head.h * DIM + at));
            }
            await(room, DELTAS, turn);
            const Weighed weighed = weigh_row(lane < n ? room.window_g[(grid + lane) % LONE_ROWS] : lane == n ? room.g : 0.0f);
            room.weights[lane] = weighed.each;
            room.whole = weighed.whole;
            if (lane == 0) store_gates(head, r, {room.g, room.beta});
            // Found while others multiply, not when the row is done.
            image = image_place(p.image, p.shape, r, head.h);
            asm volatile("" : "+l"(image.cell), "+l"(image.rest));
        } else if (warp >= 4 && warp < 7) {
            if (warp < 6) await(room, KEYS, turn);
            multiply_keys(room, 16 * (warp - 4));
        } else if (warp == 7 && has_next) {
            // What it reads comes from afar, and nobody else has to wait for it.
            room.turns[turn % 2] = find_turn(p, p.step.counts[2], next.nth, next.h + gridDim.x);
        }
        await(room, STATE, turn);
        const bool folds = grid != seq.stored_grid;
        if (folds) {
            await(room, KEYS, turn);
            await(room, DELTAS, turn);
#pragma unroll 1
            for (u32 from = seq.stored_grid; from < grid; from += GRID) fold_kept(head, s, from);
        }
        multiply_state(room);
        if (folds) {
            store_state(s, own_part(), stored_state(head), DIM, DIM);
            fence_for_async();
        }
        __syncthreads();
        if (has_next) {
            const Lone after = head_at(next);
            copy_state(after);
            copy_keys(after);
            load_taps(after, in);
        }
        // The next row's may be there before it is stored.
        const float g = room.g;
        await(room, DELTAS, turn);
        sum_row(room, grid, n);
        __syncthreads();
        if (has_next) copy_deltas(head_at(next));
        if (warp == 3) {
            put_row(head, r, *(const float4*)&room.sums[0][at], gate, weight, [&] { return image; });
        } else if (warp == 7) {
            const float4 d = *(const float4*)&room.sums[1][at];
            float* window = head.window_row(pos) + head.keys();
            head.store(head.delta_row(r), DIM, d);
            head.store(window + head.h * DIM, DIM, d);
            if (lane == 0) window[head.deltas() + head.h] = g;
        }
        keep_shared(head, now.nth);
        if (!has_next) return;
        now = next;
    }
}

// Grid: as many blocks as run at once, or fewer; they take value heads of sequences in turn.
extern "C" __global__ void __launch_bounds__(256, 2) lone_full(const __grid_constant__ Recurrent p) { recur(p); }
