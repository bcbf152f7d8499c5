//! The sources of every kernel, inside the binary.

macro_rules! sources {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../kernels/", $name, ".cu")))),*]
    };
}

/// (module, text), each compiled by itself.
const SOURCES: &[(&str, &str)] = sources![
    "attention",
    "attention_bf16",
    "attention_f16",
    "attention_prepare",
    "commit",
    "copies",
    "embed",
    "expert_tiles",
    "expert_tiles_all",
    "experts",
    "image",
    "linear_1",
    "linear_1_all",
    "linear_2",
    "linear_2_all",
    "linear_3",
    "linear_3_all",
    "linear_4",
    "linear_4_all",
    "linear_simple",
    "norm",
    "prompt_image",
    "prompt_iq4",
    "prompt_mxfp4",
    "prompt_q3_k",
    "prompt_q4_0",
    "prompt_q4_k",
    "prompt_q5_0",
    "prompt_q5_1",
    "prompt_q5_k",
    "prompt_q8_0",
    "recurrent",
    "recurrent_lone",
    "recurrent_pair",
    "recurrent_walk",
    "round",
    "route",
    "sample",
    "top_tokens",
];

/// (name as included, text).
pub(crate) const HEADERS: &[(&str, &str)] = &[
    ("attention_chunks.cuh", include_str!("../kernels/attention_chunks.cuh")),
    ("attention_parts.cuh", include_str!("../kernels/attention_parts.cuh")),
    ("attention_tiles.cuh", include_str!("../kernels/attention_tiles.cuh")),
    ("attention_walk.cuh", include_str!("../kernels/attention_walk.cuh")),
    ("chance.cuh", include_str!("../kernels/chance.cuh")),
    ("common.cuh", include_str!("../kernels/common.cuh")),
    ("dot.cuh", include_str!("../kernels/dot.cuh")),
    ("expert_tiles.cuh", include_str!("../kernels/expert_tiles.cuh")),
    ("image.cuh", include_str!("../kernels/image.cuh")),
    ("keep.cuh", include_str!("../kernels/keep.cuh")),
    ("linear.cuh", include_str!("../kernels/linear.cuh")),
    ("linear_finish.cuh", include_str!("../kernels/linear_finish.cuh")),
    ("linear_formats.cuh", include_str!("../kernels/linear_formats.cuh")),
    ("linear_gather.cuh", include_str!("../kernels/linear_gather.cuh")),
    ("linear_params.cuh", include_str!("../kernels/linear_params.cuh")),
    ("linear_ptx.cuh", include_str!("../kernels/linear_ptx.cuh")),
    ("linear_ring.cuh", include_str!("../kernels/linear_ring.cuh")),
    ("linear_sums.cuh", include_str!("../kernels/linear_sums.cuh")),
    ("linear_wgmma.cuh", include_str!("../kernels/linear_wgmma.cuh")),
    ("prompt_finish.cuh", include_str!("../kernels/prompt_finish.cuh")),
    ("prompt_image.cuh", include_str!("../kernels/prompt_image.cuh")),
    ("prompt_linear.cuh", include_str!("../kernels/prompt_linear.cuh")),
    ("prompt_params.cuh", include_str!("../kernels/prompt_params.cuh")),
    ("prompt_ring.cuh", include_str!("../kernels/prompt_ring.cuh")),
    ("prompt_sums.cuh", include_str!("../kernels/prompt_sums.cuh")),
    ("prompt_wgmma.cuh", include_str!("../kernels/prompt_wgmma.cuh")),
    ("quant.cuh", include_str!("../kernels/quant.cuh")),
    ("recurrent_head.cuh", include_str!("../kernels/recurrent_head.cuh")),
    ("recurrent_pair.cuh", include_str!("../kernels/recurrent_pair.cuh")),
    ("recurrent_rows.cuh", include_str!("../kernels/recurrent_rows.cuh")),
    ("recurrent_state.cuh", include_str!("../kernels/recurrent_state.cuh")),
    ("row_cluster.cuh", include_str!("../kernels/row_cluster.cuh")),
    ("step.cuh", include_str!("../kernels/step.cuh")),
];

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
    fn every_kernel_file_is_listed_and_every_listed_one_includes_only_its_own() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
        for entry in std::fs::read_dir(folder).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let listed = match name.strip_suffix(".cu") {
                Some(module) => SOURCES.iter().any(|s| s.0 == module),
                None => name == "registers.txt" || HEADERS.iter().any(|h| h.0 == name),
            };
            assert!(listed, "{name}");
        }
        for (name, text) in SOURCES.iter().chain(HEADERS) {
            for line in text.lines().filter(|l| l.starts_with("#include")) {
                assert!(HEADERS.iter().any(|h| line == format!("#include \"{}\"", h.0)), "{name}: {line}");
            }
        }
    }

    #[test]
    fn modules_have_different_hashes() {
        let hashes: std::collections::HashSet<u128> = modules().map(source_hash).collect();
        assert_eq!(hashes.len(), SOURCES.len());
    }
}
