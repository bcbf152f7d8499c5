//! For tests: policies played over what the demo draft really said at every position of real texts
//! (`examples/record_drafts.rs` recorded it), on machines of any cost.

use std::path::Path;

use overdraft_formats::safetensors::SafeTensors;

use super::cost::CostModel;
use super::drafter::{BlockDraft, Drafter};
use super::ngram::NGramIndex;
use super::policy::Policy;
use super::simulate::{Lists, Random, speculate};

/// Steps of a nat that log-probabilities are recorded in.
const STEPS: f32 = 16.0;
/// Recorded candidates that are not the text's next token have no token id of their own.
const WRONG: u32 = 1 << 20;

/// One text and what the draft said after each of its tokens.
pub(crate) struct Recorded {
    prompt: Vec<u32>,
    /// Goes on past the last block by as much as the deepest path and its next token.
    text: Vec<u32>,
    /// By position and depth: the rank of the token that came, and log-probabilities by rank.
    blocks: Vec<Vec<(u8, Vec<f32>)>>,
}

/// All texts of a set, in the order recorded.
pub(crate) fn recorded(set: &str) -> Vec<Recorded> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/pycoder/drafts.safetensors");
    let file = SafeTensors::open(&path).unwrap();
    let tokens = |name: String| -> Option<Vec<u32>> {
        let tensor = file.tensor(&name).unwrap()?;
        Some(tensor.bytes.chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect())
    };
    let one = |i: usize| {
        let candidates = file.tensor(&format!("{set}.{i}.candidates")).unwrap()?;
        let (depths, width) = (candidates.shape[1], candidates.shape[2]);
        let depth = |b: &[u8]| (b[0], b[1..].iter().map(|q| -f32::from(*q) / STEPS).collect());
        Some(Recorded {
            prompt: tokens(format!("{set}.{i}.prompt"))?,
            text: tokens(format!("{set}.{i}.text"))?,
            blocks: candidates
                .bytes
                .chunks(depths * width)
                .map(|block| block.chunks(width).map(depth).collect())
                .collect(),
        })
    };
    let texts: Vec<Recorded> = (0..).map_while(one).collect();
    assert!(!texts.is_empty(), "no texts of {set}");
    texts
}

impl Recorded {
    pub(crate) fn len(&self) -> usize {
        self.blocks.len()
    }

    fn block(&self, at: usize, lists: &mut Lists) -> Vec<u32> {
        lists.clear();
        for (depth, (right, said)) in self.blocks[at].iter().enumerate() {
            let token = |rank: usize| match rank == usize::from(*right) {
                true => self.text[at + 1 + depth],
                false => WRONG + rank as u32,
            };
            lists.push(said.iter().enumerate().map(|(rank, logp)| (token(rank), *logp)).collect());
        }
        self.text[at + 1..].iter().take(lists.len() + 2).copied().collect()
    }

    /// Seconds for the first `n` tokens.
    pub(crate) fn seconds(
        &self,
        truth: &CostModel,
        policy: &mut Policy,
        drafter: &mut BlockDraft,
        cost: &mut CostModel,
        n: usize,
    ) -> f64 {
        self.prompt.iter().chain(&self.text[..1]).for_each(|t| drafter.committed(*t));
        let block = |at: usize, _: &mut Random, lists: &mut Lists| self.block(at, lists);
        speculate(truth, block, policy, drafter, cost, n, 7)[n - 1]
    }
}

/// A drafter for one text.
pub(crate) fn drafter(lookup: bool) -> BlockDraft {
    if lookup { BlockDraft::merged(NGramIndex::new(vec![])) } else { BlockDraft::new() }
}

mod tests {
    use super::*;
    use crate::spec::calibration::Calibration;
    use crate::spec::cost::Padding;
    use crate::spec::policy::Mode;

    type Steps = &'static [(usize, f64)];
    /// Plain steps by rows and of the draft's pass: the demo pair on two threads as first measured, and where rows
    /// are cheaper. The draft has a quarter of the target's weights to read for 16 rows, its head counted.
    const MACHINES: [(&str, Steps, f64); 2] = [
        (
            "dear rows",
            &[
                (1, 1.0),
                (2, 1.16),
                (4, 1.59),
                (8, 2.33),
                (16, 3.1),
                (24, 4.93),
                (32, 5.8),
                (48, 8.3),
                (64, 11.0),
            ],
            0.8,
        ),
        ("cheap rows", &[(1, 1.0), (4, 1.25), (8, 1.5), (16, 2.0), (32, 3.3), (64, 6.0)], 0.5),
    ];
    const SETS: [&str; 3] = ["code", "gsm", "prose"];

