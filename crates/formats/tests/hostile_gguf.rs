//! GGUF files that broke other readers, one row for each root cause: all must be errors that name the trouble.

mod exercise;

/// A file written field by field, so that every field can lie.
#[derive(Clone)]
struct Raw(Vec<u8>);

impl Raw {
    fn new(version: u32, n_tensors: u64, n_keys: u64) -> Self {
        Self(b"GGUF".to_vec()).u32(version).u64(n_tensors).u64(n_keys)
    }

    fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn u32(self, v: u32) -> Self {
        self.bytes(&v.to_le_bytes())
    }

    fn u64(self, v: u64) -> Self {
        self.bytes(&v.to_le_bytes())
    }

    fn string(self, s: &str) -> Self {
        self.u64(s.len() as u64).bytes(s.as_bytes())
    }

    /// A key with value type `kind` and the value's raw bytes.
    fn key(self, key: &str, kind: u32, value: &[u8]) -> Self {
        self.string(key).u32(kind).bytes(value)
    }

    fn tensor(self, name: &str, ne: &[u64], kind: u32, offset: u64) -> Self {
        let raw = self.string(name).u32(ne.len() as u32);
        ne.iter().fold(raw, |raw, &ne| raw.u64(ne)).u32(kind).u64(offset)
    }

    /// Padding and `n` bytes of data.
    fn data(mut self, n: usize) -> Self {
        self.0.resize(self.0.len().next_multiple_of(32) + n, 0);
        self
    }
}

/// One key of the given type and bytes, plenty of room behind.
fn keyed(kind: u32, value: &[u8]) -> Raw {
    Raw::new(3, 0, 1).key("k", kind, value).data(256)
}

/// One tensor and 64 bytes of data.
fn tensor(ne: &[u64], kind: u32, offset: u64) -> Raw {
    Raw::new(3, 1, 0).tensor("t", ne, kind, offset).data(64)
}

fn aligned(kind: u32, value: &[u8]) -> Raw {
    Raw::new(3, 1, 1).key("general.alignment", kind, value).tensor("t", &[8], F32, 0).data(64)
}

const F32: u32 = 0;
const Q4_K: u32 = 12;
const IQ2_XS: u32 = 17;
const F64: u32 = 28;
const U32: u32 = 4;
const STRING: u32 = 8;
const ARRAY: u32 = 9;
const MAX: u64 = u64::MAX;
const HUGE: u64 = 1 << 61;

fn array(kind: u32, count: u64) -> Vec<u8> {
    Raw(Vec::new()).u32(kind).u64(count).0
}

#[track_caller]
fn refused(file: Raw, said: &str) {
    let error = exercise::gguf(&file.0).expect_err("the file should be refused").to_string();
    assert!(error.starts_with("hostile.gguf: ") && error.contains(said), "{error}\nshould say\n{said}");
}

#[test]
fn the_rows_below_are_refused_for_their_one_flaw() {
    exercise::gguf(&tensor(&[16], F32, 0).0).unwrap();
    exercise::gguf(&keyed(U32, &[1, 0, 0, 0]).0).unwrap();
    exercise::gguf(&aligned(U32, &32u32.to_le_bytes()).0).unwrap();
}

#[test]
#[rustfmt::skip]
fn sizes_that_wrap_are_refused() {
    // CVE-2024-21802, CVE-2025-53630, CVE-2026-27940, CVE-2026-33298
    refused(tensor(&[1 << 32, 1 << 32], F32, 0),           "more elements than fit 63 bits");
    refused(tensor(&[1 << 16; 4], F32, 0),                 "more elements than fit 63 bits");
    refused(tensor(&[1 << 62], F64, 0),                    "overflows");
    refused(tensor(&[1 << 62], F32, 0),                    "overflows");
    refused(tensor(&[(1 << 61) + 1, 2, 2, 2], F32, 0),     "more elements than fit 63 bits");
    // llama.cpp #27203
    refused(tensor(&[i64::MAX as u64, 2], F32, 0),         "more elements than fit 63 bits");
    // padding that wraps, PR 26318
    refused(tensor(&[8], F32, MAX - 31),                   "reach past the data section");
    refused(aligned(10, &(1u64 << 63).to_le_bytes()),      "the file ends before it");
    refused(aligned(U32, &(1u32 << 31).to_le_bytes()),     "the file ends before it");
}

