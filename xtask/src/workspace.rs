//! Where the workspace is, what its files say, and commands that run in it.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Folders that hold nothing of ours.
const FOREIGN: [&str; 4] = [".git", ".venv", "target", "__pycache__"];

/// The workspace as cargo and the file system know it.
pub(crate) struct Workspace {
    pub(crate) root: PathBuf,
    /// Where cargo puts what it builds.
    pub(crate) target: PathBuf,
    /// `cargo metadata --no-deps`: the members and what they declare.
    pub(crate) metadata: Value,
}

/// A text file of the workspace.
pub(crate) struct TextFile {
    /// Relative to the root, with forward slashes.
    pub(crate) path: String,
    pub(crate) text: String,
}

impl TextFile {
    /// The path's last part.
    pub(crate) fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }

    /// The path's part before the last `/`.
    pub(crate) fn folder(&self) -> &str {
        self.path.rsplit_once('/').map_or("", |(folder, _)| folder)
    }
}

impl Workspace {
    /// Asks cargo about the workspace that this crate is part of.
    pub(crate) fn find() -> Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let root = root.parent().context("xtask lies in the workspace")?;
        let output = Command::new(cargo())
            .args(["metadata", "--no-deps", "--format-version", "1"])
            .current_dir(root)
            .output()?;
        if !output.status.success() {
            bail!(
                "cargo metadata: {}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
        let metadata: Value = serde_json::from_slice(&output.stdout)?;
        let target = metadata["target_directory"].as_str();
        Ok(Self {
            root: root.to_owned(),
            target: target.context("cargo names its target folder")?.into(),
            metadata,
        })
    }

    /// Every text file with one of these extensions, in order of path.
    pub(crate) fn files(&self, extensions: &[&str]) -> Result<Vec<TextFile>> {
        let mut paths = Vec::new();
        collect(&self.root, extensions, &mut paths)?;
        paths.sort();
        let read = |path: PathBuf| {
            let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            let path = path.strip_prefix(&self.root)?;
            let parts: Vec<_> = path.iter().map(OsStr::to_string_lossy).collect();
            Ok(TextFile {
                path: parts.join("/"),
                text,
            })
        };
        paths.into_iter().map(read).collect()
    }

    /// A cargo command in the root.
    pub(crate) fn cargo(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(cargo());
        command.args(arguments).current_dir(&self.root);
        command
    }
}

fn cargo() -> PathBuf {
    std::env::var_os("CARGO").map_or_else(|| "cargo".into(), PathBuf::from)
}

fn collect(folder: &Path, extensions: &[&str], paths: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let (path, kind) = entry.and_then(|entry| Ok((entry.path(), entry.file_type()?)))?;
        let name = path.file_name().unwrap_or_default();
        if kind.is_dir() && !FOREIGN.iter().any(|&foreign| name == foreign) {
            collect(&path, extensions, paths)?;
        } else if kind.is_file()
            && extensions
                .iter()
                .any(|&e| path.extension() == Some(e.as_ref()))
        {
            paths.push(path);
        }
    }
    Ok(())
}

/// Begins a part of a run.
pub(crate) fn step(title: &str) {
    eprintln!("\n== {title}");
}

/// Runs a command, its output going where ours goes.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("cannot start {}", command.get_program().display()))?;
    if !status.success() {
        let words: Vec<_> = command.get_args().map(OsStr::to_string_lossy).collect();
        let program = Path::new(command.get_program()).file_name();
        let program = program.unwrap_or_default().display();
        bail!("`{program} {}` failed: {status}", words.join(" "));
    }
    Ok(())
}
