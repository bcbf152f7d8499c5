//! safetensors files that break the format's rules, one row for each: all must be errors that name the trouble.

mod exercise;

/// A file with this header and `n` bytes of data.
fn file(json: &str, n: usize) -> Vec<u8> {
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(json.as_bytes());
    bytes.resize(bytes.len() + n, 0);
    bytes
}

fn entry(name: &str, dtype: &str, shape: &str, from: u64, to: u64) -> String {
    format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{from},{to}]}}"#)
}

#[track_caller]
fn refused(bytes: &[u8], said: &str) {
    let error = exercise::safetensors(bytes).expect_err("the file should be refused").to_string();
    assert!(
        error.starts_with("hostile.safetensors: ") && error.contains(said),
        "{error}\nshould say\n{said}"
    );
    assert!(error.len() < 2000, "a message of {} bytes", error.len());
}

/// Entries separated by commas, in braces.
#[track_caller]
fn refused_entries(entries: &[String], n: usize, said: &str) {
    refused(&file(&format!("{{{}}}", entries.join(",")), n), said);
}

#[test]
#[rustfmt::skip]
fn header_lengths_beyond_the_file_or_the_limit_are_refused() {
    refused(b"",                                            "the file has only 0 bytes");
    refused(&[2, 0, 0, 0, 0, 0, 0],                         "the file has only 7 bytes");
    refused(&3u64.to_le_bytes(),                            "3 bytes long, but only 0 follow");
    refused(&[&3u64.to_le_bytes()[..], b"{}"].concat(),     "3 bytes long, but only 2 follow");
    refused(&100_000_001u64.to_le_bytes(),                  "100000001 bytes long; at most 100000000");
    refused(&u64::MAX.to_le_bytes(),                        "at most 100000000");
    refused(&0u64.to_le_bytes(),                            "does not begin with `{`");
    refused(&file(" {}", 0),                                "does not begin with `{`");
    refused(&file("[]", 0),                                 "does not begin with `{`");
}

#[test]
#[rustfmt::skip]
fn ranges_that_do_not_tile_the_data_are_refused() {
    let a = entry("a", "U8", "[4]", 0, 4);
    refused_entries(&[a.clone(), entry("b", "U8", "[4]", 3, 7)], 7,   "tensor `b`: begins at byte 3, inside a tensor that ends at 4");
    refused_entries(&[a.clone(), entry("b", "U8", "[4]", 0, 4)], 4,   "inside a tensor that ends at 4");
    refused_entries(&[a.clone(), entry("b", "U8", "[4]", 5, 9)], 9,   "tensor `b`: begins at byte 5, leaving a gap after 4");
    refused_entries(&[entry("b", "U8", "[4]", 1, 5)], 5,              "leaving a gap after 0");
    refused_entries(std::slice::from_ref(&a), 3,                      "tensor `a`: ends at byte 4 of 3");
    refused_entries(std::slice::from_ref(&a), 5,                      "data: tensors end at byte 4, but the data has 5");
    refused_entries(&[], 1,                                           "data: tensors end at byte 0, but the data has 1");
    refused_entries(&[entry("a", "U8", "[4]", 4, 0)], 4,              "run backwards");
    refused_entries(&[entry("a", "U8", "[4]", 0, u64::MAX)], 4,       "ends at byte 18446744073709551615 of 4");
    refused_entries(&[entry("a", "U8", "[4]", u64::MAX, 3)], 4,       "run backwards");
}

#[test]
#[rustfmt::skip]
fn shapes_that_disagree_with_their_range_or_wrap_are_refused() {
    refused_entries(&[entry("a", "F32", "[2]", 0, 4)], 4,             "tensor `a`: [2] of F32 takes 8 bytes, but bytes 0 to 4 are given");
    refused_entries(&[entry("a", "BF16", "[]", 0, 4)], 4,             "[] of BF16 takes 2 bytes");
    refused_entries(&[entry("a", "F32", "[0]", 0, 4)], 4,             "[0] of F32 takes 0 bytes");
    refused_entries(&[entry("a", "F8_E4M3", "[3]", 0, 4)], 4,         "[3] of F8_E4M3 takes 3 bytes");
    refused_entries(&[entry("a", "F4", "[7]", 0, 4)], 4,              "[7] of F4 takes 4 bytes");
    refused_entries(&[entry("a", "F32", "[4611686018427387905]", 0, 4)], 4, "overflows"); // 4 · n wraps to 4
    refused_entries(&[entry("a", "U8", "[4294967296,4294967296]", 0, 0)], 0, "overflows");
    refused_entries(&[entry("a", "X", "[4294967296,4294967296]", 0, 0)], 0, "overflows");
    refused_entries(&[entry("a", "U8", "[-1]", 0, 1)], 1,             "header: not as expected");
    refused_entries(&[entry("a", "U8", "[1.5]", 0, 1)], 1,            "header: not as expected");
    refused_entries(&[entry("a", "U8", "[18446744073709551616]", 0, 1)], 1, "header: not as expected");
    refused_entries(&[entry("a", "U8", "[1,1,1,1,1,1,1,1,1]", 0, 1)], 1, "at most 8 dimensions");
}

#[test]
#[rustfmt::skip]
fn json_of_another_form_is_refused() {
    let a = entry("a", "U8", "[4]", 0, 4);
    refused_entries(&[a.clone(), a.clone()], 4,                       "inside a tensor that ends at 4");
    refused_entries(&[entry("z", "U8", "[0]", 0, 0), entry("z", "U8", "[0]", 0, 0)], 0, "tensor `z`: occurs twice");
    refused_entries(&[entry(&"n".repeat(1025), "U8", "[4]", 0, 4)], 4, "at most 1024 bytes");
    refused_entries(&[entry("a", &"n".repeat(1025), "[4]", 0, 4)], 4, "at most 1024 bytes");
    refused_entries(&[r#""__metadata__":{"a":1}"#.into()], 0,         "header: not as expected");
    refused_entries(&[r#""__metadata__":{}"#.into(), r#""__metadata__":{}"#.into()], 0, "duplicate field");
    for json in ["{", "{}}", "{\"a\"}", "{\"a\":1}", "{\"a\":{}}", "{\"a\":{\"dtype\":\"U8\",\"shape\":[]}}", "{\"\u{0}", "{1:2}",
                 "{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}"] {
        refused(&file(json, 0),                                       "header: not as expected");
    }
    refused(&[&4u64.to_le_bytes()[..], b"{\"\xFF\""].concat(),        "header: not as expected");
    let million = "[".repeat(1_000_000);
    refused(&file(&format!("{{\"a\":{million}"), 0),                  "header: not as expected");
    refused(&file(&format!("{{\"a\":{{\"x\":{million}"), 0),          "header: not as expected");
    refused(&file(&format!("{{\"a\":{{\"shape\":{million}"), 0),      "header: not as expected");
    refused(&file(&format!("{{\"a\":\"{million}\"}}"), 0),            "header: not as expected");
}
