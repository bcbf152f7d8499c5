//! Our tokenizer as `toktrie` wants to see one.

use std::sync::Arc;

use llguidance::toktrie::{TokRxInfo, TokTrie, TokenId, TokenizerEnv};
use overdraft_formats::tokenizer::{Specials, Tokenizer};

pub(super) struct TokenEnv {
    trie: TokTrie,
    tokenizer: Arc<Tokenizer>,
}

impl TokenEnv {
    /// Control tokens are marked, so that no text can ask for one; a grammar names them by number.
    pub(super) fn new(tokenizer: Arc<Tokenizer>) -> Result<Self, String> {
        let n_tokens = tokenizer.vocab_len() as u32;
        let [first_end, ..] = tokenizer.end_ids() else {
            return Err(
                "the tokenizer has no token that ends a text, so none can be held to a grammar".into()
            );
        };
        let word = |id: TokenId| {
            let bytes = tokenizer.token_bytes(id).unwrap_or_default();
            let mark: &[u8] = if tokenizer.is_control(id) { &[TokTrie::SPECIAL_TOKEN_MARKER] } else { &[] };
            [mark, bytes].concat()
        };
        let words: Vec<Vec<u8>> = (0..n_tokens).map(word).collect();
        let trie = TokTrie::from(&TokRxInfo::new(n_tokens, *first_end), &words);
        Ok(Self { trie: trie.with_eos_tokens(tokenizer.end_ids()), tokenizer })
    }
}

impl TokenizerEnv for TokenEnv {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.trie.tokenize_with_greedy_fallback(bytes, |text| self.tokenizer.encode(text, Specials::Plain))
    }

    /// With "yes" text that the grammar leaves no choice about would be forced token by token, by state that looks ahead
    /// of the tokens accepted. What may come next has to follow from those alone: drafts are tried and taken back.
    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}
