//! Whatever is wrong: one line that says so, exit code 2, and nothing on standard output.

mod common;

use common::{TempFile, overdraft, overdraft_with};
use overdraft_formats::gguf::{Gguf, GgufWriter, Value};

#[track_caller]
fn refuse(args: &[&str], message: &str) {
    refuse_with(args, b"", message);
}

#[track_caller]
fn refuse_with(args: &[&str], stdin: &[u8], message: &str) {
    let ran = overdraft_with(args, stdin);
    assert_eq!(ran.code, Some(2), "{args:?}: {}", ran.err);
    assert!(ran.err.contains(message), "{args:?}: {}", ran.err);
    assert_eq!(ran.out, "", "{args:?}");
    let lines: Vec<&str> = ran.err.lines().collect();
    assert!(lines[0].starts_with("error: "), "{args:?}: {}", ran.err);
    assert!(
        lines.len() == 1 || (lines.len() == 2 && lines[1].starts_with("hint: ")),
        "{args:?}: {}",
        ran.err
    );
}

#[test]
#[rustfmt::skip]
fn wrong_flags_are_refused_by_name() {
    let m = ["-m", "models/pycoder-q4_k_m.gguf"];
    for (flags, message) in [
        (&["--bogus"][..],                      "--bogus"),
        (&["--temprature", "1"],                "a similar argument exists: '--temperature'"),
        (&["--temperature", "-1"],              "--temperature -1: must be between 0"),
        (&["--temperature", "nan"],             "'nan' for '--temperature <T>': not a finite number"),
        (&["--temperature", "1e9"],             "--temperature 1000000000: must be between 0"),
        (&["--top-p", "inf"],                   "not a finite number"),
        (&["--top-p", "1.5"],                   "--top-p 1.5: must be between 0 and 1"),
        (&["--min-p", "-0.1"],                  "--min-p -0.1: must be between 0"),
        (&["--top-k", "-1"],                    "'-1' for '--top-k <K>'"),
        (&["--repetition-penalty", "0"],        "--repetition-penalty 0: must be between 0.01"),
        (&["--frequency-penalty", "1000"],      "--frequency-penalty 1000: must be between"),
        (&["--logit-bias", "1"],                "expected ID=VALUE"),
        (&["--logit-bias", "99999=1"],          "token id 99999 is outside the vocabulary of 8192"),
        (&["--stop-id", "8192"],                "--stop-id 8192: the vocabulary has 8192 tokens"),
        (&["--stop", ""],                       "--stop"),
        (&["--seed", "-3"],                     "--seed"),
        (&["-n", "0"],                          "--max-tokens <N>': 0 is not in 1.."),
        (&["-n", "-4"],                         "--max-tokens"),
        (&["-n", "99999999999999999999"],       "--max-tokens"),
        (&["--ctx", "0"],                       "0 is not in 2..=16777216"),
        (&["--ctx", "-1"],                      "-1 is not in 2..=16777216"),
        (&["--ctx", "99999999999"],             "--ctx"),
        (&["--threads", "0"],                   "0 is not in 1..=1024"),
        (&["--threads", "many"],                "--threads"),
        (&["--device", "cuda:99"],              "--device cuda:99: there is no CUDA d"),
        (&["--device", "abacus"],               "--device"),
        (&["--device", "cpu-reference", "--threads", "2"], "cpu-reference computes on one thread"),
        (&["--kv", "q4"],                       "--kv"),
        (&["-d", "x.gguf"],                     "x.gguf: No such file"),
        (&["-d", "README.md"],                  "not a GGUF file"),
        (&["-d", "models/pycoder-q4_k_m.gguf"], "this is not a DFlash draft but a target (qwen35)"),
        (&["-d", "tests/fixtures/qwen3_dflash"], "its hidden size is 128, the target's 512"),
        (&["--budget", "-1"],                   "-1 is not in 0..=4294967295"),
        (&["--budget", "99999999999"],          "--budget"),
        (&["--draft-mode", "sideways"],         "[possible values: auto, off, chain, tree]"),
        (&["--draft-window", "63"],             "63 is not in 64..=16777216"),
        (&["--no-chat", "--system", "x"],       "cannot be used with"),
        (&["--file", "x"],                      "cannot be used with"),
    ] {
        refuse(&[&["run", "hi"], &m[..], flags].concat(), message);
    }
}

#[test]
#[rustfmt::skip]
fn drafts_of_another_target_are_refused_with_the_reason() {
    let bytes = std::fs::read(common::root().join("models/pycoder-dflash-q8_0.gguf")).unwrap();
    let gguf = Gguf::from_bytes("draft", overdraft_formats::Bytes::from_vec(bytes)).unwrap();
    for (key, value, message) in [
        ("dflash.vocab_size",            Value::from(9000u32),              "its vocabulary has 9000 tokens, the target's 8192"),
        ("dflash.vocab_size",            Value::from(64u32),                "its vocabulary has 64 tokens, the target's 8192"),
        ("tokenizer.ggml.mask_token_id", Value::from(8192u32),              "mask"),
        ("dflash.target_layers",         Value::from(&[2u32, 6, 99][..]),   "layer 98"),
        ("dflash.block_size",            Value::from(1u32),                 "block size"),
        ("dflash.block_size",            Value::from(65u32),                "block size"),
    ] {
        let mut writer = GgufWriter::from(&gguf);
        writer.set(key, value);
        for info in gguf.tensors() {
            let tensor = gguf.need_tensor(&info.name).unwrap();
            writer.tensor(&tensor.name, tensor.dtype, &tensor.shape, tensor.bytes);
        }
        let file = TempFile::new("misfit.gguf", &writer.to_bytes().unwrap());
        refuse(&["run", "hi", "-m", "models/pycoder-q4_k_m.gguf", "-d", file.path()], message);
    }
}

