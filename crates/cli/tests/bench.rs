//! `overdraft bench` on the pair inside the binary, at small sizes: the shape of its answers, equal work, refusals.
#![cfg(feature = "demo")]

mod common;

use common::{TempFile, overdraft};
use serde_json::Value;

#[track_caller]
fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is not a number"))
}

/// A spread whose numbers stand in order and are of this many measurements.
#[track_caller]
fn check_spread(spread: &Value, n: u64) {
    let at = |key: &str| number(&spread[key]);
    let sorted = [at("min"), at("q1"), at("median"), at("q3"), at("max")];
    assert!(sorted.is_sorted() && sorted[0] > 0.0, "{spread}");
    assert_eq!(spread["n"], n, "{spread}");
}

#[test]
fn decode_compares_modes_on_equal_work() {
    let plot = TempFile::new("speed.svg", b"");
    let args = [
        "bench",
        "decode",
        "--modes",
        "ready,auto",
        "--rows",
        "8",
        "--limit",
        "2",
        "-n",
        "24",
        "--repeats",
        "2",
        "--plot",
        plot.path(),
        "--json",
        "--quiet",
    ];
    let object = overdraft(&args).ok().json();
    assert_eq!(object["bench"], "decode");
    assert_eq!((&object["n_prompts"], &object["max_tokens"]), (&2.into(), &24.into()));
    assert!(object["about"]["command"].as_str().unwrap().starts_with("overdraft bench decode --modes"));
    let modes = object["modes"].as_array().unwrap();
    let names: Vec<&str> = modes.iter().map(|m| m["mode"].as_str().unwrap()).collect();
    assert_eq!(names, ["plain", "ready", "auto", "chain:7", "tree:7"]);
    for mode in modes {
        assert_eq!((&mode["identical"], &mode["texts"]), (&4.into(), &4.into()), "{mode}");
        assert_eq!(mode["generated_tokens"], 4 * 24, "equal work: {mode}");
        check_spread(&mode["tokens_per_second_spread"], 4);
        check_spread(&mode["over_plain_spread"], 4);
        let phases = mode["phase_seconds"].as_object().unwrap();
        let sum: f64 = phases.values().map(number).sum();
        assert!((sum / number(&mode["generation_seconds"]) - 1.0).abs() < 1e-6, "{mode}");
    }
    for plain in &modes[..2] {
        assert_eq!((&plain["drafted"], number(&plain["tokens_per_round"])), (&0.into(), 1.0), "{plain}");
    }
    let tree = &modes[4];
    assert!(number(&tree["accepted"]) > 0.0 && number(&tree["rows_per_round"]) > 4.0, "{tree}");
    assert!(!tree["acceptance_by_depth"].as_array().unwrap().is_empty());
    let svg = std::fs::read_to_string(plot.path()).unwrap();
    for part in
        ["<svg", "prefers-color-scheme:dark", "Speed against rows", "Accepted by depth", "tree:7", "</svg>"]
    {
        assert!(svg.contains(part), "{part}");
    }
}

#[test]
fn a_persons_table_says_what_is_equal() {
    let file = TempFile::new(
        "questions.jsonl",
        b"{\"question\": \"import os\\n\"}\n{\"text\": \"def main():\\n\"}\nclass A:\n",
    );
    for command in ["decode", "round"] {
        let ran =
            overdraft(&["bench", command, "--prompts", file.path(), "-n", "8", "--repeats", "1", "--quiet"])
                .ok();
        let rows: Vec<&str> = ran.out.lines().filter(|l| l.starts_with('|')).collect();
        assert_eq!(rows.len(), 4, "{}", ran.out);
        assert!(rows[2].contains("| plain") && rows[3].contains("| auto"), "{}", ran.out);
        assert!(rows[2].contains("3 of 3") && rows[3].contains("3 of 3"), "{}", ran.out);
    }
}

