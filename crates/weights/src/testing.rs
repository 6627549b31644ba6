//! Writes small GGUF files, for tests that need a model without a download.

use forthwith_core::format::Format;
use forthwith_core::metadata::Value;
use std::io;
use std::path::Path;

/// Collects keys and tensors, then writes them as GGUF.
///
/// ```
/// use forthwith_core::{format::Format, metadata::Value, shape::WeightSource};
/// use forthwith_weights::{WeightFile, testing::GgufWriter};
///
/// let bytes = GgufWriter::new()
///     .key("general.architecture", Value::Text(b"llama".to_vec()))
///     .tensor("token_embd.weight", Format::F32, &[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
///     .to_bytes();
/// let file = WeightFile::from_bytes("tiny.gguf".as_ref(), bytes).unwrap();
/// let embedding = file.tensor("token_embd.weight").unwrap();
/// assert_eq!((embedding.rows, embedding.cols), (3, 2));
/// assert_eq!(embedding.to_f32()[4..], [5.0, 6.0]);
/// ```
#[derive(Clone, Debug)]
pub struct GgufWriter {
    version: u32,
    alignment: u64,
    keys: Vec<(String, Value)>,
    tensors: Vec<WrittenTensor>,
}

#[derive(Clone, Debug)]
struct WrittenTensor {
    name: String,
    type_number: u32,
    dimensions: Vec<u64>,
    bytes: Vec<u8>,
}

impl Default for GgufWriter {
    fn default() -> Self {
        Self::new()
    }
}

impl GgufWriter {
    /// An empty file of version 3.
    pub fn new() -> Self {
        Self {
            version: 3,
            alignment: 32,
            keys: Vec::new(),
            tensors: Vec::new(),
        }
    }

    /// Another version number.
    #[must_use]
    pub fn version(mut self, version: u32) -> Self {
        self.version = version;
        self
    }

    /// Another alignment of the tensors; also written as `general.alignment`.
    #[must_use]
    pub fn alignment(mut self, alignment: u32) -> Self {
        self.alignment = u64::from(alignment);
        self.key("general.alignment", Value::Unsigned(u64::from(alignment)))
    }

    /// A key with the narrowest GGUF type of at least 32 bits that holds its value.
    #[must_use]
    pub fn key(mut self, key: &str, value: Value) -> Self {
        self.keys.push((key.to_owned(), value));
        self
    }

    /// A tensor, quantized to `format`. The first dimension is the contiguous one (the columns).
    ///
    /// # Panics
    ///
    /// If the values do not fill the dimensions with whole blocks
    #[must_use]
    pub fn tensor(self, name: &str, format: Format, dimensions: &[u64], values: &[f32]) -> Self {
        let elements: u64 = dimensions.iter().product();
        assert_eq!(elements, values.len() as u64, "values fill the dimensions");
        assert!(
            dimensions[0].is_multiple_of(format.info().elements as u64),
            "rows are whole blocks"
        );
        self.raw_tensor(
            name,
            format.info().gguf_id,
            dimensions,
            format.quantize(values),
        )
    }

    /// A tensor of any type number and any bytes, right or wrong.
    #[must_use]
    pub fn raw_tensor(
        mut self,
        name: &str,
        type_number: u32,
        dimensions: &[u64],
        bytes: Vec<u8>,
    ) -> Self {
        self.tensors.push(WrittenTensor {
            name: name.to_owned(),
            type_number,
            dimensions: dimensions.to_vec(),
            bytes,
        });
        self
    }

    /// Drops a key.
    #[must_use]
    pub fn without_key(mut self, key: &str) -> Self {
        self.keys.retain(|(other, _)| other != key);
        self
    }

    /// Drops a tensor.
    #[must_use]
    pub fn without_tensor(mut self, name: &str) -> Self {
        self.tensors.retain(|tensor| tensor.name != name);
        self
    }

    /// The whole file.
    ///
    /// # Panics
    ///
    /// If a tensor has more than 2³² dimensions.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.keys.len() as u64).to_le_bytes());
        for (key, value) in &self.keys {
            put_text(&mut out, key.as_bytes());
            put_value(&mut out, value);
        }
        let mut offset: u64 = 0;
        for tensor in &self.tensors {
            put_text(&mut out, tensor.name.as_bytes());
            let count = u32::try_from(tensor.dimensions.len()).expect("few dimensions");
            out.extend(count.to_le_bytes());
            for dimension in &tensor.dimensions {
                out.extend(dimension.to_le_bytes());
            }
            out.extend(tensor.type_number.to_le_bytes());
            out.extend(offset.to_le_bytes());
            offset = (offset + tensor.bytes.len() as u64).next_multiple_of(self.alignment);
        }
        for tensor in &self.tensors {
            self.pad(&mut out);
            out.extend(&tensor.bytes);
        }
        out
    }

    /// Writes the file.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        std::fs::write(path, self.to_bytes())
    }

    fn pad(&self, out: &mut Vec<u8>) {
        while !(out.len() as u64).is_multiple_of(self.alignment) {
            out.push(0);
        }
    }
}

fn put_text(out: &mut Vec<u8>, text: &[u8]) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text);
}

fn put_array<T>(out: &mut Vec<u8>, kind: u32, items: &[T], put: impl Fn(&mut Vec<u8>, &T)) {
    out.extend(9_u32.to_le_bytes());
    out.extend(kind.to_le_bytes());
    out.extend((items.len() as u64).to_le_bytes());
    for item in items {
        put(out, item);
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the narrow type is used only where it holds the value"
)]
fn put_value(out: &mut Vec<u8>, value: &Value) {
    let mut put = |kind: u32, bytes: &[u8]| {
        out.extend(kind.to_le_bytes());
        out.extend(bytes);
    };
    match value {
        Value::Unsigned(value) => match u32::try_from(*value) {
            Ok(narrow) => put(4, &narrow.to_le_bytes()),
            Err(_) => put(10, &value.to_le_bytes()),
        },
        Value::Signed(value) => match i32::try_from(*value) {
            Ok(narrow) => put(5, &narrow.to_le_bytes()),
            Err(_) => put(11, &value.to_le_bytes()),
        },
        Value::Float(value) if f64::from(*value as f32).to_bits() == value.to_bits() => {
            put(6, &(*value as f32).to_le_bytes());
        }
        Value::Float(value) => put(12, &value.to_le_bytes()),
        Value::Bool(value) => put(7, &[u8::from(*value)]),
        Value::Text(text) => {
            put(8, &[]);
            put_text(out, text);
        }
        Value::Integers(values) if values.iter().all(|&value| i32::try_from(value).is_ok()) => {
            put_array(out, 5, values, |out, &value| {
                out.extend((value as i32).to_le_bytes());
            });
        }
        Value::Integers(values) => {
            put_array(out, 11, values, |out, value| {
                out.extend(value.to_le_bytes());
            });
        }
        Value::Floats(values) => {
            put_array(out, 6, values, |out, value| out.extend(value.to_le_bytes()));
        }
        Value::Bools(values) => put_array(out, 7, values, |out, &value| out.push(u8::from(value))),
        Value::Texts(texts) => put_array(out, 8, texts, |out, text| put_text(out, text)),
    }
}
