//! The rules of the house that neither compiler nor clippy knows.

mod documents;
mod floors;
mod sizes;
mod sources;
mod style;

use std::fmt;

use anyhow::{Result, bail};

use crate::workspace::Workspace;

/// A broken rule.
#[derive(Debug, PartialEq, Eq)]
struct Problem {
    /// A path, with a line if there is one, or a crate.
    place: String,
    what: String,
}

impl Problem {
    fn new(place: impl Into<String>, what: impl Into<String>) -> Self {
        Self {
            place: place.into(),
            what: what.into(),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.what)
    }
}

/// Prints the biggest files and functions, then every broken rule.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    sizes::print(&workspace.files(&["rs"])?);
    let problems = check(workspace)?;
    for problem in &problems {
        eprintln!("tidy: {problem}");
    }
    match problems.len() {
        0 => Ok(()),
        1 => bail!("tidy found a broken rule"),
        count => bail!("tidy found {count} broken rules"),
    }
}

fn check(workspace: &Workspace) -> Result<Vec<Problem>> {
    let (sources, documents) = (workspace.files(&["rs"])?, workspace.files(&["md"])?);
    let mut problems = floors::check(&workspace.metadata);
    problems.extend(sources::check(&sources));
    problems.extend(style::check(&sources));
    problems.extend(documents::check(&workspace.root, &documents, &sources)?);
    Ok(problems)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workspace_is_tidy() {
        let problems = check(&Workspace::find().unwrap()).unwrap();
        let lines: Vec<String> = problems.iter().map(Problem::to_string).collect();
        assert!(problems.is_empty(), "\n{}", lines.join("\n"));
    }
}
