//! A step is a fault boundary: its requests fail, the engine lives on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use forthwith_core::executor::{Executor, KvGeometry, StepError, StepInput};
use forthwith_core::units::{BlockId, Blocks, Tokens};
use forthwith_engine::{Engine, Event, FinishReason};

use crate::world::{Log, MODEL, Shape, greedy, run_dry, tokens};

/// What goes wrong in the next step.
#[derive(Clone, Default)]
pub(crate) struct Fault(Arc<AtomicU8>);

impl Fault {
    pub(crate) const ERROR: u8 = 1;
    pub(crate) const PANIC: u8 = 2;
    pub(crate) const NAN: u8 = 3;
    pub(crate) const SHORT: u8 = 4;

    pub(crate) fn set(&self, kind: u8) {
        self.0.store(kind, Ordering::Relaxed);
    }

    pub(crate) fn wrap(&self, inner: Box<dyn Executor>) -> Box<dyn Executor> {
        Box::new(Faulty {
            inner,
            fault: self.clone(),
        })
    }
}

struct Faulty {
    inner: Box<dyn Executor>,
    fault: Fault,
}

impl Executor for Faulty {
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
        let outcome = self.inner.step(input, logits);
        match self.fault.0.swap(0, Ordering::Relaxed) {
            Fault::ERROR => return Err(StepError::Device("out of order".into())),
            Fault::PANIC => panic!("a fault that the test injects"),
            Fault::NAN => logits[3] = f32::NAN,
            Fault::SHORT => logits.clear(),
            _ => {}
        }
        outcome
    }

    fn copy_block(&mut self, from: BlockId, to: BlockId) {
        self.inner.copy_block(from, to);
    }
}

/// Two requests run and one waits when the fault strikes.
fn struck_by(kind: u8) -> (Engine, [Log; 3]) {
    let shape = Shape {
        max_running: 2,
        ..Shape::default()
    };
    let fault = Fault::default();
    let mut engine = shape.engine(fault.wrap(shape.executor(MODEL)));
    let logs = [Log::default(), Log::default(), Log::default()];
    for (id, log) in (0..).zip(&logs) {
        engine.submit(greedy(&[id, 7], 10), log.sink()).unwrap();
    }
    engine.step();
    fault.set(kind);
    let report = engine.step();
    assert_eq!(report.faulted, kind != Fault::NAN);
    (engine, logs)
}

#[test]
fn a_step_that_fails_ends_its_requests_only() {
    for (kind, words) in [
        (Fault::ERROR, "out of order"),
        (Fault::PANIC, "internal error"),
        (Fault::SHORT, "0 numbers instead of 100"),
    ] {
        let (mut engine, logs) = struck_by(kind);
        for log in &logs[..2] {
            assert_eq!(log.tokens().len(), 1);
            assert!(
                log.failure().unwrap().contains(words),
                "{:?}",
                log.failure()
            );
        }
        assert_eq!(engine.snapshot().kv_used, Blocks::ZERO);
        run_dry(&mut engine);
        assert_eq!(
            logs[2].tokens(),
            MODEL.continue_greedily(&tokens(&[2, 7]), 10)
        );
        let counters = engine.snapshot().counters;
        assert_eq!((counters.failed, counters.faults), (2, 1));
    }
}

#[test]
fn damaged_logits_fail_one_request() {
    let (mut engine, logs) = struck_by(Fault::NAN);
    let message = logs[0].failure().unwrap();
    assert!(message.contains("NaN for token 3"), "{message}");
    run_dry(&mut engine);
    for (id, log) in (1..).zip(&logs[1..]) {
        assert_eq!(log.tokens(), MODEL.continue_greedily(&tokens(&[id, 7]), 10));
    }
}

#[test]
fn a_sink_that_panics_ends_its_request_only() {
    let shape = Shape::default();
    let mut engine = shape.engine(shape.executor(MODEL));
    let mut heard = 0;
    let bad = move |_: Event| {
        heard += 1;
        assert!(heard < 3, "a fault that the test injects");
    };
    let good = Log::default();
    engine.submit(greedy(&[1], 10), Box::new(bad)).unwrap();
    engine.submit(greedy(&[2], 10), good.sink()).unwrap();
    run_dry(&mut engine);
    assert_eq!(good.tokens(), MODEL.continue_greedily(&tokens(&[2]), 10));
    assert_eq!(good.reason(), Some(FinishReason::Length));
    let counters = engine.snapshot().counters;
    assert_eq!((counters.cancelled, counters.finished_length), (1, 1));
    assert_eq!(counters.generated_tokens, 13);
    assert_eq!(engine.snapshot().kv_used, Blocks::ZERO);
}
