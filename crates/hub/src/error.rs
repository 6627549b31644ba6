//! What can go wrong between a name and a file.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// A model could not be found or fetched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// The name is neither an alias nor a path nor a repository.
    #[error(
        "no model is called `{name}`; known names: {known}; also possible: a path to a .gguf file, or hf:owner/repo[:file]"
    )]
    Unknown {
        /// The name as given.
        name: String,
        /// The catalogue's names.
        known: String,
    },
    /// The name breaks the grammar of names.
    #[error("model name `{name}`: {reason}")]
    BadName {
        /// The name as given.
        name: String,
        /// Which rule it breaks.
        reason: String,
    },
    /// The path does not lead to a model file.
    #[error("model file `{path}`: {reason}")]
    BadFile {
        /// The path as given.
        path: PathBuf,
        /// What is there instead.
        reason: String,
    },
    /// The model is not cached and nothing may be fetched.
    #[error(
        "`{name}` is not cached (looked in `{looked}`) and offline mode forbids fetching it; allow fetching once, or name a local file with --model PATH.gguf"
    )]
    Offline {
        /// The name as given.
        name: String,
        /// Where the file would be.
        looked: PathBuf,
    },
    /// Every source failed.
    #[error(
        "could not fetch `{name}`: {attempts}; fetch the file some other way and name it with --model PATH.gguf{}",
        place.as_ref().map_or_else(String::new, |place| format!(", or put it at `{}`", place.display()))
    )]
    Fetch {
        /// The name as given.
        name: String,
        /// What was tried, in order.
        attempts: Attempts,
        /// Where the file would be looked for, if a user could put it there.
        place: Option<PathBuf>,
    },
    /// The cache folder cannot be used.
    #[error("cache: cannot {action} `{path}`: {reason}")]
    Cache {
        /// What was being done.
        action: &'static str,
        /// To which file or folder.
        path: PathBuf,
        /// Why it failed, with the remedy.
        reason: String,
    },
    /// A cached file is not what was once verified.
    #[error("`{path}` is damaged: {reason}; run `forthwith pull` to fetch it again")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What differs.
        reason: String,
    },
}

/// One source that was tried and failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The source, in words.
    pub source: String,
    /// Why it failed.
    pub reason: String,
}

/// The sources that were tried, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attempts(pub Vec<Attempt>);

impl fmt::Display for Attempts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, attempt) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { "; " };
            write!(
                f,
                "{comma}({}) {}: {}",
                index + 1,
                attempt.source,
                attempt.reason
            )?;
        }
        Ok(())
    }
}

impl HubError {
    /// Whether the name or the file was wrong, and not the world.
    pub fn is_bad_input(&self) -> bool {
        matches!(
            self,
            Self::Unknown { .. } | Self::BadName { .. } | Self::BadFile { .. }
        )
    }

    pub(crate) fn offline(name: &str, looked: &Path) -> Self {
        Self::Offline {
            name: shown(name),
            looked: looked.to_owned(),
        }
    }

    pub(crate) fn bad_name(name: &str, reason: impl Into<String>) -> Self {
        Self::BadName {
            name: shown(name),
            reason: reason.into(),
        }
    }

    /// Turns an I/O error on a path of the cache into one line with its remedy.
    pub(crate) fn cache<'a>(
        action: &'static str,
        path: &'a Path,
    ) -> impl FnOnce(io::Error) -> Self + 'a {
        move |error| {
            let remedy = match error.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                    "; free some space or choose another folder with --cache DIR"
                }
                io::ErrorKind::PermissionDenied
                | io::ErrorKind::ReadOnlyFilesystem
                | io::ErrorKind::NotADirectory
                | io::ErrorKind::AlreadyExists => "; choose another folder with --cache DIR",
                _ => "",
            };
            Self::Cache {
                action,
                path: path.to_owned(),
                reason: format!("{error}{remedy}"),
            }
        }
    }
}

/// Why one source gave no file.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The source is to blame; the next one may do.
    Source(String),
    /// No other source can help.
    Hub(HubError),
}

impl From<HubError> for Failure {
    fn from(error: HubError) -> Self {
        Self::Hub(error)
    }
}

/// Foreign text in one short, harmless line.
pub(crate) fn shown(text: &str) -> String {
    const LONGEST: usize = 300;
    let mut line: String = text
        .trim()
        .chars()
        .take(LONGEST)
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect();
    if text.trim().chars().nth(LONGEST).is_some() {
        line.push('…');
    }
    line
}
