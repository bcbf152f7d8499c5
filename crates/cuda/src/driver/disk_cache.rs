//! Compiled kernels on disk, named by what they were made from. Nothing here can fail a run: without a cache kernels are
//! compiled again.

use std::time::{Duration, SystemTime};

use overdraft_formats::CacheFolder;

use super::compile::nvrtc_version;
use crate::kernels::{modules, source_hash};

/// Other versions' kernels are kept so long after they were last loaded: who goes back to one finds them.
const KEPT_UNUSED: Duration = Duration::from_secs(30 * 24 * 60 * 60);

pub(super) struct DiskCache(Option<CacheFolder>);

impl DiskCache {
    pub(super) fn of_user() -> Self {
        Self(CacheFolder::of_user("kernels"))
    }

    pub(super) fn read(&self, name: &str, now: SystemTime) -> Option<Vec<u8>> {
        let folder = self.0.as_ref()?;
        let bytes = std::fs::read(folder.file(name)).ok()?;
        folder.touch(name, now);
        // A file that was cut off is not handed to the driver, which trusts the ELF header.
        is_whole(&bytes).then_some(bytes)
    }

    pub(super) fn holds(&self, name: &str) -> bool {
        self.0.as_ref().is_some_and(|folder| folder.file(name).is_file())
    }

    /// Whether it is kept; if not the next run compiles again.
    pub(super) fn write(&self, name: &str, cubin: &[u8]) -> bool {
        self.0.as_ref().filter(|_| is_whole(cubin)).is_some_and(|folder| folder.write(name, cubin).is_ok())
    }

    /// Removes what this version would not load and no other has for long. Its own stays however old: the driver may be
    /// about to ask for it.
    pub(super) fn remove_unused(&self, now: SystemTime) {
        let Some(folder) = &self.0 else { return };
        let is_unused = |time| now.duration_since(time).is_ok_and(|age| age > KEPT_UNUSED);
        folder.remove(|file| parts(file).is_some(), |_, file, time| is_unused(time) && !is_current(file));
    }
}

/// What a kernel is kept as. `hash` is that of its source.
pub(super) fn name(module: &str, arch: &str, hash: u128) -> String {
    let (major, minor) = nvrtc_version();
    format!("{module}-{arch}-{major}.{minor}-{hash:032x}.cubin")
}

/// Module and target of a file that [`name`] named, in this version or another.
fn parts(file: &str) -> Option<(&str, &str)> {
    let mut parts = file.strip_suffix(".cubin")?.split('-');
    let (module, arch, nvrtc, hash) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let is_number = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    let is_made = nvrtc.split_once('.').is_some_and(|(major, minor)| is_number(major) && is_number(minor))
        && hash.len() == 32
        && hash.bytes().all(|b| b.is_ascii_hexdigit())
        && (arch.starts_with("sm_") || arch.starts_with("compute_"))
        && !module.is_empty()
        && parts.next().is_none();
    is_made.then_some((module, arch))
}

fn is_current(file: &str) -> bool {
    parts(file).is_some_and(|(module, arch)| {
        modules().any(|m| m == module) && file == name(module, arch, source_hash(module))
    })
}

/// Machine code, or text, which ends with its only zero.
fn is_whole(code: &[u8]) -> bool {
    let ends_with_zero = || code.iter().position(|byte| *byte == 0) == code.len().checked_sub(1);
    is_whole_elf(code) || code.starts_with(b"//") && ends_with_zero()
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
    use std::fs;

    use super::*;

    /// The least that looks like one.
    fn elf() -> Vec<u8> {
        let mut elf = vec![0u8; 128];
        elf[..5].copy_from_slice(b"\x7fELF\x02");
        (elf[0x28], elf[0x3a], elf[0x3c]) = (64, 64, 1);
        elf
    }

    #[test]
    fn kernels_of_other_versions_go_when_nobody_loaded_them_for_long_and_nothing_else_does() {
        let path = std::env::temp_dir().join(format!("overdraft-kernels-{}", std::process::id()));
        let cache = DiskCache(Some(CacheFolder::at(path.clone())));
        let folder = CacheFolder::at(path.clone());
        let day = |n: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(n * 24 * 60 * 60);
        let module = modules().next().unwrap();
        let [own, text] = ["sm_90a", "sm_80"].map(|arch| name(module, arch, source_hash(module)));
        let other = |module: &str| format!("{module}-sm_80-12.9-{:032x}.cubin", 7);
        let (same, gone, cut) = (other(module), other("gone"), format!("{}.123.tmp", other("cut")));
        let foreign = [
            "notes.txt",
            "a.cubin",
            "a-sm_80-12.9-7.cubin",
            "a-b-sm_80-12.9-7.cubin",
            &format!("{gone}.bak"),
        ];
        assert!(!cache.holds(&own));
        assert!(cache.write(&own, &elf()) && cache.holds(&own));
        assert!(!cache.write(&text, b"no cubin") && !cache.holds(&text), "what is no cubin is not kept");
        let files: Vec<&str> = [own.as_str(), &same, &gone, &cut].into_iter().chain(foreign).collect();
        for file in &files[1..] {
            fs::write(folder.file(file), b"bytes").unwrap();
        }
        let touch_all = |now| files.iter().for_each(|file| folder.touch(file, now));
        let left = || {
            let names = fs::read_dir(&path).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
            let mut names: Vec<String> = names.filter(|n| !foreign.contains(&n.as_str())).collect();
            names.sort();
            names
        };
        let sorted = |names: &[&String]| {
            let mut names: Vec<String> = names.iter().map(|n| n.to_string()).collect();
            names.sort();
            names
        };
        touch_all(day(100));
        for now in [day(50), day(130)] {
            cache.remove_unused(now);
            assert_eq!(left(), sorted(&[&own, &same, &gone, &cut]), "none is older than 30 days");
        }
        folder.touch(&gone, day(101));
        cache.remove_unused(day(131));
        assert_eq!(left(), sorted(&[&own, &gone]), "one was loaded a day later, one is this version's");
        assert_eq!(cache.read(&own, day(140)).as_deref(), Some(elf().as_slice()));
        assert_eq!(fs::metadata(folder.file(&own)).unwrap().modified().unwrap(), day(140), "touched");
        assert_eq!(cache.read(&text, day(140)), None, "what is no cubin was not kept");
        cache.remove_unused(day(1000));
        assert_eq!(left(), [own]);
        assert_eq!(fs::read_dir(&path).unwrap().count(), 1 + foreign.len(), "what others put there stays");
        fs::remove_dir_all(&path).unwrap();
        cache.remove_unused(day(1000));
        DiskCache(None).remove_unused(day(1000));
    }

    #[test]
    fn a_cut_off_file_is_not_taken_for_a_cubin() {
        let mut elf = elf();
        assert!(is_whole_elf(&elf));
        assert!(!is_whole_elf(&elf[..127]), "cut off");
        assert!(!is_whole_elf(&elf[..20]), "no header");
        assert!(!is_whole_elf(b""), "empty");
        elf[0x28..0x30].fill(0xff);
        assert!(!is_whole_elf(&elf), "an offset that overflows");
    }

    #[test]
    fn text_is_kept_up_to_its_zero() {
        assert!(is_whole(b"//\n.version 9.0\n\0"));
        for cut in [&b"//\n.vers"[..], b"//\n\0.version 9.0\n\0", b"\0", b""] {
            assert!(!is_whole(cut));
        }
        let named = name("norm", "compute_121", 5);
        assert_eq!(parts(&named), Some(("norm", "compute_121")));
    }
}
