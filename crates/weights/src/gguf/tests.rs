mod generated;

use super::read;
use crate::testing::GgufWriter;
use crate::{OpenError, WeightFile, open};
use forthwith_core::format::Format;
use forthwith_core::metadata::Value;
use forthwith_core::shape::WeightSource;
use std::fs::File;
use std::path::Path;

const U8: u32 = 0;
const U32: u32 = 4;
const TEXT: u32 = 8;
const ARRAY: u32 = 9;
const U64: u32 = 10;

/// Fields written one after another.
#[derive(Clone, Default)]
struct Raw(Vec<u8>);

impl Raw {
    fn header(tensors: u64, keys: u64) -> Self {
        Self(b"GGUF".to_vec()).u32(3).u64(tensors).u64(keys)
    }

    fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn text(self, text: &str) -> Self {
        self.u64(text.len() as u64).bytes(text.as_bytes())
    }

    fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    /// A tensor's entry without its type and offset.
    fn shape(self, name: &str, dimensions: &[u64]) -> Self {
        let count = u32::try_from(dimensions.len()).unwrap();
        let start = self.text(name).u32(count);
        dimensions
            .iter()
            .fold(start, |raw, &dimension| raw.u64(dimension))
    }
}

/// Asserts that the file is refused with one line that names file and field.
fn check_refused(bytes: Vec<u8>, field: &str) {
    let error = WeightFile::from_bytes(Path::new("bad.gguf"), bytes).unwrap_err();
    check_message(&error, &format!("`bad.gguf`: {field}: "));
}

fn check_message(error: &OpenError, start: &str) {
    let message = error.to_string();
    assert!(
        message.starts_with(start),
        "{message}\nshould start with {start}"
    );
    assert_eq!(message.lines().count(), 1, "{message}");
}

#[test]
fn a16_enormous_counts_are_refused() {
    check_refused(Raw::header(1 << 32, 0).0, "tensor count");
    check_refused(Raw::header(u64::MAX, 0).0, "tensor count");
    check_refused(Raw::header(60_000, 0).0, "tensor count");
    check_refused(Raw::header(0, 1 << 63).0, "kv count");
    check_refused(Raw::header(0, 60_000).0, "kv count");
    let padding = [0; 64];
    check_refused(
        Raw::header(0, 1).u64(1 << 40).bytes(&padding).0,
        "key 0 length",
    );
    check_refused(
        Raw::header(0, 1).u64(u64::MAX).bytes(&padding).0,
        "key 0 length",
    );
    let key = || Raw::header(0, 1).text("a");
    let text = |length: u64| key().u32(TEXT).u64(length).bytes(&padding).0;
    check_refused(text(1 << 62), "key `a` string length");
    check_refused(text(1 << 20), "key `a` string length");
    let array = |kind: u32, count: u64| key().u32(ARRAY).u32(kind).u64(count).bytes(&padding).0;
    check_refused(array(U8, 1 << 63), "key `a` array length");
    check_refused(array(U64, u64::MAX), "key `a` array length");
    check_refused(array(TEXT, 1 << 31), "key `a` array length");
    check_refused(array(TEXT, 9), "key `a` array length");
    let nested = (0..10_000).fold(key().u32(ARRAY), |raw, _| raw.u32(ARRAY).u64(1));
    check_refused(nested.0, "key `a` array type");
    check_refused(key().u32(13).bytes(&padding).0, "key `a` value type");
    check_refused(array(99, 1), "key `a` array type");
}

#[test]
fn a16_alignment_must_be_a_u32_power_of_two() {
    let with = |kind: u32| Raw::header(0, 1).text("general.alignment").u32(kind);
    for alignment in [0, 3, 4, 24, 1 << 21, 1 << 31, u32::MAX] {
        check_refused(with(U32).u32(alignment).0, "key `general.alignment` value");
    }
    for alignment in [0, 3, 32, 1 << 31, 1 << 63] {
        check_refused(
            with(U64).u64(alignment).0,
            "key `general.alignment` value type",
        );
    }
    check_refused(
        with(TEXT).text("32").0,
        "key `general.alignment` value type",
    );
    for alignment in [8, 64, 1 << 20] {
        assert!(read(&with(U32).u32(alignment).0).is_ok());
    }
}

