//! A JSON body that may be read: text, not too deep, and for every field it is known what becomes of it.

use axum::body::Bytes;
use axum::http::StatusCode;
use serde::de::{DeserializeOwned, Deserializer};

use super::fields::{Audit, Findings, Table};
use crate::error::ApiError;
use crate::state::AppState;

/// A checked JSON object; endpoints read their parts from it.
pub(crate) struct Body<'a> {
    text: &'a str,
    /// Which fields have no effect.
    pub(crate) warnings: Vec<String>,
}

impl<'a> Body<'a> {
    /// Checks the text, its depth and its field names against the endpoint's tables.
    pub(crate) fn check(
        bytes: &'a Bytes,
        tables: &[&Table],
        state: &AppState,
    ) -> Result<Self, ApiError> {
        let (strict, levels) = (state.is_strict(), state.limits().depth);
        let text = std::str::from_utf8(bytes).map_err(|_| malformed("it is not valid UTF-8"))?;
        if depth(text) > levels {
            return Err(malformed(&format!("it nests deeper than {levels}")));
        }
        let mut reader = serde_json::Deserializer::from_str(text);
        let mut findings = Findings::default();
        reader
            .deserialize_map(Audit::new(tables, strict, &mut findings))
            .and_then(|()| reader.end())
            .map_err(|error| malformed(&error.to_string()))?;
        match findings.problem.take() {
            Some(problem) => Err(problem),
            None => Ok(Self {
                text,
                warnings: findings.into_warnings(),
            }),
        }
    }

    /// Reads the fields that `T` names; an error names the field.
    pub(crate) fn read<T: DeserializeOwned>(&self) -> Result<T, ApiError> {
        let mut reader = serde_json::Deserializer::from_str(self.text);
        serde_path_to_error::deserialize(&mut reader).map_err(|error| {
            let path = error.path().to_string();
            let message = error.inner().to_string();
            if path == "." {
                return ApiError::new(StatusCode::BAD_REQUEST, message);
            }
            ApiError::field(path, message)
        })
    }
}

fn malformed(reason: &str) -> ApiError {
    let message = format!("the body is not a JSON object: {reason}");
    ApiError::new(StatusCode::BAD_REQUEST, message).coded("invalid_json")
}

/// How deep objects and arrays nest, by counting brackets outside strings.
fn depth(text: &str) -> usize {
    let (mut open, mut deepest) = (0_usize, 0);
    let (mut in_string, mut escaped) = (false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => {
                open += 1;
                deepest = deepest.max(open);
            }
            b']' | b'}' if !in_string => open = open.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brackets_in_strings_do_not_nest() {
        assert_eq!(depth(r#"{"a":["[[[[",{"b\"[":1}]}"#), 3);
        assert_eq!(depth("]]["), 1);
        assert_eq!(depth(r#""\\"[["#), 2);
    }
}
