//! What can be wrong with a model file whose container is sound.

use forthwith_core::metadata::MetadataError;
use std::path::PathBuf;

/// A model file cannot become a program.
#[derive(Debug, thiserror::Error)]
#[error("`{}`: {fault}", path.display())]
pub struct LoadError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub fault: LoadFault,
}

/// Why a model file cannot become a program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadFault {
    /// A key is missing or of the wrong kind.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// No file in `arch/` builds this family.
    #[error("architecture `{found}` is not supported; supported are {}", supported.join(", "))]
    Architecture {
        /// What the file says.
        found: String,
        /// What would work.
        supported: Vec<&'static str>,
    },
    /// No file in `arch/` reads this class of model folders.
    #[error("class `{found}` is not supported; supported are {}", supported.join(", "))]
    Class {
        /// What `config.json` says.
        found: String,
        /// What would work.
        supported: Vec<String>,
    },
    /// A key holds a value that no model of the family can have, or that is not supported.
    #[error("metadata key `{key}`: {problem}")]
    Value {
        /// The key.
        key: String,
        /// What is wrong, with the value.
        problem: String,
    },
    /// The file holds keys of the family that its reader does not know.
    #[error(
        "architecture `{architecture}` does not know the metadata keys {}, so its answers could be wrong",
        shorten(keys)
    )]
    UnknownKeys {
        /// The family.
        architecture: String,
        /// The keys.
        keys: Vec<String>,
    },
    /// A tensor that the family needs is not in the file.
    #[error("tensor `{tensor}` is missing: expected [{rows}, {cols}]")]
    MissingTensor {
        /// Its name.
        tensor: String,
        /// The rows it should have.
        rows: usize,
        /// The columns it should have.
        cols: usize,
    },
    /// A tensor's shape contradicts the metadata.
    #[error("tensor `{tensor}`: expected [{}, {}], found [{}, {}]", expected.0, expected.1, found.0, found.1)]
    Shape {
        /// Its name.
        tensor: String,
        /// Rows and columns that follow from the metadata.
        expected: (usize, usize),
        /// Rows and columns in the file.
        found: (usize, usize),
    },
    /// A tensor's numbers cannot be right.
    #[error("tensor `{tensor}`: {problem}")]
    Content {
        /// Its name.
        tensor: String,
        /// What is wrong, with element and value.
        problem: String,
    },
    /// The file holds weights that the family's program does not use.
    #[error("{} tensors of the file are not used by architecture `{architecture}`, so its answers would be wrong: {}", tensors.len(), shorten(tensors))]
    Unused {
        /// The family.
        architecture: String,
        /// Their names.
        tensors: Vec<String>,
    },
}

impl LoadFault {
    pub(crate) fn value(key: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Value {
            key: key.into(),
            problem: problem.into(),
        }
    }
}

fn shorten(names: &[String]) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<String> = names
        .iter()
        .take(SHOWN)
        .map(|name| format!("`{}`", name.escape_debug()))
        .collect();
    let rest = if names.len() > SHOWN { ", …" } else { "" };
    format!("{}{rest}", shown.join(", "))
}
