//! GGUF, versions 2 and 3, little-endian.
//!
//! The file is `header`, keys with values, the tensor index, padding up to the alignment, and the
//! tensors' bytes. It comes from strangers: every length, count and offset is compared with the
//! bytes left before it is used, arithmetic on them is checked, and no allocation follows a field
//! of the file alone.
//!
//! Source: the GGUF specification in the documentation of ggml.

mod cursor;
mod header;
mod tensor_index;
mod value;

#[cfg(test)]
mod tests;

use crate::error::Fault;
pub(crate) use cursor::Field;
use cursor::{Cursor, Owner};
use forthwith_core::metadata::Metadata;
use std::collections::HashMap;
use std::ops::RangeInclusive;
pub(crate) use tensor_index::TensorEntry;

const DEFAULT_ALIGNMENT: u64 = 32;
const ALIGNMENTS: RangeInclusive<u64> = 8..=1 << 20;

/// Everything in a file but the tensors' bytes.
#[derive(Debug)]
pub(crate) struct Index {
    pub(crate) metadata: Metadata,
    pub(crate) tensors: Vec<TensorEntry>,
    pub(crate) positions: HashMap<String, usize>,
}

/// Reads and checks the whole index.
pub(crate) fn read(file: &[u8]) -> Result<Index, Fault> {
    let mut cursor = Cursor::new(file);
    let header = header::read(&mut cursor, file)?;
    let metadata = value::read_all(&mut cursor, header.keys)?;
    let alignment = alignment(&metadata)?;
    let tensors = tensor_index::read(&mut cursor, header.tensors, alignment)?;
    Ok(Index {
        metadata,
        tensors: tensors.entries,
        positions: tensors.positions,
    })
}

fn alignment(metadata: &Metadata) -> Result<u64, Fault> {
    let field = Owner::Key(value::ALIGNMENT_KEY).part("value");
    let read = metadata.unsigned(value::ALIGNMENT_KEY);
    let stated = read.map_err(|error| Fault::malformed(field, error.to_string()))?;
    let alignment = stated.unwrap_or(DEFAULT_ALIGNMENT);
    if alignment.is_power_of_two() && ALIGNMENTS.contains(&alignment) {
        return Ok(alignment);
    }
    let problem = format!(
        "{alignment}, must be a power of two in {}..={}",
        ALIGNMENTS.start(),
        ALIGNMENTS.end()
    );
    Err(Fault::malformed(field, problem))
}
