//! Rules about what a source file must hold: safety, references, property tests.

use super::Problem;
use crate::workspace::TextFile;

/// The crates' root files in which `unsafe` is forbidden.
const SAFE_ROOTS: [&str; 8] = [
    "crates/core/src/lib.rs",
    "crates/text/src/lib.rs",
    "crates/hub/src/lib.rs",
    "crates/models/src/lib.rs",
    "crates/engine/src/lib.rs",
    "crates/server/src/lib.rs",
    "crates/cli/src/main.rs",
    "xtask/src/main.rs",
];

/// Where `unsafe` may stand.
const UNSAFE_PLACES: [&str; 2] = ["crates/cpu/", "crates/weights/src/mmap.rs"];

const PHASES: &str = "crates/cpu/src/phases/";
const QUANT: &str = "crates/cpu/src/quant/";

/// Checks all sources.
pub(super) fn check(sources: &[TextFile]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for root in SAFE_ROOTS {
        let file = sources.iter().find(|file| file.path == root);
        if !file.is_some_and(|file| file.text.contains("\n#![forbid(unsafe_code)]\n")) {
            problems.push(Problem::new(root, "needs `#![forbid(unsafe_code)]`"));
        }
    }
    problems.extend(sources.iter().flat_map(unsafe_code));
    problems.extend(sources.iter().filter_map(|file| phase(file, sources)));
    let quant = sources.iter().filter(|file| file.path.starts_with(QUANT));
    if !quant.clone().any(has_properties) {
        problems.push(Problem::new(QUANT, "needs a `proptest!`"));
    }
    problems
}

fn unsafe_code(file: &TextFile) -> Vec<Problem> {
    if UNSAFE_PLACES
        .iter()
        .any(|place| file.path.starts_with(place))
    {
        return Vec::new();
    }
    let mut problems = Vec::new();
    for (number, line) in (1..).zip(file.text.lines()) {
        let keyword = concat!("uns", "afe");
        let code = line.split("//").next().unwrap_or_default();
        let blocks = ["{", "fn ", "impl ", "extern "].map(|next| format!("{keyword} {next}"));
        if blocks.iter().any(|block| code.contains(block.as_str())) {
            let place = format!("{}:{number}", file.path);
            let what = format!("`{keyword}` stands only in {}", UNSAFE_PLACES.join(" and "));
            problems.push(Problem::new(place, what));
        }
    }
    problems
}

/// No reference, no kernel.
fn phase(file: &TextFile, sources: &[TextFile]) -> Option<Problem> {
    let is_part = matches!(file.name(), "mod.rs" | "tests.rs");
    if !file.path.starts_with(PHASES) || is_part {
        return None;
    }
    if !file.text.contains("fn reference") {
        return Some(Problem::new(
            &file.path,
            "needs a `fn reference`, the phase in plain loops",
        ));
    }
    let tests = format!("{}/tests.rs", file.path.trim_end_matches(".rs"));
    let tests = sources.iter().find(|file| file.path == tests);
    let tested = has_properties(file) || tests.is_some_and(has_properties);
    (!tested).then(|| Problem::new(&file.path, "needs a `proptest!` against its reference"))
}

fn has_properties(file: &TextFile) -> bool {
    file.text.contains("proptest! {")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> TextFile {
        TextFile {
            path: path.to_owned(),
            text: text.to_owned(),
        }
    }

    #[test]
    fn a_phase_needs_its_reference_and_a_property() {
        let bare = file("crates/cpu/src/phases/pool.rs", "fn reference() {}");
        assert!(phase(&bare, &[]).is_some());
        let tests = file("crates/cpu/src/phases/pool/tests.rs", "proptest! {}");
        assert!(phase(&bare, &[tests]).is_none());
        let kernel = file("crates/cpu/src/phases/pool.rs", "proptest! {}");
        assert!(phase(&kernel, &[]).is_some());
        assert!(phase(&file("crates/cpu/src/phases/mod.rs", ""), &[]).is_none());
    }

    #[test]
    fn unsafe_stays_in_its_places() {
        let text = concat!("let x = uns", "afe { y() };\n");
        assert_eq!(unsafe_code(&file("crates/text/src/stop.rs", text)).len(), 1);
        assert!(unsafe_code(&file("crates/cpu/src/kv.rs", text)).is_empty());
        let comment = concat!("// uns", "afe { y() }\n");
        assert!(unsafe_code(&file("crates/text/src/stop.rs", comment)).is_empty());
    }
}
