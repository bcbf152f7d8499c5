//! The families, and what tells them apart besides sizes.

/// A target family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arch {
    Llama,
    Qwen2,
    Qwen3,
    Qwen3Moe,
    Qwen3Next,
    Qwen35,
    Qwen35Moe,
    GptOss,
}

use Arch::*;

/// (family, `general.architecture`, Hugging Face `model_type`s)
const TABLE: [(Arch, &str, &[&str]); 8] = [
    (Llama, "llama", &["llama"]),
    (Qwen2, "qwen2", &["qwen2"]),
    (Qwen3, "qwen3", &["qwen3"]),
    (Qwen3Moe, "qwen3moe", &["qwen3_moe"]),
    (Qwen3Next, "qwen3next", &["qwen3_next"]),
    (Qwen35, "qwen35", &["qwen3_5", "qwen3_5_text"]),
    (Qwen35Moe, "qwen35moe", &["qwen3_5_moe", "qwen3_5_moe_text"]),
    (GptOss, "gpt-oss", &["gpt_oss"]),
];

impl Arch {
    pub fn from_gguf(name: &str) -> Option<Self> {
        TABLE.iter().find(|e| e.1 == name).map(|e| e.0)
    }

    pub fn from_hf(model_type: &str) -> Option<Self> {
        TABLE.iter().find(|e| e.2.contains(&model_type)).map(|e| e.0)
    }

    /// The name in GGUF files, which is also the one shown.
    pub fn name(self) -> &'static str {
        TABLE[self as usize].1
    }

    /// Every family, for messages.
    pub fn known() -> String {
        TABLE.map(|e| e.1).join(", ")
    }

    /// Gated DeltaNet layers among the attention layers, gated attention, and in Hugging Face files norms stored
    /// less one.
    pub(crate) fn is_hybrid(self) -> bool {
        matches!(self, Qwen3Next | Qwen35 | Qwen35Moe)
    }

    pub(crate) fn has_experts(self) -> bool {
        matches!(self, Qwen3Moe | Qwen3Next | Qwen35Moe | GptOss)
    }

    pub(crate) fn has_head_norms(self) -> bool {
        matches!(self, Qwen3 | Qwen3Moe) || self.is_hybrid()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_indexed_by_the_enum() {
        for (i, e) in TABLE.iter().enumerate() {
            assert_eq!(e.0 as usize, i);
            assert_eq!(Arch::from_gguf(e.1), Some(e.0));
            assert!(e.2.iter().all(|m| Arch::from_hf(m) == Some(e.0)));
        }
    }
}
