//! Readers that leave, and writers that are not there.

use super::forthwith;
use super::server::Server;
use std::fs::File;
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// The toy's six words, with the three streams as a test wants them.
fn answer(arrange: impl FnOnce(&mut Command)) -> Output {
    let cache = tempfile::tempdir().unwrap();
    let mut command = forthwith(cache.path());
    command.args(["run", "--model", "toy", "--temperature", "0"]);
    command.args(["--max-tokens", "6", "--echo", "--stats", "the server"]);
    arrange(&mut command);
    command.output().unwrap()
}

fn full() -> Stdio {
    File::options()
        .write(true)
        .open("/dev/full")
        .unwrap()
        .into()
}

/// A pipe whose reader has left.
fn closed() -> Stdio {
    std::io::pipe().unwrap().1.into()
}

#[test]
fn nobody_has_to_read_standard_error() {
    for errors in [full(), closed()] {
        let output = answer(|command| {
            command.stderr(errors);
        });
        assert_eq!(output.status.code(), Some(0));
        assert_eq!(output.stdout, b"the server streams the gpu reads the gpu\n");
    }
    // A mistake is told by the exit code alone then.
    let output = answer(|command| {
        command
            .args(["--chat-template", "/no/such/file"])
            .stderr(closed());
    });
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_server_whose_log_nobody_reads_serves() {
    // Without its log the port must be known: one that was free a moment ago.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr();
    let address = address.unwrap();
    let cache = tempfile::tempdir().unwrap();
    let mut command = forthwith(cache.path());
    command.args(["serve", "--model", "toy", "--port"]);
    command.arg(address.port().to_string()).stderr(closed());
    let mut server = Server::of(command.spawn().unwrap(), address.to_string());
    while TcpStream::connect(address).is_err() {
        assert!(server.child.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(5));
    }
    while server.send("GET", "/health", "").status != 200 {
        std::thread::sleep(Duration::from_millis(5));
    }
    server.check_alive();
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let output = answer(|command| {
        command.stdout(closed());
    });
    assert_eq!(output.status.code(), Some(0));
    let output = answer(|command| {
        command.stdout(full());
    });
    let line = super::error(&output, 1);
    assert!(line.contains("standard output"), "{line}");
}
