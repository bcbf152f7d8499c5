//! What a run learns of this machine's speed, the next one begins with; it changes no text and its loss harms nothing.
#![cfg(feature = "demo")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{finish, start_with};
use serde_json::Value;

const PROMPT: &str = "import os\nimport sys\n\n\nclass FileCache:\n    def __init__(self, path):\n";

fn run(caches: &Path, more: &[&str]) -> Value {
    let args =
        [&["run", PROMPT, "--json", "--quiet", "--threads", "1", "-n", "40", "--ctx", "512"], more].concat();
    finish(&args, start_with(&args, caches), b"").ok().json()
}

/// A cache folder that is not there yet; an earlier run may have failed and left it.
fn empty(name: &str) -> PathBuf {
    let caches = common::caches().with_extension(name);
    let _ = fs::remove_dir_all(&caches);
    let _ = fs::remove_file(&caches);
    caches
}

fn files(caches: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(caches.join("overdraft/costs")).into_iter().flatten();
    entries.map(|e| e.unwrap().path()).collect()
}

#[test]
fn the_next_run_begins_with_what_this_one_learned() {
    let caches = empty("learned");
    let first = run(&caches, &[]);
    assert_eq!(first["costs_recalled"], false);
    let [file] = &files(&caches)[..] else { panic!("{:?}", files(&caches)) };
    let text = fs::read_to_string(file).unwrap();
    for word in ["overdraft step costs 1\n", "\nstep 1 ", "\ndraft ", "\nbelieve-draft 1 ", "\nstanding "] {
        assert!(text.contains(word), "{word:?} in {text}");
    }
    let second = run(&caches, &[]);
    assert_eq!(second["costs_recalled"], true);
    assert_eq!(second["tokens"], first["tokens"]);

    // Another machine's, a damaged one, rubbish, a folder in its place: as if there were none.
    let wrong =
        [text.replace("threads", "fibres").replace("thread", "fibre"), text[..9].into(), "\u{0}{}[]".into()];
    for damaged in wrong {
        fs::write(file, &damaged).unwrap();
        let again = run(&caches, &[]);
        assert_eq!(
            (&again["costs_recalled"], &again["tokens"]),
            (&false.into(), &first["tokens"]),
            "{damaged}"
        );
    }
    fs::remove_file(file).unwrap();
    fs::create_dir(file).unwrap();
    assert_eq!(run(&caches, &[])["tokens"], first["tokens"]);
    assert!(file.is_dir());
    fs::remove_dir_all(&caches).unwrap();
}

#[test]
fn nothing_is_kept_where_nothing_is_wanted_or_can_be() {
    let caches = empty("unwanted");
    for flags in [&["--no-cost-cache"][..], &["--draft-mode", "off"], &["--draft-mode", "tree"]] {
        run(&caches, flags);
        assert!(!caches.exists(), "{flags:?}");
    }
    fs::write(&caches, "a file where the folder should be").unwrap();
    assert_eq!(run(&caches, &[])["costs_recalled"], false);
    fs::remove_file(&caches).unwrap();
}
