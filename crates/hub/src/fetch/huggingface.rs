//! Files of Hugging Face repositories, through the `hf-hub` library.
//!
//! The library keeps its own cache layout, resumes by range requests and never sends the token to
//! another host. What a server says is checked before it becomes part of a path.

use crate::cache;
use crate::digest;
use crate::environment::HuggingFaceSettings;
use crate::error::{Failure, HubError, shown};
use crate::fetch::selection::Selection;
use crate::progress::Progress;
use crate::resolve::HuggingFaceName;
use hf_hub::api::sync::{Api, ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, Repo};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const REVISION: &str = "main";
const TOKENIZER: &str = "tokenizer.json";

/// The model in a cache folder of the library's layout, if all of it is there.
pub(crate) fn cached(folder: &Path, wanted: &HuggingFaceName) -> Option<PathBuf> {
    let snapshot = snapshot(folder, wanted)?;
    let names = match wanted.file() {
        Some(_) => Vec::new(),
        None => listed_below(&snapshot),
    };
    let selection = Selection::of(&names, wanted.file()).ok()?;
    let complete = |name: &String| is_inside(&snapshot.join(name), folder);
    let whole = match &selection {
        Selection::File(files) => files.iter().all(complete),
        Selection::Folder(files) => {
            files.iter().all(complete)
                && names.iter().any(|name| name == TOKENIZER)
                && has_all_shards(files)
        }
    };
    whole.then(|| model_of(&selection, &snapshot))
}

/// The folder of the revision that was fetched last.
fn snapshot(folder: &Path, wanted: &HuggingFaceName) -> Option<PathBuf> {
    let repo = Repo::model(wanted.repo().to_owned());
    let root = folder.join(repo.folder_name());
    let commit = fs::read_to_string(root.join("refs").join(REVISION)).ok()?;
    is_token(&commit).then(|| root.join("snapshots").join(commit))
}

/// The names of files in a folder and in the folders in it.
fn listed_below(folder: &Path) -> Vec<String> {
    let entries = |folder: &Path| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok())
    };
    let mut names = Vec::new();
    for name in entries(folder) {
        let path = folder.join(&name);
        if path.is_dir() {
            names.extend(entries(&path).map(|file| format!("{name}/{file}")));
        } else {
            names.push(name);
        }
    }
    names
}

/// Whether there are as many shards as the name of the last one says.
fn has_all_shards(files: &[String]) -> bool {
    let shards: Vec<&String> = files.iter().filter(|name| name.contains("-of-")).collect();
    let count = shards.last().and_then(|name| {
        let count = name.rsplit_once("-of-")?.1.split('.').next()?;
        count.parse::<usize>().ok()
    });
    count.is_none_or(|count| count == shards.len())
}

/// Where a selection's model lies.
fn model_of(selection: &Selection, snapshot: &Path) -> PathBuf {
    match selection {
        Selection::File(files) => snapshot.join(&files[0]),
        Selection::Folder(_) => snapshot.to_owned(),
    }
}

/// Downloads the files of a model, or what is missing of them.
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
    let names = match wanted.file() {
        Some(_) => Vec::new(),
        None => listed(&repo)?,
    };
    let selection = Selection::of(&names, wanted.file()).map_err(Failure::Source)?;
    let mut commits = BTreeSet::new();
    for file in selection.files() {
        commits.insert(download(&api, folder, wanted, file, progress)?);
    }
    let mut commits = commits.into_iter();
    match (commits.next(), commits.next()) {
        (Some(commit), None) => {
            let repo = Repo::model(wanted.repo().to_owned()).folder_name();
            let snapshot = folder.join(repo).join("snapshots").join(commit);
            Ok(model_of(&selection, &snapshot))
        }
        _ => Err(Failure::Source(
            "the repository changed while it was fetched; try again".to_owned(),
        )),
    }
}

fn listed(repo: &ApiRepo) -> Result<Vec<String>, Failure> {
    let info = repo.info().map_err(|error| refused(&error))?;
    let names = info.siblings.into_iter().map(|sibling| sibling.rfilename);
    Ok(names.collect())
}

/// Fetches one file; gives the commit it belongs to.
fn download(
    api: &Api,
    folder: &Path,
    wanted: &HuggingFaceName,
    file: &str,
    progress: &dyn Progress,
) -> Result<String, Failure> {
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
        return Ok(metadata.commit_hash().to_owned());
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
