//! Who may depend on whom: the floors, and the firewalls around outside crates.
//!
//! Arrows point down and siblings are blind to each other. A dev-dependency may point to any lower
//! floor; besides, tests of every floor may use the crates of [`FIXTURES`], which make the models
//! that tests run.

use serde_json::Value;

use super::Problem;

/// Crate, floor, and the crates of the workspace that it may depend on.
const FLOORS: [(&str, u8, &[&str]); 10] = [
    ("forthwith-core", 0, &[]),
    ("forthwith-weights", 1, &["forthwith-core"]),
    ("forthwith-text", 1, &["forthwith-core"]),
    ("forthwith-hub", 1, &["forthwith-core"]),
    ("forthwith-cpu", 1, &["forthwith-core"]),
    (
        "forthwith-models",
        2,
        &["forthwith-core", "forthwith-weights"],
    ),
    (
        "forthwith-engine",
        3,
        &["forthwith-core", "forthwith-models"],
    ),
    (
        "forthwith-server",
        4,
        &["forthwith-core", "forthwith-text", "forthwith-engine"],
    ),
    (
        "forthwith",
        5,
        &[
            "forthwith-core",
            "forthwith-weights",
            "forthwith-text",
            "forthwith-hub",
            "forthwith-cpu",
            "forthwith-models",
            "forthwith-engine",
            "forthwith-server",
        ],
    ),
    ("xtask", 0, &[]),
];

/// What tests of any floor may use.
const FIXTURES: [&str; 3] = ["forthwith-weights", "forthwith-text", "forthwith-models"];

/// Outside crates, and the only crates that may depend on them.
const FIREWALLS: [(&str, &[&str]); 19] = [
    ("anyhow", &["forthwith", "xtask"]),
    ("axum", &["forthwith-server"]),
    ("clap", &["forthwith"]),
    ("hf-hub", &["forthwith-hub"]),
    ("hyper", &["forthwith-server"]),
    ("hyper-util", &["forthwith-server"]),
    ("libc", &["forthwith-cpu"]),
    ("llguidance", &["forthwith-text"]),
    ("memmap2", &["forthwith-weights"]),
    ("minijinja", &["forthwith-text"]),
    ("prometheus-client", &["forthwith-server"]),
    ("regex", &["forthwith-text"]),
    ("safetensors", &["forthwith-weights"]),
    (
        "serde",
        &["forthwith-text", "forthwith-server", "forthwith"],
    ),
    (
        "serde_json",
        &[
            "forthwith-text",
            "forthwith-weights",
            "forthwith-server",
            "forthwith",
            "xtask",
        ],
    ),
    ("tokenizers", &["forthwith-text"]),
    ("tokio", &["forthwith-server"]),
    ("tower-http", &["forthwith-server"]),
    ("zip", &["forthwith-hub"]),
];

/// Everything that the lowest floor may take from outside.
const CORE_OUTSIDE: [&str; 2] = ["half", "thiserror"];

/// Compares what the members declare with the tables.
pub(super) fn check(metadata: &Value) -> Vec<Problem> {
    let packages = metadata["packages"].as_array();
    packages
        .into_iter()
        .flatten()
        .flat_map(check_package)
        .collect()
}

fn check_package(package: &Value) -> Vec<Problem> {
    let name = package["name"].as_str().unwrap_or_default();
    let Some(&(_, floor, allowed)) = FLOORS.iter().find(|row| row.0 == name) else {
        let what =
            "is not in the table of floors (xtask/src/tidy/floors.rs); a new crate needs an ADR";
        return vec![Problem::new(name, what)];
    };
    let dependencies = package["dependencies"].as_array().into_iter().flatten();
    let broken = dependencies.filter_map(|dependency| {
        let to = dependency["name"].as_str()?;
        let reason = if dependency["kind"] == "dev" {
            dev_edge(floor, to)
        } else {
            edge(name, allowed, to)
        };
        Some(Problem::new(name, reason?))
    });
    broken.collect()
}

/// Why a test may not use that crate.
fn dev_edge(floor: u8, to: &str) -> Option<String> {
    let &(_, other, _) = FLOORS.iter().find(|row| row.0 == to)?;
    let allowed = other < floor || FIXTURES.contains(&to);
    (!allowed).then(|| format!("tests may not depend on {to}: it is not on a lower floor"))
}

/// Why a crate may not depend on that crate.
fn edge(name: &str, allowed: &[&str], to: &str) -> Option<String> {
    if FLOORS.iter().any(|row| row.0 == to) {
        let reason = format!("may not depend on {to}: a new edge between crates needs an ADR");
        return (!allowed.contains(&to)).then_some(reason);
    }
    if name == "forthwith-core" && !CORE_OUTSIDE.contains(&to) {
        return Some(format!(
            "may depend on {} only, not on {to}",
            CORE_OUTSIDE.join(" and ")
        ));
    }
    let &(_, keepers) = FIREWALLS.iter().find(|row| row.0 == to)?;
    let reason = || format!("may not depend on {to}: it stays in {}", keepers.join(", "));
    (!keepers.contains(&name)).then(reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(name: &str, kind: &str, to: &str) -> usize {
        let kind = if kind.is_empty() {
            "null".to_owned()
        } else {
            format!("\"{kind}\"")
        };
        let text = format!(
            r#"{{"packages":[{{"name":"{name}","dependencies":[{{"name":"{to}","kind":{kind}}}]}}]}}"#
        );
        check(&serde_json::from_str(&text).unwrap()).len()
    }

    #[test]
    fn arrows_point_down_and_siblings_are_blind() {
        for (name, kind, to, count) in [
            ("forthwith-engine", "", "forthwith-models", 0),
            ("forthwith-engine", "", "forthwith-text", 1),
            ("forthwith-cpu", "", "forthwith-weights", 1),
            ("forthwith-core", "build", "forthwith-cpu", 1),
            ("forthwith-cpu", "dev", "forthwith-models", 0),
            ("forthwith-server", "dev", "forthwith-models", 0),
            ("forthwith-text", "dev", "forthwith-hub", 1),
            ("forthwith-cpu", "dev", "forthwith-engine", 1),
            ("forthwith-common", "", "thiserror", 1),
        ] {
            assert_eq!(problems(name, kind, to), count, "{name} {kind} {to}");
        }
    }

    #[test]
    fn firewalls_hold() {
        assert_eq!(problems("forthwith-server", "", "tokio"), 0);
        assert_eq!(problems("forthwith-engine", "", "tokio"), 1);
        assert_eq!(problems("forthwith-engine", "dev", "tokio"), 0);
        assert_eq!(problems("forthwith-core", "", "serde"), 1);
        assert_eq!(problems("forthwith-core", "", "log"), 1);
        assert_eq!(problems("forthwith-engine", "", "log"), 0);
    }
}
