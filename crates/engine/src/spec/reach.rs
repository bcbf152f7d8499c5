//! How deep a draft is asked: as deep as trees have been lately, and some further. The head is a third of the
//! demo draft's weights in a pass, and what it says of depths that no tree goes to is thrown away.

/// Depths beyond what was used, so that trees can grow.
const FURTHER: f64 = 3.0;
/// What of the reach is left by a pass of which less was used.
const DECAY: f64 = 0.97;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reach {
    /// `None` before the first tree: the whole block.
    deepest: Option<f64>,
}

impl Reach {
    /// Of `all` depths those worth a look.
    pub fn depths(&self, all: usize) -> usize {
        self.deepest.map_or(all, |deepest| all.min((deepest + FURTHER).ceil() as usize))
    }

    /// The deepest drafted node that is verified; 0 if none is.
    pub fn learn(&mut self, depth: usize) {
        let before = self.deepest.unwrap_or(0.0);
        self.deepest = Some((before * DECAY).max(depth as f64));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reach_follows_what_is_used_and_always_has_room_to_grow() {
        let mut reach = Reach::default();
        assert_eq!(reach.depths(15), 15, "at first the whole block");
        (0..200).for_each(|_| reach.learn(2));
        assert_eq!(reach.depths(15), 5);
        // A tree that takes all it is offered has the whole block after four passes.
        for want in [8, 11, 14, 15] {
            let most = reach.depths(15);
            reach.learn(most);
            assert_eq!(reach.depths(15), want);
        }
        (0..10).for_each(|_| reach.learn(0));
        assert!(reach.depths(15) > 12, "one poor stretch is soon forgotten");
    }
}
