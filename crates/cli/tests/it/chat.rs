//! A conversation on a terminal.
#![cfg(target_os = "linux")]

use std::io::{BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

/// What the line editor writes when it begins to read a line.
const READING: &str = "\u{1b}[?2004h";
/// No line takes that long, so the chat hangs.
const PATIENCE: Duration = Duration::from_mins(1);

/// Runs a shell command on a terminal of its own, types a line each time one is read, and returns
/// what was shown; `None`, and a loud line, where no terminal can be made.
fn on_a_terminal(command: &str, lines: &[&str], folder: &Path) -> Option<String> {
    let started = Command::new("script")
        .args(["-qec", command, "/dev/null"])
        .current_dir(folder)
        .env("FORTHWITH_CACHE", folder)
        .env("BINARY", env!("CARGO_BIN_EXE_forthwith"))
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let Ok(mut child) = started else {
        eprintln!("SKIPPED: there is no `script` command, the chat is not tested");
        return None;
    };
    let (sender, shown) = channel();
    let bytes = BufReader::new(child.stdout.take().unwrap()).bytes();
    std::thread::spawn(move || bytes.map_while(Result::ok).try_for_each(|b| sender.send(b)));
    let mut keys = child.stdin.take().unwrap();
    let mut screen = Vec::new();
    for line in lines {
        let start = screen.len();
        while !String::from_utf8_lossy(&screen[start..]).contains(READING) {
            let Ok(byte) = shown.recv_timeout(PATIENCE) else {
                child.kill().unwrap();
                panic!("no line is read: {}", String::from_utf8_lossy(&screen));
            };
            screen.push(byte);
        }
        keys.write_all(line.as_bytes()).unwrap();
    }
    screen.extend(std::iter::from_fn(|| shown.recv_timeout(PATIENCE).ok()));
    assert!(child.wait().unwrap().success());
    Some(String::from_utf8_lossy(&screen).into_owned())
}

#[test]
fn only_answers_go_to_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let command = "\"$BINARY\" run --model toy --temperature 0 --max-tokens 3 > answers.txt";
    let lines = ["the server\r", "/help\r", "gpu\r", "/exit\r"];
    let Some(shown) = on_a_terminal(command, &lines, folder.path()) else {
        return;
    };
    let answers = std::fs::read_to_string(folder.path().join("answers.txt")).unwrap();
    assert_eq!(answers, "streams the gpu\nreads the gpu\n");
    assert!(
        shown.contains(">>> ") && shown.contains("/clear"),
        "{shown}"
    );
}

#[test]
fn a_chat_ends_with_its_input() {
    let folder = tempfile::tempdir().unwrap();
    let command = "\"$BINARY\" run --model toy --temperature 0 --max-tokens 3";
    let Some(shown) = on_a_terminal(command, &["gpu\r", "\u{4}"], folder.path()) else {
        return;
    };
    assert!(shown.contains("reads the gpu"), "{shown}");
}

#[test]
fn text_does_not_steer_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let command = "printf 'a\\033[31m b\\n the server' | \"$BINARY\" run --model toy \
                   --temperature 0 --max-tokens 3 --echo 2>log.txt";
    let Some(shown) = on_a_terminal(command, &[], folder.path()) else {
        return;
    };
    assert!(!shown.contains('\u{1b}'), "{shown:?}");
    assert!(
        shown.contains("a\u{fffd}[31m b\r\n the server streams the gpu"),
        "{shown:?}"
    );
}
