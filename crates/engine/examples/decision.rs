//! What the engine itself costs: steps of a model that costs nothing.
//!
//! `cargo run --release -p forthwith-engine --example decision`. Every step is planned, sampled from
//! two logits a row, committed and reported; requests are of 64 tenants and three priorities. Times
//! are of whole steps, so they bound what a decision costs from above.
#![expect(clippy::print_stdout, reason = "an example talks to its reader")]

use std::sync::Arc;
use std::time::Duration;

use forthwith_core::clock::{Clock, SystemClock};
use forthwith_core::executor::{Executor, KvGeometry, StepError, StepInput};
use forthwith_core::request::{GenerationRequest, RequestParts, SamplingParams, Scheduling};
use forthwith_core::units::{BlockId, Blocks, Bytes, TenantId, TokenId, Tokens};
use forthwith_engine::{Engine, EngineConfig};

/// A model of two tokens that always prefers the first.
struct Nothing;

impl Executor for Nothing {
    fn vocab(&self) -> usize {
        2
    }

    fn kv_geometry(&self) -> KvGeometry {
        KvGeometry {
            block_size: Tokens::new(32),
            block_bytes: Bytes::new(1),
            blocks: Blocks::new(1 << 16),
        }
    }

    fn max_step_tokens(&self) -> Tokens {
        Tokens::new(1024)
    }

    fn step(&mut self, input: &StepInput<'_>, logits: &mut Vec<f32>) -> Result<(), StepError> {
        logits.clear();
        let row = |_| [1.0, 0.0];
        logits.extend(input.logit_rows.iter().flat_map(row));
        Ok(())
    }

    fn copy_block(&mut self, _: BlockId, _: BlockId) {}
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("running  waiting  tokens an answer     median        p99");
    for (running, waiting, answer) in [
        (64, 0, 4000),
        (128, 0, 4000),
        (256, 0, 4000),
        (256, 4096, 4000),
        // A few end and a few join in every step.
        (256, 4096, 64),
    ] {
        let times = measure(running, waiting, answer)?;
        let at = |percent: usize| times[(times.len() - 1) * percent / 100];
        println!(
            "{running:7}  {waiting:7}  {answer:16}  {:7.1} us {:7.1} us",
            at(50).as_secs_f64() * 1e6,
            at(99).as_secs_f64() * 1e6
        );
    }
    Ok(())
}

/// Times of steps while this many run and wait, sorted.
fn measure(
    running: usize,
    waiting: usize,
    answer: u64,
) -> Result<Vec<Duration>, Box<dyn std::error::Error>> {
    let clock = Arc::new(SystemClock::start());
    let config = EngineConfig {
        max_running: running,
        max_step_tokens: Tokens::new(1024),
        context: Tokens::new(8192),
        max_waiting: usize::MAX,
        max_waiting_tokens: Tokens::new(usize::MAX),
        ..EngineConfig::default()
    };
    let mut engine = Engine::new(Box::new(Nothing), config, Arc::clone(&clock) as _);
    let mut count = 0_u64;
    let mut submit = |engine: &mut Engine| -> Result<(), Box<dyn std::error::Error>> {
        count += 1;
        let prompt = (0..40).map(|bit| TokenId::new(u32::from(count >> bit & 1 == 1)));
        let parts = RequestParts {
            // The first ones do not all end at once.
            max_tokens: Some(answer / 2 + count * 37 % answer),
            sampling: SamplingParams::greedy(),
            scheduling: Scheduling {
                priority: i32::try_from(count % 3)?,
                tenant: TenantId::new(count % 64),
                ..Scheduling::default()
            },
            ..RequestParts::new(prompt.collect())
        };
        let request = GenerationRequest::new(parts, engine.limits())?;
        engine.submit(request, Box::new(|_| ()))?;
        Ok(())
    };
    for _ in 0..running + waiting {
        submit(&mut engine)?;
    }
    for _ in 0..running {
        engine.step();
    }
    let mut times = Vec::new();
    for _ in 0..1500 {
        while engine.snapshot().waiting < waiting {
            submit(&mut engine)?;
        }
        let start = clock.now();
        engine.step();
        times.push(clock.now().saturating_sub(start));
    }
    times.sort_unstable();
    Ok(times)
}
