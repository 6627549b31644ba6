//! The environment variables that this crate reads, all of them.

use std::path::PathBuf;

/// What the user's Hugging Face tools are set to.
#[derive(Clone, Debug, Default)]
pub(crate) struct HuggingFaceSettings {
    /// `HF_HUB_OFFLINE`
    pub(crate) offline: bool,
    /// `HF_TOKEN`, or the token that those tools stored.
    pub(crate) token: Option<String>,
    /// `HF_ENDPOINT`
    pub(crate) endpoint: Option<String>,
    /// The cache that those tools share; only ever read.
    pub(crate) shared_cache: Option<PathBuf>,
}

impl HuggingFaceSettings {
    pub(crate) fn from_environment() -> Self {
        let home = variable("HF_HOME").map(PathBuf::from).or_else(|| {
            let cache = absolute("XDG_CACHE_HOME")
                .or_else(|| Some(std::env::home_dir()?.join(".cache")))?;
            Some(cache.join("huggingface"))
        });
        let shared_cache = variable("HF_HUB_CACHE")
            .map(PathBuf::from)
            .or_else(|| home.as_ref().map(|home| home.join("hub")));
        let stored = || {
            let text = std::fs::read_to_string(home.as_ref()?.join("token")).ok()?;
            Some(text.trim().to_owned()).filter(|token| !token.is_empty())
        };
        Self {
            offline: variable("HF_HUB_OFFLINE").is_some_and(|value| {
                ["1", "on", "yes", "true"].contains(&value.to_ascii_lowercase().as_str())
            }),
            token: variable("HF_TOKEN").or_else(stored),
            endpoint: variable("HF_ENDPOINT"),
            shared_cache,
        }
    }
}

/// `$XDG_CACHE_HOME/forthwith` or `~/.cache/forthwith`; below the working folder for users without a home.
pub(crate) fn default_cache() -> PathBuf {
    absolute("XDG_CACHE_HOME")
        .or_else(|| Some(std::env::home_dir()?.join(".cache")))
        .map_or_else(
            || PathBuf::from(".forthwith-cache"),
            |cache| cache.join("forthwith"),
        )
}

fn absolute(name: &str) -> Option<PathBuf> {
    variable(name)
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
}

#[expect(
    clippy::disallowed_methods,
    reason = "variables of other programs, which the command line does not own"
)]
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
