//! The only thread border: requests go in through a handle, events come out through sinks.
//!
//! The engine runs on one thread of its own. Between steps it takes in all messages; with nothing
//! to do it sleeps until one comes. Dropping a [`RequestHandle`] cancels its request.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use forthwith_core::request::{GenerationRequest, Limits};
use forthwith_core::units::{Blocks, SeqId, Tokens};

use crate::engine::{Door, Engine};
use crate::event::EventSink;
use crate::group::{Group, Submission};
use crate::heartbeat::EngineHealth;
use crate::report::EngineSnapshot;
use crate::scheduler::admission::QueueLoad;
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
    accepted_tokens: u64,
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
            accepted_tokens: engine.snapshot().counters.accepted_tokens,
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
        let mut inbox = lock(&self.0.inbox);
        if !inbox.open {
            return Err(SubmitError::ShuttingDown);
        }
        let outlook = lock(&door.published).outlook;
        let expected = door
            .queue_limits
            .check(self.load(&inbox), &outlook, &choices)?;
        let group = Group::new(choices, inbox.next_id, door.clock.now(), expected);
        let length = |leader: &Sequence| leader.length().get() as u64;
        let tokens: u64 = group.leaders.iter().map(length).sum();
        if inbox.sender.send(Message::Submit(group.leaders)).is_err() {
            return Err(SubmitError::Stopped);
        }
        inbox.next_id += group.ids.len() as u64;
        inbox.accepted += group.ids.len() as u64;
        inbox.accepted_tokens += tokens;
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
        let inbox = lock(&self.0.inbox);
        let load = self.load(&inbox);
        EngineSnapshot {
            waiting: load.requests,
            waiting_tokens: load.tokens,
            ..lock(&self.0.door.published).snapshot
        }
    }

    fn load(&self, inbox: &Inbox) -> QueueLoad {
        let seen = lock(&self.0.door.published).snapshot;
        let unseen = |accepted: u64, seen: u64| usize::try_from(accepted - seen).unwrap_or(0);
        QueueLoad {
            requests: seen.waiting + unseen(inbox.accepted, seen.counters.accepted),
            tokens: seen.waiting_tokens
                + Tokens::new(unseen(inbox.accepted_tokens, seen.counters.accepted_tokens)),
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
