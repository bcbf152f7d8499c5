//! What was learned of a model pair on a machine, as text to keep: a later process begins where this one ended.

use std::fmt::Write;

use super::calibration::Calibration;
use super::cost::{CostModel, Padding};
use super::policy::Standing;

/// Lines of more text than this are not ours.
pub const MAX_BYTES: usize = 1 << 16;

/// Costs of steps, trust in drafters, and how drafting went. Changes speed only, never a text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Learned {
    pub cost: CostModel,
    pub calibration: Calibration,
    /// `None` before any text was written.
    pub standing: Option<Standing>,
}

impl Learned {
    /// The whole as text, marked as of `owner`: machine, model and draft.
    pub fn to_text(&self, owner: &str) -> String {
        let mut text = self.cost.to_text(owner);
        text.push_str(&self.calibration.to_text());
        if let Some(Standing { wait, credit }) = self.standing {
            let _ = writeln!(text, "standing {wait} {credit:e}");
        }
        text
    }

    /// Reads [`Self::to_text`]. `None` if it is of another version or owner; what makes no sense in it is passed over.
    pub fn from_text(text: &str, owner: &str, padding: Padding) -> Option<Self> {
        if text.len() > MAX_BYTES {
            return None;
        }
        let cost = CostModel::from_text(text, owner, padding)?;
        let standing = text.lines().find_map(|line| {
            let mut words = line.strip_prefix("standing ")?.split_whitespace();
            let (wait, credit) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
            Some(Standing { wait, credit })
        });
        Some(Self { cost, calibration: Calibration::from_text(text), standing })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::policy::{Mode, Policy};

    #[test]
    fn what_is_kept_comes_back_and_damage_does_no_harm() {
        let mut learned =
            Learned { standing: Some(Standing { wait: 64, credit: 0.5 }), ..Default::default() };
        learned.cost.seed([(1, 0.012), (16, 0.025)], Some(0.003));
        let text = learned.to_text("this machine");
        assert_eq!(Learned::from_text(&text, "this machine", Padding::Bucket), Some(learned.clone()));
        assert_eq!(Learned::from_text(&text, "another", Padding::Bucket), None);
        let long = text.clone() + &" ".repeat(MAX_BYTES);
        assert_eq!(Learned::from_text(&long, "this machine", Padding::Bucket), None);
        // Cut anywhere, or with any byte changed, it is read as something harmless.
        let policy = Policy::new(Mode::Auto, None, true, true);
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] = b'9';
            for damaged in [&text[..at], &String::from_utf8(bytes).unwrap()] {
                let Some(read) = Learned::from_text(damaged, "this machine", Padding::Bucket) else {
                    continue;
                };
                let seconds = read.cost.step_seconds(64);
                assert!(seconds.is_none_or(|s| s.is_finite() && s > 0.0), "{damaged}");
                let standing = policy.beginning(read.standing.unwrap_or(policy.standing())).standing();
                assert!(standing.wait <= 48 && standing.credit <= 1.0, "{damaged}");
            }
        }
    }

    #[test]
    fn a_standing_out_of_its_bounds_is_brought_within_them() {
        let policy = Policy::new(Mode::Auto, None, true, true);
        for (credit, want) in [(f64::NAN, 0.0), (1e9, 1.0), (-5.0, 0.0), (0.5, 0.5)] {
            let got = policy.beginning(Standing { wait: usize::MAX, credit }).standing();
            assert_eq!((got.wait, got.credit), (48, want));
        }
    }
}
