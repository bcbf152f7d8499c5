//! What a round decides, in plain Rust: which guesses make a tree, how many of them are verified, and which came true.
//! Rounds on a device are tested against it.

use crate::draw::Adjustment;
use crate::op::NO_TOKEN;
use crate::round::{
    DraftPart, Fate, MAX_ROUND_ROWS, MAX_ROUND_TREE, Member, Pace, Resident, RoundNode, Terms,
};
use crate::state::{MAX_DRAFT_DEPTH, grid_of};
use crate::step::NO_PARENT;

/// The tree of the heaviest paths over a block's candidates, `k` a depth, most likely first. Each turn the heaviest candidate
/// joins that its parent has not tried yet; among equals the one whose parent joined first. Of one that does not draft it is the
/// root.
pub fn grow(resident: &Resident, member: &Member, candidates: &[(u32, f32)], k: usize) -> Vec<RoundNode> {
    let root = root(resident);
    let depth = deepest(resident, member);
    let depth = if member.part == DraftPart::Drafts { depth.min(candidates.len() / k) } else { 0 };
    let said = |depth: usize, rank: usize| {
        let (token, logp) = candidates[depth * k + rank];
        (token, if resident.forced.is_some() { Pace::said(rank) } else { logp })
    };
    let (mut nodes, mut depths, mut tried) = (vec![root], vec![0usize], vec![0usize]);
    while nodes.len() <= (member.nodes as usize).min(MAX_ROUND_TREE - 1) {
        let mut best: Option<(usize, f32)> = None;
        for (i, node) in nodes.iter().enumerate() {
            let is_open = depths[i] < depth && tried[i] < k && !(member.is_chain && tried[i] > 0);
            if is_open {
                let (_, logp) = said(depths[i], tried[i]);
                let weight = node.log_weight + believed(logp, member.trust[depths[i]]);
                if weight.is_finite() && best.is_none_or(|(_, w)| weight > w) {
                    best = Some((i, weight));
                }
            }
        }
        let Some((parent, log_weight)) = best else { break };
        let (token, logp) = said(depths[parent], tried[parent]);
        tried[parent] += 1;
        nodes.push(RoundNode { token, parent: parent as u32, logp: logp.min(0.0), log_weight, ..root });
        depths.push(depths[parent] + 1);
        tried.push(0);
    }
    nodes
}

/// The chain of what was found in the text, as far as that has gone along with it; the root alone where it has not, or nothing was.
pub(crate) fn follow(resident: &Resident, member: &Member) -> Vec<RoundNode> {
    let root = root(resident);
    let mut nodes = vec![root];
    let found = &member.found;
    let since = found.since(resident).filter(|_| member.part != DraftPart::Drafts);
    let Some(since) = since else { return nodes };
    let most = deepest(resident, member).min(member.nodes as usize);
    let path = found.tokens.iter().zip(&found.logps).take(found.n as usize).skip(since).take(most);
    for ((token, logp), trust) in path.zip(member.trust) {
        let above = nodes.len() - 1;
        let log_weight = nodes[above].log_weight + believed(*logp, trust);
        if !log_weight.is_finite() {
            break;
        }
        nodes.push(RoundNode {
            token: *token,
            parent: above as u32,
            logp: logp.min(0.0),
            log_weight,
            ..root
        });
    }
    nodes
}

fn root(resident: &Resident) -> RoundNode {
    RoundNode { token: resident.root, parent: NO_PARENT, logp: 0.0, log_weight: 0.0, chosen: (NO_TOKEN, 0.0) }
}

/// The target's own token comes on top, and nothing is written past the end.
fn deepest(resident: &Resident, member: &Member) -> usize {
    let left = resident.limit.saturating_sub(resident.committed + 2);
    left.min(member.depth).min(MAX_DRAFT_DEPTH as u32) as usize
}

