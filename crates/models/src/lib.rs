//! Model files to programs: one file per architecture.
//!
//! [`build`] reads a file's metadata, checks every tensor against it and writes the forward pass
//! down as a [`Program`]. [`toy`] and [`hash_model`] are models that need no file.
//!
//! ```
//! use forthwith_models::toy::Toy;
//!
//! let toy = Toy::embedded();
//! let after_the = toy.follows("the");
//! assert_eq!(after_the[0], ("gpu".to_owned(), 2));
//! ```
#![forbid(unsafe_code)]

mod arch;
mod build;
mod config;
mod converted;
mod error;
mod folder;
pub mod hash_model;
mod rope;
mod spec;
mod suggestion;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod text_model;
mod token_cache;
pub mod toy;

pub use error::{LoadError, LoadFault};
pub use folder::{FolderError, Overrides, open, open_with};
pub use rope::{Llama3, LongRope, RopeScaling, RopeSpec, Yarn};
pub use spec::{Dimensions, LayerSpec, ModelSpec, PoolSpec};
pub use suggestion::Suggestion;
pub use text_model::{Scoring, TextModel};

use forthwith_core::program::Program;
use forthwith_core::units::Tokens;
use forthwith_weights::WeightFile;

/// Turns an opened file into the program of its architecture.
///
/// # Errors     [`LoadError`] names the file and the key or tensor: an unknown architecture,
/// impossible or unknown metadata, a missing or misshapen tensor, unused weights
/// # Cost       reads the metadata and the norms; the matrices stay untouched
pub fn build(file: &WeightFile) -> Result<Program, LoadError> {
    arch::build(file, None).map_err(|fault| named(file, fault))
}

/// The same for sequences of at most `context` tokens, where the model computes with other numbers
/// for longer ones.
///
/// # Errors     as [`build`]
pub fn build_for(file: &WeightFile, context: Tokens) -> Result<Program, LoadError> {
    arch::build(file, Some(context)).map_err(|fault| named(file, fault))
}

/// Reads what a file says about its model, without building the program.
///
/// # Errors     as [`build`], as far as the metadata goes
pub fn read_spec(file: &WeightFile) -> Result<ModelSpec, LoadError> {
    let spec = arch::read_spec(file).map(|(_, spec)| spec);
    spec.map_err(|fault| named(file, fault))
}

/// The keys of a folder's configuration that nobody read; none of a GGUF file, where such keys are
/// errors.
///
/// # Errors     never for files from [`open`]
pub fn ignored_keys(file: &WeightFile) -> Result<Vec<String>, LoadError> {
    let keys = file.metadata().texts(folder::IGNORED_KEYS);
    let keys = keys.map_err(|error| named(file, error.into()))?;
    let texts = keys.unwrap_or_default().iter();
    Ok(texts
        .map(|key| String::from_utf8_lossy(key).into_owned())
        .collect())
}

/// The names of all supported architectures.
pub fn architectures() -> Vec<&'static str> {
    arch::names()
}

pub(crate) fn named(file: &WeightFile, fault: LoadFault) -> LoadError {
    LoadError {
        path: file.path().to_owned(),
        fault,
    }
}
