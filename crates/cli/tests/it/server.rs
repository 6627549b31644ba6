//! The real binary as a server, spoken to over loopback.

use super::forthwith;
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, Lines, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, ChildStderr, Stdio};
use std::time::Duration;

/// Long enough for any answer of these tests on a busy machine; a longer one hangs.
const PATIENCE: Duration = Duration::from_mins(2);

/// A running server; killed when dropped.
pub(crate) struct Server {
    pub(crate) child: Child,
    pub(crate) address: String,
    /// Standard error up to the ready line.
    pub(crate) log: Vec<String>,
}

/// A server that listens and perhaps still loads.
pub(crate) struct Loading {
    server: Server,
    lines: Lines<BufReader<ChildStderr>>,
}

/// One answer, read to its end.
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// The status line and the headers, in lower case.
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Loading {
    /// Starts a server and waits until it listens.
    pub(crate) fn start(model: &str, more: &[&str]) -> Self {
        let cache = tempfile::tempdir().unwrap();
        let mut child = forthwith(cache.path())
            .args(["serve", "--port", "0", "--model", model])
            .args(more)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let server = Server::of(child, String::new());
        let mut loading = Self { server, lines };
        loading.server.address = loading.read_until("listening on http://", ", loading");
        loading
    }

    /// What can be asked while it loads.
    pub(crate) fn server(&self) -> &Server {
        &self.server
    }

    /// Waits until the server is ready.
    pub(crate) fn ready(mut self) -> Server {
        self.read_until("ready on http://", "");
        let Self { server, lines } = self;
        // Later lines must not block the server.
        std::thread::spawn(move || lines.for_each(drop));
        server
    }

    /// The exit code and the last line of a server that does not get ready.
    pub(crate) fn end(mut self) -> (Option<i32>, String) {
        let last = self.lines.by_ref().map_while(Result::ok).last();
        let status = self.server.child.wait().unwrap();
        (status.code(), last.unwrap_or_default())
    }

    fn read_until(&mut self, prefix: &str, suffix: &str) -> String {
        loop {
            let line = self.lines.next();
            let line = line.expect("the server ended too early").unwrap();
            self.server.log.push(line.clone());
            let rest = line.strip_prefix(prefix);
            if let Some(address) = rest.and_then(|rest| rest.strip_suffix(suffix)) {
                return address.to_owned();
            }
        }
    }
}

impl Server {
    /// A server that was started elsewhere.
    pub(crate) fn of(child: Child, address: String) -> Self {
        Self {
            child,
            address,
            log: Vec::new(),
        }
    }

    pub(crate) fn start(model: &str, more: &[&str]) -> Self {
        Loading::start(model, more).ready()
    }

    /// Sends one request and leaves the answer to be read.
    pub(crate) fn open(&self, method: &str, path: &str, body: &str) -> TcpStream {
        self.open_with(method, path, &[], body)
    }

    /// The same with further headers.
    fn open_with(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> TcpStream {
        let mut lines = String::new();
        for (name, value) in headers {
            for part in [name, ": ", value, "\r\n"] {
                lines.push_str(part);
            }
        }
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n{lines}connection: close\r\n\r\n{body}",
            self.address,
            body.len()
        )
        .unwrap();
        stream
    }

    /// Sends one request with this text as its body and reads the whole answer.
    pub(crate) fn send(&self, method: &str, path: &str, body: &str) -> Answer {
        self.send_with(method, path, &[], body)
    }

