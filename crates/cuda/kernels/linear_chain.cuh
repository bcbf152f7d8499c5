// Linear ops of up to 8 rows that follow from one another ("phases"), in one launch: a sum and the norm behind it, a gated pair, the next
// sum, the next layer's inputs. Shares, sums and ends are those of linear.cuh, so every bit is as it is there.
//
// Weights depend on nothing, so a warp of its own has the copy engine fill slots across phases, while the others still end units and wait for
// inputs. Blocks tell each other of which rows they have made which 128 columns (`ready`): a block begins a phase where its first columns
// are there, and not where the whole op before is over. All blocks of the launch have to run at once, as in linear.cuh.
//
// With 1 row a 27B takes 4.67 ms at the card's power limit and 3.24 J (by launches of linear.cuh, as it was then, 5.42 and 3.76): a stage of Q4_K is 239
// instructions in place of 440, and there are 23 launches fewer for 8 layers. With 16 and 32 rows stages and ends take longer than what is gained (8 layers
// at best 1.10 ms for 1.06, 1.45 for 1.35).
#pragma once
#define LINEAR_CHAINED 1
#include "linear_chain_ring.cuh"

#if __CUDA_ARCH__ >= 900
// Products of a stage. By each warp for itself: four together issue a tenth more instructions.
template <class W>
__device__ __forceinline__ void sum_stage_of(Sums<1>& acc, W& w, const StageOfLane& at, bool two_halves) {
    sum_halves_by_warp(acc, w, at.input + at.scales, at.input * at.is_there + at.row, two_halves);
}
__device__ __forceinline__ void sum_stage_of(Sums<1>& acc, Floats& w, const StageOfLane& at, bool) {
    sum_stage_by_warp<Floats, 1>(acc, w, at.input, at.input + CELL_BYTES, true);
}

template <class W>
__device__ __forceinline__ void sum_stages(Sums<1>& acc, Ring& ring, const Segment& s, bool odd) {
    const u32 warp = threadIdx.x >> 5, of_unit = warp >> 3, seat = warp & 7;
    const u32 in_slot = ((of_unit ? s.tiles[0] : 0) + (seat < s.tiles[of_unit] ? seat : 0)) * W::STAGE_BYTES;
    const u32 to_weights = kept(ring.weights_full(of_unit) - ring.inputs_full());
    const bool leaves = (threadIdx.x & 31) < ring.c.leavers;
    StageOfLane at(((const Room*)shared_at(ring.base))->n_rows, ring.base + ring.c.zeros_at, ring.base + ring.c.scratch_at + warp * SCRATCH_BYTES);
#pragma unroll 1
    for (u32 n = s.n; n > 0;) {
        // As far as the ring's end.
        const u32 m = min(n, ring.c.n_slots - ring.slot), parity = ring.parity;
        // (No barrier lies at 0: shared memory begins with a kilobyte that is the driver's.)
        u32 barriers = ring.inputs_full(), last = barriers + m * 8, without_half = odd && m == n ? last - 8 : 0;
        at.weights = ring.at() + in_slot, at.input = ring.at() + ring.c.input_at;
#pragma unroll 1
        do {
            barriers_wait(barriers + to_weights, barriers, parity);
            W w(at);
            sum_stage_of(acc, w, at, barriers != without_half);
            __syncwarp();
            if (leaves) barrier_arrive(barriers + (ring.empty() - ring.inputs_full()));
            barriers += 8, at.weights += ring.c.slot_bytes, at.input += ring.c.slot_bytes;
        } while (barriers != last);
        n -= m, ring.skip(m);
    }
}
__device__ __forceinline__ void sum_segment(Sums<1>& acc, Ring& ring, const Segment& s, bool odd) {
    switch (s.format) {
    case FORMAT_F16: return sum_stages<Floats>(acc, ring, s, odd);
    case FORMAT_Q8_0: return sum_stages<Halves<Q8_0>>(acc, ring, s, odd);
    case FORMAT_Q4_K: return sum_stages<SharedHalves<Q4K>>(acc, ring, s, odd);
    case FORMAT_Q5_K: return sum_stages<SharedHalves<Q5K>>(acc, ring, s, odd);
    case FORMAT_Q6_K: return sum_stages<SharedHalves<Q6K>>(acc, ring, s, odd);
    }
}

// A barrier to each phase: of one for all, a warp that comes late would take a later phase's parity for one that is still to come.
__device__ __forceinline__ void wait_factors(const ChainRoom& room, u32 phase) { barrier_wait(shared_address(&room.factors_made[phase]), 0); }

