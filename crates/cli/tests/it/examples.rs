//! The programs in `examples/`, run as their page says.

use super::server::Server;
use super::{python, real_model};
use std::path::Path;
use std::process::Command;

#[test]
fn every_example_runs_and_is_right() {
    let (Some(python), Some(encoder), Some(chat)) = (
        python(),
        real_model("all-minilm-l6-v2"),
        real_model("smollm2.gguf"),
    ) else {
        return;
    };
    let chat = chat.to_str().unwrap();
    let more = [
        "--model",
        chat,
        "--context",
        "1024",
        "--kv-memory",
        "256MiB",
    ];
    let server = Server::start(encoder.to_str().unwrap(), &more);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    for example in [
        "semantic-search/search.py",
        "rerank/rerank.py",
        "spam-filter/trained_head.py",
        "spam-filter/zero_shot.py",
    ] {
        let output = Command::new(&python)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .arg(folder.join(example))
            .arg(format!("http://{}", server.address))
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        eprintln!("{example}\n{text}");
        assert!(output.status.success(), "{example}\n{text}{errors}");
    }
}
