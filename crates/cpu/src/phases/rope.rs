//! Rotary position embedding of one head.
//!
//! Pair `i` turns by `position · inverse_frequencies[i]`: `(a, b) → (a·cos − b·sin, a·sin + b·cos)`.
//!
//! Source: Su et al. 2021, arXiv:2104.09864.

use crate::isa::{Isa, Kernel};
use forthwith_core::program::{Pairing, Rope};

/// Cosines and sines of one position, magnitude included: `[pairs]` each.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "specification"
)]
pub(crate) fn table(rope: &Rope, position: usize, out: &mut [f32]) {
    let (cos, sin) = out.split_at_mut(rope.inverse_frequencies.len());
    for (i, frequency) in rope.inverse_frequencies.iter().enumerate() {
        let angle = position as f64 * frequency;
        cos[i] = (angle.cos() * f64::from(rope.magnitude)) as f32;
        sin[i] = (angle.sin() * f64::from(rope.magnitude)) as f32;
    }
}

/// Where the two elements of pair `i` are.
fn places(pairing: Pairing, pairs: usize, i: usize) -> (usize, usize) {
    match pairing {
        Pairing::Adjacent => (2 * i, 2 * i + 1),
        Pairing::Halves => (i, i + pairs),
    }
}

/// Plain loops in double precision.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "specification"
)]
pub(crate) fn reference(rope: &Rope, position: usize, head: &mut [f32]) {
    for (i, frequency) in rope.inverse_frequencies.iter().enumerate() {
        let (at_a, at_b) = places(rope.pairing, rope.inverse_frequencies.len(), i);
        let (a, b) = (f64::from(head[at_a]), f64::from(head[at_b]));
        let (sin, cos) = (position as f64 * frequency).sin_cos();
        let magnitude = f64::from(rope.magnitude);
        head[at_a] = ((a * cos - b * sin) * magnitude) as f32;
        head[at_b] = ((a * sin + b * cos) * magnitude) as f32;
    }
}

/// Turns one head by a table of [`table`].
pub(crate) struct Rotate<'a> {
    pub(crate) pairing: Pairing,
    pub(crate) table: &'a [f32],
    pub(crate) head: &'a mut [f32],
}

impl Kernel for Rotate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, _isa: I) {
        let (cos, sin) = self.table.split_at(self.table.len() / 2);
        match self.pairing {
            Pairing::Adjacent => {
                let (pairs, _) = self.head.as_chunks_mut::<2>();
                for ((pair, cos), sin) in pairs.iter_mut().zip(cos).zip(sin) {
                    let [a, b] = *pair;
                    *pair = [a * cos - b * sin, a * sin + b * cos];
                }
            }
            Pairing::Halves => {
                let (first, second) = self.head.split_at_mut(cos.len());
                let halves = first.iter_mut().zip(second);
                for (((a, b), cos), sin) in halves.zip(cos).zip(sin) {
                    (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
                }
            }
        }
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
            head in proptest::collection::vec(-4.0_f32..4.0, 64),
            position in 0_usize..100_000, pairs in 1_usize..=32, halves in any::<bool>(),
        ) {
            let rope = Rope {
                pairing: if halves { Pairing::Halves } else { Pairing::Adjacent },
                inverse_frequencies: (0..pairs).map(|i| 0.7_f64.powi(i32::try_from(i).unwrap())).collect(),
                magnitude: 1.25,
            };
            let mut want = head.clone();
            reference(&rope, position, &mut want);
            let mut turns = vec![0.0; 2 * pairs];
            table(&rope, position, &mut turns);
            for isa in IsaChoice::available() {
                let mut got = head.clone();
                isa.run(Rotate { pairing: rope.pairing, table: &turns, head: &mut got });
                for (got, want) in got.iter().zip(&want) {
                    prop_assert!((got - want).abs() < 2e-6, "{got} {want}");
                }
            }
        }
    }
}
