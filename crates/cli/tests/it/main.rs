//! The real binary, run as a user runs it.
#![allow(clippy::unwrap_used, reason = "tests")]

mod bench;
mod cases;
mod chat;
mod clients;
mod continuation;
mod examples;
mod families;
mod golden;
mod hardware;
mod malformed;
mod memory;
mod models;
mod perplexity;
mod pipes;
mod serve;
mod server;
mod starts;
mod texts;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The binary with a cache of its own and none of the environment variables it reads, but the
/// instruction set: CI runs these tests once more on another one.
fn forthwith(cache: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forthwith"));
    for (name, _) in std::env::vars_os() {
        let name_text = name.to_string_lossy();
        let read = name_text.starts_with("FORTHWITH_") || name_text.starts_with("HF_");
        if read && name_text != "FORTHWITH_ISA" {
            command.env_remove(&name);
        }
    }
    command.env("FORTHWITH_CACHE", cache);
    command
}

/// Standard output as text, after checking the exit code.
fn stdout(output: &Output, code: i32) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{errors}");
    String::from_utf8(output.stdout.clone()).expect("output is UTF-8")
}

/// Standard error as text: one line that starts with `error:` is its last.
fn error(output: &Output, code: i32) -> String {
    assert_eq!(output.status.code(), Some(code));
    let text = String::from_utf8(output.stderr.clone()).expect("messages are UTF-8");
    let last = text.lines().last().unwrap_or_default();
    assert!(last.starts_with("error: "), "{text}");
    last.to_owned()
}

/// A Python with the official client, or a loud line and `None` where the tests have none.
#[expect(
    clippy::disallowed_methods,
    reason = "the Python is a setting of the tests, not of the program"
)]
fn python() -> Option<String> {
    let python = std::env::var("FORTHWITH_TEST_PYTHON").ok();
    if python.is_none() {
        eprintln!("SKIPPED: FORTHWITH_TEST_PYTHON is not set, the openai client is not tested");
    }
    python
}

/// A folder with Node and the official client, or a loud line and `None` where the tests have none.
#[expect(
    clippy::disallowed_methods,
    reason = "the folder is a setting of the tests, not of the program"
)]
fn node() -> Option<String> {
    let folder = std::env::var("FORTHWITH_TEST_NODE").ok();
    if folder.is_none() {
        eprintln!("SKIPPED: FORTHWITH_TEST_NODE is not set, the client for Node is not tested");
    }
    folder
}

/// A real model's file, or a loud line and `None` where the tests have none.
#[expect(
    clippy::disallowed_methods,
    reason = "the folder of real models is a setting of the tests, not of the program"
)]
fn real_model(file: &str) -> Option<PathBuf> {
    let folder = std::env::var("FORTHWITH_TEST_MODELS").ok();
    let path = folder.map(|folder| Path::new(&folder).join(file));
    let path = path.filter(|path| path.exists());
    if path.is_none() {
        eprintln!("SKIPPED: FORTHWITH_TEST_MODELS names no folder with {file}, it is not tested");
    }
    path
}
