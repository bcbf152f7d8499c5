//! Arguments handed on while the model writes them.

use super::call::push_mended;
use super::json_scan::{JsonScan, Scan};
use super::piece::{Piece, append_args};

/// The object of a call that was given out. Handed on as it is written, but for line breaks inside strings, which are
/// escaped. Whether it is JSON in every detail is for whoever reads it: a call that has begun cannot be taken back.
#[derive(Clone, Debug)]
pub(super) struct JsonArgs {
    index: usize,
    scan: JsonScan,
}

impl JsonArgs {
    /// Begins with the opening brace.
    pub(super) fn open(index: usize, out: &mut Vec<Piece>) -> Self {
        let mut args = Self { index, scan: JsonScan::default() };
        args.push('{', out);
        args
    }

    /// `Closed` with the last brace; with it, and with what cannot belong to them, the call is over.
    pub(super) fn push(&mut self, c: char, out: &mut Vec<Piece>) -> Scan {
        let in_string = self.scan.is_in_string();
        let step = self.scan.push(c);
        if step != Scan::NoJson {
            let mut text = String::with_capacity(6);
            push_mended(&mut text, c, in_string);
            append_args(out, self.index, &text);
        }
        if step != Scan::Open {
            self.end(out);
        }
        step
    }

    pub(super) fn end(&self, out: &mut Vec<Piece>) {
        out.push(Piece::CallEnd { index: self.index });
    }
}
