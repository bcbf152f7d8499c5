//! What an engine has learned, apart from its sequences: so that one engine can measure several ways of going on, each with
//! what it learned itself. A large model is then loaded once.

use crate::engine::Engine;
use crate::spec::calibration::Calibration;
use crate::spec::cost::CostModel;
use crate::spec::policy::Policy;
use crate::spec::prospect::Prospect;
use crate::spec::reach::Reach;
use crate::spec::trials::Trials;

/// Costs, trust in the draft, and how drafting went lately.
pub struct Experience {
    cost: CostModel,
    reading_cost: CostModel,
    policy: Policy,
    calibration: Calibration,
    trials: Trials,
    prospect: Prospect,
    reach: Reach,
}

impl Engine {
    /// Of an engine that has run nothing.
    pub fn inexperience(&self) -> Experience {
        Experience {
            cost: CostModel::new(self.padding),
            reading_cost: CostModel::new(self.padding),
            policy: self.first_policy(),
            calibration: Calibration::default(),
            trials: Trials::default(),
            prospect: Prospect::default(),
            reach: Reach::default(),
        }
    }

    /// Goes on with `other` in place of its own experience, which it puts there. For texts to come: those that are being
    /// written keep what they began with.
    pub fn exchange_experience(&mut self, other: &mut Experience) {
        std::mem::swap(&mut self.cost, &mut other.cost);
        std::mem::swap(&mut self.reading_cost, &mut other.reading_cost);
        std::mem::swap(&mut self.policy, &mut other.policy);
        std::mem::swap(&mut self.calibration, &mut other.calibration);
        std::mem::swap(&mut self.trials, &mut other.trials);
        std::mem::swap(&mut self.prospect, &mut other.prospect);
        std::mem::swap(&mut self.reach, &mut other.reach);
    }
}
