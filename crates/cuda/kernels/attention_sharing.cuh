// How the blocks of a launch share out rows that see drafts, or few: committed chunks as they come, then every row's tail, then a row's
// chunks in order.
#pragma once
#include "attention_tiles.cuh"
#include "linear_ptx.cuh"

// SELF goes through pages, BASE is `Attend`. N_THREADS of a block multiply and put together, and are its first; N_COPY copy.
template <class SELF, int D, class BASE, u32 N_THREADS, u32 N_COPY>
struct Sharing : BASE {
    using typename BASE::L;
    using BASE::p, BASE::room, BASE::kind, BASE::M, BASE::pairs, BASE::find_pairs, BASE::held_at, BASE::gate_at, BASE::put, BASE::find_places,
        BASE::places;
    static constexpr u32 FINDS = N_THREADS + N_COPY - 32;  // the first of the threads that find items

    __device__ __forceinline__ Ahead& ahead() const { return *(Ahead*)(places() + PAGE); }
    __device__ __forceinline__ Tail& tail() const { return *(Tail*)(&ahead() + 1); }

    __device__ __forceinline__ float* partial(const Pair& pair, u32 chunk) const {
        return p.partials + (((u64)pair.slot * p.heads + pair.head) * MAX_CHUNKS + chunk) * (D + 4);
    }

    // Of those that the rows from `index` on share, or of the row there: chunks done; blocks that waited for them; a row's tail;
    // a chunk that its rows go on with.
    enum Counter { DONE, WAITED, TAILS, CUT };
    __device__ __forceinline__ u32* counter(Counter which, u32 index, const Work& w) const {
        return p.done + which * p.n_counters + (index - p.first_row) * p.kv_heads + w.kv_head;
    }

    // How committed chunks are shared out, which the warp that finds them knows: short ones of the same rows go in so many runs, of which what
    // begins and ends them is done once; all of that comes to so many items.
    struct Shares {
        u32 n_runs, n_items;
    };
    Shares shares;
    __device__ __forceinline__ u32 run_of(const Span& span) const { return (span.n_short() + shares.n_runs - 1) / shares.n_runs; }
    __device__ __forceinline__ u32 n_items_of(const Span& span) const {
        const u32 n_short = span.n_short(), run = max(run_of(span), 1);
        return span.n_groups * p.kv_heads * (span.n_chunks - n_short + (n_short + run - 1) / run);
    }
    __device__ __forceinline__ Span span_at(u32 seq) const {
        return seq < p.step.counts[2] ? span_of(p, p.step.seqs[seq], M / (p.heads / p.kv_heads)) : Span{};
    }
    __device__ __forceinline__ void share() {
        const u32 lane = threadIdx.x & 31, n_seqs = p.step.counts[2];
        shares = {1, 0};
        u32 n_groups = 0;
        for (u32 first = 0; first < n_seqs; first += 32) n_groups += __reduce_add_sync(0xffffffffu, span_at(first + lane).n_groups);
        shares.n_runs = max(p.n_blocks / max(n_groups * p.kv_heads, 1), 1);
        for (u32 first = 0; first < n_seqs; first += 32) shares.n_items += __reduce_add_sync(0xffffffffu, n_items_of(span_at(first + lane)));
    }
    // The item's rows and pages, by that warp, a lane a sequence.
    __device__ __forceinline__ void find_chunks(u32 item) const {
        const u32 lane = threadIdx.x & 31;
        if (item >= shares.n_items) {
            if (lane == 0) ahead().held = NOWHERE;
            return;
        }
#pragma unroll 1
        for (u32 first = 0;; first += 32) {
            const Span span = span_at(first + lane);
            const u32 n = n_items_of(span);
            u32 end = n;
#pragma unroll
            for (u32 step = 1; step < 32; step *= 2) {
                const u32 other = __shfl_up_sync(0xffffffffu, end, step);
                if (lane >= step) end += other;
            }
            const u32 is_before = __ballot_sync(0xffffffffu, item < end);
            if (!is_before) {
                item -= __shfl_sync(0xffffffffu, end, 31);
                continue;
            }
            if (lane + 1 != __ffs(is_before)) return;
            item -= end - n;
            const u32 shared_by = span.n_groups * p.kv_heads, nth = item / shared_by, n_short = span.n_short(), n_long = span.n_chunks - n_short;
            Work w = {};
            if (nth < n_long) {
                // Later chunks are longer: they go first.
                const u32 chunk = span.first_chunk + span.n_chunks - 1 - nth;
                w.is_cut = span.is_cut && nth == 0;
                w.page = max(chunk_start(chunk), span.first_page);
                w.last = (w.is_cut ? span.end_page : chunk_start(chunk + 1)) - 1;
                w.n_chunks = 1;
            } else {
                const u32 run = run_of(span), begin = (nth - n_long) * run;
                w.n_chunks = min(run, n_short - begin);
                w.page = span.first_chunk + begin;
                w.last = w.page + w.n_chunks - 1;
            }
            w.seq = first + lane;
            w.kv_head = item % p.kv_heads;
            w.first_head = w.kv_head * (p.heads / p.kv_heads);
            const u32 most = M / (p.heads / p.kv_heads);
            w.first_index = span.first_index + item / p.kv_heads % span.n_groups * most;
            w.counter = w.first_index;
            w.n_rows = min(most, span.end_index - w.first_index);
            ahead() = {w, held_at(w, w.page)};
            return;
        }
    }
    // Of the items that no block began with, the next. The counter is zero again when all have been asked for and every block has
    // been told once that there is no more.
    __device__ __forceinline__ u32 next_item() const {
        u32 item = 0;
        if ((threadIdx.x & 31) == 0) item = p.n_blocks + atomicInc(p.done + 4 * p.n_counters, shares.n_items - 1);
        return __shfl_sync(0xffffffffu, item, 0);
    }

