//! What was planned before anything ran, beside what a device says is taken when all has run.

use overdraft_engine::{Engine, human};
use serde_json::{Value, json};

const OVER: &str = ": more than planned, unless other programs took some meanwhile";

/// Of all engines of a bench.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Memory {
    planned: usize,
    /// Where there is a device: since the first of them was made, by whomever.
    taken: Option<usize>,
}

impl Memory {
    /// The first engine was made first; all still hold what they took.
    pub(crate) fn of<'a>(engines: impl IntoIterator<Item = &'a Engine>) -> Self {
        engines.into_iter().fold(Self::default(), |all, engine| Self {
            planned: all.planned + engine.ledger().total(),
            taken: all.taken.or_else(|| engine.device_bytes_taken()),
        })
    }

    pub(crate) fn as_json(&self) -> Value {
        json!({ "planned_bytes": self.planned, "taken_bytes": self.taken })
    }

    /// A line for readers, where there is something to compare.
    pub(crate) fn note(&self) -> String {
        let Some(taken) = self.taken else { return String::new() };
        let over = if taken > self.planned { OVER } else { "" };
        format!("\nMemory: {} planned, {} taken on the device{over}.\n", human(self.planned), human(taken))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_holds_more_than_planned_is_said_to() {
        let mib = |n: usize| n << 20;
        for (taken, said) in [
            (None, ""),
            (Some(mib(3)), "\nMemory: 4.0 MiB planned, 3.0 MiB taken on the device.\n"),
            (
                Some(mib(5)),
                "\nMemory: 4.0 MiB planned, 5.0 MiB taken on the device: more than planned, unless other programs took some meanwhile.\n",
            ),
        ] {
            assert_eq!(Memory { planned: mib(4), taken }.note(), said);
        }
    }
}
