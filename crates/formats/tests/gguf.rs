//! What is written comes back: keys of every type, tensors in place, models split over files.

use std::path::{Path, PathBuf};

use overdraft_formats::gguf::{Gguf, GgufWriter, PerLayer, Value};
use overdraft_formats::{Bytes, DType, Error, StoredType};

fn read(writer: &GgufWriter) -> Gguf {
    Gguf::from_bytes("model.gguf", Bytes::from_vec(writer.to_bytes().unwrap())).unwrap()
}

fn f32_bytes(values: &[f32]) -> Bytes {
    Bytes::from_vec(values.iter().flat_map(|v| v.to_le_bytes()).collect())
}

#[track_caller]
fn error<T: std::fmt::Debug>(result: overdraft_formats::Result<T>) -> String {
    result.unwrap_err().to_string()
}

/// A folder of its own for each test, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("overdraft-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, writer: &GgufWriter) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, writer.to_bytes().unwrap()).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn every_kind_of_value_comes_back_in_order() {
    let values: Vec<(&str, Value)> = vec![
        ("general.architecture", "llama".into()),
        ("u8", 200u8.into()),
        ("i8", (-100i8).into()),
        ("u16", 60_000u16.into()),
        ("i16", (-30_000i16).into()),
        ("u32", u32::MAX.into()),
        ("i32", i32::MIN.into()),
        ("u64", u64::MAX.into()),
        ("i64", i64::MIN.into()),
        ("f32", 1.5f32.into()),
        ("f64", 1e300f64.into()),
        ("bool", true.into()),
        ("empty string", "".into()),
        ("string", "naïve\0text".into()),
        ("bools", (&[true, false][..]).into()),
        ("i32s", (&[1i32, -2, 3][..]).into()),
        ("f32s", (&[0.5f32, f32::INFINITY][..]).into()),
        ("strings", Value::strings(["a", "", "Ġthe"])),
        ("no strings", Value::strings::<&str>([])),
        ("no numbers", (&[0u64; 0][..]).into()),
    ];
    let mut writer = GgufWriter::new("overwritten below");
    for (key, value) in &values {
        writer.set(key, value.clone());
    }
    let gguf = read(&writer);
    let found: Vec<(&str, Value)> = gguf.keys().map(|(k, v)| (k, v.clone())).collect();
    assert_eq!(found, values);
    assert_eq!(gguf.version(), 3);
    for (key, value) in &values {
        assert_eq!(gguf.value(key), Some(value), "{key}");
    }
    assert_eq!(gguf.value("absent"), None);
}

#[test]
fn getters_take_any_width_that_fits_and_name_what_does_not() {
    let mut writer = GgufWriter::new("llama");
    writer.set("i32", 7i32).set("u64", 7u64).set("negative", -1i32).set("float", 0.5f32).set("one", 1u8);
    writer.set("yes", true).set("text", "x").set("broken", Value::Str(Bytes::from_vec(vec![0xFF])));
    writer.set("layers", &[1u32, 2][..]).set("flags", &[true, false][..]).set("signed", &[1i32, -1][..]);
    writer.set("words", Value::strings(["a", "b"]));
    writer.set("odd words", Value::strings([&b"fine"[..], &[0xC0]]));
    let gguf = read(&writer);

    for key in ["i32", "u64"] {
        assert_eq!(gguf.get_u64(key).unwrap(), Some(7));
        assert_eq!(gguf.get_f32(key).unwrap(), Some(7.0));
        assert_eq!(gguf.get_u64_per_layer(key).unwrap().unwrap().get(1000), Some(7));
    }
    assert_eq!(gguf.get_i64("negative").unwrap(), Some(-1));
    assert_eq!((gguf.get_bool("yes").unwrap(), gguf.get_bool("one").unwrap()), (Some(true), Some(true)));
    assert_eq!(gguf.get_u64_array("flags").unwrap(), Some(vec![1, 0]));
    assert_eq!(gguf.get_i32_array("signed").unwrap(), Some(vec![1, -1]));
    assert_eq!(gguf.get_f32_array("layers").unwrap(), Some(vec![1.0, 2.0]));
    assert_eq!(gguf.get_u64_per_layer("layers").unwrap(), Some(PerLayer::Each(vec![1, 2])));
    assert_eq!(gguf.get_u64_per_layer("layers").unwrap().unwrap().get(2), None);
    let words = gguf.need_str_array("words").unwrap();
    assert_eq!((words.len(), words.bytes().next()), (2, Some(&b"a"[..])));
    assert_eq!(words.iter().collect::<Result<Vec<_>, _>>().unwrap(), ["a", "b"]);
    assert_eq!((gguf.get_u64("absent").unwrap(), gguf.get_str("absent").unwrap()), (None, None));

    let odd: Result<Vec<_>, _> = gguf.need_str_array("odd words").unwrap().iter().collect();
    for (found, said) in [
        (
            error(gguf.get_u64("negative")),
            "model.gguf: key `negative`: is i32 -1, expected a whole number that is not negative",
        ),
        (error(gguf.get_u64("float")), "key `float`: is f32 0.5"),
        (error(gguf.get_u64("yes")), "key `yes`: is bool true"),
        (error(gguf.get_f32("text")), "key `text`: is string `x`, expected a number"),
        (error(gguf.get_bool("i32")), "key `i32`: is i32 7, expected true or false"),
        (error(gguf.get_str("broken")), "key `broken`: is string of 1 bytes that are not UTF-8"),
        (error(gguf.get_u64_array("signed")), "key `signed`: entry 1 is i32 -1"),
        (
            error(gguf.get_u64_array("words")),
            "key `words`: is array of 2 string, expected an array of whole numbers",
        ),
        (error(gguf.get_u64_array("i32")), "key `i32`: is i32 7, expected an array"),
        (
            error(gguf.get_str_array("layers")),
            "key `layers`: is array of 2 u32, expected an array of strings",
        ),
        (error(gguf.need_u64("llama.block_count")), "model.gguf: key `llama.block_count`: missing"),
        (error(odd), "key `odd words`: entry 1: invalid utf-8"),
    ] {
        assert!(found.contains(said), "{found}\nshould contain\n{said}");
    }
}

