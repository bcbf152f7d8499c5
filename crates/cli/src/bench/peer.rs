//! llama.cpp's llama-bench, as a program beside us.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::failure::{Failure, Result};
use crate::interrupt;

/// How a user gets one.
const REMEDY: &str = "bench/fetch-llama.sh DIR puts one into a folder; then --peer DIR/llama-bench";

#[derive(Debug)]
pub(crate) struct Peer {
    program: PathBuf,
    model: PathBuf,
    threads: usize,
}

/// A test of llama-bench: reading so many tokens, or writing so many, after `depth` others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Test {
    Read { tokens: usize },
    Write { tokens: usize, depth: usize },
}

impl Peer {
    /// The program named, or the one on the PATH.
    pub(crate) fn find(named: Option<&Path>, model: &Path, threads: usize) -> Result<Self> {
        let program = match named {
            Some(path) if path.is_file() => path.to_path_buf(),
            Some(path) => {
                return Err(Failure::input(format!("--peer {}: no such file", path.display())).hint(REMEDY));
            }
            None => on_path("llama-bench").ok_or_else(|| {
                Failure::input("there is no llama-bench on the PATH to compare with").hint(REMEDY)
            })?,
        };
        // Absolute, as the program may be a script that goes elsewhere.
        let model =
            std::fs::canonicalize(model).map_err(|e| Failure::input(format!("{}: {e}", model.display())))?;
        Ok(Self { program, model, threads })
    }

    /// Tokens a second of one run of each test; it warms up by itself.
    pub(crate) fn run(&self, test: Test) -> Result<(f64, Value)> {
        let (read, write, depth) = match test {
            Test::Read { tokens } => (tokens, 0, 0),
            Test::Write { tokens, depth } => (0, tokens, depth),
        };
        let mut command = Command::new(&self.program);
        command.arg("-m").arg(&self.model);
        for (flag, value) in
            [("-t", self.threads), ("-ngl", 0), ("-p", read), ("-n", write), ("-d", depth), ("-r", 1)]
        {
            command.arg(flag).arg(value.to_string());
        }
        // Ctrl-C ends the program, and is then ours to report: whoever waits here has files to take away.
        let waiting = interrupt::generating();
        let output = command.args(["-o", "json"]).stdin(Stdio::null()).output();
        let output = output.map_err(|e| self.failure(&e.to_string()))?;
        if waiting.asked_to_stop() {
            return Err(interrupt::failure());
        }
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            let last = text.lines().rev().find(|l| !l.trim().is_empty()).unwrap_or("no message");
            return Err(self.failure(&format!("ended with {}: {last}", output.status)));
        }
        self.parse(&output.stdout, test)
    }

    fn parse(&self, stdout: &[u8], test: Test) -> Result<(f64, Value)> {
        let object: Value = serde_json::from_slice(stdout)
            .map_err(|e| self.failure(&format!("its answer is not JSON ({e})")))?;
        let count = |row: &Value, key: &str| row.get(key).and_then(Value::as_u64).unwrap_or(0) as usize;
        let wanted = |row: &&Value| match test {
            Test::Read { tokens } => count(row, "n_prompt") == tokens && count(row, "n_gen") == 0,
            Test::Write { tokens, depth } => count(row, "n_gen") == tokens && count(row, "n_depth") == depth,
        };
        let row = object.as_array().and_then(|rows| rows.iter().find(wanted));
        let row = row.ok_or_else(|| self.failure(&format!("its answer has no row for {test:?}")))?;
        let rate = row.get("avg_ts").and_then(Value::as_f64).filter(|r| r.is_finite() && *r > 0.0);
        let rate = rate.ok_or_else(|| self.failure("its answer has no `avg_ts`"))?;
        let field = |key: &str| row.get(key).cloned().unwrap_or(Value::Null);
        let about = serde_json::json!({
            "program": self.program.display().to_string(),
            "build_number": field("build_number"),
            "build_commit": field("build_commit"),
            "threads": field("n_threads"),
            "model_type": field("model_type"),
        });
        Ok((rate, about))
    }

    fn failure(&self, problem: &str) -> Failure {
        Failure::input(format!("{}: {problem}", self.program.display()))
    }
}

fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|p| p.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_row_of_the_test_is_taken_and_nothing_else() {
        let peer = Peer { program: "llama-bench".into(), model: "m".into(), threads: 2 };
        let answer = br#"[
            {"n_prompt": 512, "n_gen": 0, "n_depth": 0, "avg_ts": 1000.5, "build_number": 7},
            {"n_prompt": 0, "n_gen": 128, "n_depth": 0, "avg_ts": 400.0},
            {"n_prompt": 0, "n_gen": 128, "n_depth": 150, "avg_ts": 390.0}]"#;
        for (test, rate) in [
            (Test::Read { tokens: 512 }, 1000.5),
            (Test::Write { tokens: 128, depth: 0 }, 400.0),
            (Test::Write { tokens: 128, depth: 150 }, 390.0),
        ] {
            assert_eq!(peer.parse(answer, test).unwrap().0, rate, "{test:?}");
        }
        for (answer, message) in [
            (&b"nonsense"[..], "not JSON"),
            (b"[]", "has no row"),
            (br#"[{"n_prompt": 9, "n_gen": 0, "avg_ts": 0}]"#, "no `avg_ts`"),
        ] {
            let failure = peer.parse(answer, Test::Read { tokens: 9 }).unwrap_err();
            assert!(failure.message.contains(message), "{}", failure.message);
        }
    }
}