// The warps that multiply.
__device__ __forceinline__ void sum_phases(const ChainParams& c, u8* shared, Ring ring) {
    ChainRoom& room = *(ChainRoom*)shared;
    PhaseList list(c, shared);
    const Rows rows = {shared + c.exchange_at, 2 * ROW_BYTES, 8 * (int)ROW_BYTES};
#pragma unroll 1
    for (u32 phase = 0; phase < c.n_phases; phase++) {
        const LinearParams& p = c.phases[phase];
#pragma unroll 1
        for (const Segment* s = list.segments(); s->n_parts > 0; s++) {
            // (With fewer rows than owners some have none, and would leave copies on their way to where the next unit's go.)
            const bool ends = OwnRows(*s, room.room.n_rows).n > 0;
            if (ends) ask_for_scales(p, p.parts[s->part], s->unit, room.room);
            copies_end_group();
            Sums<1> sums = {{0.0f, 0.0f, 0.0f, 0.0f}};
            sum_segment(sums, ring, *s, 2 * (s->first_stage + s->n) > p.n_cells);
            if (ends) wait_factors(room, phase);
            finish<1>(p, *s, room.room, rows, sums);
        }
        list.next(p);
    }
}

// The warp that brings weights: a lane of it.
__device__ __forceinline__ void bring_weights(const ChainParams& c, const u8* shared, Ring ring) {
    u64 policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    PhaseList list(c, shared);
    // What is waited for next, so many halves behind.
    Ring late = ring;
    u32 on_way = 0, late_half = 0;
#pragma unroll 1
    for (u32 phase = 0; phase < c.n_phases; phase++) {
#pragma unroll 1
        for (const Segment* s = list.segments(); s->n_parts > 0; s++) {
            const u32 bytes[2] = {s->tiles[0] * s->stage_bytes, s->tiles[1] * s->stage_bytes};
            u64 from[2] = {s->weights[0], s->weights[1]};
#pragma unroll 1
            for (u32 n = s->n; n > 0; n--, ring.next()) {
                ring.wait_empty();
#pragma unroll
                for (u32 half = 0; half < 2; half++) {
                    if (on_way == MOST_ON_WAY) {
                        barrier_wait(late.weights_full(late_half), late.parity);
                        if (late_half) late.next();
                        late_half ^= 1;
                    } else {
                        on_way++;
                    }
                    copy_expect(ring.weights_full(half), bytes[half]);
                    if (bytes[half]) copy_weights(ring.at() + (half ? bytes[0] : 0), from[half], bytes[half], ring.weights_full(half), policy);
                    from[half] += bytes[half];
                }
            }
        }
        list.next(c.phases[phase]);
    }
}

// Stages whose inputs are looked for at a time.
#define LOOKED_AHEAD 4
// Whether columns are made of all rows: counts of two cells side by side, of which one or both are asked for. What was counted is there too, for every lane
// once lanes have met. (A fence behind the last look waits for all that the multiprocessor has on its way: 1.2 % of a row's time.)
__device__ __forceinline__ bool are_ready(const u32* counts, u32 n_rows, bool needs_first, bool needs_second) {
    u32 first, second;
    asm volatile("ld.acquire.gpu.global.v2.u32 {%0, %1}, [%2];" : "=r"(first), "=r"(second) : "l"(counts) : "memory");
    return (!needs_first || first == n_rows) && (!needs_second || second == n_rows);
}

// The warp that brings inputs: a lane for each of 32 stages, of which those of the next few look for what they need.
__device__ __forceinline__ void bring_inputs(const ChainParams& c, const u8* shared, Ring ring, u32 n_rows) {
    const u32 lane = threadIdx.x & 31;
    PhaseList list(c, shared);
#pragma unroll 1
    for (u32 phase = 0; phase < c.n_phases; phase++) {
        const LinearParams& p = c.phases[phase];
        const u32 n = list.segments()->n_of_block;
        const u32* const counts = (const u32*)(phase > 0 ? c.phases[phase - 1].ready : 0);
#pragma unroll 1
        for (u32 first = 0; first < n; first += 32) {
            const u32 mine = first + lane < n ? list.wanted(p)[first + lane] : 0, cell = mine & ~(INPUT_FLOAT | INPUT_TWO);
            // A stage of floats has one cell, which may be the second of the two.
            const bool is_second = cell & 1, is_none = first + lane >= n;
            u32 there = phase > 0 ? 0 : 0xffffffffu;
#pragma unroll 1
            for (u32 i = 0; i < 32 && first + i < n; i++, ring.next()) {
                if (!(there >> i & 1)) {
                    // What the next few stages need and was not there: every look at more is in the way of those who count.
                    bool is_mine_there = is_none || there >> lane & 1;
                    do {
                        if (!is_mine_there && lane < i + LOOKED_AHEAD) is_mine_there = are_ready(counts + (cell & ~1u), n_rows, !is_second, is_second || mine & INPUT_TWO);
                        there = __ballot_sync(0xffffffffu, is_mine_there);
                    } while (!(there >> i & 1));
                    __syncwarp();
                }
                ring.wait_empty();
                const u32 what = __shfl_sync(0xffffffffu, mine, i);
                if (lane == 0) {
                    // What others stored is there for the copy engine.
                    asm volatile("fence.proxy.async.global;" ::: "memory");
                    copy_wanted<1>(p, what, ring.at() + c.input_at, ring.inputs_full());
                }
                __syncwarp();
            }
        }
        list.next(p);
    }
}

