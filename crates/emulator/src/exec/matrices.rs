//! Matrix instructions: their operands brought to [`crate::matrix`] and back.

use super::warp::{Around, Warp};
use crate::code::{ALL, MmaForm, Op, Reg, Space, WideReg};
use crate::matrix::{Descriptor, Half, Square, ldmatrix, mma_m16n8k8_tf32, mma_m16n8k16, stmatrix, wgmma};

impl Warp {
    /// For all lanes.
    pub(super) fn matrix(&mut self, around: &mut Around<'_, '_>, op: &Op) -> Result<(), String> {
        let code = around.code;
        match op {
            Op::Mma { form, to, a, b, c } => {
                let get = |reg: Reg| self.registers.get(code, reg);
                let (a, b, c) = (a.map(get), b.map(get), c.map(get));
                let sums = match form {
                    MmaForm::F16 => mma_m16n8k16(Half::F16, a, b, c),
                    MmaForm::Bf16 => mma_m16n8k16(Half::Bf16, a, b, c),
                    MmaForm::Tf32 => mma_m16n8k8_tf32(a, b, c),
                };
                for (to, sums) in to.iter().zip(&sums) {
                    self.registers.set(*to, sums, ALL);
                }
            }
            Op::Wgmma { is_bf16, sums, a, b, adds } => {
                let rows = self.described(around, *b, 2 * sums.len())?;
                let kind = if *is_bf16 { Half::Bf16 } else { Half::F16 };
                let mut d: Vec<_> = sums.iter().map(|reg| *self.registers.get(code, *reg)).collect();
                let a = a.map(|reg| self.registers.get(code, reg));
                wgmma(kind, a, &rows, &mut d, self.registers.pred(*adds) & 1 != 0);
                for (reg, sums) in sums.iter().zip(&d) {
                    self.registers.set(*reg, sums, ALL);
                }
            }
            Op::LoadMatrix { to, from, is_transposed } => {
                for (n, reg) in to.iter().enumerate() {
                    let mut square: Square = Default::default();
                    for (row, bytes) in square.iter_mut().enumerate() {
                        let at = self.find(around, from, 16, 8 * n + row, false)?;
                        // SAFETY: `find` answers for 16 bytes.
                        unsafe { at.copy_to_nonoverlapping(bytes.as_mut_ptr(), 16) };
                    }
                    self.registers.set(*reg, &ldmatrix(*is_transposed, &square), ALL);
                }
            }
            Op::StoreMatrix { to, from, is_transposed } => {
                for (n, reg) in from.iter().enumerate() {
                    let square = stmatrix(*is_transposed, self.registers.get(code, *reg));
                    for (row, bytes) in square.iter().enumerate() {
                        let at = self.find(around, to, 16, 8 * n + row, true)?;
                        // SAFETY: `find` answers for 16 bytes.
                        unsafe { at.copy_from_nonoverlapping(bytes.as_ptr(), 16) };
                    }
                }
            }
            _ => return Err("no matrix instruction".into()),
        }
        Ok(())
    }

    /// Columns of B, 16 numbers each, from where a descriptor says that they are.
    fn described(
        &mut self,
        around: &mut Around<'_, '_>,
        descriptor: WideReg,
        n: usize,
    ) -> Result<Vec<[[u8; 16]; 2]>, String> {
        let descriptor = Descriptor::read(self.registers.wide(around.code, descriptor)[0])?;
        let mut rows = vec![[[0; 16]; 2]; n];
        for (n, halves) in rows.iter_mut().enumerate() {
            for (k8, bytes) in halves.iter_mut().enumerate() {
                let at =
                    self.find_at(around, Space::Shared, u64::from(descriptor.row(n, k8)), 16, 0, false)?;
                // SAFETY: `find` answers for 16 bytes.
                unsafe { at.copy_to_nonoverlapping(bytes.as_mut_ptr(), 16) };
            }
        }
        Ok(rows)
    }
}
