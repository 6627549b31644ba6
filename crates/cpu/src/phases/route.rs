//! Which experts answer a token, and what each counts.

use crate::isa::math::exp_each;
use crate::isa::{Isa, Kernel};
use crate::memory::Plain;

/// An expert that answers a token.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Choice {
    pub(crate) expert: u32,
    /// What its answer is multiplied by.
    pub(crate) weight: f32,
}

// SAFETY: two numbers of one size.
unsafe impl Plain for Choice {}

/// Plain loops in double precision: the `used` highest scores, the first among equals, in the order
/// of the experts; their parts of the softmax over all scores, or of their own sum if `normalized`.
#[expect(clippy::cast_possible_truncation, reason = "specification")]
pub(crate) fn reference(scores: &[f32], used: usize, normalized: bool) -> Vec<Choice> {
    let mut experts: Vec<(u32, f32)> = (0..).zip(scores.iter().copied()).collect();
    experts.sort_by(|a, b| b.1.total_cmp(&a.1));
    let largest = f64::from(experts[0].1);
    let part = |one: &(u32, f32)| (f64::from(one.1) - largest).exp();
    let all: f64 = experts.iter().map(part).sum();
    experts.truncate(used);
    let sum = if normalized {
        experts.iter().map(part).sum()
    } else {
        all
    };
    experts.sort_unstable_by_key(|one| one.0);
    let choice = |one: &(u32, f32)| Choice {
        expert: one.0,
        weight: (part(one) / sum) as f32,
    };
    experts.iter().map(choice).collect()
}

/// The same with the vector exponential; as many experts as there are places in `chosen`.
pub(crate) struct Route<'a> {
    pub(crate) scores: &'a [f32],
    pub(crate) normalized: bool,
    pub(crate) chosen: &'a mut [Choice],
}

impl Kernel for Route<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let scores = self.scores;
        assert!(self.chosen.len() <= scores.len(), "no more than there are");
        let higher = |a: (u32, f32), b: (u32, f32)| {
            let order = a.1.total_cmp(&b.1);
            order.is_gt() || (order.is_eq() && a.0 < b.0)
        };
        let mut largest = 0.0;
        let mut last: Option<(u32, f32)> = None;
        for choice in &mut *self.chosen {
            let mut best: Option<(u32, f32)> = None;
            for one in (0..).zip(scores.iter().copied()) {
                let is_left = last.is_none_or(|last| higher(last, one));
                if is_left && best.is_none_or(|best| higher(one, best)) {
                    best = Some(one);
                }
            }
            let (expert, score) = best.unwrap_or_default();
            if last.is_none() {
                largest = score;
            }
            (choice.expert, choice.weight) = (expert, score);
            last = best;
        }
        let mut all = 0.0;
        if !self.normalized {
            for some in scores.chunks(8) {
                let mut lanes = [f32::NEG_INFINITY; 8];
                for (lane, score) in lanes.iter_mut().zip(some) {
                    *lane = score - largest;
                }
                for part in exp_each(isa, lanes) {
                    all += part;
                }
            }
        }
        for choice in &mut *self.chosen {
            let [part] = exp_each(isa, [choice.weight - largest]);
            choice.weight = part;
            if self.normalized {
                all += part;
            }
        }
        for choice in &mut *self.chosen {
            choice.weight /= all;
        }
        self.chosen.sort_unstable_by_key(|choice| choice.expert);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::IsaChoice;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn matches_the_reference(
            scores in proptest::collection::vec((-40_i8..40).prop_map(|x| f32::from(x) / 4.0), 1..80),
            used in 1_usize..9,
            normalized in any::<bool>(),
        ) {
            let used = used.min(scores.len());
            let want = reference(&scores, used, normalized);
            let mut first = None;
            for isa in IsaChoice::available() {
                let mut got = vec![Choice::default(); used];
                isa.run(Route { scores: &scores, normalized, chosen: &mut got });
                for (got, want) in got.iter().zip(&want) {
                    prop_assert_eq!(got.expert, want.expert);
                    prop_assert!((got.weight - want.weight).abs() < 1e-6, "{got:?} {want:?}");
                }
                prop_assert_eq!(first.get_or_insert_with(|| got.clone()), &got, "{:?}", isa);
            }
        }
    }

    #[test]
    fn scores_that_are_no_numbers_choose_something() {
        let scores = [f32::NAN, 1.0, f32::INFINITY, f32::NEG_INFINITY];
        let mut chosen = [Choice::default(); 4];
        IsaChoice::best().run(Route {
            scores: &scores,
            normalized: true,
            chosen: &mut chosen,
        });
        let experts: Vec<u32> = chosen.iter().map(|choice| choice.expert).collect();
        assert_eq!(experts, [0, 1, 2, 3]);
        assert!(chosen.iter().all(|choice| choice.weight.is_nan()));
    }
}
