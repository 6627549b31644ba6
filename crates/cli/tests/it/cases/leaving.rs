//! Clients that leave: during the answer, during the prompt, while waiting.

use super::{mixed, repeats, tiny_model, together};
use crate::server::{Server, greedy};
use serde_json::{Value, json};
use socket2::SockRef;
use std::io::{BufRead as _, BufReader};
use std::net::TcpStream;
use std::ops::Range;
use std::time::Duration;

/// Longer than a tiny model takes until its client leaves.
const TINY: u32 = 15_000;

/// How a connection ends.
#[derive(Clone, Copy, Debug)]
enum Goodbye {
    /// In order, with FIN.
    Close,
    /// At once, with RST.
    Reset,
}

impl Goodbye {
    fn say(self, stream: TcpStream) {
        if let Self::Reset = self {
            SockRef::from(&stream)
                .set_linger(Some(Duration::ZERO))
                .unwrap();
        }
        drop(stream);
    }
}

fn endless(prompt: &str, max_tokens: u32, stream: bool) -> String {
    let mut body = greedy(prompt, max_tokens);
    body["ignore_eos"] = json!(true);
    body["stream"] = json!(stream);
    body.to_string()
}

/// With the second delta the numbers of the first step are told.
fn wait_for_deltas(stream: &TcpStream, count: usize) {
    let lines = BufReader::new(stream).lines();
    let deltas = lines.filter(|line| line.as_ref().unwrap().starts_with("data: {"));
    assert_eq!(deltas.take(count).count(), count);
}

/// Nothing runs, waits or holds cache, and nothing is generated any more.
fn check_idle(server: &Server) {
    server.until("forthwith_requests_waiting", 0.0);
    server.until("forthwith_requests_running", 0.0);
    server.until("forthwith_kv_blocks_used", 0.0);
    let generated = server.metric("forthwith_generated_tokens_total");
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(server.metric("forthwith_generated_tokens_total"), generated);
}

fn leave_everywhere(server: &Server, goodbye: Goodbye, tokens: u32, long_prompt: &str) {
    // During the answer.
    let stream = server.open("POST", "/v1/completions", &endless("a boat", tokens, true));
    wait_for_deltas(&stream, 2);
    goodbye.say(stream);
    check_idle(server);
    let stream = server.open("POST", "/v1/completions", &endless("a boat", tokens, false));
    server.until("forthwith_requests_running", 1.0);
    goodbye.say(stream);
    check_idle(server);
    // During the prompt.
    for streamed in [true, false] {
        let body = endless(long_prompt, 1000, streamed);
        let stream = server.open("POST", "/v1/completions", &body);
        std::thread::sleep(Duration::from_millis(30));
        goodbye.say(stream);
        check_idle(server);
    }
}

fn leave_the_queue(server: &Server, goodbye: Goodbye, tokens: u32) {
    let first = server.open("POST", "/v1/completions", &endless("a boat", tokens, true));
    wait_for_deltas(&first, 2);
    let prompts = server.metric("forthwith_prompt_tokens_total");
    for streamed in [true, false] {
        let second = server.open(
            "POST",
            "/v1/completions",
            &endless("b c d", tokens, streamed),
        );
        server.until("forthwith_requests_waiting", 1.0);
        goodbye.say(second);
        server.until("forthwith_requests_waiting", 0.0);
    }
    assert_eq!(server.metric("forthwith_requests_running"), 1.0);
    goodbye.say(first);
    check_idle(server);
    assert_eq!(server.metric("forthwith_prompt_tokens_total"), prompts);
}

/// The full count is 50 of each.
#[test]
fn leaving_ends_the_work() {
    let folder = tempfile::tempdir().unwrap();
    let model = tiny_model(folder.path());
    let arguments = [
        "--context",
        "16384",
        "--max-running",
        "1",
        "--kv-memory",
        "8MiB",
    ];
    let mut server = Server::start(model.to_str().unwrap(), &arguments);
    let long_prompt = "a boat ".repeat(430);
    leave_everywhere(&server, Goodbye::Reset, TINY, &long_prompt);
    let before = server.resident();
    for _ in 0..repeats(3) {
        for goodbye in [Goodbye::Close, Goodbye::Reset] {
            leave_everywhere(&server, goodbye, TINY, &long_prompt);
            leave_the_queue(&server, goodbye, TINY);
        }
    }
    if let (Some(before), Some(after)) = (before, server.resident()) {
        assert!(after < before + (20 << 20), "{before} bytes became {after}");
    }
    server.check_alive();
}

