//! The scheduler: who runs, who waits, who owns which block. Pure policy, no model.
//!
//! Running sequences stand in order of priority, then in the order in which they first joined; the
//! last of them is the first to be sent away. Only running sequences own blocks.

pub(crate) mod admission;
pub(crate) mod plan;
mod preempt;
mod queue;
mod tenants;

use std::time::Duration;

use forthwith_core::executor::KvGeometry;
use forthwith_core::program::Output;
use forthwith_core::units::{BlockId, SeqId, Tokens};

use crate::cost::{PredictionError, Rates};
use crate::engine::EngineConfig;
use crate::event::{Failure, FinishReason};
use crate::gap::{Pace, TargetGap};
use crate::kv::BlockPool;
use crate::outlook::{Outlook, Pieces, Waiting};
use crate::report::Counters;
use crate::sampling::{Choice, SampleError};
use crate::sequence::{End, Sequence};
use plan::StepPlan;
use queue::Queue;

pub(crate) struct Scheduler {
    queue: Queue,
    running: Vec<Sequence>,
    /// How many sequences have joined so far.
    joined: u64,
    /// Who has ended and does not know yet.
    departed: Vec<(Sequence, End, Duration)>,
    first_token_prediction: PredictionError,
    /// Tokens of an answer, on average over the last ones.
    answer: f64,
    /// How many wait for the prompt of another.
    parked: usize,
    pace: Pace,
    pool: BlockPool,
    counters: Counters,
    /// Whether a step must hold texts as a whole.
    whole_texts: bool,
    /// Whether each token has a vector.
    each_token: bool,
    config: EngineConfig,
    /// Kept for its memory: the blocks that the next sequence to join shares.
    shared: Vec<BlockId>,
}

impl Scheduler {
    pub(crate) fn new(geometry: KvGeometry, output: Output, mut config: EngineConfig) -> Self {
        config.max_step_tokens = config.max_step_tokens.max(Tokens::new(1));
        // Each of them may need a token of every step.
        config.max_running = config.max_running.clamp(1, config.max_step_tokens.get());
        config.least_piece = config.least_piece.max(Tokens::new(1));
        let (answer, each_token, whole_texts) = match output {
            Output::Logits => (64.0, false, false),
            Output::Vectors {
                each_token, whole, ..
            } => (0.0, each_token, whole),
        };
        Self {
            queue: Queue::new(&config.tenant_weights),
            joined: 0,
            departed: Vec::new(),
            first_token_prediction: PredictionError::default(),
            answer,
            each_token,
            whole_texts,
            running: Vec::new(),
            pool: BlockPool::new(geometry, config.prefix_cache),
            counters: Counters::default(),
            parked: 0,
            pace: Pace::default(),
            config,
            shared: Vec::with_capacity(geometry.blocks.get()),
        }
    }

    pub(crate) fn running(&self) -> &[Sequence] {
        &self.running
    }

    pub(crate) fn waiting(&self) -> usize {
        self.queue.len() + self.parked
    }

    pub(crate) fn first_token_prediction(&self) -> PredictionError {
        self.first_token_prediction
    }

    /// Says who came to wait and who left.
    pub(crate) fn tell_waiting(&mut self, waiting: &mut Waiting) {
        for change in self.queue.changes() {
            waiting.apply(change);
        }
    }

    /// Says what runs, and how fast.
    pub(crate) fn tell_running(&self, outlook: &mut Outlook, rates: Rates) {
        outlook.begin(rates, self.answer);
        for sequence in &self.running {
            outlook.add_running(sequence);
        }
        let work = outlook.decoding;
        let step = self.config.max_step_tokens.get();
        let range = (
            self.config.least_piece.get(),
            step.saturating_sub(work.decodes),
        );
        let room = self.config.target_gap.room(&rates, work, 0, range);
        let pieces = if self.config.target_gap == TargetGap::Off || work.decodes == 0 {
            Pieces::whole(room)
        } else {
            Pieces {
                least: range.0.min(room),
                most: room,
                pace: self.pace,
            }
        };
        outlook.end(
            self.config.max_running.saturating_sub(self.running.len()),
            pieces,
        );
    }

