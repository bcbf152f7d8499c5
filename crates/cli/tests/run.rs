//! `overdraft run` on the model inside the binary.
#![cfg(feature = "demo")]

mod common;

use std::io::Read;
use std::process::{Child, Command, Output};
use std::time::Duration;

use common::{TempFile, overdraft, overdraft_with, start};
use serde_json::Value;

const PROMPT: &str = "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n";

fn json(args: &[&str]) -> Value {
    let args = [&["run", "--json", "--quiet", "--threads", "1"], args].concat();
    overdraft(&args).ok().json()
}

#[test]
fn streamed_text_is_the_text_of_json_and_of_any_number_of_threads() {
    let object = json(&[PROMPT, "-n", "24"]);
    let text = object["text"].as_str().unwrap();
    assert!(!text.is_empty());
    for threads in ["1", "2"] {
        let ran = overdraft(&["run", PROMPT, "-n", "24", "--threads", threads]).ok();
        assert_eq!(ran.out, text, "{threads} threads");
        assert!(ran.err.contains("prompt 24 tok, ") && ran.err.contains("stop: "), "{}", ran.err);
    }
    let reference = json(&[PROMPT, "-n", "24"]);
    assert_eq!(object["tokens"], reference["tokens"], "greedy is deterministic");
}

#[test]
fn json_says_what_ran() {
    let object = json(&[
        PROMPT,
        "-n",
        "3",
        "--temperature",
        "0.5",
        "--seed",
        "7",
        "--ctx",
        "512",
        "--logit-bias",
        "5=-inf",
    ]);
    for (pointer, value) in [
        ("/finish_reason", Value::from("max-tokens")),
        ("/figures/prompt_tokens", 24.into()),
        ("/figures/generated_tokens", 3.into()),
        ("/settings/context", 512.into()),
        ("/settings/temperature", 0.5.into()),
        ("/settings/seed", 7.into()),
        ("/settings/max_tokens", 3.into()),
        ("/settings/threads", 1.into()),
        ("/settings/kv", "f16".into()),
        ("/settings/logit_bias/0/1", "-inf".into()),
        ("/model/architecture", "qwen35".into()),
    ] {
        assert_eq!(object.pointer(pointer), Some(&value), "{pointer}");
    }
    assert_eq!(object["tokens"].as_array().unwrap().len(), 3);
}

#[test]
fn quiet_says_nothing_beside_the_text() {
    let ran = overdraft(&["run", PROMPT, "-n", "2", "--quiet"]).ok();
    assert_eq!(ran.err, "");
}

#[test]
fn stops_end_the_text_before_themselves() {
    let plain = json(&[PROMPT, "-n", "12", "--ignore-eos"]);
    let text = plain["text"].as_str().unwrap();
    let tokens = plain["tokens"].as_array().unwrap();
    assert_eq!(tokens.len(), 12);

    // Five bytes from the middle, which straddle tokens wherever they fall.
    let middle = text.char_indices().map(|c| c.0).find(|i| *i >= text.len() / 2).unwrap();
    let stop: String = text[middle..].chars().take(5).collect();
    let cut = json(&[PROMPT, "-n", "12", "--ignore-eos", "--stop", &stop]);
    assert_eq!(cut["text"].as_str().unwrap(), &text[..text.find(&stop).unwrap()]);
    assert_eq!(cut["finish_reason"], "stop-string");

    let id = tokens[4].to_string();
    let first = tokens.iter().position(|t| *t == tokens[4]).unwrap();
    let cut = json(&[PROMPT, "-n", "12", "--ignore-eos", "--stop-id", &id]);
    assert_eq!(cut["tokens"].as_array().unwrap()[..], tokens[..=first]);
    assert_eq!(cut["finish_reason"], "end-token");
}

#[test]
fn the_context_ends_a_text_that_nothing_else_ends() {
    let object = json(&[PROMPT, "-n", "1000", "--ignore-eos", "--ctx", "30"]);
    assert_eq!(object["finish_reason"], "context");
    assert_eq!(object["tokens"].as_array().unwrap().len(), 6, "24 of 30 are the prompt");
}

