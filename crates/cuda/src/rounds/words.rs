//! What a round is told and what it says, as words that `kernels/round.cu` reads and writes.

use overdraft_plan::{
    DraftPart, Fate, MAX_DRAFT_DEPTH, MAX_FOUND, MAX_RESIDENTS, MAX_ROUND_ROWS, NO_PARENT, NO_TOKEN, Outcome,
    RoundNode, Terms,
};

use crate::step_data::DRAWING;

/// Words of `Resident`, `Terms`, `Outcome` and `Between` of `round.cu`, and of parts of them.
pub(super) const RESIDENT: usize = 16 + DRAWING;
const MEMBER: usize = 8 + MAX_DRAFT_DEPTH + 2 * MAX_FOUND;
const WORTHS: usize = MAX_ROUND_ROWS + 4;
pub(super) const TERMS: usize = 4 + 2 * WORTHS + MAX_RESIDENTS * MEMBER;
const FATES: usize = 12;
const FATE: usize = 8;
const NODES: usize = FATES + MAX_RESIDENTS * FATE;
const NODE: usize = 6;
pub(super) const OUTCOME: usize = NODES + MAX_ROUND_ROWS * NODE;
pub(super) const BETWEEN: usize = 6 + 2 * MAX_ROUND_ROWS;

/// As `Terms` of `round.cu`.
pub(super) fn pack(terms: &Terms, words: &mut [u32]) {
    let members = &terms.members[..terms.members.len().min(MAX_RESIDENTS)];
    words[..4].copy_from_slice(&[members.len() as u32, terms.hedge.to_bits(), 0, 0]);
    let worths = words[4..4 + 2 * WORTHS].chunks_exact_mut(WORTHS).zip([&terms.gain, &terms.price]);
    worths.for_each(|(to, from)| to.iter_mut().zip(from).for_each(|(to, from)| *to = from.to_bits()));
    for (to, m) in words[4 + 2 * WORTHS..].chunks_exact_mut(MEMBER).zip(members) {
        let part = match m.part {
            DraftPart::Apart => 0,
            DraftPart::Enters => 1,
            DraftPart::Drafts => 2,
        };
        let found = &m.found;
        let (chain, fixed) = (u32::from(m.is_chain), u32::from(m.is_fixed));
        to[..8].copy_from_slice(&[m.slot, m.nodes, m.depth, chain, fixed, part, found.at, found.n]);
        let (trust, rest) = to[8..].split_at_mut(MAX_DRAFT_DEPTH);
        let (tokens, logps) = rest.split_at_mut(MAX_FOUND);
        trust.iter_mut().zip(&m.trust).for_each(|(to, from)| *to = from.to_bits());
        tokens.copy_from_slice(&found.tokens);
        logps.iter_mut().zip(&found.logps).for_each(|(to, from)| *to = from.to_bits());
    }
}

/// `Outcome` of `round.cu`; returns its three times, in nanoseconds.
pub(super) fn unpack(words: &[u32], outcome: &mut Outcome) -> [u64; 3] {
    let (n_fates, n_nodes) = (words[0] as usize, words[1] as usize);
    outcome.wanted_rows = words[2];
    for fate in words[FATES..NODES].chunks_exact(FATE).take(n_fates) {
        outcome.fates.push(Fate {
            slot: fate[0],
            first: fate[1],
            n_nodes: fate[2],
            n_accepted: fate[3],
            doubt: Some(fate[4]).filter(|node| *node != NO_TOKEN),
            committed: fate[5],
        });
    }
    for node in words[NODES..].chunks_exact(NODE).take(n_nodes) {
        let [logp, log_weight, chosen] = [node[2], node[3], node[5]].map(f32::from_bits);
        outcome.nodes.push(RoundNode {
            token: node[0],
            parent: if node[1] == u32::MAX { NO_PARENT } else { node[1] },
            logp,
            log_weight,
            chosen: (node[4], chosen),
        });
    }
    [4, 6, 8].map(|at| u64::from(words[at]) | u64::from(words[at + 1]) << 32)
}

#[cfg(test)]
mod tests {
    use overdraft_plan::{Found, Member};

    use super::*;

    #[test]
    fn an_outcome_is_read_as_the_kernel_writes_it() {
        let mut words = vec![0; OUTCOME];
        words[..10].copy_from_slice(&[2, 3, 77, 0, 5, 1, 6, 0, 7, 0]);
        // Slot, first node, nodes, accepted, a node in doubt, committed.
        words[FATES..][..FATE].copy_from_slice(&[9, 0, 2, 1, NO_TOKEN, 41, 0, 0]);
        words[FATES + FATE..][..FATE].copy_from_slice(&[4, 2, 1, 0, 0, 12, 0, 0]);
        let [logp, weight, distance] = [-0.5f32, -1.5, 2.0].map(f32::to_bits);
        for (i, parent) in [u32::MAX, 0, u32::MAX].into_iter().enumerate() {
            let node = [100 + i as u32, parent, logp, weight, 200 + i as u32, distance];
            words[NODES + i * NODE..][..NODE].copy_from_slice(&node);
        }
        let mut outcome = Outcome::default();
        assert_eq!(unpack(&words, &mut outcome), [5 | 1 << 32, 6, 7], "begun, drafted, ended");
        assert_eq!(outcome.wanted_rows, 77);
        let fates: Vec<_> = outcome.fates.iter().map(|f| (f.slot, f.first, f.n_nodes, f.doubt)).collect();
        assert_eq!(fates, [(9, 0, 2, None), (4, 2, 1, Some(0))]);
        assert_eq!((outcome.fates[0].n_accepted, outcome.fates[1].committed), (1, 12));
        let nodes: Vec<_> = outcome.nodes.iter().map(|n| (n.token, n.parent, n.chosen)).collect();
        assert_eq!(nodes, [(100, NO_PARENT, (200, 2.0)), (101, 0, (201, 2.0)), (102, NO_PARENT, (202, 2.0))]);
        assert_eq!((outcome.nodes[1].logp, outcome.nodes[1].log_weight), (-0.5, -1.5));
    }

    #[test]
    fn terms_have_places_for_as_many_as_there_can_be() {
        let found = Found { at: 3, n: 2, ..Found::NOTHING };
        let member = Member {
            slot: 5,
            part: DraftPart::Drafts,
            nodes: 7,
            depth: 6,
            is_chain: true,
            is_fixed: false,
            trust: [0.25; MAX_DRAFT_DEPTH],
            found,
        };
        let mut terms = Terms::default();
        terms.members.extend(std::iter::repeat_n(member, MAX_RESIDENTS + 1));
        let mut words = vec![0; TERMS];
        pack(&terms, &mut words);
        assert_eq!(words[0] as usize, MAX_RESIDENTS, "more have no place");
        let last = &words[TERMS - MEMBER..];
        assert_eq!(last[..8], [5, 7, 6, 1, 0, 2, 3, 2]);
        assert!(last[8..8 + MAX_DRAFT_DEPTH].iter().all(|t| *t == 0.25f32.to_bits()));
    }
}
