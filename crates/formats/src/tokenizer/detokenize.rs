//! From tokens back to text, at once or as they come.

use super::Tokenizer;

impl Tokenizer {
    /// The text of `ids`. Bytes that are not UTF-8 become U+FFFD; ids outside the vocabulary give nothing.
    pub fn decode(&self, ids: &[u32], skip_specials: bool) -> String {
        let mut bytes = Vec::new();
        for &id in ids {
            bytes.extend_from_slice(self.visible_bytes(id, skip_specials));
        }
        match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        }
    }

    fn visible_bytes(&self, id: u32, skip_specials: bool) -> &[u8] {
        if skip_specials && self.is_special(id) {
            return &[];
        }
        self.token_bytes(id).unwrap_or_default()
    }
}

/// Text of a growing sequence. A character split over tokens is held back until it is whole, so each piece is valid
/// and all pieces together are exactly what [`Tokenizer::decode`] makes of the whole sequence.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    skip_specials: bool,
    /// The start of a character whose end has not come: at most 3 bytes between calls.
    pending: Vec<u8>,
    piece: String,
}

impl Detokenizer {
    pub fn new(skip_specials: bool) -> Self {
        // Room for nearly every token of any vocabulary, so that a steady stream allocates nothing.
        const ROOM: usize = 256;
        Self { skip_specials, pending: Vec::with_capacity(ROOM), piece: String::with_capacity(ROOM) }
    }

    /// The text that `id` completes; empty while a character is open.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> &str {
        self.pending.extend_from_slice(tokenizer.visible_bytes(id, self.skip_specials));
        self.piece.clear();
        let mut rest = self.pending.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(text) => {
                    self.piece.push_str(text);
                    rest = &[];
                }
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    // The lossy conversion finds nothing to replace here: it is the way to a `str` that cannot fail.
                    self.piece.push_str(&String::from_utf8_lossy(valid));
                    rest = after;
                    if let Some(len) = error.error_len() {
                        self.piece.push(char::REPLACEMENT_CHARACTER);
                        rest = &after[len..];
                        continue;
                    }
                }
            }
            break;
        }
        let done = self.pending.len() - rest.len();
        self.pending.drain(..done);
        &self.piece
    }

    /// What is left at the end of the sequence: U+FFFD for an open character, else nothing. Starts afresh.
    pub fn finish(&mut self) -> &str {
        self.piece.clear();
        if !self.pending.is_empty() {
            self.pending.clear();
            self.piece.push(char::REPLACEMENT_CHARACTER);
        }
        &self.piece
    }
}
