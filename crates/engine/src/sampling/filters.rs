//! Which tokens may be drawn: selection by rank and by mass, without sorting the vocabulary.
//!
//! Likelihood orders by logit; among equals the lower id comes first. Because weights are whole
//! numbers, every sum here is exact and the order of work does not matter.

use std::cmp::Ordering;

use super::exact::{ONE, fixed, weight};

/// A token that may be drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Candidate {
    pub(super) logit: f32,
    pub(super) id: u32,
    /// Its probability as a share of the most likely token's.
    pub(super) share: f32,
}

impl Candidate {
    pub(super) fn weight(&self) -> u64 {
        weight(self.share)
    }
}

/// The more likely first, the lower id first among equals.
pub(super) fn by_likelihood(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit
        .partial_cmp(&a.logit)
        .unwrap_or(Ordering::Equal)
        .then(a.id.cmp(&b.id))
}

fn by_id(a: &Candidate, b: &Candidate) -> Ordering {
    a.id.cmp(&b.id)
}

/// Writes the `count` most likely tokens into `out`, in no order and without their shares.
///
/// # Cost   one pass; the buffer holds at most twice the count
pub(super) fn most_likely(logits: &[f32], count: usize, out: &mut Vec<Candidate>) {
    out.clear();
    let mut floor = f32::NEG_INFINITY;
    for (id, &logit) in (0_u32..).zip(logits) {
        // Equal to the floor is not enough: `count` tokens of lower id are as likely.
        if out.len() >= count && logit <= floor {
            continue;
        }
        out.push(Candidate {
            logit,
            id,
            share: 0.0,
        });
        if out.len() == count {
            floor = out.iter().map(|c| c.logit).fold(f32::INFINITY, f32::min);
        } else if out.len() >= 2 * count {
            out.select_nth_unstable_by(count - 1, by_likelihood);
            out.truncate(count);
            floor = out[count - 1].logit;
        }
    }
    if out.len() > count {
        out.select_nth_unstable_by(count - 1, by_likelihood);
        out.truncate(count);
    }
}

/// Keeps the smallest set of most likely candidates whose mass reaches `top_p` of all of theirs.
pub(super) fn keep_nucleus(candidates: &mut Vec<Candidate>, top_p: f32) {
    let need = nucleus_mass(mass(candidates), top_p);
    keep_mass(candidates, need);
}

/// Keeps the smallest set of most likely candidates whose mass is at least `need`.
pub(super) fn keep_mass(candidates: &mut Vec<Candidate>, need: u64) {
    let last = crossing(candidates, need, by_likelihood);
    candidates.truncate(last + 1);
}

/// The mass that a nucleus must reach.
pub(super) fn nucleus_mass(total: u64, top_p: f32) -> u64 {
    let product = u128::from(total) * u128::from(fixed(f64::from(top_p)));
    u64::try_from(product.div_ceil(u128::from(ONE))).expect("a share of the total")
}

/// The token that `bits` points to when candidates lie side by side in order of id.
pub(super) fn pick(candidates: &mut [Candidate], bits: u64) -> u32 {
    let target = scale(mass(candidates), bits);
    let index = crossing(candidates, target + 1, by_id);
    candidates[index].id
}

/// A point below `total`, as far along as `bits` is along all 64-bit numbers.
pub(super) fn scale(total: u64, bits: u64) -> u64 {
    let product = u128::from(total) * u128::from(bits);
    u64::try_from(product >> 64).expect("below the total")
}

pub(super) fn mass(candidates: &[Candidate]) -> u64 {
    candidates.iter().map(Candidate::weight).sum()
}

/// The index of the candidate at which the mass in this order reaches `need`, the first one if
/// nothing is needed. Afterwards all that come before it in that order stand before it.
///
/// # Cost   halves the rest each time, so linear in all
fn crossing(
    candidates: &mut [Candidate],
    mut need: u64,
    order: fn(&Candidate, &Candidate) -> Ordering,
) -> usize {
    let (mut low, mut high) = (0, candidates.len());
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        candidates[low..high].select_nth_unstable_by(middle - low, order);
        let first_half = mass(&candidates[low..middle]);
        if first_half >= need {
            high = middle;
        } else {
            need -= first_half;
            low = middle;
        }
    }
    low
}