    fn costs(steps: Steps, draft: f64) -> CostModel {
        let mut cost = CostModel::new(Padding::None);
        cost.seed(steps.iter().copied(), Some(draft));
        cost
    }

    fn auto(lookup: bool) -> Policy {
        Policy::new(Mode::Auto, None, true, lookup)
    }

    /// How many times plain speed: `n` tokens of each text, one after another, each beginning with what the one before
    /// learned.
    fn speed(
        texts: &[Recorded],
        truth: &CostModel,
        mut policy: Policy,
        mut cost: CostModel,
        lookup: bool,
        n: usize,
    ) -> f64 {
        let mut calibration = Calibration::default();
        let mut seconds = 0.0;
        for text in texts {
            let mut drafter = drafter(lookup).with_calibration(calibration);
            seconds += text.seconds(truth, &mut policy, &mut drafter, &mut cost, n);
            policy = policy.successor();
            calibration = drafter.calibration().carried();
        }
        (n * texts.len()) as f64 / seconds
    }

    /// Every machine, set, and with and without lookup.
    fn each(mut see: impl FnMut(&str, &CostModel, &[Recorded], bool)) {
        for set in SETS {
            let texts = recorded(set);
            for (machine, steps, draft) in MACHINES {
                for lookup in [false, true] {
                    see(&format!("{machine}, {set}, lookup {lookup}"), &costs(steps, draft), &texts, lookup);
                }
            }
        }
    }

    #[test]
    fn auto_is_within_three_percent_of_the_best_fixed_choice_on_recorded_texts() {
        use Mode::{Chain, Tree};
        let choices =
            [(Chain, 3), (Chain, 7), (Chain, 15), (Tree, 3), (Tree, 7), (Tree, 15), (Tree, 23), (Tree, 47)];
        each(|case, truth, texts, lookup| {
            let n = texts[0].len();
            let fixed = |(mode, drafts)| {
                let policy = Policy::new(mode, Some(drafts), true, lookup);
                speed(texts, truth, policy, truth.clone(), lookup, n)
            };
            let best = choices.into_iter().map(fixed).fold(1.0, f64::max);
            let got = speed(texts, truth, auto(lookup), truth.clone(), lookup, n);
            eprintln!("{case}: auto {got:.3}, best fixed {best:.3}");
            assert!(got > 0.97 * best, "{case}: auto {got:.3}, best fixed {best:.3}");
        });
    }

    #[test]
    fn costs_that_were_never_measured_are_found_on_the_way() {
        each(|case, truth, texts, lookup| {
            let run = |cost| speed(texts, truth, auto(lookup), cost, lookup, texts[0].len());
            let (known, unknown) = (run(truth.clone()), run(CostModel::new(Padding::None)));
            assert!(unknown > 0.95 * known, "{case}: {unknown:.3}, with costs known {known:.3}");
        });
    }

    #[test]
    fn code_is_written_at_least_1_3_times_as_fast() {
        each(|case, truth, texts, lookup| {
            let got = speed(texts, truth, auto(lookup), truth.clone(), lookup, texts[0].len());
            // As the command runs it: with lookup.
            assert!(got > 1.3 || !lookup || !case.contains("code"), "{case}: {got:.3}");
        });
    }

    #[test]
    fn answers_of_40_tokens_that_the_draft_does_not_know_keep_97_percent_of_plain_speed() {
        each(|case, truth, texts, lookup| {
            let in_a_row = speed(texts, truth, auto(lookup), truth.clone(), lookup, 40);
            eprintln!("{case}: 40 tokens in a row {in_a_row:.3}");
            assert!(in_a_row > 0.97, "{case}: {in_a_row:.3}");
            // The first ever, of a pair and machine of which nothing is known: four plain steps at most.
            for (i, text) in texts.iter().enumerate() {
                let nothing = CostModel::new(Padding::None);
                let first = speed(std::slice::from_ref(text), truth, auto(lookup), nothing, lookup, 40);
                assert!(40.0 / first < 44.0, "{case}, text {i}: {:.1} plain steps", 40.0 / first);
            }
        });
    }
}
