//! Stages in any order against plain definitions in `f64`, and against the fast path.

use forthwith_core::request::Filters;
use proptest::prelude::*;

use super::*;

/// Closer to a border than this, rounding may decide.
const ROUNDING: f64 = 1e-4;

/// Tokens and their probabilities, computed in the plainest way.
struct Plain {
    /// Logits by token.
    logits: Vec<(u32, f64)>,
    /// How far the case is from one where rounding may decide.
    margin: f64,
}

impl Plain {
    fn new(logits: &[f32]) -> Self {
        let possible = (0_u32..).zip(logits).filter(|(_, logit)| logit.is_finite());
        Self {
            logits: possible
                .map(|(id, &logit)| (id, f64::from(logit)))
                .collect(),
            margin: f64::INFINITY,
        }
    }

    fn max(&self) -> f64 {
        self.logits
            .iter()
            .fold(f64::NEG_INFINITY, |max, l| max.max(l.1))
    }

    fn probabilities(&self) -> Vec<(u32, f64)> {
        let max = self.max();
        let total: f64 = self.logits.iter().map(|(_, l)| (l - max).exp()).sum();
        let share = |&(id, logit): &(u32, f64)| (id, (logit - max).exp() / total);
        self.logits.iter().map(share).collect()
    }

    fn entropy(&self) -> f64 {
        let terms = self.probabilities().into_iter().filter(|(_, p)| *p > 0.0);
        terms.map(|(_, p)| -p * p.ln()).sum()
    }

    /// Notes a comparison that rounding may turn around.
    fn compare(&mut self, a: f64, b: f64) {
        self.margin = self.margin.min((a - b).abs());
    }

    fn keep(&mut self, ids: &[u32]) {
        self.logits.retain(|(id, _)| ids.contains(id));
    }

    /// The most likely first, the lower id first among equals.
    fn sorted(&self) -> Vec<(u32, f64)> {
        let mut sorted = self.probabilities();
        let logit = |id: u32| self.logits.iter().find(|l| l.0 == id).unwrap().1;
        sorted.sort_by(|a, b| logit(b.0).total_cmp(&logit(a.0)).then(a.0.cmp(&b.0)));
        sorted
    }

    /// Keeps the first ones, until their sum reaches the share (or exceeds it).
    fn keep_run(&mut self, run: &[(u32, f64)], share: f64, exceeds: bool) {
        let mut sum = 0.0;
        let mut kept = Vec::new();
        for &(id, p) in run {
            kept.push(id);
            sum += p;
            self.compare(sum, share);
            if sum > share || !exceeds && sum >= share {
                break;
            }
        }
        self.keep(&kept);
    }

    fn temperature(&mut self, temperature: f64) {
        if temperature < 1e-5 {
            let best = self.sorted()[0].0;
            self.keep(&[best]);
        } else {
            self.logits.iter_mut().for_each(|l| l.1 /= temperature);
        }
    }

    fn dynamic(&mut self, params: &SamplingParams) {
        if self.logits.len() < 2 {
            return;
        }
        let dynamic = params.filters.dynamic;
        let (middle, range) = (f64::from(params.temperature), f64::from(dynamic.range));
        let low = (middle - range).max(0.0);
        let share = (self.entropy() / (self.logits.len() as f64).ln()).clamp(0.0, 1.0);
        let temperature = low + (middle + range - low) * share.powf(f64::from(dynamic.exponent));
        // Very low ones enlarge every rounding.
        if temperature < 0.05 {
            self.margin = 0.0;
        }
        self.temperature(temperature);
    }

    fn apply(&mut self, stage: Stage, params: &SamplingParams, chance: f64) {
        let filters = &params.filters;
        match stage {
            Stage::Penalties | Stage::Dry => unreachable!("tested by themselves"),
            Stage::Temperature if filters.dynamic.range > 0.0 => self.dynamic(params),
            Stage::Temperature => self.temperature(f64::from(params.temperature)),
            Stage::TopNSigma => {
                let count = self.logits.len() as f64;
                let mean = self.logits.iter().map(|l| l.1).sum::<f64>() / count;
                let squares = self.logits.iter().map(|l| (l.1 - mean).powi(2));
                let sigma = (squares.sum::<f64>() / count).sqrt();
                let least = self.max() - f64::from(filters.top_n_sigma) * sigma;
                for (_, logit) in self.logits.clone() {
                    self.compare(logit, least);
                }
                self.logits.retain(|l| l.1 >= least);
            }
            Stage::TopK => {
                let sorted = self.sorted();
                let kept: Vec<u32> = sorted
                    .iter()
                    .map(|t| t.0)
                    .take(params.top_k as usize)
                    .collect();
                self.keep(&kept);
            }
            Stage::TypicalP => {
                let entropy = self.entropy();
                let oddness = |p: f64| (-p.ln() - entropy).abs();
                let mut run = self.sorted();
                run.sort_by(|a, b| oddness(a.1).total_cmp(&oddness(b.1)));
                for pair in run.windows(2) {
                    self.compare(oddness(pair[0].1), oddness(pair[1].1));
                }
                self.keep_run(&run, f64::from(filters.typical_p), true);
            }
            Stage::TopP => self.keep_run(&self.sorted(), f64::from(params.top_p), false),
            Stage::MinP => {
                let sorted = self.sorted();
                let least = sorted[0].1 * f64::from(params.min_p);
                for t in &sorted {
                    self.compare(t.1, least);
                }
                self.keep(
                    &sorted
                        .iter()
                        .filter(|t| t.1 >= least)
                        .map(|t| t.0)
                        .collect::<Vec<_>>(),
                );
            }
            Stage::Xtc => {
                let (often, threshold) = (
                    f64::from(filters.xtc.probability),
                    f64::from(filters.xtc.threshold),
                );
                self.compare(chance, often);
                if chance < often && threshold <= 0.5 {
                    let sorted = self.sorted();
                    for t in &sorted {
                        self.compare(t.1, threshold);
                    }
                    let reaching = sorted.iter().filter(|t| t.1 >= threshold).count();
                    let kept = sorted.iter().skip(reaching.saturating_sub(1)).map(|t| t.0);
                    self.keep(&kept.collect::<Vec<_>>());
                }
            }
        }
    }
}

