//! The exact slow path: a list of the tokens that are still possible, and stages that shorten it.
//!
//! The list stays in order of id, so that sums of rounded numbers have one order, and stages may come
//! in any order. Shares and weights are those of the fast path: where both could choose, they choose
//! the same token. One thread walks the list.
//!
//! Each stage takes shares anew, relative to the most likely token that is left.

use std::cmp::Ordering;

use forthwith_core::request::{DynamicTemperature, Xtc};
use forthwith_core::rows::{ONE, Weighing, fixed};
use forthwith_core::units::TokenId;

use super::exact::{ln, pow};
use super::filters::{self, Candidate, by_likelihood, crossing, keep_mass, nucleus_mass, scale};
use super::penalties::Logits;

/// Temperatures below this leave the most likely token.
const COLDEST: f32 = 1e-5;

/// Tokens that are still possible, at least one, in order of id.
pub(super) struct List<'a> {
    candidates: &'a mut Vec<Candidate>,
    temperature: f32,
}

/// How the tokens share the probability.
pub(super) struct Shares {
    /// What all weigh together.
    pub(super) total: u64,
    weighing: Weighing,
}

impl Shares {
    /// How far a token is below the most likely one: `ln (p_max / p)`.
    pub(super) fn depth(&self, candidate: &Candidate, temperature: f32) -> f64 {
        (f64::from(self.weighing.max) - f64::from(candidate.logit)) / f64::from(temperature)
    }

    /// How surprising the most likely token is: `ln (1 / p_max)`.
    pub(super) fn least_surprise(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "to a part in 2^53")]
        let total = self.total as f64 / ONE as f64;
        ln(total)
    }
}

impl Logits for [Candidate] {
    fn of(&mut self, token: TokenId) -> Option<&mut f32> {
        let place = self.binary_search_by_key(&token.get(), |candidate| candidate.id);
        place.ok().map(|place| &mut self[place].logit)
    }
}

impl<'a> List<'a> {
    /// Of all tokens with finite logits, of which there is one at least.
    pub(super) fn of_row(logits: &[f32], candidates: &'a mut Vec<Candidate>) -> Self {
        candidates.clear();
        let share = 0.0;
        let all = (0_u32..).zip(logits);
        let possible = all.filter(|(_, logit)| **logit > f32::NEG_INFINITY);
        candidates.extend(possible.map(|(id, &logit)| Candidate { logit, id, share }));
        Self {
            candidates,
            temperature: 1.0,
        }
    }

    /// Of some tokens, in any order.
    pub(super) fn of_some(candidates: &'a mut Vec<Candidate>) -> Self {
        candidates.retain(|candidate| candidate.logit > f32::NEG_INFINITY);
        let mut list = Self {
            candidates,
            temperature: 1.0,
        };
        list.restore_order();
        list
    }

    /// How many tokens are left.
    pub(super) fn len(&self) -> usize {
        self.candidates.len()
    }

    /// The tokens that are left.
    pub(super) fn candidates(&self) -> &[Candidate] {
        self.candidates
    }

    /// Their temperature.
    pub(super) fn temperature(&self) -> f32 {
        self.temperature
    }

    /// The logits, divided by the temperature, to be changed.
    pub(super) fn logits(&mut self) -> &mut [Candidate] {
        let temperature = std::mem::replace(&mut self.temperature, 1.0);
        if temperature.to_bits() != 1.0_f32.to_bits() {
            for candidate in &mut *self.candidates {
                candidate.logit /= temperature;
            }
        }
        self.candidates
    }

    /// Drops what became impossible; the first logit that is no logit any more, if there is one.
    pub(super) fn settle(&mut self) -> Option<Candidate> {
        let unsound = |c: &&Candidate| c.logit.is_nan() || c.logit == f32::INFINITY;
        let broken = self.candidates.iter().find(unsound).copied();
        self.candidates
            .retain(|candidate| candidate.logit > f32::NEG_INFINITY);
        broken
    }

    /// Fills in the shares.
    pub(super) fn weigh(&mut self) -> Shares {
        let larger = |max: f32, candidate: &Candidate| max.max(candidate.logit);
        let max = self.candidates.iter().fold(f32::NEG_INFINITY, larger);
        let weighing = Weighing::new(max, self.temperature);
        for candidate in &mut *self.candidates {
            candidate.share = weighing.share(candidate.logit);
        }
        Shares {
            total: filters::mass(self.candidates),
            weighing,
        }
    }

    /// Keeps what fulfils a condition.
    pub(super) fn retain(&mut self, keeps: impl FnMut(&Candidate) -> bool) {
        self.candidates.retain(keeps);
    }

    /// Draws at a temperature from here on. A very low one leaves the most likely token.
    pub(super) fn set_temperature(&mut self, temperature: f32) {
        if temperature < COLDEST {
            self.keep_most_likely(1);
        } else {
            self.temperature = temperature;
        }
    }

    /// Draws at a temperature that follows the entropy `H` of the `n` tokens that are left:
    /// `T − r + 2r · (H / ln n)^e`, with `T − r` at least 0.
    ///
    /// # Source   llama.cpp, `temp_ext`; there named dynamic temperature
    pub(super) fn set_dynamic_temperature(&mut self, middle: f32, dynamic: DynamicTemperature) {
        if self.len() < 2 {
            return;
        }
        #[expect(clippy::cast_precision_loss, reason = "ids have 32 bits")]
        let largest = ln(self.len() as f64);
        let shares = self.weigh();
        let entropy = shares.least_surprise() + self.mean_depth(&shares);
        let share = (entropy / largest).clamp(0.0, 1.0);
        let (middle, range) = (f64::from(middle), f64::from(dynamic.range));
        let (low, high) = ((middle - range).max(0.0), middle + range);
        let temperature = low + (high - low) * pow(share, f64::from(dynamic.exponent));
        #[expect(clippy::cast_possible_truncation, reason = "rounds to the nearest")]
        self.set_temperature(temperature as f32);
    }

