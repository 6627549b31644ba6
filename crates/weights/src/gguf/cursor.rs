//! Reads little-endian fields and checks each against the bytes that are left.

use crate::error::{Fault, one_line};
use std::fmt;

/// Which field is being read, for messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Field<'a> {
    pub(crate) owner: Owner<'a>,
    /// The field of the owner; empty for the owner itself.
    pub(crate) part: &'static str,
}

/// What a field belongs to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Owner<'a> {
    Header,
    NumberedKey(u64),
    Key(&'a str),
    NumberedTensor(u64),
    Tensor(&'a str),
}

impl<'a> Owner<'a> {
    pub(crate) const fn part(self, part: &'static str) -> Field<'a> {
        Field { owner: self, part }
    }
}

impl fmt::Display for Field<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.owner {
            Owner::Header => return f.write_str(self.part),
            Owner::NumberedKey(number) => write!(f, "key {number}")?,
            Owner::Key(name) => write!(f, "key `{}`", one_line(name))?,
            Owner::NumberedTensor(number) => write!(f, "tensor {number}")?,
            Owner::Tensor(name) => write!(f, "tensor `{}`", one_line(name))?,
        }
        if self.part.is_empty() {
            Ok(())
        } else {
            write!(f, " {}", self.part)
        }
    }
}

/// A position in the file's bytes. No read passes the end; none allocates.
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, position: 0 }
    }

    pub(crate) fn position(&self) -> usize {
        self.position
    }

    pub(crate) fn left(&self) -> usize {
        self.bytes.len() - self.position
    }

    /// The next `count` bytes.
    pub(crate) fn take(&mut self, count: usize, field: Field<'_>) -> Result<&'a [u8], Fault> {
        if count > self.left() {
            let problem = format!("needs {count} bytes, {} left in the file", self.left());
            return Err(Fault::malformed(field, problem));
        }
        let taken = &self.bytes[self.position..self.position + count];
        self.position += count;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self, field: Field<'_>) -> Result<[u8; N], Fault> {
        let bytes = self.take(N, field)?;
        Ok(bytes.try_into().expect("take returned N bytes"))
    }

    pub(crate) fn u32(&mut self, field: Field<'_>) -> Result<u32, Fault> {
        self.array(field).map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self, field: Field<'_>) -> Result<u64, Fault> {
        self.array(field).map(u64::from_le_bytes)
    }

    /// A count or length that must not exceed `limit` nor what the bytes left can hold at
    /// `bytes_each`.
    pub(crate) fn count(
        &mut self,
        field: Field<'_>,
        limit: usize,
        bytes_each: usize,
    ) -> Result<usize, Fault> {
        let raw = self.u64(field)?;
        let fits = usize::try_from(raw).ok().filter(|&count| count <= limit);
        let Some(count) = fits else {
            return Err(Fault::malformed(
                field,
                format!("{raw}, allowed are {limit}"),
            ));
        };
        if count > self.left() / bytes_each {
            let problem = format!("{raw}, but only {} bytes are left in the file", self.left());
            return Err(Fault::malformed(field, problem));
        }
        Ok(count)
    }

    /// A string: a length of at most `limit`, then its bytes.
    pub(crate) fn string(
        &mut self,
        owner: Owner<'_>,
        length: &'static str,
        limit: usize,
    ) -> Result<&'a [u8], Fault> {
        let count = self.count(owner.part(length), limit, 1)?;
        self.take(count, owner.part(length))
    }
}
