//! Files of the repository that tests read.

use std::path::{Path, PathBuf};

pub(crate) fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}
