//! The heartbeat: plan, run, sample, commit, report.
//!
//! One step is synchronous and deterministic: the same requests give the same tokens, whatever the
//! order and whatever the clock says. The clock stamps events; it ends requests that waited too long,
//! and teaches the cost model, which sizes the pieces of prompts if the operator sets a target. A step is also the fault boundary: if the model or the engine
//! fails inside it, the requests of that step fail and the engine goes on.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forthwith_core::clock::Clock;
use forthwith_core::executor::{Executor, StepError};
use forthwith_core::program::Output;
use forthwith_core::request::{GenerationRequest, Limits};
use forthwith_core::units::{SeqId, TenantId, Tokens};

use crate::batch::Batch;
use crate::cost::CostModel;
use crate::event::EventSink;
use crate::gap::TargetGap;
use crate::group::{Group, Submission};
use crate::guide::Ahead;
use crate::handle::SubmitError;
use crate::heartbeat::Heartbeat;
use crate::kv::{PrefixCacheConfig, Preview};
use crate::outlook::{Load, Outlook};
use crate::report::{EngineSnapshot, StepReport, StepTimes};
use crate::sampling::{self, Row, SampleError, SharedSampler};
use crate::scheduler::Scheduler;
use crate::scheduler::admission::{Capacity, QueueLimits, QueueLoad, expect};
use crate::scheduler::plan::StepPlan;
use crate::sequence::Sequence;

/// What the engine may do at once; everything is decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    /// Sequences that run at the same time; never more than a step has tokens.
    pub max_running: usize,
    /// Tokens of one step, prompts and answers together; at most what the executor carries.
    pub max_step_tokens: Tokens,
    /// Prompt and answer of one request together; at most what the KV cache holds.
    pub context: Tokens,
    /// Requests that may wait; more are refused.
    pub max_waiting: usize,
    /// Prompt tokens that may wait; beyond it requests are refused unless nobody waits.
    pub max_waiting_tokens: Tokens,
    /// Blocks that a newcomer leaves free while others run, in percent of all.
    pub watermark_percent: usize,
    /// How far apart the tokens of an answer should come at most: the pieces of prompts that steps
    /// carry beside answers are cut to it.
    pub target_gap: TargetGap,
    /// Prompt tokens that a step may carry beside answers however far apart they come, because very
    /// small pieces take much longer in all.
    pub least_piece: Tokens,
    /// A step that takes longer is stuck: the engine is not ready until it ends.
    pub stuck_after: Duration,
    /// The shares of tenants that do not have a share of 1.
    pub tenant_weights: Vec<(TenantId, u32)>,
    /// Whether and how requests share what they have in common.
    pub prefix_cache: PrefixCacheConfig,
}

impl Default for EngineConfig {
    /// A small engine: 16 sequences at once, 512 tokens a step, 4,096 a request, 256 that wait.
    fn default() -> Self {
        Self {
            max_running: 16,
            max_step_tokens: Tokens::new(512),
            context: Tokens::new(4096),
            max_waiting: 256,
            max_waiting_tokens: Tokens::new(1 << 20),
            watermark_percent: 1,
            target_gap: TargetGap::Off,
            least_piece: Tokens::new(32),
            stuck_after: Duration::from_mins(1),
            tenant_weights: Vec::new(),
            prefix_cache: PrefixCacheConfig::default(),
        }
    }
}

/// Generates tokens for many requests at once.
pub struct Engine {
    executor: Box<dyn Executor>,
    scheduler: Scheduler,
    sampler: SharedSampler,
    plan: StepPlan,
    batch: Batch,
    choices: Vec<Result<sampling::Choice, SampleError>>,
    ahead: Ahead,
    output: Output,
    limits: Limits,
    capacity: Capacity,
    queue_limits: QueueLimits,
    cost: CostModel,
    /// When the step began.
    began: Duration,
    step_times: StepTimes,
    heartbeat: Arc<Heartbeat>,
    stuck_after: Duration,
    clock: Arc<dyn Clock>,
    published: Arc<Mutex<Published>>,
    next_id: u64,
}

/// What other threads see of the engine.
#[derive(Debug)]
pub(crate) struct Published {
    pub(crate) snapshot: EngineSnapshot,
    pub(crate) outlook: Outlook,
}

