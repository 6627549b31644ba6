//! The only unsafe code of this crate: mapping a model file into memory.

use crate::error::OpenError;
use memmap2::Mmap;
use std::fs::{self, File, FileType, Metadata};
use std::io;
use std::path::Path;

/// Maps a regular file for reading; the file itself stays open beside the map.
///
/// The kind of file is checked before it is opened, because opening a pipe waits and opening a
/// device may act, and again afterwards, because the path may have changed in between.
pub(crate) fn map(path: &Path) -> Result<(Mmap, File), OpenError> {
    let failed = |source: io::Error| OpenError::Io {
        path: path.to_owned(),
        source,
    };
    check_regular(path, &fs::metadata(path).map_err(failed)?)?;
    let file = File::open(path).map_err(failed)?;
    check_regular(path, &file.metadata().map_err(failed)?)?;
    // SAFETY: the mapping is private and read-only, and the file was checked to be a regular one
    // just above. Another process that writes to the file can change the bytes under us; every
    // length, count and offset is copied out and checked before it is used, and the weights
    // themselves are plain numbers of which every bit pattern is valid. Shrinking the file
    // while its index is read ends the process with SIGBUS; weights are read from the file itself,
    // where that is an error.
    let map = unsafe { Mmap::map(&file) }.map_err(failed)?;
    Ok((map, file))
}

fn check_regular(path: &Path, metadata: &Metadata) -> Result<(), OpenError> {
    if metadata.is_file() {
        return Ok(());
    }
    Err(OpenError::NotAFile {
        path: path.to_owned(),
        found: describe(metadata.file_type()),
    })
}

#[cfg(unix)]
fn describe(kind: FileType) -> &'static str {
    use std::os::unix::fs::FileTypeExt;
    if kind.is_dir() {
        "a folder"
    } else if kind.is_fifo() {
        "a named pipe"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    }
}

#[cfg(not(unix))]
fn describe(kind: FileType) -> &'static str {
    if kind.is_dir() {
        "a folder"
    } else {
        "something else"
    }
}
