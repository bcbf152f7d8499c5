//! `overdraft chat` as a script talks to it.
#![cfg(feature = "demo")]

mod common;

use common::{overdraft, overdraft_with};

const FIRST: &str = "Write a Python function `add`. Add two numbers.";
const SECOND: &str = "Write a Python function `read_json`. Read a JSON file.";

fn chat(flags: &[&str], lines: &[&str]) -> common::Ran {
    let args = [&["chat", "--threads", "1", "-n", "10"], flags].concat();
    overdraft_with(&args, lines.join("\n").as_bytes())
}

fn raw(prompt: &str) -> String {
    overdraft(&["run", prompt, "-n", "10", "--quiet", "--threads", "1"]).ok().out
}

/// As the program ends a line that the model did not.
fn as_line(text: &str) -> String {
    if text.ends_with('\n') { text.into() } else { format!("{text}\n") }
}

#[test]
fn answers_follow_the_whole_conversation() {
    let turn = |question: &str| format!("<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n");
    let first = raw(&turn(FIRST));
    let second = raw(&format!("{}{first}<|im_end|>\n{}", turn(FIRST), turn(SECOND)));
    let afresh = raw(&turn(SECOND));

    let ran = chat(&[], &[FIRST, "", SECOND]).ok();
    assert_eq!(ran.out, format!("{}{}", as_line(&first), as_line(&second)));

    let ran = chat(&[], &[FIRST, "/clear", SECOND, "/exit", "never read"]).ok();
    assert_eq!(ran.out, format!("{}{}", as_line(&first), as_line(&afresh)), "/clear forgets");

    let with_system = raw(&format!("<|im_start|>system\nBe brief.<|im_end|>\n{}", turn(FIRST)));
    let by_flag = chat(&["--system", "Be brief."], &[FIRST]).ok();
    let by_command = chat(&[], &["/system Be brief.", FIRST]).ok();
    assert_eq!(by_flag.out, as_line(&with_system));
    assert_eq!(by_command.out, as_line(&with_system));
}

#[test]
fn commands_answer_on_standard_error() {
    let ran = chat(&[], &["/stats", "/help", "/system A.", "/system"]).ok();
    assert_eq!(ran.out, "");
    for part in
        ["0 turns, 0 of 32768 tokens", "last answer: none yet", "/clear", "system message set", "removed"]
    {
        assert!(ran.err.contains(part), "{part}: {}", ran.err);
    }
    let ran = chat(&[], &["hello", "/stats"]).ok();
    for part in ["1 turn, ", "memory: ", "last answer: prompt "] {
        assert!(ran.err.contains(part), "{part}: {}", ran.err);
    }
}

#[test]
fn a_line_that_ends_in_a_backslash_goes_on() {
    let joined = raw("<|im_start|>user\none\ntwo<|im_end|>\n<|im_start|>assistant\n");
    assert_eq!(chat(&[], &["one\\", "two"]).ok().out, as_line(&joined));
}

#[test]
fn old_turns_leave_a_full_context_with_a_note() {
    let ran = chat(&["--ctx", "64"], &["one two three"; 6]).ok();
    assert!(ran.err.contains("left the conversation"), "{}", ran.err);
    assert!(ran.out.lines().count() >= 6, "every question was answered: {}", ran.out);
}

#[test]
fn a_script_that_goes_wrong_ends_with_2() {
    let long = "word ".repeat(100);
    for (lines, message) in
        [(&["/bogus"][..], "there is no command /bogus"), (&[long.as_str()], "the prompt has ")]
    {
        let ran = chat(&["--ctx", "64"], lines);
        assert_eq!(ran.code, Some(2));
        assert!(ran.err.contains(message), "{}", ran.err);
    }
    let ran = overdraft_with(&["chat"], b"hi\xff\n");
    assert_eq!(ran.code, Some(2));
    assert!(ran.err.contains("standard input, line 1: not UTF-8 text at byte 2"), "{}", ran.err);
}

#[test]
fn nothing_said_is_nothing_answered() {
    assert_eq!(overdraft_with(&["chat"], b"").ok().out, "");
}
