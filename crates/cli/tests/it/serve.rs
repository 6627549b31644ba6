//! What a server is for, from start to end.

use super::server::{Server, greedy};
use super::{forthwith, real_model};
use serde_json::{Value, json};
use std::io::{Read as _, Write as _};
use std::process::Command;

#[test]
fn the_toy_is_served() {
    let server = Server::start("toy", &[]);
    assert!(
        server
            .log
            .iter()
            .any(|line| line.contains("no chat template")),
        "{:?}",
        server.log
    );
    assert_eq!(server.request("GET", "/health", None).0, 200);
    let (_, models) = server.request("GET", "/v1/models", None);
    assert!(models.contains("\"toy\""), "{models}");
    let answer = server.post("/v1/completions", &greedy("the server", 6));
    assert_eq!(
        answer["choices"][0]["text"],
        " streams the gpu reads the gpu"
    );
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert_eq!(answer["usage"]["prompt_tokens"], 2);
    assert_eq!(answer["usage"]["completion_tokens"], 6);
    let mut body = greedy("the server", 6);
    body["stream"] = json!(true);
    assert_eq!(server.stream(&body), " streams the gpu reads the gpu");
    let (status, error) = server.request("GET", "/v1/nothing", None);
    assert_eq!(status, 404);
    assert!(serde_json::from_str::<Value>(&error).unwrap()["error"]["message"].is_string());
    assert!(server.metric("forthwith_generated_tokens_total") >= 12.0);
}

#[test]
fn a_server_with_keys_answers_who_has_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys");
    let file = path.to_str().unwrap();
    std::fs::write(&path, "ann sk-0123456789abcdef\n").unwrap();
    let server = Server::start("toy", &["--api-key-file", file]);
    let said = |line: &String| line.contains("access: 1 API keys from");
    assert!(server.log.iter().any(said), "{:?}", server.log);
    let get = |path: &str, more: &str| {
        let mut stream = std::net::TcpStream::connect(&server.address).unwrap();
        let lines = format!("GET {path} HTTP/1.1\r\n{more}connection: close\r\n\r\n");
        stream.write_all(lines.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.split(' ').nth(1).unwrap().to_owned()
    };
    let key = "authorization: Bearer sk-0123456789abcdef\r\n";
    for (path, more, status) in [
        ("/v1/models", String::new(), "401"),
        ("/v1/models", format!("host: localhost\r\n{key}"), "200"),
        ("/v1/models", format!("host: evil.test\r\n{key}"), "403"),
        ("/live", "host: localhost\r\n".to_owned(), "200"),
        ("/ready", "host: localhost\r\n".to_owned(), "200"),
    ] {
        let host = if more.is_empty() {
            "host: localhost\r\n"
        } else {
            ""
        };
        assert_eq!(get(path, &format!("{host}{more}")), status, "{path} {more}");
    }
    std::fs::write(&path, "ann\n").unwrap();
    let output = forthwith(folder.path())
        .args([
            "serve",
            "--port",
            "0",
            "--model",
            "toy",
            "--api-key-file",
            file,
        ])
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(
        error.contains("line 1: expected a label and a key"),
        "{error}"
    );
}

#[test]
fn a_server_that_is_told_to_stop_finishes_and_ends_well() {
    let mut server = Server::start("toy", &[]);
    let id = server.child.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-TERM", &id])
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_bad_file_ends_the_server_before_it_is_ready() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bad.gguf");
    std::fs::write(&path, b"GGUF\x03\0\0\0").unwrap();
    let output = forthwith(folder.path())
        .args(["serve", "--port", "0", "--model"])
        .arg(&path)
        .output()
        .unwrap();
    let line = super::error(&output, 2);
    assert!(line.contains("bad.gguf"), "{line}");
}

#[test]
fn the_cache_is_as_large_as_was_asked() {
    let mut server = Server::start("toy", &["--kv-memory", "1KiB"]);
    let blocks = server.metric("forthwith_kv_blocks_total");
    assert!((1.0..100.0).contains(&blocks), "{blocks}");
    let told = |line: &String| line.contains("the KV cache holds");
    assert!(server.log.iter().any(told), "{:?}", server.log);
    server.check_alive();
    let folder = tempfile::tempdir().unwrap();
    let output = forthwith(folder.path())
        .args(["serve", "--port", "0", "--model", "toy", "--kv-memory", "1"])
        .output()
        .unwrap();
    let line = super::error(&output, 2);
    assert!(line.contains("was given 1 B"), "{line}");
}

/// What `run` calls a failure is none of the user's mistakes under `serve` either.
#[test]
fn a_model_that_cannot_be_fetched_is_no_bad_input() {
    let folder = tempfile::tempdir().unwrap();
    for command in [["serve", "--port", "0"], ["run", "--raw", "hi"]] {
        let output = forthwith(folder.path())
            .args(command)
            .args(["--offline", "--model", "smollm2"])
            .output()
            .unwrap();
        super::error(&output, 1);
    }
}

#[test]
fn real_answers_are_the_same_streamed_plain_and_in_company() {
    let Some(path) = real_model("smollm2.gguf") else {
        return;
    };
    let server = Server::start(path.to_str().unwrap(), &["--context", "512"]);
    let prompts = [
        "The harbour list: one boat,",
        "Rain fell on the",
        "🦊🐙🌋🦊🐙🌋",
        "x = [1, 2,",
    ];
    let plain = |prompt: &str| {
        let answer = server.post("/v1/completions", &greedy(prompt, 24));
        answer["choices"][0]["text"].as_str().unwrap().to_owned()
    };
    let alone: Vec<String> = prompts.iter().map(|prompt| plain(prompt)).collect();
    let steps = server.metric("forthwith_steps_total");
    let together: Vec<String> = std::thread::scope(|scope| {
        let streamed = |prompt: &str| {
            let mut body = greedy(prompt, 24);
            body["stream"] = json!(true);
            server.stream(&body)
        };
        let running: Vec<_> = prompts
            .iter()
            .map(|prompt| scope.spawn(move || streamed(prompt)))
            .collect();
        running
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    assert_eq!(alone, together);
    let shared = server.metric("forthwith_steps_total") - steps;
    assert!(
        shared < 4.0 * 24.0,
        "four answers of 24 tokens took {shared} steps: none were shared"
    );
}