    // When others are done: a row's chunks in order, for the heads of its key head that are this block's. As many of them as there is room for are on
    // their way at once: one after another they took longer than the chunks themselves.
    __device__ __forceinline__ void put_together(const Work& w) {
        // Four channels a thread: as many heads at once as fit, and whole blocks of 128 columns a warp's.
        constexpr u32 THREADS = D / 4, HEADS = N_THREADS / THREADS;
        const u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, n_heads = p.heads / p.kv_heads / p.n_finishers;
        const u32 first = chunk_of(w.from / PAGE), n = chunk_of((w.end - 1) / PAGE) - first + 1;
        const u32 channel = threadIdx.x % THREADS * 4, own = threadIdx.x / THREADS;
        float4* factors = (float4*)(room + L::KEYS);  // [head, chunk]: of what was before, of the chunk; its total
        float* values = (float*)(factors + n_heads * MAX_CHUNKS);  // [chunk, head, channel]
        const u32 at_once = min(n_heads, HEADS), most = (L::QUERIES - n_heads * MAX_CHUNKS * 16) / (at_once * D * 4);
        Pair pair = pairs()[0];
        const u32 first_head = w.first_head + w.finisher * n_heads;
        // Threads that have no head of their own copy others' chunks.
        const auto copy = [&](u32 head, u32 chunk) {
            const u32 n_here = min(at_once, n_heads - head), turns = HEADS / n_here, turn = own / n_here;
            pair.head = first_head + head + own % n_here;
            if (turn >= turns) return;
            const float* from = partial(pair, first + chunk + turn) + 4 + channel;
            u32 to = (u32)__cvta_generic_to_shared(values + (turn * at_once + own % n_here) * D + channel);
#pragma unroll 4
            for (u32 c = turn; c < min(most, n - chunk); c += turns, from += turns * (D + 4), to += turns * at_once * D * 4)
                asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
        };
        // Asked for before others are waited for.
        const auto gate_of = [&](u32 head) { return own < at_once && head + own < n_heads ? gate_at(w.row, first_head + head + own, channel) : float4{}; };
        float4 gate = gate_of(0);
        self().template meet_row<true>();
        copy(0, 0);
#pragma unroll 1
        for (u32 i = warp; i < n_heads; i += (N_THREADS / 32)) {
            pair.head = first_head + i;
            float before = merge_start(p, pair.head).max;
            float2 found[(MAX_CHUNKS + 31) / 32];
#pragma unroll
            for (u32 c = 0; c < (MAX_CHUNKS + 31) / 32; c++) {
                found[c] = make_float2(-INFINITY_F, 0.0f);
                if (32 * c + lane < n) found[c] = __ldcg((const float2*)partial(pair, first + 32 * c + lane));
            }
#pragma unroll
            for (u32 c = 0; c < (MAX_CHUNKS + 31) / 32; c++) {
                if (32 * c >= n) break;
                // The largest up to each chunk.
                float now = fmaxf(before, found[c].x);
#pragma unroll
                for (u32 step = 1; step < 32; step *= 2) {
                    const float other = __shfl_up_sync(0xffffffffu, now, step);
                    if (lane >= step) now = fmaxf(now, other);
                }
                const float last = __shfl_up_sync(0xffffffffu, now, 1);
                Merge all = {lane == 0 ? before : last, 0.0f};
                const float2 f = merge(all, found[c].x, 0.0f);
                if (32 * c + lane < n) factors[i * MAX_CHUNKS + 32 * c + lane] = make_float4(f.x, f.y, found[c].y, 0.0f);
                before = __shfl_sync(0xffffffffu, now, 31);
            }
        }
#pragma unroll 1
        for (u32 head = 0; head < n_heads; head += HEADS) {
            const bool has_head = own < at_once && head + own < n_heads;
            const u32 h = first_head + head + own;
            if (head > 0) gate = gate_of(head);
            float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            float total = has_head ? merge_start(p, h).total : 0.0f;
#pragma unroll 1
            for (u32 chunk = 0; chunk < n; chunk += most) {
                if (head + chunk > 0) {
                    self().meet_all();
                    copy(head, chunk);
                }
                asm volatile("cp.async.wait_all;" ::: "memory");
                self().meet_all();
                if (!has_head) continue;
                const float4* f = factors + (head + own) * MAX_CHUNKS + chunk;
                const float* from = values + own * D + channel;
#pragma unroll 4
                for (u32 c = min(most, n - chunk); c > 0; c--, f++, from += at_once * D) {
                    const float4 v = *(const float4*)from;
                    x.x = __fmaf_rn(f->y, v.x, x.x * f->x);
                    x.y = __fmaf_rn(f->y, v.y, x.y * f->x);
                    x.z = __fmaf_rn(f->y, v.z, x.z * f->x);
                    x.w = __fmaf_rn(f->y, v.w, x.w * f->x);
                    total = __fmaf_rn(f->z, f->y, total * f->x);
                }
            }
            if (has_head) put(w.row, h, channel, x, 1.0f / total, gate);
        }
    }