    /// The same with further headers.
    pub(crate) fn send_with(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Answer {
        let mut bytes = Vec::new();
        self.open_with(method, path, headers, body)
            .read_to_end(&mut bytes)
            .unwrap();
        let (head, mut body) = split_at(&bytes, b"\r\n\r\n");
        let head = String::from_utf8_lossy(head).to_lowercase();
        let mut joined = Vec::new();
        if head.contains("transfer-encoding: chunked") {
            join_chunks(body, &mut joined);
            body = &joined;
        }
        Answer {
            status: head.split(' ').nth(1).unwrap().parse().unwrap(),
            body: String::from_utf8(body.to_vec()).expect("an answer is UTF-8"),
            head,
        }
    }

    /// Sends one request and returns status and body.
    pub(crate) fn request(&self, method: &str, path: &str, body: Option<&Value>) -> (u16, String) {
        let answer = self.send(
            method,
            path,
            &body.map(Value::to_string).unwrap_or_default(),
        );
        (answer.status, answer.body)
    }

    /// The answer to a request that must succeed.
    pub(crate) fn post(&self, path: &str, body: &Value) -> Value {
        let (status, answer) = self.request("POST", path, Some(body));
        assert_eq!(status, 200, "{answer}\n{body}");
        serde_json::from_str(&answer).unwrap()
    }

    /// The error of a request that must be refused; its form is checked.
    pub(crate) fn refused(&self, path: &str, body: &str) -> Value {
        let answer = self.send("POST", path, body);
        assert_eq!(answer.status, 400, "{}\n{body}", answer.body);
        answer.error()
    }

    /// The text of a completion's only choice.
    pub(crate) fn text(&self, body: &Value) -> String {
        let answer = self.post("/v1/completions", body);
        answer["choices"][0]["text"].as_str().unwrap().to_owned()
    }

    /// The events of a streamed answer that must succeed.
    pub(crate) fn events(&self, path: &str, body: &Value) -> Vec<Value> {
        let events = self.event_texts(path, body);
        let events = events
            .iter()
            .map(|event| serde_json::from_str(event).expect("an event is JSON"));
        events.collect()
    }

    /// The same as they were written.
    pub(crate) fn event_texts(&self, path: &str, body: &Value) -> Vec<String> {
        let mut body = body.clone();
        body["stream"] = json!(true);
        let answer = self.send("POST", path, &body.to_string());
        assert_eq!(answer.status, 200, "{}\n{body}", answer.body);
        assert!(
            answer.head.contains("content-type: text/event-stream"),
            "{}",
            answer.head
        );
        let all = answer.body.strip_suffix("data: [DONE]\n\n");
        let all = all.unwrap_or_else(|| panic!("no end in {}", answer.body));
        // A line that begins with a colon keeps a silent stream alive.
        let events = all
            .split_terminator("\n\n")
            .filter(|event| !event.starts_with(':'));
        let events = events.map(|event| event.strip_prefix("data: ").expect("one data line"));
        events.map(str::to_owned).collect()
    }

    /// The text of a streamed completion, all deltas joined.
    pub(crate) fn stream(&self, body: &Value) -> String {
        joined(&self.events("/v1/completions", body), 0)
    }

    /// The value of a metric without labels.
    pub(crate) fn metric(&self, name: &str) -> f64 {
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

    /// Asks until the metric has this value.
    pub(crate) fn until(&self, name: &str, value: f64) {
        for _ in 0..PATIENCE.as_millis() / 20 {
            if self.metric(name) == value {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("{name} is {}, not {value}", self.metric(name));
    }

    /// The check that every case ends with: the same process still answers.
    pub(crate) fn check_alive(&mut self) {
        self.check_answer(&greedy("The boat", 4));
    }

    /// The same of a server of several models.
    pub(crate) fn check_alive_as(&mut self, model: &str) {
        let mut body = greedy("The boat", 4);
        body["model"] = json!(model);
        self.check_answer(&body);
    }

    fn check_answer(&mut self, body: &Value) {
        let answer = self.post("/v1/completions", body);
        assert!(answer["usage"]["completion_tokens"].as_u64().unwrap() > 0);
        assert!(self.child.try_wait().unwrap().is_none());
    }

    /// The process's memory in bytes, where the system tells.
    pub(crate) fn resident(&self) -> Option<u64> {
        Some(self.status("VmRSS:")? * 1024)
    }

    /// The process's threads, where the system tells.
    pub(crate) fn threads(&self) -> Option<u64> {
        self.status("Threads:")
    }

    /// The process's open files and connections, where the system tells.
    pub(crate) fn open_files(&self) -> Option<u64> {
        let folder = std::fs::read_dir(format!("/proc/{}/fd", self.child.id()));
        Some(folder.ok()?.count() as u64)
    }

    /// How long the process has computed, in the system's ticks, where the system tells.
    pub(crate) fn ticks(&self) -> Option<u64> {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).ok()?;
        // The name before the bracket may hold spaces.
        let (_, fields) = text.rsplit_once(") ")?;
        let fields = fields.split(' ').skip(11).take(2);
        Some(fields.map(|field| field.parse::<u64>().unwrap()).sum())
    }

    fn status(&self, name: &str) -> Option<u64> {
        let path = format!("/proc/{}/status", self.child.id());
        let text = std::fs::read_to_string(path).ok()?;
        let line = text.lines().find(|line| line.starts_with(name))?;
        line.split_whitespace().nth(1)?.parse().ok()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A server that already ended cannot be killed; that is fine.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Answer {
    /// The error object, after checking the form that every error has.
    pub(crate) fn error(&self) -> Value {
        assert!(
            self.head.contains("content-type: application/json"),
            "{}",
            self.head
        );
        let whole: Value = serde_json::from_str(&self.body).expect("an error is JSON");
        let error = whole["error"].as_object().expect("an error object");
        for (field, required) in [
            ("message", true),
            ("type", true),
            ("param", false),
            ("code", false),
        ] {
            let value = error.get(field).expect("all four fields");
            assert!(
                value.is_string() || (!required && value.is_null()),
                "{whole}"
            );
        }
        whole["error"].clone()
    }
}

/// The text of one choice of a streamed answer.
pub(crate) fn joined(events: &[Value], index: usize) -> String {
    let choices = events
        .iter()
        .flat_map(|event| event["choices"].as_array().unwrap());
    let own = choices.filter(|choice| choice["index"] == index);
    own.filter_map(|choice| {
        choice["text"]
            .as_str()
            .or(choice["delta"]["content"].as_str())
    })
    .collect()
}

/// A completion that always takes the most likely token.
pub(crate) fn greedy(prompt: &str, max_tokens: u32) -> Value {
    json!({"prompt": prompt, "max_tokens": max_tokens, "temperature": 0})
}

/// A conversation of one message, answered with the most likely tokens.
pub(crate) fn chat(content: &str, max_tokens: u32) -> Value {
    let messages = json!([{"role": "user", "content": content}]);
    json!({"messages": messages, "max_tokens": max_tokens, "temperature": 0})
}

fn join_chunks(mut body: &[u8], joined: &mut Vec<u8>) {
    loop {
        let (size, rest) = split_at(body, b"\r\n");
        let size = std::str::from_utf8(size).unwrap();
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 {
            return;
        }
        joined.extend_from_slice(&rest[..size]);
        body = rest[size..].strip_prefix(b"\r\n").expect("a chunk's end");
    }
}

fn split_at<'a>(bytes: &'a [u8], mark: &[u8]) -> (&'a [u8], &'a [u8]) {
    let place = bytes.windows(mark.len()).position(|window| window == mark);
    let place = place.expect("a whole answer");
    (&bytes[..place], &bytes[place + mark.len()..])
}
