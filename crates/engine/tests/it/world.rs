//! What the tests share: a hash model, requests, and sinks that remember.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use forthwith_core::clock::ManualClock;
use forthwith_core::executor::{Executor, KvGeometry, StepError, StepInput};
use forthwith_core::request::{GenerationRequest, Limits, RequestParts, SamplingParams};
use forthwith_core::units::{BlockId, Blocks, TenantId, TokenId, Tokens};
use forthwith_engine::{
    Engine, EngineConfig, Event, EventSink, FinishReason, Finished, PrefixCacheConfig, TargetGap,
};
use forthwith_models::hash_model::{HashCapacity, HashModel};

pub(crate) const MODEL: HashModel = HashModel { vocab: 50, seed: 1 };

/// The share of tenant 1; all others have one.
pub(crate) const WEIGHT_OF_ONE: usize = 3;

/// The shape of an engine under test.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) block_size: usize,
    pub(crate) blocks: usize,
    pub(crate) max_running: usize,
    pub(crate) max_step_tokens: usize,
    pub(crate) max_waiting: usize,
    pub(crate) max_waiting_tokens: usize,
    /// Whether sequences share blocks.
    pub(crate) shares: bool,
    pub(crate) hash_bits: u32,
    pub(crate) target_gap: TargetGap,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            block_size: 4,
            blocks: 64,
            max_running: 8,
            max_step_tokens: 16,
            max_waiting: 100,
            max_waiting_tokens: 100_000,
            shares: true,
            hash_bits: 128,
            target_gap: TargetGap::Off,
        }
    }
}

impl Shape {
    pub(crate) fn executor(self, model: HashModel) -> Box<dyn Executor> {
        Box::new(model.executor(HashCapacity {
            block_size: Tokens::new(self.block_size),
            blocks: Blocks::new(self.blocks),
            max_step_tokens: Tokens::new(self.max_step_tokens),
        }))
    }

    pub(crate) fn config(self) -> EngineConfig {
        EngineConfig {
            max_running: self.max_running,
            max_step_tokens: Tokens::new(self.max_step_tokens),
            context: Tokens::new(100_000),
            max_waiting: self.max_waiting,
            max_waiting_tokens: Tokens::new(self.max_waiting_tokens),
            tenant_weights: vec![(TenantId::new(1), 3)],
            target_gap: self.target_gap,
            least_piece: Tokens::new(self.block_size),
            watermark_percent: 1,
            stuck_after: Duration::from_mins(1),
            prefix_cache: PrefixCacheConfig {
                enabled: self.shares,
                hash_bits: self.hash_bits,
                ..PrefixCacheConfig::default()
            },
        }
    }

    pub(crate) fn engine(self, executor: Box<dyn Executor>) -> Engine {
        let clock = Arc::new(ManualClock::default());
        Engine::new(executor, self.config(), clock)
    }
}

/// Takes time for a step, by the clock that the engine reads: a millisecond and one for each token.
pub(crate) struct Timed {
    pub(crate) inner: Box<dyn Executor>,
    pub(crate) clock: Arc<ManualClock>,
}

impl Executor for Timed {
    fn vocab(&self) -> usize {
        self.inner.vocab()
    }

    fn kv_geometry(&self) -> KvGeometry {
        self.inner.kv_geometry()
    }

    fn max_step_tokens(&self) -> Tokens {
        self.inner.max_step_tokens()
    }

    fn step(&mut self, input: &StepInput<'_>, logits: &mut Vec<f32>) -> Result<(), StepError> {
        let tokens = u64::try_from(input.tokens.len()).unwrap();
        self.clock.advance(Duration::from_millis(1 + tokens));
        self.inner.step(input, logits)
    }

    fn copy_block(&mut self, from: BlockId, to: BlockId) {
        self.inner.copy_block(from, to);
    }
}

/// The events of one request so far.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<Event>>>);

impl Log {
    pub(crate) fn sink(&self) -> Box<dyn EventSink> {
        let events = Arc::clone(&self.0);
        Box::new(move |event| events.lock().unwrap().push(event))
    }

    pub(crate) fn events(&self) -> Vec<Event> {
        self.0.lock().unwrap().clone()
    }

    pub(crate) fn tokens(&self) -> Vec<TokenId> {
        let token = |event: &Event| match event {
            Event::Token(token) => Some(token.token),
            _ => None,
        };
        self.0.lock().unwrap().iter().filter_map(token).collect()
    }

    pub(crate) fn has_ended(&self) -> bool {
        !matches!(
            self.0.lock().unwrap().last(),
            None | Some(Event::Token(_) | Event::Prompt(_))
        )
    }

    pub(crate) fn finished(&self) -> Option<Finished> {
        match self.events().last()? {
            Event::Finished(finished) => Some(*finished),
            _ => None,
        }
    }

    pub(crate) fn reason(&self) -> Option<FinishReason> {
        self.finished().map(|finished| finished.reason)
    }

    pub(crate) fn failure(&self) -> Option<String> {
        match self.events().pop()? {
            Event::Failed(failure) => Some(failure.message),
            _ => None,
        }
    }
}

pub(crate) fn tokens(ids: &[u32]) -> Vec<TokenId> {
    ids.iter().copied().map(TokenId::new).collect()
}

/// Parts of a greedy request without end tokens.
pub(crate) fn parts(prompt: &[u32], max_tokens: u64) -> RequestParts {
    RequestParts {
        max_tokens: Some(max_tokens),
        sampling: SamplingParams::greedy(),
        ..RequestParts::new(tokens(prompt))
    }
}

/// Checks parts against limits far wider than any engine here.
pub(crate) fn request(parts: RequestParts) -> GenerationRequest {
    let limits = Limits {
        vocab: 1000,
        context: Tokens::new(100_000),
    };
    GenerationRequest::new(parts, limits).unwrap()
}

pub(crate) fn greedy(prompt: &[u32], max_tokens: u64) -> GenerationRequest {
    request(parts(prompt, max_tokens))
}

/// Steps until nothing is left to do.
pub(crate) fn run_dry(engine: &mut Engine) {
    for _ in 0..100_000 {
        if engine.is_idle() {
            return;
        }
        engine.step();
    }
    panic!(
        "the engine does not come to an end: {:?}",
        engine.snapshot()
    );
}
