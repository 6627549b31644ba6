//! `embed`, `rerank` and `classify`: what they print is what the server answers.

use super::super::{error, forthwith, stdout};
use super::{assert_close, golden, numbers, path};
use serde_json::Value;
use std::process::Output;

fn run(arguments: &[&str]) -> Output {
    let cache = tempfile::tempdir().unwrap();
    forthwith(cache.path()).args(arguments).output().unwrap()
}

fn lines(output: &Output) -> Vec<Value> {
    let text = stdout(output, 0);
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    lines.collect()
}

fn log(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn embed_says_what_the_endpoint_says_and_who_decided() {
    let embedder = path("embedder");
    let output = run(&[
        "embed",
        "--model",
        &embedder,
        "the server streams tokens",
        "a",
    ]);
    for said in [
        "pooling first: 1_Pooling/config.json",
        "length 1: modules.json",
        "40 tokens: sentence_bert_config.json",
        "cache in f32",
    ] {
        assert!(log(&output).contains(said), "{}", log(&output));
    }
    let golden = golden("embedder");
    for (index, line) in lines(&output).iter().enumerate() {
        assert_eq!(line["index"], index);
        let want = numbers(&golden["vectors"][index]);
        assert_close(&numbers(&line["embedding"]), &want, "embed");
    }
    let how = ["--pooling", "mean", "--normalize", "off"];
    let output = run(&[&["embed", "--model", &embedder], &how[..], &["a"]].concat());
    let said = "pooling mean: given, vectors as they are: given";
    assert!(log(&output).contains(said), "{}", log(&output));
    assert_ne!(lines(&output)[0]["embedding"][0], golden["vectors"][1][0]);
    // A model that generates gives vectors if it is told how.
    let chat = path("chat");
    let output = run(&["embed", "--model", &chat, "--pooling", "last", "a", "b"]);
    assert!(
        log(&output).contains("pooling last: given"),
        "{}",
        log(&output)
    );
    assert_eq!(numbers(&lines(&output)[1]["embedding"]).len(), 32);
    let long = "memory ".repeat(60);
    let output = run(&["embed", "--model", &embedder, &long]);
    assert!(
        error(&output, 2).contains("62 tokens, this model's maximum context length is 40 tokens")
    );
    let output = run(&["embed", "--model", &embedder, "--truncate", &long]);
    assert!(log(&output).contains("warning: 1 texts were truncated"));
    assert_eq!(lines(&output).len(), 1);
}

#[test]
fn texts_are_ordered_and_labelled() {
    let (reranker, labels, chat) = (path("reranker"), path("labels"), path("chat"));
    let output = run(&[
        "rerank", "--model", &reranker, "--top", "2", "a", "b", "c", "d",
    ]);
    assert_eq!(lines(&output).len(), 2);
    let output = run(&["classify", "--model", &labels, "a", "b"]);
    assert_eq!(lines(&output)[1]["index"], 1);
    let output = run(&["classify", "--model", &chat, "--labels", "good,bad", "a"]);
    assert_eq!(lines(&output)[0]["num_classes"], 2);
}

#[test]
fn folders_are_models_of_every_command_and_refused_where_they_do_not_fit() {
    let (embedder, chat) = (path("embedder"), path("chat"));
    let how = ["--max-tokens", "3", "--temperature", "0"];
    let output = run(&[&["run", "--model", &chat], &how[..], &["hello"]].concat());
    assert!(!stdout(&output, 0).is_empty());
    let output = run(&[&["run", "--stats", "--model", &chat], &how[..], &["hello"]].concat());
    for said in ["loaded in 0.", ": open ", "weights ", "from a cold start"] {
        assert!(log(&output).contains(said), "{}", log(&output));
    }
    assert!(!log(&output).contains("changes text"), "{}", log(&output));
    let text = stdout(&run(&["inspect", &embedder]), 0);
    assert!(
        text.contains("pool") && text.contains("WordPiece"),
        "{text}"
    );
    for (arguments, says) in [
        (vec!["run", "--model", &embedder, "a"], "generates no text"),
        (vec!["embed", "--model", "toy", "a"], "generates text"),
        (
            vec!["embed", "--model", &path(""), "a"],
            "folder without config.json",
        ),
        (
            vec!["bench", "engine", "--model", &embedder],
            "answers with vectors",
        ),
        (
            vec!["embed", "--model", &embedder, "--dimensions", "21", "a"],
            "1 to 20",
        ),
    ] {
        let line = error(&run(&arguments), 2);
        assert!(line.contains(says), "{line}");
    }
}
