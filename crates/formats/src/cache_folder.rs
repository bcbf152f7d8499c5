//! Folders of files that can be had again, below the user's cache folder. Nothing in one is needed: whoever cannot read,
//! write or clean it does without.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::time::SystemTime;

pub struct CacheFolder {
    path: PathBuf,
}

impl CacheFolder {
    /// The user's, for files of one kind. `None` where there is no cache folder to be had.
    pub fn of_user(kind: &str) -> Option<Self> {
        let caches = user_caches(|name| std::env::var_os(name))?;
        Some(Self::at(caches.join("overdraft").join(kind)))
    }

    pub fn at(path: PathBuf) -> Self {
        Self { path }
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Whole or not at all: another process may be reading, or writing its own.
    pub fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        fs::create_dir_all(&self.path)?;
        let unfinished = self.file(&format!("{name}.{}.tmp", std::process::id()));
        let done = fs::write(&unfinished, bytes).and_then(|()| fs::rename(&unfinished, self.file(name)));
        if done.is_err() {
            let _ = fs::remove_file(&unfinished);
        }
        done
    }

    /// A file that is used counts as new.
    pub fn touch(&self, name: &str, now: SystemTime) {
        let _ = File::options().append(true).open(self.file(name)).and_then(|file| file.set_modified(now));
    }

    /// Removes those files with a name of ours for which `is_old` holds, told their places, newest first, and when they
    /// were last written or touched. What a process left unfinished that was killed has the name of what it was to be.
    pub fn remove(&self, is_ours: impl Fn(&str) -> bool, is_old: impl Fn(usize, &str, SystemTime) -> bool) {
        let Ok(entries) = fs::read_dir(&self.path) else { return };
        let known = |entry: fs::DirEntry| {
            let name = entry.file_name().into_string().ok()?;
            let meta = entry.metadata().ok().filter(fs::Metadata::is_file)?;
            is_ours(finished(&name)).then_some((meta.modified().ok()?, name))
        };
        let mut files: Vec<(SystemTime, String)> = entries.flatten().filter_map(known).collect();
        files.sort_by(|a, b| b.cmp(a));
        for (place, (modified, name)) in files.iter().enumerate() {
            if is_old(place, finished(name), *modified) {
                let _ = fs::remove_file(self.file(name));
            }
        }
    }
}

/// The name without what [`CacheFolder::write`] puts behind it meanwhile.
fn finished(name: &str) -> &str {
    let parts = name.strip_suffix(".tmp").and_then(|name| name.rsplit_once('.'));
    let is_number = |id: &str| !id.is_empty() && id.bytes().all(|b| b.is_ascii_digit());
    parts.filter(|(_, id)| is_number(id)).map_or(name, |(finished, _)| finished)
}

/// Where the user's programs keep what can be had again: one rule for all systems, as others that know `XDG_CACHE_HOME`
/// have it, and Windows' own folder where there is no home. What is not absolute counts for nothing, as XDG's rules say.
fn user_caches(var: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let folder = |name: &str| var(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = |name: &str| folder(name).map(|home| home.join(".cache"));
    folder("XDG_CACHE_HOME")
        .or_else(|| home("HOME"))
        .or_else(|| folder("LOCALAPPDATA"))
        .or_else(|| home("USERPROFILE"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_users_cache_folder_is_xdgs_then_below_home_then_windows_own() {
        // An absolute path on the system at hand.
        let root = std::env::temp_dir();
        let abs = |name: &str| root.join(name).into_os_string();
        type Row<'a> = (&'a [(&'a str, OsString)], Option<PathBuf>);
        let rows: [Row<'_>; 7] = [
            (&[("XDG_CACHE_HOME", abs("x")), ("HOME", abs("h"))], Some(root.join("x"))),
            (&[("XDG_CACHE_HOME", "x".into()), ("HOME", abs("h"))], Some(root.join("h").join(".cache"))),
            (&[("XDG_CACHE_HOME", "".into()), ("HOME", abs("h"))], Some(root.join("h").join(".cache"))),
            (&[("HOME", abs("h")), ("LOCALAPPDATA", abs("l"))], Some(root.join("h").join(".cache"))),
            (&[("LOCALAPPDATA", abs("l")), ("USERPROFILE", abs("u"))], Some(root.join("l"))),
            (&[("USERPROFILE", abs("u"))], Some(root.join("u").join(".cache"))),
            (&[("HOME", "h".into())], None),
        ];
        for (set, want) in rows {
            let var = |name: &str| set.iter().find(|(n, _)| *n == name).map(|(_, value)| value.clone());
            assert_eq!(user_caches(var), want, "{set:?}");
        }
    }

    #[test]
    fn only_old_files_with_our_names_are_removed() {
        let path = std::env::temp_dir().join(format!("overdraft-cache-{}", std::process::id()));
        let folder = CacheFolder::at(path.clone());
        folder.remove(|_| true, |_, _, _| true);
        assert!(!path.exists(), "a folder that is not there is not made");
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        for (name, seconds) in [
            ("1.ours", 10),
            ("2.ours", 20),
            ("3.ours", 30),
            ("9.ours.77.tmp", 5),
            ("theirs", 1),
            ("5.ours.x.tmp", 1),
        ] {
            folder.write(name, b"first").unwrap();
            folder.write(name, name.as_bytes()).unwrap();
            folder.touch(name, at(seconds));
            assert_eq!(fs::read_to_string(folder.file(name)).unwrap(), name);
        }
        fs::create_dir(folder.file("4.ours")).unwrap();
        let is_ours = |name: &str| name.ends_with(".ours");
        let left = || {
            let mut names: Vec<String> =
                fs::read_dir(&path).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names.join(" ")
        };
        folder.remove(is_ours, |_, _, modified| modified < at(15));
        assert_eq!(
            left(),
            "2.ours 3.ours 4.ours 5.ours.x.tmp theirs",
            "by age; nothing unfinished by others"
        );
        folder.touch("2.ours", at(40));
        folder.touch("gone.ours", at(40));
        folder.remove(is_ours, |place, name, _| place > 0 && name != "2.ours");
        assert_eq!(left(), "2.ours 4.ours 5.ours.x.tmp theirs", "by place, newest first");
        fs::remove_dir_all(&path).unwrap();
    }
}