#[test]
#[rustfmt::skip]
fn counts_beyond_the_file_are_refused() {
    // CVE-2024-21836, CVE-2024-23605, llama.cpp #15711
    for n in [MAX, 1 << 63, HUGE, 1 << 32, 65_537] {
        refused(Raw::new(3, n, 0).data(64),                "tensor count");
        refused(Raw::new(3, 0, n).data(64),                "key count");
    }
    refused(Raw::new(3, 4, 0).data(64),                    "tensor count: 4 of them take at least 25 bytes each");
    refused(Raw::new(3, 0, 8).data(64),                    "key count: 8 of them take at least 14 bytes each");
}

#[test]
#[rustfmt::skip]
fn lengths_beyond_the_file_are_refused() {
    // CVE-2024-23496, CVE-2024-21825, CVE-2025-0315
    for n in [MAX, 1 << 63, HUGE, 1 << 40, 1000] {
        refused(Raw::new(3, 0, 1).u64(n).data(64),         "name of key 0");
        refused(Raw::new(3, 1, 0).u64(n).data(64),         "name of tensor 0");
        refused(keyed(STRING, &n.to_le_bytes()),           "key `k`: needs");
        refused(keyed(ARRAY, &array(0, n)),                "key `k`");
        refused(keyed(ARRAY, &array(12, n)),               "key `k`"); // 8 · 2^61 wraps to 0
        refused(keyed(ARRAY, &array(STRING, n)),           "key `k`");
    }
    let second = Raw(array(STRING, 2)).string("fine").u64(MAX).0;
    refused(keyed(ARRAY, &second),                         "key `k`: needs 18446744073709551615 bytes");
}

#[test]
#[rustfmt::skip]
fn data_beyond_the_file_is_refused() {
    // CVE-2026-7482 read the heap this way
    refused(tensor(&[17], F32, 0),                         "68 bytes at offset 0 reach past the data section of 64 bytes");
    refused(tensor(&[16], F32, 32),                        "reach past the data section");
    refused(tensor(&[1], F32, 64),                         "reach past the data section");
    refused(tensor(&[1], 99, 96),                          "reach past the data section");
    refused(tensor(&[256], IQ2_XS, 0),                     "74 bytes at offset 0 reach past");
    refused(Raw::new(3, 1, 0).tensor("t", &[1], F32, 0),   "the file ends before it");
}

#[test]
#[rustfmt::skip]
fn zeros_and_negatives_that_would_divide_or_wrap_are_refused() {
    // llama.cpp PR 24263, GO-2025-3559, GO-2025-3689
    refused(tensor(&[0], F32, 0),                          "a dimension of 0");
    refused(tensor(&[8, 0], F32, 0),                       "a dimension of 0");
    refused(tensor(&[MAX], F32, 0),                        "a dimension of -1");
    refused(tensor(&[1 << 63], F32, 0),                    "a dimension of -9223372036854775808");
    refused(aligned(U32, &[0; 4]),                         "u32 0 is not a power of two");
    refused(aligned(U32, &24u32.to_le_bytes()),            "u32 24 is not a power of two");
    refused(aligned(5, &(-32i32).to_le_bytes()),           "i32 -32 is not a power of two");
    refused(aligned(6, &32f32.to_le_bytes()),              "f32 32 is not a power of two");
}

