//! Keys, routes and what browsers ask first (A20).

use super::{mixed, tiny_model};
use crate::server::{Answer, Loading, Server};
use forthwith_core::clock::{Clock, SystemClock};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

const KEY: &str = "sk-0123456789abcdef";
const ORIGIN: &str = "https://app.example.com";
const ROUTES: [(&str, &str); 19] = [
    ("GET", "/"),
    ("GET", "/metrics"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/tiny"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/completions/render"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/chat/completions/render"),
    ("POST", "/v1/embeddings"),
    ("POST", "/v1/classify"),
    ("POST", "/v1/score"),
    ("POST", "/v1/rerank"),
    ("POST", "/v2/rerank"),
    ("POST", "/rerank"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("POST", "/apply-template"),
    ("POST", "/completions"),
    ("POST", "/invocations"),
];
const ODD_PATHS: [&str; 8] = [
    "//v1/models",
    "/v1/./models",
    "/v1/models/",
    "/V1/models",
    "/v1/models%00",
    "/v1%2fmodels",
    "/health/../v1/models",
    "/health/",
];

/// A server of a tiny model with one key, and what it says on standard error.
fn guarded(more: &[&str]) -> (tempfile::TempDir, Server) {
    let folder = tempfile::tempdir().unwrap();
    let model = tiny_model(folder.path());
    let file = folder.path().join("keys");
    std::fs::write(&file, format!("ann {KEY}\n")).unwrap();
    let mut flags = vec!["--api-key-file", file.to_str().unwrap()];
    flags.extend(more);
    let server = Loading::start(model.to_str().unwrap(), &flags).ready();
    (folder, server)
}

fn ask(server: &Server, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
    server.send_with(method, path, headers, "{}")
}

const PREFLIGHT: [(&str, &str); 2] = [
    ("access-control-request-method", "POST"),
    (
        "access-control-request-headers",
        "authorization,content-type,x-stainless-os",
    ),
];

fn preflight(server: &Server, origin: &str) -> Answer {
    let [method, headers] = PREFLIGHT;
    let headers = [("origin", origin), method, headers];
    ask(server, "OPTIONS", "/v1/chat/completions", &headers)
}

#[test]
fn a20_browsers_may_ask_from_the_allowed_origin_only() {
    let (_folder, server) = guarded(&["--allowed-origin", ORIGIN]);
    let answer = preflight(&server, ORIGIN);
    assert!([200, 204].contains(&answer.status), "{}", answer.head);
    let allows = |answer: &Answer, name: &str| {
        let start = format!("access-control-allow-{name}: ");
        let mut lines = answer.head.lines();
        lines.find_map(|line| line.strip_prefix(&start).map(str::to_owned))
    };
    assert_eq!(allows(&answer, "origin").as_deref(), Some(ORIGIN));
    assert!(allows(&answer, "methods").unwrap().contains("post"));
    let headers = allows(&answer, "headers").unwrap();
    for header in ["authorization", "content-type", "x-stainless-os"] {
        assert!(headers.contains(header), "{headers}");
    }
    assert_eq!(allows(&answer, "credentials"), None);
    assert_eq!(answer.body, "");

    // Errors can be read as well, and answers.
    let refused = ask(&server, "GET", "/v1/models", &[("origin", ORIGIN)]);
    assert_eq!(refused.status, 401);
    assert_eq!(refused.error()["code"], "invalid_api_key");
    assert_eq!(allows(&refused, "origin").as_deref(), Some(ORIGIN));
    let bearer = format!("Bearer {KEY}");
    let headers = [("origin", ORIGIN), ("authorization", &bearer)];
    let answer = ask(&server, "GET", "/v1/models", &headers);
    assert_eq!(answer.status, 200);
    assert_eq!(allows(&answer, "origin").as_deref(), Some(ORIGIN));

    for origin in [
        "https://evil.example.com",
        "http://app.example.com",
        "https://app.example.com.evil.test",
        "https://app.example.com:8443",
        "null",
        "*",
    ] {
        assert_eq!(allows(&preflight(&server, origin), "origin"), None);
        let answer = ask(&server, "GET", "/v1/models", &[("origin", origin)]);
        assert_eq!(answer.status, 401);
        assert_eq!(allows(&answer, "origin"), None, "{origin}");
    }

    let (_folder, plain) = guarded(&[]);
    for answer in [
        preflight(&plain, ORIGIN),
        ask(&plain, "GET", "/health", &[("origin", ORIGIN)]),
        ask(&plain, "GET", "/v1/models", &[("origin", ORIGIN)]),
    ] {
        assert!(!answer.head.contains("access-control"), "{}", answer.head);
    }
    assert_eq!(preflight(&plain, ORIGIN).status, 401);
}

#[test]
fn a20_without_a_right_key_nothing_answers() {
    let (_folder, mut server) = guarded(&["--allowed-origin", ORIGIN]);
    let bearer = |key: &str| format!("Bearer {key}");
    let plain = KEY.to_owned();
    let (prefix, longer) = (bearer(&KEY[..KEY.len() - 1]), bearer(&format!("{KEY}x")));
    let (right, wrong) = (bearer(KEY), bearer("sk-fedcba9876543210"));
    let bare = format!("bearer{KEY}");
    let inner = bearer(&format!("{} {}", &KEY[..8], &KEY[8..]));
    let name = "authorization";
    for headers in [
        &[][..],
        &[(name, &wrong)],
        &[(name, &prefix)],
        &[(name, &longer)],
        &[(name, &inner)],
        &[(name, &bare)],
        &[(name, &wrong), (name, &wrong)],
        &[(name, &wrong), (name, &right)],
        &[(name, &right), (name, &wrong)],
        &[("x-api-key", &wrong), (name, &right)],
        &[("cookie", &plain), ("api-key", &plain)],
    ] {
        let headers: Vec<(&str, &str)> = headers
            .iter()
            .map(|&(name, value)| (name, &value[..]))
            .collect();
        for (method, path) in ROUTES {
            for path in [path.to_owned(), format!("{path}?api_key={KEY}&key={KEY}")] {
                let answer = ask(&server, method, &path, &headers);
                assert_eq!(answer.status, 401, "{method} {path} {headers:?}");
                assert!(!answer.body.contains(KEY), "{}", answer.body);
                answer.error();
            }
        }
        for path in ODD_PATHS {
            let answer = ask(&server, "GET", path, &headers);
            assert!([400, 401, 404].contains(&answer.status), "{path}");
            assert!(!answer.body.contains("tiny"), "{path}: {}", answer.body);
        }
    }
    for right in [
        ("authorization", bearer(KEY)),
        ("authorization", format!("bearer {KEY}")),
        ("authorization", format!("BEARER {KEY} ")),
        ("x-api-key", KEY.to_owned()),
    ] {
        let headers = [(right.0, right.1.as_str())];
        let answer = ask(&server, "GET", "/v1/models", &headers);
        assert_eq!(answer.status, 200, "{right:?}");
    }
    for path in ["/health", "/live", "/ready"] {
        assert_eq!(ask(&server, "GET", path, &[]).status, 200, "{path}");
    }
    assert!(server.log.iter().all(|line| !line.contains(KEY)));
    assert!(server.child.try_wait().unwrap().is_none());
}

/// One request on an open connection, timed.
fn timed(clock: &dyn Clock, stream: &mut TcpStream, address: &str, key: &str) -> Duration {
    let request = format!(
        "GET /v1/models HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {key}\r\n\r\n"
    );
    let start = clock.now();
    stream.write_all(request.as_bytes()).unwrap();
    let mut buffer = [0; 4096];
    let count = stream.read(&mut buffer).unwrap();
    let time = clock.now().saturating_sub(start);
    assert!(buffer[..count].starts_with(b"HTTP/1.1 401"));
    time
}

/// How far the medians of two halves are apart, in nanoseconds.
fn gap(one: &mut [u128], other: &mut [u128]) -> u128 {
    let median = |times: &mut [u128]| {
        times.sort_unstable();
        times[times.len() / 2]
    };
    median(one).abs_diff(median(other))
}

/// A wrong key takes as long where its first character is wrong as where its last is.
#[test]
#[ignore = "measures time, so it wants a quiet machine"]
fn a20_the_time_tells_nothing_of_the_key() {
    const TRIES: usize = 5000;
    let (_folder, server) = guarded(&[]);
    let clock = SystemClock::start();
    let mut stream = TcpStream::connect(&server.address).unwrap();
    stream.set_nodelay(true).unwrap();
    let keys = [
        format!("x{}", &KEY[1..]),
        format!("{}x", &KEY[..KEY.len() - 1]),
    ];
    let mut times = [Vec::new(), Vec::new()];
    for index in 0..2 * TRIES {
        let which = index % 2;
        let time = timed(&clock, &mut stream, &server.address, &keys[which]);
        times[which].push(time.as_nanos());
    }
    let [mut first, mut last] = times;
    let between = gap(&mut first.clone(), &mut last);
    // The halves of one key's tries differ by chance alone; of several splits the widest is taken,
    // because one may come out at nothing.
    let within = (0..20)
        .map(|split| {
            for at in (1..first.len()).rev() {
                first.swap(at, mixed(split * 100_000 + at as u64) % (at + 1));
            }
            let (one, other) = first.split_at_mut(TRIES / 2);
            gap(&mut one.to_vec(), &mut other.to_vec())
        })
        .max()
        .unwrap();
    assert!(
        between <= 3 * within,
        "{between} ns between, {within} ns within"
    );
}
