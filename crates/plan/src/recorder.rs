//! Records a forward pass. Model code calls this in straight lines; nothing here knows a backend.

use crate::op::Op;
use crate::plan::{Act, ActSpec, Choice, KeptRows, Plan, RowSet};

pub struct Recorder {
    plan: Plan,
}

impl Recorder {
    pub fn new(bucket: usize, logit_rows: usize) -> Self {
        Self {
            plan: Plan {
                bucket,
                logit_rows,
                acts: Vec::new(),
                choices: Vec::new(),
                ops: Vec::new(),
                logits: Act(0),
                taps: Vec::new(),
                kept: Vec::new(),
                kv_layers: Vec::new(),
                written_before_prompts: None,
                logits_apart: false,
            },
        }
    }

    /// Rows of the plan at most.
    pub fn bucket(&self) -> usize {
        self.plan.bucket
    }

    /// A buffer with a row per row of the step. Model code reuses its buffers from layer to layer.
    pub fn act(&mut self, width: usize) -> Act {
        self.add(width, RowSet::Step)
    }

    /// A buffer with a row per row whose logits were asked for.
    pub fn logit_act(&mut self, width: usize) -> Act {
        self.add(width, RowSet::Logits)
    }

    fn add(&mut self, width: usize, rows: RowSet) -> Act {
        self.plan.acts.push(ActSpec { width, rows });
        Act(self.plan.acts.len() as u32 - 1)
    }

    /// A tap: a buffer of `width` that can be read after the step.
    pub fn tap(&mut self, width: usize) -> Act {
        let act = self.act(width);
        self.plan.taps.push(act);
        act
    }

    /// The taps so far, in the order asked for.
    pub fn taps(&self) -> &[Act] {
        &self.plan.taps
    }

    /// `k` choices per row of the step.
    pub fn choice(&mut self, k: usize) -> Choice {
        self.add_choice(k, RowSet::Step)
    }

    /// `k` choices per row whose logits were asked for.
    pub fn logit_choice(&mut self, k: usize) -> Choice {
        self.add_choice(k, RowSet::Logits)
    }

    fn add_choice(&mut self, width: usize, rows: RowSet) -> Choice {
        self.plan.choices.push(ActSpec { width, rows });
        Choice(self.plan.choices.len() as u32 - 1)
    }

    /// Names the buffers that a commit reads for a recurrent layer; no other layer may reuse them.
    pub fn keep(&mut self, rows: KeptRows) {
        self.plan.kept.push(rows);
    }

    pub fn push(&mut self, op: Op) {
        if let Op::AttentionPrepare(prepare) = &op {
            self.plan.kv_layers.push(prepare.layer);
        }
        self.plan.ops.push(op);
    }

    pub fn finish(mut self, logits: Act) -> Plan {
        self.plan.logits = logits;
        self.plan
    }
}
