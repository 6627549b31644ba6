//! When the first token of a request will come: what runs, who waits, and what steps cost.
//!
//! Any thread may ask. Who would be served before a newcomer is known exactly between priorities and
//! estimated between tenants: those that wait together are taken to have been served alike, as fair
//! queueing keeps them.

use std::collections::BTreeMap;
use std::time::Duration;

use forthwith_core::units::TenantId;

use crate::cost::{Rates, Work, milliseconds};
use crate::gap::Pace;
use crate::sequence::Sequence;

/// A request whose first token is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Newcomer {
    pub(crate) priority: i32,
    pub(crate) tenant: TenantId,
    /// Tokens of its prompt that have to be computed.
    pub(crate) prompt: usize,
    /// Tokens of its prompt that the cache holds.
    pub(crate) cached: usize,
}

/// Requests and the tokens that they have to compute before they answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) requests: usize,
    pub(crate) tokens: usize,
}

impl Load {
    pub(crate) fn add(&mut self, other: Self) {
        self.requests += other.requests;
        self.tokens += other.tokens;
    }

    /// The part that the first `tokens` tokens make up, in whole requests.
    fn first(self, tokens: usize) -> Self {
        let tokens = tokens.min(self.tokens);
        Self {
            requests: tokens
                .saturating_mul(self.requests)
                .div_ceil(self.tokens.max(1)),
            tokens,
        }
    }
}

/// Where requests wait: a priority, and a tenant for those who have not run before.
pub(crate) type Line = (i32, Option<TenantId>);

/// Somebody came to a line, or left it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change {
    pub(crate) line: Line,
    pub(crate) came: bool,
    pub(crate) load: Load,
}

/// Who waits where.
#[derive(Clone, Debug, Default)]
pub(crate) struct Waiting {
    lines: BTreeMap<Line, Load>,
    /// The shares of tenants that do not have a share of 1.
    weights: BTreeMap<TenantId, u32>,
}

impl Waiting {
    pub(crate) fn new(weights: &[(TenantId, u32)]) -> Self {
        Self {
            lines: BTreeMap::new(),
            weights: weights.iter().copied().collect(),
        }
    }

    pub(crate) fn apply(&mut self, change: Change) {
        let Change { line, came, load } = change;
        let entry = self.lines.entry(line).or_default();
        if came {
            entry.add(load);
            return;
        }
        entry.requests -= load.requests;
        entry.tokens -= load.tokens;
        if entry.requests == 0 {
            self.lines.remove(&line);
        }
    }

    /// Who of those that wait will be served before a newcomer.
    fn before(&self, newcomer: &Newcomer) -> Load {
        let (priority, tenant) = (newcomer.priority, Some(newcomer.tenant));
        let mut before = Load::default();
        for (_, &load) in self.lines.range(..=(priority, None)) {
            before.add(load);
        }
        let own = self.lines.get(&(priority, tenant)).copied();
        let own = own.unwrap_or_default();
        before.add(own);
        let fresh = (priority, Some(TenantId::new(0)))..=(priority, Some(TenantId::new(u64::MAX)));
        for (&(_, other), &load) in self.lines.range(fresh) {
            if other != tenant {
                // Whoever is as far has its turn first, then the others keep pace.
                let turn = load.tokens.div_ceil(load.requests.max(1));
                let pace = own.tokens.saturating_mul(self.weight(other)) / self.weight(tenant);
                before.add(load.first(turn.saturating_add(pace)));
            }
        }
        before
    }

    fn weight(&self, tenant: Option<TenantId>) -> usize {
        let weight = tenant.and_then(|tenant| self.weights.get(&tenant));
        weight.map_or(1, |&weight| usize::try_from(weight.max(1)).unwrap_or(1))
    }

    /// Checks that these are the loads of all lines.
    ///
    /// # Panics
    /// If not.
    pub(crate) fn check(&self, loads: impl Iterator<Item = (Line, Load)>) {
        let mut lines: BTreeMap<Line, Load> = BTreeMap::new();
        for (line, load) in loads {
            lines.entry(line).or_default().add(load);
        }
        assert_eq!(lines, self.lines, "those who wait are miscounted");
    }
}

