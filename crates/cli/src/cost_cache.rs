//! What an engine learned of a pair on this machine, kept between runs: a small file in the user's cache folder. Without
//! it the first answer of every run would find out anew what a step costs. Nothing here can fail a run, or change a text.

use std::fs;
use std::io::Read;

use overdraft_engine::Engine;
use overdraft_engine::spec::learned::{Learned, MAX_BYTES};
use overdraft_formats::CacheFolder;
use overdraft_models::Checkpoint;

use crate::model::tensors;

/// Files kept at most, of a few KiB each: the oldest go first.
const MAX_FILES: usize = 64;
/// Bytes of each tensor that tell one model from another of the same shape.
const SAMPLE: usize = 64;

/// The place of one pair on this machine.
pub(crate) struct CostCache {
    folder: CacheFolder,
    name: String,
    owner: String,
}

impl CostCache {
    /// `None` where there is no cache folder to be had.
    pub(crate) fn of(target: &Checkpoint, draft: Option<&Checkpoint>, engine: &Engine) -> Option<Self> {
        Some(Self::in_folder(CacheFolder::of_user("costs")?, owner(target, draft, &engine.describe())))
    }

    fn in_folder(folder: CacheFolder, owner: String) -> Self {
        let name = format!("{:016x}.txt", hash(hash(0, owner.as_bytes()), b"costs"));
        Self { folder, name, owner }
    }

    /// Gives the engine what was kept. Returns whether there was something.
    pub(crate) fn recall(&self, engine: &mut Engine) -> bool {
        self.read().is_some_and(|text| engine.recall(&text, &self.owner))
    }

    fn read(&self) -> Option<String> {
        let mut text = String::new();
        let file = fs::File::open(self.folder.file(&self.name)).ok()?;
        file.take(MAX_BYTES as u64 + 1).read_to_string(&mut text).ok()?;
        Some(text)
    }

    /// Keeps what the engine knows by now.
    pub(crate) fn keep(&self, engine: &Engine) {
        self.keep_learned(&engine.learned());
    }

    /// Keeps what an engine knew.
    pub(crate) fn keep_learned(&self, learned: &Learned) {
        if learned.cost.step_seconds(1).is_some() {
            // A full disk or a folder that cannot be written costs the next run a slower start, and nothing else.
            let _ = self.write(&learned.to_text(&self.owner));
        }
    }

    fn write(&self, text: &str) -> std::io::Result<()> {
        let done = self.folder.write(&self.name, text.as_bytes());
        self.folder.remove(is_ours, |place, _, _| place >= MAX_FILES);
        done
    }
}

/// As [`CostCache::in_folder`] names files.
fn is_ours(name: &str) -> bool {
    name.strip_suffix(".txt").is_some_and(|h| h.len() == 16 && h.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// Everything that another cost or another acceptance may come from.
fn owner(target: &Checkpoint, draft: Option<&Checkpoint>, device: &str) -> String {
    let draft = draft.map_or_else(|| "none".into(), |d| format!("{:016x}", fingerprint(d)));
    let version = env!("CARGO_PKG_VERSION");
    format!("{version}; {}; {device}; model {:016x}; draft {draft}", processor(), fingerprint(target))
}

/// The processor's name where the system tells it.
fn processor() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|l| l.strip_prefix("model name")?.split_once(':'));
    name.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.trim().to_owned())
}

/// Of names, types, shapes and the first bytes of all tensors.
fn fingerprint(checkpoint: &Checkpoint) -> u64 {
    tensors(checkpoint).iter().fold(0, |h, info| {
        let tensor = match checkpoint {
            Checkpoint::Gguf(gguf) => gguf.tensor(&info.name),
            Checkpoint::HuggingFace { tensors, .. } => tensors.tensor(&info.name),
        };
        let h = hash(h, format!("{} {:?} {:?};", info.name, info.n_bytes, info.shape).as_bytes());
        let Ok(Some(tensor)) = tensor else { return h };
        let h = hash(h, tensor.dtype.to_string().as_bytes());
        hash(h, &tensor.bytes[..tensor.bytes.len().min(SAMPLE)])
    })
}

/// FNV-1a, going on from `h`.
fn hash(h: u64, bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(h ^ 0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0000_0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;

    #[test]
    fn files_are_replaced_whole_and_the_oldest_go_first() {
        let folder = std::env::temp_dir().join(format!("overdraft-costs-{}", std::process::id()));
        let cache = |i: usize| CostCache::in_folder(CacheFolder::at(folder.clone()), format!("owner {i}"));
        let path = |i: usize| folder.join(cache(i).name);
        for i in 0..MAX_FILES + 6 {
            cache(i).write("first").unwrap();
            cache(i).write(&format!("text {i}")).unwrap();
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1000 + i as u64);
            cache(i).folder.touch(&cache(i).name, time);
        }
        let names: Vec<_> = fs::read_dir(&folder).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names.len(), MAX_FILES);
        assert!(names.iter().all(|n| is_ours(n.to_str().unwrap())), "nothing unfinished is left: {names:?}");
        assert_eq!(cache(0).read(), None);
        assert_eq!(cache(MAX_FILES + 5).read(), Some(format!("text {}", MAX_FILES + 5)));
        // What is far too long is not read to its end; what is no text is not read at all.
        fs::write(path(1), vec![b'x'; 1 << 20]).unwrap();
        assert_eq!(cache(1).read().map(|t| t.len()), Some(MAX_BYTES + 1));
        fs::write(path(1), [0xff, 0xfe]).unwrap();
        assert_eq!(cache(1).read(), None);
        fs::remove_dir_all(&folder).unwrap();
    }
}
