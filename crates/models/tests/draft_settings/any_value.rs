//! Any value anywhere in a draft's settings is refused in words or read; never a panic.

use overdraft_formats::Bytes;
use overdraft_formats::gguf::{Gguf, GgufWriter, Value};
use overdraft_models::draft::DraftSettings;
use overdraft_models::{Checkpoint, ModelError};
use serde_json::Value as Json;

use super::configs::{Folder, gpt_oss, rev_a, rev_b, same, speculators};
use super::demo;
use super::dialects::{ARCHES, small_gguf};

/// Refused in words, or taken with numbers that can be trusted.
fn survives(result: Result<DraftSettings, ModelError>, what: &str) -> bool {
    match result {
        Ok(draft) => {
            assert!((1..=16).contains(&draft.n_drafts()), "{what}");
            assert!(!draft.describe().is_empty() && draft.eps > 0.0 && draft.rope_theta > 0.0, "{what}");
            true
        }
        Err(e) => {
            let said = e.to_string();
            assert!(said.len() > 10 && !said.contains(['\0', '\u{1b}']), "{what}: {said:?}");
            false
        }
    }
}

#[test]
fn any_value_of_any_gguf_key_is_refused_or_read() {
    let (mut read, mut refused) = (0, 0);
    for arch in ARCHES {
        let small = small_gguf(arch);
        for (key, _) in &small.keys {
            let mut values: Vec<Value> =
                [0u64, 1, 2, 255, 4097, u64::from(u32::MAX), u64::MAX].map(Value::U64).into();
            values.extend([f32::NAN, -1.0, 1e30, f32::INFINITY, 1e-45].map(Value::F32));
            values.extend([Value::I32(-1), true.into(), "\u{1b}[2J".into(), Value::strings(["a", "b"])]);
            values.extend([[0u32].as_slice(), &[1, 0, 3], &[u32::MAX; 3], &[]].map(Value::from));
            for value in values {
                let what = format!("{key} = {value}");
                *(if survives(small.clone().set(key, value).read(), &what) {
                    &mut read
                } else {
                    &mut refused
                }) += 1;
            }
            survives(small.clone().unset(key).read(), key);
        }
        for (name, shape) in &small.tensors {
            assert!(!survives(small.clone().without(name).read(), name), "{name} is needed");
            let cut: Vec<usize> = shape.iter().enumerate().map(|(d, n)| n - usize::from(d == 0)).collect();
            assert!(!survives(small.clone().tensor(name, &cut).read(), name), "{name} is cut");
        }
    }
    assert!(read > 50 && refused > 500, "{read} read, {refused} refused: the table has lost its teeth");
}

#[test]
fn any_value_of_any_config_setting_is_refused_or_read() {
    let (mut read, mut refused) = (0, 0);
    for (label, config) in [("a", rev_a()), ("b", rev_b()), ("oss", gpt_oss()), ("spec", speculators())] {
        let folder = Folder::new(&format!("mutated-{label}"), &config, same);
        for path in paths(&config) {
            let values = [
                "null",
                "0",
                "1",
                "-1",
                "3",
                "1e300",
                "-1e-300",
                "4294967296",
                "18446744073709551615",
                "true",
                "\"\\u001b[2J\"",
                "[]",
                "[1,2]",
                "[\"x\"]",
                "{}",
            ];
            for value in values {
                let mut changed = config.clone();
                *changed.pointer_mut(&path).unwrap() = serde_json::from_str(value).unwrap();
                std::fs::write(folder.0.join("config.json"), changed.to_string()).unwrap();
                let what = format!("{label}: {path} = {value}");
                *(if survives(folder.read(), &what) { &mut read } else { &mut refused }) += 1;
            }
        }
    }
    assert!(read > 100 && refused > 500, "{read} read, {refused} refused: the table has lost its teeth");
}

/// Every place in a JSON document, as pointers.
fn paths(value: &Json) -> Vec<String> {
    let mut out = Vec::new();
    let mut visit = vec![(String::new(), value)];
    while let Some((path, value)) = visit.pop() {
        match value {
            Json::Object(map) => visit.extend(map.iter().map(|(k, v)| (format!("{path}/{k}"), v))),
            Json::Array(list) => {
                visit.extend(list.iter().enumerate().map(|(i, v)| (format!("{path}/{i}"), v)))
            }
            _ => {}
        }
        if !path.is_empty() {
            out.push(path);
        }
    }
    out
}

#[test]
fn the_demo_draft_survives_any_value_of_any_of_its_keys() {
    let Checkpoint::Gguf(gguf) = demo("pycoder-dflash-q8_0.gguf") else { unreachable!() };
    let draft_keys: Vec<String> =
        gguf.keys().map(|(k, _)| k.to_string()).filter(|k| k.starts_with("dflash.")).collect();
    assert!(draft_keys.len() > 10);
    for key in draft_keys {
        for value in [Value::U64(0), Value::U64(u64::MAX), Value::I32(-1), "x".into()] {
            let what = format!("{key} = {value}");
            let changed = Checkpoint::from_gguf_bytes("demo", rewrite(&gguf, &key, value)).unwrap();
            survives(DraftSettings::read(&changed), &what);
        }
    }
}

/// The file's keys with one changed, and its tensors.
fn rewrite(gguf: &Gguf, key: &str, value: Value) -> Bytes {
    let mut writer = GgufWriter::new(gguf.need_str("general.architecture").unwrap());
    for (k, v) in gguf.keys() {
        writer.set(k, if k == key { value.clone() } else { v.clone() });
    }
    for info in gguf.tensors() {
        let t = gguf.need_tensor(&info.name).unwrap();
        writer.tensor(&t.name, t.dtype, &t.shape, t.bytes);
    }
    Bytes::from_vec(writer.to_bytes().unwrap())
}