/// Running sequences of one priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Class {
    priority: i32,
    sequences: usize,
    /// Those who wait for a prompt of these.
    followers: usize,
    /// Tokens of their prompts that are still to be computed.
    pending: usize,
}

/// How many prompt tokens a step carries beside the answers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pieces {
    /// However many wait.
    pub(crate) least: usize,
    /// However long they take.
    pub(crate) most: usize,
    /// What they follow in between.
    pub(crate) pace: Pace,
}

impl Pieces {
    /// Always as many.
    pub(crate) fn whole(tokens: usize) -> Self {
        Self {
            least: tokens,
            most: tokens,
            ..Self::default()
        }
    }

    /// The average of the pieces that so many tokens are computed in: the pace slows down as they
    /// become fewer.
    fn average(self, tokens: usize) -> usize {
        let piece = self.pace.piece(tokens / 2);
        piece.clamp(self.least.max(1), self.most.max(self.least).max(1))
    }
}

/// What is known of the near future.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outlook {
    rates: Rates,
    /// What the running sequences compute in a step when all prompts are done.
    pub(crate) decoding: Work,
    /// In order of priority.
    classes: Vec<Class>,
    /// Places for further sequences.
    places: usize,
    pieces: Pieces,
    /// Tokens of an answer, on average.
    answer: f64,
    pub(crate) waiting: Waiting,
}

impl Outlook {
    pub(crate) fn new(weights: &[(TenantId, u32)]) -> Self {
        Self {
            waiting: Waiting::new(weights),
            ..Self::default()
        }
    }

    /// Begins a new count of what runs.
    pub(crate) fn begin(&mut self, rates: Rates, answer: f64) {
        self.rates = rates;
        self.answer = answer;
        self.decoding = Work::default();
        self.classes.clear();
    }

    /// Counts a running sequence.
    pub(crate) fn add_running(&mut self, sequence: &Sequence) {
        self.decoding.add(1, sequence.length().get());
        self.add_to_class(Class {
            priority: sequence.rank().priority,
            sequences: 1,
            followers: sequence.followers.len(),
            pending: sequence.pending() - 1,
        });
    }

    fn add_to_class(&mut self, class: Class) {
        let Class { priority, .. } = class;
        let place = self
            .classes
            .binary_search_by_key(&priority, |class| class.priority);
        match place {
            Ok(index) => {
                let known = &mut self.classes[index];
                known.sequences += class.sequences;
                known.followers += class.followers;
                known.pending += class.pending;
            }
            Err(index) => self.classes.insert(index, class),
        }
    }

    /// Ends the count: how many more may run, and how much of a step is left for prompts.
    pub(crate) fn end(&mut self, places: usize, pieces: Pieces) {
        self.places = places;
        self.pieces = pieces;
    }

    /// When the first token of a newcomer comes, which `unseen` others precede that the engine has not
    /// taken in yet.
    pub(crate) fn first_token(&self, newcomer: &Newcomer, unseen: Load) -> Option<Duration> {
        let mut before = self.waiting.before(newcomer);
        before.add(unseen);
        let mut places = self.places;
        for class in &self.classes {
            if class.priority > newcomer.priority {
                // They make way.
                places += class.sequences;
            } else {
                before.tokens += class.pending;
                before.requests += class.followers;
            }
        }
        let computed = self.prefill_time(before.tokens, 0)?;
        let place = self.place_time((before.requests + 1).saturating_sub(places))?;
        let own = self.prefill_time(newcomer.prompt, newcomer.cached)?;
        Some(computed.max(place) + own)
    }