// The warp that finds what rows are divided by.
__device__ __forceinline__ void bring_factors(const ChainParams& c, ChainRoom& room, u32 n_rows) {
    const u32 lane = threadIdx.x & 31;
#pragma unroll 1
    for (u32 phase = 0; phase < c.n_phases; phase++) {
        if (phase > 0) {
            const LinearParams& before = c.phases[phase - 1];
            while (true) {
                bool all = true;
#pragma unroll 1
                for (u32 cell = 2 * lane; cell < before.next_cells; cell += 64) all &= are_ready((const u32*)before.ready + cell, n_rows, true, cell + 1 < before.next_cells);
                if (__all_sync(0xffffffffu, all)) break;
                // It is not needed before a unit ends.
                __nanosleep(400);
            }
            __syncwarp();
        }
        const LinearParams& p = c.phases[phase];
#pragma unroll 1
        for (u32 row = 0; row < n_rows; row++) {
            const float factor = p.squares ? row_factor(p, row, n_rows) : 1.0f;
            if (lane == 0) room.room.factor[p.first_factor + row] = factor;
        }
        if (lane == 0) barrier_arrive(shared_address(&room.factors_made[phase]));
    }
}

// By both warps that look at `ready`: the last of all blocks leaves it empty.
__device__ __forceinline__ void leave_ready(const ChainParams& c) {
    u32* const left = (u32*)c.left;
    u32 before = 0;
    if ((threadIdx.x & 31) == 0) before = atomicAdd(left, 1);
    if (__shfl_sync(0xffffffffu, before, 0) != 2 * gridDim.x - 1) return;
#pragma unroll 1
    for (u32 i = threadIdx.x & 31; i < 2 + (MAX_PHASES - 1) * MAX_READY; i += 32) left[i] = 0;
}
#endif

__device__ __forceinline__ void chain(const ChainParams& c) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) u8 shared[];
    ChainRoom& room = *(ChainRoom*)shared;
    const u32 warp = __shfl_sync(0xffffffffu, threadIdx.x >> 5, 0), base = shared_register(shared);
    u32 at = base + c.lists_at;
#pragma unroll 1
    for (u32 phase = 0; phase < c.n_phases; phase++) {
        const LinearParams& p = c.phases[phase];
        const u8* list = (const u8*)p.lists + (u64)blockIdx.x * p.list_bytes;
#pragma unroll 1
        for (u32 i = threadIdx.x * 16; i < p.list_bytes; i += CHAIN_THREADS * 16) copy_16(at + i, list + i);
        at += p.list_bytes;
    }
    copies_end_group();
    if (threadIdx.x < ZEROS_BYTES / 16) *(uint4*)(shared + c.zeros_at + threadIdx.x * 16) = make_uint4(0, 0, 0, 0);
    const u32 n_rows = rows_of_group<1>(c.phases[0]);
    if (threadIdx.x == 0) {
        for (u32 i = 0; i < MAX_PHASES; i++) barrier_init(shared_address(&room.factors_made[i]), 1);
        Ring(c, base).begin();
        room.room.n_rows = n_rows;
    }
    copies_wait<0>();
    __syncthreads();
    pdl_next();
    const Ring ring(c, base);
    if (warp < WARPS) {
        sum_phases(c, shared, ring);
    } else if (warp == WARPS) {
        if ((threadIdx.x & 31) == 0) bring_weights(c, shared, ring);
    } else {
        // All that others read or write waits for what these two bring.
        pdl_wait();
        if (warp == WARPS + 1) bring_inputs(c, shared, ring, n_rows);
        else bring_factors(c, room, n_rows);
        leave_ready(c);
    }
#endif
}
