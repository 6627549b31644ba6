//! Lets a story happen and judges every moment of it.

use std::sync::Arc;
use std::time::Duration;

use forthwith_core::clock::{Clock, ManualClock};
use forthwith_core::request::{GenerationRequest, Limits, RequestParts};
use forthwith_core::units::{Blocks, SeqId, TokenId, Tokens};
use forthwith_engine::{Engine, StepReport, SubmitError};

use super::story::{Deed, Story};
use super::watch::Watch;
use crate::faults::Fault;
use crate::world::Log;

/// What happened, to see that the simulation reaches what it is meant to test.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) finished: u64,
    pub(super) cancelled: u64,
    pub(super) failed: u64,
    pub(super) refused: u64,
    pub(super) too_slow: u64,
    pub(super) preemptions: u64,
    pub(super) displacements: u64,
    pub(super) cached_tokens: u64,
    pub(super) evictions: u64,
    pub(super) expired: u64,
    pub(super) timed_out: u64,
    pub(super) copied_blocks: u64,
    pub(super) steps: u64,
}

impl Tally {
    pub(super) fn add(&mut self, other: &Self) {
        self.finished += other.finished;
        self.cancelled += other.cancelled;
        self.failed += other.failed;
        self.refused += other.refused;
        self.too_slow += other.too_slow;
        self.preemptions += other.preemptions;
        self.displacements += other.displacements;
        self.cached_tokens += other.cached_tokens;
        self.evictions += other.evictions;
        self.expired += other.expired;
        self.timed_out += other.timed_out;
        self.copied_blocks += other.copied_blocks;
        self.steps += other.steps;
    }
}

pub(super) struct Asked {
    id: SeqId,
    pub(super) request: GenerationRequest,
    pub(super) log: Log,
    /// Whether others came with it.
    pub(super) grouped: bool,
    arrived: Duration,
    /// Steps since it was submitted.
    age: u64,
    /// Tokens at most of those who were there when it came, itself included.
    ahead: usize,
}

impl Asked {
    pub(super) fn may_expire(&self) -> bool {
        self.request.scheduling().max_queue_time.is_some() || self.may_time_out()
    }

    pub(super) fn may_time_out(&self) -> bool {
        self.request.scheduling().max_time.is_some()
    }

    fn has_ended(&self) -> bool {
        self.log.has_ended()
    }

    /// When all its time is over.
    fn limit(&self) -> Option<Duration> {
        Some(self.arrived + self.request.scheduling().max_time?)
    }
}

/// Prompt tokens of requests that come together; neighbours with one prompt count once.
fn groups_of(requests: &[GenerationRequest]) -> u64 {
    let alike = |a: &GenerationRequest, b: &GenerationRequest| {
        let key = |r: &GenerationRequest| {
            let salt = r.cache_salt().map(<[u8]>::to_vec);
            (salt, r.scheduling(), r.prompt_logprobs())
        };
        !a.bypasses_cache() && !b.bypasses_cache() && a.prompt() == b.prompt() && key(a) == key(b)
    };
    let groups = requests.chunk_by(alike);
    groups.map(|group| group[0].prompt().len() as u64).sum()
}

/// Tokens that the request puts through the model at most.
fn longest_of(request: &GenerationRequest) -> usize {
    request.prompt().len() + request.max_tokens().get().max(1) - 1
}

pub(super) struct World<'a> {
    pub(super) story: &'a Story,
    pub(super) engine: Engine,
    pub(super) watch: Watch,
    pub(super) asked: Vec<Asked>,
    pub(super) accepted_tokens: u64,
    /// What the reports of all steps say.
    pub(super) sums: StepReport,
    /// Steps that failed.
    pub(super) faults: u64,
    fault: Fault,
    refused: u64,
    too_slow: u64,
    clock: Arc<ManualClock>,
}

