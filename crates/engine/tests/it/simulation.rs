//! A seeded world of arrivals, cancels, faults and tiny caches, judged by a model that notices
//! every wrong, lost or mixed-up block.
//!
//! `FORTHWITH_SIMULATION_SEEDS` sets the number of worlds, `FORTHWITH_SIMULATION_FIRST` the first.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use forthwith_core::request::{GenerationRequest, Limits, RequestParts, SamplingParams, StopRules};
use forthwith_core::units::{Blocks, SeqId, TokenId, Tokens};
use forthwith_engine::{Counters, Engine, Event, FinishReason, SubmitError};
use forthwith_models::hash_model::HashModel;

use crate::faults::Fault;
use crate::world::{Log, Shape, run_dry};

const SEEDS: u64 = 400;

#[test]
fn every_world_ends_well() {
    let first = setting("FORTHWITH_SIMULATION_FIRST").unwrap_or(0);
    let seeds = setting("FORTHWITH_SIMULATION_SEEDS").unwrap_or(SEEDS);
    let mut totals = Totals::default();
    for seed in first..first + seeds {
        match catch_unwind(AssertUnwindSafe(|| World::new(seed).run())) {
            Ok(world) => totals.add(&world),
            Err(panic) => {
                eprintln!("FORTHWITH_SIMULATION_FIRST={seed} FORTHWITH_SIMULATION_SEEDS=1");
                resume_unwind(panic);
            }
        }
    }
    eprintln!("{seeds} worlds: {totals:?}");
    if seeds >= SEEDS {
        assert!(totals.finished > 0 && totals.cancelled > 0 && totals.failed > 0);
        assert!(totals.preemptions > 0 && totals.refused > 0);
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a test has no command line of its own"
)]
fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// What happened in all worlds, to see that the simulation reaches what it is meant to test.
#[derive(Debug, Default)]
struct Totals {
    finished: u64,
    cancelled: u64,
    failed: u64,
    refused: u64,
    preemptions: u64,
    steps: u64,
}

impl Totals {
    fn add(&mut self, world: &World) {
        let counters = world.engine.snapshot().counters;
        self.finished += counters.finished_end + counters.finished_length;
        self.cancelled += counters.cancelled;
        self.failed += counters.failed;
        self.refused += world.refused;
        self.preemptions += counters.preemptions;
        self.steps += counters.steps;
    }
}

/// A small generator for the choices of a world.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.roll() % (high - low + 1)
    }

    fn size(&mut self, low: usize, high: usize) -> usize {
        usize::try_from(self.between(low as u64, high as u64)).unwrap()
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.roll() % 100 < percent
    }

    fn share(&mut self) -> f32 {
        u16::try_from(self.roll() >> 48).map_or(0.0, f32::from) / 65_536.0
    }
}

struct Asked {
    id: SeqId,
    request: GenerationRequest,
    log: Log,
    /// Steps since it was submitted.
    age: u64,
    /// Steps in which it must end.
    bound: u64,
}

impl Asked {
    fn has_ended(&self) -> bool {
        !matches!(self.log.events().last(), None | Some(Event::Token(_)))
    }
}

/// Tokens that the request puts through the model at most.
fn longest_of(request: &GenerationRequest) -> usize {
    request.prompt().len() + request.max_tokens().get() - 1
}

