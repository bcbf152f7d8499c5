//! Whose request is admitted next. Pure, so it is tested without an engine.

/// Callers take turns: who has fewest requests running, then who was served longest ago, then who came first. A caller
/// with a hundred requests in the queue holds up its own.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// (caller, turn it was last served at), of callers that wait or run.
    served: Vec<(u64, u64)>,
    turn: u64,
}

impl Turns {
    /// The place in `waiting`, which holds callers in the order they came, of the one whose turn it is.
    pub(crate) fn next(
        &self,
        waiting: impl Iterator<Item = u64>,
        running: impl Iterator<Item = u64> + Clone,
    ) -> Option<usize> {
        let place = |caller: u64| {
            let last = self.served.iter().find(|s| s.0 == caller).map_or(0, |s| s.1);
            (running.clone().filter(|r| *r == caller).count(), last)
        };
        // The first of several that are equal, and each caller's first.
        let mut seen: Vec<u64> = Vec::new();
        let mut best: Option<((usize, u64), usize)> = None;
        for (at, caller) in waiting.enumerate() {
            if seen.contains(&caller) {
                continue;
            }
            seen.push(caller);
            let place = place(caller);
            if best.is_none_or(|(least, _)| place < least) {
                best = Some((place, at));
            }
        }
        best.map(|(_, at)| at)
    }

    /// `caller` has had its turn; `present` are those that still wait or run.
    pub(crate) fn serve(&mut self, caller: u64, present: impl Fn(u64) -> bool) {
        self.turn += 1;
        self.served.retain(|s| s.0 != caller && present(s.0));
        self.served.push((caller, self.turn));
    }
}

/// Whether a caller with `own` requests in a queue of `queue` places may add one. With several keys a quarter of the
/// queue is kept from each of them, so that one cannot close the door to the others.
pub(crate) fn may_wait(caller: u64, own: usize, queue: usize) -> bool {
    caller == 0 || own < (queue - queue / 4).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Admits all of `waiting`, `streams` at once and each for as long as any other; the callers in order.
    fn order(waiting: &[u64], streams: usize) -> Vec<u64> {
        let (mut turns, mut waiting, mut running, mut order) =
            (Turns::default(), waiting.to_vec(), Vec::new(), Vec::new());
        while let Some(at) = turns.next(waiting.iter().copied(), running.iter().copied()) {
            let caller = waiting.remove(at);
            turns.serve(caller, |c| waiting.contains(&c) || running.contains(&c));
            running.push(caller);
            order.push(caller);
            if running.len() == streams {
                running.remove(0);
            }
        }
        order
    }

    #[test]
    fn callers_take_turns_and_each_ones_own_keep_their_order() {
        for (case, waiting, streams, want) in [
            ("one caller", &[7, 7, 7][..], 1, &[7, 7, 7][..]),
            ("nobody", &[], 1, &[]),
            ("a crowd and one", &[1, 1, 1, 1, 1, 2], 1, &[1, 2, 1, 1, 1, 1]),
            ("two crowds", &[1, 1, 1, 2, 2, 2], 1, &[1, 2, 1, 2, 1, 2]),
            ("three of different size", &[1, 1, 1, 1, 2, 2, 3], 2, &[1, 2, 3, 1, 2, 1, 1]),
        ] {
            assert_eq!(order(waiting, streams), want, "{case}");
        }
    }

    #[test]
    fn a_queue_is_never_one_callers_alone() {
        let cases = [
            (0, 255, 256, true),
            (5, 191, 256, true),
            (5, 192, 256, false),
            (5, 0, 0, true),
            (5, 1, 1, false),
        ];
        for (caller, own, queue, want) in cases {
            assert_eq!(may_wait(caller, own, queue), want, "{caller} {own} {queue}");
        }
    }

    #[test]
    fn those_who_left_are_forgotten() {
        let mut turns = Turns::default();
        (0..1000).for_each(|caller| turns.serve(caller, |c| c + 2 > caller));
        assert!(turns.served.len() <= 3, "{}", turns.served.len());
    }
}
