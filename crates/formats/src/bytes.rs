//! Shared read-only bytes: a mapped file, bytes inside the binary, or an owned buffer. Cloning and slicing never
//! copy, so a tensor can be handed from the file to the kernel that reads it.

use std::fs::File;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::Arc;

use memmap2::Mmap;

use crate::{Error, Result};

/// A multiple of the page size: aarch64 systems have up to 64 KiB.
#[cfg(unix)]
const PAGE: usize = if cfg!(target_arch = "x86_64") { 4 << 10 } else { 64 << 10 };

#[derive(Clone)]
enum Owner {
    Map(Arc<Mmap>),
    Static(&'static [u8]),
    Owned(Arc<Vec<u8>>),
}

/// A cheap handle on a range of immutable bytes.
#[derive(Clone)]
pub struct Bytes {
    owner: Owner,
    range: Range<usize>,
}

impl Bytes {
    /// Maps a file read-only.
    pub fn map(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        let file = File::open(path).map_err(|e| Error::io(&name, e))?;
        let meta = file.metadata().map_err(|e| Error::io(&name, e))?;
        if !meta.is_file() {
            return Err(Error::invalid(name, "file", "not a regular file"));
        }
        if meta.len() == 0 {
            return Err(Error::invalid(name, "file", "empty"));
        }
        // SAFETY: the map is private and read-only. A file that another process shortens while it is mapped can
        // still raise SIGBUS; that is the accepted price of not copying weights, and README says not to do it.
        let map = unsafe { Mmap::map(&file) }.map_err(|e| Error::io(&name, e))?;
        let range = 0..map.len();
        Ok(Self { owner: Owner::Map(Arc::new(map)), range })
    }

    pub fn from_static(bytes: &'static [u8]) -> Self {
        Self { owner: Owner::Static(bytes), range: 0..bytes.len() }
    }

    pub fn from_vec(bytes: Vec<u8>) -> Self {
        let range = 0..bytes.len();
        Self { owner: Owner::Owned(Arc::new(bytes)), range }
    }

    /// The part `range` (relative to this handle), or `None` when it does not lie inside.
    pub fn slice(&self, range: Range<usize>) -> Option<Self> {
        if range.start > range.end || range.end > self.range.len() {
            return None;
        }
        let start = self.range.start + range.start;
        Some(Self { owner: self.owner.clone(), range: start..start + range.len() })
    }

    /// Tells the system that these bytes will hardly be read again. Pages of a mapped file that lie wholly inside leave
    /// our memory; a later read fetches them once more, so nothing changes but time. Other bytes stay.
    pub fn release(&self) {
        #[cfg(unix)]
        if let Owner::Map(map) = &self.owner {
            let start = self.range.start.next_multiple_of(PAGE);
            let end = self.range.end / PAGE * PAGE;
            if start < end {
                // SAFETY: the map is private, read-only and of a file, so a dropped page reads the same again. A refusal
                // leaves the pages where they are.
                let _ = unsafe {
                    map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, end - start)
                };
            }
        }
    }

    /// Whether the bytes are mapped or built in, so that holding them costs no memory of our own.
    pub fn is_borrowed(&self) -> bool {
        !matches!(self.owner, Owner::Owned(_))
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let all: &[u8] = match &self.owner {
            Owner::Map(m) => m,
            Owner::Static(s) => s,
            Owner::Owned(v) => v,
        };
        &all[self.range.clone()]
    }
}

impl std::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Bytes({} bytes)", self.range.len())
    }
}

impl PartialEq for Bytes {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}
