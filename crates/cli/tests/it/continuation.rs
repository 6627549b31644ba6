//! Greedy answers of the real models: the same alone, in company and for any number of threads.

use forthwith_core::clock::ManualClock;
use forthwith_core::request::{GenerationRequest, RequestParts, SamplingParams};
use forthwith_core::units::{Blocks, TokenId, Tokens};
use forthwith_cpu::{Cpu, CpuConfig, IsaChoice, KvFormat};
use forthwith_engine::{Engine, EngineConfig, Event};
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
    let file = forthwith_weights::open(path).unwrap();
    let program = Arc::new(forthwith_models::build(&file).unwrap());
    let config = CpuConfig {
        threads,
        isa: IsaChoice::best(),
        kv_format: KvFormat::F16,
        kv_blocks: Blocks::new(32),
        max_step_tokens: Tokens::new(48),
    };
    let cpu = Cpu::load(program, &file, &config, &|_, _| {}).unwrap();
    let config = EngineConfig {
        max_running,
        max_step_tokens: Tokens::new(48),
        context: Tokens::new(256),
        max_waiting: 100,
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