#[test]
fn a16_impossible_dimensions_are_refused() {
    let shape = |dimensions: &[u64]| Raw::header(1, 0).shape("t", dimensions).u32(0).u64(0).0;
    let many = Raw::header(1, 0).text("t").u32(u32::MAX).bytes(&[0; 64]);
    check_refused(many.0, "tensor `t` dimension count");
    check_refused(shape(&[1, 1, 1, 1, 1]), "tensor `t` dimension count");
    check_refused(
        Raw::header(1, 0).text("t").u32(0).bytes(&[0; 64]).0,
        "tensor `t` dimension count",
    );
    check_refused(shape(&[1 << 33, 1 << 33]), "tensor `t` dims");
    check_refused(shape(&[1 << 62, 1]), "tensor `t` dims");
    check_refused(shape(&[1 << 32, (1 << 32) + 8]), "tensor `t` dims");
    check_refused(shape(&[4, (1 << 62) + 2]), "tensor `t` dims");
    check_refused(shape(&[4, 0]), "tensor `t` dims");
    check_refused(shape(&[0, u64::MAX]), "tensor `t` dims");
    check_refused(shape(&[4, 4]), "tensor `t` offset");
}

#[test]
fn a16_cut_files_are_refused() {
    check_refused(vec![], "magic");
    check_refused(b"GGU".to_vec(), "magic");
    check_refused(b"GGUF".to_vec(), "version");
    check_refused(Raw::header(0, 0).0[..23].to_vec(), "kv count");
    let one_more = Raw::header(0, 2)
        .text("a")
        .u32(TEXT)
        .text("a value")
        .bytes(&[0; 4]);
    check_refused(one_more.0, "key 1 length");
    let mut into_tensors = sample().to_bytes();
    into_tensors[16] += 1;
    let error = WeightFile::from_bytes(Path::new("bad.gguf"), into_tensors).unwrap_err();
    check_message(&error, "`bad.gguf`: ");
}

#[test]
fn a16_a_sparse_gigabyte_of_zeros_is_refused_by_its_first_field() {
    let folder = tempfile::tempdir().unwrap();
    let string_array = Raw::header(0, 1)
        .text("a")
        .u32(ARRAY)
        .u32(TEXT)
        .u64(100_000_000);
    let byte_array = Raw::header(0, 1)
        .text("a")
        .u32(ARRAY)
        .u32(U8)
        .u64(900_000_000);
    for (name, header, field) in [
        ("keys", Raw::header(0, 5), "key 0 length"),
        ("tensors", Raw::header(5, 0), "tensor 0 name length"),
        ("strings", string_array, "key `a` value"),
        ("bytes", byte_array, "key `a` value"),
    ] {
        let path = folder.path().join(name);
        std::fs::write(&path, header.0).unwrap();
        File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(1 << 30)
            .unwrap();
        let error = open(&path).unwrap_err();
        check_message(&error, &format!("`{}`: {field}: ", path.display()));
    }
}

#[test]
fn versions_and_other_files_are_recognised() {
    let version = |version: u32| Raw(b"GGUF".to_vec()).u32(version).u64(0).u64(0).0;
    assert!(read(&version(2)).is_ok());
    assert!(read(&version(3)).is_ok());
    for (bytes, hint) in [
        (version(1), "convert"),
        (version(4), "supported are 2 and 3"),
        (version(3_u32.swap_bytes()), "other byte order"),
        (b"PK\x03\x04....".to_vec(), "never loaded"),
        (b"\x80\x02}q".to_vec(), "pickle"),
        (
            b"version https://git-lfs.github.com/spec/v1\n".to_vec(),
            "LFS pointer",
        ),
        (b"<!doctype html>".to_vec(), "web page"),
        (b"\x10\0\0\0\0\0\0\0{\"t\":{}}".to_vec(), "safetensors"),
    ] {
        let error = WeightFile::from_bytes(Path::new("x"), bytes)
            .unwrap_err()
            .to_string();
        assert!(error.contains(hint), "{error}");
    }
}

