//! What is written comes back, from one file and from shards.

use std::path::PathBuf;

use overdraft_formats::safetensors::{SafeTensors, SafeTensorsWriter};
use overdraft_formats::{Bytes, DType, StoredType};

fn bytes(n: usize) -> Bytes {
    Bytes::from_vec((0..n).map(|i| i as u8).collect())
}

/// A folder of its own for each test, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("overdraft-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        std::fs::write(self.0.join(name), bytes).unwrap();
    }

    fn error(&self) -> String {
        SafeTensors::open(&self.0).unwrap_err().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn every_type_and_shape_comes_back() {
    use DType::*;
    let mut writer = SafeTensorsWriter::new();
    writer.metadata("format", "pt");
    for dtype in [F32, F16, BF16, F64, I8, I16, I32, I64, U8] {
        writer.tensor(dtype.name(), dtype, &[2, 3], bytes(6 * dtype.block_bytes()));
    }
    writer.tensor("scalar", F32, &[], bytes(4)).tensor("empty", F32, &[0, 5], bytes(0));
    let model = SafeTensors::from_bytes("m", Bytes::from_vec(writer.to_bytes().unwrap())).unwrap();
    assert_eq!(model.metadata(), [("format".to_owned(), "pt".to_owned())]);
    assert_eq!(model.tensors().len(), 11);
    for dtype in [F32, F16, BF16, F64, I8, I16, I32, I64, U8] {
        let tensor = model.need_tensor(dtype.name()).unwrap();
        assert_eq!((tensor.dtype, tensor.shape.as_slice()), (dtype, &[2, 3][..]));
        assert_eq!(tensor.bytes, bytes(6 * dtype.block_bytes()));
        assert_eq!(tensor.row(1).unwrap().len(), 3 * dtype.block_bytes());
    }
    assert_eq!(model.need_tensor("scalar").unwrap().n_elements(), 1);
    assert_eq!(model.need_tensor("empty").unwrap().to_f32().unwrap(), [0f32; 0]);
    assert!(model.tensor("absent").unwrap().is_none());
}

#[test]
fn other_types_are_listed_and_refused_only_when_asked_for() {
    for (dtype, size, described) in
        [("F8_E4M3", 6, "F8_E4M3"), ("F4", 3, "F4"), ("X9", 77, "X9, an unknown type")]
    {
        let header = format!(r#"{{"t":{{"dtype":"{dtype}","shape":[2,3],"data_offsets":[0,{size}]}}}}"#);
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend_from_slice(header.as_bytes());
        file.resize(file.len() + size, 0);
        let model = SafeTensors::from_bytes("m", Bytes::from_vec(file)).unwrap();
        let info = model.tensor_info("t").unwrap();
        assert_eq!((&info.stored, info.n_bytes), (&StoredType::Unread(described.into()), Some(size)));
        let said = model.tensor("t").unwrap_err().to_string();
        assert!(said.starts_with(&format!("m: tensor `t`: is {described}, which this build does not read")));
    }
}

#[test]
fn the_writer_refuses_what_does_not_fit_together() {
    for (dtype, shape, n_bytes) in
        [(DType::F32, vec![2], 4), (DType::Q8_0, vec![32], 34), (DType::U8, vec![], 0)]
    {
        let refused = SafeTensorsWriter::new().tensor("t", dtype, &shape, bytes(n_bytes)).to_bytes();
        assert!(refused.unwrap_err().to_string().contains("tensor `t`"), "{dtype}");
    }
    let mut twice = SafeTensorsWriter::new();
    twice.tensor("t", DType::U8, &[1], bytes(1)).tensor("t", DType::U8, &[1], bytes(1));
    assert!(twice.to_bytes().unwrap_err().to_string().contains("added twice"));
}

fn shard(tensors: &[&str]) -> Vec<u8> {
    let mut writer = SafeTensorsWriter::new();
    for name in tensors {
        writer.tensor(name, DType::U8, &[3], bytes(3));
    }
    writer.to_bytes().unwrap()
}

#[test]
fn a_folder_opens_by_its_single_file_or_by_its_index() {
    let folder = Folder::new("folder");
    assert!(folder.error().contains("holds neither `model.safetensors` nor `model.safetensors.index.json`"));
    folder.write("a.safetensors", shard(&["x", "y"]));
    folder.write("b.safetensors", shard(&["z"]));
    folder.write(
        "model.safetensors.index.json",
        r#"{"metadata": {"total_size": 9},
            "weight_map": {"x": "a.safetensors", "y": "a.safetensors", "z": "b.safetensors"}}"#,
    );
    let model = SafeTensors::open(&folder.0).unwrap();
    assert_eq!(model.tensors().len(), 3);
    assert_eq!(model.need_tensor("z").unwrap().bytes, bytes(3));

    folder.write("model.safetensors", shard(&["only"]));
    assert!(SafeTensors::open(&folder.0).unwrap().tensor("only").unwrap().is_some());
    assert!(SafeTensors::open(&folder.0.join("b.safetensors")).unwrap().tensor("z").unwrap().is_some());
}

#[test]
fn shards_that_do_not_fit_their_index_are_refused() {
    let folder = Folder::new("shards");
    folder.write("a.safetensors", shard(&["x"]));
    let index =
        |map: &str| folder.write("model.safetensors.index.json", format!(r#"{{"weight_map": {map}}}"#));

    index(r#"{"x": "a.safetensors", "y": "missing.safetensors"}"#);
    assert!(folder.error().contains("missing.safetensors: "), "{}", folder.error());
    index(r#"{"x": "a.safetensors", "y": "a.safetensors"}"#);
    assert!(folder.error().contains("index.json: tensor `y`: is listed, but no shard holds it"));
    index(r#"{"x": "a.safetensors", "y": "../a.safetensors"}"#);
    assert!(folder.error().contains("shard `../a.safetensors`: a shard must be the name of a file"));
    folder.write("b.safetensors", shard(&["x"]));
    index(r#"{"x": "a.safetensors", "y": "b.safetensors"}"#);
    let twice = folder.error();
    assert!(twice.contains("tensor `x`: occurs in") && twice.contains("a.safetensors as well"), "{twice}");
}
