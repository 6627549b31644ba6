//! What a server says while it loads, when loading fails, and while it reads a long prompt.

use super::{repeats, tiny_model};
use crate::real_model;
use crate::server::{Loading, Server, greedy};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Asks for health and answers until the server is ready; then the first request must succeed.
fn watch(model: &str) {
    let loading = Loading::start(model, &["--context", "256"]);
    let early = greedy("The boat", 2).to_string();
    loop {
        let server = loading.server();
        let health = server.send("GET", "/health", "");
        if health.status == 200 {
            break;
        }
        for (method, path, body) in [
            ("GET", "/v1/models", ""),
            ("POST", "/v1/completions", &early),
        ] {
            let answer = server.send(method, path, body);
            // It may have become ready meanwhile.
            if answer.status != 200 {
                assert_eq!(answer.status, 503, "{}", answer.body);
                assert!(answer.head.contains("retry-after: "), "{}", answer.head);
                assert_eq!(answer.error()["code"], "loading");
            }
        }
        assert_eq!(health.status, 503);
        assert_eq!(health.error()["code"], "loading");
        std::thread::sleep(Duration::from_millis(5));
    }
    loading
        .server()
        .post("/v1/completions", &greedy("The boat", 2));
    let mut server = loading.ready();
    assert_eq!(server.send("GET", "/health", "").status, 200);
    server.check_alive();
}

/// The full count is 100 starts.
#[test]
fn health_is_200_when_answers_are_given() {
    let folder = tempfile::tempdir().unwrap();
    let model = tiny_model(folder.path());
    for _ in 0..repeats(5) {
        watch(model.to_str().unwrap());
    }
}

/// The full count is 100 starts.
#[test]
fn smollm2_is_healthy_when_it_answers() {
    let Some(model) = real_model("smollm2.gguf") else {
        return;
    };
    for _ in 0..repeats(1) {
        watch(model.to_str().unwrap());
    }
}

#[test]
fn damaged_files_never_become_healthy() {
    let folder = tempfile::tempdir().unwrap();
    let model = tiny_model(folder.path());
    let whole = std::fs::read(&model).unwrap();
    for length in [whole.len() / 3, whole.len() - 1] {
        std::fs::write(&model, &whole[..length]).unwrap();
        let (code, line) = Loading::start(model.to_str().unwrap(), &[]).end();
        assert_eq!(code, Some(2), "{line}");
        assert!(
            line.starts_with("error: ") && line.contains("tiny.gguf"),
            "{line}"
        );
    }
}

#[test]
fn smollm2_stays_healthy_while_it_reads() {
    let Some(mut server) = super::smollm2(&["--context", "4096"]) else {
        return;
    };
    let body = greedy(&" boat".repeat(1200), 1);
    let reading = AtomicBool::new(true);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            server.post("/v1/completions", &body);
            reading.store(false, Ordering::Relaxed);
        });
        server.until("forthwith_requests_running", 1.0);
        let mut asked = 0;
        while reading.load(Ordering::Relaxed) {
            assert_eq!(server.send("GET", "/health", "").status, 200);
            asked += 1;
        }
        // Health does not wait for the engine's next step.
        assert!(asked > 20, "{asked} answers about health during one prompt");
    });
    server.check_alive();
}

#[test]
fn two_servers_at_once_do_not_meet() {
    let servers = [Server::start("toy", &[]), Server::start("toy", &[])];
    assert_ne!(servers[0].address, servers[1].address);
    for mut server in servers {
        server.check_alive();
    }
}
