//! What lanes of a warp tell each other.

use super::warp::Warp;
use crate::code::{ALL, Code, Lanes, Mask, Op, Redux, Shuffle, Vote, lanes_of};

impl Warp {
    /// Among these lanes.
    pub(super) fn exchange(&mut self, code: &Code, lanes: Mask, op: &Op) {
        let r = &mut self.registers;
        match op {
            Op::Shuffle { kind, to, is_in_range, from: [a, b, c], .. } => {
                let mut out: Lanes = [0; 32];
                let (a, b, c) = (r.get(code, *a), r.get(code, *b), r.get(code, *c));
                let mut in_range = 0;
                for l in 0..32u32 {
                    let (by, clamp, segment) =
                        (b[l as usize] & 31, c[l as usize] & 31, c[l as usize] >> 8 & 31);
                    let last = l & segment | clamp & !segment;
                    let (from, is_in) = match kind {
                        Shuffle::Up => (l.wrapping_sub(by), l as i32 - by as i32 >= last as i32),
                        Shuffle::Down => (l + by, l + by <= last),
                        Shuffle::Xor => (l ^ by, l ^ by <= last),
                        Shuffle::Index => {
                            let from = l & segment | by & !segment;
                            (from, from <= last)
                        }
                    };
                    out[l as usize] = a[if is_in { from as usize & 31 } else { l as usize }];
                    in_range |= u32::from(is_in) << l;
                }
                r.set(*to, &out, lanes);
                if let Some(pred) = is_in_range {
                    r.set_pred(*pred, in_range, lanes);
                }
            }
            Op::Ballot { to, from, is_not, .. } => {
                let pred = r.pred(*from);
                let votes = if *is_not { !pred } else { pred } & lanes;
                r.set(*to, &[votes; 32], lanes);
            }
            Op::Vote { kind, to, from, is_not, .. } => {
                let pred = r.pred(*from);
                let votes = if *is_not { !pred } else { pred } & lanes;
                let is_so = match kind {
                    Vote::Any => votes != 0,
                    Vote::All => votes == lanes,
                };
                r.set_pred(*to, if is_so { ALL } else { 0 }, lanes);
            }
            Op::Redux { kind, to, from, .. } => {
                let from = r.get(code, *from);
                let values = lanes_of(lanes).map(|l| from[l]);
                let f: fn(u32, u32) -> u32 = match kind {
                    Redux::Max => u32::max,
                    Redux::Min => u32::min,
                    Redux::Add => u32::wrapping_add,
                    Redux::Or => |a, b| a | b,
                    Redux::And => |a, b| a & b,
                    Redux::Xor => |a, b| a ^ b,
                };
                let value = values.reduce(f).unwrap_or(0);
                r.set(*to, &[value; 32], lanes);
            }
            Op::MatchAny { to, from, .. } => {
                let mut out: Lanes = [0; 32];
                let from = r.get(code, *from);
                for l in lanes_of(lanes) {
                    out[l] = lanes_of(lanes).filter(|m| from[*m] == from[l]).fold(0, |all, m| all | 1 << m);
                }
                r.set(*to, &out, lanes);
            }
            _ => {}
        }
    }
}
