//! The grammar of model names.

use crate::TOY;
use crate::catalogue::Model;
use crate::error::{HubError, shown};
use std::fmt;
use std::path::{Path, PathBuf};

/// What a name means.
#[derive(Debug)]
pub(crate) enum Name {
    Toy,
    Alias(&'static Model),
    HuggingFace(HuggingFaceName),
    /// An existing regular file, or a model's folder.
    File(PathBuf),
}

/// Reads a name. Aliases win over files of the same name; `./alias` means the file.
pub(crate) fn parse(name: &str, catalogue: &'static [Model]) -> Result<Name, HubError> {
    if name.is_empty() {
        return Err(HubError::bad_name(name, "the name is empty"));
    }
    if name == TOY {
        return Ok(Name::Toy);
    }
    if let Some(model) = catalogue.iter().find(|model| model.alias == name) {
        return Ok(Name::Alias(model));
    }
    if let Some(rest) = name.strip_prefix("hf:") {
        return HuggingFaceName::parse(rest)
            .map(Name::HuggingFace)
            .map_err(|reason| HubError::bad_name(name, reason));
    }
    let path = Path::new(name);
    let looks_like_path = name.contains(std::path::is_separator)
        || path
            .extension()
            .is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"));
    if looks_like_path || path.exists() {
        return local_file(path).map(Name::File);
    }
    let known: Vec<&str> = catalogue.iter().map(|model| model.alias).collect();
    Err(HubError::Unknown {
        name: shown(name),
        known: format!("{}, {TOY}", known.join(", ")),
    })
}

fn local_file(path: &Path) -> Result<PathBuf, HubError> {
    let reason = match path.metadata() {
        Ok(metadata) if metadata.is_file() => return Ok(path.to_owned()),
        Ok(metadata) if metadata.is_dir() && path.join("config.json").is_file() => {
            return Ok(path.to_owned());
        }
        Ok(metadata) if metadata.is_dir() => {
            "is a folder without config.json; name a model's folder or a .gguf file".to_owned()
        }
        Ok(_) => "is not a regular file".to_owned(),
        Err(error) => error.to_string(),
    };
    Err(HubError::BadFile {
        path: path.to_owned(),
        reason,
    })
}

/// The name of a model that is known by its path only.
pub(crate) fn stem(path: &Path) -> String {
    let name = if path.is_dir() {
        // A name even for `.` and for paths that end in dots.
        let whole = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        whole.file_name().map(std::ffi::OsStr::to_owned)
    } else {
        path.file_stem().map(std::ffi::OsStr::to_owned)
    };
    name.map_or_else(|| "model".to_owned(), |name| shown(&name.to_string_lossy()))
}

/// A repository and perhaps a file of it, safe to use in URLs and paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HuggingFaceName {
    repo: String,
    file: Option<String>,
}

impl HuggingFaceName {
    /// Reads `owner/repo[:file]`.
    fn parse(text: &str) -> Result<Self, String> {
        let (repo, file) = match text.split_once(':') {
            Some((repo, file)) => (repo, Some(file)),
            None => (text, None),
        };
        Self::checked(repo, file)
    }

    /// Checks both parts.
    pub(crate) fn new(repo: &str, file: Option<&str>) -> Result<Self, HubError> {
        Self::checked(repo, file).map_err(|reason| HubError::bad_name(repo, reason))
    }

    fn checked(repo: &str, file: Option<&str>) -> Result<Self, String> {
        let Some((owner, model)) = repo.split_once('/') else {
            return Err("expected hf:owner/repo[:file]".to_owned());
        };
        check_part("owner", owner)?;
        check_part("repo", model)?;
        if repo.contains("--") {
            return Err("`--` is not allowed in owner or repo".to_owned());
        }
        if let Some(file) = file {
            check_file(file)?;
        }
        Ok(Self {
            repo: repo.to_owned(),
            file: file.map(str::to_owned),
        })
    }

    /// `owner/repo`
    pub(crate) fn repo(&self) -> &str {
        &self.repo
    }

    /// The file, when the name says which.
    pub(crate) fn file(&self) -> Option<&str> {
        self.file.as_deref()
    }

    /// The model's name for users.
    pub(crate) fn display_name(&self) -> String {
        match &self.file {
            Some(file) => format!("{}:{file}", self.repo),
            None => self.repo.clone(),
        }
    }
}

impl fmt::Display for HuggingFaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hf:{}", self.display_name())
    }
}

