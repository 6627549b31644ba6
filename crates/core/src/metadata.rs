//! The typed key → value map read from a model file.

use std::collections::BTreeMap;

/// One value of a model file's metadata. Strings keep their bytes: files hold text that is not UTF-8.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Any unsigned integer type.
    Unsigned(u64),
    /// Any signed integer type.
    Signed(i64),
    /// Any float type.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// A string, as bytes.
    Text(Vec<u8>),
    /// An array of integers of any type (values that do not fit `i64` are refused by the reader).
    Integers(Vec<i64>),
    /// An array of floats.
    Floats(Vec<f32>),
    /// An array of truth values.
    Bools(Vec<bool>),
    /// An array of strings.
    Texts(Vec<Vec<u8>>),
}

impl Value {
    /// What kind of value this is, in words for messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Unsigned(_) => "unsigned integer",
            Self::Signed(_) => "signed integer",
            Self::Float(_) => "float",
            Self::Bool(_) => "bool",
            Self::Text(_) => "string",
            Self::Integers(_) => "array of integers",
            Self::Floats(_) => "array of floats",
            Self::Bools(_) => "array of bools",
            Self::Texts(_) => "array of strings",
        }
    }
}

/// A key is missing or holds a value of another kind than its reader needs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MetadataError {
    /// The file lacks a key that the model needs.
    #[error("metadata key `{0}` is missing")]
    Missing(String),
    /// The key is there with another kind of value.
    #[error("metadata key `{key}`: expected {expected}, found {found}")]
    Kind {
        /// The key.
        key: String,
        /// What the reader needs.
        expected: &'static str,
        /// What the file holds.
        found: String,
    },
}

/// Metadata in key order. Getters return `Ok(None)` for a missing key and an error for a wrong kind.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata(BTreeMap<String, Value>);

impl Metadata {
    /// Adds a value; returns the one it replaced.
    pub fn insert(&mut self, key: impl Into<String>, value: Value) -> Option<Value> {
        self.0.insert(key.into(), value)
    }

    /// Takes a value out.
    pub fn remove(&mut self, key: &str) -> Option<Value> {
        self.0.remove(key)
    }

    /// All entries in key order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// The raw value.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0.get(key)
    }

    /// A non-negative integer of any width.
    pub fn unsigned(&self, key: &str) -> Result<Option<u64>, MetadataError> {
        match self.0.get(key) {
            None => Ok(None),
            Some(Value::Unsigned(value)) => Ok(Some(*value)),
            Some(Value::Signed(value)) => match u64::try_from(*value) {
                Ok(value) => Ok(Some(value)),
                Err(_) => Err(kind(key, "non-negative integer", &value.to_string())),
            },
            Some(other) => Err(kind(key, "non-negative integer", other.kind())),
        }
    }

    /// A non-negative integer as a size.
    pub fn size(&self, key: &str) -> Result<Option<usize>, MetadataError> {
        self.unsigned(key)?
            .map(|value| usize::try_from(value).map_err(|_| kind(key, "size", &value.to_string())))
            .transpose()
    }

    /// A float; integers are accepted.
    #[expect(
        clippy::cast_precision_loss,
        reason = "metadata integers read as floats are small"
    )]
    pub fn float(&self, key: &str) -> Result<Option<f64>, MetadataError> {
        match self.0.get(key) {
            None => Ok(None),
            Some(Value::Float(value)) => Ok(Some(*value)),
            Some(Value::Unsigned(value)) => Ok(Some(*value as f64)),
            Some(Value::Signed(value)) => Ok(Some(*value as f64)),
            Some(other) => Err(kind(key, "float", other.kind())),
        }
    }

    /// A truth value.
    pub fn boolean(&self, key: &str) -> Result<Option<bool>, MetadataError> {
        match self.0.get(key) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(*value)),
            Some(other) => Err(kind(key, "bool", other.kind())),
        }
    }

    /// A string that must be UTF-8.
    pub fn text(&self, key: &str) -> Result<Option<&str>, MetadataError> {
        match self.0.get(key) {
            None => Ok(None),
            Some(Value::Text(bytes)) => match std::str::from_utf8(bytes) {
                Ok(text) => Ok(Some(text)),
                Err(_) => Err(kind(key, "UTF-8 string", "other bytes")),
            },
            Some(other) => Err(kind(key, "string", other.kind())),
        }
    }

    /// An array of integers.
    pub fn integers(&self, key: &str) -> Result<Option<&[i64]>, MetadataError> {
        match self.0.get(key) {
            None => Ok(None),
            Some(Value::Integers(values)) => Ok(Some(values)),
            Some(other) => Err(kind(key, "array of integers", other.kind())),
        }
    }

    /// An array of floats.
    pub fn floats(&self, key: &str) -> Result<Option<&[f32]>, MetadataError> {
        match self.0.get(key) {
            None => Ok(None),
            Some(Value::Floats(values)) => Ok(Some(values)),
            Some(other) => Err(kind(key, "array of floats", other.kind())),
        }
    }

    /// An array of strings, as bytes.
    pub fn texts(&self, key: &str) -> Result<Option<&[Vec<u8>]>, MetadataError> {
        match self.0.get(key) {
            None => Ok(None),
            Some(Value::Texts(values)) => Ok(Some(values)),
            Some(other) => Err(kind(key, "array of strings", other.kind())),
        }
    }
}

/// Turns a missing key into its error: `require("k", metadata.size("k")?)`.
pub fn require<T>(key: &str, value: Option<T>) -> Result<T, MetadataError> {
    value.ok_or_else(|| MetadataError::Missing(key.to_owned()))
}

fn kind(key: &str, expected: &'static str, found: &str) -> MetadataError {
    MetadataError::Kind {
        key: key.to_owned(),
        expected,
        found: found.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_kinds_are_errors_and_missing_keys_are_none() {
        let mut metadata = Metadata::default();
        metadata.insert("n", Value::Signed(-1));
        metadata.insert("t", Value::Text(vec![0xff]));
        assert_eq!(metadata.size("absent"), Ok(None));
        assert!(metadata.size("n").is_err());
        assert!(metadata.text("t").is_err());
        assert!(metadata.floats("n").is_err());
    }
}
