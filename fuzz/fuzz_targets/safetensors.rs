//! Decodes every tensor of a safetensors file.
#![no_main]

#[path = "../../crates/formats/tests/exercise/mod.rs"]
mod exercise;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = exercise::safetensors(data);
});
