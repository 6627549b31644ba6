//! What the binary finds out about the machine.

use super::server::{Server, greedy};
use super::{forthwith, stdout};
use forthwith_models::testing::tiny_llama;
use std::process::Command;

/// The line that says what a tiny model runs on, when the process may use these CPUs.
fn compute_line(cpus: Option<&str>) -> Option<String> {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("tiny.gguf");
    tiny_llama(7).write(&model).unwrap();
    let binary = forthwith(folder.path());
    let mut command = match cpus {
        None => binary,
        Some(cpus) => {
            let mut command = Command::new("taskset");
            command.args(["-c", cpus]).arg(binary.get_program());
            command
        }
    };
    command
        .args(["run", "--raw", "--max-tokens", "1", "--model"])
        .arg(&model)
        .arg("a");
    let output = command.output().ok()?;
    stdout(&output, 0);
    let text = String::from_utf8(output.stderr).unwrap();
    text.lines()
        .find(|line| line.contains("threads"))
        .map(str::to_owned)
}

#[test]
fn threads_follow_the_cpus_that_the_process_may_use() {
    let usable = forthwith_cpu::usable_cpus();
    let line = compute_line(None).expect("a line about threads");
    assert!(
        line.contains(&format!("{usable} threads (detected)")),
        "{line}"
    );
    match compute_line(Some("0")) {
        Some(line) => assert!(line.contains("1 threads (detected)"), "{line}"),
        None => eprintln!("SKIPPED: taskset is not installed, affinity is not tested"),
    }
}

#[test]
fn threads_without_a_cpu_are_not_started() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("tiny.gguf");
    tiny_llama(7).write(&model).unwrap();
    let server = Server::start(model.to_str().unwrap(), &["--threads", "1024"]);
    let usable = forthwith_cpu::usable_cpus();
    let log = server.log.join("\n");
    if usable < 1024 {
        assert!(
            log.contains(&format!("{usable} threads (1024 given)")),
            "{log}"
        );
        assert!(log.contains("not the 1024 that were asked for"), "{log}");
    }
    let answer = server.post("/v1/completions", &greedy("a", 4));
    assert_eq!(answer["usage"]["completion_tokens"], 4);
    if let Some(threads) = server.threads() {
        // A team, an engine, and the server's own workers.
        assert!(threads <= 4 * usable as u64 + 16, "{threads} threads");
    }
}
