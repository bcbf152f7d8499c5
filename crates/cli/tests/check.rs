//! `overdraft check` on the pair inside the binary.
#![cfg(feature = "demo")]

mod common;

use common::{TempFile, overdraft};

#[test]
fn the_demo_pair_is_exact_in_every_cell() {
    let file = TempFile::new(
        "prompts.jsonl",
        b"{\"prompt\": \"import os\\nimport sys\\n\\n\\nclass Cache:\\n\"}\ndef main():\nnot this one\n",
    );
    let prompts = ["--prompts", file.path(), "--limit", "2"];
    let args = [&["check"], &prompts[..], &["-n", "40", "--ctx", "512", "--json", "--quiet"]].concat();
    let ran = overdraft(&args).ok();
    let object = ran.json();
    assert_eq!(object["exact"], true);
    let cells = object["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 14);
    for cell in cells {
        assert_eq!(cell["identical"], 2, "{cell}");
        assert!(cell["accepted"].as_u64().unwrap() > 0, "{cell}");
    }
    let by_script: Vec<_> = cells.iter().filter(|c| c["guesser"] == "script").collect();
    assert_eq!(by_script.len(), 4, "chains and trees, greedy and drawn");
    for cell in by_script {
        let lengths = &cell["lengths_at_alignments"];
        assert!(lengths["driven"].as_u64().unwrap() >= 8, "{cell}");
        assert_eq!(lengths["of"], 272, "{cell}");
    }
}

#[test]
fn a_target_without_a_draft_is_checked_by_script() {
    let folder = std::env::temp_dir().join(format!("overdraft-{}-alone", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let target = folder.join("target.gguf");
    std::fs::copy(common::root().join("models/pycoder-q4_k_m.gguf"), &target).unwrap();
    let target_path = target.to_str().unwrap();
    let ran =
        overdraft(&["check", "-m", target_path, "--limit", "1", "-n", "24", "--ctx", "512", "--json"]).ok();
    let streams = overdraft(&["check", "-m", target_path, "--streams", "2"]);
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(ran.err.contains("no draft: only guesses by script"), "{}", ran.err);
    let object = ran.json();
    assert_eq!(object["exact"], true, "{object}");
    assert_eq!(object["draft"], serde_json::Value::Null);
    assert_eq!(object["cells"].as_array().unwrap().len(), 4, "{object}");
    assert_eq!(streams.code, Some(2));
    assert!(streams.err.contains("no draft for --streams"), "{}", streams.err);
}

#[test]
fn a_crowd_that_comes_and_goes_changes_no_bit() {
    let object = overdraft(&["check", "--streams", "1,4", "-n", "24", "--json", "--quiet"]).ok().json();
    assert_eq!(object["exact"], true, "{object}");
    let crowds = object["crowds"].as_array().unwrap();
    assert_eq!(crowds.len(), 8);
    for crowd in crowds {
        assert_eq!(crowd["identical"], crowd["requests"], "{crowd}");
        assert_eq!(crowd["most_at_once"], crowd["streams"], "{crowd}");
        let ends: u64 = crowd["ends"].as_object().unwrap().values().map(|n| n.as_u64().unwrap()).sum();
        assert_eq!(Some(ends), crowd["requests"].as_u64(), "every request has come to an end: {crowd}");
    }
}

#[test]
fn what_was_not_put_to_the_test_is_not_called_exact() {
    // One token needs no guess, so nothing is ever accepted.
    let ran = overdraft(&["check", "-n", "1", "--ctx", "512", "--quiet"]);
    assert_eq!(ran.code, Some(1), "{}", ran.out);
    assert!(ran.out.contains("not shown to be exact"), "{}", ran.out);
}

#[test]
fn without_speculation_there_is_nothing_to_check() {
    let ran = overdraft(&["check", "--draft-mode", "off"]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.err.contains("nothing to check without speculation"), "{}", ran.err);
}
