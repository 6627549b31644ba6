//! `config.json` and its like as typed metadata: keys of nested objects are joined by dots.
//!
//! The file comes from strangers: its size is bounded before it is read and its depth while it is
//! parsed. What no [`Value`] can hold (lists of lists or of objects, mixed lists) is told apart from
//! what is absent, so that nobody takes it for a default.

use crate::error::OpenError;
use forthwith_core::metadata::{Metadata, Value};
use serde_json::Value as Json;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// The largest file that is read.
const MAX_BYTES: u64 = 16 << 20;

/// A JSON object as metadata.
#[derive(Debug, Default)]
pub struct Keys {
    /// What could be read.
    pub metadata: Metadata,
    /// Keys whose values have no place in [`Metadata`].
    pub odd: Vec<String>,
}

/// Reads an object; `None` if there is no such file.
pub(crate) fn read(path: &Path) -> Result<Option<Keys>, OpenError> {
    let Some(json) = parse(path)? else {
        return Ok(None);
    };
    let Json::Object(_) = json else {
        let problem = "not an object".to_owned();
        return Err(malformed(path, "JSON", problem));
    };
    let mut keys = Keys::default();
    flatten(String::new(), json, &mut keys);
    Ok(Some(keys))
}

fn malformed(path: &Path, field: &str, problem: String) -> OpenError {
    OpenError::Malformed {
        path: path.to_owned(),
        field: field.to_owned(),
        problem,
    }
}

/// Reads a file of any kind of JSON; `None` if there is none.
pub(crate) fn parse(path: &Path) -> Result<Option<Json>, OpenError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(source) => {
            let path = path.to_owned();
            return Err(OpenError::Io { path, source });
        }
    };
    let mut bytes = Vec::new();
    let read = file.take(MAX_BYTES + 1).read_to_end(&mut bytes);
    read.map_err(|source| OpenError::Io {
        path: path.to_owned(),
        source,
    })?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(malformed(path, "size", format!("above {MAX_BYTES} bytes")));
    }
    let json = serde_json::from_slice(&bytes);
    let json = json.map_err(|error| malformed(path, "JSON", error.to_string()))?;
    Ok(Some(json))
}

fn flatten(key: String, json: Json, keys: &mut Keys) {
    let value = match json {
        Json::Null => return,
        Json::Object(members) => {
            for (name, member) in members {
                let inner = if key.is_empty() {
                    name
                } else {
                    format!("{key}.{name}")
                };
                flatten(inner, member, keys);
            }
            return;
        }
        Json::Bool(value) => Some(Value::Bool(value)),
        Json::String(text) => Some(Value::Text(text.into_bytes())),
        Json::Number(number) => Some(of_number(&number)),
        Json::Array(items) => of_list(&items),
    };
    match value {
        Some(value) => {
            keys.metadata.insert(key, value);
        }
        None => keys.odd.push(key),
    }
}

fn of_number(number: &serde_json::Number) -> Value {
    match (number.as_u64(), number.as_i64()) {
        (Some(value), _) => Value::Unsigned(value),
        (None, Some(value)) => Value::Signed(value),
        // Numbers too large for a double are infinite, and refused by whoever reads them.
        (None, None) => Value::Float(number.as_f64().unwrap_or(f64::INFINITY)),
    }
}

/// A list of one kind; an empty list is one of texts.
#[expect(
    clippy::cast_possible_truncation,
    reason = "lists of floats are factors in single precision"
)]
fn of_list(items: &[Json]) -> Option<Value> {
    let all = |kind: fn(&Json) -> bool| items.iter().all(kind);
    let values = items.iter();
    if all(Json::is_string) {
        let texts = values.filter_map(Json::as_str);
        Some(Value::Texts(texts.map(Vec::from).collect()))
    } else if all(Json::is_boolean) {
        Some(Value::Bools(values.filter_map(Json::as_bool).collect()))
    } else if all(Json::is_i64) {
        Some(Value::Integers(values.filter_map(Json::as_i64).collect()))
    } else if all(Json::is_number) {
        let floats = values.filter_map(Json::as_f64);
        Some(Value::Floats(floats.map(|value| value as f32).collect()))
    } else {
        None
    }
}
