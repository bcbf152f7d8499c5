//! Reads every key in every way and decodes every tensor of a GGUF file.
#![no_main]

#[path = "../../crates/formats/tests/exercise/mod.rs"]
mod exercise;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = exercise::gguf(data);
});
