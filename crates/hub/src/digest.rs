//! SHA-256 while copying.

use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// Which side of a copy failed.
#[derive(Debug)]
pub(crate) enum CopyError {
    /// Reading failed.
    Read(io::Error),
    /// Writing failed.
    Write(io::Error),
    /// More bytes came than the limit allows.
    TooLong,
}

/// Copies at most `limit` bytes; returns how many there were and their SHA-256.
pub(crate) fn copy(
    from: &mut dyn Read,
    to: &mut dyn Write,
    limit: u64,
    mut advance: impl FnMut(u64),
) -> Result<(u64, String), CopyError> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 256 * 1024];
    let mut total = 0;
    loop {
        let read = match from.read(&mut buffer) {
            Ok(0) => return Ok((total, hex(&hash.finalize()))),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(CopyError::Read(error)),
        };
        total += read as u64;
        if total > limit {
            return Err(CopyError::TooLong);
        }
        hash.update(&buffer[..read]);
        to.write_all(&buffer[..read]).map_err(CopyError::Write)?;
        advance(read as u64);
    }
}

/// The SHA-256 of a file, in lower case.
///
/// # Errors
/// The file cannot be read.
pub fn of_file(path: &Path) -> io::Result<String> {
    match copy(&mut File::open(path)?, &mut io::sink(), u64::MAX, |_| ()) {
        Ok((_, hash)) => Ok(hash),
        Err(CopyError::Read(error) | CopyError::Write(error)) => Err(error),
        Err(CopyError::TooLong) => unreachable!("no file is that long"),
    }
}

/// One SHA-256 for the files of a model's folder: of the names and hashes of its `.safetensors`,
/// `.json` and `.jinja` files, in the order of their paths, those of its modules' folders too.
///
/// # Errors
/// The folder or one of the files cannot be read.
pub fn of_folder(path: &Path) -> io::Result<String> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(path)? {
        let path = entry?.path();
        if path.is_dir() {
            for entry in std::fs::read_dir(path)? {
                names.push(entry?.path());
            }
        } else {
            names.push(path);
        }
    }
    names.retain(|file| {
        let extension = file.extension().and_then(std::ffi::OsStr::to_str);
        let is_model = ["safetensors", "json", "jinja"]
            .map(Some)
            .contains(&extension);
        is_model && file.is_file()
    });
    names.sort_unstable();
    of_files(&names)
}

/// One SHA-256 for several files, of their names and hashes; of a single file its own.
///
/// # Errors
/// One of the files cannot be read.
pub fn of_files(paths: &[PathBuf]) -> io::Result<String> {
    if let [only] = paths {
        return of_file(only);
    }
    let mut hash = Sha256::new();
    for file in paths {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        hash.update(format!("{}  {name}\n", of_file(file)?));
    }
    Ok(hex(&hash.finalize()))
}

/// The reason given when a hash differs.
pub(crate) fn mismatch(expected: &str, found: &str) -> String {
    format!("wrong SHA-256: expected {expected}, found {found}")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a string cannot fail");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_what_it_copies_and_stops_at_the_limit() {
        let mut out = Vec::new();
        let (bytes, hash) = copy(&mut &b"abc"[..], &mut out, 3, |_| ()).unwrap();
        assert_eq!((bytes, out.as_slice()), (3, &b"abc"[..]));
        assert_eq!(
            hash,
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        let mut kept = Vec::new();
        let error = copy(&mut &b"abcd"[..], &mut kept, 3, |_| ()).unwrap_err();
        assert!(matches!(error, CopyError::TooLong));
        assert!(kept.is_empty());
    }
}
