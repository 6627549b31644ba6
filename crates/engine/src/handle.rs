//! The only thread border: requests go in through a handle, events come out through sinks.
//!
//! The engine runs on one thread of its own. Between steps it takes in all messages; with nothing
//! to do it sleeps until one comes. Dropping a [`RequestHandle`] cancels its request.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use forthwith_core::program::Output;
use forthwith_core::request::{GenerationRequest, Limits};
use forthwith_core::units::{Blocks, SeqId, Tokens};

use crate::engine::{Door, Engine, lock};
use crate::event::EventSink;
use crate::group::{Group, Submission};
use crate::heartbeat::EngineHealth;
use crate::outlook::Load;
use crate::report::EngineSnapshot;
use crate::scheduler::admission::{QueueLoad, expect};
use crate::sequence::Sequence;

/// A request was refused at the door; nothing of it was computed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// Too many requests wait already.
    #[error(
        "{waiting} requests with {waiting_tokens} prompt tokens wait already, the limits are \
         {limit} and {token_limit}; try again in {} s", retry_after.as_secs().max(1)
    )]
    Busy {
        /// Requests that wait.
        waiting: usize,
        /// How many may.
        limit: usize,
        /// Prompt tokens that wait.
        waiting_tokens: Tokens,
        /// How many may.
        token_limit: Tokens,
        /// When there is likely to be room.
        retry_after: Duration,
    },
    /// The first token is expected later than the request can use it.
    #[error(
        "the first token is expected after {} ms, the request allows {} ms; try again when less is \
         waiting, or allow more", expected.as_millis(), limit.as_millis()
    )]
    TooSlow {
        /// When it is expected.
        expected: Duration,
        /// When it would be too late.
        limit: Duration,
    },
    /// The model does not answer with what the request wants.
    #[error("the model answers with vectors or with tokens, not with what the request wants")]
    WrongKind,
    /// The engine takes no more requests.
    #[error("the engine is shutting down and takes no more requests")]
    ShuttingDown,
    /// Even alone the request would not fit the KV cache.
    #[error(
        "a prompt of {prompt} and an answer of up to {max_tokens} tokens need {needed} cache \
         blocks; the whole cache has {blocks}, room for {capacity} tokens; ask for fewer tokens or \
         give the cache more memory"
    )]
    TooLarge {
        /// Tokens of the prompt.
        prompt: Tokens,
        /// The most tokens of the answer.
        max_tokens: Tokens,
        /// Blocks that both need.
        needed: Blocks,
        /// Blocks of the cache.
        blocks: Blocks,
        /// Tokens that the cache holds.
        capacity: Tokens,
    },
    /// The engine's thread has ended unexpectedly.
    #[error("the engine has stopped; restart the server")]
    Stopped,
}

impl SubmitError {
    /// A stable word for metrics and the wire.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Busy { .. } => "busy",
            Self::TooSlow { .. } => "too_slow",
            Self::WrongKind => "wrong_kind",
            Self::ShuttingDown => "shutting_down",
            Self::TooLarge { .. } => "too_large",
            Self::Stopped => "stopped",
        }
    }
}

enum Message {
    Submit(Vec<Sequence>),
    Cancel(SeqId),
    Shutdown { drain: bool },
}

/// What submitters share; under one lock, so that nothing can slip in behind a shutdown.
struct Inbox {
    sender: Sender<Message>,
    open: bool,
    next_id: u64,
    accepted: u64,
    /// What was accepted and may not have been seen by the engine, in order.
    unseen: VecDeque<Unseen>,
}

/// A group whose prompt is computed once, on its way to the engine.
struct Unseen {
    /// How many requests had been accepted after it.
    accepted: u64,
    priority: i32,
    prompt: usize,
    load: Load,
}

impl Inbox {
    /// Forgets what the engine has seen.
    fn look(&mut self, seen: &EngineSnapshot) {
        let is_seen = |first: &Unseen| first.accepted <= seen.counters.accepted;
        while self.unseen.front().is_some_and(is_seen) {
            self.unseen.pop_front();
        }
    }