impl Engine {
    /// An engine that owns the executor and all its cache blocks.
    pub fn new(
        executor: Box<dyn Executor>,
        mut config: EngineConfig,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let geometry = executor.kv_geometry();
        config.max_step_tokens = config.max_step_tokens.min(executor.max_step_tokens());
        let capacity = Capacity {
            blocks: geometry.blocks,
            block_size: geometry.block_size,
            vectors: executor.output() != Output::Logits,
        };
        let output = executor.output();
        let mut limits = Limits {
            vocab: executor.vocab(),
            context: config.context.min(capacity.tokens()),
        };
        if let Output::Vectors { whole: true, .. } = output {
            limits.context = limits.context.min(config.max_step_tokens);
        }
        let queue_limits = QueueLimits {
            requests: config.max_waiting,
            tokens: config.max_waiting_tokens,
        };
        let stuck_after = config.stuck_after;
        let step_tokens = config.max_step_tokens.get();
        let sequences = config.max_running.min(step_tokens);
        let mut outlook = Outlook::new(&config.tenant_weights);
        let scheduler = Scheduler::new(geometry, output, config);
        let cost = CostModel::new();
        scheduler.tell_running(&mut outlook, cost.rates());
        let published = Arc::new(Mutex::new(Published {
            snapshot: snapshot(&scheduler, &cost, StepTimes::default()),
            outlook,
        }));
        Self {
            sampler: SharedSampler::new(executor.as_ref(), sequences),
            scheduler,
            plan: StepPlan::default(),
            batch: Batch::new(step_tokens, sequences, executor.output_width()),
            output,
            executor,
            choices: Vec::with_capacity(sequences),
            ahead: Ahead::default(),
            limits,
            capacity,
            queue_limits,
            cost,
            began: Duration::ZERO,
            step_times: StepTimes::default(),
            heartbeat: Arc::default(),
            stuck_after,
            clock,
            published,
            next_id: 0,
        }
    }

    /// What requests are checked against. The context is never larger than the KV cache.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// What the model answers with.
    pub fn output(&self) -> Output {
        self.output
    }

    /// Takes in a request; its events go to `sink` until one ends it.
    ///
    /// # Errors
    /// [`SubmitError::TooLarge`] if the cache could never hold it, [`SubmitError::Busy`] if too
    /// many requests wait.
    pub fn submit(
        &mut self,
        request: GenerationRequest,
        sink: Box<dyn EventSink>,
    ) -> Result<SeqId, SubmitError> {
        let ids = self.submit_group(vec![(request, sink)])?;
        Ok(ids[0])
    }

    /// Takes in several requests at once, all or none. Those with the same prompt are computed
    /// from one prefill, and answer as if each had come alone.
    ///
    /// # Errors
    /// As [`Engine::submit`].
    pub fn submit_group(&mut self, choices: Vec<Submission>) -> Result<Vec<SeqId>, SubmitError> {
        self.capacity.check_all(&choices)?;
        let load = QueueLoad {
            requests: self.scheduler.waiting(),
            tokens: Tokens::new(self.scheduler.waiting_tokens()),
        };
        let foreseen = self.scheduler.pool().index().preview().of_all(&choices);
        let published = lock(&self.published);
        let outlook = &published.outlook;
        self.queue_limits.check(load, outlook, &choices)?;
        let expectation = expect(&choices, foreseen, outlook, |_| Load::default())?;
        drop(published);
        let group = Group::new(choices, expectation, self.next_id, self.clock.now());
        for sequence in group.leaders {
            self.enqueue(sequence);
        }
        Ok(group.ids)
    }

    /// Takes in a sequence that was checked at the door.
    pub(crate) fn enqueue(&mut self, sequence: Sequence) {
        self.next_id = self.next_id.max(sequence.last_id().get() + 1);
        self.scheduler.enqueue(sequence);
        self.publish();
    }

    /// Ends a request, wherever it stands, and frees its blocks.
    pub fn cancel(&mut self, id: SeqId) {
        self.scheduler.cancel(id, self.clock.now());
        self.publish();
    }

    /// Ends all requests.
    pub fn cancel_all(&mut self) {
        self.scheduler.cancel_all(self.clock.now());
        self.publish();
    }

    /// Whether there is nothing to do until the next request.
    pub fn is_idle(&self) -> bool {
        self.scheduler.running().is_empty() && self.scheduler.waiting() == 0
    }

    /// Where the engine stands.
    pub fn snapshot(&self) -> EngineSnapshot {
        snapshot(&self.scheduler, &self.cost, self.step_times)
    }

    /// Runs the model once over all that is due, and sends every event that follows from it.
    pub fn step(&mut self) -> StepReport {
        let beat = catch_unwind(AssertUnwindSafe(|| self.beat()));
        let report = match beat {
            Ok(Ok(report)) => report,
            Ok(Err(error)) => self.recover(&error.to_string()),
            Err(_) => self.recover("the engine hit an internal error"),
        };
        self.heartbeat.end();
        let rates = self.cost.rates();
        self.scheduler
            .tell_running(&mut lock(&self.published).outlook, rates);
        self.publish();
        if cfg!(debug_assertions) {
            self.check_invariants();
        }
        report
    }

    /// Checks that blocks and owners add up and that every request stands where it should. Debug
    /// builds do so after every step.
    ///
    /// # Panics
    /// If not: the engine has a bug.
    pub fn check_invariants(&self) {
        let waiting = &lock(&self.published).outlook.waiting;
        self.scheduler.check_invariants(waiting);
    }

