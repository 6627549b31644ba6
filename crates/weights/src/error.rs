//! What can be wrong with a model file's container.

use crate::gguf::Field;
use forthwith_core::format::Format;
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

/// A model file cannot be read. Every message is one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The file system refused.
    #[error("`{}`: cannot open: {source}", one_line_path(path))]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A folder, pipe, socket or device was named.
    #[error(
        "`{}`: not a regular file, found {found}; name a GGUF file",
        one_line_path(path)
    )]
    NotAFile {
        /// The path.
        path: PathBuf,
        /// What lies there.
        found: &'static str,
    },
    /// The bytes are no model file that forthwith can read.
    #[error("`{}`: {field}: {problem}", one_line_path(path))]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The field at fault.
        field: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A tensor is stored in a format that has no file in `core::format`.
    #[error(
        "`{}`: tensor `{tensor}` type: {number} ({name}) is not supported; use a file whose tensors are {}",
        one_line_path(path),
        supported_formats()
    )]
    UnsupportedType {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The type number in the file.
        number: u32,
        /// Its name in GGUF tools.
        name: &'static str,
    },
}

/// The part of an error that is known before the file's name is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Malformed {
        field: String,
        problem: String,
    },
    UnsupportedType {
        tensor: String,
        number: u32,
        name: &'static str,
    },
}

impl Fault {
    pub(crate) fn malformed(field: Field<'_>, problem: impl Into<String>) -> Self {
        Self::Malformed {
            field: field.to_string(),
            problem: problem.into(),
        }
    }

    pub(crate) fn of(self, path: &Path) -> OpenError {
        let path = path.to_owned();
        match self {
            Self::Malformed { field, problem } => OpenError::Malformed {
                path,
                field,
                problem,
            },
            Self::UnsupportedType {
                tensor,
                number,
                name,
            } => OpenError::UnsupportedType {
                path,
                tensor,
                number,
                name,
            },
        }
    }
}

/// Text from a file, safe to show: control characters escaped, long text cut.
pub(crate) fn one_line(text: &str) -> String {
    const SHOWN: usize = 100;
    let mut out = String::new();
    for character in text.chars().take(SHOWN) {
        if character.is_control() {
            write!(out, "{}", character.escape_default()).expect("strings take all text");
        } else {
            out.push(character);
        }
    }
    if text.chars().nth(SHOWN).is_some() {
        out.push('…');
    }
    out
}

fn one_line_path(path: &Path) -> String {
    let mut out = String::new();
    for character in path.to_string_lossy().chars() {
        if character.is_control() {
            write!(out, "{}", character.escape_default()).expect("strings take all text");
        } else {
            out.push(character);
        }
    }
    out
}

fn supported_formats() -> String {
    let names: Vec<&str> = Format::ALL.iter().map(|format| format.name()).collect();
    names.join(", ")
}
