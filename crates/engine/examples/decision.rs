//! What the engine itself costs: steps of a model that costs nothing.
//!
//! `cargo run --release -p forthwith-engine --example decision`. Requests are of 64 tenants and three
//! priorities. A decision is everything but the model and the sampler: plan, batch, commit, what other
//! threads are shown. A step has the sampler too, which here takes the larger of two logits. The same
//! story is played several times and the shortest time of each step counts, so that a busy neighbour
//! does not.
#![expect(clippy::print_stdout, reason = "an example talks to its reader")]

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use forthwith_core::clock::{Clock, SystemClock};
use forthwith_core::executor::{Executor, KvGeometry, StepError, StepInput};
use forthwith_core::request::{GenerationRequest, RequestParts, SamplingParams, Scheduling};
use forthwith_core::units::{BlockId, Blocks, Bytes, TenantId, TokenId, Tokens};
use forthwith_engine::{Engine, EngineConfig};

/// A debug build only shows that the example runs.
const PLAYED: usize = if cfg!(debug_assertions) { 1 } else { 9 };
const STEPS: usize = 1500;

/// So many that all begin in one step, and fill a block in the same steps.
const STEP_TOKENS: Tokens = Tokens::new(1 << 14);

/// The system's clock, which remembers when it was last asked: by the engine, before it commits.
struct LastAsked {
    clock: SystemClock,
    last: Mutex<Duration>,
}

impl LastAsked {
    fn last(&self) -> Duration {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock for LastAsked {
    fn now(&self) -> Duration {
        let now = self.clock.now();
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = now;
        now
    }
}

/// A model of two tokens that always prefers the first, and notes when it was asked.
struct Nothing {
    clock: Arc<LastAsked>,
    begun: Arc<Mutex<Duration>>,
}

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
        STEP_TOKENS
    }

    fn step(&mut self, input: &StepInput<'_>, logits: &mut Vec<f32>) -> Result<(), StepError> {
        *self.begun.lock().unwrap_or_else(PoisonError::into_inner) = self.clock.now();
        logits.clear();
        let row = |_| [1.0, 0.0];
        logits.extend(input.output_rows.iter().flat_map(row));
        Ok(())
    }

    fn copy_block(&mut self, _: BlockId, _: BlockId) {}
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("                                        decision                step");
    println!("running  waiting  tokens an answer     median        p99     median        p99");
    for (running, waiting, answer) in [
        (64, 0, 4000),
        (64, 4096, 4000),
        (128, 0, 4000),
        (128, 4096, 4000),
        (256, 0, 4000),
        (256, 4096, 4000),
        // A few end and a few join in every step.
        (256, 4096, 64),
    ] {
        let mut shortest = [(); 2].map(|()| vec![Duration::MAX; STEPS]);
        for _ in 0..PLAYED {
            let times = measure(running, waiting, answer)?;
            for (shortest, times) in shortest.iter_mut().zip(times) {
                for (shortest, time) in shortest.iter_mut().zip(times) {
                    *shortest = time.min(*shortest);
                }
            }
        }
        print!("{running:7}  {waiting:7}  {answer:16}");
        for times in &mut shortest {
            times.sort_unstable();
            for percent in [50, 99] {
                let time = times[(STEPS - 1) * percent / 100];
                print!("  {:6.1} us", time.as_secs_f64() * 1e6);
            }
        }
        println!();
    }
    Ok(())
}

fn request(
    count: u64,
    answer: u64,
    engine: &Engine,
) -> Result<GenerationRequest, Box<dyn std::error::Error>> {
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
    Ok(GenerationRequest::new(parts, engine.limits())?)
}

/// Times of decisions and of whole steps while this many run and wait.
fn measure(
    running: usize,
    waiting: usize,
    answer: u64,
) -> Result<[Vec<Duration>; 2], Box<dyn std::error::Error>> {
    let clock = Arc::new(LastAsked {
        clock: SystemClock::start(),
        last: Mutex::default(),
    });
    let begun = Arc::new(Mutex::new(Duration::ZERO));
    let config = EngineConfig {
        max_running: running,
        max_step_tokens: STEP_TOKENS,
        context: Tokens::new(8192),
        max_waiting: usize::MAX,
        max_waiting_tokens: Tokens::new(usize::MAX),
        ..EngineConfig::default()
    };
    let model = Nothing {
        clock: Arc::clone(&clock),
        begun: Arc::clone(&begun),
    };
    let mut engine = Engine::new(Box::new(model), config, Arc::clone(&clock) as _);
    let mut count = 0_u64;
    let mut submit = |engine: &mut Engine| -> Result<(), Box<dyn std::error::Error>> {
        count += 1;
        let request = request(count, answer, engine)?;
        engine.submit(request, Box::new(|_| ()))?;
        Ok(())
    };
    for _ in 0..running + waiting {
        submit(&mut engine)?;
    }
    for _ in 0..running {
        engine.step();
    }
    let mut times = [(); 2].map(|()| Vec::with_capacity(STEPS));
    for _ in 0..STEPS {
        while engine.snapshot().waiting < waiting {
            submit(&mut engine)?;
        }
        let start = clock.now();
        engine.step();
        let chosen = clock.last();
        let end = clock.now();
        let begun = *begun.lock().unwrap_or_else(PoisonError::into_inner);
        times[0].push(end.saturating_sub(chosen) + begun.saturating_sub(start));
        times[1].push(end.saturating_sub(start));
    }
    Ok(times)
}
