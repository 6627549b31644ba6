//! Vectors of many texts, in every order and company.

use super::real_model;
use crate::server::Server;
use serde_json::{Value, json};
use std::thread;

const WORDS: [&str; 16] = [
    "server",
    "Straße",
    "日本語",
    "мир",
    "prompt",
    "café",
    "cache",
    "the",
    "of",
    "tokens",
    "שלום",
    "a",
    "queue",
    "🎉",
    "memory",
    "and",
];

/// Sentences of 1 to 200 words; three of them come again.
fn sentences() -> Vec<String> {
    let word = |at: usize| WORDS[(at * 7 + at / 16) % 16];
    let mut all: Vec<String> = (0..61)
        .map(|index| {
            let length = 1 + index * 199 / 60;
            let words: Vec<&str> = (0..length).map(|at| word(at + index * 3)).collect();
            format!("{index} {}", words.join(" "))
        })
        .collect();
    for again in [0, 7, 30] {
        all.push(all[again].clone());
    }
    all
}

struct Asked<'a>(&'a Server);

impl Asked<'_> {
    /// The vectors of one call, after checking their form, and the tokens that it counted.
    fn vectors(&self, texts: &[String]) -> (Vec<Vec<f64>>, u64) {
        let body = json!({"input": texts, "truncate_prompt_tokens": -1});
        let answer = self.0.post("/v1/embeddings", &body);
        let data = answer["data"].as_array().unwrap();
        assert_eq!(data.len(), texts.len());
        let vector = |(index, entry): (usize, &Value)| -> Vec<f64> {
            assert_eq!(entry["index"], index);
            let numbers = entry["embedding"].as_array().unwrap();
            let vector: Vec<f64> = numbers.iter().map(|x| x.as_f64().unwrap()).collect();
            assert_eq!(vector.len(), 384);
            let length = vector.iter().map(|x| x * x).sum::<f64>().sqrt();
            assert!((length - 1.0).abs() < 1e-3, "length {length}");
            vector
        };
        let vectors = data.iter().enumerate().map(vector).collect();
        (vectors, answer["usage"]["prompt_tokens"].as_u64().unwrap())
    }
}

/// A18, with bits in place of a tolerance: batches, orders and neighbours change nothing.
#[test]
fn embedding_batches_are_in_order_and_equal() {
    let Some(model) = real_model("all-minilm-l6-v2") else {
        return;
    };
    let server = Server::start(model.to_str().unwrap(), &[]);
    let texts = sentences();
    let single: Vec<(Vec<f64>, u64)> = texts
        .iter()
        .map(|text| {
            let (mut vectors, tokens) = Asked(&server).vectors(std::slice::from_ref(text));
            (vectors.remove(0), tokens)
        })
        .collect();
    let alone: Vec<&Vec<f64>> = single.iter().map(|(vector, _)| vector).collect();
    for size in [2, 3, 16, 64] {
        let mut together = Vec::new();
        let mut tokens = 0;
        for texts in texts.chunks(size) {
            let (vectors, count) = Asked(&server).vectors(texts);
            together.extend(vectors);
            tokens += count;
        }
        assert!(together.iter().eq(alone.iter().copied()), "lists of {size}");
        assert_eq!(tokens, single.iter().map(|(_, tokens)| tokens).sum::<u64>());
    }
    let reversed: Vec<String> = texts.iter().rev().cloned().collect();
    let (mut vectors, _) = Asked(&server).vectors(&reversed);
    vectors.reverse();
    assert!(vectors.iter().eq(alone.iter().copied()), "in reverse");
    thread::scope(|scope| {
        for client in 0..8 {
            let (texts, alone, server) = (&texts, &alone, &server);
            scope.spawn(move || {
                let (vectors, _) = Asked(server).vectors(&texts[client * 8..client * 8 + 8]);
                let mine = alone[client * 8..client * 8 + 8].iter().copied();
                assert!(vectors.iter().eq(mine), "client {client}");
            });
        }
    });
    for (again, first) in [(61, 0), (62, 7), (63, 30)] {
        assert_eq!(alone[again], alone[first]);
    }
    for (index, vector) in alone[..61].iter().enumerate() {
        let likeness =
            |other: &[f64]| -> f64 { vector.iter().zip(other).map(|(a, b)| a * b).sum() };
        let nearest = (0..61).max_by(|&a, &b| likeness(alone[a]).total_cmp(&likeness(alone[b])));
        assert_eq!(nearest, Some(index));
    }
}
