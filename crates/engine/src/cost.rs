//! What a step costs, learnt while running, and what follows for those who wait.
//!
//! `time = a + b · prefill tokens + c · decodes + d · context`, fitted to the steps of late, older ones
//! counting less. Each step counts by how far the prediction is off in proportion, so that a step that was
//! held up by something else teaches little. No coefficient is negative: steps that are alike leave
//! open which part of them costs what, and a free fit then wanders off along what they leave open. The
//! same steps with the same times give the same model, to the bit. It decides nothing about tokens: it
//! predicts when a first token comes, and, if the operator sets a target for the gap between tokens, how
//! large a piece of a prompt fits a step.
//!
//! # Source     Franc, Hlaváč, Navara, "Sequential Coordinate-wise Algorithm for the Non-negative Least
//! Squares Problem", 2005; started from the last solution, with exponential forgetting

use std::time::Duration;

/// What one step has to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Work {
    /// Tokens of prompts.
    pub(crate) prefill: usize,
    /// Sequences that compute one token.
    pub(crate) decodes: usize,
    /// Positions that all tokens together look back on.
    pub(crate) context: usize,
}

impl Work {
    /// Adds a run of tokens that begins at a position.
    pub(crate) fn add(&mut self, tokens: usize, position: usize) {
        if tokens == 1 {
            self.decodes += 1;
        } else {
            self.prefill += tokens;
        }
        self.context += tokens * position + tokens * (tokens + 1) / 2;
    }

    pub(crate) fn with_prefill(mut self, tokens: usize, position: usize) -> Self {
        self.prefill += tokens;
        self.context += tokens * position + tokens * (tokens + 1) / 2;
        self
    }

    /// Scaled so that all entries are of the same size in an ordinary step.
    fn features(self) -> Features {
        let count =
            |value: usize, unit: f64| f64::from(u32::try_from(value).unwrap_or(u32::MAX)) / unit;
        [
            1.0,
            count(self.prefill, 64.0),
            count(self.decodes, 8.0),
            count(self.context, 4096.0),
        ]
    }
}

const COUNT: usize = 4;
type Features = [f64; COUNT];

/// Share of a step's weight that is left when the next one counts in full.
const FORGETTING: f64 = 0.99;
/// Steps before anything is predicted.
const WARM_UP: u64 = 8;
/// Passes over the coefficients after each step.
const PASSES: usize = 16;
/// A coefficient of which less was seen stays as it is.
const LITTLE: f64 = 1e-12;

/// The four coefficients, in milliseconds, and whether they mean something yet.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Rates {
    coefficients: Features,
    ready: bool,
}

impl Rates {
    /// Whether they mean something.
    pub(crate) fn are_known(&self) -> bool {
        self.ready
    }

    /// The time of a step; `None` while too little is known.
    pub(crate) fn time(&self, work: Work) -> Option<Duration> {
        self.ready
            .then(|| milliseconds(dot(&self.coefficients, &work.features())))
    }

    /// The most prompt tokens, up to `most` and at least `least`, that a step can take beside `work`
    /// within a time.
    pub(crate) fn prefill_within(
        &self,
        target: Duration,
        work: Work,
        position: usize,
        range: (usize, usize),
    ) -> usize {
        let (least, most) = range;
        let fits = |tokens: usize| {
            let time = self.time(work.with_prefill(tokens, position));
            time.is_none_or(|time| time <= target)
        };
        if least >= most || fits(most) {
            return most;
        }
        let (mut fitting, mut too_many) = (least, most);
        while too_many - fitting > 1 {
            let middle = usize::midpoint(fitting, too_many);
            if fits(middle) {
                fitting = middle;
            } else {
                too_many = middle;
            }
        }
        fitting
    }
}

/// How far predictions were off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PredictionError {
    /// Predictions that could be compared with what happened.
    pub count: u64,
    /// Their errors, whatever the sign, summed.
    pub error: Duration,
    /// What was predicted, summed; beside what happened it shows a bias.
    pub predicted: Duration,
    /// What really happened, summed.
    pub actual: Duration,
}

