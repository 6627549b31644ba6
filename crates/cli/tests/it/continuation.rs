//! Greedy answers of the real models: the same alone, in company and for any number of threads.

use forthwith_core::clock::ManualClock;
use forthwith_core::request::{GenerationRequest, RequestParts, SamplingParams};
use forthwith_core::units::{Blocks, TokenId, Tokens};
use forthwith_cpu::{Cpu, CpuConfig, IsaChoice, KvFormat};
use forthwith_engine::{Engine, EngineConfig, Event, PrefixCacheConfig, Submission};
use forthwith_text::Tokenizer;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};

const PROMPTS: [&str; 20] = [
    "The capital of France is",
    "Water boils when",
    "Once upon a time there was a",
    "A triangle has three",
    "def add(a, b):\n    return",
    "The opposite of hot is",
    "She opened the door and",
    "In the morning the sun",
    "1, 2, 3, 4,",
    "Dear Sir or Madam,",
    "The best way to learn a language is",
    "Bread is made from",
    "My favourite season is",
    "The ship sailed across the",
    "A cat is an animal that",
    "To make tea you need",
    "The first person on the moon was",
    "{\"name\": \"Ada\", \"age\":",
    "Roses are red,",
    "It was a dark and stormy night;",
];
const ANSWER: usize = 24;

fn engine(path: &Path, threads: usize, max_running: usize) -> (Engine, Tokenizer) {
    sharing_engine(path, threads, max_running, (32, true))
}

/// An engine with so many cache blocks, that shares them or does not.
fn sharing_engine(
    path: &Path,
    threads: usize,
    max_running: usize,
    (blocks, shares): (usize, bool),
) -> (Engine, Tokenizer) {
    let file = forthwith_weights::open(path).unwrap();
    let program = Arc::new(forthwith_models::build(&file).unwrap());
    let config = CpuConfig {
        threads,
        isa: IsaChoice::best(),
        kv_format: KvFormat::F16,
        kv_blocks: Blocks::new(blocks),
        max_step_tokens: Tokens::new(48),
        context: Tokens::new(4096),
    };
    let cpu = Cpu::load(program, &file, &config, &|_, _| {}).unwrap();
    let config = EngineConfig {
        max_running,
        max_step_tokens: Tokens::new(48),
        context: Tokens::new(256),
        max_waiting: 100,
        prefix_cache: PrefixCacheConfig {
            enabled: shares,
            ..PrefixCacheConfig::default()
        },
        ..EngineConfig::default()
    };
    let engine = Engine::new(Box::new(cpu), config, Arc::new(ManualClock::default()));
    (engine, Tokenizer::from_gguf(file.metadata()).unwrap())
}

fn submit(engine: &mut Engine, prompt: Vec<TokenId>) -> Receiver<Event> {
    let parts = RequestParts {
        max_tokens: Some(ANSWER as u64),
        sampling: SamplingParams::greedy(),
        ..RequestParts::new(prompt)
    };
    let (sender, events) = channel();
    let sender = Mutex::new(sender);
    let sink = Box::new(move |event| drop(sender.lock().unwrap().send(event)));
    engine
        .submit(
            GenerationRequest::new(parts, engine.limits()).unwrap(),
            sink,
        )
        .unwrap();
    events
}

fn tokens(events: &Receiver<Event>) -> Vec<TokenId> {
    let token = |event| match event {
        Event::Token(token) => Some(token.token),
        Event::Finished(_) => None,
        Event::Failed(message) => panic!("{message}"),
        Event::Prompt(_) | Event::Vectors(_) | Event::Scores(_) => panic!("tokens were asked for"),
    };
    events.try_iter().filter_map(token).collect()
}

/// Runs all prompts with at most `max_running` at a time.
fn answers(path: &Path, threads: usize, max_running: usize) -> Vec<Vec<TokenId>> {
    let (mut engine, tokenizer) = engine(path, threads, max_running);
    let submitted: Vec<_> = PROMPTS
        .iter()
        .map(|prompt| submit(&mut engine, tokenizer.encode_prompt(prompt).unwrap()))
        .collect();
    while !engine.is_idle() {
        assert!(!engine.step().faulted);
    }
    submitted.iter().map(tokens).collect()
}

