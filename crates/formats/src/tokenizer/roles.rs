//! Tokens with a part to play: begin, ends of generation, fill-in-the-middle.

use super::vocab::{Kind, Vocab};

/// Ids that a file gives for special parts, `None` where it gives none. Field names follow `tokenizer.ggml.*_token_id`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SpecialIds {
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    /// End of a turn.
    pub eot: Option<u32>,
    /// End of a message that asks for a tool's answer.
    pub eom: Option<u32>,
    pub unknown: Option<u32>,
    pub separator: Option<u32>,
    pub padding: Option<u32>,
    pub mask: Option<u32>,
    pub fim_prefix: Option<u32>,
    pub fim_suffix: Option<u32>,
    pub fim_middle: Option<u32>,
    pub fim_pad: Option<u32>,
    pub fim_repository: Option<u32>,
    pub fim_separator: Option<u32>,
}

impl SpecialIds {
    fn fields(&mut self) -> [(&'static str, &mut Option<u32>); 14] {
        [
            ("bos", &mut self.bos),
            ("eos", &mut self.eos),
            ("eot", &mut self.eot),
            ("eom", &mut self.eom),
            ("unknown", &mut self.unknown),
            ("seperator", &mut self.separator),
            ("padding", &mut self.padding),
            ("mask", &mut self.mask),
            ("fim_pre", &mut self.fim_prefix),
            ("fim_suf", &mut self.fim_suffix),
            ("fim_mid", &mut self.fim_middle),
            ("fim_pad", &mut self.fim_pad),
            ("fim_rep", &mut self.fim_repository),
            ("fim_sep", &mut self.fim_separator),
        ]
    }

    fn fill_in(&mut self) -> [&mut Option<u32>; 6] {
        [
            &mut self.fim_prefix,
            &mut self.fim_suffix,
            &mut self.fim_middle,
            &mut self.fim_pad,
            &mut self.fim_repository,
            &mut self.fim_separator,
        ]
    }

    /// Forgets ids that no token has.
    pub(super) fn drop_out_of_range(&mut self, prefix: &str, n_tokens: usize, warnings: &mut Vec<String>) {
        for (name, id) in self.fields() {
            if let Some(out) = id.take_if(|id| *id as usize >= n_tokens) {
                warnings.push(format!(
                    "`{prefix}{name}_token_id` = {out} ignored: the vocabulary has {n_tokens} tokens"
                ));
            }
        }
    }
}

/// Texts that end a generation in some family, in the order in which they are tried as end of turn.
const ENDS: [&str; 19] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "<｜end▁of▁sentence｜>",
    "<end_of_utterance>",
    // Ends, but not of a turn.
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "</s>",
    "<|eom_id|>",
    "[EOS]",
    "<eos>",
];
const N_ENDS_OF_TURN: usize = 11;

const HARMONY_MARKERS: [&str; 4] = ["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"];

/// Texts of the six fill-in-the-middle tokens, in the order of [`SpecialIds::fill_in`].
const FILL_IN: [&[&str]; 6] = [
    &["<|fim_prefix|>"],
    &["<|fim_suffix|>"],
    &["<|fim_middle|>"],
    &["<|fim_pad|>"],
    &["<|fim_repo|>", "<|repo_name|>"],
    &["<|file_sep|>"],
];

/// Every text that means something here, found in one pass over the vocabulary.
struct Named<'v> {
    vocab: &'v Vocab,
    found: Vec<(u32, Kind)>,
}

impl Named<'_> {
    fn id(&self, text: &str) -> Option<u32> {
        let is_it = |&&(id, _): &&(u32, Kind)| self.vocab.bytes(id) == Some(text.as_bytes());
        self.found.iter().find(is_it).map(|&(id, _)| id)
    }
}

/// Fills the ids the file left out, puts kinds right, and returns the tokens that end a generation, sorted.
///
/// A token spelt like one of the ends or of fill-in-the-middle becomes control whatever its type, as in llama.cpp:
/// it is a file whose types were written wrong. Except where `is_merged` says that ordinary text merges into it: Qwen's vocabularies
/// hold `</s>` as such a piece of HTML, and llama.cpp ends the generation there.
pub(super) fn assign(vocab: &mut Vocab, ids: &mut SpecialIds, is_merged: impl Fn(&[u8]) -> bool) -> Vec<u32> {
    let may_matter = |text: &[u8]| matches!(text, [b'<' | b'[' | b'_', .., b'>' | b']']) && text.len() <= 32;
    let found = vocab.iter().filter(|&(_, text, kind)| {
        may_matter(text) && !(kind == Kind::Normal && is_known_text(text) && is_merged(text))
    });
    let found = found.map(|(id, _, kind)| (id, kind)).collect();
    let named = Named { vocab, found };

    ids.eot = ids.eot.or_else(|| ENDS[..N_ENDS_OF_TURN].iter().find_map(|text| named.id(text)));
    let or_named = |id: &mut Option<u32>, texts: &[&str]| {
        *id = id.or_else(|| texts.iter().find_map(|text| named.id(text)));
    };
    or_named(&mut ids.eom, &["<|eom_id|>"]);
    for (text, id) in FILL_IN.iter().zip(ids.fill_in()) {
        or_named(id, text);
    }

    let end_texts: Vec<u32> = ENDS.iter().filter_map(|text| named.id(text)).collect();
    let harmony = ["<|return|>", "<|call|>", "<|end|>"].map(|text| named.id(text));
    let markers: Vec<u32> = HARMONY_MARKERS.iter().filter_map(|text| named.id(text)).collect();

    let given = [ids.eos, ids.eot, ids.eom, ids.fim_pad, ids.fim_repository, ids.fim_separator];
    let mut ends: Vec<u32> = given.into_iter().flatten().chain(end_texts.iter().copied()).collect();
    let fill_in: Vec<u32> =
        FILL_IN.iter().flat_map(|texts| texts.iter()).filter_map(|text| named.id(text)).collect();
    for id in end_texts.into_iter().chain(fill_in) {
        vocab.set_kind(id, Kind::Control);
    }
    if let [Some(_), Some(_), Some(end_of_message)] = harmony {
        // In gpt-oss `<|end|>` closes a message and the turn goes on.
        ends.retain(|&id| id != end_of_message);
        ids.eot.take_if(|id| *id == end_of_message);
        for id in markers.into_iter().chain([end_of_message]) {
            vocab.set_kind(id, Kind::Marker);
        }
    }
    ends.sort_unstable();
    ends.dedup();
    ends
}

fn is_known_text(text: &[u8]) -> bool {
    let known = ENDS.iter().chain(FILL_IN.into_iter().flatten()).chain(&HARMONY_MARKERS);
    known.into_iter().any(|known| known.as_bytes() == text)
}
