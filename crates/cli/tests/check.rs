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
    assert_eq!(cells.len(), 10);
    for cell in cells {
        assert_eq!(cell["identical"], 2, "{cell}");
        assert!(cell["accepted"].as_u64().unwrap() > 0, "{cell}");
    }
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
fn without_a_draft_there_is_nothing_to_check() {
    let ran = overdraft(&["check", "--draft-mode", "off"]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.err.contains("no draft to check"), "{}", ran.err);
}
