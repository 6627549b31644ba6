//! The fixed first fields of a GGUF file.

use super::cursor::{Cursor, Owner};
use crate::error::Fault;

const MAGIC: [u8; 4] = *b"GGUF";
const MAX_KEYS: usize = 65_536;
const MAX_TENSORS: usize = 65_536;
/// Key length, one character, type and one byte of value.
const SMALLEST_KEY: usize = 8 + 1 + 4 + 1;
/// Name length, one character, dimension count, one dimension, type, offset.
const SMALLEST_TENSOR: usize = 8 + 1 + 4 + 8 + 4 + 8;

/// How much follows.
pub(super) struct Header {
    pub(super) keys: usize,
    pub(super) tensors: usize,
}

pub(super) fn read(cursor: &mut Cursor<'_>, file: &[u8]) -> Result<Header, Fault> {
    let field = Owner::Header.part("magic");
    let magic: [u8; 4] = cursor.array(field)?;
    if magic != MAGIC {
        return Err(Fault::malformed(
            field,
            format!("not a GGUF file{}", recognise(file)),
        ));
    }
    check_version(cursor.u32(Owner::Header.part("version"))?)?;
    let tensors = cursor.count(
        Owner::Header.part("tensor count"),
        MAX_TENSORS,
        SMALLEST_TENSOR,
    )?;
    let keys = cursor.count(Owner::Header.part("kv count"), MAX_KEYS, SMALLEST_KEY)?;
    Ok(Header { keys, tensors })
}

fn check_version(version: u32) -> Result<(), Fault> {
    let problem = match version {
        2 | 3 => return Ok(()),
        1 => "1 is no longer read; convert the file to version 3".to_owned(),
        other if other.trailing_zeros() >= 16 => {
            format!("{other:#x}: the file has the other byte order; convert it to little-endian")
        }
        other => format!("{other}, supported are 2 and 3"),
    };
    Err(Fault::malformed(Owner::Header.part("version"), problem))
}

/// What a file that is no GGUF file looks like, to save the reader a guess.
fn recognise(file: &[u8]) -> &'static str {
    const SIGNS: &[(&[u8], &str)] = &[
        (
            b"PK\x03\x04",
            "; it looks like a zip archive, perhaps PyTorch weights, which are never loaded",
        ),
        (
            b"\x80\x02",
            "; it looks like a Python pickle, which is never loaded",
        ),
        (
            b"\x80\x04",
            "; it looks like a Python pickle, which is never loaded",
        ),
        (
            b"version https://git-lfs",
            "; it is a Git LFS pointer, the weights were not fetched",
        ),
        (b"<", "; it looks like a web page, the download went wrong"),
        (
            b"\x1f\x8b",
            "; it looks like a gzip archive, unpack it first",
        ),
    ];
    let known = SIGNS.iter().find(|(sign, _)| file.starts_with(sign));
    match known {
        Some((_, hint)) => hint,
        None if file.get(8) == Some(&b'{') => {
            "; it looks like safetensors, use a GGUF file of the model"
        }
        None => "",
    }
}