    fn accept(&mut self, leader: &Sequence) {
        let load = leader.load();
        self.accepted += load.requests as u64;
        self.next_id += load.requests as u64;
        self.unseen.push_back(Unseen {
            accepted: self.accepted,
            priority: leader.rank().priority,
            prompt: leader.length().get(),
            load,
        });
    }

    /// What waits, seen or not.
    fn load(&self, seen: &EngineSnapshot) -> QueueLoad {
        let unseen = self.unseen.iter();
        unseen.fold(
            QueueLoad {
                requests: seen.waiting,
                tokens: seen.waiting_tokens,
            },
            |all, unseen| QueueLoad {
                requests: all.requests + unseen.load.requests,
                tokens: all.tokens + Tokens::new(unseen.prompt),
            },
        )
    }

    /// What the engine has not seen and may serve before a priority's next.
    fn unseen_before(&self, priority: i32) -> Load {
        let mut before = Load::default();
        let unseen = self.unseen.iter();
        unseen
            .filter(|unseen| unseen.priority <= priority)
            .for_each(|unseen| before.add(unseen.load));
        before
    }
}

struct Shared {
    door: Door,
    inbox: Mutex<Inbox>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The way in to an engine on its own thread; clones lead to the same engine.
#[derive(Clone)]
pub struct EngineHandle(Arc<Shared>);

impl EngineHandle {
    /// Moves the engine to a thread of its own.
    ///
    /// # Panics
    /// If the system refuses another thread.
    pub fn spawn(engine: Engine) -> Self {
        let (sender, receiver) = channel();
        let door = engine.door();
        let inbox = Inbox {
            sender,
            open: true,
            next_id: door.next_id,
            accepted: engine.snapshot().counters.accepted,
            unseen: VecDeque::new(),
        };
        let thread = std::thread::Builder::new()
            .name("forthwith-engine".into())
            .spawn(move || serve(engine, &receiver))
            .expect("the system gives the engine a thread");
        Self(Arc::new(Shared {
            door,
            inbox: Mutex::new(inbox),
            thread: Mutex::new(Some(thread)),
        }))
    }

    /// What requests are checked against.
    pub fn limits(&self) -> Limits {
        self.0.door.limits
    }

    /// What the model answers with.
    pub fn output(&self) -> Output {
        self.0.door.output
    }

    /// The numbers in one vector or one row of logits.
    pub fn output_width(&self) -> usize {
        match self.0.door.output {
            Output::Logits => self.0.door.limits.vocab,
            Output::Vectors { width, .. } => width,
        }
    }

    /// Hands a request to the engine; its events go to `sink`, on the engine's thread.
    ///
    /// # Errors
    /// The request was refused; nothing of it was computed.
    pub fn submit(
        &self,
        request: GenerationRequest,
        sink: Box<dyn EventSink>,
    ) -> Result<RequestHandle, SubmitError> {
        let mut handles = self.submit_group(vec![(request, sink)])?;
        handles.pop().ok_or(SubmitError::Stopped)
    }

    /// Hands several requests to the engine, all or none. Those with the same prompt are computed
    /// from one prefill, and answer as if each had come alone.
    ///
    /// # Errors
    /// They were refused; nothing of them was computed.
    pub fn submit_group(
        &self,
        choices: Vec<Submission>,
    ) -> Result<Vec<RequestHandle>, SubmitError> {
        let door = &self.0.door;
        door.capacity.check_all(&choices)?;
        let foreseen = door.preview.of_all(&choices);
        let mut inbox = lock(&self.0.inbox);
        if !inbox.open {
            return Err(SubmitError::ShuttingDown);
        }
        let published = lock(&door.published);
        inbox.look(&published.snapshot);
        let (load, outlook) = (inbox.load(&published.snapshot), &published.outlook);
        door.queue_limits.check(load, outlook, &choices)?;
        let unseen = |priority| inbox.unseen_before(priority);
        let expectation = expect(&choices, foreseen, outlook, unseen)?;
        drop(published);
        let group = Group::new(choices, expectation, inbox.next_id, door.clock.now());
        for leader in &group.leaders {
            inbox.accept(leader);
        }
        if inbox.sender.send(Message::Submit(group.leaders)).is_err() {
            return Err(SubmitError::Stopped);
        }
        let handle = |id| RequestHandle {
            id,
            sender: inbox.sender.clone(),
        };
        Ok(group.ids.into_iter().map(handle).collect())
    }