/// Never above certainty; no number at all is taken as impossible.
fn believed(logp: f32, trust: f32) -> f32 {
    let sum = logp + trust;
    if sum.is_nan() { f32::NEG_INFINITY } else { sum.min(0.0) }
}

/// How many drafted nodes of each tree are verified in `rows` rows, and how many rows it would have been best to have.
/// Nodes are taken heaviest first over all trees, among equals from the tree that has fewest so far, or texts of one batch end one after another; those of
/// trees that are fixed before all others, and of the others as many as are worth most.
pub fn cut(members: &[Member], trees: &[Vec<RoundNode>], terms: &Terms, rows: usize) -> (Vec<usize>, u32) {
    let mut counts = vec![0; trees.len()];
    let mut used = trees.len();
    let mut tokens = used as f32;
    let heaviest = |counts: &[usize], is_fixed: bool| {
        let mut best: Option<(usize, f32)> = None;
        for (i, tree) in trees.iter().enumerate().filter(|(i, _)| members[*i].is_fixed == is_fixed) {
            if let Some(node) = tree.get(counts[i] + 1)
                && best
                    .is_none_or(|(j, w)| node.log_weight > w || node.log_weight == w && counts[i] < counts[j])
            {
                best = Some((i, node.log_weight));
            }
        }
        best
    };
    while used < rows
        && let Some((i, weight)) = heaviest(&counts, true)
    {
        (counts[i], used, tokens) = (counts[i] + 1, used + 1, tokens + weight.exp());
    }
    let value = |rows: usize, tokens: f32| tokens * terms.gain[rows] - terms.price[rows];
    let (mut best, mut wanted) = (counts.clone(), used);
    let (mut best_value, mut wanted_value) = (value(used, tokens), value(used, tokens));
    while used < MAX_ROUND_ROWS
        && let Some((i, weight)) = heaviest(&counts, false)
    {
        (counts[i], used, tokens) = (counts[i] + 1, used + 1, tokens + terms.hedge * weight.exp());
        let worth = value(used, tokens);
        if used <= rows && worth > best_value {
            (best_value, best) = (worth, counts.clone());
        }
        if worth > wanted_value {
            (wanted_value, wanted) = (worth, used);
        }
    }
    (best, wanted as u32)
}

/// Walks down from the root by what was chosen, and moves the sequence on. `listed`: the tokens that its bias and penalties
/// change; `path`: the accepted nodes.
pub fn accept(
    resident: &mut Resident,
    listed: &mut Vec<Adjustment>,
    nodes: &[RoundNode],
    fate: &mut Fate,
    path: &mut Vec<u32>,
) {
    path.clear();
    let mut at = 0u32;
    let forced = forced_path(resident, nodes);
    loop {
        let (own, _) = nodes[at as usize].chosen;
        let is_child = |token| nodes.iter().any(|n| n.parent == at && n.token == token);
        let token = match &forced {
            Some(forced) if own != NO_TOKEN => forced.get(path.len()).map_or_else(
                || Pace::unguessed(own, nodes.iter().filter(|n| n.parent == at).count(), is_child),
                |next| nodes[*next as usize].token,
            ),
            _ => own,
        };
        if token == NO_TOKEN {
            // What was accepted before stays; this node is the root that the host begins with.
            fate.doubt = Some(at);
            resident.is_active = false;
            if path.pop().is_some() {
                resident.root = nodes[at as usize].token;
            }
            break;
        }
        resident.root = token;
        if resident.drawing.has_penalties() {
            Adjustment::count(listed, token);
        }
        let length = resident.committed + 1 + path.len() as u32 + 1;
        if resident.stop_ids.contains(&token) || length >= resident.limit {
            resident.is_active = false;
            break;
        }
        let child = nodes.iter().position(|n| n.parent == at && n.token == token);
        let Some(child) = child else { break };
        at = child as u32;
        path.push(at);
    }
    resident.stored_grid = grid_of(resident.committed);
    // A root of which nothing is known is still to be run again.
    resident.committed += if fate.doubt == Some(0) { 0 } else { 1 + path.len() as u32 };
    (fate.n_accepted, fate.committed) = (path.len() as u32, resident.committed);
}