    // The row of a unit, of which there are as many as (row, key head, finisher): the chunks that are not wholly committed are its
    // own. Those that only put together are last, for they wait for others' tails.
    __device__ __forceinline__ void find_tail(u32 unit) const {
        const u32 n_tails = p.n_rows * p.kv_heads, nth = unit % n_tails, most = M / (p.heads / p.kv_heads);
        Work w = {};
        w.finisher = unit / n_tails;
        w.first_index = p.first_row + nth / p.kv_heads;
        w.kv_head = nth % p.kv_heads;
        w.first_head = w.kv_head * (p.heads / p.kv_heads);
        w.n_rows = 1;
        tail().is_there = 0;
        if (w.finisher >= p.n_finishers || w.first_index >= p.step.counts[0]) return;
        w.row = p.step.seq_rows[w.first_index];
        const Row row = p.step.rows[w.row];
        const Seq seq = p.step.seqs[row.seq];
        if (w.first_index < seq.first + n_walked(p, seq)) return;
        w.seq = row.seq;
        w.sure_end = seq.committed + seq.n_sure;
        w.from = from_of(p, row.pos);
        w.end = end_of(p, w.sure_end, row.pos);
        const Span span = span_of(p, seq, most);
        const u32 chunk = chunk_of(span.end_page);
        w.page = max(span.is_cut ? span.end_page : chunk_start(chunk), w.from / PAGE);
        w.last = (w.end - 1) / PAGE;
        w.is_cut = span.is_cut && chunk_of(w.page) == chunk;
        w.counter = span.first_index + (w.first_index - span.first_index) / most * most;
        tail() = {w, span.n_chunks, min(most, span.end_index - w.counter) * p.n_finishers, 1};
    }

