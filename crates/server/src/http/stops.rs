//! Which of several stop texts ended an answer. The engine gives out nothing of it, so it is looked for in the tokens.

use std::sync::Arc;

use overdraft_formats::tokenizer::Tokenizer;

/// Stop texts, and the end of the text so far.
pub(crate) struct Stops {
    texts: Vec<String>,
    tokenizer: Arc<Tokenizer>,
    /// Bytes of the last tokens, at least as many as the longest stop has, with a token before it.
    tail: Vec<u8>,
    longest: usize,
}

impl Stops {
    pub(crate) fn new(texts: &[String], tokenizer: &Arc<Tokenizer>) -> Self {
        let texts: Vec<String> = texts.iter().filter(|t| !t.is_empty()).cloned().collect();
        let longest = texts.iter().map(String::len).max().unwrap_or(0);
        Self { texts, tokenizer: tokenizer.clone(), tail: Vec::new(), longest }
    }

    pub(crate) fn push(&mut self, token: u32) {
        // With one, there is nothing to tell apart.
        if self.texts.len() < 2 || self.tokenizer.is_special(token) {
            return;
        }
        let bytes = self.tokenizer.token_bytes(token).unwrap_or_default();
        let kept = self.tail.len().min(self.longest);
        self.tail.drain(..self.tail.len() - kept);
        self.tail.extend_from_slice(bytes);
    }

    /// The one that begins first, as the engine chooses it.
    pub(crate) fn met(&self) -> Option<&str> {
        if let [only] = self.texts.as_slice() {
            return Some(only);
        }
        let place = |text: &&String| self.tail.windows(text.len()).position(|w| w == text.as_bytes());
        let found = self.texts.iter().filter_map(|text| place(&text).map(|at| (at, text)));
        found.min_by_key(|(at, _)| *at).map(|(_, text)| text.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stop_that_begins_first_is_the_one_that_was_met() {
        let tokenizer = Arc::new(crate::http::tiny_tokenizer());
        let id = |text: &str| tokenizer.id_of(text).unwrap();
        for (stops, tokens, met) in [
            (&["b"][..], &["a"][..], Some("b")),
            (&["bb", "aa"], &["ab", "a", "a", "b"], Some("aa")),
            (&["bab", "ba"], &["a", "b", "ab"], Some("bab")),
            (&["ba", "aba"], &["ab", "a"], Some("aba")),
            (&["bb", "aaa"], &["a", "b"], None),
        ] {
            let texts: Vec<String> = stops.iter().map(|s| s.to_string()).collect();
            let mut stops = Stops::new(&texts, &tokenizer);
            tokens.iter().for_each(|t| stops.push(id(t)));
            assert_eq!(stops.met(), met, "{texts:?} {tokens:?}");
        }
    }
}
