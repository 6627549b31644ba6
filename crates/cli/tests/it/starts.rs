//! What is decided and checked before a server is ready.

use super::server::{Loading, Server};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

/// A copy of a model folder.
fn copy(name: &str) -> tempfile::TempDir {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/served");
    let to = tempfile::tempdir().unwrap();
    copy_into(&from.join(name), to.path());
    to
}

fn copy_into(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            fs::create_dir(&to).unwrap();
            copy_into(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

fn path(folder: &tempfile::TempDir) -> &str {
    folder.path().to_str().unwrap()
}

fn defaults(server: &Server) -> Value {
    let answer = server.send("GET", "/v1/models", "");
    let json: Value = serde_json::from_str(&answer.body).unwrap();
    json["data"][0]["sampling_defaults"].clone()
}

#[test]
fn suggested_sampling_holds_where_a_request_says_nothing() {
    let folder = copy("chat");
    let suggested = json!({ "do_sample": true, "temperature": 0.0, "top_k": 5, "top_p": 1.5 });
    fs::write(
        folder.path().join("generation_config.json"),
        suggested.to_string(),
    )
    .unwrap();
    let server = Server::start(path(&folder), &[]);
    let log = server.log.join("\n");
    assert!(
        log.contains("temperature 0, top_k 5 (generation_config.json)"),
        "{log}"
    );
    assert!(
        log.contains("is not followed: top_p is 1.5, allowed is 0 to 1"),
        "{log}"
    );
    let said = defaults(&server);
    assert_eq!(
        (&said["temperature"], &said["top_k"]),
        (&json!(0.0), &json!(5))
    );
    let text = |more: Value| {
        let mut body = json!({ "prompt": "the server", "max_tokens": 12 });
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let answer = server.send("POST", "/v1/completions", &body.to_string());
        let json: Value = serde_json::from_str(&answer.body).unwrap();
        json["choices"][0]["text"].as_str().unwrap().to_owned()
    };
    let greedy = text(json!({ "temperature": 0 }));
    assert_eq!(text(json!({ "seed": 1 })), greedy);
    assert_eq!(text(json!({ "seed": 2 })), greedy);
    assert_ne!(
        text(json!({ "seed": 2, "temperature": 2, "top_k": 0 })),
        greedy
    );

    let fingerprint = |server: &Server| {
        let body = json!({ "prompt": "a", "max_tokens": 1 }).to_string();
        let answer = server.send("POST", "/v1/completions", &body);
        let json: Value = serde_json::from_str(&answer.body).unwrap();
        json["system_fingerprint"].as_str().unwrap().to_owned()
    };
    let followed = fingerprint(&server);
    let server = Server::start(path(&folder), &["--sampling-defaults", "openai"]);
    assert_eq!(fingerprint(&server), format!("{followed}-sampling:openai"));
    assert_eq!(defaults(&server)["temperature"], json!(1.0));
    assert!(
        server
            .log
            .join("\n")
            .contains("temperature 1, top_p 1 (given)")
    );
}

#[test]
fn a_context_beyond_the_learned_positions_is_a_warning() {
    let folder = copy("embedder");
    let server = Server::start(path(&folder), &["--context", "4096"]);
    let log = server.log.join("\n");
    assert!(
        log.contains("a context of 4096 tokens was asked for"),
        "{log}"
    );
    assert!(log.contains("self-check: the first answer is"), "{log}");
}

#[test]
fn a_matrix_with_what_is_not_a_number_ends_the_start() {
    let folder = copy("chat");
    let file = folder.path().join("model.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    let (length, rest) = bytes.split_first_chunk::<8>().unwrap();
    let length = usize::try_from(u64::from_le_bytes(*length)).unwrap();
    let header: Value = serde_json::from_slice(&rest[..length]).unwrap();
    let tensor = &header["model.layers.1.mlp.up_proj.weight"];
    let start = 8 + length + usize::try_from(tensor["data_offsets"][0].as_u64().unwrap()).unwrap();
    let nan: &[u8] = match tensor["dtype"].as_str().unwrap() {
        "F32" => &[0, 0, 0xc0, 0x7f],
        "BF16" => &[0xc0, 0x7f],
        "F16" => &[0, 0x7e],
        other => panic!("{other}"),
    };
    bytes[start..start + nan.len()].copy_from_slice(nan);
    fs::write(&file, bytes).unwrap();
    let (code, line) = Loading::start(path(&folder), &[]).end();
    assert_eq!(code, Some(2), "{line}");
    let said = "tensor `blk.1.ffn_up.weight`, from row 0: NaN is not a number";
    assert!(line.contains(said), "{line}");
    // Without the check it is the first token of the server's own that shows it, and no longer where.
    let (code, line) = Loading::start(path(&folder), &["--self-check", "off"]).end();
    assert!(
        code.is_some_and(|code| code > 0) && line.contains("NaN"),
        "{line}"
    );
}