    /// Prompt tokens of those who wait.
    pub(crate) fn waiting_tokens(&self) -> usize {
        self.queue.tokens()
    }

    pub(crate) fn pool(&self) -> &BlockPool {
        &self.pool
    }

    pub(crate) fn counters(&self) -> Counters {
        Counters {
            evictions: self.pool.evictions(),
            ..self.counters
        }
    }

    /// Whether each token has a vector.
    pub(crate) fn each_token(&self) -> bool {
        self.each_token
    }

    /// Keeps the rows of vectors that a step computed, as wide as said.
    pub(crate) fn keep_vectors(&mut self, plan: &StepPlan, rows: &[f32], width: usize) {
        let mut rest = rows;
        for segment in &plan.segments {
            let sequence = &mut self.running[segment.sequence];
            let count = sequence.rows_within(segment.tokens, self.each_token).len();
            let (own, others) = rest.split_at(count * width);
            sequence.keep_vectors(own);
            rest = others;
        }
    }

    pub(crate) fn enqueue(&mut self, mut sequence: Sequence) {
        // What a cache stands in for has no rows.
        if self.whole_texts || self.each_token {
            sequence.close_sharing();
        }
        self.counters.accepted += 1 + sequence.followers.len() as u64;
        self.counters.accepted_tokens += sequence.length().get() as u64;
        self.parked += sequence.followers.len();
        self.queue.push(sequence);
    }

    /// Ends a request wherever it is; one that has ended already is left alone.
    pub(crate) fn cancel(&mut self, id: SeqId, now: Duration) {
        let running = self.running.iter_mut().find(|sequence| sequence.id == id);
        if let Some(sequence) = running {
            sequence.end = Some(End::Finished(FinishReason::Cancelled));
            self.remove_ended(now);
        } else if let Some((sequence, inherited)) = self.queue.remove(id) {
            self.parked -= usize::from(inherited);
            self.tell_end(sequence, End::Finished(FinishReason::Cancelled), now);
        } else {
            self.cancel_follower(id, now);
        }
    }

    fn cancel_follower(&mut self, id: SeqId, now: Duration) {
        let mut running = self.running.iter_mut();
        let follower = running.find_map(|leader| leader.remove_follower(id));
        if let Some(follower) = follower.or_else(|| self.queue.remove_follower(id)) {
            self.parked -= 1;
            self.tell_end(follower, End::Finished(FinishReason::Cancelled), now);
        }
    }

    /// Ends all requests.
    pub(crate) fn cancel_all(&mut self, now: Duration) {
        for sequence in &mut self.running {
            sequence.end = Some(End::Finished(FinishReason::Cancelled));
        }
        self.remove_ended(now);
        while let Some(mut sequence) = self.queue.take_next() {
            self.hand_over(&mut sequence);
            self.tell_end(sequence, End::Finished(FinishReason::Cancelled), now);
        }
    }

