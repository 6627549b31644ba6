//! What a developer and CI run alike, cheap checks first, the test runner's summary last.

use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::provision::Provision;
use crate::tidy;
use crate::workspace::{Workspace, run, step};

/// The end-to-end tests that run once more on the plain instruction set: those that start the
/// binary and compute. That kernels give the same bits everywhere is proved in `crates/cpu`.
const SCALAR_TESTS: [&str; 2] = ["run::", "serve::"];

/// An example whose name starts so does not end by itself; building it is its check.
const ENDLESS: &str = "serve";

/// Checks that need nothing but the sources, then a build of everything.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    step("format");
    run(&mut workspace.cargo(&["fmt", "--all", "--check"]))?;
    step("tidy");
    tidy::run(workspace)?;
    step("lints");
    let lints = [
        "clippy",
        "--workspace",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ];
    run(&mut workspace.cargo(&lints))?;
    step("build");
    run(&mut workspace.cargo(&["test", "--workspace", "--no-run"]))
}

/// Examples, documentation tests and all tests, with what the machine has for them.
pub(crate) fn test(workspace: &Workspace, provision: &Provision) -> Result<()> {
    step("examples");
    run_examples(workspace)?;
    step("documentation tests");
    run(&mut workspace.cargo(&["test", "--quiet", "--workspace", "--doc"]))?;
    let runner = Runner::find(workspace);
    step("end-to-end tests on the scalar instruction set");
    run(equipped(&mut runner.scalar(workspace), provision).env("FORTHWITH_ISA", "scalar"))?;
    step("all tests");
    provision.announce();
    run(equipped(&mut runner.all(workspace), provision))
}

fn equipped<'a>(command: &'a mut Command, provision: &Provision) -> &'a mut Command {
    provision.equip(command);
    // A snapshot that changed fails; it is never rewritten here.
    command.env("INSTA_UPDATE", "no")
}

/// Runs the built examples of every crate; they end by themselves and answer with their status.
fn run_examples(workspace: &Workspace) -> Result<()> {
    for file in workspace.files(&["rs"])? {
        let example = file.name().trim_end_matches(".rs");
        if !file.folder().ends_with("/examples") || example.starts_with(ENDLESS) {
            continue;
        }
        let path = workspace.target.join("debug/examples").join(example);
        run(Command::new(path).stdout(Stdio::null())).with_context(|| file.path.clone())?;
        eprintln!("{}: done", file.path);
    }
    Ok(())
}

/// The program that runs the tests.
#[derive(Clone, Copy)]
enum Runner {
    Nextest,
    /// Comes with cargo.
    CargoTest,
}

impl Runner {
    fn find(workspace: &Workspace) -> Self {
        let mut probe = workspace.cargo(&["nextest", "--version"]);
        let found = probe.stdout(Stdio::null()).stderr(Stdio::null()).status();
        if found.is_ok_and(|status| status.success()) {
            return Self::Nextest;
        }
        eprintln!(
            "cargo-nextest is not installed; `cargo test` runs the tests, one crate at a time"
        );
        Self::CargoTest
    }

    fn all(self, workspace: &Workspace) -> Command {
        workspace.cargo(match self {
            Self::Nextest => &["nextest", "run", "--workspace"],
            Self::CargoTest => &[
                "test",
                "--workspace",
                "--lib",
                "--bins",
                "--tests",
                "--no-fail-fast",
            ],
        })
    }

    fn scalar(self, workspace: &Workspace) -> Command {
        match self {
            Self::Nextest => {
                let tests = SCALAR_TESTS.join("|");
                let filter = format!("package(forthwith) and kind(test) and test(/^({tests})/)");
                workspace.cargo(&["nextest", "run", "--workspace", "-E", &filter])
            }
            Self::CargoTest => {
                let mut command = workspace.cargo(&["test", "--workspace", "--test", "it", "--"]);
                command.args(SCALAR_TESTS);
                command
            }
        }
    }
}
