//! Settings that contradict the tensors, or themselves: every one is an error that names what it is about, or a model
//! that runs. Never a panic, never memory without bound.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use common::{FAMILIES, Runner, as_gguf, fixture};
use overdraft_cpu::Cpu;
use overdraft_formats::gguf::{Gguf, GgufWriter, Value};
use overdraft_formats::safetensors::SafeTensors;
use overdraft_formats::{Bytes, DType};
use overdraft_models::{Checkpoint, Decoder};
use overdraft_plan::KvType;

/// Counts what is held, so that a test can say how much a hostile file made us take.
struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: passes every call on to the system allocator unchanged; the counters are atomics.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(held, Relaxed);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The counters are the process's, so one test at a time.
static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());

fn alone() -> std::sync::MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Loads and, if that works, runs a few tokens.
fn survive(checkpoint: &Checkpoint, what: &str) -> bool {
    let before = HELD.load(Relaxed);
    PEAK.store(before, Relaxed);
    let loaded = Decoder::load(checkpoint, |_, _| {});
    let taken = PEAK.load(Relaxed) - before;
    assert!(taken < 64 << 20, "{what}: loading took {taken} bytes");
    match loaded {
        Ok(decoder) => {
            if decoder.hyper.vocab >= 16 {
                Runner::new(decoder, Box::new(Cpu::new(1)), KvType::F32, 1, 64).prefill(0, &[1, 2, 3, 15], 4);
            }
            true
        }
        Err(e) => {
            let message = e.to_string();
            assert!(message.len() > 10 && !message.contains('\0'), "{what}: {message:?}");
            false
        }
    }
}

const NUMBERS: [u64; 12] = [0, 1, 2, 3, 5, 7, 33, 255, 4097, 1 << 20, u32::MAX as u64, u64::MAX];

#[test]
fn any_value_of_any_gguf_setting_is_refused_or_runs() {
    let _guard = alone();
    let (mut ran, mut refused) = (0, 0);
    for name in FAMILIES {
        let Checkpoint::Gguf(gguf) = as_gguf(name, DType::BF16) else { unreachable!() };
        let keys: Vec<(String, Value)> = gguf.keys().map(|(k, v)| (k.to_string(), v.clone())).collect();
        for (key, value) in keys.iter().filter(|(k, _)| k != "general.architecture") {
            let mut others: Vec<Option<Value>> = NUMBERS.iter().map(|n| Some(Value::U64(*n))).collect();
            others.extend([f32::NAN, 0.0, -1.0, 1e30, f32::INFINITY, 1e-30].map(|x| Some(Value::F32(x))));
            others.extend([Value::I32(-1), Value::Bool(true), Value::from("yarn")].map(Some));
            others.push(Some(Value::from([1u32, 0, 3].as_slice())));
            others.push(None);
            if let Some(n) = value.as_int() {
                others.extend([n - 1, n + 1, n * 2].map(|n| Some(Value::I64(n as i64))));
            }
            for other in others {
                let what = format!("{name}: {key} = {other:?}");
                let changed = rewrite(&gguf, key, other);
                match Checkpoint::from_gguf_bytes(name, changed) {
                    Ok(c) => *(if survive(&c, &what) { &mut ran } else { &mut refused }) += 1,
                    Err(_) => refused += 1,
                }
            }
        }
    }
    eprintln!("{ran} ran, {refused} refused");
    assert!(ran > 100 && refused > 1000, "{ran} ran, {refused} refused: the table has lost its teeth");
}

/// The file with one key set to another value, or without it.
fn rewrite(gguf: &Gguf, key: &str, value: Option<Value>) -> Bytes {
    let mut writer = GgufWriter::new(gguf.need_str("general.architecture").unwrap());
    for (k, v) in gguf.keys() {
        if k != key {
            writer.set(k, v.clone());
        } else if let Some(v) = &value {
            writer.set(k, v.clone());
        }
    }
    for info in gguf.tensors() {
        let t = gguf.need_tensor(&info.name).unwrap();
        writer.tensor(&t.name, t.dtype, &t.shape, t.bytes);
    }
    Bytes::from_vec(writer.to_bytes().unwrap())
}

