//! Untrusted model files to typed views.
//!
//! [`open`] reads a GGUF file and checks all of its index before any of it is used: afterwards
//! every [`TensorView`] lies inside the file and has the size that its shape and format say. What
//! the names and keys mean is none of this crate's business.
//!
//! ```
//! use forthwith_weights::WeightFile;
//!
//! let bytes = b"PK\x03\x04 and so on".to_vec();
//! let error = WeightFile::from_bytes("model.bin".as_ref(), bytes).unwrap_err();
//! assert!(error.to_string().starts_with("`model.bin`: magic: not a GGUF file"));
//! ```
#![deny(unsafe_code)]

mod error;
mod folder;
mod gguf;
mod json;
#[expect(
    unsafe_code,
    reason = "mapping a file is unsafe by nature; nothing else here is"
)]
mod mmap;
mod requantize;
mod split;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use error::OpenError;
pub use folder::{Data, Folder, Made, Module, Raw};
pub use json::Keys;
pub use requantize::Requantized;

use forthwith_core::metadata::Metadata;
use forthwith_core::shape::{ReadError, TensorView, WeightSource};
use forthwith_core::units::Bytes;
use gguf::Index;
use memmap2::Mmap;
use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// An opened model file, or a folder that [`Folder::into_file`] made one of.
pub struct WeightFile {
    path: PathBuf,
    /// The further files of a model in several.
    others: Vec<PathBuf>,
    /// Where the bytes of tensors are.
    backings: Vec<Backing>,
    index: Index,
}

#[derive(Debug)]
enum Backing {
    Mapped(Mmap, File),
    Owned(Vec<u8>),
}

impl Backing {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Mapped(map, _) => map,
            Self::Owned(bytes) => bytes,
        }
    }

    /// Copies from the file itself where there is one.
    fn read(&self, start: usize, out: &mut [u8]) -> io::Result<()> {
        #[cfg(unix)]
        if let Self::Mapped(_, file) = self {
            return std::os::unix::fs::FileExt::read_exact_at(file, out, start as u64);
        }
        out.copy_from_slice(&self.bytes()[start..start + out.len()]);
        Ok(())
    }
}

/// Opens a model file by mapping it into memory, with the others of a model in several files.
///
/// # Errors     [`OpenError`], one line that names the file and the field
/// # Cost       reads the index alone; tensors are paged in when they are read
pub fn open(path: &Path) -> Result<WeightFile, OpenError> {
    let (map, file) = mmap::map(path)?;
    split::complete(WeightFile::index(path, Backing::Mapped(map, file))?)
}

impl WeightFile {
    /// Reads a model file that already lies in memory; `path` only names it in messages.
    pub fn from_bytes(path: &Path, bytes: Vec<u8>) -> Result<Self, OpenError> {
        Self::index(path, Backing::Owned(bytes))
    }

    fn index(path: &Path, bytes: Backing) -> Result<Self, OpenError> {
        let index = gguf::read(bytes.bytes()).map_err(|fault| fault.of(path))?;
        Ok(Self {
            path: path.to_owned(),
            others: Vec::new(),
            backings: vec![bytes],
            index,
        })
    }

    /// Where the file lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All files of the model, the first one first.
    pub fn paths(&self) -> Vec<PathBuf> {
        std::iter::once(&self.path)
            .chain(&self.others)
            .cloned()
            .collect()
    }

    /// The file's keys and values.
    pub fn metadata(&self) -> &Metadata {
        &self.index.metadata
    }

    /// All tensors in file order.
    pub fn tensors(&self) -> impl Iterator<Item = TensorView<'_>> {
        (0..self.index.tensors.len()).map(|position| self.view(position))
    }

    /// The same file with other keys, and with tensors of other names; those without a name are left out.
    #[must_use]
    pub fn reworded(mut self, metadata: Metadata, rename: impl Fn(&str) -> Option<String>) -> Self {
        let tensors = std::mem::take(&mut self.index.tensors);
        self.index.positions.clear();
        for mut entry in tensors {
            if let Some(name) = rename(&entry.name) {
                let position = self.index.tensors.len();
                self.index.positions.insert(name.clone(), position);
                entry.name = name;
                self.index.tensors.push(entry);
            }
        }
        self.index.metadata = metadata;
        self
    }

    /// The size of the whole file.
    pub fn file_bytes(&self) -> Bytes {
        self.backings
            .iter()
            .map(|backing| Bytes::new(backing.bytes().len() as u64))
            .sum()
    }

    fn view(&self, position: usize) -> TensorView<'_> {
        let entry = &self.index.tensors[position];
        TensorView {
            name: &entry.name,
            format: entry.format,
            rows: entry.rows,
            cols: entry.cols,
            bytes: &self.backings[entry.backing].bytes()[entry.bytes.clone()],
        }
    }
}

impl WeightSource for WeightFile {
    fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        let position = self.index.positions.get(name)?;
        Some(self.view(*position))
    }

    fn read(&self, name: &str, offset: usize, out: &mut [u8]) -> Result<(), ReadError> {
        let position = self.index.positions.get(name);
        let entry = position.map(|&position| &self.index.tensors[position]);
        let entry = entry.filter(|entry| offset.saturating_add(out.len()) <= entry.bytes.len());
        let entry = entry.ok_or_else(|| ReadError("no such bytes".to_owned()))?;
        let start = entry.bytes.start + offset;
        self.backings[entry.backing]
            .read(start, out)
            .map_err(|error| {
                let reason = match error.kind() {
                    ErrorKind::UnexpectedEof => "it became shorter while it was read".to_owned(),
                    _ => error.to_string(),
                };
                ReadError(format!("`{}`: {reason}", self.path.display()))
            })
    }
}

impl fmt::Debug for WeightFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WeightFile")
            .field("path", &self.path)
            .field("bytes", &self.file_bytes())
            .field("tensors", &self.index.tensors.len())
            .finish_non_exhaustive()
    }
}