#[test]
fn names_must_be_new_utf8_and_not_empty() {
    let key = |raw: Raw, name: &[u8]| raw.u64(name.len() as u64).bytes(name).u32(U64).u64(1);
    let twice = key(key(Raw::header(0, 2), b"a"), b"a");
    check_refused(twice.0, "key `a`");
    check_refused(key(Raw::header(0, 1), b"").0, "key 0 length");
    check_refused(key(Raw::header(0, 1), b"\xff").0, "key 0 name");
    check_refused(key(Raw::header(0, 1), &[b'a'; 1025]).0, "key 0 length");
    check_refused(
        Raw::header(0, 1).text("a").u32(7).bytes(&[2]).0,
        "key `a` value",
    );
    let tensor = |name: &str| GgufWriter::new().tensor(name, Format::F32, &[1], &[1.0]);
    let twice = tensor("t").tensor("t", Format::F32, &[1], &[1.0]);
    check_refused(twice.to_bytes(), "tensor `t`");
    check_refused(tensor("").to_bytes(), "tensor 0 name length");
    check_refused(tensor(&"n".repeat(256)).to_bytes(), "tensor 0 name length");
    check_refused(
        Raw::header(0, 1)
            .text("a\n\x1b[2J")
            .u32(99)
            .bytes(&[0; 8])
            .0,
        "key `a\\n\\u{1b}[2J` value type",
    );
}

#[test]
fn tensors_must_lie_apart_and_aligned_inside_the_file() {
    let with_offsets = |first: u64, second: u64| {
        let raw = Raw::header(2, 0).shape("a", &[8]).u32(0).u64(first);
        let raw = raw.shape("b", &[8]).u32(0).u64(second);
        raw.bytes(&[0; 32 + 96]).0
    };
    assert!(read(&with_offsets(0, 32)).is_ok());
    assert!(read(&with_offsets(0, 64)).is_ok());
    for (first, second, at_fault) in [
        (0, 0, "b"),
        (32, 0, "b"),
        (0, 33, "b"),
        (1, 64, "a"),
        (0, 160, "b"),
        (0, u64::MAX - 31, "b"),
        (u64::MAX - 31, 0, "a"),
    ] {
        check_refused(
            with_offsets(first, second),
            &format!("tensor `{at_fault}` offset"),
        );
    }
}

#[test]
fn unsupported_types_are_named_with_what_would_work() {
    for (number, name) in [
        (24, "I8"),
        (42, "Q2_0"),
        (4, "Q4_2, removed"),
        (999, "unknown"),
    ] {
        let writer =
            GgufWriter::new().raw_tensor("blk.0.ffn_up.weight", number, &[256], vec![0; 1024]);
        let error = WeightFile::from_bytes(Path::new("x.gguf"), writer.to_bytes()).unwrap_err();
        let start = format!(
            "`x.gguf`: tensor `blk.0.ffn_up.weight` type: {number} ({name}) is not supported"
        );
        check_message(&error, &start);
        assert!(error.to_string().contains("Q4_K"), "{error}");
    }
}

#[test]
fn every_known_type_has_its_name() {
    for format in Format::ALL {
        assert_eq!(
            super::tensor_index::type_name(format.info().gguf_id),
            format.name()
        );
    }
}

#[test]
fn rows_must_be_whole_blocks() {
    let writer =
        GgufWriter::new().raw_tensor("t", Format::Q8_0.info().gguf_id, &[48, 2], vec![0; 128]);
    check_refused(writer.to_bytes(), "tensor `t` dims");
}

#[test]
fn the_first_dimension_is_the_columns_and_the_rest_fold_into_rows() {
    let values: Vec<f32> = (0_u8..24).map(f32::from).collect();
    let writer = GgufWriter::new()
        .tensor("one", Format::F32, &[24], &values)
        .tensor("two", Format::F32, &[8, 3], &values)
        .tensor("four", Format::F32, &[4, 3, 1, 2], &values);
    let file = WeightFile::from_bytes(Path::new("x"), writer.to_bytes()).unwrap();
    let shape = |name: &str| file.tensor(name).map(|view| (view.rows, view.cols));
    assert_eq!(shape("one"), Some((1, 24)));
    assert_eq!(shape("two"), Some((3, 8)));
    assert_eq!(shape("four"), Some((6, 4)));
    assert_eq!(shape("none"), None);
    assert_eq!(file.tensor("two").unwrap().to_f32(), values);
    let names: Vec<&str> = file.tensors().map(|view| view.name).collect();
    assert_eq!(names, ["one", "two", "four"]);
}