impl PredictionError {
    pub(crate) fn note(&mut self, predicted: Duration, actual: Duration) {
        self.count += 1;
        self.error += predicted.abs_diff(actual);
        self.predicted += predicted;
        self.actual += actual;
    }
}

/// Learns what a step costs.
#[derive(Debug)]
pub(crate) struct CostModel {
    rates: Rates,
    /// Products of the features of past steps, each in proportion to the step's time, summed.
    products: [Features; COUNT],
    /// The features themselves, summed likewise.
    sums: Features,
    steps: u64,
    error: PredictionError,
}

impl CostModel {
    pub(crate) fn new() -> Self {
        Self {
            rates: Rates::default(),
            products: [[0.0; COUNT]; COUNT],
            sums: [0.0; COUNT],
            steps: 0,
            error: PredictionError::default(),
        }
    }

    pub(crate) fn rates(&self) -> Rates {
        self.rates
    }

    /// How far the predicted times of steps were off.
    pub(crate) fn error(&self) -> PredictionError {
        self.error
    }

    /// Learns from a step.
    pub(crate) fn learn(&mut self, work: Work, time: Duration) {
        if let Some(predicted) = self.rates.time(work) {
            self.error.note(predicted, time);
        }
        if time.is_zero() {
            return; // The clock stood still.
        }
        let time = time.as_secs_f64() * 1e3;
        let features = work.features().map(|feature| feature / time);
        for (index, &feature) in features.iter().enumerate() {
            self.sums[index] = self.sums[index] * FORGETTING + feature;
            for (product, other) in self.products[index].iter_mut().zip(features) {
                *product = *product * FORGETTING + feature * other;
            }
        }
        for _ in 0..PASSES {
            self.descend();
        }
        self.steps += 1;
        self.rates.ready = self.steps >= WARM_UP;
    }

    /// Sets each coefficient to what fits best while the others stay.
    fn descend(&mut self) {
        for (index, products) in self.products.iter().enumerate() {
            let seen = products[index];
            if seen > LITTLE {
                let missed = self.sums[index] - dot(products, &self.rates.coefficients);
                let coefficient = &mut self.rates.coefficients[index];
                *coefficient = (*coefficient + missed / seen).max(0.0);
            }
        }
    }
}