    /// Keeps the `k` most likely tokens; 0 keeps all.
    pub(super) fn top_k(&mut self, k: u32) {
        if k > 0 {
            self.keep_most_likely(k as usize);
        }
    }

    /// Keeps the shortest run of most likely tokens that weighs `p` of all.
    pub(super) fn top_p(&mut self, p: f32) {
        if p < 1.0 {
            let shares = self.weigh();
            keep_mass(self.candidates, nucleus_mass(shares.total, p));
            self.restore_order();
        }
    }

    /// Drops tokens of less than this share of the most likely one's probability.
    pub(super) fn min_p(&mut self, p: f32) {
        if p > 0.0 {
            self.weigh();
            self.retain(|candidate| candidate.share >= p);
        }
    }

    /// Keeps logits of at least `max − n σ`, with σ their standard deviation.
    ///
    /// # Source   Tang et al. 2024, arXiv:2411.07641
    pub(super) fn top_n_sigma(&mut self, n: f32) {
        if n <= 0.0 {
            return;
        }
        #[expect(clippy::cast_precision_loss, reason = "ids have 32 bits")]
        let count = self.len() as f64;
        let logits = || self.candidates.iter().map(|c| f64::from(c.logit));
        let mean = logits().sum::<f64>() / count;
        let squares = logits().map(|logit| (logit - mean) * (logit - mean));
        let variance = squares.sum::<f64>() / count;
        let max = logits().fold(f64::NEG_INFINITY, f64::max);
        // Squares on both sides spare the root.
        let farthest = f64::from(n) * f64::from(n) * variance;
        self.retain(|candidate| {
            let below = max - f64::from(candidate.logit);
            below * below <= farthest
        });
    }

    /// Keeps the tokens whose surprise is nearest to the entropy, the shortest run of these that weighs
    /// more than `p` of all.
    ///
    /// # Source   Meister et al. 2022, arXiv:2202.00666
    pub(super) fn typical_p(&mut self, p: f32) {
        if p >= 1.0 {
            return;
        }
        let shares = self.weigh();
        // Surprise and entropy both hold the least surprise, so depths tell their difference.
        let (mean, temperature) = (self.mean_depth(&shares), self.temperature);
        let oddness = |c: &Candidate| {
            let difference = shares.depth(c, temperature) - mean;
            difference.max(-difference)
        };
        let by_oddness = |a: &Candidate, b: &Candidate| -> Ordering {
            let order = oddness(a).total_cmp(&oddness(b));
            order.then_with(|| by_likelihood(a, b))
        };
        let share = u128::from(shares.total) * u128::from(fixed(f64::from(p))) / u128::from(ONE);
        let need = u64::try_from(share).expect("a share of the total") + 1;
        let last = crossing(self.candidates, need.min(shares.total), by_oddness);
        self.candidates.truncate(last + 1);
        self.restore_order();
    }

    /// Where a chance is taken, drops all tokens that reach the threshold but the least likely of
    /// them. `bits` of 2⁶⁴ decide the chance.
    ///
    /// # Source   llama.cpp, pull request 9742, after text-generation-webui, pull request 6335
    pub(super) fn xtc(&mut self, xtc: Xtc, bits: u64) {
        let taken = u128::from(bits) < u128::from(fixed(f64::from(xtc.probability))) << 24;
        if !taken || xtc.threshold > 0.5 {
            return;
        }
        let shares = self.weigh();
        let threshold = u128::from(fixed(f64::from(xtc.threshold))) * u128::from(shares.total);
        let reaches = |c: &&Candidate| u128::from(c.weight()) * u128::from(ONE) >= threshold;
        let reaching = self.candidates.iter().filter(reaches);
        let Some(&least) = reaching.max_by(|a, b| by_likelihood(a, b)) else {
            return;
        };
        self.retain(|candidate| by_likelihood(candidate, &least) != Ordering::Less);
    }

    /// The token at a point, `bits` of 2⁶⁴ along, when all lie side by side; and what all weigh.
    pub(super) fn draw(&mut self, bits: u64) -> (Candidate, Shares) {
        let shares = self.weigh();
        let mut rest = scale(shares.total, bits);
        for candidate in &*self.candidates {
            let weight = candidate.weight();
            if rest < weight {
                return (*candidate, shares);
            }
            rest -= weight;
        }
        unreachable!("the point lies below the total")
    }

    /// Keeps so many of the most likely tokens.
    pub(super) fn keep_most_likely(&mut self, count: usize) {
        if count < self.len() {
            let last = count.saturating_sub(1);
            self.candidates.select_nth_unstable_by(last, by_likelihood);
            self.candidates.truncate(last + 1);
            self.restore_order();
        }
    }

    /// The mean of the depths, each as heavy as its token.
    fn mean_depth(&self, shares: &Shares) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "to a part in 2^53")]
        let heavy = |weight: u64| weight as f64;
        let moments = self
            .candidates
            .iter()
            .map(|candidate| heavy(candidate.weight()) * shares.depth(candidate, self.temperature));
        moments.sum::<f64>() / heavy(shares.total)
    }

    fn restore_order(&mut self) {
        self.candidates
            .sort_unstable_by_key(|candidate| candidate.id);
    }
}
