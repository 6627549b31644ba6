//! Tiny model files with enormous numbers, given to the binary.

use crate::forthwith;
use forthwith_weights::testing::GgufWriter;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

const TENSOR: &str = "output_norm.weight";
const U8: u32 = 0;
const U32: u32 = 4;
const STRING: u32 = 8;
const ARRAY: u32 = 9;
const U64: u32 = 10;

/// The bytes of a file, written piece by piece.
struct Bytes(Vec<u8>);

impl Bytes {
    fn header(tensors: u64, keys: u64) -> Self {
        Self(b"GGUF\x03\0\0\0".to_vec()).u64(tensors).u64(keys)
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
        let mut next = self.u64(text.len() as u64);
        next.0.extend(text.as_bytes());
        next
    }

    /// A tensor of these dimensions, F32, at the start of the data.
    fn tensor(self, dimensions: &[u64]) -> Self {
        let count = u32::try_from(dimensions.len()).unwrap();
        let named = self.text(TENSOR).u32(count);
        let sized = dimensions
            .iter()
            .fold(named, |bytes, &size| bytes.u64(size));
        sized.u32(0).u64(0)
    }
}

/// A file's name, its bytes, and a word that the refusal must name.
type Case = (&'static str, Bytes, &'static str);

fn hostile_counts() -> Vec<Case> {
    let half = b"GGUF\x03\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0".to_vec();
    let short = Bytes::header(0, 2).text("k").u32(U32).u32(7);
    vec![
        ("nothing", Bytes(Vec::new()), "magic"),
        ("three bytes", Bytes(b"GGU".to_vec()), "magic"),
        ("only magic", Bytes(b"GGUF".to_vec()), "version"),
        ("half a header", Bytes(half), "count"),
        ("many tensors", Bytes::header(1 << 32, 0), "tensor"),
        ("many keys", Bytes::header(0, 1 << 63), "key"),
        ("a missing key", short, "key"),
        ("a long key", Bytes::header(0, 1).u64(1 << 40), "key"),
    ]
}

fn hostile_values() -> Vec<Case> {
    let value = |kind| Bytes::header(0, 1).text("k").u32(kind);
    let nested = (0..10_000).fold(value(ARRAY), |bytes, _| bytes.u32(ARRAY).u64(1));
    let mut cases = vec![
        ("a long string", value(STRING).u64(1 << 62), "`k`"),
        ("many bytes", value(ARRAY).u32(U8).u64(1 << 63), "`k`"),
        ("many strings", value(ARRAY).u32(STRING).u64(1 << 31), "`k`"),
        ("nested arrays", nested, "`k`"),
        ("an unknown kind", value(99).u64(0), "`k`"),
    ];
    let key = "general.alignment";
    let value = |kind| Bytes::header(0, 1).text(key).u32(kind);
    cases.extend([
        ("alignment 0", value(U32).u32(0), key),
        ("alignment 3", value(U32).u32(3), key),
        ("alignment 2^31", value(U32).u32(1 << 31), key),
        ("a wide alignment", value(U64).u64(1 << 40), key),
        ("alignment in words", value(STRING).text("32"), key),
    ]);
    cases
}

fn hostile_tensors() -> Vec<Case> {
    let tensor = |dimensions: &[u64]| Bytes::header(1, 0).tensor(dimensions);
    let many = Bytes::header(1, 0).text(TENSOR).u32(u32::MAX);
    let wraps = tensor(&[1 << 32, (1 << 32) + 1, 8, 1]);
    vec![
        ("many dimensions", many, TENSOR),
        ("a huge tensor", tensor(&[1 << 33, 1 << 33]), TENSOR),
        ("a product that wraps", wraps, TENSOR),
        ("data that is not there", tensor(&[1 << 20]), TENSOR),
        ("no rows", tensor(&[0, 4]), TENSOR),
    ]
}

/// Runs the binary with little memory; it must refuse the file in one line.
fn check(arguments: &[&str], path: &Path, megabytes: u64, named: &str) {
    let folder = path.parent().unwrap();
    let binary = forthwith(folder);
    // What is not there cannot be allocated: a reader that tries ends by a signal.
    let script = format!("ulimit -v {}; exec \"$@\"", megabytes * 1024);
    let mut command = Command::new("sh");
    for (name, value) in binary.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let command = command
        .args(["-c", &script, "sh"])
        .arg(binary.get_program());
    let output = command.args(arguments).arg(path).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{named}: {errors}");
    let lines: Vec<&str> = errors
        .lines()
        .filter(|line| line.starts_with("error: "))
        .collect();
    assert_eq!(lines.len(), 1, "{errors}");
    let name = path.file_name().unwrap().to_str().unwrap();
    assert!(lines[0].contains(name), "{errors}");
    assert!(lines[0].contains(named), "{named} is not in: {errors}");
    assert!(!errors.contains("panicked"), "{errors}");
}

#[test]
fn hostile_files_are_refused_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let cases = [hostile_counts(), hostile_values(), hostile_tensors()];
    for (name, Bytes(bytes), named) in cases.into_iter().flatten() {
        let path = folder.path().join(format!("{name}.gguf"));
        fs::write(&path, bytes).unwrap();
        check(&["inspect"], &path, 400, named);
        check(&["run", "hi", "--model"], &path, 400, named);
    }
    let path = folder.path().join("many strings.gguf");
    check(&["serve", "--port", "0", "--model"], &path, 400, "`k`");
}

#[test]
fn a_large_file_of_nothing_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sparse.gguf");
    GgufWriter::new().write(&path).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    file.set_len(1 << 30).unwrap();
    check(&["inspect"], &path, 1500, "general.architecture");
}
