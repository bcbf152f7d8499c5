// The parts of a round that are not a plan's: from what is known of its sequences to the rows of each step, and from what was
// chosen to what is known after it. Definition: plan/src/round_definition.rs. One block each. Other kernels read
// a step's data before they wait, so the queue lets none overlap the one that made it.
#include "listed.cuh"
#include "step.cuh"

#define MAX_SEQS 16u
#define MAX_ROWS 128u
#define TREE_ROWS 64u  // of one sequence
#define STOP_IDS 8u
#define DRAWING (sizeof(Drawing) / 4)
#define NONE 0xffffffffu

struct Resident {
    u32 committed, injected, stored_grid, root, limit, is_active;
    u32 forced, owed;  // tokens accepted a round in 65536ths, 0: what the target says; and what rounds fell short of a fraction
    u32 stop_ids[STOP_IDS];
    Drawing drawing;
};

#define FOUND 24u

// DraftPart: what a draft has to do with a sequence.
#define ENTERS 1u
#define DRAFTS 2u

struct Member {
    u32 slot, nodes, depth, is_chain, is_fixed, part, found_at, n_found;
    float trust[PATH];
    u32 found[FOUND];  // what is taken to follow, from found_at committed tokens on
    float found_logp[FOUND];
};

struct Terms {
    u32 n_members;
    float hedge;
    u32 pad0, pad1;
    float gain[MAX_ROWS + 4], price[MAX_ROWS + 4];
    Member members[MAX_SEQS];
};

struct Fate {
    u32 slot, first, n_nodes, n_accepted, doubt, committed, pad0, pad1;
};

struct Node {
    u32 token, parent;
    float logp, log_weight;
    u32 chosen;
    float chosen_logp;
};

struct Outcome {
    u32 n_fates, n_nodes, wanted, pad;
    u64 begun, drafted, ended, pad1;
    Fate fates[MAX_SEQS];
    Node nodes[MAX_ROWS];
};

struct Choice {
    u32 token;
    float logp;
};

#define RING 4u

// What a round keeps from one of its kernels to the next, and how many there have been: the place in rings of terms and outcomes.
struct Between {
    u64 begun, drafted;
    u32 wanted, n_rounds;
    float logp[MAX_ROWS], log_weight[MAX_ROWS];
};

struct Round {
    Step step;
    Resident* residents;
    Terms* terms;
    const Terms* sent;  // in memory of the host, as outcomes
    Between* between;
    const Choice* choices;  // candidates [member that drafts, depth, k]; of accept, what was chosen [row]
    Outcome* outcomes;
    u16* accepted;          // [sequence, 1 + PATH]
    u32 block, mask_token, depths, k;
    u32 first_member, most_members, rows, max_pages, seqs, drawings, block_is_apart;
    u32 is_first;  // of the round's kernels
    u32 drafting;   // members that draft, at most
    u32 has_trees;  // there can be more to a tree than its root
};