/// Checks the path of a file inside a repository.
pub(crate) fn check_file(file: &str) -> Result<(), String> {
    if file.len() > 512 {
        return Err("the file's path is too long".to_owned());
    }
    for part in file.split('/') {
        check_part("file", part)?;
    }
    if Path::new(file)
        .extension()
        .is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
    {
        Ok(())
    } else {
        Err("the file must be a .gguf file".to_owned())
    }
}

/// Checks a name that becomes one component of a path.
pub(crate) fn check_component(name: &str) -> Result<(), String> {
    check_part("file", name)
}

fn check_part(what: &str, part: &str) -> Result<(), String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if part.is_empty() || part.len() > 200 {
        Err(format!("{what} must have 1 to 200 characters in each part"))
    } else if !part.chars().all(allowed) {
        Err(format!(
            "{what} may hold only letters, digits and `.`, `_`, `-`"
        ))
    } else if part.starts_with('.') || part.contains("..") {
        Err(format!("{what} may not start with `.` or contain `..`"))
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::MODELS;
    use proptest::prelude::*;

    #[test]
    fn names_mean_what_they_say() {
        assert!(matches!(parse("toy", MODELS), Ok(Name::Toy)));
        assert!(
            matches!(parse("smollm2", MODELS), Ok(Name::Alias(model)) if model.alias == "smollm2")
        );
        let Ok(Name::HuggingFace(name)) = parse("hf:a/b.c:d/e-f.gguf", MODELS) else {
            panic!("a repository")
        };
        assert_eq!((name.repo(), name.file()), ("a/b.c", Some("d/e-f.gguf")));
        assert_eq!(name.to_string(), "hf:a/b.c:d/e-f.gguf");
    }

    #[test]
    fn traversal_and_odd_names_are_refused() {
        let long = format!("hf:a/{}", "b".repeat(201));
        for name in [
            "",
            "hf:",
            "hf:a",
            "hf:/b",
            "hf:a/",
            "hf:a/b/c",
            "hf:../b",
            "hf:a/..",
            "hf:a/b:../c.gguf",
            "hf:a/b:/etc/passwd",
            "hf:a/b:c/../../d.gguf",
            "hf:a/b:%2e%2e/c.gguf",
            "hf:a/b:c\\d.gguf",
            "hf:a/b:c\0.gguf",
            "hf:a/b:c.bin",
            "hf:a/b:",
            "hf:a--b/c",
            "hf:a/b?x=1",
            "hf:a@evil/b",
            "hf:a/b:c.gguf:d",
            "hf:.a/b",
            "hf:é/b",
            &long,
        ] {
            let error = parse(name, MODELS).unwrap_err();
            assert!(
                matches!(error, HubError::BadName { .. }),
                "{name:?}: {error}"
            );
            assert!(error.is_bad_input());
        }
    }

    #[test]
    fn paths_must_be_regular_files() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("m.gguf");
        std::fs::write(&file, b"x").unwrap();
        let name = |path: &Path| path.to_str().unwrap().to_owned();
        assert!(matches!(parse(&name(&file), MODELS), Ok(Name::File(path)) if path == file));
        for path in [
            folder.path(),
            &folder.path().join("absent.gguf"),
            Path::new("/dev/zero"),
        ] {
            let error = parse(&name(path), MODELS).unwrap_err();
            assert!(matches!(error, HubError::BadFile { .. }), "{error}");
        }
        assert!(matches!(
            parse("absent.gguf", MODELS),
            Err(HubError::BadFile { .. })
        ));
        assert!(matches!(
            parse("a\0.gguf", MODELS),
            Err(HubError::BadFile { .. })
        ));
        let error = parse("smollm3", MODELS).unwrap_err().to_string();
        assert!(
            error.contains("smollm2") && error.contains("toy"),
            "{error}"
        );
    }

    proptest! {
        #[test]
        fn accepted_repositories_stay_below_their_folder(name in "hf:[a-b./%\\\\:~-]{0,24}(\\.gguf)?") {
            if let Ok(Name::HuggingFace(name)) = parse(&name, MODELS) {
                let parts = name.repo().split('/').chain(name.file().into_iter().flat_map(|file| file.split('/')));
                for part in parts {
                    prop_assert!(!part.is_empty() && part != "." && !part.contains(".."));
                    prop_assert_eq!(Path::new(part).components().count(), 1);
                }
            }
        }
    }
}