#[test]
#[rustfmt::skip]
fn wrong_files_are_refused_by_name() {
    let empty = TempFile::new("empty.gguf", b"");
    let noise = TempFile::new("noise.gguf", &[7; 4096]);
    let cut = TempFile::new("cut.gguf", &std::fs::read(common::root().join("models/pycoder-q4_k_m.gguf")).unwrap()[..1_000_000]);
    let unknown = TempFile::new("unknown.gguf", &GgufWriter::new("mamba7").to_bytes().unwrap());
    for (file, message) in [
        ("no/such.gguf",                   "no/such.gguf: No such file"),
        ("crates",                         "holds neither config.json nor a .gguf file"),
        ("models",                         "holds several models; name one of"),
        ("Cargo.toml",                     "Cargo.toml"),
        (empty.path(),                     "empty"),
        (noise.path(),                     noise.path()),
        (cut.path(),                       cut.path()),
        (unknown.path(),                   "architecture `mamba7` is not one this build has; it has llama, qwen2"),
        ("models/pycoder-dflash-q8_0.gguf", "this is a draft model (DFlash), not a target"),
        ("tests/fixtures/qwen3_5_dflash",  "this is a draft model (DFlash), not a target"),
        ("tests/fixtures/qwen3_5",         "tokenizer.json: missing"),
    ] {
        for command in [&["run", "hi"][..], &["chat"]] {
            refuse(&[command, &["-m", file]].concat(), message);
        }
    }
    refuse(&["inspect", "no/such.gguf"], "no/such.gguf: No such file");
    refuse(&["inspect", noise.path()], noise.path());
    refuse(&["inspect", cut.path()], cut.path());
}

#[test]
#[rustfmt::skip]
fn wrong_prompts_are_refused() {
    let model = ["-m", "models/pycoder-q4_k_m.gguf"];
    let binary = TempFile::new("binary.txt", b"ab\xff");
    let long = "word ".repeat(50);
    for (flags, stdin, message) in [
        (&[""][..],                          &b""[..],  "the prompt is empty"),
        (&["-"],                             b"",       "the prompt is empty"),
        (&[],                                b"",       "the prompt is empty"),
        (&["", "--chat"],                    b"",       "the prompt is empty"),
        (&["-"],                             b"a\xc3",  "standard input: not UTF-8 text at byte 1 (0xc3)"),
        (&["--file", binary.path()],         b"",       "not UTF-8 text at byte 2 (0xff)"),
        (&["--file", "no/such.txt"],         b"",       "no/such.txt: No such file"),
        (&["--file", "crates"],              b"",       "crates: is a folder"),
        (&[long.as_str(), "--ctx", "16"],    b"",       "the context holds 16; shorten the prompt or raise --ctx"),
        (&["hi there you", "--ctx", "2"],    b"",       "the context holds 2"),
    ] {
        refuse_with(&[&["run"], &model[..], flags].concat(), stdin, message);
    }
}

#[test]
fn a_model_without_a_chat_template_cannot_chat() {
    let bytes = std::fs::read(common::root().join("models/pycoder-q4_k_m.gguf")).unwrap();
    let gguf = Gguf::from_bytes("demo", overdraft_formats::Bytes::from_vec(bytes)).unwrap();
    let mut writer = GgufWriter::new("qwen35");
    for (key, value) in gguf.keys().filter(|(key, _)| *key != "tokenizer.chat_template") {
        writer.set(key, value.clone());
    }
    let embedding = gguf.need_tensor("token_embd.weight").unwrap();
    writer.tensor(&embedding.name, embedding.dtype, &embedding.shape, embedding.bytes);
    let file = TempFile::new("mute.gguf", &writer.to_bytes().unwrap());
    refuse(&["chat", "-m", file.path()], "this model has no chat template");
    refuse(&["run", "hi", "--chat", "-m", file.path()], "this model has no chat template");
    // Without --chat it gets as far as its tensors, of which it has only the embedding.
    refuse(&["run", "hi", "-m", file.path()], "tensor `output_norm.weight` is missing");
}

#[test]
fn what_memory_cannot_hold_is_refused_with_what_would_fit() {
    let limit = 90 << 30;
    if overdraft_engine::available_memory().is_none_or(|n| n > limit) {
        // 96 GiB of keys and values would fit here.
        return;
    }
    let args = ["run", "hi", "-m", "models/pycoder-q4_k_m.gguf", "--ctx", "16777216", "--kv", "f32"];
    let ran = overdraft(&args);
    assert_eq!(ran.code, Some(2), "{}", ran.err);
    for part in ["of memory are needed", "are available", "would fit"] {
        assert!(ran.err.contains(part), "{}", ran.err);
    }
}

#[cfg(not(feature = "demo"))]
#[test]
fn a_build_without_the_demo_model_asks_for_one() {
    for args in [&["run", "hi"][..], &["chat"], &["inspect"]] {
        refuse(args, "no model given, and this build has no demo model inside");
    }
}

#[test]
fn help_and_version_are_no_errors() {
    for args in [&["--help"][..], &["--version"], &["run", "--help"], &["chat", "-h"], &["inspect", "--help"]]
    {
        assert!(!overdraft(args).ok().out.is_empty(), "{args:?}");
    }
    assert_eq!(overdraft(&[]).code, Some(2));
}
