//! `overdraft check` on the pair inside the binary.
#![cfg(feature = "demo")]

mod common;

use common::{TempFile, overdraft};

#[test]
fn the_demo_pair_is_exact_in_every_cell() {
    let file = TempFile::new(
        "prompts.jsonl",
        b"{\"prompt\": \"import os\\nimport sys\\n\\n\\nclass Cache:\\n\"}\ndef main():\n",
    );
    let ran =
        overdraft(&["check", "--prompts", file.path(), "-n", "40", "--ctx", "512", "--json", "--quiet"]).ok();
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
