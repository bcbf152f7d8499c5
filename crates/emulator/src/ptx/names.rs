//! What names stand for, from the innermost block of a body outwards.

use std::collections::HashMap;

use super::statements::Result;
use crate::code::{Pred, Reg, Special, WideReg};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Name {
    Reg(Reg),
    Wide(WideReg),
    Pred(Pred),
    /// An address in its own space.
    Address(u64),
    /// An argument or result of a call: registers, by its number.
    Cell(usize),
}

/// Registers that are declared as many: `%r<8>`.
#[derive(Clone, Copy)]
struct Series {
    first: Name,
    n: u32,
}

#[derive(Default)]
pub(super) struct Scope<'a> {
    names: HashMap<&'a str, Name>,
    series: HashMap<&'a str, Series>,
    labels: HashMap<&'a str, usize>,
}

impl<'a> Scope<'a> {
    pub(super) fn declare(&mut self, name: &'a str, stands_for: Name) {
        self.names.insert(name, stands_for);
    }

    pub(super) fn declare_series(&mut self, prefix: &'a str, first: Name, n: u32) {
        self.series.insert(prefix, Series { first, n });
    }

    pub(super) fn declare_label(&mut self, name: &'a str, id: usize) {
        self.labels.insert(name, id);
    }

    fn find(&self, name: &str) -> Option<Name> {
        if let Some(found) = self.names.get(name) {
            return Some(*found);
        }
        let digits = name.bytes().rev().take_while(u8::is_ascii_digit).count();
        let (prefix, number) = name.split_at(name.len() - digits);
        let series = self.series.get(prefix)?;
        let i: u32 = number.parse().ok().filter(|i| *i < series.n)?;
        Some(match series.first {
            Name::Reg(first) => Name::Reg(Reg(first.0 + i)),
            Name::Wide(first) => Name::Wide(WideReg(first.0 + i)),
            Name::Pred(first) => Name::Pred(Pred(first.0 + i)),
            other => other,
        })
    }
}

/// The innermost last.
#[derive(Default)]
pub(super) struct Scopes<'a>(Vec<Scope<'a>>);

impl<'a> Scopes<'a> {
    pub(super) fn enter(&mut self) {
        self.0.push(Scope::default());
    }

    pub(super) fn leave(&mut self) {
        self.0.pop();
    }

    /// Leaves none but the outermost, as a function's body sees none of its caller's; to be given back to [`Self::restore`].
    pub(super) fn set_aside(&mut self) -> Vec<Scope<'a>> {
        self.0.split_off(1)
    }

    pub(super) fn restore(&mut self, aside: Vec<Scope<'a>>) {
        self.0.truncate(1);
        self.0.extend(aside);
    }

    pub(super) fn innermost(&mut self) -> &mut Scope<'a> {
        if self.0.is_empty() {
            self.enter();
        }
        self.0.last_mut().expect("one is there")
    }

    pub(super) fn find(&self, name: &str) -> Result<Name> {
        let found = self.0.iter().rev().find_map(|scope| scope.find(name));
        found.ok_or_else(|| format!("`{name}` is not declared"))
    }

    pub(super) fn label(&self, name: &str) -> Result<usize> {
        let found = self.0.iter().rev().find_map(|scope| scope.labels.get(name));
        found.copied().ok_or_else(|| format!("there is no label `{name}`"))
    }
}

pub(super) fn special(name: &str) -> Option<Special> {
    let axis = |letter: &str| ["x", "y", "z"].iter().position(|axis| *axis == letter);
    Some(match name.split_once('.') {
        Some(("%tid", letter)) => Special::Thread(axis(letter)?),
        Some(("%ntid", letter)) => Special::Threads(axis(letter)?),
        Some(("%ctaid", letter)) => Special::Block(axis(letter)?),
        Some(("%nctaid", letter)) => Special::Blocks(axis(letter)?),
        None if name == "%laneid" => Special::Lane,
        None if name == "%warpid" => Special::Warp,
        None if name == "%cluster_ctarank" => Special::ClusterRank,
        None if name == "%cluster_nctarank" => Special::ClusterBlocks,
        _ => return None,
    })
}
