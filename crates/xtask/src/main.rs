//! Work on the repository that is no test.
//!
//!   cargo run -p xtask -- check-kernels [--write]   compiles every kernel where there is no device, and compares
//!                                                   registers and spills with crates/cuda/registers.txt
//!   cargo run -p xtask -- build-kernels [sm_90a ...] compiles them for every release target, or those named, into
//!                                                   target/kernels, which `cargo build --release --features cubins` embeds
//!
//! Both need NVRTC: `tests/fetch-nvrtc` brings it, and says what to set.

#![allow(clippy::print_stdout, reason = "a program that reports")]

mod cubin;

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use overdraft_cuda::build::{RELEASE_ARCHES, append, compile_each, modules, nvrtc_is_present, source_hash};

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
        ["build-kernels", named @ ..] => named_arches(named).and_then(|arches| build(&arches)),
        _ => Err("one of: check-kernels [--write], build-kernels [target ...]".into()),
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

struct Compiled {
    module: &'static str,
    arch: &'static str,
    code: Vec<u8>,
}

/// Every module for every target, in that order.
fn compile_all(arches: &[&'static str]) -> Result<Vec<Compiled>, String> {
    let jobs: Vec<_> = modules().flat_map(|module| arches.iter().map(move |arch| (module, *arch))).collect();
    let mut done = Vec::new();
    compile_each(&jobs, |job, code| done.push((job, code)));
    done.sort_by_key(|d| d.0);
    let named = |(job, code): (usize, Result<Vec<u8>, _>)| {
        let (module, arch) = jobs[job];
        code.map(|code| Compiled { module, arch, code }).map_err(|e: overdraft_cuda::CudaError| e.to_string())
    };
    done.into_iter().map(named).collect()
}

fn check(write: bool) -> Result<String, String> {
    need_nvrtc()?;
    let mut table = String::from("# module kernel arch registers stack-bytes; xtask check-kernels --write\n");
    for Compiled { module, arch, code } in compile_all(&CHECKED_ARCHES)? {
        let kernels = cubin::kernels(&code).ok_or_else(|| format!("{module} for {arch}: no cubin"))?;
        for k in kernels {
            let _ = writeln!(table, "{module} {} {arch} {} {}", k.name, k.registers, k.stack_bytes);
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

/// All release targets where none is named.
fn named_arches(named: &[&str]) -> Result<Vec<&'static str>, String> {
    let unknown = named.iter().find(|arch| !RELEASE_ARCHES.contains(arch));
    if let Some(arch) = unknown {
        return Err(format!("`{arch}` is no release target: {}", RELEASE_ARCHES.join(", ")));
    }
    Ok(RELEASE_ARCHES.into_iter().filter(|arch| named.is_empty() || named.contains(arch)).collect())
}

fn build(arches: &[&'static str]) -> Result<String, String> {
    need_nvrtc()?;
    let mut archive = Vec::new();
    for Compiled { module, arch, code } in compile_all(arches)? {
        append(&mut archive, module, arch, source_hash(module), &code);
    }
    let folder = root().join("target/kernels");
    let path = folder.join("cubins.bin");
    std::fs::create_dir_all(&folder)
        .and_then(|()| std::fs::write(&path, &archive))
        .map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(format!("target/kernels/cubins.bin: {} bytes for {}", archive.len(), arches.join(", ")))
}
