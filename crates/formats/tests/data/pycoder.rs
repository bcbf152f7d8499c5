//! The demo model's `tokenizer.json`. The file here has the bytes and special tokens of its vocabulary; all others are what its
//! merges make, one after the other, and come from those.

use serde_json::Value;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../formats/tests/data");

pub(crate) fn tokenizer_json() -> Vec<u8> {
    let short = std::fs::read(format!("{FOLDER}/pycoder-tokenizer.json")).unwrap();
    let mut json: Value = serde_json::from_slice(&short).unwrap();
    let model = &mut json["model"];
    let parts = |merge: &Value| merge.as_array().unwrap().iter().map(|p| p.as_str().unwrap()).collect();
    let made: Vec<String> = model["merges"].as_array().unwrap().iter().map(parts).collect();
    let vocab = model["vocab"].as_object_mut().unwrap();
    for token in made {
        let id = vocab.len();
        vocab.insert(token, id.into());
    }
    json.to_string().into_bytes()
}
