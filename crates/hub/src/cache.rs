//! The cache on disk: `models/<alias>/<file>` and beside it `<file>.sha256`.
//!
//! The file gets its name only when it is complete and verified; the marker beside it says so, in
//! the form of `sha256sum`. One process at a time fetches into a slot: it holds the slot's lock.

use crate::catalogue::{Model, Part};
use crate::digest;
use crate::error::HubError;
use crate::is_file_of_size;
use crate::progress::Progress;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

/// The place of one catalogue model in the cache.
#[derive(Debug)]
pub(crate) struct Slot<'a> {
    folder: PathBuf,
    model: &'a Model,
}

impl<'a> Slot<'a> {
    pub(crate) fn new(cache: &Path, model: &'a Model) -> Self {
        Self {
            folder: cache.join("models").join(model.alias),
            model,
        }
    }

    /// The slot's folder.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where the model's file is or will be.
    pub(crate) fn file(&self) -> PathBuf {
        self.folder.join(self.model.file)
    }

    /// Where a verified piece of the file waits for the others.
    pub(crate) fn part(&self, part: &Part) -> PathBuf {
        let name = part.member.rsplit('/').next().unwrap_or(part.member);
        self.folder.join("parts").join(name)
    }

    fn marker(&self) -> PathBuf {
        self.folder.join(format!("{}.sha256", self.model.file))
    }

    fn marker_text(&self) -> String {
        format!("{}  {}\n", self.model.sha256, self.model.file)
    }

    /// The file, if it is there and was verified. A file without marker is verified now.
    pub(crate) fn ready(&self) -> Result<Option<PathBuf>, HubError> {
        let file = self.file();
        if !is_file_of_size(&file, self.model.bytes) {
            return Ok(None);
        }
        match fs::read_to_string(self.marker()) {
            Ok(text) if text == self.marker_text() => return Ok(Some(file)),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Ok(None),
            Ok(_) | Err(_) => {}
        }
        let found = digest::of_file(&file).map_err(HubError::cache("read", &file))?;
        if found != self.model.sha256 {
            return Ok(None);
        }
        // A read-only cache works as well; it only hashes at every start.
        let _ = self.write_marker();
        Ok(Some(file))
    }

    /// Hashes the file again, whatever the marker says.
    pub(crate) fn verify(&self) -> Result<Option<PathBuf>, HubError> {
        let file = self.file();
        if !file.exists() {
            return Ok(None);
        }
        let found = digest::of_file(&file).map_err(HubError::cache("read", &file))?;
        if found == self.model.sha256 {
            return Ok(Some(file));
        }
        remove(&self.marker())?;
        Err(HubError::Damaged {
            path: file,
            reason: digest::mismatch(self.model.sha256, &found),
        })
    }

    /// Waits until no other process fetches into this slot.
    pub(crate) fn lock(&self, progress: &dyn Progress) -> Result<File, HubError> {
        lock(&self.folder.join("lock"), self.model.alias, progress)
    }

    /// An empty folder for unfinished files, on the same file system as the slot.
    ///
    /// The caller holds the lock, so whatever else is there was left by an interrupted process. It
    /// is removed as far as possible: a `pip` that outlived its parent may still be writing there.
    pub(crate) fn staging(&self) -> Result<Staging, HubError> {
        let unfinished = self.folder.join("unfinished");
        let _ = fs::remove_dir_all(&unfinished);
        let folder = unfinished.join(std::process::id().to_string());
        remove(&folder)?;
        create_folder(&folder)?;
        Ok(Staging(folder))
    }

    /// Gives a complete, verified file its final name.
    pub(crate) fn publish(&self, complete: &Path) -> Result<PathBuf, HubError> {
        let file = self.file();
        move_durably(complete, &file)?;
        self.write_marker()?;
        remove(&self.folder.join("parts"))?;
        Ok(file)
    }

    fn write_marker(&self) -> Result<(), HubError> {
        let marker = self.marker();
        let unfinished = marker.with_extension("sha256.unfinished");
        fs::write(&unfinished, self.marker_text())
            .map_err(HubError::cache("write", &unfinished))?;
        move_durably(&unfinished, &marker)
    }
}

/// A folder that goes away with everything in it.
#[derive(Debug)]
pub(crate) struct Staging(PathBuf);

impl Staging {
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // What cannot be removed now is removed by the next fetch.
        let _ = fs::remove_dir_all(&self.0);
        if let Some(unfinished) = self.0.parent() {
            let _ = fs::remove_dir(unfinished);
        }
    }
}

/// Takes an exclusive lock that ends with the returned file or the process.
pub(crate) fn lock(path: &Path, what: &str, progress: &dyn Progress) -> Result<File, HubError> {
    if let Some(folder) = path.parent() {
        create_folder(folder)?;
    }
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .map_err(HubError::cache("create", path))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            progress.note(&format!("waiting for another process that fetches {what}"));
            file.lock().map_err(HubError::cache("lock", path))?;
        }
        // Some network file systems have no locks; names still change atomically.
        Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {}
        Err(TryLockError::Error(error)) => return Err(HubError::cache("lock", path)(error)),
    }
    Ok(file)
}

/// Creates a folder and its parents.
pub(crate) fn create_folder(path: &Path) -> Result<(), HubError> {
    fs::create_dir_all(path).map_err(HubError::cache("create folder", path))
}

/// Removes a file or a folder; one that is not there is fine.
pub(crate) fn remove(path: &Path) -> Result<(), HubError> {
    let removed = match path.symlink_metadata() {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(HubError::cache("remove", path)(error))
        }
        _ => Ok(()),
    }
}

/// Renames so that after a crash either the whole file or no file has the new name.
pub(crate) fn move_durably(from: &Path, to: &Path) -> Result<(), HubError> {
    let folder = to.parent().expect("cache files lie in a folder");
    create_folder(folder)?;
    File::open(from)
        .and_then(|file| file.sync_all())
        .map_err(HubError::cache("write", from))?;
    fs::rename(from, to).map_err(HubError::cache("write", to))?;
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(HubError::cache("write", folder))
}
