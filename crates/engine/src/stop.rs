//! Tokens into text as it streams: whole characters only, and never a part of a stop string.

use overdraft_formats::tokenizer::{Detokenizer, Tokenizer};

/// Bytes of held text that need no allocation: a token's, and a stop string's beginning.
const HELD_ROOM: usize = 256;

/// A sequence's text so far. Text that could be the beginning of a stop string is held back until it cannot.
pub struct TextStream {
    detokenizer: Detokenizer,
    stops: Vec<String>,
    held: String,
    stopped: bool,
}

impl TextStream {
    /// Empty stop strings would end every text at once; they are left out.
    pub fn new(stops: &[String], skip_specials: bool) -> Self {
        Self {
            detokenizer: Detokenizer::new(skip_specials),
            stops: stops.iter().filter(|s| !s.is_empty()).cloned().collect(),
            held: String::with_capacity(HELD_ROOM),
            stopped: false,
        }
    }

    /// Appends the text that `token` makes certain. Once a stop string is met, [`Self::is_stopped`] says so, and nothing
    /// from its first character on is ever given out.
    pub fn push(&mut self, tokenizer: &Tokenizer, token: u32, text: &mut String) {
        if self.stopped {
            return;
        }
        let piece = self.detokenizer.push(tokenizer, token);
        self.held.push_str(piece);
        self.release(text);
    }

    /// Appends what is still held when the sequence ends otherwise.
    pub fn finish(&mut self, text: &mut String) {
        if self.stopped {
            return;
        }
        let piece = self.detokenizer.finish();
        self.held.push_str(piece);
        self.release(text);
        if !self.stopped {
            text.push_str(&self.held);
            self.held.clear();
        }
    }

    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    fn release(&mut self, text: &mut String) {
        // The stop string that begins first wins; of two at one place, either.
        if let Some(at) = self.stops.iter().filter_map(|s| self.held.find(s.as_str())).min() {
            self.stopped = true;
            text.push_str(&self.held[..at]);
            self.held.clear();
            return;
        }
        let longest = self.stops.iter().map(|s| overlap(&self.held, s)).max().unwrap_or(0);
        let certain = self.held.len() - longest;
        text.push_str(&self.held[..certain]);
        self.held.drain(..certain);
    }
}

/// Bytes at the end of `text` that begin `stop`.
fn overlap(text: &str, stop: &str) -> usize {
    let longest = text.len().min(stop.len().saturating_sub(1));
    (1..=longest)
        .rev()
        .find(|n| text.is_char_boundary(text.len() - n) && stop.starts_with(&text[text.len() - n..]))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(pieces: &[&str], stops: &[&str], given: &[&str], stopped: bool, case: &str) {
        let stops: Vec<String> = stops.iter().map(|s| s.to_string()).collect();
        let mut stream = TextStream::new(&stops, false);
        let mut got = Vec::new();
        for piece in pieces {
            if stream.stopped {
                break;
            }
            stream.held.push_str(piece);
            let mut text = String::new();
            stream.release(&mut text);
            got.push(text);
        }
        if !stream.stopped {
            got.push(stream.held.clone());
        }
        got.retain(|s| !s.is_empty());
        assert_eq!((got, stream.stopped), (given.iter().map(|s| s.to_string()).collect(), stopped), "{case}");
    }

    #[test]
    #[rustfmt::skip]
    fn nothing_of_a_stop_string_is_given_out() {
        check(&["hello", " world"],   &[],              &["hello", " world"], false, "no stops, no delay");
        check(&["one ST", "OP two"],  &["STOP"],        &["one "],            true,  "straddles two tokens");
        check(&["a", "b", "c", "d"],  &["bcd"],         &["a"],               true,  "straddles three");
        check(&["ST", "AY here"],     &["STOP"],        &["STAY here"],       false, "a false alarm is released");
        check(&["xxab"],              &["b", "ab"],     &["xx"],              true,  "the earliest wins");
        check(&["tail S"],            &["STOP"],        &["tail ", "S"],      false, "held text comes at the end");
        check(&["é", "è"],            &["è!"],          &["é", "è"],          false, "held back by whole characters");
        check(&["abc"],               &["", "c"],       &["ab"],              true,  "an empty stop is ignored");
    }
}