/// The first path that is as deep as this round's guesses come true, or as deep as any. What a tree was too shallow for is not
/// made up for later, as a draft would not.
fn forced_path(resident: &mut Resident, nodes: &[RoundNode]) -> Option<Vec<u32>> {
    let wanted = resident.forced.as_mut()?.next_depth();
    let above = |node: u32| Some(nodes[node as usize].parent).filter(|parent| *parent != NO_PARENT);
    let path_to = |node: u32| std::iter::successors(Some(node), |node| above(*node));
    let depth = |node: u32| path_to(node).count() as u32 - 1;
    let all = || 0..nodes.len() as u32;
    let deepest = all().map(depth).max().unwrap_or(0);
    let last = all().find(|node| depth(*node) == wanted.min(deepest)).unwrap_or(0);
    let mut path: Vec<u32> = path_to(last).filter(|node| *node != 0).collect();
    path.reverse();
    Some(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draw::Drawing;
    use crate::round::{Found, MAX_FOUND, MAX_STOP_IDS};

    const RESIDENT: Resident = Resident {
        slot: 0,
        committed: 10,
        injected: 10,
        stored_grid: 0,
        root: 7,
        limit: 100,
        stop_ids: [NO_TOKEN; MAX_STOP_IDS],
        drawing: Drawing::GREEDY,
        forced: None,
        is_active: true,
    };

    fn member(nodes: u32) -> Member {
        Member {
            slot: 0,
            part: DraftPart::Drafts,
            nodes,
            depth: 16,
            is_chain: false,
            is_fixed: true,
            trust: [0.0; MAX_DRAFT_DEPTH],
            found: Found::NOTHING,
        }
    }

    /// Three candidates a depth, probabilities as given.
    fn candidates(depths: &[[f32; 3]]) -> Vec<(u32, f32)> {
        let row = |(depth, p): (usize, &[f32; 3])| {
            let tokens = p.map(f32::ln).into_iter().zip(0u32..);
            tokens.map(|(logp, i)| (10 * (depth as u32 + 1) + i, logp)).collect::<Vec<_>>()
        };
        depths.iter().enumerate().flat_map(row).collect()
    }

    fn tokens(nodes: &[RoundNode]) -> Vec<(u32, u32)> {
        nodes[1..].iter().map(|n| (n.parent, n.token)).collect()
    }

    #[test]
    fn the_heaviest_paths_join_and_none_is_deeper_than_the_text_can_go() {
        let offered = candidates(&[[0.6, 0.3, 0.05], [0.7, 0.2, 0.0]]);
        // Weights: 10 is 0.6, then 20 below it 0.42, 11 is 0.3, 20 below that 0.21, 21 below 10 0.12.
        const ALL: [(u32, u32); 5] = [(0, 10), (1, 20), (0, 11), (3, 20), (1, 21)];
        let chain = Member { is_chain: true, ..member(5) };
        let unsure = {
            let mut m = member(5);
            m.trust[1] = f32::NEG_INFINITY;
            m
        };
        let near = |limit| Resident { limit, ..RESIDENT };
        type Row = (&'static str, Resident, Member, &'static [(u32, u32)]);
        let rows: [Row; 8] = [
            ("five nodes", RESIDENT, member(5), &ALL),
            ("two nodes", RESIDENT, member(2), &[(0, 10), (1, 20)]),
            ("a chain", RESIDENT, chain, &[(0, 10), (1, 20)]),
            ("a depth nobody trusts", RESIDENT, unsure, &[(0, 10), (0, 11), (0, 12)]),
            (
                "no deeper than asked",
                RESIDENT,
                Member { depth: 1, ..member(5) },
                &[(0, 10), (0, 11), (0, 12)],
            ),
            ("two tokens are left", near(13), member(5), &[(0, 10), (0, 11), (0, 12)]),
            ("one token is left", near(12), member(5), &[]),
            (
                "taps enter and nothing is drafted",
                RESIDENT,
                Member { part: DraftPart::Enters, ..member(5) },
                &[],
            ),
        ];
        for (what, resident, member, wanted) in rows {
            assert_eq!(tokens(&grow(&resident, &member, &offered, 3)), wanted, "{what}");
        }
    }

    #[test]
    fn what_was_found_is_followed_while_the_text_goes_along_with_it() {
        let found = |at| {
            let mut found = Found { at, n: 4, logps: [-0.5; MAX_FOUND], ..Found::NOTHING };
            found.tokens[..4].copy_from_slice(&[5, 7, 6, 7]);
            found
        };
        let apart = |at| Member { part: DraftPart::Apart, found: found(at), ..member(5) };
        // The root is 7, with 10 committed.
        type Row = (&'static str, Resident, Member, &'static [u32]);
        let rows: [Row; 9] = [
            ("found just now", RESIDENT, apart(10), &[5, 7, 6, 7]),
            ("a token ago, and another came", RESIDENT, apart(9), &[]),
            ("two tokens ago", RESIDENT, apart(8), &[6, 7]),
            ("all of it came", RESIDENT, apart(6), &[]),
            ("longer ago", RESIDENT, apart(2), &[]),
            ("no more nodes than asked", RESIDENT, Member { nodes: 2, ..apart(10) }, &[5, 7]),
            ("no deeper than asked", RESIDENT, Member { depth: 1, ..apart(10) }, &[5]),
            ("two tokens are left", Resident { limit: 13, ..RESIDENT }, apart(10), &[5]),
            ("one that drafts", RESIDENT, Member { found: found(10), ..member(5) }, &[]),
        ];
        for (what, resident, member, wanted) in rows {
            let nodes = follow(&resident, &member);
            let got: Vec<u32> = nodes[1..].iter().map(|n| n.token).collect();
            assert_eq!(got, wanted, "{what}");
            for (i, node) in nodes.iter().enumerate().skip(1) {
                assert_eq!((node.parent, node.log_weight), (i as u32 - 1, -0.5 * i as f32), "{what}");
            }
        }
    }

    #[test]
    fn what_is_verified_is_worth_most_and_fits() {
        let offered = candidates(&[[0.6, 0.3, 0.05], [0.7, 0.2, 0.0]]);
        let free = Member { is_fixed: false, ..member(5) };
        // A row costs a third of a token; from the fifth row on all of them do.
        let terms = |members: &[Member]| {
            let price = std::array::from_fn(|rows| if rows > 4 { rows as f32 } else { rows as f32 / 3.0 });
            Terms { members: members.to_vec(), price, ..Terms::default() }
        };
        type Row<'a> = (&'static str, &'a [Member], usize, &'static [usize], u32);
        let plain = Member { part: DraftPart::Apart, is_fixed: false, ..member(5) };
        let rows: [Row<'_>; 8] = [
            ("one alone: 0.6 and 0.42 pay", &[free], 16, &[2], 3),
            ("room for one", &[free], 2, &[1], 3),
            ("two: the best of both", &[free, free], 16, &[1, 1], 4),
            ("fixed, whatever it costs", &[member(5)], 16, &[5], 6),
            ("fixed, as far as there is room", &[member(5), member(5)], 5, &[2, 1], 5),
            ("nothing is left beside a fixed one", &[member(2), free], 4, &[2, 0], 4),
            (
                "beside two that do not draft, whose roots are rows too",
                &[plain, free, plain],
                16,
                &[0, 1, 0],
                4,
            ),
            ("one tries among them", &[plain, member(2), plain], 16, &[0, 2, 0], 5),
        ];
        let sure = candidates(&[[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]);
        let trees = [(); 3].map(|()| grow(&RESIDENT, &free, &sure, 3));
        let all = Terms { members: vec![free; 3], ..Terms::default() };
        assert_eq!(cut(&all.members, &trees, &all, 8).0, [2, 2, 1], "among equals each has its turn");
        for (what, members, room, wanted, wanted_rows) in rows {
            let trees: Vec<_> = members.iter().map(|m| grow(&RESIDENT, m, &offered, 3)).collect();
            assert_eq!(cut(members, &trees, &terms(members), room), (wanted.to_vec(), wanted_rows), "{what}");
        }
    }

    #[test]
    fn a_forced_walk_accepts_as_many_guesses_as_it_is_told_and_then_one_that_nobody_made() {
        // Below the root 5 and 8, below 5 a 6; the target would say 8 everywhere.
        let node = |parent, token| RoundNode { token, parent, logp: 0.0, log_weight: 0.0, chosen: (8, 0.0) };
        let nodes = [node(NO_PARENT, 7), node(0, 5), node(0, 8), node(1, 6)];
        let halves = |tokens: u32, owed: u32| Pace { tokens: tokens << 15, owed: owed << 15 };
        // Tokens a round and what is owed, both in halves; then accepted nodes, the next root, and what is owed after.
        type Row = (&'static str, (u32, u32), &'static [u32], u32, u32);
        let rows: [Row; 6] = [
            ("no guess, though one is right", (2, 0), &[], 7, 0),
            ("one", (4, 0), &[1], 8, 0),
            ("two", (6, 0), &[1, 3], 8, 0),
            ("more than there are", (9, 0), &[1, 3], 8, 1),
            ("a half is owed", (3, 0), &[], 7, 1),
            ("and made up for", (3, 1), &[1], 8, 0),
        ];
        for (what, (tokens, owed), accepted, root, left) in rows {
            let mut resident = Resident { forced: Some(halves(tokens, owed)), ..RESIDENT };
            let mut fate = Fate { slot: 0, first: 0, n_nodes: 4, n_accepted: 0, doubt: None, committed: 10 };
            let mut path = Vec::new();
            accept(&mut resident, &mut Vec::new(), &nodes, &mut fate, &mut path);
            assert_eq!((path.as_slice(), resident.root), (accepted, root), "{what}");
            assert_eq!(resident.forced, Some(halves(tokens, left)), "{what}");
        }
    }

    #[test]
    fn a_walk_goes_on_while_guesses_come_true_and_stops_where_the_text_does() {
        // Below the root 5, and below that 6.
        let node = |parent, token, chosen| RoundNode { token, parent, logp: 0.0, log_weight: 0.0, chosen };
        let tree = |chosen: [u32; 3]| {
            let chosen = chosen.map(|token| (token, 0.0));
            [node(NO_PARENT, 7, chosen[0]), node(0, 5, chosen[1]), node(1, 6, chosen[2])]
        };
        let stop = |token| Resident { stop_ids: [token; MAX_STOP_IDS], ..RESIDENT };
        let limit = |limit| Resident { limit, ..RESIDENT };
        // What was chosen; then accepted nodes, tokens committed, the next root, and whether the text goes on.
        type Row = (&'static str, Resident, [u32; 3], (usize, u32, u32, bool), Option<u32>);
        let rows: [Row; 10] = [
            ("all come true", RESIDENT, [5, 6, 8], (2, 13, 8, true), None),
            ("the second does not", RESIDENT, [5, 8, 9], (1, 12, 8, true), None),
            ("none does", RESIDENT, [8, 6, 9], (0, 11, 8, true), None),
            ("an end that was guessed", stop(5), [5, 6, 8], (0, 11, 5, false), None),
            ("an end behind a guess", stop(9), [5, 9, 8], (1, 12, 9, false), None),
            ("the limit behind a guess", limit(13), [5, 6, 8], (1, 12, 6, false), None),
            ("the limit at once", limit(12), [5, 6, 8], (0, 11, 5, false), None),
            ("nothing chosen at the root", RESIDENT, [NO_TOKEN, 6, 8], (0, 10, 7, false), Some(0)),
            ("nothing chosen after a guess", RESIDENT, [5, NO_TOKEN, 8], (0, 11, 5, false), Some(1)),
            ("nothing chosen after two", RESIDENT, [5, 6, NO_TOKEN], (1, 12, 6, false), Some(2)),
        ];
        for (what, mut resident, chosen, wanted, doubt) in rows {
            let nodes = tree(chosen);
            let mut fate = Fate { slot: 0, first: 0, n_nodes: 3, n_accepted: 0, doubt: None, committed: 10 };
            let mut path = Vec::new();
            accept(&mut resident, &mut Vec::new(), &nodes, &mut fate, &mut path);
            let got = (path.len(), resident.committed, resident.root, resident.is_active);
            assert_eq!((got, fate.doubt), (wanted, doubt), "{what}");
            assert_eq!((fate.n_accepted as usize, fate.committed), (wanted.0, wanted.1), "{what}");
        }
    }

    #[test]
    fn all_that_joins_a_text_is_counted_where_penalties_count() {
        let node = |parent, token, chosen| RoundNode {
            token,
            parent,
            logp: 0.0,
            log_weight: 0.0,
            chosen: (chosen, 0.0),
        };
        let counted = Drawing { presence_penalty: 0.5, ..Drawing::GREEDY };
        let text = Resident { drawing: counted, ..RESIDENT };
        let known = |token, bias, answered, is_in_prompt| Adjustment { token, bias, answered, is_in_prompt };
        let before = [known(6, 1.0, 0, true), known(7, 0.0, 1, false)];
        // What was chosen after the root, a 5 below it, and a 6 below that; then tokens and how often they are answered.
        type Row = (&'static str, Resident, [u32; 3], &'static [(u32, u32)]);
        let rows: [Row; 8] = [
            ("a listed one, one before it, one behind", text, [5, 6, 8], &[(5, 1), (6, 1), (7, 1), (8, 1)]),
            ("one twice", text, [5, 5, 9], &[(5, 2), (6, 0), (7, 1)]),
            ("the root's token again", text, [7, 6, 8], &[(6, 0), (7, 2)]),
            ("an end", Resident { limit: 12, ..text }, [5, 6, 8], &[(5, 1), (6, 0), (7, 1)]),
            ("nothing chosen after a guess", text, [5, NO_TOKEN, 8], &[(5, 1), (6, 0), (7, 1)]),
            ("nothing chosen at the root", text, [NO_TOKEN, 6, 8], &[(6, 0), (7, 1)]),
            (
                "what is forced, not what was chosen",
                Resident { forced: Some(Pace { tokens: 2 << 16, owed: 0 }), ..text },
                [9, 6, 8],
                &[(5, 2), (6, 0), (7, 1)],
            ),
            ("without penalties nothing", RESIDENT, [5, 6, 8], &[(6, 0), (7, 1)]),
        ];
        for (what, mut resident, chosen, wanted) in rows {
            let nodes = [node(NO_PARENT, 7, chosen[0]), node(0, 5, chosen[1]), node(1, 6, chosen[2])];
            let mut fate = Fate { slot: 0, first: 0, n_nodes: 3, n_accepted: 0, doubt: None, committed: 10 };
            let (mut listed, mut path) = (before.to_vec(), Vec::new());
            accept(&mut resident, &mut listed, &nodes, &mut fate, &mut path);
            let got: Vec<(u32, u32)> = listed.iter().map(|a| (a.token, a.answered)).collect();
            assert_eq!(got, wanted, "{what}");
            let of_six = listed.iter().find(|a| a.token == 6).map(|a| (a.bias, a.is_in_prompt));
            assert_eq!(of_six, Some((1.0, true)), "{what}");
        }
    }
}
