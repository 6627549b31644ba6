//! Documents that cannot rot: every path they name exists, and the README's commands are those
//! that CI runs.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::Result;

use super::Problem;
use crate::workspace::TextFile;

/// The README's two commands: the first answers a prompt, the second runs all tests.
const README_COMMANDS: [&str; 2] = [
    "cargo run --release -- run \"Why is the sky blue?\"",
    "cargo xtask test",
];

/// A path in a document is one that starts with one of these folders.
const FOLDERS: [&str; 10] = [
    ".cargo/",
    ".ci/",
    ".config/",
    "crates/",
    "deploy/",
    "docs/",
    "examples/",
    "fixtures/",
    "fuzz/",
    "xtask/",
];

/// These tell of their own time; only their links are checked.
const HISTORY: [&str; 2] = ["docs/adr/", "CHANGELOG.md"];

/// `ARCHITECTURE.md` stays short enough to be read.
const MAX_ARCHITECTURE: usize = 300;

/// Checks all documents, and the paths that comments in sources name.
pub(super) fn check(
    root: &Path,
    documents: &[TextFile],
    sources: &[TextFile],
) -> Result<Vec<Problem>> {
    let mut problems = Vec::new();
    for document in documents {
        problems.extend(broken_links(root, document));
        if !HISTORY
            .iter()
            .any(|history| document.path.starts_with(history))
        {
            problems.extend(missing_paths(root, document, Some));
        }
    }
    let comment = |line| Some(str::split_once(line, "//")?.1);
    for source in sources
        .iter()
        .filter(|source| source.path.starts_with("crates/"))
    {
        problems.extend(missing_paths(root, source, comment));
    }
    problems.extend(check_readme(root)?);
    let length = fs::read_to_string(root.join("ARCHITECTURE.md"))?
        .lines()
        .count();
    if length > MAX_ARCHITECTURE {
        let what = format!("{length} lines, allowed are {MAX_ARCHITECTURE}");
        problems.push(Problem::new("ARCHITECTURE.md", what));
    }
    Ok(problems)
}

fn check_readme(root: &Path) -> Result<Vec<Problem>> {
    let mut problems = Vec::new();
    let blocks = shell_blocks(&fs::read_to_string(root.join("README.md"))?);
    for (index, want) in README_COMMANDS.iter().enumerate() {
        if blocks.get(index).map(String::as_str) != Some(want) {
            let what = format!("its shell block {} must be exactly `{want}`", index + 1);
            problems.push(Problem::new("README.md", what));
        }
    }
    let script = fs::read_to_string(root.join(".ci/run"))?;
    if script.lines().last() != Some(&format!("exec {}", README_COMMANDS[1])) {
        let what = "must end with the README's second command";
        problems.push(Problem::new(".ci/run", what));
    }
    Ok(problems)
}

/// The texts of all blocks fenced as `sh`.
fn shell_blocks(text: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut lines = text.lines();
    while lines.any(|line| line == "```sh") {
        let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        blocks.push(block.join("\n"));
    }
    blocks
}

/// Links to files that are not there, and to headings that no file has.
fn broken_links(root: &Path, document: &TextFile) -> Vec<Problem> {
    let folder = root.join(document.folder());
    let mut problems = Vec::new();
    for (number, link) in links(&document.text) {
        let (path, heading) = link.split_once('#').unwrap_or((link, ""));
        let target = if path.is_empty() {
            root.join(&document.path)
        } else {
            folder.join(path)
        };
        let place = || format!("{}:{number}", document.path);
        if !target.exists() {
            problems.push(Problem::new(
                place(),
                format!("links to {path}, which is not there"),
            ));
        } else if !heading.is_empty() && !headings(&target).contains(heading) {
            problems.push(Problem::new(
                place(),
                format!("links to {link}, a heading that is not there"),
            ));
        }
    }
    problems
}

/// The targets of relative links outside code, with their lines.
fn links(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut fenced = false;
    for (number, line) in (1..).zip(text.lines()) {
        fenced ^= line.trim_start().starts_with("```");
        let targets = line
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next());
        let relative = targets.filter(|target| !fenced && !target.contains(':'));
        found.extend(relative.map(|target| (number, target)));
    }
    found
}

/// The anchors of a document's headings.
fn headings(path: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let titles = text.lines().filter_map(|line| {
        let title = line.trim_start_matches('#');
        (title.len() < line.len()).then(|| title.trim().to_lowercase())
    });
    let anchor = |title: String| {
        let kept = title
            .chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    titles.map(anchor).collect()
}

/// Paths from the root, in the parts of lines that `part` picks, that are not there.
fn missing_paths<'a>(
    root: &Path,
    file: &'a TextFile,
    part: impl Fn(&'a str) -> Option<&'a str>,
) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (number, line) in (1..).zip(file.text.lines()) {
        for path in paths(part(line).unwrap_or_default()) {
            if !root.join(path).exists() {
                let place = format!("{}:{number}", file.path);
                problems.push(Problem::new(
                    place,
                    format!("names {path}, which is not there"),
                ));
            }
        }
    }
    problems
}

/// The words of a line that are paths from the root; those with placeholders are not.
fn paths(line: &str) -> impl Iterator<Item = &str> {
    let words = line.split(|c: char| {
        c.is_whitespace() || matches!(c, '`' | '(' | ')' | '[' | ']' | '"' | ',' | ';')
    });
    let words = words.map(|word| word.trim_end_matches(['.', ':', '/']));
    words.filter(|word| {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/');
        FOLDERS.iter().any(|folder| word.starts_with(folder)) && word.chars().all(plain)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_found_in_prose_and_code() {
        let line = "See `crates/core/src/lib.rs`, docs/adr/ and (fixtures/logits).";
        let found: Vec<&str> = paths(line).collect();
        assert_eq!(
            found,
            ["crates/core/src/lib.rs", "docs/adr", "fixtures/logits"]
        );
        assert_eq!(
            paths("`crates/models/src/arch/<name>.rs` target/debug").count(),
            0
        );
        assert_eq!(paths("`crates/x/{a,b}.rs` https://docs.rs/").count(), 0);
    }

    #[test]
    fn links_are_found_outside_code() {
        let text = "[a](b.md#c) [d](https://e)\n```\n[f](g.md)\n```\n[h](i/j.md)\n";
        assert_eq!(links(text), [(1, "b.md#c"), (5, "i/j.md")]);
    }

    #[test]
    fn shell_blocks_are_found() {
        let text = "a\n```sh\none\ntwo\n```\n```rust\nx\n```\n```sh\nthree\n```\n";
        assert_eq!(shell_blocks(text), ["one\ntwo", "three"]);
    }
}
