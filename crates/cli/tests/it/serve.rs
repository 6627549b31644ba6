//! The real binary as a server, spoken to over loopback.

use super::{forthwith, real_model};
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A running server; killed when dropped.
struct Server {
    child: Child,
    address: String,
    /// Standard error up to the ready line.
    log: Vec<String>,
}

impl Server {
    fn start(model: &str, more: &[&str]) -> Self {
        let cache = tempfile::tempdir().unwrap();
        let mut child = forthwith(cache.path())
            .args(["serve", "--port", "0", "--model", model])
            .args(more)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut log = Vec::new();
        let address = loop {
            let line = lines
                .next()
                .expect("the server ended before it was ready")
                .unwrap();
            log.push(line.clone());
            if let Some(address) = line.strip_prefix("ready on http://") {
                break address.to_owned();
            }
        };
        // Later lines must not block the server.
        std::thread::spawn(move || lines.for_each(drop));
        Self {
            child,
            address,
            log,
        }
    }

    /// Sends one request and returns status and body.
    fn request(&self, method: &str, path: &str, body: Option<&Value>) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let body = body.map(Value::to_string).unwrap_or_default();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n\
             content-length: {}\r\nconnection: close\r\n\r\n{body}",
            self.address,
            body.len()
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").expect("a whole answer");
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let chunked = head.to_lowercase().contains("transfer-encoding: chunked");
        (
            status,
            if chunked {
                join_chunks(body)
            } else {
                body.to_owned()
            },
        )
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        let (status, answer) = self.request("POST", path, Some(body));
        assert_eq!(status, 200, "{answer}");
        serde_json::from_str(&answer).unwrap()
    }

    /// The text of a streamed completion, all deltas joined.
    fn stream(&self, body: &Value) -> String {
        let (status, answer) = self.request("POST", "/v1/completions", Some(body));
        assert_eq!(status, 200, "{answer}");
        assert!(answer.ends_with("data: [DONE]\n\n"), "{answer}");
        let events = answer
            .split("\n\n")
            .filter_map(|event| event.strip_prefix("data: {"));
        events
            .map(|event| {
                let event: Value = serde_json::from_str(&format!("{{{event}")).unwrap();
                event["choices"][0]["text"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned()
            })
            .collect()
    }

    /// The value of a metric without labels.
    fn metric(&self, name: &str) -> f64 {
        let (status, text) = self.request("GET", "/metrics", None);
        assert_eq!(status, 200);
        let line = text
            .lines()
            .find(|line| line.starts_with(&format!("{name} ")));
        line.unwrap_or_else(|| panic!("{name} in {text}"))
            .rsplit(' ')
            .next()
            .unwrap()
            .parse()
            .unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A server that already ended cannot be killed; that is fine.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn join_chunks(mut body: &str) -> String {
    let mut text = Vec::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        text.extend_from_slice(&rest.as_bytes()[..size]);
        body = &rest[(size + 2).min(rest.len())..];
        if size == 0 {
            break;
        }
    }
    String::from_utf8(text).unwrap()
}

fn greedy(prompt: &str, max_tokens: u32) -> Value {
    json!({"prompt": prompt, "max_tokens": max_tokens, "temperature": 0})
}

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

/// The official client as a second reader of the protocol.
#[test]
#[expect(clippy::disallowed_methods, reason = "the tests' own setting")]
fn real_openai_client_streams_a_chat() {
    let Ok(python) = std::env::var("FORTHWITH_TEST_PYTHON") else {
        eprintln!("SKIPPED: FORTHWITH_TEST_PYTHON is not set, the openai client is not tested");
        return;
    };
    let Some(path) = real_model("smollm2.gguf") else {
        return;
    };
    let server = Server::start(path.to_str().unwrap(), &["--context", "1024"]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/openai_client.py");
    let output = Command::new(python)
        .arg(script)
        .arg(format!("http://{}/v1", server.address))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(text.contains("all checks passed"), "{text}");
}