    /// Takes in what a step computed and chose.
    pub(crate) fn commit(
        &mut self,
        plan: &StepPlan,
        choices: &mut Vec<Result<Choice, SampleError>>,
        now: Duration,
    ) {
        self.counters.steps += 1;
        self.counters.step_tokens += plan.tokens() as u64;
        let work = plan.work(&self.running);
        if work.decodes > 0 {
            self.pace.note(work.prefill);
        }
        self.counters.copied_blocks += plan.copies.len() as u64;
        // Answers that fill a block in the same step are not all made known in it, but twice as many
        // as fill one on average.
        let mut answers = (2 * self.running.len()).div_ceil(self.pool.block_size().get());
        let mut choices = choices.drain(..);
        for segment in &plan.segments {
            let sequence = &mut self.running[segment.sequence];
            let asked = sequence.asked_within(segment.tokens);
            Self::keep_rows(sequence, choices.by_ref().take(asked));
            self.counters.prompt_tokens += sequence.advance(segment.tokens) as u64;
            let is_answer = sequence.generated() > 0;
            if !is_answer || (answers > 0 && sequence.can_publish(&self.pool)) {
                sequence.publish(&mut self.pool);
                answers -= usize::from(is_answer);
            }
            if sequence.has_prompt() && sequence.end.is_none() && !sequence.followers.is_empty() {
                self.release_followers(segment.sequence);
            }
            let sequence = &mut self.running[segment.sequence];
            if !segment.samples {
                continue;
            }
            if !sequence.goes_on() {
                if sequence.end.is_none() {
                    sequence.complete(now);
                }
                continue;
            }
            match choices.next().expect("one choice for each sampling row") {
                // A row of the prompt was unsound, and tells no more.
                Ok(_) if sequence.end.is_some() => {}
                Ok(choice) => {
                    self.counters.generated_tokens += 1;
                    let tenant = sequence.request.scheduling().tenant;
                    self.queue.tenants().charge(tenant, 1);
                    sequence.accept(choice, now);
                    if let Some((expected, actual)) = sequence.first_token_times() {
                        self.first_token_prediction.note(expected, actual);
                    }
                }
                Err(error) => sequence.end = Some(End::Failed(error.into())),
            }
        }
        drop(choices);
        self.end_in_time(now);
    }

    /// Takes in what rows say of the tokens that they were asked about.
    fn keep_rows(
        sequence: &mut Sequence,
        choices: impl Iterator<Item = Result<Choice, SampleError>>,
    ) {
        for choice in choices {
            match choice {
                Ok(choice) => sequence.keep_row(choice),
                Err(error) => sequence.end = Some(End::Failed(error.into())),
            }
        }
    }

    /// Ends the running sequences whose time is over, and removes all that have ended.
    fn end_in_time(&mut self, now: Duration) {
        for sequence in &mut self.running {
            sequence.end_in_time(now);
        }
        self.remove_ended(now);
    }

    /// Recovers from a step that failed: the requests of the step fail, all blocks are free again,
    /// and whoever else was running computes anew, because the cache's content is undefined.
    pub(crate) fn fail_step(&mut self, plan: &StepPlan, message: &str, now: Duration) {
        self.counters.faults += 1;
        let planned = |index| {
            plan.segments
                .iter()
                .any(|segment| segment.sequence == index)
        };
        // A failure before anyone was planned would come again: then all that run must go.
        let all = plan.segments.is_empty();
        if all && self.running.is_empty() {
            self.running.extend(self.queue.take_next());
        }
        for (index, sequence) in self.running.iter_mut().enumerate() {
            if all || planned(index) {
                sequence.end = Some(End::Failed(Failure::of_engine(message)));
            }
        }
        for sequence in &mut self.running {
            sequence.forget_blocks();
        }
        self.pool.reset();
        self.remove_ended(now);
        while let Some(sequence) = self.running.pop() {
            self.queue.put_back(sequence);
        }
    }

    /// Ends the requests whose time is over. Returns how many.
    fn expire(&mut self, now: Duration) -> usize {
        let running = self.running.len();
        self.end_in_time(now);
        let mut expired = running - self.running.len();
        while let Some(mut sequence) = self.queue.take_expired(now) {
            let reason = if sequence.has_joined() {
                FinishReason::TimeLimit
            } else {
                FinishReason::QueueTimeout
            };
            // Followers came together with their leader and are as patient.
            let followers = std::mem::take(&mut sequence.followers);
            self.parked -= followers.len();
            for sequence in std::iter::once(sequence).chain(followers) {
                self.tell_end(sequence, End::Finished(reason), now);
                expired += 1;
            }
        }
        expired
    }

