//! The folders of `tests/fixtures` that hold a model of each family with Hugging Face's float32 logits and hidden states.

pub(crate) const FAMILIES: [&str; 9] = [
    "llama",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "qwen3_next",
    "qwen3_5",
    "qwen3_5_moe",
    "gpt_oss",
    "gpt_oss_mxfp4",
];