/// `bench round --json` with these flags, in which no time counts.
fn round(flags: &[&str]) -> Value {
    let args = [&["bench", "round", "--repeats", "1", "--json", "--quiet"], flags].concat();
    overdraft(&args).ok().json()
}

#[test]
fn a_forced_profile_says_so_and_writes_as_many_tokens_a_round() {
    let object =
        round(&["--modes", "auto,chain:7", "--accept-profile", "1,2.5,8", "--limit", "1", "-n", "71"]);
    let modes = object["modes"].as_array().unwrap();
    let forced: Vec<Option<f64>> = modes.iter().map(|m| m["forced_tokens_per_round"].as_f64()).collect();
    let each = [Some(1.0), Some(2.5), Some(8.0)];
    assert_eq!(forced, [&[None], &each[..], &each[..]].concat());
    assert_eq!((&modes[0]["identical"], &modes[0]["texts"]), (&1.into(), &1.into()));
    for mode in &modes[1..] {
        assert!(mode["identical"].is_null(), "text that was forced is compared with nothing: {mode}");
        assert_eq!(mode["generated_tokens"], 71, "{mode}");
    }
    // 70 tokens after the first: all of 1, then 2 and 3 by turns, then 8 rounds of 8 and what is left.
    for (mode, rounds) in modes[4..].iter().zip([70, 28, 9]) {
        assert_eq!(mode["rounds"], rounds, "{mode}");
    }
    assert_eq!(number(&modes[1]["accepted"]), 0.0, "{}", modes[1]);
    let table = overdraft(&[
        "bench",
        "round",
        "--modes",
        "chain:3",
        "--accept-profile",
        "3",
        "--limit",
        "1",
        "-n",
        "8",
        "-q",
    ]);
    assert!(table.out.contains("| chain:3, forced 3 |") && table.out.contains("| forced "), "{}", table.out);
    assert!(table.out.contains("not the model's"), "{}", table.out);
}

#[test]
fn streams_write_at_once_what_each_writes_alone() {
    let alone = round(&["--modes", "chain:3", "--limit", "4", "-n", "12"]);
    let flags = ["--modes", "chain:3", "--limit", "5", "-n", "12", "--streams", "2"];
    let together = round(&flags);
    assert_eq!((&together["streams"], &together["n_prompts"]), (&2.into(), &4.into()));
    for (mode, lone) in together["modes"].as_array().unwrap().iter().zip(alone["modes"].as_array().unwrap()) {
        assert_eq!((&mode["identical"], &mode["texts"]), (&4.into(), &4.into()), "{mode}");
        for same in ["generated_tokens", "rounds", "accepted"] {
            assert_eq!(mode[same], lone[same], "{same}: {mode}");
        }
    }
    let plain = &together["modes"][0];
    assert_eq!((&plain["rounds"], &plain["steps"]), (&44.into(), &22.into()), "two texts share every step");
    assert!(
        together["memory"]["planned_bytes"].as_u64() > alone["memory"]["planned_bytes"].as_u64(),
        "two texts"
    );
    let random = round(&["--modes", "plain", "--limit", "2", "-n", "4", "--prompts", "random:70"]);
    assert_eq!((&random["n_prompts"], &random["prompt_tokens"]), (&2.into(), &140.into()));
}

#[test]
fn prompts_are_read_at_every_length_asked_for() {
    let object = overdraft(&["bench", "prefill", "--lengths", "5,70", "--repeats", "2", "--json", "--quiet"])
        .ok()
        .json();
    let rows = object["prompts"].as_array().unwrap();
    assert_eq!(rows.iter().map(|r| r["tokens"].as_u64().unwrap()).collect::<Vec<_>>(), [5, 70]);
    let memory = &object["memory"];
    assert!(memory["planned_bytes"].as_u64() > Some(2 << 20) && memory["taken_bytes"].is_null(), "{memory}");
    for row in rows {
        check_spread(&row["tokens_per_second"], 2);
        check_spread(&row["with_draft_tokens_per_second"], 2);
    }
}