    /// Whether the engine answers. Asking costs the engine nothing.
    pub fn health(&self) -> EngineHealth {
        let door = &self.0.door;
        let ended = |thread: &JoinHandle<()>| thread.is_finished();
        if lock(&self.0.thread).as_ref().is_none_or(ended) {
            return EngineHealth::Stopped;
        }
        match door.heartbeat.running_for(door.clock.now()) {
            Some(time) if time > door.stuck_after => EngineHealth::Stuck(time),
            _ => EngineHealth::Ready,
        }
    }

    /// Where the engine stands; requests that it has not seen yet count as waiting.
    pub fn snapshot(&self) -> EngineSnapshot {
        let mut inbox = lock(&self.0.inbox);
        let seen = lock(&self.0.door.published).snapshot;
        inbox.look(&seen);
        let load = inbox.load(&seen);
        EngineSnapshot {
            waiting: load.requests,
            waiting_tokens: load.tokens,
            ..seen
        }
    }

    /// Stops accepting requests. With `drain` those already accepted are finished, otherwise they
    /// are cancelled within a step; then the thread ends. A drain may be cut short by a second
    /// call. Does not wait; [`EngineHandle::join`] does.
    pub fn shutdown(&self, drain: bool) {
        let mut inbox = lock(&self.0.inbox);
        inbox.open = false;
        // A thread that has ended already needs no message.
        let _ = inbox.sender.send(Message::Shutdown { drain });
    }

    /// Waits until the engine's thread has ended; call [`EngineHandle::shutdown`] first. Returns
    /// at once to all but the first caller.
    pub fn join(&self) {
        let thread = lock(&self.0.thread).take();
        if let Some(thread) = thread {
            // A panic there was reported by the panic hook.
            let _ = thread.join();
        }
    }
}

/// The owner's end of a request; dropping it cancels the request if it has not ended.
#[must_use = "dropping the handle cancels the request"]
pub struct RequestHandle {
    id: SeqId,
    sender: Sender<Message>,
}

impl RequestHandle {
    /// The request's sequence.
    pub fn id(&self) -> SeqId {
        self.id
    }
}

impl Drop for RequestHandle {
    fn drop(&mut self) {
        // An engine that is gone has cancelled everything.
        let _ = self.sender.send(Message::Cancel(self.id));
    }
}

/// The engine thread: ends when all handles are gone or after a shutdown, with nothing left to do.
fn serve(mut engine: Engine, inbox: &Receiver<Message>) {
    let mut open = true;
    loop {
        if engine.is_idle() {
            if !open {
                return;
            }
            match inbox.recv() {
                Ok(message) => open &= deliver(&mut engine, message),
                Err(_) => return,
            }
        }
        while let Ok(message) = inbox.try_recv() {
            open &= deliver(&mut engine, message);
        }
        if !engine.is_idle() {
            engine.step();
        }
    }
}

/// Passes one message on; false if it closes the inbox.
fn deliver(engine: &mut Engine, message: Message) -> bool {
    match message {
        Message::Submit(sequences) => {
            for sequence in sequences {
                engine.enqueue(sequence);
            }
        }
        Message::Cancel(id) => engine.cancel(id),
        Message::Shutdown { drain } => {
            if !drain {
                engine.cancel_all();
            }
            return false;
        }
    }
    true
}