/// One of many clients: four of five take their whole answer, the fifth leaves at any moment.
fn come_and_perhaps_leave(server: &Server, client: usize) {
    let chance = |what: usize, count: usize| mixed((client * 8 + what) as u64) % count;
    let pause = |what, most| std::thread::sleep(Duration::from_millis(chance(what, most) as u64));
    let prompt = "a boat ".repeat(1 + chance(0, 60));
    pause(1, 100);
    if chance(2, 5) > 0 {
        let length = 1 + chance(3, 60);
        let mut body = greedy(&prompt, u32::try_from(length).unwrap());
        body["ignore_eos"] = json!(true);
        let events = server.events("/v1/completions", &body);
        let last = &events.last().unwrap()["choices"][0];
        assert_eq!(last["finish_reason"], "length");
        return;
    }
    let stream = server.open("POST", "/v1/completions", &endless(&prompt, TINY, true));
    match chance(4, 2) {
        0 => wait_for_deltas(&stream, chance(5, 30)),
        _ => pause(6, 30),
    }
    [Goodbye::Close, Goodbye::Reset][chance(7, 2)].say(stream);
}

/// Lets these come at once, and tells bytes, threads and open files once the server is idle again.
fn crowd(server: &Server, clients: Range<usize>) -> (Option<u64>, Option<u64>, Option<u64>) {
    let clients = clients.map(|client| move || come_and_perhaps_leave(server, client));
    together(clients.collect());
    check_idle(server);
    (server.resident(), server.threads(), server.open_files())
}

/// The full count is 100 rounds.
#[test]
fn a_crowd_of_which_some_leave_leaves_nothing_behind() {
    const CLIENTS: usize = 40;
    let folder = tempfile::tempdir().unwrap();
    let model = tiny_model(folder.path());
    let arguments = [
        "--context",
        "16384",
        "--kv-memory",
        "8MiB",
        "--threads",
        "2",
    ];
    let mut server = Server::start(model.to_str().unwrap(), &arguments);
    let rounds = |rounds: Range<usize>| {
        let mut footprint = (None, None, None);
        for round in rounds {
            footprint = crowd(&server, round * CLIENTS..(round + 1) * CLIENTS);
        }
        footprint
    };
    // The first rounds fill what is kept: memory of the cache, threads of the runtime. Of these a
    // few come and go; a leak would leave one for each of hundreds of clients.
    let before = rounds(0..3);
    let after = rounds(3..3 + repeats(30));
    for (name, before, after, more) in [
        ("bytes", before.0, after.0, 16 << 20),
        ("threads", before.1, after.1, 16),
        ("open files", before.2, after.2, 8),
    ] {
        match (before, after) {
            (Some(before), Some(after)) => {
                eprintln!("{name}: {before}, then {after}");
                assert!(after <= before + more, "{before} {name} became {after}");
            }
            _ => eprintln!("SKIPPED: this system does not tell a process's {name}"),
        }
    }
    server.check_alive();
}

/// A second in which nobody asks, after some had asked.
#[test]
fn a_server_at_rest_computes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let model = tiny_model(folder.path());
    let mut server = Server::start(model.to_str().unwrap(), &["--threads", "2"]);
    together(
        (0..8)
            .map(|_| || server.text(&greedy("a boat", 40)))
            .collect(),
    );
    check_idle(&server);
    let Some(before) = server.ticks() else {
        eprintln!("SKIPPED: this system does not tell how long a process has computed");
        return;
    };
    std::thread::sleep(Duration::from_secs(1));
    let ticks = server.ticks().unwrap() - before;
    assert!(ticks <= 2, "{ticks} ticks of a hundredth");
    server.check_alive();
}

/// The full count is 50.
#[test]
fn smollm2_stops_for_clients_that_leave() {
    let Some(mut server) = super::smollm2(&["--context", "4096", "--max-running", "1"]) else {
        return;
    };
    let long_prompt = " boat".repeat(3000);
    let goodbyes = [Goodbye::Reset, Goodbye::Close].into_iter().cycle();
    for goodbye in goodbyes.take(repeats(1)) {
        leave_everywhere(&server, goodbye, 2000, &long_prompt);
        leave_the_queue(&server, goodbye, 2000);
    }
    server.check_alive();
}

/// A request that was refused for its length leaves nothing behind either.
#[test]
fn a_refused_request_holds_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let model = tiny_model(folder.path());
    let mut server = Server::start(model.to_str().unwrap(), &[]);
    let body: Value = greedy(&"a".repeat(5000), 1);
    server.refused("/v1/completions", &body.to_string());
    check_idle(&server);
    server.check_alive();
}
