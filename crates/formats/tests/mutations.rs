//! Thousands of damaged files: each must be read or refused without a panic, at once, and within a fixed amount of
//! memory above its own size.

mod exercise;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::{Duration, Instant};

use overdraft_formats::{DType, Result};

/// Counts what the current thread holds, so that tests may run side by side.
struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(change: isize) {
    // The thread may be past its locals when it frees the last of its memory.
    let _ = HELD.try_with(|held| {
        held.set(held.get() + change);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(held.get())));
    });
}

// SAFETY: every call goes to `System` as it came; counting neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: `ptr` came from `System.alloc` above with this `layout`, as the caller promises.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const ALLOWED_ABOVE_SIZE: usize = 64 << 20;
/// A hang, not a slow machine: the largest files below take 0.7 s, and took 2.7 s on two cores shared by eight jobs.
const ALLOWED_TIME: Duration = Duration::from_secs(20);

/// Reads `bytes` and holds the cost against the limits.
#[track_caller]
fn measured(read: fn(&[u8]) -> Result<usize>, bytes: &[u8], case: &dyn std::fmt::Display) -> Result<usize> {
    let before = HELD.get();
    PEAK.set(before);
    let start = Instant::now();
    let result = read(bytes);
    let (time, extra) = (start.elapsed(), (PEAK.get() - before) as usize);
    assert!(extra <= ALLOWED_ABOVE_SIZE + bytes.len(), "{case}: {extra} bytes for a file of {}", bytes.len());
    assert!(time <= ALLOWED_TIME, "{case}: took {time:?}");
    result
}

/// Numbers from a fixed seed.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % n.max(1)
    }
}

fn truncations(file: &[u8], read: fn(&[u8]) -> Result<usize>) {
    for n in 0..file.len() {
        let _ = measured(read, &file[..n], &format_args!("cut to {n} bytes"));
    }
}

/// Every bit of the header and one of each byte of data.
fn bit_flips(file: &[u8], header: usize, read: fn(&[u8]) -> Result<usize>) {
    let mut file = file.to_vec();
    for at in 0..file.len() {
        for bit in if at < header { 0..8 } else { 7..8 } {
            file[at] ^= 1 << bit;
            let _ = measured(read, &file, &format_args!("bit {bit} of byte {at} flipped"));
            file[at] ^= 1 << bit;
        }
    }
}

/// Every field, wherever it lies, set to the values that break arithmetic. Fields are not all aligned, so every
/// offset of the header is taken for one.
fn extreme_fields(file: &[u8], header: usize, read: fn(&[u8]) -> Result<usize>) {
    for width in [4, 8] {
        for at in 0..=header - width {
            let mut old = [0; 8];
            old[..width].copy_from_slice(&file[at..at + width]);
            let old = u64::from_le_bytes(old);
            let half = 1u64 << (8 * width - 1);
            for new in [0, 1, u64::MAX, half, half - 1, old.wrapping_add(1), old.wrapping_sub(1)] {
                let mut changed = file.to_vec();
                changed[at..at + width].copy_from_slice(&new.to_le_bytes()[..width]);
                let _ = measured(read, &changed, &format_args!("u{} at byte {at} = {new}", 8 * width));
            }
        }
    }
}

/// Pieces moved, repeated, removed or overwritten, up to four times.
fn splices(file: &[u8], n: usize, words: &[&[u8]], read: fn(&[u8]) -> Result<usize>) {
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    for round in 0..n {
        let mut changed = file.to_vec();
        for _ in 0..=random.below(4) {
            let from = random.below(changed.len());
            let to = (from + random.below(64)).min(changed.len());
            let at = random.below(changed.len());
            let piece = match words.get(random.below(2 * words.len() + 1)) {
                Some(word) => word.to_vec(),
                None => changed[from..to].to_vec(),
            };
            match random.below(4) {
                0 => drop(changed.splice(at..at, piece)),
                1 => drop(changed.drain(from..to)),
                2 => drop(changed.splice(from..to, piece)),
                _ => {
                    let end = (at + piece.len()).min(changed.len());
                    changed[at..end].copy_from_slice(&piece[..end - at]);
                }
            }
        }
        let _ = measured(read, &changed, &format_args!("splice {round}"));
    }
}

const JSON_WORDS: [&[u8]; 14] = [
    b"{",
    b"}",
    b"[",
    b"]",
    b"\"",
    b",",
    b":",
    b"-1",
    b"18446744073709551615",
    b"1e308",
    b"null",
    b"\\ud800",
    b"\"__metadata__\"",
    b"[[[[[[[[[[[[[[[[",
];

