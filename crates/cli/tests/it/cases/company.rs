//! The same answer always, to the last byte: alone, in company, from what was cached, sent away and
//! brought back, on one thread and on two, in one piece and in many, plain and streamed.

use super::bytes::{self, Told};
use super::{mixed, repeats, smollm2, together};
use crate::server::Server;
use serde_json::{Value, json};
use std::time::Duration;

/// Tokens of a cache block.
const BLOCK: usize = 32;

/// Words of one token each.
const WORDS: [&str; 16] = [
    " boat", " lamp", " wind", " ship", " road", " bird", " door", " rain", " red", " green",
    " north", " south", " one", " two", " name", " list",
];

/// So many tokens, the same for the same seed.
fn words(count: usize, seed: u64) -> String {
    let word = |index: usize| WORDS[mixed(seed * 1000 + index as u64) % WORDS.len()];
    (0..count).map(word).collect()
}

/// Prompts of 5 to 220 tokens, at the borders of blocks and in scripts of several tokens a
/// character; the last four begin alike.
fn prompts() -> [String; 16] {
    let common = words(100, 1);
    [
        words(5, 2),
        "The rain and the".to_owned(),
        "日本の海 日本の山".to_owned(),
        "def add(a, b):\n    return a".to_owned(),
        "🦊🐙🌋🦊🐙🌋🦊🐙".to_owned(),
        words(BLOCK - 1, 3),
        words(BLOCK, 4),
        words(BLOCK + 1, 5),
        words(2 * BLOCK - 1, 6),
        words(2 * BLOCK, 7),
        words(4 * BLOCK + 1, 8),
        words(220, 9),
        common.clone(),
        format!("{common} red"),
        format!("{common}{}", words(29, 10)),
        format!("{common} 海と山"),
    ]
}

/// The first of the prompts get answers of more than two blocks.
const LONG_ANSWERS: usize = 6;

/// Each prompt with its likeliest answer, half of them with drawn ones, and some with three.
fn questions(factor: usize) -> Vec<Value> {
    let prompts = prompts();
    let likeliest = prompts.iter().enumerate().map(|(index, prompt)| {
        let long = index < LONG_ANSWERS;
        json!({
            "prompt": prompt, "max_tokens": factor * if long { 72 } else { 12 },
            "temperature": 0, "logprobs": 5, "ignore_eos": long || index % 2 == 0,
        })
    });
    let drawn = prompts.iter().enumerate().step_by(2);
    let drawn = drawn.map(|(index, prompt)| {
        json!({
            "prompt": prompt, "max_tokens": factor * 12, "temperature": 1,
            "seed": index * 977, "logprobs": 2, "ignore_eos": true,
        })
    });
    let choices = [(1, 0), (6, 1), (13, 1)].map(|(index, temperature)| {
        json!({
            "prompt": prompts[index], "max_tokens": factor * 12, "temperature": temperature,
            "n": 3, "seed": index, "logprobs": 3,
        })
    });
    likeliest.chain(drawn).chain(choices).collect()
}

/// A question and the bytes of its answer alone.
struct Known {
    question: Value,
    choices: String,
}

impl Known {
    /// Asks with nobody else there and nothing known: what is cached for others has another salt.
    fn alone(server: &Server, question: Value, salt: usize) -> Self {
        let mut body = question.clone();
        body["cache_salt"] = json!(format!("alone {salt}"));
        let told = bytes::plain(server, &body);
        assert_eq!(told.cached_tokens, 0, "{question}");
        Self {
            question,
            choices: told.choices,
        }
    }

    fn compare(&self, told: &Told, circumstances: &str) {
        assert!(
            told.choices == self.choices,
            "{circumstances}: {}\nalone: {}\nnow:   {}",
            self.question,
            self.choices,
            told.choices
        );
    }
}

/// Every other time streamed.
fn ask(server: &Server, question: &Value, number: usize) -> Told {
    if number.is_multiple_of(2) {
        bytes::streamed(server, question)
    } else {
        bytes::plain(server, question)
    }
}

