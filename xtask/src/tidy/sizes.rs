//! Size as a reviewed quantity: the biggest files and functions.

use super::style::lines_before_tests;
use crate::workspace::TextFile;

const SHOWN: usize = 10;

/// Words that may stand before `fn`.
const QUALIFIERS: [&str; 8] = [
    "pub",
    "pub(crate)",
    "pub(super)",
    "const",
    "async",
    "unsafe",
    "extern",
    "\"C\"",
];

/// Prints both lists.
pub(super) fn print(sources: &[TextFile]) {
    let files = sources
        .iter()
        .map(|file| (lines_before_tests(&file.text), file.path.clone()));
    print_list("files, lines before their tests", files.collect());
    print_list("functions", sources.iter().flat_map(functions).collect());
}

fn print_list(title: &str, mut rows: Vec<(usize, String)>) {
    rows.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    eprintln!("the {SHOWN} biggest {title}:");
    for (lines, name) in rows.iter().take(SHOWN) {
        eprintln!("{lines:6}  {name}");
    }
}

/// The length and place of each function.
///
/// Formatted code ends a function with a brace at the indentation of its first line, so no parser
/// is needed.
fn functions(file: &TextFile) -> Vec<(usize, String)> {
    let lines: Vec<&str> = file.text.lines().collect();
    let mut found = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let Some(name) = function_name(line) else {
            continue;
        };
        let indent = line.len() - line.trim_start().len();
        let at_indent = |line: &&&str| line.len() - line.trim_start().len() == indent;
        let rest = lines[start..].iter().enumerate();
        let end = rest
            .filter(|(_, line)| at_indent(line) && ends(line))
            .map(|(i, _)| i)
            .next();
        if let Some(end) = end.filter(|&end| !lines[start + end].ends_with(';')) {
            found.push((end + 1, format!("{}: {name}", file.path)));
        }
    }
    found
}

/// Whether a line at a function's own indentation is its last: a body's end or a declaration's.
fn ends(line: &str) -> bool {
    line.ends_with('}') || line.ends_with(';')
}

fn function_name(line: &str) -> Option<&str> {
    let (before, after) = match line.trim_start().strip_prefix("fn ") {
        Some(after) => ("", after),
        None => line.split_once(" fn ")?,
    };
    let known = before
        .split_whitespace()
        .all(|word| QUALIFIERS.contains(&word));
    let name = after.split(['(', '<']).next()?;
    known.then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_measured() {
        let text = "\
trait A {
    fn declared(
        &self,
    );
    fn short(&self) {}
}
pub(crate) const fn long<T>(
    x: T,
) {
    if x {
    }
}
// not a fn at all
";
        let file = TextFile {
            path: "a.rs".to_owned(),
            text: text.to_owned(),
        };
        let found = functions(&file);
        assert_eq!(
            found,
            [(1, "a.rs: short".to_owned()), (6, "a.rs: long".to_owned())]
        );
    }
}
