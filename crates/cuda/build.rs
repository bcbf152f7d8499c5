//! Puts the kernels' sources into the binary, as a table of what the folder holds. Without comments and indentation, which are a
//! quarter of them and nothing to a compiler; lines keep their numbers.

use std::fmt::Write;
use std::path::Path;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=kernels");
    let mut files: Vec<_> = fs::read_dir("kernels")
        .expect("the crate's folder has kernels")
        .map(|entry| entry.expect("a folder that can be read").path())
        .collect();
    files.sort();
    let list = |what: &str, extension: &str, keeps_extension: bool| {
        let mut list = format!("/// {what}: &[(&str, &str)] = &[\n");
        for file in files.iter().filter(|f| f.extension().is_some_and(|e| e == extension)) {
            let name = if keeps_extension { file.file_name() } else { file.file_stem() };
            let name = name.and_then(|n| n.to_str()).expect("kernels have plain names");
            let text = fs::read_to_string(file).expect("a kernel that can be read");
            writeln!(list, "({name:?}, {:?}),", bare(&text)).expect("strings take all");
        }
        list + "];\n"
    };
    let table = list("(module, text), each compiled by itself.\nconst SOURCES", "cu", false)
        + &list("(name as included, text).\npub(crate) const HEADERS", "cuh", true);
    let out = env::var("OUT_DIR").expect("cargo names it");
    fs::write(Path::new(&out).join("kernels.rs"), table).expect("a folder that can be written");
}

fn bare(text: &str) -> String {
    text.lines().flat_map(|line| [code_of(line).trim(), "\n"]).collect()
}

/// The line up to its comment; `//` in a string is none.
fn code_of(line: &str) -> &str {
    let (mut in_string, mut before) = (false, ' ');
    for (at, c) in line.char_indices() {
        match c {
            '"' if before != '\\' => in_string = !in_string,
            '/' if before == '/' && !in_string => return &line[..at - 1],
            _ => {}
        }
        before = c;
    }
    line
}