    fn tell_end(&mut self, sequence: Sequence, end: End, now: Duration) {
        if let End::Finished(
            FinishReason::End(_)
            | FinishReason::FormComplete
            | FinishReason::Length
            | FinishReason::Complete,
        ) = end
        {
            let length = f64::from(u32::try_from(sequence.generated()).unwrap_or(u32::MAX));
            self.answer += (length - self.answer) / 16.0;
        }
        *match &end {
            End::Finished(FinishReason::End(_) | FinishReason::FormComplete) => {
                &mut self.counters.finished_end
            }
            End::Finished(FinishReason::Length) => &mut self.counters.finished_length,
            End::Finished(FinishReason::Complete) => &mut self.counters.finished_texts,
            End::Finished(FinishReason::Cancelled) => &mut self.counters.cancelled,
            End::Finished(FinishReason::QueueTimeout) => &mut self.counters.expired,
            End::Finished(FinishReason::TimeLimit) => &mut self.counters.timed_out,
            End::Failed(_) => &mut self.counters.failed,
        } += 1;
        self.departed.push((sequence, end, now));
    }

    /// Tells those who have ended so. The engine's numbers must be true by then, because whoever
    /// hears of its end may look at them at once.
    pub(crate) fn dismiss(&mut self) {
        for (mut sequence, end, now) in self.departed.drain(..) {
            sequence.send_end(end, now);
        }
    }

    /// Sends those who waited for a prompt that is now computed to the head of the queue.
    fn release_followers(&mut self, leader: usize) {
        let followers = std::mem::take(&mut self.running[leader].followers);
        self.parked -= followers.len();
        for (place, mut follower) in (1..).zip(followers) {
            follower.share_rows(&self.running[leader]);
            follower.join_behind(&self.running[leader], place);
            self.queue.put_back(follower);
        }
    }

    /// Lets the first follower of a sequence that ends compute the prompt for the others.
    fn hand_over(&mut self, sequence: &mut Sequence) {
        if let Some(heir) = sequence.take_heir() {
            self.parked -= 1;
            self.queue.put_back(heir);
        }
    }

    fn remove_ended(&mut self, now: Duration) {
        let is_ended = |sequence: &mut Sequence| sequence.end.is_some();
        let ended: Vec<Sequence> = self.running.extract_if(.., is_ended).collect();
        for mut sequence in ended {
            let Some(end) = sequence.end.take() else {
                continue;
            };
            self.hand_over(&mut sequence);
            sequence.release(&mut self.pool);
            self.tell_end(sequence, end, now);
        }
    }

    /// Checks that blocks and owners add up and that every sequence stands where it should, and that
    /// others know who waits.
    ///
    /// # Panics
    /// If not.
    pub(crate) fn check_invariants(&self, waiting: &Waiting) {
        waiting.check(self.queue.loads());
        self.pool
            .check_invariants(self.running.iter().map(|sequence| sequence.table.blocks()));
        for sequence in &self.running {
            assert!(sequence.pending() > 0, "nothing left to compute");
            sequence.check_sharing(&self.pool);
            let held = sequence.table.blocks().len() * self.pool.block_size().get();
            assert!(sequence.computed <= held, "computed tokens have no block");
        }
        let leaders = self.running.iter().chain(self.queue.iter());
        let parked: usize = leaders.map(|leader| leader.followers.len()).sum();
        assert_eq!(parked, self.parked, "a follower is lost");
        let in_order = self.running.iter().all(Sequence::has_joined);
        assert!(in_order, "somebody runs who has not joined");
        self.queue.check_invariants();
    }
}

#[cfg(test)]
mod tests {
    use forthwith_core::request::{GenerationRequest, Limits, RequestParts, SamplingParams};
    use forthwith_core::units::{Blocks, Bytes, TokenId};

    use super::*;
    use crate::outlook::Change;

    const GEOMETRY: KvGeometry = KvGeometry {
        block_size: Tokens::new(4),
        block_bytes: Bytes::new(1),
        blocks: Blocks::new(20),
    };

