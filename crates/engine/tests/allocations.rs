//! A step allocates nothing in steady state: the engine over the CPU executor, with real weights.
//!
//! The allocator counts for the whole process, so this binary holds one test and nothing runs
//! beside it. What a request needs when it comes, joins and ends is no part of the promise, but it
//! is the same for each.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::alloc::System;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use forthwith_core::clock::SystemClock;
use forthwith_core::request::{GenerationRequest, RequestParts, SamplingParams};
use forthwith_core::units::{Blocks, TokenId, Tokens};
use forthwith_cpu::{Cpu, CpuConfig, IsaChoice, KvFormat};
use forthwith_engine::{Engine, EngineConfig, Event};
use forthwith_models::testing::{tiny_gemma3, tiny_llama};
use forthwith_weights::WeightFile;
use forthwith_weights::testing::GgufWriter;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static MEMORY: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Calls of the allocator that gave memory.
fn allocations(work: impl FnOnce()) -> usize {
    let region = Region::new(MEMORY);
    work();
    let change = region.change();
    change.allocations + change.reallocations
}

/// An engine whose owners only count their tokens.
struct World {
    engine: Engine,
    tokens: Arc<AtomicUsize>,
    submitted: usize,
}

impl World {
    fn new(model: &GgufWriter, kv_format: KvFormat, blocks: usize) -> Self {
        let file = WeightFile::from_bytes("tiny.gguf".as_ref(), model.to_bytes()).unwrap();
        let program = Arc::new(forthwith_models::build(&file).unwrap());
        let config = CpuConfig {
            threads: 2,
            isa: IsaChoice::best(),
            kv_format,
            kv_blocks: Blocks::new(blocks),
            max_step_tokens: Tokens::new(48),
            context: Tokens::new(256),
        };
        let executor = Cpu::load(program, &file, &config, &|_, _| {}).unwrap();
        let config = EngineConfig {
            max_running: 24,
            context: Tokens::new(256),
            ..EngineConfig::default()
        };
        let clock = Arc::new(SystemClock::start());
        Self {
            engine: Engine::new(Box::new(executor), config, clock),
            tokens: Arc::default(),
            submitted: 0,
        }
    }

    /// A prompt that no other request has, in any of its blocks.
    fn prompt(&mut self, length: usize) -> Vec<TokenId> {
        self.submitted += 1;
        let id = |at: usize| u32::try_from((at + 7) * self.submitted % 300).unwrap();
        (0..length).map(id).map(TokenId::new).collect()
    }

    fn submit(&mut self, parts: RequestParts) {
        let request = GenerationRequest::new(parts, self.engine.limits()).unwrap();
        let tokens = Arc::clone(&self.tokens);
        let count = move |event| {
            if let Event::Token(_) = event {
                tokens.fetch_add(1, Ordering::Relaxed);
            }
        };
        self.engine.submit(request, Box::new(count)).unwrap();
    }

    /// The allocations of so many steps, without those of the checks that debug builds make.
    fn step(&mut self, count: usize) -> usize {
        let mut sum = 0;
        for _ in 0..count {
            sum += allocations(|| {
                self.engine.step();
            });
            if cfg!(debug_assertions) {
                sum -= allocations(|| self.engine.check_invariants());
            }
        }
        sum
    }

    /// Steps until everybody has joined.
    fn join(&mut self) {
        while self.engine.snapshot().waiting > 0 {
            self.step(1);
        }
    }

    fn tokens(&self) -> usize {
        self.tokens.load(Ordering::Relaxed)
    }
}

/// All ways to choose a token.
fn samplings() -> Vec<SamplingParams> {
    let drawn = SamplingParams {
        seed: 1,
        temperature: 0.9,
        ..SamplingParams::default()
    };
    let changed = |change: fn(&mut SamplingParams)| {
        let mut sampling = drawn.clone();
        change(&mut sampling);
        sampling
    };
    vec![
        SamplingParams::greedy(),
        changed(|_| ()),
        changed(|sampling| sampling.top_k = 200),
        changed(|sampling| sampling.top_p = 0.9),
        changed(|sampling| sampling.min_p = 0.1),
        changed(|sampling| sampling.repetition_penalty = 1.2),
        changed(|sampling| sampling.filters.typical_p = 0.9),
    ]
}

