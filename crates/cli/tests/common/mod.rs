//! Runs the real binary from the repository's root.
#![allow(dead_code, reason = "each test file uses its share")]

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        assert_eq!(self.code, Some(0), "{}", self.err);
        self
    }

    #[track_caller]
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {:?}\n{}", self.out, self.err))
    }
}

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Stands for the user's cache folder.
pub(crate) fn caches() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("caches")
}

pub(crate) fn start(args: &[&str]) -> Child {
    start_with(args, &caches())
}

pub(crate) fn start_with(args: &[&str], caches: &Path) -> Child {
    start_in(args, &[("XDG_CACHE_HOME", caches.as_os_str())])
}

/// With these in its environment.
pub(crate) fn start_in(args: &[&str], environment: &[(&str, &OsStr)]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_overdraft"))
        .args(args)
        .envs(environment.iter().copied())
        .current_dir(root())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary was built for this test")
}

/// With `stdin` piped in.
pub(crate) fn overdraft_with(args: &[&str], stdin: &[u8]) -> Ran {
    finish(args, start(args), stdin)
}

pub(crate) fn finish(args: &[&str], mut child: Child, stdin: &[u8]) -> Ran {
    // The program may end without reading.
    let _ = child.stdin.take().expect("piped").write_all(stdin);
    let output = child.wait_with_output().expect("it ends");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("output is UTF-8");
    let ran = Ran { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) };
    assert!(!ran.err.contains("panicked"), "{args:?}: {}", ran.err);
    ran
}

pub(crate) fn overdraft(args: &[&str]) -> Ran {
    overdraft_with(args, b"")
}

/// A file that goes away with the test.
pub(crate) struct TempFile(PathBuf);

impl TempFile {
    pub(crate) fn new(name: &str, bytes: &[u8]) -> Self {
        let path = std::env::temp_dir().join(format!("overdraft-{}-{name}", std::process::id()));
        std::fs::write(&path, bytes).expect("the temporary folder can be written");
        Self(path)
    }

    pub(crate) fn path(&self) -> &str {
        self.0.to_str().expect("temporary paths are UTF-8")
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
