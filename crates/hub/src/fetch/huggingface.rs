//! Files of Hugging Face repositories, through the `hf-hub` library.
//!
//! The library keeps its own cache layout, resumes by range requests and never sends the token to
//! another host. What a server says is checked before it becomes part of a path.

use crate::cache;
use crate::digest;
use crate::environment::HuggingFaceSettings;
use crate::error::{Failure, HubError, shown};
use crate::progress::Progress;
use crate::resolve::{HuggingFaceName, check_file};
use hf_hub::api::sync::{Api, ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, Repo};
use std::fs;
use std::path::{Path, PathBuf};

const REVISION: &str = "main";

/// The file in a cache folder of the library's layout, if it is there.
pub(crate) fn cached(folder: &Path, wanted: &HuggingFaceName) -> Option<PathBuf> {
    let repo = Cache::new(folder.to_owned()).model(wanted.repo().to_owned());
    let file = match wanted.file() {
        Some(file) => file.to_owned(),
        None => only_snapshot_file(folder, wanted)?,
    };
    repo.get(&file).filter(|path| is_inside(path, folder))
}

/// Without a file in the name, the one `.gguf` file of the cached snapshot.
fn only_snapshot_file(folder: &Path, wanted: &HuggingFaceName) -> Option<String> {
    let repo = Repo::model(wanted.repo().to_owned());
    let root = folder.join(repo.folder_name());
    let commit = fs::read_to_string(root.join("refs").join(REVISION)).ok()?;
    if !is_token(&commit) {
        return None;
    }
    let entries = fs::read_dir(root.join("snapshots").join(commit)).ok()?;
    let names = entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok());
    choose(names).ok()
}

/// Downloads the file, or what is missing of it.
pub(crate) fn fetch(
    settings: &HuggingFaceSettings,
    folder: &Path,
    wanted: &HuggingFaceName,
    progress: &dyn Progress,
) -> Result<PathBuf, Failure> {
    if settings.offline {
        return Err(Failure::Source("HF_HUB_OFFLINE is set".to_owned()));
    }
    cache::create_folder(folder)?;
    let mut builder = ApiBuilder::from_cache(Cache::new(folder.to_owned()))
        .with_token(settings.token.clone())
        .with_progress(false);
    if let Some(endpoint) = &settings.endpoint {
        builder = builder.with_endpoint(endpoint.trim_end_matches('/').to_owned());
    }
    let api = builder.build().map_err(|error| refused(&error))?;
    let repo = api.model(wanted.repo().to_owned());
    let file = match wanted.file() {
        Some(file) => file.to_owned(),
        None => listed_file(&repo)?,
    };
    download(&api, folder, wanted, &file, progress)
}

fn listed_file(repo: &ApiRepo) -> Result<String, Failure> {
    let info = repo.info().map_err(|error| refused(&error))?;
    let names = info.siblings.into_iter().map(|sibling| sibling.rfilename);
    choose(names).map_err(Failure::Source)
}

/// The one model file of a repository, or its `Q4_K_M` file where there are several.
fn choose(names: impl Iterator<Item = String>) -> Result<String, String> {
    let is_model = |name: &String| check_file(name).is_ok() && !name.contains("mmproj");
    let mut files: Vec<String> = names.filter(is_model).collect();
    files.sort();
    let is_usual = |name: &&String| name.to_ascii_lowercase().contains("q4_k_m");
    let usual: Vec<&String> = files.iter().filter(is_usual).collect();
    match (files.as_slice(), usual.as_slice()) {
        ([], _) => Err("the repository has no .gguf file".to_owned()),
        ([file], _) => Ok(file.clone()),
        (_, [file]) => Ok((*file).clone()),
        (files, _) => {
            let some: Vec<&str> = files.iter().take(12).map(String::as_str).collect();
            let list = some.join(", ");
            Err(format!(
                "say which file, as hf:owner/repo:file; some of its files: {list}"
            ))
        }
    }
}

