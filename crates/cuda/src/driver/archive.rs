//! Cubins inside the binary, for users who have a driver and no compiler.
//!
//! The archive is one file that `cargo run -p xtask -- build-kernels` writes and the feature `cubins` embeds: entries of
//! (module, arch, source hash, length, cubin), each string with its length before it. The hash makes a stale archive
//! useless rather than wrong.

#[cfg(feature = "cubins")]
static EMBEDDED: &[u8] =
    include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/kernels/cubins.bin"));
#[cfg(not(feature = "cubins"))]
static EMBEDDED: &[u8] = &[];

pub(crate) fn find(module: &str, arch: &str, hash: u128) -> Option<&'static [u8]> {
    find_in(EMBEDDED, module, arch, hash)
}

fn take<'a>(rest: &mut &'a [u8], n: usize) -> Option<&'a [u8]> {
    let (head, tail) = rest.split_at_checked(n)?;
    *rest = tail;
    Some(head)
}

fn find_in<'a>(mut rest: &'a [u8], module: &str, arch: &str, hash: u128) -> Option<&'a [u8]> {
    loop {
        let mut name = || {
            let len = *take(&mut rest, 1)?.first()?;
            take(&mut rest, usize::from(len))
        };
        let (found_module, found_arch) = (name()?, name()?);
        let found_hash = u128::from_le_bytes(take(&mut rest, 16)?.try_into().ok()?);
        let len = u32::from_le_bytes(take(&mut rest, 4)?.try_into().ok()?);
        let cubin = take(&mut rest, len as usize)?;
        if (found_module, found_arch, found_hash) == (module.as_bytes(), arch.as_bytes(), hash) {
            return Some(cubin);
        }
    }
}

/// Adds an entry. Names are this crate's own and short.
pub fn append(archive: &mut Vec<u8>, module: &str, arch: &str, hash: u128, cubin: &[u8]) {
    for name in [module, arch] {
        archive.push(name.len() as u8);
        archive.extend_from_slice(name.as_bytes());
    }
    archive.extend_from_slice(&hash.to_le_bytes());
    archive.extend_from_slice(&(cubin.len() as u32).to_le_bytes());
    archive.extend_from_slice(cubin);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_found_by_module_arch_and_source() {
        let mut archive = Vec::new();
        append(&mut archive, "norm", "sm_80", 1, b"first");
        append(&mut archive, "norm", "sm_90a", 1, b"second");
        for (module, arch, hash, found) in [
            ("norm", "sm_80", 1, Some(&b"first"[..])),
            ("norm", "sm_90a", 1, Some(b"second")),
            ("norm", "sm_90a", 2, None),
            ("embed", "sm_80", 1, None),
        ] {
            assert_eq!(find_in(&archive, module, arch, hash), found, "{module} {arch} {hash}");
        }
        assert_eq!(find_in(&archive[..archive.len() - 1], "norm", "sm_90a", 1), None, "cut off");
    }
}