fn check(model: &str) {
    let Some(path) = super::real_model(&format!("{model}.gguf")) else {
        return;
    };
    let alone = answers(&path, 1, 1);
    assert!(alone.iter().all(|answer| answer.len() == ANSWER));
    assert!(
        alone == answers(&path, 2, 1),
        "two threads give other answers than one"
    );
    assert!(alone == answers(&path, 2, 8), "company changes an answer");
    let (_, tokenizer) = engine(&path, 1, 1);
    for (prompt, answer) in PROMPTS.iter().zip(&alone) {
        let text = tokenizer.decode(answer);
        eprintln!("{model}: {prompt:?} … {text:?}");
        // Sense is for a reader of the line above to judge; broken text is not.
        let empty = text.trim().is_empty();
        assert!(!text.contains('\u{fffd}') && !empty, "{text:?}");
    }
}

#[test]
fn real_smollm2_answers_stay_the_same() {
    check("smollm2");
}

#[test]
fn real_gemma3_answers_stay_the_same() {
    check("gemma3-270m");
}

/// Every third of these is a choice of the same prompt as the two before it; all begin alike.
fn alike(tokenizer: &Tokenizer, engine: &Engine) -> Vec<GenerationRequest> {
    let system =
        "You are a careful assistant. Answer in one short sentence, and never guess. ".repeat(4);
    let request = |(index, prompt): (usize, &&str)| {
        let text = format!("{system}{prompt}");
        let parts = RequestParts {
            max_tokens: Some(ANSWER as u64),
            sampling: SamplingParams {
                temperature: if index.is_multiple_of(2) { 0.0 } else { 0.8 },
                choice: u32::try_from(index).unwrap(),
                ..SamplingParams::default()
            },
            logprobs: Some(3),
            ..RequestParts::new(tokenizer.encode_prompt(&text).unwrap())
        };
        GenerationRequest::new(parts, engine.limits()).unwrap()
    };
    let prompts: Vec<&str> = PROMPTS[..2]
        .iter()
        .flat_map(|prompt| [*prompt; 3])
        .collect();
    prompts.iter().enumerate().map(request).collect()
}

/// Runs all of them, in groups of this size, and returns their tokens with log-probabilities.
fn run_alike(engine: &mut Engine, tokenizer: &Tokenizer, group: usize) -> Vec<Vec<Event>> {
    let mut submitted = Vec::new();
    for choices in alike(tokenizer, engine).chunks(group) {
        let choice = |request: &GenerationRequest| -> Submission {
            let (sender, events) = channel();
            submitted.push(events);
            (
                request.clone(),
                Box::new(move |event| drop(sender.send(event))),
            )
        };
        let choices: Vec<Submission> = choices.iter().map(choice).collect();
        engine.submit_group(choices).unwrap();
    }
    while !engine.is_idle() {
        assert!(!engine.step().faulted);
    }
    let is_token = |event: &Event| matches!(event, Event::Token(_));
    let answers = submitted
        .iter()
        .map(|events| events.try_iter().filter(is_token).collect());
    answers.collect()
}

/// What is shared, found, copied or computed again is the same to the last bit.
fn check_sharing(model: &str) {
    let Some(path) = super::real_model(&format!("{model}.gguf")) else {
        return;
    };
    let (mut alone, tokenizer) = sharing_engine(&path, 2, 1, (32, false));
    let expected = run_alike(&mut alone, &tokenizer, 1);
    assert_eq!(alone.snapshot().counters.cached_tokens, 0);
    let (mut shared, _) = sharing_engine(&path, 1, 8, (64, true));
    assert!(expected == run_alike(&mut shared, &tokenizer, 1), "company");
    let cold = shared.snapshot().counters;
    assert!(
        expected == run_alike(&mut shared, &tokenizer, 1),
        "a warm cache"
    );
    let warm = shared.snapshot().counters;
    assert!(
        warm.cached_tokens - cold.cached_tokens >= 6 * 32,
        "{warm:?}"
    );
    let (mut forked, _) = sharing_engine(&path, 2, 8, (64, false));
    assert!(expected == run_alike(&mut forked, &tokenizer, 3), "forks");
    assert!(forked.snapshot().counters.copied_blocks > 0);
    let (mut tight, _) = sharing_engine(&path, 2, 8, (5, true));
    assert!(
        expected == run_alike(&mut tight, &tokenizer, 3),
        "a tiny cache"
    );
    let counters = tight.snapshot().counters;
    eprintln!("{model}: {counters:?}");
}

#[test]
fn real_smollm2_shares_blocks_without_a_trace() {
    check_sharing("smollm2");
}

#[test]
fn real_gemma3_shares_blocks_without_a_trace() {
    check_sharing("gemma3-270m");
}
