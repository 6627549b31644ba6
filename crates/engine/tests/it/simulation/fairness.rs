//! Tenants that both wait never drift apart, whatever else happens.

use forthwith_core::request::Scheduling;
use forthwith_core::units::{SeqId, TenantId};
use forthwith_engine::Engine;

use super::dice::Dice;
use crate::world::{Log, MODEL, Shape, WEIGHT_OF_ONE, parts, request};

const PROMPT: usize = 12;
const ANSWER: u64 = 16;

/// The most that a request costs its tenant.
const LARGEST: usize = PROMPT + 16;

struct Tenant {
    id: u64,
    logs: Vec<(SeqId, Log, usize)>,
}

impl Tenant {
    /// Tokens computed for it, a prompt as a whole when it begins, divided by its weight.
    fn served(&self) -> usize {
        let begun = self
            .logs
            .iter()
            .map(|(_, log, prompt)| (log.tokens().len(), prompt));
        let begun = begun.filter(|&(tokens, _)| tokens > 0);
        let served: usize = begun.map(|(tokens, prompt)| tokens + prompt).sum();
        served / self.weight()
    }

    fn weight(&self) -> usize {
        if self.id == 1 { WEIGHT_OF_ONE } else { 1 }
    }

    fn waits(&self) -> bool {
        let waits = |log: &Log| log.tokens().is_empty() && !log.has_ended();
        self.logs.iter().any(|(_, log, _)| waits(log))
    }
}

pub(super) fn play(seed: u64) -> u64 {
    let mut dice = Dice(seed);
    let shape = Shape {
        max_running: dice.size(1, 6),
        max_step_tokens: dice.size(6, 40),
        blocks: dice.size(12, 60),
        max_waiting: 1000,
        // A prompt that is found costs less, which nobody outside can see.
        shares: false,
        ..Shape::default()
    };
    let mut engine = shape.engine(shape.executor(MODEL));
    let mut tenants = [1, 2, 3].map(|id| Tenant {
        id,
        logs: Vec::new(),
    });
    for _ in 0..60 {
        let tenant = dice.size(0, 2);
        submit(&mut engine, &mut tenants[tenant], &mut dice);
    }
    for _ in 0..dice.size(0, 30) {
        engine.step();
    }
    let start = tenants.each_ref().map(Tenant::served);
    let mut compared = 0;
    while tenants.iter().all(Tenant::waits) {
        engine.step();
        if dice.chance(10) {
            let tenant = &tenants[dice.size(0, 2)];
            let (id, ..) = tenant.logs[dice.size(0, tenant.logs.len() - 1)];
            engine.cancel(id);
        }
        let since = [0, 1, 2].map(|index| tenants[index].served() - start[index]);
        let (least, most) = (since.iter().min(), since.iter().max());
        // All places may be one tenant's, now and when the comparison began. Who was cancelled or
        // sent away in the prompt was charged for what the owner has not seen.
        let bound = 2 * (shape.max_running + 1) * LARGEST + LARGEST * compared / 10;
        assert!(most.unwrap() - least.unwrap() <= bound, "{since:?}");
        compared += 1;
    }
    compared as u64
}

fn submit(engine: &mut Engine, tenant: &mut Tenant, dice: &mut Dice) {
    let length = dice.size(1, PROMPT);
    let prompt: Vec<u32> = (0..length).map(|_| dice.count(0, 49)).collect();
    let mut parts = parts(&prompt, dice.between(1, ANSWER));
    parts.scheduling = Scheduling {
        tenant: TenantId::new(tenant.id),
        ..Scheduling::default()
    };
    let log = Log::default();
    let id = engine.submit(request(parts), log.sink()).unwrap();
    tenant.logs.push((id, log, length));
}
