//! One request, step by step, on the calling thread: `cargo run -p forthwith-engine --example generate`.
#![expect(clippy::print_stdout, reason = "an example talks to its reader")]

use std::sync::Arc;

use forthwith_core::clock::SystemClock;
use forthwith_core::request::{GenerationRequest, RequestParts, SamplingParams, StopRules};
use forthwith_core::units::{Blocks, TokenId, Tokens};
use forthwith_engine::{Engine, EngineConfig, Event};
use forthwith_models::toy::Toy;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let toy = Arc::new(Toy::embedded());
    let config = EngineConfig {
        max_running: 1,
        max_step_tokens: Tokens::new(64),
        context: Tokens::new(256),
        max_waiting: 1,
        ..EngineConfig::default()
    };
    let executor = Box::new(Arc::clone(&toy).executor(Blocks::new(8)));
    let mut engine = Engine::new(executor, config, Arc::new(SystemClock::start()));

    let prompt = "the server";
    let known = |word: &str| toy.words().iter().position(|known| known == word);
    let prompt_tokens: Option<Vec<usize>> = prompt.split(' ').map(known).collect();
    let prompt_tokens = prompt_tokens
        .ok_or("the toy does not know a word of the prompt")?
        .into_iter()
        .map(|id| u32::try_from(id).map(TokenId::new))
        .collect::<Result<_, _>>()?;
    let parts = RequestParts {
        max_tokens: Some(6),
        sampling: SamplingParams::greedy(),
        stop: StopRules {
            end_tokens: toy.end_tokens(),
            ..StopRules::default()
        },
        ..RequestParts::new(prompt_tokens)
    };
    let request = GenerationRequest::new(parts, engine.limits())?;

    print!("{prompt}");
    let speaker = Arc::clone(&toy);
    let sink = move |event| match event {
        Event::Token(token) => print!(" {}", speaker.words()[token.token.index()]),
        Event::Finished(finished) => println!("\n{:?}", finished.reason),
        Event::Failed(message) => println!("\nfailed: {message}"),
        Event::Prompt(_) | Event::Vectors(_) | Event::Scores(_) => {
            println!("\nnumbers were not asked for");
        }
    };
    engine.submit(request, Box::new(sink))?;
    while !engine.is_idle() {
        engine.step();
    }
    Ok(())
}
