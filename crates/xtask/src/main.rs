//! Work on the repository that is no test.
//!
//!   cargo run -p xtask -- check-kernels [--write]   compiles every kernel where there is no device, and compares
//!                                                   registers and spills with crates/cuda/registers.txt
//!   cargo run -p xtask -- build-kernels             compiles them for every release target into target/kernels, which
//!                                                   `cargo build --release --features cubins` embeds
//!
//! Both need NVRTC: `tests/fetch-nvrtc` brings it, and says what to set.

#![allow(clippy::print_stdout, reason = "a program that reports")]

mod cubin;

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use overdraft_cuda::build::{RELEASE_ARCHES, append, compile, modules, nvrtc_is_present, source_hash};

/// One of each generation that is compiled differently: before, at and after programmatic launches and `wgmma`.
const CHECKED_ARCHES: [&str; 3] = ["sm_80", "sm_90a", "sm_120"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["check-kernels"] => check(false),
        ["check-kernels", "--write"] => check(true),
        ["build-kernels"] => build(),
        _ => Err("one of: check-kernels [--write], build-kernels".into()),
    };
    match done {
        Ok(said) => {
            println!("{said}");
            ExitCode::SUCCESS
        }
        Err(problem) => {
            println!("{problem}");
            ExitCode::FAILURE
        }
    }
}

fn need_nvrtc() -> Result<(), String> {
    let hint = "NVRTC was not found\nhint: run tests/fetch-nvrtc and set LD_LIBRARY_PATH as it says";
    if nvrtc_is_present() { Ok(()) } else { Err(hint.into()) }
}

fn check(write: bool) -> Result<String, String> {
    need_nvrtc()?;
    let mut table = String::from("# module kernel arch registers stack-bytes; xtask check-kernels --write\n");
    for module in modules() {
        for arch in CHECKED_ARCHES {
            let code = compile(module, arch).map_err(|e| e.to_string())?;
            let kernels = cubin::kernels(&code).ok_or_else(|| format!("{module} for {arch}: no cubin"))?;
            for k in kernels {
                let _ = writeln!(table, "{module} {} {arch} {} {}", k.name, k.registers, k.stack_bytes);
            }
        }
    }
    let path = root().join("crates/cuda/registers.txt");
    if write {
        std::fs::write(&path, &table).map_err(|e| format!("{}: {e}", path.display()))?;
        return Ok(format!("{} lines written", table.lines().count()));
    }
    let known = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let only_in = |a: &str, b: &str, sign: char| -> String {
        a.lines().filter(|l| !b.lines().any(|m| m == *l)).map(|l| format!("{sign} {l}\n")).collect()
    };
    let changes = only_in(&known, &table, '-') + &only_in(&table, &known, '+');
    if changes.is_empty() {
        return Ok(format!("{} kernels as known", table.lines().count() - 1));
    }
    Err(format!(
        "registers or spills have changed:\n{changes}hint: if that is meant, `check-kernels --write`"
    ))
}

fn build() -> Result<String, String> {
    need_nvrtc()?;
    let mut archive = Vec::new();
    for module in modules() {
        for arch in RELEASE_ARCHES {
            let code = compile(module, arch).map_err(|e| e.to_string())?;
            append(&mut archive, module, arch, source_hash(module), &code);
        }
    }
    let folder = root().join("target/kernels");
    let path = folder.join("cubins.bin");
    std::fs::create_dir_all(&folder)
        .and_then(|()| std::fs::write(&path, &archive))
        .map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(format!("target/kernels/cubins.bin: {} bytes for {}", archive.len(), RELEASE_ARCHES.join(", ")))
}