fn any_logits() -> impl Strategy<Value = Vec<f32>> {
    let logit = prop_oneof![
        8 => -10.0_f32..10.0,
        1 => Just(f32::NEG_INFINITY),
    ];
    (prop::collection::vec(logit, 1..100), -5.0_f32..5.0).prop_map(|(mut logits, first)| {
        logits[0] = first;
        logits
    })
}

/// Settings of which about half are off, in any order.
fn any_filters() -> impl Strategy<Value = SamplingParams> {
    let or = |off: f32, on: std::ops::Range<f32>| prop_oneof![Just(off), on];
    let usual = (
        prop_oneof![Just(1.0), Just(0.0), 0.3_f32..2.0],
        prop_oneof![Just(0_u32), 1_u32..60],
        or(1.0, 0.0..1.0),
        or(0.0, 0.0..0.3),
    );
    let further = (
        or(0.0, 0.1..3.0),
        or(1.0, 0.0..1.0),
        or(0.0, 0.0..1.0),
        0.0_f32..0.6,
        or(0.0, 0.1..1.0),
        0.0_f32..3.0,
    );
    let stages: Vec<Stage> = Stage::USUAL.to_vec();
    let order = prop::option::of(Just(stages).prop_shuffle());
    (usual, further, order, any::<u64>()).prop_map(|(usual, further, order, seed)| {
        let mut filters = Filters {
            top_n_sigma: further.0,
            typical_p: further.1,
            order,
            ..Filters::default()
        };
        filters.xtc.probability = further.2;
        filters.xtc.threshold = further.3;
        filters.dynamic.range = further.4;
        filters.dynamic.exponent = further.5;
        SamplingParams {
            temperature: usual.0,
            top_k: usual.1,
            top_p: usual.2,
            min_p: usual.3,
            filters,
            seed,
            ..SamplingParams::default()
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn stages_in_any_order_are_what_the_definitions_say(
        logits in any_logits(),
        params in any_filters(),
        place in 1_usize..20,
    ) {
        let request = request(params.clone(), 1);
        let tokens = ids(&vec![0; place]);
        let chance = rng::chance(params.seed, 0, place as u64) as f64 / 2.0_f64.powi(64);
        let mut plain = Plain::new(&logits);
        for stage in stages(&params) {
            plain.apply(stage, &params, chance);
        }
        let left = left(&row(&logits, &request, &tokens));
        prop_assert!(!left.is_empty());
        let expected = plain.probabilities();
        prop_assert!(
            plain.margin < ROUNDING || close(&left, &expected, ROUNDING),
            "{left:?} {expected:?} {}", plain.margin
        );
    }

    #[test]
    fn the_list_chooses_what_the_fast_path_chooses(
        logits in any_logits(),
        params in any_filters(),
        place in 1_usize..20,
    ) {
        let mut params = SamplingParams { filters: Filters::default(), ..params };
        let tokens = ids(&vec![0; place]);
        let fast = request(params.clone(), 1);
        prop_assert!(is_usual(fast.sampling()));
        let chosen = sampler(logits.len()).choose(&row(&logits, &fast, &tokens), &mut Alone);
        // Out of the usual order, but with the same stages.
        let mut listing = sampler(logits.len());
        listing.scan.look(&logits, &mut Alone).unwrap();
        let listed = listing.pick_listed(&logits, &row(&logits, &fast, &tokens)).unwrap();
        prop_assert_eq!(listed, (chosen.clone().unwrap().token.get(), None));
        // Off in other words.
        params.filters.top_n_sigma = 0.0;
        params.filters.xtc.probability = 0.7;
        params.filters.xtc.threshold = 0.51;
        params.filters.repeat.penalty = 2.0;
        params.filters.repeat.last = Some(0);
        params.filters.dry.multiplier = 3.0;
        params.filters.dry.last = Some(0);
        params.filters.dynamic.exponent = 2.0;
        params.filters.mirostat.tau = 1.0;
        let other = request(params, 1);
        let again = sampler(logits.len()).choose(&row(&logits, &other, &tokens), &mut Alone);
        prop_assert_eq!(again, chosen);
    }
}