fn download(
    api: &Api,
    folder: &Path,
    wanted: &HuggingFaceName,
    file: &str,
    progress: &dyn Progress,
) -> Result<PathBuf, Failure> {
    let remote = Repo::model(wanted.repo().to_owned());
    let repo = api.repo(remote.clone());
    let metadata = api
        .metadata(&repo.url(file))
        .map_err(|error| refused(&error))?;
    if !is_token(metadata.etag()) || !is_token(metadata.commit_hash()) {
        return Err(Failure::Source(
            "the server sent a malformed identifier".to_owned(),
        ));
    }
    let size = metadata.size() as u64;
    let blob = folder
        .join(remote.folder_name())
        .join("blobs")
        .join(metadata.etag());
    let unfinished = blob.with_extension("part");
    // The library asks for the rest of a file; of a complete one there is none to ask for.
    if unfinished.metadata().is_ok_and(|part| part.len() >= size) {
        cache::remove(&unfinished)?;
    }
    let reporter = Reporter {
        progress,
        begun: false,
    };
    let path = repo
        .download_with_progress(file, reporter)
        .map_err(|error| match error {
            ApiError::IoError(error) => HubError::cache("write", folder)(error).into(),
            error => refused(&error),
        })?;
    let complete = is_inside(&path, folder)
        && path
            .metadata()
            .is_ok_and(|found| found.is_file() && found.len() == size);
    // Large files are identified by their SHA-256, small ones by a SHA-1 of another form.
    let hash = metadata.etag();
    let found = if complete && hash.len() == 64 {
        digest::of_file(&path).map_err(HubError::cache("read", &path))?
    } else {
        hash.to_owned()
    };
    if complete && found == hash {
        return Ok(path);
    }
    cache::remove(&blob)?;
    cache::remove(&path)?;
    Err(Failure::Source(if complete {
        digest::mismatch(hash, &found)
    } else {
        format!("the download is not the {size} bytes that were announced")
    }))
}

/// Whether the text is one harmless path component.
fn is_token(text: &str) -> bool {
    (1..=128).contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
}

/// Whether the path leads, links followed, to something below the folder.
fn is_inside(path: &Path, folder: &Path) -> bool {
    match (path.canonicalize(), folder.canonicalize()) {
        (Ok(path), Ok(folder)) => path.starts_with(folder) && path.is_file(),
        _ => false,
    }
}

fn refused(error: &ApiError) -> Failure {
    let text = error.to_string();
    let hint = match text.rsplit("status: ").next() {
        Some("401" | "403") => " (no such repository, or it needs a token in HF_TOKEN)",
        Some("404") => " (no such repository or file)",
        _ => "",
    };
    Failure::Source(format!("{}{hint}", shown(&text)))
}

struct Reporter<'a> {
    progress: &'a dyn Progress,
    begun: bool,
}

impl hf_hub::api::Progress for Reporter<'_> {
    fn init(&mut self, size: usize, filename: &str) {
        if !self.begun {
            self.begun = true;
            self.progress.begin(filename, Some(size as u64));
        }
    }

    fn update(&mut self, size: usize) {
        self.progress.advance(size as u64);
    }

    fn finish(&mut self) {}
}

impl Drop for Reporter<'_> {
    fn drop(&mut self) {
        if self.begun {
            self.progress.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chooses_the_only_or_the_usual_file() {
        let chosen = |names: &[&str]| choose(names.iter().map(|&name| name.to_owned()));
        assert_eq!(chosen(&["README.md", "a.gguf"]), Ok("a.gguf".to_owned()));
        assert_eq!(
            chosen(&["m-Q8_0.gguf", "m-Q4_K_M.gguf", "mmproj-m.gguf"]),
            Ok("m-Q4_K_M.gguf".to_owned())
        );
        assert!(chosen(&["m-Q8_0.gguf", "m-Q4_0.gguf"]).is_err());
        assert!(chosen(&["../../x.gguf"]).is_err());
        assert!(chosen(&[]).is_err());
    }
}
