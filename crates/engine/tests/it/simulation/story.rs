//! What happens in a world, written down before it happens, so that it can be told shorter.

use std::sync::Arc;
use std::time::Duration;

use forthwith_core::constraint::Constraint;
use forthwith_core::request::{
    Breakers, Filters, RequestParts, SamplingParams, Scheduling, Stage, StopRules,
};
use forthwith_core::units::{TenantId, TokenId};
use forthwith_engine::TargetGap;
use forthwith_models::hash_model::HashModel;

use super::dice::Dice;
use super::form::Form;
use crate::world::Shape;

/// A world and all that is done to it.
#[derive(Clone, Debug)]
pub(super) struct Story {
    pub(super) model: HashModel,
    pub(super) shape: Shape,
    /// Whether requests differ in priority and tenant.
    pub(super) ranks: bool,
    /// Whether steps take time.
    pub(super) timed: bool,
    pub(super) deeds: Vec<Deed>,
}

#[derive(Clone, Debug)]
pub(super) enum Deed {
    /// Requests come together.
    Arrive(Vec<RequestParts>),
    /// Cancels one of those who came so far; the number tells which.
    Cancel(usize),
    CancelAll,
    /// Takes no more until all have ended.
    Drain,
    Step,
    /// Time goes by.
    Wait(Duration),
    /// A step that fails.
    Fault,
}

impl Story {
    pub(super) fn of(seed: u64) -> Self {
        let mut dice = Dice(seed);
        let model = HashModel {
            vocab: dice.count(2, 30),
            seed,
        };
        let shape = Shape {
            block_size: dice.size(1, 6),
            blocks: dice.size(3, 20),
            max_running: dice.size(1, 8),
            max_step_tokens: dice.size(1, 24),
            max_waiting: dice.size(1, 40),
            max_waiting_tokens: if dice.chance(20) {
                dice.size(1, 60)
            } else {
                100_000
            },
            shares: dice.chance(85),
            target_gap: match dice.between(0, 5) {
                0 => TargetGap::Fixed(Duration::from_millis(dice.between(0, 20))),
                1 => TargetGap::Relative {
                    percent: dice.count(0, 400),
                },
                2 => TargetGap::Longer {
                    time: Duration::from_millis(dice.between(0, 20)),
                    percent: dice.count(0, 400),
                },
                _ => TargetGap::Off,
            },
            hash_bits: if dice.chance(25) {
                dice.count(0, 4)
            } else {
                128
            },
        };
        let mut teller = Teller {
            faults: dice.chance(20),
            salts: dice.chance(30),
            ranks: dice.chance(50),
            dice,
            model,
            shape,
        };
        let length = teller.dice.size(20, 120);
        Self {
            model,
            shape,
            ranks: teller.ranks,
            timed: teller.dice.chance(50),
            deeds: (0..length).map(|_| teller.deed()).collect(),
        }
    }
}

struct Teller {
    dice: Dice,
    model: HashModel,
    shape: Shape,
    faults: bool,
    salts: bool,
    ranks: bool,
}

impl Teller {
    fn deed(&mut self) -> Deed {
        match self.dice.roll() % 10 {
            0..3 => Deed::Arrive(self.requests()),
            3 if self.dice.chance(60) => Deed::Cancel(self.dice.size(0, 1000)),
            3 if self.dice.chance(5) => Deed::CancelAll,
            3 if self.dice.chance(5) => Deed::Drain,
            4 if self.dice.chance(30) => Deed::Wait(Duration::from_secs(1)),
            _ if self.faults && self.dice.chance(5) => Deed::Fault,
            _ => Deed::Step,
        }
    }

    /// Mostly one request; sometimes several choices of one prompt, or several prompts.
    fn requests(&mut self) -> Vec<RequestParts> {
        let mut all = vec![self.request()];
        if self.dice.chance(25) {
            for _ in 0..self.dice.size(1, 4) {
                let mut next = self.request();
                if self.dice.chance(85) {
                    next.prompt.clone_from(&all[0].prompt);
                    next.cache_salt.clone_from(&all[0].cache_salt);
                    next.scheduling = all[0].scheduling;
                    if self.dice.chance(85) {
                        next.prompt_logprobs = all[0].prompt_logprobs;
                        next.max_tokens = next.max_tokens.map(|most| most.max(1));
                    }
                }
                all.push(next);
            }
        }
        all
    }

