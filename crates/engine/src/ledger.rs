//! Memory is planned before the first request, from the same structs that allocate it.

/// What will be held, line by line.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    pub lines: Vec<(&'static str, usize)>,
}

impl Ledger {
    pub fn add(&mut self, what: &'static str, bytes: usize) {
        self.lines.push((what, bytes));
    }

    pub fn total(&self) -> usize {
        self.lines.iter().map(|l| l.1).sum()
    }
}

/// Bytes this machine can still give out, where that can be known: the kernel's estimate, and the limit of the
/// control group we run in if it is tighter.
pub fn available_memory() -> Option<usize> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kib = meminfo.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    let free = kib.trim().trim_end_matches("kB").trim().parse::<usize>().ok()? * 1024;
    let read = |name: &str| -> Option<usize> {
        std::fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok()?.trim().parse().ok()
    };
    let group = read("memory.max").zip(read("memory.current")).map(|(max, used)| max.saturating_sub(used));
    Some(group.map_or(free, |g| g.min(free)))
}

/// Bytes for people: 1.5 GiB, 37.4 MiB.
pub fn human(bytes: usize) -> String {
    let b = bytes as f64;
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{:.1} KiB", b / 1024.0),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", b / 1_048_576.0),
        _ => format!("{:.1} GiB", b / 1_073_741_824.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_well() {
        for (bytes, text) in
            [(17, "17 B"), (1536, "1.5 KiB"), (39_000_000, "37.2 MiB"), (16 << 30, "16.0 GiB")]
        {
            assert_eq!(human(bytes), text);
        }
    }
}