#[test]
#[rustfmt::skip]
fn values_and_names_out_of_order_are_refused() {
    // llama.cpp PR 26318, PR 24263, PR 19856
    refused(keyed(13, &[0; 8]),                            "key `k`: value type 13 does not exist");
    refused(keyed(u32::MAX, &[0; 8]),                      "value type 4294967295 does not exist");
    refused(keyed(ARRAY, &array(13, 1)),                   "value type 13 does not exist");
    refused(keyed(ARRAY, &array(ARRAY, 1)),                "arrays of arrays are not allowed");
    refused(keyed(7, &[2]),                                "bool 2 is neither 0 nor 1");
    refused(keyed(ARRAY, &[&array(7, 2)[..], &[1, 9]].concat()), "bool 9 is neither 0 nor 1");
    refused(Raw::new(3, 0, 1).key("", U32, &[0; 4]),       "name of key 0: empty");
    refused(Raw::new(3, 0, 2).key("k", U32, &[0; 4]).key("k", 0, &[0]).data(9), "key `k`: occurs twice");
    refused(Raw::new(3, 0, 1).u64(2).bytes(&[0xC3, 0x28]).u32(0).bytes(&[0]).data(9), "name of key 0: not UTF-8");
    refused(Raw::new(3, 0, 1).key(&"k".repeat(65_536), 0, &[0]), "65536 bytes long");
    refused(Raw::new(3, 0, 1).key("split.count", STRING, &0u64.to_le_bytes()), "key `split.count`: is string");
}

#[test]
#[rustfmt::skip]
fn tensors_out_of_order_are_refused() {
    let two = |a: u64, b: u64, names: [&str; 2]| {
        Raw::new(3, 2, 0).tensor(names[0], &[16], F32, a).tensor(names[1], &[16], F32, b).data(256)
    };
    refused(two(0, 64, ["t", "t"]),                        "tensor `t`: occurs twice");
    refused(two(0, 32, ["a", "b"]),                        "tensor `b`: bytes 32..96 overlap bytes 0..64 of tensor `a`");
    refused(two(64, 64, ["a", "b"]),                       "overlap");
    refused(two(0, 68, ["a", "b"]),                        "offset 68 is not a multiple of the alignment 32");
    refused(two(0, 64, ["a", ""]),                         "name of tensor 1: empty");
    refused(two(0, 64, ["a", &"n".repeat(64)]),            "64 bytes long; at most 63");
    refused(Raw::new(3, 1, 0).u64(1).bytes(&[0xFF]).u32(0).u32(0).u64(0).data(32), "name of tensor 0: not UTF-8");
    refused(tensor(&[1; 5], F32, 0),                       "5 dimensions; at most 4");
    refused(Raw::new(3, 1, 0).string("t").u32(u32::MAX).data(64), "4294967295 dimensions");
    // rows that are not whole blocks, vLLM #44971
    refused(tensor(&[255], Q4_K, 0),                       "rows of 255 elements are not whole blocks of 256 of Q4_K");
    refused(tensor(&[128, 2], Q4_K, 0),                    "rows of 128 elements");
    refused(tensor(&[128, 2], IQ2_XS, 0),                  "blocks of 256 of IQ2_XS (ggml type 17)");
    refused(tensor(&[], 8, 0),                             "rows of 1 elements are not whole blocks of 32 of Q8_0");
}

#[test]
#[rustfmt::skip]
fn other_headers_are_refused() {
    refused(Raw(Vec::new()),                               "magic: needs 4 bytes");
    refused(Raw(b"GGU".to_vec()),                          "magic: needs 4 bytes");
    refused(Raw(b"GGML\x03\0\0\0".to_vec()).data(64),      "magic: `GGML` instead of `GGUF`");
    refused(Raw(b"\x1b[2J\x03\0\0\0".to_vec()).data(64),   "magic: `\\x1b[2J` instead of `GGUF`");
    refused(Raw::new(1, 0, 0),                             "version 1 is too old");
    refused(Raw::new(0, 0, 0),                             "version: 0; this build reads 2 and 3");
    refused(Raw::new(4, 0, 0),                             "version: 4; this build reads 2 and 3");
    refused(Raw::new(3u32.swap_bytes(), 0, 0),             "the file is big-endian");
    refused(Raw::new(2u32.swap_bytes(), 0, 0),             "the file is big-endian");
}
