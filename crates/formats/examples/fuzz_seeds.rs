//! Writes the seed files of the fuzz targets: `cargo run -p overdraft-formats --example fuzz_seeds fuzz/corpus`.

#[path = "../tests/exercise/mod.rs"]
mod exercise;

use std::path::Path;

use overdraft_formats::gguf::{GgufWriter, Value};
use overdraft_formats::safetensors::SafeTensorsWriter;
use overdraft_formats::{Bytes, DType};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args().nth(1).ok_or("usage: fuzz_seeds <corpus folder>")?;
    let write = |target: &str, name: &str, bytes: &[u8]| {
        let folder = Path::new(&folder).join(target);
        std::fs::create_dir_all(&folder)?;
        std::fs::write(folder.join(name), bytes)
    };

    write("gguf", "everything", &exercise::sample_gguf())?;
    write("gguf", "no_tensors", &GgufWriter::new("llama").to_bytes()?)?;
    let mut strings = GgufWriter::new("llama");
    strings.set("general.alignment", 8u32).set("tokens", Value::strings(["a", "", "Ġb"]));
    write("gguf", "strings", &strings.to_bytes()?)?;
    for dtype in DType::all().filter(|d| d.ggml_id().is_some()) {
        let mut one = GgufWriter::new("a");
        let bytes = Bytes::from_vec(vec![0x5A; 2 * dtype.block_bytes()]);
        one.tensor("t", dtype, &[2, dtype.block_len()], bytes);
        write("gguf", dtype.name(), &one.to_bytes()?)?;
    }

    write("safetensors", "everything", &exercise::sample_safetensors())?;
    write("safetensors", "empty", &SafeTensorsWriter::new().to_bytes()?)?;
    for dtype in DType::all().filter(|d| !d.is_quantised()) {
        let bytes = Bytes::from_vec(vec![0x5A; 2 * dtype.block_bytes()]);
        let one = SafeTensorsWriter::new().tensor("t", dtype, &[2], bytes).to_bytes()?;
        write("safetensors", dtype.name(), &one)?;
    }
    Ok(())
}
