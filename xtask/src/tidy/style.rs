//! Rules about size and names.

use super::Problem;
use crate::workspace::TextFile;

/// Lines of a file before its tests.
const MAX_LINES: usize = 500;

/// Names that say nothing.
const EMPTY_NAMES: [&str; 8] = [
    "common", "utils", "helpers", "misc", "base", "types", "manager", "v2",
];

/// Marks of unfinished work; they need the issue that will finish it.
const MARKS: [&str; 2] = [concat!("TO", "DO"), concat!("FIX", "ME")];

/// Checks all sources.
pub(super) fn check(sources: &[TextFile]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for file in sources {
        let lines = lines_before_tests(&file.text);
        if lines > MAX_LINES {
            let what = format!("{lines} lines before its tests, allowed are {MAX_LINES}");
            problems.push(Problem::new(&file.path, what));
        }
        if let Some(name) = empty_name(&file.path) {
            let what = format!("`{name}` says nothing; name the thing that it holds");
            problems.push(Problem::new(&file.path, what));
        }
        problems.extend(lines_of(file));
    }
    problems
}

/// The lines of a file without its tests.
pub(super) fn lines_before_tests(text: &str) -> usize {
    text.lines()
        .take_while(|line| !matches!(*line, "mod tests {" | "mod tests;"))
        .count()
}

fn empty_name(path: &str) -> Option<&str> {
    let parts = path.trim_end_matches(".rs").split('/');
    parts.into_iter().find(|part| EMPTY_NAMES.contains(part))
}

fn lines_of(file: &TextFile) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (number, line) in (1..).zip(file.text.lines()) {
        let place = || format!("{}:{number}", file.path);
        let module = line.trim().trim_start_matches("pub ").strip_prefix("mod ");
        let module = module.map(|rest| rest.trim_end_matches([' ', '{', ';']));
        if let Some(name) = module.filter(|name| EMPTY_NAMES.contains(name)) {
            problems.push(Problem::new(
                place(),
                format!("module `{name}` says nothing"),
            ));
        }
        if let Some(mark) = MARKS.iter().find(|mark| unfinished(line, mark)) {
            let what = format!("{mark} needs its issue, as in {mark}(#12)");
            problems.push(Problem::new(place(), what));
        }
    }
    problems
}

/// Whether a comment carries the mark without an issue's number.
fn unfinished(line: &str, mark: &str) -> bool {
    let Some((_, comment)) = line.split_once("//") else {
        return false;
    };
    let Some((_, after)) = comment.split_once(mark) else {
        return false;
    };
    let number = after
        .strip_prefix("(#")
        .and_then(|rest| rest.split_once(')'));
    number.is_none_or(|(number, _)| number.parse::<u32>().is_err())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_do_not_count() {
        assert_eq!(lines_before_tests("a\nb\nmod tests {\nc\n}\n"), 2);
        assert_eq!(lines_before_tests("a\n    mod tests {\nc\n"), 3);
    }

    #[test]
    fn names_say_something() {
        assert_eq!(empty_name("crates/core/src/utils.rs"), Some("utils"));
        assert_eq!(
            empty_name("crates/text/tests/common/mod.rs"),
            Some("common")
        );
        assert_eq!(empty_name("crates/core/src/units.rs"), None);
        let file = TextFile {
            path: "a.rs".to_owned(),
            text: "pub mod misc;\n    mod types {\nmod kinds;\n".to_owned(),
        };
        assert_eq!(lines_of(&file).len(), 2);
    }

    #[test]
    fn unfinished_work_has_an_issue() {
        let mark = MARKS[0];
        assert!(unfinished(&format!("// {mark}: later"), mark));
        assert!(unfinished(&format!("// {mark}(#x) later"), mark));
        assert!(!unfinished(&format!("// {mark}(#12) later"), mark));
        assert!(!unfinished(&format!("let x = {mark:?};"), mark));
    }
}