#[test]
fn an_op_is_measured_by_type_and_rows() {
    let args = [
        "bench",
        "op",
        "linear",
        "--type",
        "q8_0,f16",
        "--rows",
        "1,3",
        "--shape",
        "64x256",
        "--working-set",
        "1",
        "--repeats",
        "3",
        "--json",
        "--quiet",
    ];
    let object = overdraft(&args).ok().json();
    assert!(number(&object["limits"]["read_bytes_per_second"]) > 0.0, "{object}");
    let rows = object["rows"].as_array().unwrap();
    let what: Vec<(&str, u64)> =
        rows.iter().map(|r| (r["type"].as_str().unwrap(), r["rows"].as_u64().unwrap())).collect();
    assert_eq!(what, [("Q8_0", 1), ("Q8_0", 3), ("F16", 1), ("F16", 3)]);
    for row in rows {
        assert_eq!(number(&row["multiply_adds"]), number(&row["rows"]) * 64.0 * 256.0, "{row}");
        assert_eq!(row["share_of_int8_peak"].is_null(), row["type"] == "F16", "{row}");
    }
    let list = overdraft(&["bench", "op"]).ok().out;
    assert!(list.contains("linear-glu") && list.contains("outputs x inputs"), "{list}");
}

#[test]
fn the_machine_is_measured_by_threads() {
    let object = overdraft(&["bench", "machine", "--threads", "1,2", "--json"]).ok().json();
    let limits = object["limits"].as_array().unwrap();
    assert_eq!(limits.len(), 2);
    for (limit, threads) in limits.iter().zip([1, 2]) {
        assert_eq!(limit["threads"], threads);
        assert!(number(&limit["read_bytes_per_second"]) > 1e6, "{limit}");
        assert!(number(&limit["int8_multiply_adds_per_second"]) > 1e6, "{limit}");
    }
}

/// A peer that answers as llama-bench does, at a known speed, and only if it is asked as it should be.
#[cfg(unix)]
#[test]
fn a_peer_takes_turns_and_ratios_are_against_it() {
    use std::os::unix::fs::PermissionsExt;
    let peer = TempFile::new(
        "peer",
        br#"#!/bin/sh
while [ $# -gt 0 ]; do
    case $1 in
    -m) [ -f "$2" ] || exit 9 ;;
    -t) t=$2 ;; -p) p=$2 ;; -n) n=$2 ;; -d) d=$2 ;; -r) [ "$2" = 1 ] || exit 9 ;; -o) [ "$2" = json ] || exit 9 ;;
    esac
    shift 2
done
echo "[{\"n_prompt\": $p, \"n_gen\": $n, \"n_depth\": $d, \"n_threads\": $t, \"avg_ts\": 0.5, \"build_number\": 7}]"
"#,
    );
    std::fs::set_permissions(peer.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let args = [
        "bench",
        "compare",
        "--peer",
        peer.path(),
        "--limit",
        "2",
        "-n",
        "8",
        "--prompt-tokens",
        "32",
        "--repeats",
        "2",
        "--threads",
        "1",
        "--json",
        "--quiet",
    ];
    let object = overdraft(&args).ok().json();
    assert_eq!((&object["peer"]["threads"], &object["peer"]["build_number"]), (&1.into(), &7.into()));
    let works = object["works"].as_array().unwrap();
    assert_eq!(works.len(), 3);
    for work in works {
        check_spread(&work["ratio"], 2);
        let ours = number(&work["ours_tokens_per_second"][0]);
        let ratios = [number(&work["ratio"]["min"]), number(&work["ratio"]["max"])];
        assert!(ratios.iter().any(|r| (r / (ours / 0.5) - 1.0).abs() < 1e-6), "{work}");
    }
    assert_eq!((&works[2]["identical"], &works[2]["texts"]), (&4.into(), &4.into()));
}