    /// When one of those who wait is likely to have left the queue.
    pub(crate) fn time_to_room(&self, waiting: Load) -> Duration {
        let pending: usize = self.classes.iter().map(|class| class.pending).sum();
        let ended = (waiting.requests + 1).saturating_sub(self.places);
        let computed = self.prefill_time(waiting.tokens + pending, 0);
        let all = computed.zip(self.place_time(ended));
        let requests = u32::try_from(waiting.requests.max(1)).unwrap_or(u32::MAX);
        let (least, most) = (Duration::from_secs(1), Duration::from_mins(1));
        all.map_or(least, |(computed, place)| {
            (computed.max(place) / requests).clamp(least, most)
        })
    }

    /// The time to compute prompts from a position on beside what runs.
    fn prefill_time(&self, tokens: usize, position: usize) -> Option<Duration> {
        if tokens == 0 {
            return self.rates.are_known().then_some(Duration::ZERO);
        }
        let room = self.pieces.average(tokens);
        let steps = u32::try_from(tokens / room).unwrap_or(u32::MAX);
        let whole = self
            .rates
            .time(self.decoding.with_prefill(room, position))?;
        let rest = self.decoding.with_prefill(tokens % room, position);
        let rest = if tokens.is_multiple_of(room) {
            Duration::ZERO
        } else {
            self.rates.time(rest)?
        };
        Some(whole.saturating_mul(steps).saturating_add(rest))
    }