    fn request(&mut self) -> RequestParts {
        let sampling = self.sampling();
        let prompt = self.prompt();
        let dice = &mut self.dice;
        let salt = dice.between(0, 2);
        let patience = dice
            .chance(10)
            .then(|| Duration::from_secs(dice.between(0, 4)));
        let mut scheduling = Scheduling {
            max_queue_time: patience,
            max_time: dice
                .chance(10)
                .then(|| Duration::from_millis(dice.between(0, 4000))),
            max_time_to_first_token: dice
                .chance(5)
                .then(|| Duration::from_millis(dice.between(0, 200))),
            ..Scheduling::default()
        };
        if self.ranks {
            scheduling.priority = i32::try_from(dice.between(0, 2)).unwrap() - 1;
            scheduling.tenant = TenantId::new(dice.between(0, 3));
        }
        let end = self.model.token(dice.roll());
        let stop = StopRules {
            end_tokens: vec![end],
            stop_token_ids: if dice.chance(20) {
                vec![self.model.token(dice.roll())]
            } else {
                Vec::new()
            },
            ignore_end: dice.chance(50),
        };
        // Most have a chance to fit.
        let capacity = self.shape.blocks * self.shape.block_size;
        let room = (capacity + 1 - prompt.len()) as u64;
        let longest = if dice.chance(5) { 60 } else { room.min(60) };
        let prompt_logprobs = dice.chance(20).then(|| dice.count(0, 5));
        let least = u64::from(prompt_logprobs.is_none());
        RequestParts {
            max_tokens: Some(dice.between(least, longest)),
            prompt_logprobs,
            sampling,
            stop,
            logprobs: dice.chance(20).then(|| dice.count(0, 5)),
            cache_salt: (self.salts && salt > 0).then(|| vec![u8::try_from(salt).unwrap()]),
            scheduling,
            bypass_cache: dice.chance(5),
            constraint: self.form(),
            ..RequestParts::new(prompt)
        }
    }

    fn form(&mut self) -> Option<Arc<dyn Constraint>> {
        let (dice, vocab) = (&mut self.dice, self.model.vocab);
        let form = Form {
            seed: dice.roll(),
            vocab: TokenId::new(vocab).index(),
            length: dice.size(1, 60),
        };
        dice.chance(20)
            .then(|| Arc::new(form) as Arc<dyn Constraint>)
    }

    fn prompt(&mut self) -> Vec<TokenId> {
        let dice = &mut self.dice;
        let capacity = self.shape.blocks * self.shape.block_size;
        let length = if dice.chance(20) {
            dice.size(1, capacity.min(40))
        } else {
            dice.size(1, capacity.min(12))
        };
        // Some prompts come again, as in life, and many begin alike.
        let mut words = Dice(dice.between(0, 8));
        let alike = dice.size(0, 40);
        let mut own = Dice(dice.between(0, 3));
        let word = |at: usize| if at < alike { words.roll() } else { own.roll() };
        (0..length)
            .map(word)
            .map(|word| self.model.token(word))
            .collect()
    }

    fn sampling(&mut self) -> SamplingParams {
        let dice = &mut self.dice;
        let greedy = dice.chance(40);
        let mut sometimes = |otherwise: f32, scale: f32| {
            if dice.chance(70) {
                otherwise
            } else {
                otherwise + dice.share() * scale
            }
        };
        let mut params = SamplingParams {
            temperature: if greedy { 0.0 } else { sometimes(0.7, 1.0) },
            top_p: 1.0 + sometimes(0.0, -1.0),
            min_p: sometimes(0.0, 0.3),
            repetition_penalty: sometimes(1.0, 1.0),
            frequency_penalty: sometimes(0.0, 1.0),
            presence_penalty: sometimes(0.0, 1.0),
            top_k: dice.count(0, 20),
            filters: Filters::default(),
            seed: dice.between(0, 5),
            choice: dice.count(0, 2),
        };
        if dice.chance(35) {
            self.refine(&mut params);
        }
        params
    }

    /// Settings that few requests use: some of the filters in some order, or mirostat.
    fn refine(&mut self, params: &mut SamplingParams) {
        let words = self.prompt();
        let dice = &mut self.dice;
        let filters = &mut params.filters;
        let window = |dice: &mut Dice| dice.chance(70).then(|| dice.count(0, 12));
        if dice.chance(30) && params.repetition_penalty <= 1.0 {
            filters.repeat.penalty = 1.0 + dice.share();
            filters.repeat.last = window(dice);
        }
        if dice.chance(50) {
            filters.dry.multiplier = dice.share() * 2.0;
            filters.dry.allowed_length = dice.count(0, 3);
            filters.dry.last = window(dice);
            let runs = words.chunks(3).map(|run| (run[0], run[1..].to_vec()));
            let runs = runs.take(dice.size(0, 3)).collect();
            filters.dry.breakers = Arc::new(Breakers::new(runs));
        }
        if dice.chance(40) {
            (params.top_k, params.top_p, params.min_p) = (0, 1.0, 0.0);
            filters.mirostat.version = dice.count(1, 2);
            filters.mirostat.tau = dice.share() * 4.0;
            filters.mirostat.eta = dice.share();
            return;
        }
        if dice.chance(40) {
            filters.top_n_sigma = dice.share() * 3.0;
        }
        if dice.chance(40) {
            filters.typical_p = dice.share();
        }
        if dice.chance(40) {
            filters.xtc.probability = dice.share();
            filters.xtc.threshold = dice.share() * 0.5;
        }
        if dice.chance(40) {
            filters.dynamic.range = dice.share();
            filters.dynamic.exponent = dice.share() * 2.0;
        }
        if dice.chance(50) {
            let mut order = Stage::USUAL.to_vec();
            for last in (1..order.len()).rev() {
                order.swap(last, dice.size(0, last));
            }
            filters.order = Some(order);
        }
    }
}

trait Words {
    fn token(&self, value: u64) -> TokenId;
}

impl Words for HashModel {
    fn token(&self, value: u64) -> TokenId {
        TokenId::new(u32::try_from(value % u64::from(self.vocab)).unwrap())
    }
}
