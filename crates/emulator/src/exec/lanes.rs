//! A warp's registers.

use crate::code::{ALL, CONSTANT, Code, Lanes, Mask, Pred, Reg, Wide, WideReg};

pub(super) struct Registers {
    regs: Vec<Lanes>,
    wide: Vec<Wide>,
    preds: Vec<Mask>,
}

/// A register holds this until it is written, so that what was not shows.
const UNWRITTEN: u32 = 0x7fc0_dead;

impl Registers {
    pub(super) fn new(code: &Code) -> Self {
        Self {
            regs: vec![[UNWRITTEN; 32]; code.n_regs as usize],
            wide: vec![[u64::MAX << 48; 32]; code.n_wide as usize],
            preds: vec![0; code.n_preds as usize],
        }
    }

    pub(super) fn get<'a>(&'a self, code: &'a Code, reg: Reg) -> &'a Lanes {
        match reg.0 & CONSTANT {
            0 => &self.regs[reg.0 as usize],
            _ => &code.constants[(reg.0 & !CONSTANT) as usize],
        }
    }

    pub(super) fn wide<'a>(&'a self, code: &'a Code, reg: WideReg) -> &'a Wide {
        match reg.0 & CONSTANT {
            0 => &self.wide[reg.0 as usize],
            _ => &code.wide_constants[(reg.0 & !CONSTANT) as usize],
        }
    }

    pub(super) fn pred(&self, pred: Pred) -> Mask {
        match pred.0 & CONSTANT {
            0 => self.preds[pred.0 as usize],
            _ => {
                if pred.0 & 1 != 0 {
                    ALL
                } else {
                    0
                }
            }
        }
    }

    pub(super) fn set(&mut self, reg: Reg, value: &Lanes, lanes: Mask) {
        let to = &mut self.regs[reg.0 as usize];
        if lanes == ALL {
            *to = *value;
        } else {
            for l in 0..32 {
                to[l] = if lanes >> l & 1 != 0 { value[l] } else { to[l] };
            }
        }
    }

    pub(super) fn set_wide(&mut self, reg: WideReg, value: &Wide, lanes: Mask) {
        let to = &mut self.wide[reg.0 as usize];
        if lanes == ALL {
            *to = *value;
        } else {
            for l in 0..32 {
                to[l] = if lanes >> l & 1 != 0 { value[l] } else { to[l] };
            }
        }
    }

    pub(super) fn set_pred(&mut self, pred: Pred, value: Mask, lanes: Mask) {
        let to = &mut self.preds[pred.0 as usize];
        *to = *to & !lanes | value & lanes;
    }
}
