//! The sources of every kernel, inside the binary.

include!(concat!(env!("OUT_DIR"), "/kernels.rs"));

pub fn modules() -> impl Iterator<Item = &'static str> {
    SOURCES.iter().map(|s| s.0)
}

pub(crate) fn source(module: &str) -> &'static str {
    SOURCES.iter().find(|s| s.0 == module).map(|s| s.1).expect("modules are named by this crate")
}

/// Of the module and every header: what a compiled kernel is known by. Two FNV-1a sums side by side.
pub fn source_hash(module: &str) -> u128 {
    let mut halves = [0xcbf2_9ce4_8422_2325u64, 0x9ae1_6a3b_2f90_404f];
    let texts = HEADERS.iter().flat_map(|(name, text)| [*name, *text]);
    for byte in [module, source(module)].into_iter().chain(texts).flat_map(|t| t.bytes().chain([0])) {
        for half in &mut halves {
            *half = (*half ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        halves[1] = halves[1].rotate_left(5);
    }
    u128::from(halves[0]) << 64 | u128::from(halves[1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_all_files_line_by_line_without_comments_and_include_only_each_other() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), SOURCES.len() + HEADERS.len());
        let files = SOURCES.iter().map(|(name, text)| (format!("{name}.cu"), *text));
        for (name, text) in files.chain(HEADERS.iter().map(|(name, text)| (name.to_string(), *text))) {
            let file = std::fs::read_to_string(folder.join(&name)).unwrap();
            assert_eq!(file.lines().count(), text.lines().count(), "{name}");
            for (whole, bare) in file.lines().zip(text.lines()) {
                assert!(whole.trim_start().starts_with(bare), "{name}: {bare}");
                let left = whole.trim_start()[bare.len()..].trim_start();
                assert!(left.is_empty() || left.starts_with("//"), "{name}: {whole}");
                assert!(!bare.contains("//"), "{name}: {bare}");
                if bare.starts_with("#include") {
                    let is_ours = HEADERS.iter().any(|h| bare == format!("#include \"{}\"", h.0));
                    assert!(is_ours, "{name}: {bare}");
                }
            }
        }
    }

    #[test]
    fn modules_have_different_hashes() {
        let hashes: std::collections::HashSet<u128> = modules().map(source_hash).collect();
        assert_eq!(hashes.len(), SOURCES.len());
    }
}