fn parts(prompt: Vec<TokenId>, sampling: SamplingParams, max_tokens: u64) -> RequestParts {
    RequestParts {
        max_tokens: Some(max_tokens),
        sampling,
        ..RequestParts::new(prompt)
    }
}

#[test]
fn a_step_allocates_nothing_in_steady_state() {
    for (model, kv_format) in [
        (tiny_llama(1), KvFormat::F16),
        (tiny_gemma3(1), KvFormat::Q8_0),
    ] {
        for running in [1, 6, 20] {
            answers_allocate_nothing(World::new(&model, kv_format, 200), running);
        }
        prompts_beside_answers_allocate_nothing(World::new(&model, kv_format, 200));
    }
    logprobs_cost_what_they_carry_away();
    every_request_costs_the_same();
}

/// Through several blocks, each of which is taken, filled and made known. Beside the first answers
/// prompts are still computed.
fn answers_allocate_nothing(mut world: World, running: usize) {
    for sampling in samplings().into_iter().cycle().take(running) {
        let prompt = world.prompt(20);
        world.submit(parts(prompt, sampling, 220));
    }
    world.join();
    let (tokens, blocks) = (world.tokens(), world.engine.snapshot().kv_used.get());
    assert_eq!(world.step(100), 0, "{running} answers");
    assert_eq!(world.tokens() - tokens, 100 * running);
    let taken = world.engine.snapshot().kv_used.get() - blocks;
    assert!(taken >= 3 * running, "{taken} blocks");
}

/// Prompts of several pieces, until they are answered as well.
fn prompts_beside_answers_allocate_nothing(mut world: World) {
    for sampling in samplings() {
        let prompt = world.prompt(20);
        world.submit(parts(prompt, sampling, 220));
    }
    world.join();
    world.step(10);
    for length in [10, 10, 190] {
        let prompt = world.prompt(length);
        world.submit(parts(prompt, SamplingParams::greedy(), 50));
    }
    world.join();
    let before = world.engine.snapshot().counters;
    assert_eq!(world.step(30), 0, "prompts beside answers");
    let after = world.engine.snapshot().counters;
    let prompt_tokens = after.prompt_tokens - before.prompt_tokens;
    assert!(prompt_tokens > 100, "{prompt_tokens} tokens of prompts");
    assert_eq!(world.engine.snapshot().running, samplings().len() + 3);
}

/// The list of likely tokens is a part of the event, which its owner keeps.
fn logprobs_cost_what_they_carry_away() {
    for (logprobs, for_each) in [(0, 0), (5, 1)] {
        let mut world = World::new(&tiny_llama(1), KvFormat::F16, 200);
        let prompt = world.prompt(20);
        world.submit(RequestParts {
            logprobs: Some(logprobs),
            ..parts(prompt, SamplingParams::greedy(), 220)
        });
        world.step(5);
        assert_eq!(
            world.step(100),
            100 * for_each,
            "{logprobs} log-probabilities"
        );
    }
}

/// Each evicts blocks of others and publishes its own. The tables of what is known are as full here
/// as they get, where the traces of what was removed would make one grow that leaves them no room.
fn every_request_costs_the_same() {
    let mut world = World::new(&tiny_llama(1), KvFormat::F16, 28);
    let mut costs = Vec::new();
    for _ in 0..100 {
        let prompt = world.prompt(100);
        let request = parts(prompt, SamplingParams::greedy(), 4);
        let arrival = allocations(|| world.submit(request));
        costs.push(arrival + world.step(6));
        assert!(world.engine.is_idle());
    }
    let evictions = world.engine.snapshot().counters.evictions;
    assert!(evictions > 250, "{evictions} evictions");
    let steady = &costs[2..];
    let (least, most) = (steady.iter().min().unwrap(), steady.iter().max().unwrap());
    eprintln!("a request costs {least} to {most} allocations in all");
    assert_eq!(least, most, "{steady:?}");
    assert!(*most <= 20, "{most} allocations for a request");
}