#[test]
fn only_regular_files_are_opened() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("none.gguf");
    assert!(matches!(open(&missing), Err(OpenError::Io { .. })));
    assert!(matches!(
        open(folder.path()),
        Err(OpenError::NotAFile {
            found: "a folder",
            ..
        })
    ));
}

#[cfg(unix)]
#[test]
fn pipes_and_devices_are_refused_without_being_opened() {
    let zero = open(Path::new("/dev/zero")).unwrap_err();
    assert_eq!(
        zero.to_string(),
        "`/dev/zero`: not a regular file, found a device; name a GGUF file"
    );
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    let made = std::process::Command::new("mkfifo")
        .arg(&pipe)
        .status()
        .unwrap();
    assert!(made.success());
    assert!(matches!(
        open(&pipe),
        Err(OpenError::NotAFile {
            found: "a named pipe",
            ..
        })
    ));
    let socket = folder.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    assert!(matches!(
        open(&socket),
        Err(OpenError::NotAFile {
            found: "a socket",
            ..
        })
    ));
}

#[test]
fn a_vocabulary_of_gemmas_size_is_read_whole() {
    let tokens: Vec<Vec<u8>> = (0..262_144)
        .map(|id| format!("token {id}").into_bytes())
        .collect();
    let writer = GgufWriter::new()
        .key("tokenizer.ggml.tokens", Value::Texts(tokens.clone()))
        .key("tokenizer.ggml.scores", Value::Floats(vec![-1.0; 262_144]));
    let index = read(&writer.to_bytes()).unwrap();
    assert_eq!(
        index.metadata.texts("tokenizer.ggml.tokens"),
        Ok(Some(&tokens[..]))
    );
}

/// A file with every kind of value and several formats.
fn sample() -> GgufWriter {
    let values: Vec<f32> = (0_u16..512).map(|index| f32::from(index) - 256.0).collect();
    GgufWriter::new()
        .key("general.architecture", Value::Text(b"llama".to_vec()))
        .key("a.unsigned", Value::Unsigned(1 << 40))
        .key("a.signed", Value::Signed(-5))
        .key("a.float", Value::Float(0.5))
        .key("a.bool", Value::Bool(true))
        .key(
            "a.texts",
            Value::Texts(vec![b"x".to_vec(), vec![], b"\xff".to_vec()]),
        )
        .key("a.integers", Value::Integers(vec![1, -2, i64::MAX]))
        .key("a.floats", Value::Floats(vec![1.5, -0.0]))
        .key("a.bools", Value::Bools(vec![true, false]))
        .tensor("q", Format::Q4_K, &[256, 2], &values)
        .tensor("norm", Format::F32, &[7], &values[..7])
        .tensor("e", Format::Q8_0, &[64, 4, 2], &values)
}

#[cfg(unix)]
#[test]
fn a_file_that_is_cut_after_it_was_opened_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let values = vec![1.5; 4096 * 8];
    let writer = GgufWriter::new().tensor("w", Format::F32, &[4096, 8], &values);
    std::fs::write(&path, writer.to_bytes()).unwrap();
    let file = open(&path).unwrap();
    let mut row = vec![0; 4 * 4096];
    file.read("w", 0, &mut row).unwrap();
    assert_eq!(row[..4], 1.5_f32.to_le_bytes());
    let cut = File::options().write(true).open(&path).unwrap();
    cut.set_len(file.file_bytes().get() - 4096).unwrap();
    let error = file.read("w", 7 * row.len(), &mut row).unwrap_err();
    let expected = format!("`{}`: it became shorter while it was read", path.display());
    assert_eq!(error.to_string(), expected);
    assert!(file.read("w", 8 * row.len(), &mut row).is_err());
    assert!(file.read("none", 0, &mut row).is_err());
}
