//! Types that files may hold but this build does not decode, known by name and size so that a file can still be
//! listed and bounds-checked, and an error can say which type is in the way.

use super::DType;

/// (ggml id, elements per block, bytes per block, name). Ids from 42 are contested between ggml and its forks, so
/// nothing is claimed about them.
#[rustfmt::skip]
const UNREAD: [(u32, usize, usize, &str); 14] = [
    (9,  32,  36,  "Q8_1"),
    (15, 256, 292, "Q8_K"),
    (16, 256, 66,  "IQ2_XXS"),
    (17, 256, 74,  "IQ2_XS"),
    (18, 256, 98,  "IQ3_XXS"),
    (19, 256, 50,  "IQ1_S"),
    (21, 256, 110, "IQ3_S"),
    (22, 256, 82,  "IQ2_S"),
    (29, 256, 56,  "IQ1_M"),
    (34, 256, 54,  "TQ1_0"),
    (35, 256, 66,  "TQ2_0"),
    (40, 64,  36,  "NVFP4"),
    (41, 128, 18,  "Q1_0"),
    (42, 0,   0,   "Q2_0 or a fork's type"),
];

/// (elements, bytes) of a block of the ggml type with this id, if they are known.
pub(crate) fn ggml_type_size(id: u32) -> Option<(usize, usize)> {
    if let Some(dtype) = DType::from_ggml(id) {
        return Some((dtype.block_len(), dtype.block_bytes()));
    }
    let &(_, len, bytes, _) = UNREAD.iter().find(|t| t.0 == id)?;
    (len > 0).then_some((len, bytes))
}

/// A ggml type in words: `IQ2_XS (ggml type 17)`.
pub(crate) fn describe_ggml_type(id: u32) -> String {
    let name = DType::from_ggml(id)
        .map(DType::name)
        .or_else(|| UNREAD.iter().find(|t| t.0 == id).map(|t| t.3))
        .unwrap_or(if matches!(id, 4 | 5 | 31..=33 | 36..=38) { "a retired type" } else { "unknown" });
    format!("{name} (ggml type {id})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_type_is_both_read_and_unread() {
        for (id, _, _, name) in UNREAD {
            assert!(DType::from_ggml(id).is_none(), "{name}");
        }
    }

    #[test]
    fn types_are_described_by_name_and_id() {
        for (id, described, size) in [
            (17, "IQ2_XS (ggml type 17)", Some((256, 74))),
            (12, "Q4_K (ggml type 12)", Some((256, 144))),
            (4, "a retired type (ggml type 4)", None),
            (42, "Q2_0 or a fork's type (ggml type 42)", None),
            (u32::MAX, "unknown (ggml type 4294967295)", None),
        ] {
            assert_eq!(describe_ggml_type(id), described);
            assert_eq!(ggml_type_size(id), size, "{described}");
        }
    }
}
