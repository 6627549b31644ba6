//! Automation of the workspace: the same checks for a developer and for CI.
#![forbid(unsafe_code)]

mod ci;
mod node;
mod provision;
mod tidy;
mod workspace;

use std::process::ExitCode;

use anyhow::{Result, bail};
use workspace::Workspace;

const USAGE: &str = "\
usage: cargo xtask COMMAND

  tidy   check the rules of the house that no compiler knows
  ci     format, lints, tidy, examples and all tests, with what this machine has
  test   install what the tests need, then the same";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: &[&str]) -> Result<()> {
    let workspace = Workspace::find()?;
    match words {
        ["tidy"] => tidy::run(&workspace),
        ["ci"] => {
            ci::check(&workspace)?;
            ci::test(&workspace, &provision::present(&workspace))
        }
        ["test"] => {
            ci::check(&workspace)?;
            ci::test(&workspace, &provision::fetch(&workspace))
        }
        _ => bail!("unknown command\n\n{USAGE}"),
    }
}