    fn scheduler_with(prompts: &[usize], max_step_tokens: usize) -> Scheduler {
        let config = EngineConfig {
            max_running: 8,
            max_step_tokens: Tokens::new(max_step_tokens),
            ..EngineConfig::default()
        };
        let mut scheduler = Scheduler::new(GEOMETRY, Output::Logits, config);
        for (id, &prompt) in (0_u32..).zip(prompts) {
            let parts = RequestParts {
                max_tokens: Some(50),
                sampling: SamplingParams::greedy(),
                ..RequestParts::new(vec![TokenId::new(id); prompt])
            };
            let limits = Limits {
                vocab: 10,
                context: Tokens::new(80),
            };
            let request = GenerationRequest::new(parts, limits).unwrap();
            let sink = Box::new(|_| ());
            scheduler.enqueue(Sequence::new(
                SeqId::new(id.into()),
                request,
                sink,
                Duration::ZERO,
            ));
        }
        scheduler
    }

    fn check(scheduler: &mut Scheduler) {
        let mut waiting = Waiting::default();
        for (line, load) in scheduler.queue.loads() {
            let came = true;
            waiting.apply(Change { line, came, load });
        }
        scheduler.check_invariants(&waiting);
    }

    fn planned(scheduler: &mut Scheduler) -> Vec<(usize, usize, bool)> {
        let mut plan = StepPlan::default();
        scheduler.plan(&mut plan, &Rates::default(), Duration::ZERO);
        let mut choices = Vec::new();
        for _ in 0..plan.sampled() {
            choices.push(Ok(Choice {
                token: TokenId::new(2),
                logprob: None,
                bound: None,
                rank: None,
            }));
        }
        scheduler.commit(&plan, &mut choices, Duration::ZERO);
        check(scheduler);
        let row = |s: &plan::PlannedSegment| (s.sequence, s.tokens, s.samples);
        plan.segments.iter().map(row).collect()
    }

    #[test]
    fn answers_go_first_and_prompts_fill_the_step_in_order() {
        let mut scheduler = scheduler_with(&[3, 7, 9], 8);
        assert_eq!(planned(&mut scheduler), [(0, 3, true), (1, 5, false)]);
        assert_eq!(
            planned(&mut scheduler),
            [(0, 1, true), (1, 2, true), (2, 5, false)]
        );
        assert_eq!(
            planned(&mut scheduler),
            [(0, 1, true), (1, 1, true), (2, 4, true)]
        );
    }

    #[test]
    fn whoever_was_sent_away_is_first_in_the_queue() {
        let mut scheduler = scheduler_with(&[20, 20, 20, 20, 3], 80);
        while scheduler.counters().preemptions < 2 {
            planned(&mut scheduler);
        }
        let ids = |sequence: &Sequence| sequence.id.get();
        assert_eq!(scheduler.running().iter().map(ids).collect::<Vec<_>>(), [0]);
        let waiting: Vec<u64> = scheduler.queue.iter().map(ids).collect();
        assert_eq!(waiting, [1, 2, 3, 4]);
    }

    #[test]
    fn whoever_did_not_take_part_in_a_failed_step_computes_anew() {
        let mut scheduler = scheduler_with(&[3, 3], 8);
        planned(&mut scheduler);
        let mut plan = StepPlan::default();
        scheduler.plan(&mut plan, &Rates::default(), Duration::ZERO);
        plan.segments.truncate(1);
        scheduler.fail_step(&plan, "a fault", Duration::ZERO);
        check(&mut scheduler);
        assert_eq!(scheduler.counters().failed, 1);
        assert_eq!((scheduler.running().len(), scheduler.waiting()), (0, 1));
        assert_eq!(scheduler.pool().used(), Blocks::ZERO);
        assert_eq!(planned(&mut scheduler), [(0, 4, true)]);
    }

    #[test]
    fn a_failure_before_anyone_was_planned_still_ends_someone() {
        let mut scheduler = scheduler_with(&[3, 3], 8);
        scheduler.fail_step(&StepPlan::default(), "a fault", Duration::ZERO);
        assert_eq!((scheduler.counters().failed, scheduler.waiting()), (1, 1));
        planned(&mut scheduler);
        scheduler.fail_step(&StepPlan::default(), "a fault", Duration::ZERO);
        assert_eq!((scheduler.counters().failed, scheduler.waiting()), (2, 0));
    }
}
