//! The engine on its own thread.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use forthwith_core::clock::ManualClock;
use forthwith_core::executor::{Executor, KvGeometry, StepError, StepInput};
use forthwith_core::units::{BlockId, Blocks, TokenId, Tokens};
use forthwith_engine::{
    Engine, EngineHandle, EngineHealth, Event, EventSink, FinishReason, SubmitError,
};

use crate::world::{MODEL, Shape, greedy, tokens};

/// An executor that runs a step only when the test lets it.
struct Gated {
    inner: Box<dyn Executor>,
    entered: Sender<()>,
    gate: Receiver<()>,
}

impl Executor for Gated {
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
        let _ = self.entered.send(());
        // A test that has dropped its end lets everything through.
        let _ = self.gate.recv();
        self.inner.step(input, logits)
    }

    fn copy_block(&mut self, from: BlockId, to: BlockId) {
        self.inner.copy_block(from, to);
    }
}

/// A handle, a receiver that hears when a step begins, and a sender that lets it go on.
fn gated(shape: Shape) -> (EngineHandle, Receiver<()>, Sender<()>) {
    let (entered, begins) = channel();
    let (go, gate) = channel();
    let inner = shape.executor(MODEL);
    let executor = Box::new(Gated {
        inner,
        entered,
        gate,
    });
    (EngineHandle::spawn(shape.engine(executor)), begins, go)
}

fn free(shape: Shape) -> EngineHandle {
    EngineHandle::spawn(shape.engine(shape.executor(MODEL)))
}

fn sink() -> (Box<dyn EventSink>, Receiver<Event>) {
    let (sender, receiver) = channel();
    let send = move |event| {
        let _ = sender.send(event);
    };
    (Box::new(send), receiver)
}

fn token_ids(events: &[Event]) -> Vec<TokenId> {
    let token = |event: &Event| match event {
        Event::Token(token) => Some(token.token),
        _ => None,
    };
    events.iter().filter_map(token).collect()
}

fn reason(events: &[Event]) -> Option<FinishReason> {
    match events.last()? {
        Event::Finished(finished) => Some(finished.reason),
        _ => None,
    }
}

#[test]
fn many_threads_get_their_own_answers() {
    let handle = free(Shape {
        blocks: 20,
        ..Shape::default()
    });
    std::thread::scope(|scope| {
        for id in 0..8 {
            let handle = handle.clone();
            scope.spawn(move || {
                let (sink, events) = sink();
                let request = handle.submit(greedy(&[id, 5], 25), sink).unwrap();
                let events: Vec<Event> = events.iter().collect();
                assert_eq!(
                    token_ids(&events),
                    MODEL.continue_greedily(&tokens(&[id, 5]), 25)
                );
                assert_eq!(reason(&events), Some(FinishReason::Length));
                drop(request);
            });
        }
    });
    let snapshot = handle.snapshot();
    assert_eq!((snapshot.running, snapshot.waiting), (0, 0));
    assert_eq!(snapshot.counters.generated_tokens, 200);
    handle.shutdown(true);
    handle.join();
}

#[test]
fn dropping_the_handle_cancels_within_a_step() {
    let shape = Shape {
        max_running: 2,
        ..Shape::default()
    };
    let (handle, begins, go) = gated(shape);
    let (decoding_sink, decoding_events) = sink();
    let (prefilling_sink, prefilling_events) = sink();
    let (waiting_sink, waiting_events) = sink();
    let decoding = handle.submit(greedy(&[1], 90), decoding_sink).unwrap();
    begins.recv().unwrap();
    let prefilling = handle
        .submit(greedy(&[2; 60], 90), prefilling_sink)
        .unwrap();
    let waiting = handle.submit(greedy(&[3], 90), waiting_sink).unwrap();
    go.send(()).unwrap();
    begins.recv().unwrap();
    drop((decoding, prefilling, waiting));
    go.send(()).unwrap();
    for events in [decoding_events, prefilling_events, waiting_events] {
        let events: Vec<Event> = events.iter().collect();
        assert_eq!(reason(&events), Some(FinishReason::Cancelled));
    }
    handle.shutdown(true);
    handle.join();
    let snapshot = handle.snapshot();
    assert_eq!(snapshot.kv_used, Blocks::ZERO);
    assert_eq!(snapshot.counters.cancelled, 3);
    assert_eq!(snapshot.counters.steps, 2, "nothing runs after the cancel");
}

