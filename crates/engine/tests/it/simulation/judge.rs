//! What must be true when a world has come to rest.

use forthwith_core::request::{Filters, GenerationRequest};
use forthwith_core::units::{Blocks, Tokens};
use forthwith_engine::{Counters, Engine, Event, FinishReason, Finished, ReuseStop};

use super::play::{Asked, World};
use crate::world::{Log, Shape, run_dry};

/// Prompt tokens that were computed, and found: at least and at most.
#[derive(Default)]
struct Prompts {
    computed: (u64, u64),
    found: (u64, u64),
}

impl Prompts {
    fn add(&mut self, prompt: u64, answered: bool, finished: Option<&Finished>) {
        // Who failed does not tell what it had found.
        let found = finished.map_or((0, prompt - 1), |finished| {
            let found = finished.cached_tokens.get() as u64;
            (found, found)
        });
        self.found.0 += found.0;
        self.found.1 += found.1;
        self.computed.0 += if answered { prompt - found.1 } else { 0 };
        self.computed.1 += prompt - found.0;
    }
}

impl World<'_> {
    /// Every answer is what it would be alone, and the counters count what was sent and computed.
    pub(super) fn judge(&self) {
        let snapshot = self.engine.snapshot();
        let counters = snapshot.counters;
        assert_eq!(snapshot.kv_used, Blocks::ZERO);
        assert_eq!((snapshot.running, snapshot.waiting), (0, 0));
        assert_eq!(snapshot.waiting_tokens, Tokens::ZERO);
        let seen = self.watch.seen();
        let mut expected = Counters {
            accepted: self.asked.len() as u64,
            accepted_tokens: self.accepted_tokens,
            preemptions: self.sums.preempted as u64,
            displacements: self.sums.displaced as u64,
            faults: self.faults,
            steps: seen.steps,
            step_tokens: seen.tokens,
            copied_blocks: seen.copies,
            // Between bounds, see below, and not told at all.
            prompt_tokens: counters.prompt_tokens,
            cached_tokens: counters.cached_tokens,
            evictions: counters.evictions,
            ..Counters::default()
        };
        let mut prompts = Prompts::default();
        let mut alone = self.roomy_engine();
        for asked in &self.asked {
            let events = asked.log.events();
            let (last, told) = events.split_last().expect("every request ends");
            let tokens = told.len() - Self::check_prompt(asked, told);
            expected.generated_tokens += tokens as u64;
            let finished = match last {
                Event::Finished(finished) => Some(finished),
                Event::Failed(_) => None,
                _ => panic!("the last event ends the request"),
            };
            let prompt = asked.request.prompt().len() as u64;
            prompts.add(prompt, !told.is_empty(), finished);
            *match finished.map(|finished| finished.reason) {
                Some(FinishReason::Cancelled) => &mut expected.cancelled,
                Some(FinishReason::End(_) | FinishReason::FormComplete) => {
                    &mut expected.finished_end
                }
                Some(FinishReason::Length) => &mut expected.finished_length,
                Some(FinishReason::Complete) => &mut expected.finished_texts,
                Some(FinishReason::QueueTimeout) => {
                    assert!(told.is_empty() && asked.may_expire());
                    &mut expected.expired
                }
                Some(FinishReason::TimeLimit) => {
                    assert!(asked.may_time_out());
                    &mut expected.timed_out
                }
                None => &mut expected.failed,
            } += 1;
            self.judge_answer(&mut alone, asked, &events);
        }
        assert_eq!(counters, expected);
        let is_within = |(least, most), value| (least..=most).contains(&value);
        assert!(is_within(prompts.found, counters.cached_tokens));
        assert!(is_within(prompts.computed, counters.prompt_tokens));
        assert!(self.faults > 0 || expected.failed == 0);
    }

    /// What was asked about the prompt is told once, before the first token. Returns how often.
    fn check_prompt(asked: &Asked, told: &[Event]) -> usize {
        let is_prompt = |event: &&Event| matches!(event, Event::Prompt(_));
        let count = told.iter().filter(is_prompt).count();
        let wanted = asked.request.prompt_logprobs().is_some() && !told.is_empty();
        assert_eq!(count, usize::from(wanted));
        if let Some(Event::Prompt(rows)) = told.first() {
            assert_eq!(rows.len(), asked.request.prompt().len() - 1);
        }
        count
    }

    fn judge_answer(&self, alone: &mut Engine, asked: &Asked, events: &[Event]) {
        let request = &asked.request;
        let (last, told) = events.split_last().expect("every request ends");
        if told.is_empty() {
            let is_answer = |finished: &Finished| is_whole(finished.reason);
            assert!(!matches!(last, Event::Finished(finished) if is_answer(finished)));
            return;
        }
        let whole = self.alone(alone, request).events();
        match last {
            Event::Finished(finished) if is_whole(finished.reason) => {
                let same = whole.split_last().expect("it ends").1;
                assert_eq!(told, same, "the same answer as alone");
                let Some(Event::Finished(alone)) = whole.last() else {
                    panic!("alone it finishes");
                };
                assert_eq!(finished.reason, alone.reason);
                assert_eq!(finished.completion_tokens, alone.completion_tokens);
                assert!(finished.cached_tokens < finished.prompt_tokens);
                let may_share = self.story.shape.shares && !request.bypasses_cache();
                let bypassed = finished.reuse_stop == ReuseStop::Bypassed;
                assert!(bypassed != (may_share || asked.grouped) || asked.grouped);
                assert!(!bypassed || finished.cached_tokens == Tokens::ZERO);
            }
            _ => assert_eq!(told, &whole[..told.len()], "the same tokens as alone"),
        }
    }

    /// An engine with room for everything, in which nobody meets anybody.
    fn roomy_engine(&self) -> Engine {
        let shape = Shape {
            block_size: 7,
            blocks: 200,
            max_running: 1,
            max_step_tokens: 1000,
            max_waiting: 1,
            shares: false,
            ..Shape::default()
        };
        shape.engine(shape.executor(self.story.model))
    }

    /// The same request alone.
    fn alone(&self, engine: &mut Engine, request: &GenerationRequest) -> Log {
        let log = Log::default();
        engine.submit(request.clone(), log.sink()).unwrap();
        run_dry(engine);
        if is_plain_greedy(request) {
            let tokens = log.tokens();
            let model = self.story.model;
            let expected = model.continue_greedily(request.prompt(), tokens.len());
            assert_eq!(tokens, expected, "greedy says what the model says");
        }
        log
    }
}

fn is_whole(reason: FinishReason) -> bool {
    matches!(
        reason,
        FinishReason::End(_) | FinishReason::FormComplete | FinishReason::Length
    )
}

fn is_plain_greedy(request: &GenerationRequest) -> bool {
    let sampling = request.sampling();
    sampling.is_greedy()
        && request.constraint().is_none()
        && sampling.filters == Filters::default()
        && sampling.frequency_penalty.abs() + sampling.presence_penalty.abs() < 1e-9
        && (sampling.repetition_penalty - 1.0).abs() < 1e-9
}