__device__ __forceinline__ u64 now() {
    u64 t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

// A sequence of the step that is made.
struct Laid {
    u32 slot, committed, n_sure, grid, first, n_rows, token;
};

struct Lay {
    u32 n, rows;
    Laid seqs[MAX_SEQS];
};

// The members that take part, as places in the terms, and what is known of them. By the first warp.
struct Here {
    u32 n, member[MAX_SEQS], slot[MAX_SEQS], part[MAX_SEQS];
    u32 nth[MAX_SEQS];  // among those that draft; NONE of one that does not
    Resident known[MAX_SEQS];
};

__device__ __forceinline__ void gather(const Round& p, Here& here) {
    const u32 lane = threadIdx.x, slot = lane < p.terms->n_members ? p.terms->members[lane].slot : NONE;
    const bool takes_part = slot != NONE && p.residents[slot].is_active;
    const u32 all = __ballot_sync(0xffffffffu, takes_part), place = __popc(all & ((1u << lane) - 1));
    const u32 part = takes_part ? p.terms->members[lane].part : 0, drafting = __ballot_sync(0xffffffffu, part == DRAFTS);
    const u32 nth = __popc(drafting & ((1u << lane) - 1));
    if (takes_part) {
        here.member[place] = lane, here.slot[place] = slot, here.known[place] = p.residents[slot], here.part[place] = part;
        here.nth[place] = part == DRAFTS && nth < p.drafting ? nth : NONE;
    }
    if (lane == 0) here.n = __popc(all);
    __syncwarp();
}

__device__ __forceinline__ u32 seq_of(const Lay& lay, u32 row) {
    u32 s = 0;
    while (s + 1 < lay.n && row >= lay.seqs[s + 1].first) s++;
    return s;
}

// Rows as step_data.rs packs them. `token(s, local)`; `parent(s, local)` is the place of the parent; `above(s, local, depth)` is
// the place of the row's ancestor at a depth below the last sure row, from 0.
template <class Token, class Parent, class Depth, class Above>
__device__ void lay_rows(const Round& p, const Lay& lay, u32 n_logits, Token token, Parent parent, Depth depth, Above above) {
    const Step& step = p.step;
    if (threadIdx.x == 0) {
        u32* counts = (u32*)step.counts;
        u32 walked = 0;
        for (u32 s = 0; s < lay.n; s++) walked += lay.seqs[s].n_sure >= PROMPT_ROWS ? lay.seqs[s].n_sure : 0;
        counts[0] = lay.rows, counts[1] = n_logits, counts[2] = lay.n, counts[3] = lay.rows, counts[4] = lay.rows - walked;
    }
    if (threadIdx.x < lay.n) {
        const Laid& l = lay.seqs[threadIdx.x];
        ((Seq*)step.seqs)[threadIdx.x] = {l.slot, l.committed, l.n_sure, l.grid, l.first, l.n_rows, 0, 0};
        for (u32 c = 0; c < step.n_classes; c++)
            ((u32*)step.table_at)[threadIdx.x * step.n_classes + c] = (l.slot * step.n_classes + c) * p.max_pages;
    }
    for (u32 r = threadIdx.x; r < lay.rows; r += blockDim.x) {
        const u32 s = seq_of(lay, r);
        const Laid& l = lay.seqs[s];
        const u32 local = r - l.first, pos = l.committed + depth(s, local), up = parent(s, local);
        ((Row*)step.rows)[r] = {token(s, local), s, pos, up == NONE ? NO_PARENT : l.first + up, local, l.committed + local, local < l.n_sure, 0};
        ((u32*)step.seq_rows)[r] = r;
        const u32 end = l.committed + l.n_sure;
        for (u32 d = 0; end + d <= pos; d++) ((u32*)step.paths)[r * PATH + d] = l.committed + above(s, local, d);
    }
    for (u32 i = threadIdx.x; i < lay.rows * REACH; i += blockDim.x) {
        const u32 r = i / REACH, s = seq_of(lay, r);
        const Laid& l = lay.seqs[s];
        const u32 local = r - l.first, pos = l.committed + depth(s, local), at = grid_of(pos) + i % REACH, end = l.committed + l.n_sure;
        if (at >= pos) continue;
        const u32 place = at < end ? at - l.committed : above(s, local, at - end);
        ((u32*)step.pasts)[i] = at < l.committed ? KEPT | at % WINDOW_ROWS : place << 16 | (l.first + place);
    }
}

// A chain of sure rows for each.
template <class Token>
__device__ void lay_chains(const Round& p, const Lay& lay, u32 n_logits, Token token) {
    const auto same = [](u32, u32 local) { return local; };
    const auto before = [](u32, u32 local) { return local == 0 ? NONE : local - 1; };
    lay_rows(p, lay, n_logits, token, before, same, [](u32, u32, u32) { return 0u; });
}

// By the first kernel of a round. Terms are read from where the host wrote them: a copy between two rounds would hold up the second.
__device__ __forceinline__ void begin(const Round& p) {
    if (threadIdx.x == 0) p.between->begun = now();
    const uint4* sent = (const uint4*)(p.sent + p.between->n_rounds % RING);
    // All on their way at once: the host is far.
    constexpr u32 N = sizeof(Terms) / 16, SHARES = (N + 255) / 256;
    static_assert(sizeof(Terms) % 16 == 0, "terms are whole quads of words");
    uint4 x[SHARES];
#pragma unroll
    for (u32 k = 0; k < SHARES; k++)
        if (threadIdx.x < 256 && threadIdx.x + 256 * k < N) x[k] = sent[threadIdx.x + 256 * k];
#pragma unroll
    for (u32 k = 0; k < SHARES; k++)
        if (threadIdx.x < 256 && threadIdx.x + 256 * k < N) ((uint4*)p.terms)[threadIdx.x + 256 * k] = x[k];
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(256) round_inject(const __grid_constant__ Round p) {
    __shared__ Lay lay;
    __shared__ Here here;
    pdl_wait();
    begin(p);
    if (threadIdx.x < 32) gather(p, here);
    if (threadIdx.x == 0) {
        lay.n = lay.rows = 0;
        for (u32 m = 0; m < here.n; m++) {
            if (here.part[m] < ENTERS) continue;
            const Resident& r = here.known[m];
            const u32 waiting = r.committed - r.injected;
            if (waiting > 0) lay.seqs[lay.n++] = {here.slot[m], r.injected, waiting, 0, lay.rows, waiting, 0};
            lay.rows += waiting;
            p.residents[here.slot[m]].injected = r.committed;
        }
    }
    __syncthreads();
    lay_chains(p, lay, 0, [](u32, u32) { return 0u; });
}

// Of up to most_members members that draft, from the first_member-th on.
extern "C" __global__ void __launch_bounds__(256) round_block(const __grid_constant__ Round p) {
    __shared__ Lay lay;
    __shared__ Here here;
    pdl_wait();
    if (threadIdx.x < 32) gather(p, here);
    if (threadIdx.x == 0) {
        lay.n = lay.rows = 0;
        for (u32 m = 0; m < here.n && lay.n < p.most_members; m++) {
            if (here.nth[m] == NONE || here.nth[m] < p.first_member) continue;
            const Resident& r = here.known[m];
            lay.seqs[lay.n++] = {here.slot[m], r.committed, p.block, 0, lay.rows, p.block, r.root};
            lay.rows += p.block;
        }
    }
    __syncthreads();
    lay_chains(p, lay, lay.n * p.depths, [&](u32 s, u32 local) { return local == 0 ? lay.seqs[s].token : p.mask_token; });
    if (threadIdx.x == 0 && p.block_is_apart) ((u32*)p.step.counts)[3] = 0;
    for (u32 i = threadIdx.x; i < lay.n * p.depths; i += blockDim.x)
        ((u32*)p.step.logit_rows)[i] = lay.seqs[i / p.depths].first + 1 + i % p.depths;
}

// Larger for heavier, 0 for what cannot be.
__device__ __forceinline__ u32 key_of(float weight) {
    const u32 bits = __float_as_uint(weight + 0.0f);
    if ((bits & 0x7f800000) == 0x7f800000) return 0;
    return bits >> 31 ? ~bits : bits | 0x80000000;
}

__device__ __forceinline__ u32 max_of_warp(u32 x) { return __reduce_max_sync(0xffffffffu, x); }

// Pace::said
__device__ __forceinline__ float said(u32 rank) { return rank == 0 ? -0.25f : -1.5f - 0.75f * (float)rank; }

struct Trees {
    float logp[MAX_SEQS][PATH * 16];  // of candidates, and trusted so far
    float trust[MAX_SEQS][PATH];
    float weight[MAX_SEQS][TREE_ROWS];
    float gain[MAX_ROWS + 1], price[MAX_ROWS + 1];
    u8 parent[MAX_SEQS][TREE_ROWS], depth[MAX_SEQS][TREE_ROWS], rank[MAX_SEQS][TREE_ROWS], size[MAX_SEQS], kept[MAX_SEQS];
    u8 path[MAX_SEQS][TREE_ROWS][PATH];
};

// The weight of a node's next candidate.
__device__ __forceinline__ u32 next_key(const Trees& t, u32 m, u32 k, float weight, u32 depth, u32 tried) {
    const float sum = t.logp[m][depth * k + tried] + t.trust[m][depth];
    return sum != sum ? 0 : key_of(weight + fminf(sum, 0.0f));
}

// By a warp. A lane has nodes `lane` and `lane + 32`; each turn the heaviest candidate of all joins, the lowest node's among equals.
__device__ void grow(Trees& t, u32 m, u32 k, u32 depth_limit, u32 n_drafts, bool is_chain) {
    const u32 lane = threadIdx.x & 31, tries = is_chain ? 1 : k;
    float weight[2] = {0.0f, 0.0f};
    u32 depth[2] = {0, 0}, tried[2] = {0, 0}, key[2] = {0, 0}, size = 1;
    if (lane == 0 && depth_limit > 0) key[0] = next_key(t, m, k, 0.0f, 0, 0);
    while (size <= n_drafts) {
        const u32 best = max_of_warp(max(key[0], key[1]));
        if (best == 0) break;
        const u32 low = __ballot_sync(0xffffffffu, key[0] == best), high = __ballot_sync(0xffffffffu, key[1] == best);
        const u32 parent = low ? __ffs(low) - 1 : 31 + __ffs(high), h = parent / 32;
        const float w = __shfl_sync(0xffffffffu, h ? weight[1] : weight[0], parent & 31);
        const u32 d = __shfl_sync(0xffffffffu, h ? depth[1] : depth[0], parent & 31);
        const u32 rank = __shfl_sync(0xffffffffu, h ? tried[1] : tried[0], parent & 31);
        const float mine = w + fminf(t.logp[m][d * k + rank] + t.trust[m][d], 0.0f);
#pragma unroll
        for (u32 j = 0; j < 2; j++) {
            const u32 node = lane + 32 * j;
            const bool is_new = node == size;
            if (is_new) weight[j] = mine, depth[j] = d + 1;
            if (is_new || node == parent) {
                tried[j] = is_new ? 0 : rank + 1;
                key[j] = depth[j] < depth_limit && tried[j] < tries ? next_key(t, m, k, weight[j], depth[j], tried[j]) : 0;
            }
        }
        if (lane == 0) t.weight[m][size] = mine, t.depth[m][size] = (u8)(d + 1), t.parent[m][size] = (u8)parent, t.rank[m][size] = (u8)rank;
        if (lane < PATH) t.path[m][size][lane] = lane < d ? t.path[m][parent][lane] : (u8)size;
        __syncwarp();
        size++;
    }
    if (lane == 0) t.size[m] = (u8)size;
}

// By a warp: the chain of what was found in the text, as far as that has gone along with it.
__device__ void follow(Trees& t, u32 m, const Member& member, const Resident& r, u32 most) {
    const u32 lane = threadIdx.x & 31, since = r.committed - member.found_at;
    const bool goes_along = since < member.n_found && (since == 0 || member.found[since - 1] == r.root);
    float weight = 0.0f;
    u32 size = 1;
    for (most = goes_along ? min(most, member.n_found - since) : 0; size <= most; size++) {
        const float sum = member.found_logp[since + size - 1] + t.trust[m][size - 1];
        weight += sum != sum ? -INFINITY_F : fminf(sum, 0.0f);
        if (key_of(weight) == 0) break;
        if (lane == 0) t.weight[m][size] = weight, t.depth[m][size] = (u8)size, t.parent[m][size] = (u8)(size - 1), t.rank[m][size] = 0;
        if (lane < PATH) t.path[m][size][lane] = (u8)(lane + 1 < size ? lane + 1 : size);
    }
    if (lane == 0) t.size[m] = (u8)size;
}

// By a warp, a lane a tree: how many nodes of each are kept.
__device__ u32 cut(Trees& t, float hedge, u32 n, bool is_fixed, u32 rows) {
    const u32 lane = threadIdx.x & 31;
    u32 count = 0, used = n, kept, wanted;
    float tokens = (float)n, worth, wished;
    const auto key = [&](bool fixed) {
        const bool is_open = lane < n && is_fixed == fixed && count + 1 < t.size[lane];
        return is_open ? key_of(t.weight[lane][count + 1]) : 0u;
    };
    const auto take = [&](u32 mine, u32 best, float share) {
        // Among equals the tree that has fewest.
        const u32 tree = __reduce_min_sync(0xffffffffu, mine == best ? count << 5 | lane : NONE) & 31;
        const float weight = __shfl_sync(0xffffffffu, lane < n ? t.weight[lane][min(count + 1, TREE_ROWS - 1)] : 0.0f, tree);
        tokens += share * expf(weight);
        count += lane == tree, used++;
    };
    while (used < rows) {
        const u32 mine = key(true), best = max_of_warp(mine);
        if (best == 0) break;
        take(mine, best, 1.0f);
    }
    kept = count, wanted = used;
    worth = wished = tokens * t.gain[used] - t.price[used];
    while (used < MAX_ROWS) {
        const u32 mine = key(false), best = max_of_warp(mine);
        if (best == 0) break;
        take(mine, best, hedge);
        const float value = tokens * t.gain[used] - t.price[used];
        if (used <= rows && value > worth) worth = value, kept = count;
        if (value > wished) wished = value, wanted = used;
    }
    if (lane < n) t.kept[lane] = (u8)kept;
    return wanted;
}

// Trees of those that do not draft are what was found in their texts, or roots.
extern "C" __global__ void __launch_bounds__(512) round_tree(const __grid_constant__ Round p) {
    extern __shared__ u32 room[];
    Trees& t = *(Trees*)room;
    __shared__ Lay lay;
    __shared__ Here here;
    pdl_wait();
    if (p.is_first) begin(p);
    if (threadIdx.x < 32) gather(p, here);
    __syncthreads();
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x & 31, k = p.k, n = here.n;
    if (threadIdx.x <= MAX_ROWS) t.gain[threadIdx.x] = p.terms->gain[threadIdx.x], t.price[threadIdx.x] = p.terms->price[threadIdx.x];
    if (warp < n) {
        const Member& member = p.terms->members[here.member[warp]];
        const Resident& r = here.known[warp];
        const u32 nth = here.nth[warp], depths = nth == NONE ? 0 : p.depths;
        for (u32 i = lane; i < depths * k; i += 32)
            t.logp[warp][i] = r.forced ? said(i % k) : p.choices[nth * depths * k + i].logp;
        if (lane < PATH) t.trust[warp][lane] = member.trust[lane];
        if (lane == 0) t.weight[warp][0] = 0.0f, t.depth[warp][0] = 0, t.parent[warp][0] = 255, t.rank[warp][0] = 0;
        __syncwarp();
        // The target's own token comes on top, and nothing is written past the end.
        const u32 left = r.limit > r.committed + 2 ? r.limit - r.committed - 2 : 0;
        const u32 deepest = min(min(left, member.depth), PATH), nodes = min(member.nodes, TREE_ROWS - 1);
        if (member.part == DRAFTS)
            grow(t, warp, k, min(deepest, depths), nodes, member.is_chain);
        else
            follow(t, warp, member, r, p.has_trees ? min(deepest, nodes) : 0);
    }
    __syncthreads();
    if (warp == 0) {
        const u32 wanted = cut(t, p.terms->hedge, n, lane < n && p.terms->members[here.member[lane]].is_fixed, p.rows);
        __syncwarp();
        if (lane == 0) {
            p.between->wanted = wanted;
            lay.n = n, lay.rows = 0;
            for (u32 m = 0; m < n; m++) {
                const Resident& r = here.known[m];
                lay.seqs[m] = {here.slot[m], r.committed, 1, r.stored_grid, lay.rows, t.kept[m] + 1u, r.root};
                lay.rows += t.kept[m] + 1u;
            }
        }
    }
    __syncthreads();
    const auto candidate = [&](u32 m, u32 node) -> const Choice& {
        return p.choices[(here.nth[m] * p.depths + t.depth[m][node] - 1) * k + t.rank[m][node]];
    };
    const auto member = [&](u32 m) -> const Member& { return p.terms->members[here.member[m]]; };
    // Of a followed path the place among what was found.
    const auto place = [&](u32 m, u32 node) { return here.known[m].committed - member(m).found_at + node - 1; };
    const auto follows = [&](u32 m) { return here.part[m] != DRAFTS; };
    const auto token = [&](u32 m, u32 node) {
        return node == 0 ? lay.seqs[m].token : follows(m) ? member(m).found[place(m, node)] : candidate(m, node).token;
    };
    const auto logp = [&](u32 m, u32 node) {
        return follows(m) ? member(m).found_logp[place(m, node)] : here.known[m].forced ? said(t.rank[m][node]) : candidate(m, node).logp;
    };
    const auto parent = [&](u32 m, u32 node) { return node == 0 ? NONE : t.parent[m][node]; };
    const auto depth = [&](u32 m, u32 node) -> u32 { return t.depth[m][node]; };
    lay_rows(p, lay, lay.rows, token, parent, depth, [&](u32 m, u32 node, u32 d) -> u32 { return t.path[m][node][d]; });
    for (u32 r = threadIdx.x; r < lay.rows; r += blockDim.x) {
        const u32 m = seq_of(lay, r), node = r - lay.seqs[m].first;
        ((u32*)p.step.logit_rows)[r] = r;
        p.between->logp[r] = node == 0 ? 0.0f : fminf(logp(m, node), 0.0f);
        p.between->log_weight[r] = t.weight[m][node];
    }
    u32* counts = (u32*)p.step.counts;
    for (u32 i = threadIdx.x; i < n * DRAWING; i += blockDim.x) counts[p.drawings + i] = ((const u32*)&here.known[i / DRAWING].drawing)[i % DRAWING];
    if (threadIdx.x == 0) counts[7] = p.drawings, p.between->drafted = now();
}

// A warp a sequence, a lane nodes `lane` and `lane + 32` of its tree.
extern "C" __global__ void __launch_bounds__(512) round_accept(const __grid_constant__ Round p) {
    pdl_wait();
    const u32 s = threadIdx.x / 32, lane = threadIdx.x & 31, n = p.step.counts[2];
    Outcome& out = p.outcomes[p.between->n_rounds % RING];
    __syncthreads();
    if (threadIdx.x == 0) {
        p.between->n_rounds++;
        out.n_fates = n, out.n_nodes = p.step.counts[0], out.wanted = p.between->wanted;
        out.begun = p.between->begun, out.drafted = p.between->drafted, out.ended = now();
    }
    u16* accepted = p.accepted + s * (1 + PATH);
    if (s >= n) {
        if (s < p.seqs && lane == 0) accepted[0] = 0;
        return;
    }
    const Seq seq = p.step.seqs[s];
    Resident& r = p.residents[seq.slot];
    u32 token[2], parent[2], depth[2];
    Choice chosen[2];
#pragma unroll
    for (u32 h = 0; h < 2; h++) {
        const u32 node = lane + 32 * h, row = seq.first + node;
        token[h] = NONE, parent[h] = NONE, depth[h] = 0, chosen[h] = {NONE, 0.0f};
        if (node >= seq.n_rows) continue;
        const Row at = p.step.rows[row];
        token[h] = at.token, parent[h] = at.parent == NO_PARENT ? NONE : at.parent - seq.first, chosen[h] = p.choices[row], depth[h] = at.pos - seq.committed;
        out.nodes[row] = {token[h], parent[h], p.between->logp[row], p.between->log_weight[row], chosen[h].token, chosen[h].logp};
    }
    // Nodes whose place a condition holds at.
    const auto where = [](bool low, bool high) { return (u64)__ballot_sync(0xffffffffu, low) | (u64)__ballot_sync(0xffffffffu, high) << 32; };
    const u32 forced = r.forced, wanted = forced + r.owed;
    u64 path = 0;
    if (forced) {
        const u32 deepest = max_of_warp(max(depth[0], depth[1])), last = min((wanted >> 16) - 1, deepest);
        const u64 found = where(depth[0] == last && lane < seq.n_rows, depth[1] == last && lane + 32 < seq.n_rows);
        for (u32 up = __ffsll(found) - 1; up != 0; up = __shfl_sync(0xffffffffu, up < 32 ? parent[0] : parent[1], up & 31)) path |= 1ull << up;
        if (lane == 0) r.owed = wanted & 0xffff;
    }
    u32 at = 0, n_path = 0, root = r.root, is_active = 1, doubt = NONE, joined = NONE, n_joined = 0;
    while (true) {
        u32 next = __shfl_sync(0xffffffffu, at < 32 ? chosen[0].token : chosen[1].token, at & 31);
        if (forced && next != NONE) {
            const u64 below = where(parent[0] == at, parent[1] == at), on = below & path;
            const u32 child = on ? __ffsll(on) - 1 : 0;
            const u32 guess = __shfl_sync(0xffffffffu, child < 32 ? token[0] : token[1], child & 31);
            const u32 own = next;
            // Of as many tokens and one more than there are guesses, one is none.
            for (u32 i = 0; !on && i <= __popcll(below); i++) {
                next = own >= i ? own - i : own + i;
                if (!where(parent[0] == at && token[0] == next, parent[1] == at && token[1] == next)) break;
            }
            if (on) next = guess;
        }
        if (next == NONE) {
            doubt = at, is_active = 0;
            if (n_path > 0) n_path--, root = __shfl_sync(0xffffffffu, at < 32 ? token[0] : token[1], at & 31);
            break;
        }
        root = next;
        if (lane == n_joined++) joined = next;
        const bool is_stop = lane < STOP_IDS && r.stop_ids[lane] == next;
        if (__any_sync(0xffffffffu, is_stop) || seq.committed + n_path + 2 >= r.limit) {
            is_active = 0;
            break;
        }
        const u64 child = where(parent[0] == at && token[0] == next, parent[1] == at && token[1] == next);
        if (!child) break;
        at = __ffsll(child) - 1;
        if (lane == 0) accepted[1 + n_path] = (u16)(seq.first + at);
        n_path++;
    }
    if (r.drawing.kind & COUNTS) {
        Adjustment* listed = (Adjustment*)(p.step.tables + r.drawing.listed);
        const u32 n_listed = count_answered(listed, r.drawing.n_listed, joined, lane < n_joined);
        __syncwarp();
        if (lane == 0) r.drawing.n_listed = n_listed;
    }
    if (lane != 0) return;
    accepted[0] = (u16)n_path;
    const u32 committed = seq.committed + (doubt == 0 ? 0 : 1 + n_path);
    r.committed = committed, r.stored_grid = grid_of(seq.committed), r.root = root, r.is_active = is_active;
    out.fates[s] = {seq.slot, seq.first, seq.n_rows, n_path, doubt, committed, 0, 0};
}
