//! What a world's executor was asked to do, counted beside the engine.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use forthwith_core::clock::ManualClock;
use forthwith_core::executor::{Executor, KvGeometry, StepError, StepInput};
use forthwith_core::units::{BlockId, Tokens};

/// Of the steps that succeeded.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    pub(super) steps: u64,
    pub(super) tokens: u64,
    pub(super) copies: u64,
}

#[derive(Clone, Default)]
pub(super) struct Watch(Arc<Mutex<Seen>>);

impl Watch {
    pub(super) fn seen(&self) -> Seen {
        *self.0.lock().unwrap()
    }

    /// Counts what goes to an executor; with a clock, steps take a millisecond and one for each token.
    pub(super) fn over(
        &self,
        inner: Box<dyn Executor>,
        clock: Option<Arc<ManualClock>>,
    ) -> Box<dyn Executor> {
        Box::new(Watched {
            inner,
            clock,
            watch: self.clone(),
            copies: 0,
        })
    }
}

struct Watched {
    inner: Box<dyn Executor>,
    clock: Option<Arc<ManualClock>>,
    watch: Watch,
    /// For the step to come.
    copies: u64,
}

impl Executor for Watched {
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
        let tokens = input.tokens.len() as u64;
        if let Some(clock) = &self.clock {
            clock.advance(Duration::from_millis(1 + tokens));
        }
        let copies = std::mem::take(&mut self.copies);
        self.inner.step(input, logits)?;
        let mut seen = self.watch.0.lock().unwrap();
        seen.steps += 1;
        seen.tokens += tokens;
        seen.copies += copies;
        Ok(())
    }

    fn copy_block(&mut self, from: BlockId, to: BlockId) {
        self.copies += 1;
        self.inner.copy_block(from, to);
    }
}
