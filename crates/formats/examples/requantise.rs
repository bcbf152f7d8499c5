//! Writes a GGUF file again with all its quantised matrices in another type, for checks that want one model in several:
//! `cargo run --release -p overdraft-formats --example requantise IN.gguf OUT.gguf Q8_0`.

use std::error::Error;
use std::io::BufWriter;
use std::path::Path;

use overdraft_formats::gguf::{Gguf, GgufWriter};
use overdraft_formats::{Bytes, DType};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [input, output, dtype] = &args[..] else {
        return Err("usage: requantise IN.gguf OUT.gguf TYPE".into());
    };
    let wanted = DType::all().find(|d| d.name() == dtype);
    let wanted = wanted.ok_or_else(|| format!("`{dtype}` is no type; one is `{}`", DType::Q8_0.name()))?;
    let file = Gguf::open(Path::new(input))?;
    let mut writer = GgufWriter::new(file.need_str("general.architecture")?);
    for (key, value) in file.keys() {
        writer.set(key, value.clone());
    }
    for info in file.tensors() {
        let tensor = file.need_tensor(&info.name)?;
        if !tensor.dtype.is_quantised() {
            writer.tensor(&info.name, tensor.dtype, &tensor.shape, tensor.bytes.clone());
            continue;
        }
        let values = tensor.to_f32()?;
        let mut bytes = Vec::new();
        for row in values.chunks_exact(tensor.row_len()) {
            wanted.encode_row(row, &mut bytes)?;
        }
        writer.tensor(&info.name, wanted, &tensor.shape, Bytes::from_vec(bytes));
    }
    writer.write(&mut BufWriter::new(std::fs::File::create(output)?))?;
    Ok(())
}