#[test]
#[rustfmt::skip]
fn wrong_input_is_refused_by_name() {
    let empty = TempFile::new("empty.jsonl", b"\n\n");
    let wrong = TempFile::new("wrong.jsonl", b"{\"promt\": \"x\"}\n");
    let two = TempFile::new("two.jsonl", b"one\ntwo\n");
    for (args, message) in [
        (&["decode", "--repeats", "0"][..],                 "0 is not in 1..=1000"),
        (&["decode", "--limit", "0"],                       "--limit"),
        (&["decode", "-n", "1"],                            "1 is not in 2..=65536"),
        (&["decode", "--modes", "fast"],                    "modes are plain, ready, lookup, auto"),
        (&["decode", "--modes", "tree:64"],                 "a number from 1 to 63 was expected"),
        (&["decode", "--rows", "65"],                       "65 is not in 2..=64"),
        (&["decode", "--prompts", "no-such-set"],           "the sets inside the binary are humaneval and gsm8k"),
        (&["decode", "--prompts", empty.path()],            "holds no prompts"),
        (&["decode", "--prompts", wrong.path()],            "line 1: an object without a text in `prompt`"),
        (&["decode", "--temperature", "-1"],                "--temperature -1: must be between 0"),
        (&["decode", "--plot", "no/such/folder/x.svg"],     "--plot no/such/folder/x.svg: No such file"),
        (&["decode", "--draft-mode", "off"],                "--draft-mode"),
        (&["decode", "-d", "x.gguf"],                       "x.gguf: No such file"),
        (&["decode", "--streams", "65"],                    "65 is not in 1..=64"),
        (&["decode", "--streams", "3", "--prompts", two.path()], "holds 2 prompts"),
        (&["decode", "--prompts", "random:0"],              "`0` is no number of tokens"),
        (&["round", "--accept-profile", "0.5"],             "a round writes 1 to 17 tokens"),
        (&["round", "--accept-profile", "5", "--modes", "tree:3"], "a round of tree:3 writes 4 tokens at most"),
        (&["round", "--accept-profile", "17"],              "a round of auto writes 16 tokens at most"),
        (&["round", "--accept-profile", "2", "--modes", "lookup"], "mode lookup has no draft"),
        (&["round", "--accept-profile", "2", "--stop-at-eos"], "--stop-at-eos"),
        (&["prefill", "--lengths", "0"],                    "0 is not in 1.."),
        (&["op", "matmul"],                                 "no op is called matmul"),
        (&["op", "linear", "--shape", "3x"],                "`` is not a number"),
        (&["op", "linear", "--shape", "8"],                 "outputs x inputs; 1 were given"),
        (&["op", "linear", "--shape", "8x99999999999999999999"], "is not a number"),
        (&["op", "linear", "--shape", "8x100", "--type", "q4_k"], "inputs = 100 must be a multiple of 256 for Q4_K"),
        (&["op", "linear", "--type", "q99"],                "--type q99: no such type"),
        (&["op", "linear", "--rows", "513"],                "513 is not in 1..=512"),
        (&["op", "linear", "--device", "cuda:99"],          "--device cuda:99: "),
        (&["machine", "--threads", "0"],                    "0 is not in 1..=1024"),
        (&["compare", "--peer", "no/such/llama-bench"],     "--peer no/such/llama-bench: no such file"),
        (&["compare", "-m", "tests/fixtures/qwen3_5"],      "tokenizer.json: missing"),
    ] {
        let args = [&["bench"], args].concat();
        let ran = overdraft(&args);
        assert_eq!(ran.code, Some(2), "{args:?}: {}", ran.err);
        assert!(ran.err.contains(message), "{args:?}: {}", ran.err);
        assert!(ran.err.starts_with("error: ") && ran.out.is_empty(), "{args:?}: {} {}", ran.err, ran.out);
    }
}
