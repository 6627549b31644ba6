//! Clients that others wrote, against the real binary.

use super::cases::repeats;
use super::server::Server;
use super::{node, python, real_model};
use std::path::{Path, PathBuf};
use std::process::Command;

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/it/clients")
        .join(name)
}

/// A server of a chat model and an encoder, or a loud line where one is missing.
fn both_models() -> Option<Server> {
    let (chat, encoder) = (real_model("smollm2.gguf")?, real_model("all-minilm-l6-v2")?);
    let more = ["--model", encoder.to_str()?, "--context", "1024"];
    Some(Server::start(chat.to_str()?, &more))
}

/// Runs a client, which tells by its end whether it agrees.
fn run(server: &Server, command: &mut Command, more: &[String]) {
    let output = command
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .arg(format!("http://{}/v1", server.address))
        .args(["smollm2", "all-minilm-l6-v2"])
        .args(more)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{errors}");
    assert!(text.contains("all checks passed"), "{text}{errors}");
}

/// A Python script that needs this module.
fn run_python(module: &str, name: &str, more: &[String]) {
    let Some(python) = python() else {
        return;
    };
    let import = Command::new(&python)
        .args(["-c", &format!("import {module}")])
        .output()
        .unwrap();
    if !import.status.success() {
        eprintln!("SKIPPED: {python} has no {module}, it is not tested");
        return;
    }
    if let Some(mut server) = both_models() {
        run(&server, Command::new(python).arg(script(name)), more);
        server.check_alive_as("smollm2");
    }
}

#[test]
fn real_openai_streams_a_chat() {
    run_python("openai", "openai_client.py", &[]);
}

#[test]
fn real_openai_calls_tools_and_reads_forms() {
    run_python("openai", "openai_forms.py", &[]);
}

#[test]
fn real_litellm_agrees() {
    run_python("litellm", "litellm_client.py", &[]);
}

#[test]
fn real_langchain_agrees() {
    run_python("langchain_openai", "langchain_client.py", &[]);
}

#[test]
fn real_openai_for_node_agrees() {
    let Some(folder) = node() else {
        return;
    };
    if let Some(mut server) = both_models() {
        let mut command = Command::new(Path::new(&folder).join("node"));
        command.arg(script("openai_client.mjs")).arg(&folder);
        run(&server, &mut command, &[]);
        server.check_alive_as("smollm2");
    }
}

/// Two answers of each of 50 schemas; `FORTHWITH_CASE_REPEATS=40` draws the full count of 2,000.
#[test]
fn real_answers_are_what_their_schemas_allow() {
    let rounds = repeats(2).to_string();
    run_python("jsonschema", "constrained.py", &[rounds]);
}
