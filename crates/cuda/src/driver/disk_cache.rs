//! Compiled kernels on disk, named by what they were made from. Nothing here can fail a run: without a cache kernels are
//! compiled again.

use std::path::PathBuf;

use super::compile::nvrtc_version;

fn folder() -> Option<PathBuf> {
    let base = match std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from) {
        Some(dir) if dir.is_absolute() => dir,
        _ => PathBuf::from(std::env::var_os("HOME").or_else(|| std::env::var_os("USERPROFILE"))?)
            .join(".cache"),
    };
    Some(base.join("overdraft").join("kernels"))
}

fn path(module: &str, arch: &str, hash: u128) -> Option<PathBuf> {
    let (major, minor) = nvrtc_version();
    Some(folder()?.join(format!("{module}-{arch}-{major}.{minor}-{hash:032x}.cubin")))
}

pub(super) fn read(module: &str, arch: &str, hash: u128) -> Option<Vec<u8>> {
    let bytes = std::fs::read(path(module, arch, hash)?).ok()?;
    // A file that was cut off is not handed to the driver, which trusts the ELF header.
    is_whole_elf(&bytes).then_some(bytes)
}

pub(super) fn write(module: &str, arch: &str, hash: u128, cubin: &[u8]) {
    let Some(path) = path(module, arch, hash).filter(|_| is_whole_elf(cubin)) else { return };
    let Some(folder) = path.parent() else { return };
    // Written aside and renamed: a second process never reads half a file.
    let aside = folder.join(format!(".{module}-{}.part", std::process::id()));
    let written = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&aside, cubin));
    if written.and_then(|()| std::fs::rename(&aside, &path)).is_err() {
        let _ = std::fs::remove_file(&aside);
    }
}

/// Whether the section headers, which lie at the end of a cubin, are all there.
fn is_whole_elf(bytes: &[u8]) -> bool {
    let word = |at: usize| -> Option<u64> {
        let field = bytes.get(at..at + 8)?;
        Some(u64::from_le_bytes(field.try_into().ok()?))
    };
    let half = |at: usize| Some(u64::from(u16::from_le_bytes([*bytes.get(at)?, *bytes.get(at + 1)?])));
    let end = || word(0x28)?.checked_add(half(0x3a)?.checked_mul(half(0x3c)?)?);
    bytes.starts_with(b"\x7fELF\x02") && end().is_some_and(|end| end <= bytes.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::is_whole_elf;

    #[test]
    fn a_cut_off_file_is_not_taken_for_a_cubin() {
        let mut elf = vec![0u8; 128];
        elf[..5].copy_from_slice(b"\x7fELF\x02");
        elf[0x28] = 64;
        elf[0x3a] = 64;
        elf[0x3c] = 1;
        assert!(is_whole_elf(&elf));
        assert!(!is_whole_elf(&elf[..127]), "cut off");
        assert!(!is_whole_elf(&elf[..20]), "no header");
        assert!(!is_whole_elf(b""), "empty");
        elf[0x28..0x30].fill(0xff);
        assert!(!is_whole_elf(&elf), "an offset that overflows");
    }
}
