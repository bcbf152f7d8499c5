//! Reads everything a file offers, as a caller could. Shared by the tests on hostile input and by the fuzz targets:
//! whatever the bytes are, this must return, and soon.
#![allow(dead_code, reason = "each user takes the formats it is about")]

use overdraft_formats::gguf::{Gguf, GgufWriter, Value};
use overdraft_formats::hf_config::HfConfig;
use overdraft_formats::safetensors::{SafeTensors, SafeTensorsWriter};
use overdraft_formats::{Bytes, DType, Result, Tensor, TensorInfo};

/// Decodes every tensor that can be; returns how many.
fn decode_all(infos: &[TensorInfo], get: impl Fn(&str) -> Result<Option<Tensor>>) -> usize {
    let mut decoded = 0;
    for info in infos {
        if let Ok(tensor) = get(&info.name) {
            let tensor = tensor.expect("a listed tensor is found");
            assert_eq!(Some(tensor.bytes.len()), info.n_bytes);
            assert!(tensor.row_len() == 0 || tensor.row(tensor.n_rows()).is_none());
            decoded += usize::from(tensor.to_f32().is_ok());
        }
    }
    decoded
}

pub(crate) fn gguf(bytes: &[u8]) -> Result<usize> {
    let gguf = Gguf::from_bytes("hostile.gguf", Bytes::from_vec(bytes.to_vec()))?;
    let mut errors = 0;
    for (key, value) in gguf.keys() {
        assert_eq!(gguf.value(key).map(ToString::to_string), Some(value.to_string()));
        errors += usize::from(gguf.get_u64(key).is_err()) + usize::from(gguf.get_i64(key).is_err());
        errors += usize::from(gguf.get_f32(key).is_err()) + usize::from(gguf.get_bool(key).is_err());
        errors += usize::from(gguf.get_str(key).is_err()) + usize::from(gguf.get_u64_array(key).is_err());
        errors +=
            usize::from(gguf.get_i32_array(key).is_err()) + usize::from(gguf.get_f32_array(key).is_err());
        errors += usize::from(gguf.get_u64_per_layer(key).is_err());
        match gguf.get_str_array(key) {
            Ok(texts) => errors += texts.map_or(0, |t| t.iter().filter(|t| t.is_err()).count()),
            Err(e) => errors += e.to_string().len().min(1),
        }
    }
    std::hint::black_box(errors);
    Ok(decode_all(gguf.tensors(), |name| gguf.tensor(name)))
}

pub(crate) fn safetensors(bytes: &[u8]) -> Result<usize> {
    let model = SafeTensors::from_bytes("hostile.safetensors", Bytes::from_vec(bytes.to_vec()))?;
    std::hint::black_box(model.metadata().len());
    Ok(decode_all(model.tensors(), |name| model.tensor(name)))
}

pub(crate) fn hf_config(bytes: &[u8]) -> Result<usize> {
    let config = HfConfig::from_json("config.json", bytes)?;
    let mut errors = 0;
    for section in [config.text(), config.section("rope_parameters").unwrap_or_else(|| config.clone())] {
        for key in ["hidden_size", "layer_types", "eos_token_id", "rms_norm_eps", "tie", "factor", ""] {
            errors += usize::from(section.get_u64(key).is_err()) + usize::from(section.get_f64(key).is_err());
            errors +=
                usize::from(section.get_bool(key).is_err()) + usize::from(section.get_str(key).is_err());
            errors += usize::from(section.get_u64_list(key).is_err());
            errors += usize::from(section.get_str_list(key).is_err());
        }
    }
    Ok(errors)
}

/// A valid GGUF with values of every kind and a tensor of every type GGUF has.
pub(crate) fn sample_gguf() -> Vec<u8> {
    let mut writer = GgufWriter::new("llama");
    writer.set("a", 1u8).set("b", -1i16).set("c", 0.5f32).set("d", true).set("e", u64::MAX).set("f", 1e300);
    writer.set("llama.block_count", 2u32).set("general.alignment", 32u32).set("split.count", 1u16);
    writer.set("heads", &[4u32, 0][..]).set("flags", &[true, false][..]).set("scores", &[-1.5f32][..]);
    writer.set("tokenizer.ggml.tokens", Value::strings(["<s>", "Ġa", ""]));
    for dtype in DType::all().filter(|d| d.ggml_id().is_some()) {
        let bytes = (0..dtype.block_bytes()).map(|i| (37 * i + 11) as u8).collect();
        writer.tensor(&format!("blk.0.{dtype}"), dtype, &[1, dtype.block_len()], Bytes::from_vec(bytes));
    }
    writer.to_bytes().expect("the sample is valid")
}

/// A valid safetensors file with a tensor of every type we write.
pub(crate) fn sample_safetensors() -> Vec<u8> {
    let mut writer = SafeTensorsWriter::new();
    writer.metadata("format", "pt");
    for dtype in DType::all().filter(|d| !d.is_quantised()) {
        let bytes = (0..2 * dtype.block_bytes()).map(|i| (37 * i + 11) as u8).collect();
        writer.tensor(&format!("layers.0.{dtype}"), dtype, &[2, 1], Bytes::from_vec(bytes));
    }
    writer.to_bytes().expect("the sample is valid")
}

pub(crate) const SAMPLE_CONFIG: &[u8] = br#"{"architectures": ["Qwen3_5ForConditionalGeneration"],
    "text_config": {"hidden_size": 512, "rms_norm_eps": 1e-6, "tie": true, "eos_token_id": [1, 2.0],
    "layer_types": ["full_attention"], "rope_parameters": {"factor": 8.0}, "none": null}, "hidden_size": "x"}"#;