struct World {
    dice: Dice,
    model: HashModel,
    shape: Shape,
    engine: Engine,
    fault: Fault,
    faults: bool,
    asked: Vec<Asked>,
    refused: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut dice = Dice(seed);
        let model = HashModel {
            vocab: u32::try_from(dice.between(2, 30)).unwrap(),
            seed,
        };
        let shape = Shape {
            block_size: dice.size(1, 6),
            blocks: dice.size(3, 20),
            max_running: dice.size(1, 8),
            max_step_tokens: dice.size(1, 24),
            max_waiting: dice.size(1, 40),
        };
        let fault = Fault::default();
        let engine = shape.engine(fault.wrap(shape.executor(model)));
        Self {
            faults: dice.chance(20),
            dice,
            model,
            shape,
            engine,
            fault,
            asked: Vec::new(),
            refused: 0,
        }
    }

    fn run(mut self) -> Self {
        for _ in 0..self.dice.size(20, 120) {
            match self.dice.roll() % 10 {
                0..3 => self.arrive(),
                3 if self.dice.chance(60) => self.cancel(),
                _ => self.step(),
            }
        }
        while !self.engine.is_idle() {
            self.step();
        }
        self.judge();
        self
    }

    fn arrive(&mut self) {
        let request = self.any_request();
        let longest = longest_of(&request);
        let bound = self.bound(longest);
        let fits = Tokens::new(longest).blocks_needed(Tokens::new(self.shape.block_size))
            <= Blocks::new(self.shape.blocks);
        let waiting = self.engine.snapshot().waiting;
        let log = Log::default();
        match self.engine.submit(request.clone(), log.sink()) {
            Ok(id) => {
                assert!(fits && waiting < self.shape.max_waiting);
                self.asked.push(Asked {
                    id,
                    request,
                    log,
                    age: 0,
                    bound,
                });
            }
            Err(error) => {
                self.refused += 1;
                match error {
                    SubmitError::TooLarge { .. } => assert!(!fits),
                    SubmitError::Busy { .. } => assert!(waiting >= self.shape.max_waiting),
                    other => panic!("{other}"),
                }
            }
        }
    }

    fn any_request(&mut self) -> GenerationRequest {
        let dice = &mut self.dice;
        let capacity = self.shape.blocks * self.shape.block_size;
        let length = if dice.chance(20) {
            dice.size(1, capacity.min(40))
        } else {
            dice.size(1, 12)
        };
        // Some prompts come again, as in life.
        let mut words = Dice(dice.between(0, 20));
        let vocab = u64::from(self.model.vocab);
        let token = |value: u64| TokenId::new(u32::try_from(value % vocab).unwrap());
        let prompt = (0..length).map(|_| token(words.roll())).collect();
        let greedy = dice.chance(40);
        let sampling = SamplingParams {
            temperature: if greedy { 0.0 } else { 0.1 + dice.share() },
            top_k: u32::try_from(dice.between(0, 20)).unwrap(),
            top_p: if dice.chance(50) { 1.0 } else { dice.share() },
            min_p: if dice.chance(70) {
                0.0
            } else {
                dice.share() * 0.3
            },
            repetition_penalty: if dice.chance(70) {
                1.0
            } else {
                1.0 + dice.share()
            },
            frequency_penalty: if dice.chance(70) { 0.0 } else { dice.share() },
            presence_penalty: if dice.chance(70) { 0.0 } else { dice.share() },
            seed: dice.between(0, 5),
            choice: u32::try_from(dice.between(0, 2)).unwrap(),
        };
        let stop = StopRules {
            end_tokens: vec![token(dice.roll())],
            stop_token_ids: if dice.chance(20) {
                vec![token(dice.roll())]
            } else {
                Vec::new()
            },
            ignore_end: dice.chance(50),
        };
        let parts = RequestParts {
            prompt,
            max_tokens: Some(dice.between(1, 60)),
            sampling,
            stop,
            logprobs: dice
                .chance(20)
                .then(|| u32::try_from(dice.between(0, 5)).unwrap()),
        };
        let limits = Limits {
            vocab: TokenId::new(self.model.vocab).index(),
            context: Tokens::new(1000),
        };
        GenerationRequest::new(parts, limits).unwrap()
    }

    fn cancel(&mut self) {
        if self.asked.is_empty() {
            return;
        }
        let index = self.dice.size(0, self.asked.len() - 1);
        self.engine.cancel(self.asked[index].id);
        assert!(self.asked[index].has_ended(), "a cancel ends at once");
    }

    fn step(&mut self) {
        if self.faults && self.dice.chance(5) {
            self.fault.set(Fault::ERROR);
        }
        let before = self.engine.snapshot();
        let idle = self.engine.is_idle();
        let report = self.engine.step();
        self.fault.set(0);
        let after = self.engine.snapshot();
        assert!(report.tokens <= self.shape.max_step_tokens);
        assert!(after.running <= self.shape.max_running);
        assert!(after.running <= self.shape.max_step_tokens);
        assert_eq!(
            report.tokens == 0,
            idle,
            "a step moves whenever there is work"
        );
        assert!(report.sampled <= report.segments);
        let preempted = after.counters.preemptions - before.counters.preemptions;
        assert_eq!(report.preempted as u64, preempted);
        self.check_ages();
    }

    /// The first of the running moves in every step and is never sent away. So each of those who
    /// were there before takes at most as many steps as it has tokens, twice if it was sent away
    /// before it became the first.
    fn bound(&self, longest: usize) -> u64 {
        let ahead = self.asked.iter().filter(|asked| !asked.has_ended());
        let tokens = longest + ahead.map(|asked| longest_of(&asked.request)).sum::<usize>();
        // A fault makes others compute anew; there are few.
        let repeats = if self.faults { 10 } else { 2 };
        tokens as u64 * repeats
    }

    fn check_ages(&mut self) {
        for asked in self.asked.iter_mut().filter(|asked| !asked.has_ended()) {
            asked.age += 1;
            assert!(asked.age <= asked.bound, "no end after {} steps", asked.age);
        }
    }

    /// Every answer is what it would be alone, and the counters count what was sent.
    fn judge(&self) {
        let snapshot = self.engine.snapshot();
        assert_eq!(snapshot.kv_used, Blocks::ZERO);
        let mut expected = Counters {
            accepted: self.asked.len() as u64,
            // Not told by events.
            prompt_tokens: snapshot.counters.prompt_tokens,
            preemptions: snapshot.counters.preemptions,
            steps: snapshot.counters.steps,
            step_tokens: snapshot.counters.step_tokens,
            faults: snapshot.counters.faults,
            ..Counters::default()
        };
        for asked in &self.asked {
            let events = asked.log.events();
            let (last, tokens) = events.split_last().expect("every request ends");
            expected.generated_tokens += tokens.len() as u64;
            *match last {
                Event::Finished(finished) => match finished.reason {
                    FinishReason::Cancelled => &mut expected.cancelled,
                    FinishReason::End(_) => &mut expected.finished_end,
                    FinishReason::Length => &mut expected.finished_length,
                },
                Event::Failed(_) => &mut expected.failed,
                Event::Token(_) => panic!("the last event ends the request"),
            } += 1;
            self.judge_answer(&asked.request, &events);
        }
        assert_eq!(snapshot.counters, expected);
        assert!(self.faults || expected.failed == 0);
    }

    fn judge_answer(&self, request: &GenerationRequest, events: &[Event]) {
        let whole = self.alone(request).events();
        let (last, tokens) = events.split_last().expect("every request ends");
        match last {
            Event::Finished(finished) if finished.reason != FinishReason::Cancelled => {
                assert_eq!(events, whole, "the same answer as alone");
            }
            _ => assert_eq!(tokens, &whole[..tokens.len()], "the same tokens as alone"),
        }
    }

    /// The same request in an engine of its own with room for everything.
    fn alone(&self, request: &GenerationRequest) -> Log {
        let shape = Shape {
            block_size: 7,
            blocks: 200,
            max_running: 1,
            max_step_tokens: 1000,
            max_waiting: 1,
        };
        let mut engine = shape.engine(shape.executor(self.model));
        let log = Log::default();
        engine.submit(request.clone(), log.sink()).unwrap();
        run_dry(&mut engine);
        if Self::is_plain_greedy(request) {
            let tokens = log.tokens();
            let expected = self.model.continue_greedily(request.prompt(), tokens.len());
            assert_eq!(tokens, expected, "greedy says what the model says");
        }
        log
    }

    fn is_plain_greedy(request: &GenerationRequest) -> bool {
        let sampling = request.sampling();
        sampling.is_greedy()
            && sampling.frequency_penalty.abs() + sampling.presence_penalty.abs() < 1e-9
            && (sampling.repetition_penalty - 1.0).abs() < 1e-9
    }
}