/// Asks everything at once, in random order and beside answers that nobody compares. Another
/// round streams what was plain.
fn crowd(server: &Server, known: &[Known], round: usize, circumstances: &str) -> Vec<Told> {
    let mut jobs: Vec<Box<dyn FnOnce() -> Told + Send>> = Vec::new();
    for (index, Known { question, .. }) in known.iter().enumerate() {
        jobs.push(Box::new(move || {
            let delay = mixed((index + round * known.len()) as u64) % 400;
            std::thread::sleep(Duration::from_millis(delay as u64));
            ask(server, question, index + round)
        }));
    }
    for index in 0..3 {
        let noise = json!({
            "prompt": words(3, 90 + index), "max_tokens": 60, "temperature": 1,
            "ignore_eos": true, "priority": -1,
        });
        jobs.push(Box::new(move || bytes::plain(server, &noise)));
    }
    let mut told = together(jobs);
    told.truncate(known.len());
    for (known, told) in known.iter().zip(&told) {
        known.compare(told, &format!("{circumstances}, round {round}"));
    }
    told
}

/// Asks those with long answers at once. Together they need more than the tiny cache has, so the
/// later ones are sent away and computed again.
fn rush(server: &Server, known: &[Known], round: usize) {
    let before = server.metric("forthwith_preemptions_total");
    let known = &known[..LONG_ANSWERS];
    let told = together(
        known
            .iter()
            .enumerate()
            .map(|(index, Known { question, .. })| move || ask(server, question, index + round))
            .collect(),
    );
    for (known, told) in known.iter().zip(&told) {
        known.compare(told, &format!("sent away, round {round}"));
    }
    let preemptions = server.metric("forthwith_preemptions_total") - before;
    assert!(preemptions > 0.0, "the cache was large enough");
}

fn check_sizes(told: &[Told]) {
    let sizes: Vec<usize> = told[..16].iter().map(|told| told.prompt_tokens).collect();
    assert!(sizes.contains(&5) && sizes.contains(&220), "{sizes:?}");
    assert!(sizes.contains(&BLOCK) && sizes.contains(&(2 * BLOCK)));
}

/// Where there is a whole block to find, it is found.
fn check_cached(told: &[Told]) {
    for told in told {
        let whole = (told.prompt_tokens - 1) / BLOCK * BLOCK;
        assert!(told.cached_tokens >= whole, "{told:?}");
    }
}

/// The full count is 20 rounds, with answers twice as long.
#[test]
fn smollm2_gives_the_same_bytes_in_all_circumstances() {
    let rounds = repeats(1);
    let arguments = ["--context", "512", "--threads", "2", "--max-running", "12"];
    let Some(mut two) = smollm2(&arguments) else {
        return;
    };
    let questions = questions(if rounds < 20 { 1 } else { 2 });
    let questions = questions.into_iter().enumerate();
    let known: Vec<Known> = questions
        .map(|(salt, question)| Known::alone(&two, question, salt))
        .collect();
    for round in 0..rounds {
        check_sizes(&crowd(&two, &known, round, "together"));
        check_cached(&crowd(&two, &known, round + 1, "warm"));
    }
    assert_eq!(two.metric("forthwith_preemptions_total"), 0.0);
    two.check_alive();
    drop(two);

    let arguments = ["--context", "512", "--threads", "1", "--step-tokens", "33"];
    let one = smollm2(&arguments).expect("a model");
    for round in 0..rounds {
        crowd(&one, &known, round, "one thread, prompts in pieces");
    }
    drop(one);

    // 13 blocks of 32 tokens.
    let tiny = smollm2(&["--kv-memory", "9400KiB", "--max-running", "8"]).expect("a model");
    assert_eq!(tiny.metric("forthwith_kv_blocks_total"), 13.0);
    for round in 0..rounds {
        rush(&tiny, &known, round);
        crowd(&tiny, &known, round, "tiny cache");
    }
    tiny.until("forthwith_kv_blocks_used", 0.0);
}
