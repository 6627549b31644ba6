//! One step's plan: who takes part, with how many tokens.
//!
//! Whoever has one token to compute goes first, so a long prompt never holds up an answer; then
//! prompts, those that wait among them, fill what is left of the step in order of priority. A sequence
//! joins only where a token is left for it, so there are never more sequences than a step has tokens.

use std::time::Duration;

use forthwith_core::units::{BlockId, Blocks};

use super::{Scheduler, admission};
use crate::cost::{Rates, Work};
use crate::engine::EngineConfig;
use crate::gap::{self, TargetGap};
use crate::kv::BlockPool;
use crate::sequence::{Sequence, Start};

/// One sequence's part in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlannedSegment {
    /// The sequence, as an index into the running ones.
    pub(crate) sequence: usize,
    /// How many of its pending tokens are computed.
    pub(crate) tokens: usize,
    /// Whether these are all of them, so that a token can be chosen.
    pub(crate) samples: bool,
}

/// What the next step computes.
#[derive(Debug, Default)]
pub(crate) struct StepPlan {
    pub(crate) segments: Vec<PlannedSegment>,
    pub(crate) admitted: usize,
    pub(crate) preempted: usize,
    pub(crate) displaced: usize,
    pub(crate) expired: usize,
    /// Blocks to copy before the step, from and to.
    pub(crate) copies: Vec<(BlockId, BlockId)>,
    /// Tokens that may still be added.
    budget: usize,
    /// Rows of logits that may still be added.
    rows: usize,
}

impl StepPlan {
    /// Empties the plan for a step of at most `budget` tokens.
    pub(crate) fn begin(&mut self, budget: usize, rows: usize) {
        self.segments.clear();
        self.admitted = 0;
        self.preempted = 0;
        self.displaced = 0;
        self.copies.clear();
        self.budget = budget;
        self.rows = rows;
    }

    fn add(&mut self, index: usize, sequence: &Sequence) {
        let pending = sequence.pending();
        let tokens = sequence.tokens_within(pending.min(self.budget), self.rows);
        if tokens > 0 {
            self.budget -= tokens;
            self.rows -= sequence.rows_within(tokens, false).len();
            self.segments.push(PlannedSegment {
                sequence: index,
                tokens,
                samples: tokens == pending,
            });
        }
    }

    /// Tokens of the step.
    pub(crate) fn tokens(&self) -> usize {
        self.segments.iter().map(|segment| segment.tokens).sum()
    }

    /// What the step costs.
    pub(crate) fn work(&self, running: &[Sequence]) -> Work {
        let mut work = Work::default();
        for segment in &self.segments {
            work.add(segment.tokens, running[segment.sequence].computed);
        }
        work
    }

    /// Sequences that get a token.
    pub(crate) fn sampled(&self) -> usize {
        self.segments
            .iter()
            .filter(|segment| segment.samples)
            .count()
    }
}

impl Scheduler {
    /// Plans the next step: takes blocks, sends sequences away and lets others join as needed.
    pub(crate) fn plan(&mut self, plan: &mut StepPlan, rates: &Rates, now: Duration) {
        plan.begin(self.config.max_step_tokens.get(), self.config.max_running);
        plan.expired = self.expire(now);
        // Newcomers of a better priority stand at the end until now.
        if !self.running.is_sorted_by_key(Sequence::rank) {
            self.running.sort_unstable_by_key(Sequence::rank);
        }
        self.make_way(plan);
        self.plan_decodes(plan);
        self.keep_the_gap(plan, rates);
        self.plan_prefills(plan, now);
        self.admit(plan, None, now);
    }

    fn plan_decodes(&mut self, plan: &mut StepPlan) {
        // Making room shortens the list from the back, so its length is asked for each time.
        let mut index = 0;
        while let Some(sequence) = self.running.get(index) {
            if sequence.pending() == 1 && self.make_room(index, plan) {
                plan.add(index, &self.running[index]);
            }
            index += 1;
        }
    }

