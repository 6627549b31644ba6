//! Many requests share each step: `cargo run -p forthwith-engine --example batch`.
//!
//! The cache is far too small for all of them at once, so some wait, some are sent back to wait,
//! and every answer is the same as if it had been alone.
#![expect(clippy::print_stdout, reason = "an example talks to its reader")]

use std::sync::Arc;

use forthwith_core::clock::SystemClock;
use forthwith_core::request::{GenerationRequest, RequestParts, SamplingParams};
use forthwith_core::units::{Blocks, TokenId, Tokens};
use forthwith_engine::{Engine, EngineConfig, Event};
use forthwith_models::toy::Toy;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let toy = Arc::new(Toy::embedded());
    let config = EngineConfig {
        max_running: 8,
        max_step_tokens: Tokens::new(64),
        context: Tokens::new(96),
        max_waiting: 100,
        ..EngineConfig::default()
    };
    let executor = Box::new(Arc::clone(&toy).executor(Blocks::new(7)));
    let mut engine = Engine::new(executor, config, Arc::new(SystemClock::start()));

    for seed in 0..12 {
        let parts = RequestParts {
            max_tokens: Some(60),
            sampling: SamplingParams {
                seed,
                ..SamplingParams::default()
            },
            ..RequestParts::new(vec![TokenId::new(0); 20])
        };
        let request = GenerationRequest::new(parts, engine.limits())?;
        let speaker = Arc::clone(&toy);
        let mut answer = Vec::new();
        let sink = move |event| match event {
            Event::Token(token) => answer.push(speaker.words()[token.token.index()].clone()),
            Event::Finished(_) => println!("request {seed}: … {} …", answer[..8].join(" ")),
            Event::Failed(message) => println!("request {seed} failed: {message}"),
            Event::Prompt(_) | Event::Vectors(_) | Event::Scores(_) => {
                println!("numbers were not asked for");
            }
        };
        engine.submit(request, Box::new(sink))?;
    }
    while !engine.is_idle() {
        engine.step();
    }
    println!("{:#?}", engine.snapshot().counters);
    Ok(())
}