    /// The time until this many of the running sequences have ended.
    fn place_time(&self, ended: usize) -> Option<Duration> {
        let running = self.decoding.decodes.max(1);
        let count = |value: usize| f64::from(u32::try_from(value).unwrap_or(u32::MAX));
        let steps = self.answer * count(ended) / count(running);
        let step = self.rates.time(self.decoding)?;
        Some(milliseconds(step.as_secs_f64() * 1e3 * steps))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::CostModel;

    const ME: TenantId = TenantId::new(7);
    const OTHER: TenantId = TenantId::new(1);
    const HEAVY: TenantId = TenantId::new(2);

    fn load(requests: usize, tokens: usize) -> Load {
        Load { requests, tokens }
    }

    fn newcomer(priority: i32, prompt: usize) -> Newcomer {
        Newcomer {
            priority,
            tenant: ME,
            prompt,
            cached: 0,
        }
    }

    #[test]
    fn many_tokens_are_taken_in_larger_pieces_than_few() {
        let mut pace = Pace::default();
        let pieces = |pace| Pieces {
            least: 32,
            most: 100,
            pace,
        };
        assert_eq!(pieces(pace).average(200), 32);
        assert_eq!(pieces(pace).average(1600), 50);
        assert_eq!(pieces(pace).average(10_000), 100);
        (0..500).for_each(|_| pace.note(40));
        assert_eq!(pieces(pace).average(320), 50);
        assert_eq!(Pieces::whole(0).average(5), 1);
        assert_eq!(Pieces::whole(7).average(5000), 7);
    }

    fn waiting(lines: &[(Line, Load)]) -> Waiting {
        let mut waiting = Waiting::new(&[(HEAVY, 4)]);
        for &(line, load) in lines {
            let came = true;
            waiting.apply(Change { line, came, load });
        }
        waiting
    }

    /// A step of 1 ms and a tenth for each prompt token.
    fn rates() -> Rates {
        let mut model = CostModel::new();
        for step in 0..80_usize {
            let mut work = Work {
                prefill: step * 7 % 40,
                ..Work::default()
            };
            (0..step % 6).for_each(|at| work.add(1, at * step));
            let micros = 1000 + 100 * work.prefill;
            model.learn(work, Duration::from_micros(micros as u64));
        }
        model.rates()
    }

    fn outlook(running: &[(i32, usize)], places: usize) -> Outlook {
        let mut outlook = Outlook::new(&[]);
        outlook.begin(rates(), 50.0);
        for &(priority, pending) in running {
            outlook.decoding.add(1, 100);
            outlook.add_to_class(Class {
                priority,
                sequences: 1,
                followers: 0,
                pending: pending - 1,
            });
        }
        outlook.end(places, Pieces::whole(50));
        outlook
    }

    fn milliseconds_of(outlook: &Outlook, newcomer: Newcomer) -> f64 {
        let expected = outlook.first_token(&newcomer, Load::default());
        (expected.unwrap().as_secs_f64() * 1e3).round()
    }

    #[test]
    fn only_those_who_would_be_served_before_are_counted() {
        let waiting = waiting(&[
            ((-1, Some(OTHER)), load(1, 10)),
            ((0, None), load(2, 200)),
            ((0, Some(ME)), load(1, 3000)),
            ((1, None), load(9, 90_000)),
            ((1, Some(ME)), load(9, 90_000)),
        ]);
        assert_eq!(waiting.before(&newcomer(-2, 1)), load(0, 0));
        assert_eq!(waiting.before(&newcomer(-1, 1)), load(1, 10));
        assert_eq!(waiting.before(&newcomer(0, 1)), load(4, 3210));
        assert_eq!(waiting.before(&newcomer(2, 1)), load(22, 183_210));
    }

    #[test]
    fn tenants_have_one_turn_and_then_keep_pace_by_their_weight() {
        let flood = load(100, 1000);
        let others = waiting(&[((0, Some(OTHER)), flood), ((0, Some(HEAVY)), flood)]);
        assert_eq!(others.before(&newcomer(0, 5)), load(2, 20));
        let own = load(3, 30);
        let mut waiting = others;
        let line = (0, Some(ME));
        let came = Change {
            line,
            came: true,
            load: own,
        };
        waiting.apply(came);
        let before = waiting.before(&newcomer(0, 5));
        assert_eq!(before, load(3 + 4 + 13, 30 + 40 + 130));
        let left = Change {
            came: false,
            ..came
        };
        waiting.apply(left);
        assert_eq!(waiting.before(&newcomer(0, 5)), load(2, 20));
    }

    #[test]
    fn prompts_ahead_fill_steps_and_the_own_comes_last() {
        let mut outlook = outlook(&[(0, 1)], 4);
        assert_eq!(milliseconds_of(&outlook, newcomer(0, 40)), 5.0);
        let change = Change {
            line: (0, None),
            came: true,
            load: load(1, 100),
        };
        outlook.waiting.apply(change);
        assert_eq!(milliseconds_of(&outlook, newcomer(0, 40)), 2.0 * 6.0 + 5.0);
        assert_eq!(milliseconds_of(&outlook, newcomer(-1, 40)), 5.0);
        let unseen = outlook.first_token(&newcomer(-1, 40), load(1, 50));
        assert_eq!(
            unseen.unwrap().as_secs_f64().mul_add(1e3, 0.5).floor(),
            11.0
        );
        let cached = Newcomer {
            cached: 30,
            ..newcomer(-1, 10)
        };
        assert_eq!(milliseconds_of(&outlook, cached), 2.0);
    }

    #[test]
    fn whoever_is_better_waits_for_no_place_and_no_prompt() {
        let outlook = outlook(&[(0, 101), (5, 1), (5, 11)], 0);
        // A place is free after 50 / 3 steps.
        assert_eq!(milliseconds_of(&outlook, newcomer(5, 10)), 17.0 + 2.0);
        assert_eq!(milliseconds_of(&outlook, newcomer(0, 10)), 12.0 + 2.0);
        assert_eq!(milliseconds_of(&outlook, newcomer(-1, 10)), 2.0);
    }

    #[test]
    fn room_comes_between_a_second_and_a_minute() {
        let outlook = outlook(&[(0, 1)], 1);
        assert_eq!(outlook.time_to_room(load(5, 0)), Duration::from_secs(1));
        let tokens = outlook.time_to_room(load(1, 25_000)).as_secs_f64();
        assert!((tokens - 3.0).abs() < 0.01, "{tokens}");
        let many = outlook.time_to_room(load(1, 10_000_000));
        assert_eq!(many, Duration::from_mins(1));
    }

    #[test]
    fn nothing_is_said_before_something_is_known() {
        let outlook = Outlook::new(&[]);
        assert_eq!(outlook.first_token(&newcomer(0, 1), Load::default()), None);
        assert_eq!(outlook.time_to_room(load(3, 3)), Duration::from_secs(1));
    }
}