    /// Leaves prompts as much of a step beside answers as the target for the gap between tokens
    /// allows, but at least a piece, so that they get on.
    fn keep_the_gap(&self, plan: &mut StepPlan, rates: &Rates) {
        let EngineConfig {
            target_gap,
            least_piece,
            ..
        } = self.config;
        if target_gap == TargetGap::Off || self.whole_texts {
            return;
        }
        let prompt = self.running.iter().find(|sequence| sequence.pending() > 1);
        let position = prompt.map_or(0, |sequence| sequence.computed);
        let work = plan.work(&self.running);
        let range = (least_piece.get(), plan.budget);
        let room = target_gap.room(rates, work, position, range);
        if work.decodes == 0 {
            plan.budget = room;
            return;
        }
        let piece = self.pace.piece(self.backlog()).max(range.0);
        plan.budget = gap::probe(self.counters.steps, room.min(piece));
    }

    /// Tokens of prompts that could be computed if steps had no limit: about those of running
    /// sequences and of as many others as there are places for.
    fn backlog(&self) -> usize {
        let prompts = self.running.iter().map(Sequence::pending);
        let running: usize = prompts.filter(|&pending| pending > 1).sum();
        let places = self.config.max_running - self.running.len();
        let waiting = self.queue.len().max(1);
        running + self.queue.tokens() / waiting * places.min(waiting)
    }

    /// Gives running prompts what they need, in order of rank, after those of a better priority that
    /// still wait.
    fn plan_prefills(&mut self, plan: &mut StepPlan, now: Duration) {
        for index in 0..self.running.len() {
            let (pending, rank) = (self.running[index].pending(), self.running[index].rank());
            if pending > 1 {
                self.admit(plan, Some(rank.priority), now);
                plan.add(index, &self.running[index]);
            }
        }
    }

    fn join_next(&mut self, now: Duration) {
        if let Some(mut sequence) = self.queue.take_next() {
            if sequence.mark_admitted(now) {
                let tenant = sequence.request.scheduling().tenant;
                self.queue.tenants().charge(tenant, sequence.pending());
            }
            sequence.join(self.joined);
            // Those who wait for its prompt will stand behind it, before all who join later.
            self.joined += 1 + sequence.followers.len() as u64;
            self.running.push(sequence);
        }
    }

    /// Lets waiting sequences, perhaps only those before a priority, join in order while the step,
    /// the cache and the number of places allow it.
    fn admit(&mut self, plan: &mut StepPlan, before: Option<i32>, now: Duration) {
        while plan.budget > 0 && self.running.len() < self.config.max_running {
            let Some(first) = self.queue.next() else {
                return;
            };
            if before.is_some_and(|priority| first.rank().priority >= priority) {
                return;
            }
            if self.whole_texts && first.pending() > plan.budget {
                return;
            }
            let reserve = self.pool.total().get() * self.config.watermark_percent / 100;
            let may_join = |needed, pool: &BlockPool| {
                admission::may_join(
                    needed,
                    pool.free(),
                    self.running.len(),
                    Blocks::new(reserve),
                )
            };
            // Whoever joins needs a block of its own; looking for shared ones takes longer.
            if !may_join(Blocks::new(1), &self.pool) {
                return;
            }
            let start = Start::find(first, &self.running, &self.pool, &mut self.shared);
            let held = self
                .shared
                .iter()
                .filter(|&&block| !self.pool.is_idle(block));
            let needed = first.length().blocks_needed(self.pool.block_size());
            let needed = needed - Blocks::new(held.count());
            if !may_join(needed, &self.pool) {
                return;
            }
            let mut cached = first.begin_with(&self.shared, &start, &mut self.pool);
            let fits = first.table.grow(first.length(), &mut self.pool);
            debug_assert!(fits, "admission counted the blocks");
            if let Some(from) = start.copied {
                let to = first.table.blocks()[self.shared.len()];
                plan.copies.push((from, to));
                cached += first.begin_inside_copy();
            }
            self.counters.cached_tokens += cached as u64;
            plan.add(self.running.len(), first);
            plan.admitted += 1;
            self.join_next(now);
        }
    }
}
