//! Public chat templates, fetched by `tests/fetch-data`, against fingerprints of what Jinja2 makes of them.

use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use overdraft_formats::template::{ChatInput, ChatTemplate, Limits};
use serde_json::{Map, Value};

fn testdata() -> PathBuf {
    match std::env::var_os("OVERDRAFT_TESTDATA") {
        Some(folder) => folder.into(),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/testdata"),
    }
}

fn json(path: &Path) -> Value {
    let text = std::fs::read_to_string(path)
        .unwrap_or_else(|problem| panic!("{}: {problem}\nhint: run tests/fetch-data", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|problem| panic!("{}: {problem}", path.display()))
}

fn fnv64(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

fn fnv32(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// Nothing when the text is the one Jinja2 wrote; else where it first differs.
fn difference(golden: &Value, got: &Result<String, String>) -> Option<String> {
    let text = match (golden["refused"] == true, got) {
        (true, Err(_)) => return None,
        (true, Ok(text)) => return Some(format!("Jinja2 refuses, ours prints {text:.200?}")),
        (false, Err(problem)) => return Some(problem.clone()),
        (false, Ok(text)) => text,
    };
    let bytes = golden["bytes"].as_u64().unwrap_or(0);
    if golden["fnv"] == format!("{:016x}", fnv64(text)) && bytes == text.len() as u64 {
        return None;
    }
    let wanted = golden["lines"].as_str().unwrap_or("");
    let differs =
        |(at, line): &(usize, &str)| wanted.get(at * 8..at * 8 + 8) != Some(&format!("{:08x}", fnv32(line)));
    let hint = match text.split('\n').enumerate().find(differs) {
        Some((at, line)) => format!("line {} is ours alone: {line:?}", at + 1),
        None => "lines are missing at the end".into(),
    };
    Some(format!("{} bytes where Jinja2 has {bytes}; {hint}", text.len()))
}

fn token(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value["content"].as_str())
}

#[test]
fn public_templates_render_as_in_jinja2() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/template");
    let conversations = json(&folder.join("conversations.json"));
    let goldens = json(&folder.join("real.json"));
    let goldens = goldens.as_array().expect("a list of goldens");
    let limits = Limits { now: UNIX_EPOCH + Duration::from_secs(1_770_091_506), ..Limits::default() };
    let empty = Map::new();
    let mut differences = Vec::new();
    for golden in goldens {
        let package = golden["package"].as_str().expect("a package's name");
        let config = json(&testdata().join(package).join("models/tokenizer_config.json"));
        let source = config["chat_template"].as_str().expect("the package has a template");
        let template = ChatTemplate::parse(package, source).expect("public templates parse");
        let conversation = conversations.as_array().into_iter().flatten();
        let conversation = conversation
            .into_iter()
            .find(|c| c["name"] == golden["conversation"])
            .expect("a known conversation");
        let vars = template.variables(&ChatInput {
            messages: &conversation["messages"],
            tools: conversation.get("tools"),
            add_generation_prompt: conversation["add_generation_prompt"] == true,
            bos_token: token(&config["bos_token"]),
            eos_token: token(&config["eos_token"]),
            extra: conversation.get("extra").and_then(Value::as_object).unwrap_or(&empty),
        });
        let got = template.render(&vars.expect("no reserved name"), &limits).map_err(|e| e.to_string());
        if let Some(difference) = difference(golden, &got) {
            differences.push(format!("{package}, {}: {difference}", golden["conversation"]));
        }
    }
    assert!(goldens.len() > 100, "only {} goldens", goldens.len());
    let count = differences.len();
    assert!(differences.is_empty(), "{count} of {} differ:\n{}", goldens.len(), differences.join("\n"));
}