#[test]
fn a_bias_forbids_a_token_and_a_seed_repeats_a_draw() {
    let first = json(&[PROMPT, "-n", "1"])["tokens"][0].clone();
    let without = json(&[PROMPT, "-n", "1", "--logit-bias", &format!("{first}=-inf")]);
    assert_ne!(without["tokens"][0], first);

    let draw =
        |seed: &str| json(&[PROMPT, "-n", "12", "--temperature", "2", "--seed", seed])["tokens"].clone();
    assert_eq!(draw("1"), draw("1"));
    assert_ne!(draw("1"), draw("2"), "12 tokens at temperature 2 alike would be a wonder");
}

#[test]
fn prompts_come_from_everywhere() {
    let text = json(&[PROMPT, "-n", "8"])["text"].clone();
    let file = TempFile::new("prompt.py", PROMPT.as_bytes());
    let flags = ["run", "-n", "8", "--quiet", "--threads", "1"];
    for (more, stdin) in [(&["--file", file.path()][..], ""), (&["-"], PROMPT), (&[], PROMPT)] {
        let ran = overdraft_with(&[&flags, more].concat(), stdin.as_bytes()).ok();
        assert_eq!(ran.out, text.as_str().unwrap(), "{more:?}");
    }
}

#[test]
fn chat_wraps_the_prompt_and_a_message_cannot_end_itself() {
    let question = "Write a Python function `read_json`. Read a JSON file.";
    let wrapped = format!("<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n");
    let by_flag = json(&[question, "--chat", "-n", "10"]);
    let by_hand = json(&[&wrapped, "-n", "10"]);
    assert_eq!(by_flag["tokens"], by_hand["tokens"]);
    assert_eq!(by_flag["settings"]["chat"], true);
    assert_eq!(by_flag["figures"]["prompt_tokens"], by_hand["figures"]["prompt_tokens"]);

    let system = json(&[question, "--system", "Be brief.", "-n", "10"]);
    let by_hand = json(&[&format!("<|im_start|>system\nBe brief.<|im_end|>\n{wrapped}"), "-n", "10"]);
    assert_eq!(system["tokens"], by_hand["tokens"]);

    let prompt_tokens = |text: &str, flag: &[&str]| {
        let args = [&[text, "-n", "1"], flag].concat();
        json(&args)["figures"]["prompt_tokens"].as_u64().unwrap()
    };
    assert!(
        prompt_tokens("a<|im_end|>b", &["--chat"]) > prompt_tokens("ab", &["--chat"]) + 3,
        "a control token is one token, its spelling is several"
    );
}

#[test]
fn a_reader_that_leaves_ends_the_run_quietly() {
    let mut child = start(&["run", PROMPT, "-n", "100000", "--ignore-eos", "--threads", "1"]);
    let mut some = [0; 4];
    child.stdout.as_mut().unwrap().read_exact(&mut some).unwrap();
    drop(child.stdout.take());
    let ended = child.wait_with_output().unwrap();
    let err = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(0), "{err}");
    assert!(err.contains("stop: closed-pipe") && !err.contains("panicked"), "{err}");
}

#[cfg(unix)]
fn interrupt(child: Child) -> Output {
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(130));
    ended
}

#[cfg(unix)]
const ENDLESS: [&str; 7] = ["run", PROMPT, "-n", "100000", "--ignore-eos", "--threads", "1"];

#[cfg(unix)]
#[test]
fn ctrl_c_stops_cleanly_with_the_figures() {
    let mut child = start(&ENDLESS);
    child.stdout.as_mut().unwrap().read_exact(&mut [0; 4]).unwrap();
    let err = String::from_utf8(interrupt(child).stderr).unwrap();
    assert!(err.contains("generated ") && err.contains("stop: interrupted"), "{err}");
}

#[cfg(unix)]
#[test]
fn ctrl_c_leaves_whole_json() {
    // Nothing shows when generation begins, and before that Ctrl-C ends the process at once. So wait ever longer.
    let mut ended = (0..6).map(|i| {
        let child = start(&[&ENDLESS[..], &["--json"]].concat());
        std::thread::sleep(Duration::from_millis(500 << i));
        interrupt(child)
    });
    let ended = ended.find(|e| !e.stdout.is_empty()).expect("generation began within 16 s");
    let object: Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!(object["finish_reason"], "interrupted");
}

#[test]
fn the_definitions_can_run_too() {
    let object = json(&["x = 1\n", "-n", "2", "--device", "cpu-reference", "--kv", "f32"]);
    assert_eq!(object["figures"]["device"], "cpu reference");
    assert_eq!(object["tokens"].as_array().unwrap().len(), 2);
}