/// Plays a story to its end.
///
/// # Panics
/// If anything is not as it should be.
pub(super) fn play(story: &Story) -> Tally {
    let fault = Fault::default();
    let executor = fault.wrap(story.shape.executor(story.model));
    let clock = Arc::new(ManualClock::default());
    let watch = Watch::default();
    let steps_take = story.timed.then(|| Arc::clone(&clock));
    let executor = watch.over(executor, steps_take);
    let mut world = World {
        engine: Engine::new(executor, story.shape.config(), Arc::clone(&clock) as _),
        clock,
        story,
        watch,
        sums: StepReport::default(),
        faults: 0,
        fault,
        asked: Vec::new(),
        refused: 0,
        too_slow: 0,
        accepted_tokens: 0,
    };
    for deed in &story.deeds {
        world.happen(deed);
        world.engine.check_invariants();
    }
    world.drain();
    world.judge();
    world.tally()
}

impl World<'_> {
    fn happen(&mut self, deed: &Deed) {
        match deed {
            Deed::Arrive(parts) => self.arrive(parts),
            Deed::Cancel(whom) => self.cancel(*whom),
            Deed::CancelAll => self.cancel_all(),
            Deed::Step => self.step(),
            Deed::Drain => self.drain(),
            Deed::Wait(time) => self.clock.advance(*time),
            Deed::Fault => {
                self.fault.set(Fault::ERROR);
                self.step();
                self.fault.set(0);
            }
        }
    }

    fn arrive(&mut self, parts: &[RequestParts]) {
        let limits = Limits {
            vocab: TokenId::new(self.story.model.vocab).index(),
            context: Tokens::new(1000),
        };
        let shape = self.story.shape;
        let check = |parts: &RequestParts| GenerationRequest::new(parts.clone(), limits).unwrap();
        let requests: Vec<GenerationRequest> = parts.iter().map(check).collect();
        let needed = |request: &GenerationRequest| {
            Tokens::new(longest_of(request)).blocks_needed(Tokens::new(shape.block_size))
        };
        let fits = requests
            .iter()
            .all(|r| needed(r) <= Blocks::new(shape.blocks));
        let ahead = self.asked.iter().filter(|asked| !asked.has_ended());
        let ahead = ahead.map(|asked| &asked.request).chain(&requests);
        let ahead: usize = ahead.map(longest_of).sum();
        let before = self.engine.snapshot();
        let longest = requests.iter().map(|request| request.prompt().len());
        let tokens = before.waiting_tokens.get() + longest.max().unwrap();
        let has_room = before.waiting + requests.len() <= shape.max_waiting
            && (before.waiting == 0 || tokens <= shape.max_waiting_tokens);
        let logs: Vec<Log> = requests.iter().map(|_| Log::default()).collect();
        let submissions = requests.iter().zip(&logs);
        let submissions = submissions.map(|(request, log)| (request.clone(), log.sink()));
        match self.engine.submit_group(submissions.collect()) {
            Ok(ids) => {
                assert!(fits && has_room);
                self.accepted_tokens += groups_of(&requests);
                let came = ids.into_iter().zip(requests).zip(logs);
                self.asked.extend(came.map(|((id, request), log)| Asked {
                    id,
                    request,
                    log,
                    arrived: self.clock.now(),
                    grouped: parts.len() > 1,
                    age: 0,
                    ahead,
                }));
            }
            Err(error) => {
                self.refused += requests.len() as u64;
                match error {
                    SubmitError::TooLarge { .. } => assert!(!fits),
                    SubmitError::Busy { .. } => assert!(!has_room),
                    SubmitError::TooSlow { expected, limit } => {
                        assert!(fits && has_room && expected > limit);
                        self.too_slow += 1;
                    }
                    other => panic!("{other}"),
                }
            }
        }
    }

    fn cancel(&mut self, whom: usize) {
        if self.asked.is_empty() {
            return;
        }
        let asked = &self.asked[whom % self.asked.len()];
        self.engine.cancel(asked.id);
        assert!(asked.has_ended(), "a cancel ends at once");
    }

    fn cancel_all(&mut self) {
        self.engine.cancel_all();
        assert!(self.engine.is_idle() && self.asked.iter().all(Asked::has_ended));
    }

    /// Takes no more until all that came have ended, and has given back everything then.
    fn drain(&mut self) {
        while !self.engine.is_idle() {
            self.step();
        }
        let snapshot = self.engine.snapshot();
        assert!(self.asked.iter().all(Asked::has_ended));
        assert_eq!(snapshot.kv_used, Blocks::ZERO);
        assert_eq!((snapshot.running, snapshot.waiting), (0, 0));
    }

    fn step(&mut self) {
        let shape = self.story.shape;
        let before = self.engine.snapshot();
        let (idle, began) = (self.engine.is_idle(), self.clock.now());
        let report = self.engine.step();
        let after = self.engine.snapshot();
        assert!(report.tokens <= shape.max_step_tokens);
        assert!(after.running <= shape.max_running.min(shape.max_step_tokens));
        assert!(after.kv_used + after.kv_cached <= after.kv_total);
        let moves = report.tokens > 0 || report.expired > 0;
        assert_eq!(moves, !idle, "a step moves whenever there is work");
        let [over_before, over_after] =
            [before, after].map(|s| (s.counters.expired, s.counters.timed_out));
        let expired = over_after.0 - over_before.0;
        let timed_out = over_after.1 - over_before.1;
        assert!((expired..=expired + timed_out).contains(&(report.expired as u64)));
        assert!(report.sampled <= report.segments);
        let preempted = after.counters.preemptions - before.counters.preemptions;
        assert_eq!(report.preempted as u64, preempted);
        let displaced = after.counters.displacements - before.counters.displacements;
        assert_eq!(report.displaced as u64, displaced);
        assert!(displaced == 0 || self.story.ranks, "equals do not make way");
        self.sums.preempted += report.preempted;
        self.sums.displaced += report.displaced;
        self.faults += u64::from(report.faulted);
        if !cfg!(debug_assertions) {
            self.engine.check_invariants();
        }
        self.check_ages(began);
        let live = self.asked.iter().filter(|asked| !asked.has_ended());
        assert_eq!(live.count(), after.running + after.waiting);
    }

    /// The first of the running moves in every step and is never sent away. So each of those who
    /// were there before takes at most as many steps as it has tokens, twice if it was sent away
    /// before it became the first. Where requests differ in more than the time when they came,
    /// later ones may go first, and each of better priority may send the first one away. Of a group,
    /// those who wait for the prompt may also wait for those who began beside it.
    fn check_ages(&mut self, began: Duration) {
        // A fault makes others compute anew; there are few.
        let repeats = if self.faults > 0 { 10 } else { 2 };
        let all: usize = self
            .asked
            .iter()
            .map(|asked| longest_of(&asked.request))
            .sum();
        let overtakes = self.story.ranks.then_some(all * (1 + self.asked.len()));
        for asked in self.asked.iter_mut().filter(|asked| !asked.has_ended()) {
            asked.age += 1;
            let ahead = if asked.grouped { all } else { asked.ahead };
            let bound = (overtakes.unwrap_or(ahead) * repeats) as u64;
            assert!(asked.age <= bound, "no end after {} steps", asked.age);
            let is_over = asked.limit().is_some_and(|limit| limit <= began);
            assert!(!is_over, "its time was over before the step");
        }
    }

    fn tally(&self) -> Tally {
        let counters = self.engine.snapshot().counters;
        Tally {
            finished: counters.finished_end + counters.finished_length,
            cancelled: counters.cancelled,
            failed: counters.failed,
            refused: self.refused,
            too_slow: self.too_slow,
            preemptions: counters.preemptions,
            displacements: counters.displacements,
            cached_tokens: counters.cached_tokens,
            evictions: counters.evictions,
            expired: counters.expired,
            timed_out: counters.timed_out,
            copied_blocks: counters.copied_blocks,
            steps: counters.steps,
        }
    }
}