    fn beat(&mut self) -> Result<StepReport, StepError> {
        self.plan();
        let planned = self.clock.now();
        self.run()?;
        let computed = self.clock.now();
        self.sample()?;
        let chosen = self.clock.now();
        self.commit(chosen);
        let times = &mut self.step_times;
        times.model += computed.saturating_sub(planned);
        times.sampling += chosen.saturating_sub(computed);
        times.scheduling += planned.saturating_sub(self.began);
        times.scheduling += self.clock.now().saturating_sub(chosen);
        Ok(self.report())
    }

    fn plan(&mut self) {
        self.began = self.clock.now();
        self.heartbeat.begin(self.began);
        let rates = self.cost.rates();
        self.scheduler.plan(&mut self.plan, &rates, self.began);
        self.publish();
    }

    fn run(&mut self) -> Result<(), StepError> {
        if self.plan.segments.is_empty() {
            return Ok(());
        }
        for segment in self.plan.segments.iter().filter(|segment| segment.samples) {
            if let Some(guide) = self.scheduler.running()[segment.sequence].guide() {
                self.ahead.prepare(guide, self.limits.vocab);
            }
        }
        for &(from, to) in &self.plan.copies {
            self.executor.copy_block(from, to);
        }
        let running = (self.scheduler.running(), self.scheduler.each_token());
        self.batch.run(&self.plan, running, self.executor.as_mut())
    }

    fn sample(&mut self) -> Result<(), StepError> {
        if let Output::Vectors { width, .. } = self.output {
            if !self.plan.segments.is_empty() {
                let rows = self.batch.output();
                self.scheduler.keep_vectors(&self.plan, rows, width);
            }
            return Ok(());
        }
        let running = self.scheduler.running();
        let places = self.plan.segments.iter().flat_map(|segment| {
            let sequence = &running[segment.sequence];
            let rows = sequence.rows_within(segment.tokens, false);
            rows.map(move |position| (sequence, position))
        });
        let rows = places.zip(self.batch.output().chunks_exact(self.limits.vocab));
        let rows = rows.map(|((sequence, position), logits)| Row {
            logits,
            request: &sequence.request,
            tokens: &sequence.tokens,
            guide: sequence.guide().map(Arc::as_ref),
            bound: sequence.bound,
            scored: sequence.scored_at(position),
        });
        self.sampler
            .choose(rows, self.executor.as_mut(), &mut self.choices)
    }

    fn commit(&mut self, now: Duration) {
        if self.plan.segments.is_empty() {
            return;
        }
        let work = self.plan.work(self.scheduler.running());
        self.cost.learn(work, now.saturating_sub(self.began));
        self.scheduler.commit(&self.plan, &mut self.choices, now);
    }

    fn recover(&mut self, cause: &str) -> StepReport {
        let message = format!("{cause}; the request was dropped, the engine lives on: try again");
        self.scheduler
            .fail_step(&self.plan, &message, self.clock.now());
        StepReport {
            faulted: true,
            ..self.report()
        }
    }

    fn report(&self) -> StepReport {
        StepReport {
            tokens: self.plan.tokens(),
            segments: self.plan.segments.len(),
            sampled: self.plan.sampled(),
            admitted: self.plan.admitted,
            preempted: self.plan.preempted,
            displaced: self.plan.displaced,
            expired: self.plan.expired,
            faulted: false,
        }
    }

    /// Shows where the engine stands, then tells those who have ended.
    fn publish(&mut self) {
        let mut published = lock(&self.published);
        published.snapshot = self.snapshot();
        self.scheduler.tell_waiting(&mut published.outlook.waiting);
        drop(published);
        self.scheduler.dismiss();
    }

    pub(crate) fn door(&self) -> Door {
        Door {
            output: self.output,
            limits: self.limits,
            capacity: self.capacity,
            queue_limits: self.queue_limits,
            preview: self.scheduler.pool().index().preview(),
            clock: Arc::clone(&self.clock),
            heartbeat: Arc::clone(&self.heartbeat),
            stuck_after: self.stuck_after,
            published: Arc::clone(&self.published),
            next_id: self.next_id,
        }
    }
}

/// What a handle on another thread needs to know of the engine.
pub(crate) struct Door {
    pub(crate) output: Output,
    pub(crate) limits: Limits,
    pub(crate) capacity: Capacity,
    pub(crate) queue_limits: QueueLimits,
    pub(crate) preview: Preview,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) heartbeat: Arc<Heartbeat>,
    pub(crate) stuck_after: Duration,
    pub(crate) published: Arc<Mutex<Published>>,
    pub(crate) next_id: u64,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn snapshot(scheduler: &Scheduler, cost: &CostModel, step_times: StepTimes) -> EngineSnapshot {
    EngineSnapshot {
        running: scheduler.running().len(),
        waiting: scheduler.waiting(),
        waiting_tokens: Tokens::new(scheduler.waiting_tokens()),
        kv_used: scheduler.pool().used(),
        kv_cached: scheduler.pool().cached(),
        kv_total: scheduler.pool().total(),
        block_size: scheduler.pool().block_size(),
        counters: scheduler.counters(),
        step_times,
        step_prediction: cost.error(),
        first_token_prediction: scheduler.first_token_prediction(),
    }
}
