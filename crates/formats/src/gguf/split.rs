//! Models split over files: `<prefix>-00001-of-00003.gguf` and its siblings. Metadata comes from the first alone.

use std::path::{Path, PathBuf};

use super::{Gguf, Value, parse};
use crate::{Bytes, Error, Result};

fn key(name: &str, file: &parse::File, key: &str) -> Result<Option<u64>> {
    let Some((_, value)) = file.keys.iter().find(|(k, _)| k == key) else { return Ok(None) };
    let number = Value::as_int(value).and_then(|v| u64::try_from(v).ok());
    let wrong =
        || Error::invalid(name, format!("key `{key}`"), format!("is {value}, expected a file number"));
    number.map(Some).ok_or_else(wrong)
}

/// (position from 0, number of files); (0, 1) for a whole model.
fn place(name: &str, file: &parse::File) -> Result<(u64, u64)> {
    let no = key(name, file, "split.no")?.unwrap_or(0);
    let count = key(name, file, "split.count")?.unwrap_or(1);
    // llama.cpp writes 0 as the count of a model that was merged again. File names have five digits.
    match count.max(1) {
        count if no < count && count <= 99_999 => Ok((no, count)),
        count => Err(Error::invalid(name, "key `split.no`", format!("{no} of {count} files"))),
    }
}

/// `prefix` of `prefix-00002-of-00003.gguf`, when the name has that form and these numbers.
fn prefix(file_name: &str, no: u64, count: u64) -> Option<&str> {
    file_name.strip_suffix(&format!("-{:05}-of-{count:05}.gguf", no + 1))
}

fn shard_name(prefix: &str, no: u64, count: u64) -> String {
    format!("{prefix}-{:05}-of-{count:05}.gguf", no + 1)
}

/// The other files of the model whose first file was opened, in order.
pub(super) fn siblings(path: &Path, name: &str, file: &parse::File) -> Result<Vec<PathBuf>> {
    let (no, count) = place(name, file)?;
    if count == 1 {
        return Ok(Vec::new());
    }
    let prefix = path.file_name().and_then(|n| n.to_str()).and_then(|n| prefix(n, no, count));
    let Some(prefix) = prefix else {
        return Err(Error::invalid(
            name,
            "file name",
            format!(
                "is file {} of {count}; to find the others it must be named `{}`",
                no + 1,
                shard_name("<model>", no, count)
            ),
        ));
    };
    if no != 0 {
        return Err(Error::invalid(
            name,
            "key `split.no`",
            format!("this is file {} of {count}; open the first, `{}`", no + 1, shard_name(prefix, 0, count)),
        ));
    }
    Ok((1..count).map(|no| path.with_file_name(shard_name(prefix, no, count))).collect())
}

/// Bytes in memory have no siblings.
pub(super) fn refuse(name: &str, file: &parse::File) -> Result<()> {
    match place(name, file)? {
        (_, 1) => Ok(()),
        (no, count) => Err(Error::unsupported(
            name,
            "key `split.count`",
            format!("file {} of {count}: a split model must be opened by path", no + 1),
        )),
    }
}

impl Gguf {
    pub(super) fn add_siblings(&mut self, siblings: &[PathBuf]) -> Result<()> {
        let count = siblings.len() as u64 + 1;
        for (path, no) in siblings.iter().zip(1..) {
            let name = path.display().to_string();
            let file = parse::parse(&name, &Bytes::map(path)?)?;
            let found = place(&name, &file)?;
            if found != (no, count) {
                return Err(Error::invalid(
                    name,
                    "keys `split.no`, `split.count`",
                    format!("file {} of {}, where {} of {count} was expected", found.0 + 1, found.1, no + 1),
                ));
            }
            self.tensors.add_part(&name, file.data, file.tensors)?;
        }
        let stated = self.get_u64("split.tensors.count")?;
        let found = self.tensors().len() as u64;
        match stated {
            Some(stated) if count > 1 && stated != found => Err(Error::invalid(
                &self.name,
                "key `split.tensors.count`",
                format!("{stated}, but the {count} files hold {found} tensors"),
            )),
            _ => Ok(()),
        }
    }
}