fn dot(a: &Features, b: &Features) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// A duration from a number that may be negative or too large.
pub(crate) fn milliseconds(value: f64) -> Duration {
    Duration::try_from_secs_f64((value / 1e3).max(0.0)).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times of a machine that is exactly linear, in microseconds.
    fn machine(work: Work) -> Duration {
        let micros = 700 + 90 * work.prefill + 310 * work.decodes + work.context / 8;
        Duration::from_micros(micros as u64)
    }

    fn works() -> impl Iterator<Item = Work> {
        (0..60_usize).map(|step| {
            let mut work = Work::default();
            for decode in 0..step * 7 % 9 {
                work.add(1, 50 * decode + step);
            }
            if step % 3 == 0 {
                work.add(16 + step * 13 % 100, step * 31 % 500);
            }
            work
        })
    }

    fn trained() -> CostModel {
        let mut model = CostModel::new();
        works().for_each(|work| model.learn(work, machine(work)));
        model
    }

    fn close(a: Duration, b: Duration) -> bool {
        a.abs_diff(b) <= b / 50 + Duration::from_micros(20)
    }

    #[test]
    fn learns_a_linear_machine_and_says_how_well() {
        let model = trained();
        let mut work = Work::default();
        work.add(300, 100);
        work.add(1, 900);
        let predicted = model.rates().time(work).unwrap();
        assert!(close(predicted, machine(work)), "{predicted:?}");
        let error = model.error();
        assert_eq!(error.count, 60 - WARM_UP);
        assert!(error.error * 20 < error.actual, "{error:?}");
    }

    #[test]
    fn says_nothing_before_it_knows_something() {
        let mut model = CostModel::new();
        for work in works().take(7) {
            model.learn(work, machine(work));
            assert_eq!(model.rates().time(work), None);
        }
        let whole = model
            .rates()
            .prefill_within(Duration::ZERO, Work::default(), 0, (4, 99));
        assert_eq!(whole, 99, "without knowledge nothing is held back");
    }

    #[test]
    fn the_same_steps_give_the_same_model() {
        assert_eq!(trained().rates(), trained().rates());
    }

    #[test]
    fn follows_a_machine_that_gets_slower_and_survives_monotony() {
        let mut model = trained();
        let mut work = Work::default();
        work.add(1, 100);
        for _ in 0..100_000 {
            model.learn(work, machine(work) * 2);
        }
        assert!(close(model.rates().time(work).unwrap(), machine(work) * 2));
        works().for_each(|work| model.learn(work, machine(work) * 2));
        works().for_each(|work| model.learn(work, machine(work) * 2));
        let mut other = Work::default();
        other.add(64, 0);
        let (predicted, actual) = (model.rates().time(other).unwrap(), machine(other) * 2);
        assert!(
            predicted.abs_diff(actual) < actual / 5,
            "{predicted:?} {actual:?}"
        );
    }

    /// A crowd's daily life: so many answers, a piece of a prompt beside them or none.
    fn crowd(step: usize) -> Work {
        let mut work = Work::default();
        for answer in 0..28 + step * 7 % 5 {
            work.add(1, 200 + (step + 17 * answer) % 64);
        }
        if !step.is_multiple_of(4) {
            work.add(100 + step * 11 % 40, step * 64 % 128);
        }
        work
    }

    #[test]
    fn a_long_day_of_steps_that_are_alike_leaves_it_true() {
        let mut model = CostModel::new();
        for step in 0..20_000 {
            // Times scatter by a fifth, as on a shared machine, and now and then one takes for ever.
            let scatter = Duration::from_micros((step * 7919 % 401) as u64) * 40;
            let stall = Duration::from_secs(u64::from(step % 997 == 0) * 20);
            let work = crowd(step);
            model.learn(
                work,
                machine(work) * 4 / 5 + scatter.min(machine(work) * 2 / 5) + stall,
            );
            if step < 100 {
                continue;
            }
            let mut bare = Work::default();
            (0..30).for_each(|answer| bare.add(1, 200 + answer));
            let pairs = [crowd(step + 1), bare, bare.with_prefill(64, 0)];
            for work in pairs {
                let (predicted, actual) = (model.rates().time(work).unwrap(), machine(work));
                assert!(
                    predicted > actual / 2 && predicted < actual * 3 / 2,
                    "step {step}: {predicted:?} for {actual:?}, {:?}",
                    model.rates()
                );
            }
        }
        let error = model.error();
        assert!(error.predicted < error.actual * 11 / 10, "{error:?}");
    }

    #[test]
    fn finds_the_largest_piece_that_fits() {
        let rates = trained().rates();
        let mut work = Work::default();
        work.add(1, 10);
        let target = Duration::from_millis(10);
        let tokens = rates.prefill_within(target, work, 0, (4, 500));
        assert!(rates.time(work.with_prefill(tokens, 0)).unwrap() <= target);
        assert!(rates.time(work.with_prefill(tokens + 1, 0)).unwrap() > target);
        assert!((80..110).contains(&tokens), "{tokens}");
        assert_eq!(rates.prefill_within(Duration::ZERO, work, 0, (4, 500)), 4);
        assert_eq!(rates.prefill_within(Duration::MAX, work, 0, (4, 500)), 500);
        assert_eq!(rates.prefill_within(Duration::ZERO, work, 0, (4, 3)), 3);
    }
}