    __device__ __forceinline__ void say_done(const Work& w) const {
        __threadfence();
        if (kind == TAIL) {
            if (p.n_finishers > 1) atomicAdd(counter(TAILS, w.first_index, w), 1);
            return;
        }
        if (w.is_cut) atomicAdd(counter(CUT, w.counter, w), 1);
        atomicAdd(counter(DONE, w.counter, w), w.n_chunks);
    }

    // Until whoever has a chunk of the row is done with it.
    __device__ __forceinline__ void wait_for_others(const Work& w) const {
        while (tail().n_others && load_acquire(counter(DONE, w.counter, w)) < tail().n_others) {}
        while (p.n_finishers > 1 && load_acquire(counter(TAILS, w.first_index, w)) == 0) {}
    }
    // The last of those that waited for the same counter clears it for the next launch.
    __device__ __forceinline__ void end_waiting(const Work& w) const {
        const u32 n_waiting = tail().n_waiting;
        u32 nth = 0, of_tail = 0;
        if (tail().n_others) nth = atomicInc(counter(WAITED, w.counter, w), n_waiting - 1);
        if (p.n_finishers > 1) of_tail = atomicAdd(counter(TAILS, w.first_index, w), 1);
        if (tail().n_others && nth == n_waiting - 1) *counter(DONE, w.counter, w) = *counter(CUT, w.counter, w) = 0;
        if (p.n_finishers > 1 && of_tail == p.n_finishers) *counter(TAILS, w.first_index, w) = 0;
    }

    __device__ __forceinline__ SELF& self() { return static_cast<SELF&>(*this); }

    __device__ __forceinline__ void run() {
        // Soon said of a step that is all prompts, whose bucket has 16 of these launches.
        if (p.walks && !p.step.counts[4]) return pdl_idle();
        // Steps' data and committed pages are there before the kernel before this one ends; queries and tails are not.
        self().run_roles();
    }

    // Items as long as there are any, then the tails that are the block's. A thread multiplies, or copies, or both.
    template <bool MULTIPLIES, bool COPIES>
    __device__ __forceinline__ void work() {
        // Blocks without an item, or with a short one, are the last.
        u32 unit = p.n_blocks - 1 - blockIdx.x;
        bool is_first = true, is_new = true;
#pragma unroll 1
        while (true) {
            if (is_new) {
                if (MULTIPLIES && threadIdx.x == 0) find_tail(unit);
                self().meet_block();
            }
            const u64 held = ahead().held;
            kind = held == NOWHERE ? TAIL : SHARED;
            const bool has_tail = tail().is_there && tail().work.finisher == 0, has_pages = kind == SHARED || has_tail;
            if (is_first && kind == TAIL && !tail().is_there) return pdl_idle();
            const Work w = kind == SHARED ? ahead().work : tail().work;
            if (MULTIPLIES) {
                if (has_pages) find_pairs(w);
                else if (threadIdx.x == 0) pairs()[0].slot = w.first_index - p.first_row;
                if (has_tail && is_new) find_places(tail().work, tail().work.page);
            }
            self().meet_block();
            if (COPIES && has_pages && is_new) self().begin_page(kind == SHARED ? held : GATHERED);
            if (MULTIPLIES && is_first) {
                pdl_wait();
                pdl_next();
            }
            if (has_pages) {
                self().template run_pages<MULTIPLIES, COPIES>(w, kind == SHARED && has_tail ? GATHERED : NOWHERE);
                self().meet_block();
                // What all have stored is there before it is said to be. By a thread that has least to do.
                if (threadIdx.x == FINDS) say_done(w);
            }
            is_first = is_new = false;
            if (kind == SHARED) continue;
            if (tail().is_there) {
                // Who waits for others is a thread that has nothing else to do, if there is one.
                const bool waits = COPIES && threadIdx.x == (MULTIPLIES ? 0 : FINDS);
                // Counters may be those of the launch ahead until that is over.
                if (waits) pdl_wait(), wait_for_others(w);
                if (MULTIPLIES) put_together(w);
                else self().template meet_row<false>();
                if (waits) end_waiting(w);
            }
            unit += p.n_blocks;
            if (unit >= p.n_rows * p.kv_heads * p.n_finishers) return;
            self().meet_block();
            is_new = true;
        }
    }
};
