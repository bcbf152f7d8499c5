//! What draft passes beside other streams may lose, over all streams together.
//!
//! Each text has its own account with the draft ([`Policy`](super::policy::Policy)), and tries it when it begins and
//! again every so often. Alone that costs a plain step; among many a pass for one holds up all, and each of them would
//! find out for itself what the one before it has found out. By its cost a try among four streams is two tokens, and a
//! text of 96 made two or three (reckoned from the costs of the demo pair on a CPU, not counted).

/// What tries may lose of the time that all streams take.
const SHARE: f64 = 0.008;
/// What there is for them at first, in plain steps of all streams: one or two passes for one of sixteen.
const FIRST: f64 = 0.5;
/// What can be saved up. Blocks of one text differ, so a poor round is no verdict on a draft that has been good.
const MOST: f64 = 4.0;

/// What a step's draft passes were for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Passes {
    /// Drafted nodes that were verified, and tokens that came of them.
    pub nodes: usize,
    pub tokens: f64,
    /// What the passes and the rows of those nodes took.
    pub seconds: f64,
    /// Tokens a second that all streams write without.
    pub plain_rate: f64,
}

/// The account of all streams.
#[derive(Clone, Debug, PartialEq)]
pub struct Trials {
    left: f64,
    tries: usize,
}

impl Default for Trials {
    fn default() -> Self {
        Self { left: FIRST, tries: 0 }
    }
}

impl Trials {
    pub fn may_draft(&self) -> bool {
        self.left > 0.0
    }

    /// Which of so many streams tries next: by turns.
    pub fn whose_turn(&self, streams: usize) -> usize {
        self.tries % streams.max(1)
    }

    /// A step of so many streams, several of them.
    pub fn learn(&mut self, streams: usize, passes: Option<Passes>) {
        self.left += SHARE;
        if let Some(passes) = passes {
            self.tries += 1;
            // Rows turned out dearer than was hoped: no credit is spent on finding that out again. (Two such passes for sixteen
            // texts on an H200 were 5 % of 128 steps.)
            self.left = if passes.nodes == 0 { self.left.min(0.0) } else { self.left };
            self.left += (passes.tokens - passes.plain_rate * passes.seconds) / streams as f64;
        }
        self.left = self.left.min(MOST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tokens that `steps` steps of four streams lose to passes that bring `tokens` each and cost two tokens' time.
    fn lost(tokens: f64, steps: usize) -> (f64, usize) {
        let (mut trials, mut lost, mut passes) = (Trials::default(), 0.0, 0);
        for _ in 0..steps {
            let pass =
                trials.may_draft().then_some(Passes { nodes: 7, tokens, seconds: 0.5, plain_rate: 4.0 });
            passes += usize::from(pass.is_some());
            lost += pass.map_or(0.0, |p| p.plain_rate * p.seconds - p.tokens);
            trials.learn(4, pass);
        }
        (lost, passes)
    }

    #[test]
    fn passes_that_lose_lose_a_hundredth_and_those_that_pay_always_run() {
        for tokens in [0.0, 0.5, 1.9] {
            let (lost, passes) = lost(tokens, 10_000);
            assert!(lost <= 4.0 * (SHARE * 10_000.0 + FIRST) + 2.0, "{tokens}: {lost}");
            assert!(passes >= 150, "{tokens}: tried again {passes} times");
        }
        for tokens in [2.0, 2.5, 6.0] {
            assert_eq!(lost(tokens, 1000).1, 1000, "{tokens}");
        }
    }

    #[test]
    fn a_draft_that_comes_to_pay_is_found_and_kept() {
        let mut trials = Trials::default();
        let pass = |tokens| Some(Passes { nodes: 7, tokens, seconds: 0.5, plain_rate: 4.0 });
        let mut run = |tokens, steps| {
            let mut passes = 0;
            for _ in 0..steps {
                let may = trials.may_draft();
                passes += usize::from(may);
                trials.learn(4, pass(tokens).filter(|_| may));
            }
            passes
        };
        assert!(run(0.0, 1000) < 30);
        assert!(run(3.0, 1000) > 900);
    }
}
