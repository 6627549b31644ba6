//! What a server with a real model holds in memory: the weights once, as they were packed.

use super::real_model;
use super::server::Server;

/// The kilobytes of a line of `smaps_rollup`, in bytes.
fn line(rollup: &str, name: &str) -> u64 {
    let line = rollup.lines().find_map(|line| line.strip_prefix(name));
    let number = line.unwrap().trim().strip_suffix(" kB").unwrap();
    1024 * number.parse::<u64>().unwrap()
}

/// The size that follows `before` in the server's log, in bytes.
fn said(log: &str, before: &str) -> f64 {
    let (_, rest) = log.split_once(before).unwrap();
    let mut words = rest.split_whitespace();
    let number: f64 = words.next().unwrap().parse().unwrap();
    match words.next().unwrap().trim_end_matches(',') {
        "KiB" => number * 1024.0,
        "MiB" => number * 1_048_576.0,
        "GiB" => number * 1_073_741_824.0,
        unit => panic!("{unit}: {log}"),
    }
}

#[test]
#[expect(clippy::cast_precision_loss, reason = "sizes")]
fn real_weights_lie_in_memory_once() {
    let Some(path) = real_model("smollm2.gguf") else {
        return;
    };
    let path = path.canonicalize().unwrap();
    let server = Server::start(path.to_str().unwrap(), &["--kv-memory", "64MiB"]);
    let folder = format!("/proc/{}", server.child.id());
    let Ok(rollup) = std::fs::read_to_string(format!("{folder}/smaps_rollup")) else {
        eprintln!("SKIPPED: the system does not tell what pages a process has");
        return;
    };
    let log = server.log.join("\n");
    let weights = said(&log, "memory: weights ");
    let resident = line(&rollup, "Rss:");
    let anonymous = line(&rollup, "Anonymous:");
    let own = anonymous as f64 / weights;
    eprintln!(
        "weights {weights}, anonymous {anonymous} ({own:.2} times), of files {}",
        resident - anonymous
    );
    // Tokenizer, threads and what of the workspace was used come on top; a second copy would not fit.
    assert!(
        (1.0..1.8).contains(&own),
        "{own} times the weights: {rollup}"
    );
    // The binary itself; the model's file is larger.
    assert!(resident - anonymous < 48 << 20, "{rollup}");
    let maps = std::fs::read_to_string(format!("{folder}/maps")).unwrap();
    assert!(!maps.contains(path.to_str().unwrap()), "{maps}");
    assert!(log.contains("lie in huge pages"), "{log}");
    let (_, huge) = log.rsplit_once("memory: ").unwrap();
    let resident = said(huge, "of the ");
    // Norms lie apart, in memory of the usual kind.
    assert!(
        resident > 0.99 * weights && resident < 1.01 * anonymous as f64,
        "{log}"
    );
}