#[test]
fn the_samples_are_read_whole() {
    assert_eq!(exercise::gguf(&exercise::sample_gguf()).unwrap(), 17, "every type but the integers decodes");
    assert_eq!(exercise::safetensors(&exercise::sample_safetensors()).unwrap(), 4);
    exercise::hf_config(exercise::SAMPLE_CONFIG).unwrap();
}

/// Bytes before the data section of the sample.
fn gguf_header(file: &[u8]) -> usize {
    let types = DType::all().filter(|d| d.ggml_id().is_some());
    file.len() - types.map(|d| d.block_bytes().next_multiple_of(32)).sum::<usize>()
}

#[test]
fn a_truncated_or_flipped_gguf_is_read_or_refused() {
    let file = exercise::sample_gguf();
    truncations(&file, exercise::gguf);
    bit_flips(&file, gguf_header(&file), exercise::gguf);
}

#[test]
fn a_gguf_with_extreme_fields_is_read_or_refused() {
    let file = exercise::sample_gguf();
    extreme_fields(&file, gguf_header(&file), exercise::gguf);
}

#[test]
fn a_spliced_gguf_is_read_or_refused() {
    let words: Vec<Vec<u8>> =
        [0u64, 1, 9, 32, u64::MAX, 1 << 61, 1 << 63].map(|v| v.to_le_bytes().to_vec()).into();
    let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
    splices(&exercise::sample_gguf(), 30_000, &words, exercise::gguf);
}

#[test]
fn a_damaged_safetensors_is_read_or_refused() {
    let file = exercise::sample_safetensors();
    truncations(&file, exercise::safetensors);
    bit_flips(&file, file.len(), exercise::safetensors);
    extreme_fields(&file, file.len(), exercise::safetensors);
    splices(&file, 30_000, &JSON_WORDS, exercise::safetensors);
}

#[test]
fn a_damaged_config_is_read_or_refused() {
    truncations(exercise::SAMPLE_CONFIG, exercise::hf_config);
    bit_flips(exercise::SAMPLE_CONFIG, exercise::SAMPLE_CONFIG.len(), exercise::hf_config);
    splices(exercise::SAMPLE_CONFIG, 30_000, &JSON_WORDS, exercise::hf_config);
}

#[test]
fn the_most_entries_a_gguf_may_have_stay_within_the_memory_limit() {
    const N: u64 = 1 << 16;
    let mut file = b"GGUF\x03\0\0\0".to_vec();
    file.extend([N, N].iter().flat_map(|n| n.to_le_bytes()));
    for i in 0..N {
        let key = format!("{i:x}");
        file.extend((key.len() as u64).to_le_bytes().iter().chain(key.as_bytes()).chain(&[0, 0, 0, 0, 1]));
    }
    for i in 0..N {
        let name = format!("{i:x}");
        file.extend((name.len() as u64).to_le_bytes().iter().chain(name.as_bytes()));
        // A type nobody knows, so that even its description is made.
        file.extend(0u32.to_le_bytes().iter().chain(&99u32.to_le_bytes()).chain(&0u64.to_le_bytes()));
    }
    file.resize(file.len().next_multiple_of(32), 0);
    let decoded = measured(exercise::gguf, &file, &format_args!("{N} keys and tensors"));
    assert_eq!(decoded.unwrap(), 0);
}

#[test]
fn the_most_entries_a_safetensors_may_have_stay_within_the_memory_limit() {
    for (n, fits) in [(1 << 17, true), ((1 << 17) + 1, false)] {
        let mut json = String::from("{");
        for i in 0..n {
            json.push_str(&format!("\"{i:x}\":{{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}},"));
        }
        json.pop();
        json.push('}');
        let file = [&(json.len() as u64).to_le_bytes()[..], json.as_bytes()].concat();
        let read = measured(exercise::safetensors, &file, &format_args!("{n} tensors"));
        assert_eq!(read.is_ok(), fits);
    }
}

#[test]
fn long_headers_of_nothing_stay_within_the_memory_limit() {
    for piece in ["[", "{\"a\":", "1,", "\"a\":1,", "\\u0041"] {
        for front in [
            "{",
            "{\"__metadata__\":{",
            "{\"a\":{\"x\":",
            "{\"a\":{\"shape\":[",
            "{\"a",
            "{\"a\":{\"dtype\":\"",
        ] {
            let json = format!("{front}{}", piece.repeat((4 << 20) / piece.len()));
            let file = [&(json.len() as u64).to_le_bytes()[..], json.as_bytes()].concat();
            let case = format!("{front} and then {piece} over and over");
            assert!(measured(exercise::safetensors, &file, &case).is_err(), "{case}");
            assert!(measured(exercise::hf_config, json.as_bytes(), &case).is_err(), "{case}");
        }
    }
}
