//! Which tokens may be drawn: selection by rank and by mass, without sorting the vocabulary.
//!
//! Likelihood orders by logit; among equals the lower id comes first. Because weights are whole
//! numbers, every sum here is exact and the order of work does not matter.

use std::cmp::Ordering;

use forthwith_core::rows::{ONE, STRETCH, fixed, weight};

/// A stretch of this length has a maximum of its own where many tokens are looked for.
pub(super) const PIECE: usize = 16;

/// A token that may be drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
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

/// Writes the `count` most likely tokens into `out`, in no order and without their shares. `maxima`
/// are the largest logits of the row's stretches, `spare` is overwritten.
///
/// # Cost   a pass over the stretches that reach the `count`-th largest of the maxima, so at most
///   `count` of them but for equals; the buffer holds at most twice the count
pub(super) fn most_likely(
    logits: &[f32],
    maxima: &[f32],
    count: usize,
    spare: &mut Vec<f32>,
    out: &mut Vec<Candidate>,
) {
    out.clear();
    spare.clear();
    if count <= maxima.len() {
        spare.extend_from_slice(maxima);
    } else if count <= logits.len() / PIECE {
        let max = |a: f32, b: f32| if b > a { b } else { a };
        let largest = |piece: &[f32]| piece.iter().copied().fold(f32::NEG_INFINITY, max);
        spare.extend(logits.chunks(PIECE).map(largest));
    }
    // As many tokens are at least as likely as the last of so many maxima.
    let mut least = f32::NEG_INFINITY;
    if !spare.is_empty() {
        least = *spare
            .select_nth_unstable_by(count - 1, |a, b| b.total_cmp(a))
            .1;
    }
    for (index, (stretch, &max)) in logits.chunks(STRETCH).zip(maxima).enumerate() {
        if max < least {
            continue;
        }
        let start = u32::try_from(index * STRETCH).expect("ids have 32 bits");
        for (id, &logit) in (start..).zip(stretch) {
            if logit < least {
                continue;
            }
            let share = 0.0;
            out.push(Candidate { logit, id, share });
            if out.len() == 2 * count {
                out.select_nth_unstable_by(count - 1, by_likelihood);
                out.truncate(count);
                // Equal to the last is not enough: `count` tokens of lower id are as likely.
                least = out[count - 1].logit.next_up();
            }
        }
    }
    if out.len() > count {
        out.select_nth_unstable_by(count - 1, by_likelihood);
        out.truncate(count);
    }
}

/// The place of a token by likelihood, the first at 1.
pub(super) fn rank(logits: &[f32], id: usize) -> u32 {
    let own = logits[id];
    let (before, after) = logits.split_at(id);
    let equal_or_more = before.iter().filter(|&&logit| logit >= own).count();
    let more = after.iter().filter(|&&logit| logit > own).count();
    u32::try_from(1 + equal_or_more + more).expect("ids have 32 bits")
}

/// Keeps the smallest set of most likely candidates whose mass is at least `need`.
pub(super) fn keep_mass(candidates: &mut Vec<Candidate>, need: u64) {
    let last = crossing_by_likelihood(candidates, need);
    candidates.truncate(last + 1);
}

/// The index of the candidate at which the mass of the most likely ones reaches `need`, the first
/// one if nothing is needed. Afterwards all that are more likely stand before it.
pub(super) fn crossing_by_likelihood(candidates: &mut [Candidate], need: u64) -> usize {
    crossing(candidates, need, by_likelihood)
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
pub(super) fn crossing(
    candidates: &mut [Candidate],
    mut need: u64,
    order: impl Fn(&Candidate, &Candidate) -> Ordering + Copy,
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
