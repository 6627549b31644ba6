//! The real models' metadata, read just well enough for these tests.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use forthwith_core::metadata::{Metadata, Value};

/// The path of a real model, if `FORTHWITH_TEST_MODELS` names a folder that has it.
pub(crate) fn model(file: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("FORTHWITH_TEST_MODELS");
    let path = folder.map(|folder| Path::new(&folder).join(file));
    let path = path.filter(|path| path.exists());
    if path.is_none() {
        eprintln!("SKIPPED: set FORTHWITH_TEST_MODELS to a folder with {file} to run this test");
    }
    path
}

/// The metadata of a well-formed file.
pub(crate) fn metadata(path: &Path) -> Metadata {
    let mut file = Reader(BufReader::new(File::open(path).unwrap()));
    assert_eq!(file.bytes(4), b"GGUF");
    file.bytes(4 + 8);
    let entries = file.u64();
    let mut metadata = Metadata::default();
    for _ in 0..entries {
        let key = String::from_utf8(file.text()).unwrap();
        let kind = file.u32();
        metadata.insert(key, file.value(kind));
    }
    metadata
}

struct Reader(BufReader<File>);

impl Reader {
    fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        self.bytes(N).try_into().unwrap()
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    fn text(&mut self) -> Vec<u8> {
        let length = usize::try_from(self.u64()).unwrap();
        self.bytes(length)
    }

    fn value(&mut self, kind: u32) -> Value {
        match kind {
            0 => Value::Unsigned(self.array::<1>()[0].into()),
            4 => Value::Unsigned(self.u32().into()),
            5 => Value::Signed(i32::from_le_bytes(self.array()).into()),
            6 => Value::Float(f32::from_le_bytes(self.array()).into()),
            7 => Value::Bool(self.array::<1>()[0] != 0),
            8 => Value::Text(self.text()),
            9 => self.values(),
            10 => Value::Unsigned(self.u64()),
            other => panic!("value type {other} is not in the test models"),
        }
    }

    fn values(&mut self) -> Value {
        let kind = self.u32();
        let count = self.u64();
        match kind {
            4 => Value::Integers((0..count).map(|_| self.u32().into()).collect()),
            5 => Value::Integers(
                (0..count)
                    .map(|_| i32::from_le_bytes(self.array()).into())
                    .collect(),
            ),
            6 => Value::Floats(
                (0..count)
                    .map(|_| f32::from_le_bytes(self.array()))
                    .collect(),
            ),
            8 => Value::Texts((0..count).map(|_| self.text()).collect()),
            other => panic!("arrays of type {other} are not in the test models"),
        }
    }
}