#[test]
fn refuses_more_than_may_wait() {
    let shape = Shape {
        max_running: 1,
        max_waiting: 1,
        ..Shape::default()
    };
    let (handle, begins, go) = gated(shape);
    let (first_sink, first) = sink();
    let first_request = handle.submit(greedy(&[1], 2), first_sink).unwrap();
    begins.recv().unwrap();
    assert_eq!(handle.snapshot().running, 1);
    let (second_sink, second) = sink();
    let second_request = handle.submit(greedy(&[2], 2), second_sink).unwrap();
    assert_eq!(handle.snapshot().waiting, 1);
    let error = handle.submit(greedy(&[3], 2), sink().0).err();
    assert_eq!(
        error,
        Some(SubmitError::Busy {
            waiting: 1,
            limit: 1,
            waiting_tokens: Tokens::new(1),
            token_limit: Tokens::new(100_000),
            retry_after: Duration::from_secs(1),
        })
    );
    drop(go);
    assert_eq!(first.iter().count(), 3);
    assert_eq!(second.iter().count(), 3);
    drop((first_request, second_request));
}

#[test]
fn a_request_that_never_fits_is_refused_at_the_door() {
    let handle = free(Shape {
        blocks: 2,
        ..Shape::default()
    });
    let error = handle.submit(greedy(&[1; 8], 2), sink().0).err().unwrap();
    assert_eq!(error.kind(), "too_large");
    assert_eq!(handle.snapshot().counters.accepted, 0);
}

#[test]
fn a_drain_finishes_what_was_accepted() {
    let (handle, begins, go) = gated(Shape {
        max_running: 1,
        ..Shape::default()
    });
    let (first_sink, first) = sink();
    let (second_sink, second) = sink();
    let requests = (
        handle.submit(greedy(&[1], 5), first_sink).unwrap(),
        handle.submit(greedy(&[2], 5), second_sink).unwrap(),
    );
    begins.recv().unwrap();
    handle.shutdown(true);
    let refused = handle.submit(greedy(&[3], 5), sink().0).err();
    assert_eq!(refused, Some(SubmitError::ShuttingDown));
    drop(go);
    handle.join();
    for events in [first, second] {
        let events: Vec<Event> = events.iter().collect();
        assert_eq!(reason(&events), Some(FinishReason::Length));
        assert_eq!(events.len(), 6);
    }
    drop(requests);
}

#[test]
fn a_drain_can_be_cut_short() {
    let (handle, begins, go) = gated(Shape::default());
    let (sink, events) = sink();
    let request = handle.submit(greedy(&[1], 200), sink).unwrap();
    begins.recv().unwrap();
    handle.shutdown(true);
    handle.shutdown(false);
    drop(go);
    handle.join();
    let events: Vec<Event> = events.iter().collect();
    assert_eq!(reason(&events), Some(FinishReason::Cancelled));
    assert_eq!(events.len(), 2, "the step that ran, then the end");
    drop(request);
}

#[test]
fn the_thread_ends_with_its_last_handle() {
    let (handle, begins, go) = gated(Shape::default());
    drop(handle);
    assert!(begins.recv().is_err(), "the engine is gone");
    drop(go);
}

#[test]
fn an_owner_that_stops_listening_does_not_disturb() {
    let handle = free(Shape::default());
    let (deaf_sink, deaf) = sink();
    drop(deaf);
    let deaf_request = handle.submit(greedy(&[1], 40), deaf_sink).unwrap();
    let (sink, events) = sink();
    let request = handle.submit(greedy(&[2], 20), sink).unwrap();
    let events: Vec<Event> = events.iter().collect();
    assert_eq!(
        token_ids(&events),
        MODEL.continue_greedily(&tokens(&[2]), 20)
    );
    drop((deaf_request, request));
}

#[test]
fn a_stuck_step_is_noticed_and_forgiven() {
    let shape = Shape::default();
    let clock = Arc::new(ManualClock::default());
    let (entered, begins) = channel();
    let (go, gate) = channel();
    let executor = Box::new(Gated {
        inner: shape.executor(MODEL),
        entered,
        gate,
    });
    let engine = Engine::new(executor, shape.config(), Arc::clone(&clock) as _);
    let handle = EngineHandle::spawn(engine);
    clock.advance(Duration::from_secs(1000));
    assert_eq!(handle.health(), EngineHealth::Ready, "idle is not stuck");
    let (sink, events) = sink();
    let request = handle.submit(greedy(&[1], 2), sink).unwrap();
    begins.recv().unwrap();
    clock.advance(Duration::from_mins(1));
    assert_eq!(handle.health(), EngineHealth::Ready);
    clock.advance(Duration::from_secs(1));
    let stuck = EngineHealth::Stuck(Duration::from_secs(61));
    assert_eq!(handle.health(), stuck);
    drop(go);
    assert_eq!(events.iter().count(), 3);
    assert_eq!(handle.health(), EngineHealth::Ready);
    drop(request);
    handle.shutdown(true);
    handle.join();
    assert_eq!(handle.health(), EngineHealth::Stopped);
}