#[test]
fn a_missing_or_misshapen_tensor_is_named() {
    let _guard = alone();
    for name in FAMILIES {
        let Checkpoint::Gguf(gguf) = as_gguf(name, DType::BF16) else { unreachable!() };
        for (nth, victim) in gguf.tensors().iter().enumerate() {
            for cut in [false, true] {
                let mut writer = GgufWriter::from(&*gguf);
                for (i, info) in gguf.tensors().iter().enumerate() {
                    let t = gguf.need_tensor(&info.name).unwrap();
                    if i != nth {
                        writer.tensor(&t.name, t.dtype, &t.shape, t.bytes);
                    } else if cut {
                        // One row less.
                        let shape: Vec<usize> =
                            t.shape.iter().enumerate().map(|(d, n)| n - usize::from(d == 0)).collect();
                        let row = t.bytes.len() / t.shape[0];
                        let bytes = t.bytes.slice(0..t.bytes.len() - row).unwrap();
                        if shape[0] > 0 {
                            writer.tensor(&t.name, t.dtype, &shape, bytes);
                        }
                    }
                }
                let bytes = Bytes::from_vec(writer.to_bytes().unwrap());
                let checkpoint = Checkpoint::from_gguf_bytes(name, bytes).unwrap();
                let optional = !cut && ["output.weight", "rope_freqs.weight"].contains(&victim.name.as_str())
                    || !cut
                        && (victim.name.ends_with(".bias") && !victim.name.contains("ssm_dt")
                            || victim.name.contains("sinks"));
                match Decoder::load(&checkpoint, |_, _| {}) {
                    Ok(_) => assert!(optional, "{name} loads without {} (cut: {cut})", victim.name),
                    Err(e) => {
                        // A shorter embedding is noticed at the head, a shorter post norm under either name.
                        let stem = victim.name.trim_end_matches(".weight").rsplit('.').next().unwrap();
                        let said = e.to_string();
                        let named =
                            said.contains(stem) || stem == "token_embd" || stem == "post_attention_norm";
                        assert!(
                            named,
                            "{name}: {} gone (cut: {cut}), but the message is {said}",
                            victim.name
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn any_value_of_any_config_setting_is_refused_or_runs() {
    let _guard = alone();
    let scratch = std::env::temp_dir().join(format!("overdraft-hostile-{}", std::process::id()));
    for name in FAMILIES {
        let folder = scratch.join(name);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::copy(fixture(name).join("model.safetensors"), folder.join("model.safetensors")).unwrap();
        assert!(SafeTensors::open(&folder).is_ok());
        let text = std::fs::read_to_string(fixture(name).join("config.json")).unwrap();
        let config: serde_json::Value = serde_json::from_str(&text).unwrap();
        for path in paths(&config) {
            let values = [
                "null",
                "0",
                "1",
                "-1",
                "3",
                "65",
                "1e300",
                "4294967296",
                "true",
                "\"x\"",
                "[]",
                "[1,2]",
                "{}",
            ];
            for value in values {
                let mut changed = config.clone();
                *changed.pointer_mut(&path).unwrap() = serde_json::from_str(value).unwrap();
                std::fs::write(folder.join("config.json"), changed.to_string()).unwrap();
                let what = format!("{name}: {path} = {value}");
                if let Ok(c) = Checkpoint::open(&folder) {
                    survive(&c, &what);
                }
            }
        }
    }
    std::fs::remove_dir_all(&scratch).unwrap();
}

/// Every place in a JSON document, as pointers.
fn paths(value: &serde_json::Value) -> Vec<String> {
    let mut out = Vec::new();
    let mut visit = vec![(String::new(), value)];
    while let Some((path, value)) = visit.pop() {
        match value {
            serde_json::Value::Object(map) => {
                visit.extend(map.iter().map(|(k, v)| (format!("{path}/{k}"), v)));
            }
            serde_json::Value::Array(list) => {
                visit.extend(list.iter().enumerate().map(|(i, v)| (format!("{path}/{i}"), v)));
            }
            _ => {}
        }
        if !path.is_empty() {
            out.push(path);
        }
    }
    out
}