#[test]
fn tensors_come_back_outermost_dimension_first() {
    let mut writer = GgufWriter::new("llama");
    let scalar = f32_bytes(&[3.0]);
    let matrix = f32_bytes(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let experts = Bytes::from_vec((0..2 * 3 * 34).map(|i| i as u8).collect());
    writer.tensor("scalar", DType::F32, &[], scalar.clone());
    writer.tensor("matrix", DType::F32, &[2, 3], matrix);
    writer.tensor("experts", DType::Q8_0, &[2, 3, 32], experts.clone());
    for alignment in [8u32, 32, 4096] {
        writer.set("general.alignment", alignment);
        let gguf = read(&writer);
        let names: Vec<_> = gguf.tensors().iter().map(|t| t.name.as_str()).collect();
        assert_eq!(names, ["scalar", "matrix", "experts"]);
        let matrix = gguf.need_tensor("matrix").unwrap();
        assert_eq!((matrix.shape.as_slice(), matrix.dtype), (&[2, 3][..], DType::F32));
        assert_eq!(matrix.row(1), Some(&f32_bytes(&[4.0, 5.0, 6.0])[..]));
        assert_eq!(matrix.to_f32().unwrap(), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        assert_eq!(gguf.need_tensor("experts").unwrap().bytes, experts);
        assert_eq!(gguf.need_tensor("scalar").unwrap().bytes, scalar);
        assert!(gguf.tensor("absent").unwrap().is_none());
        assert!(error(gguf.need_tensor("absent")).contains("model.gguf: tensor `absent`: missing"));
    }
}

/// Bytes of a file with one tensor of the given ggml type, which the writer would refuse to write.
fn with_type(id: u32, bytes: usize) -> Bytes {
    let mut writer = GgufWriter::new("llama");
    writer.tensor("t", DType::I8, &[bytes], Bytes::from_vec(vec![0; bytes]));
    let mut file = writer.to_bytes().unwrap();
    let at = file.windows(4).rposition(|w| w == 24u32.to_le_bytes()).unwrap();
    file[at..at + 4].copy_from_slice(&id.to_le_bytes());
    Bytes::from_vec(file)
}

#[test]
fn a_tensor_of_a_type_not_read_is_listed_and_refused_only_when_asked_for() {
    for (id, n_bytes, described) in [
        (17, Some(74), "IQ2_XS (ggml type 17)"),
        (40, Some(144), "NVFP4 (ggml type 40)"),
        (43, None, "unknown (ggml type 43)"),
    ] {
        let gguf = Gguf::from_bytes("model.gguf", with_type(id, 256)).unwrap();
        let info = gguf.tensor_info("t").unwrap();
        assert_eq!((&info.stored, info.n_bytes), (&StoredType::Unread(described.into()), n_bytes));
        let said = error(gguf.tensor("t"));
        let expected = format!(
            "model.gguf: tensor `t`: is {described}, which this build does not read; it reads F32, F16, BF16"
        );
        assert!(said.starts_with(&expected), "{said}");
    }
}

#[test]
fn the_writer_refuses_what_no_reader_would_take() {
    #[rustfmt::skip]
    let cases: [(&str, DType, &[usize], usize, &str); 7] = [
        ("t",              DType::F32,  &[2],             4,  "[2] of F32 takes 8 bytes, 4 were given"),
        ("t",              DType::Q8_0, &[16],            17, "[16] is not whole blocks of 32 of Q8_0"),
        ("t",              DType::U8,   &[4],             4,  "U8 has no place in GGUF"),
        ("t",              DType::F32,  &[1, 1, 1, 1, 1], 4,  "up to 4 dimensions"),
        ("t",              DType::F32,  &[0],             0,  "none of them 0"),
        ("",               DType::F32,  &[1],             4,  "the name is 0 bytes long"),
        (&"n".repeat(64),  DType::F32,  &[1],             4,  "the name is 64 bytes long"),
    ];
    for (name, dtype, shape, n_bytes, problem) in cases {
        let mut writer = GgufWriter::new("llama");
        writer.tensor(name, dtype, shape, Bytes::from_vec(vec![0; n_bytes]));
        let said = error(writer.to_bytes());
        assert!(said.contains(problem), "{said}");
    }
    let mut twice = GgufWriter::new("llama");
    twice.tensor("t", DType::F32, &[], f32_bytes(&[1.0])).tensor("t", DType::F32, &[], f32_bytes(&[1.0]));
    assert!(error(twice.to_bytes()).contains("tensor `t`: added twice"));
    assert!(error(GgufWriter::new("a").set("general.alignment", 24u32).to_bytes()).contains("power of two"));
    assert!(error(GgufWriter::new("a").set("", 1u32).to_bytes()).contains("key: empty"));
}

fn shard(no: u16, count: u16, total: i32, tensor: &str) -> GgufWriter {
    let mut writer = GgufWriter::new("llama");
    writer.set("split.no", no).set("split.count", count).set("split.tensors.count", total);
    writer.set("which", u32::from(no));
    writer.tensor(tensor, DType::F32, &[1], f32_bytes(&[f32::from(no)]));
    writer
}

fn shard_path(folder: &Path, no: u16) -> PathBuf {
    folder.join(format!("m-{no:05}-of-00003.gguf"))
}

#[test]
fn a_split_model_opens_by_its_first_file() {
    let folder = Folder::new("split");
    for no in 0..3 {
        folder.write(&format!("m-{:05}-of-00003.gguf", no + 1), &shard(no, 3, 3, &format!("t{no}")));
    }
    let gguf = Gguf::open(&shard_path(&folder.0, 1)).unwrap();
    assert_eq!(gguf.get_u64("which").unwrap(), Some(0), "keys come from the first file");
    for no in 0..3u16 {
        let values = gguf.need_tensor(&format!("t{no}")).unwrap().to_f32().unwrap();
        assert_eq!(values, [f32::from(no)]);
    }
    let later = error(Gguf::open(&shard_path(&folder.0, 2)));
    assert!(later.contains("this is file 2 of 3; open the first, `m-00001-of-00003.gguf`"), "{later}");
}

#[test]
fn a_split_model_that_does_not_fit_together_is_refused() {
    let folder = Folder::new("misfit");
    let first = |writer: &GgufWriter| folder.write("m-00001-of-00003.gguf", writer);
    let rest = |no: u16, writer: &GgufWriter| folder.write(&format!("m-{:05}-of-00003.gguf", no + 1), writer);
    let path = first(&shard(0, 3, 3, "t0"));
    rest(1, &shard(1, 3, 3, "t1"));

    let missing = Gguf::open(&path).unwrap_err();
    assert!(
        matches!(&missing, Error::Io { file, .. } if file.ends_with("m-00003-of-00003.gguf")),
        "{missing}"
    );
    rest(2, &shard(1, 3, 3, "t2"));
    assert!(
        error(Gguf::open(&path))
            .contains("m-00003-of-00003.gguf: keys `split.no`, `split.count`: file 2 of 3")
    );
    rest(2, &shard(2, 3, 3, "t1"));
    let twice = error(Gguf::open(&path));
    assert!(
        twice.contains("tensor `t1`: occurs in") && twice.contains("m-00002-of-00003.gguf as well"),
        "{twice}"
    );
    rest(2, &shard(2, 3, 3, "t2"));
    assert!(Gguf::open(&path).is_ok());
    first(&shard(0, 3, 4, "t0"));
    assert!(error(Gguf::open(&path)).contains("`split.tensors.count`: 4, but the 3 files hold 3 tensors"));

    let renamed = folder.write("renamed.gguf", &shard(0, 3, 3, "t0"));
    assert!(error(Gguf::open(&renamed)).contains("must be named `<model>-00001-of-00003.gguf`"));
    let in_memory = Bytes::from_vec(shard(0, 3, 3, "t0").to_bytes().unwrap());
    assert!(error(Gguf::from_bytes("m", in_memory)).contains("must be opened by path"));
    let beyond = folder.write("beyond.gguf", &shard(3, 3, 3, "t0"));
    assert!(error(Gguf::open(&beyond)).contains("`split.no`: 3 of 3 files"));
}

#[test]
fn a_large_vocabulary_is_read_in_place() {
    let tokens: Vec<String> = (0..250_000).map(|i| format!("token {i}")).collect();
    let mut writer = GgufWriter::new("llama");
    writer.set("tokenizer.ggml.tokens", Value::strings(&tokens));
    let gguf = read(&writer);
    let texts = gguf.need_str_array("tokenizer.ggml.tokens").unwrap();
    assert_eq!(texts.len(), tokens.len());
    assert!(texts.iter().zip(&tokens).all(|(found, token)| found.unwrap() == token));
}
