//! The sampler's passes over a row of logits: the plain loops, compiled for an instruction set.
//!
//! The loops fuse nothing and reorder no sum, so all compilations give the bits of the plain one.

use crate::isa::{Isa, IsaChoice, Kernel};
use forthwith_core::rows::{BUCKETS, RowPasses, Stretches, Weighing, plain};

pub(crate) struct CompiledPasses(pub(crate) IsaChoice);

impl RowPasses for CompiledPasses {
    fn maxima(&self, logits: &[f32], maxima: &mut [f32]) -> bool {
        self.0.run(Maxima(logits, maxima))
    }

    fn masses(&self, row: Stretches<'_>, weighing: &Weighing, masses: &mut [u64]) {
        self.0.run(Masses(row, weighing, masses));
    }

    fn histogram(&self, row: Stretches<'_>, weighing: &Weighing, table: &mut [u64; BUCKETS]) {
        self.0.run(Histogram(row, weighing, table));
    }

    fn in_bucket(
        &self,
        row: Stretches<'_>,
        weighing: &Weighing,
        bucket: u32,
        found: &mut dyn FnMut(usize),
    ) {
        self.0.run(InBucket(row, weighing, bucket, found));
    }
}

struct Maxima<'a>(&'a [f32], &'a mut [f32]);

impl Kernel for Maxima<'_> {
    type Output = bool;

    #[inline(always)]
    fn run<I: Isa>(self, _: I) -> bool {
        plain::maxima(self.0, self.1)
    }
}

struct Masses<'a>(Stretches<'a>, &'a Weighing, &'a mut [u64]);

impl Kernel for Masses<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, _: I) {
        plain::masses(self.0, self.1, self.2);
    }
}

struct Histogram<'a>(Stretches<'a>, &'a Weighing, &'a mut [u64; BUCKETS]);

impl Kernel for Histogram<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, _: I) {
        plain::histogram(self.0, self.1, self.2);
    }
}

struct InBucket<'a>(Stretches<'a>, &'a Weighing, u32, &'a mut dyn FnMut(usize));

impl Kernel for InBucket<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, _: I) {
        plain::in_bucket(self.0, self.1, self.2, self.3);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forthwith_core::rows::{PlainPasses, STRETCH, table};
    use proptest::prelude::*;

    /// All that the passes say of a row.
    fn said(
        passes: &dyn RowPasses,
        row: &[f32],
        weighing: &Weighing,
    ) -> (bool, Vec<u32>, Vec<u64>, Vec<usize>) {
        let stretches = row.len().div_ceil(STRETCH);
        let (mut maxima, mut masses) = (vec![0.0; stretches], vec![0; stretches]);
        let sound = passes.maxima(row, &mut maxima);
        let stretches = Stretches {
            logits: row,
            maxima: &maxima,
        };
        passes.masses(stretches, weighing, &mut masses);
        let mut table = table();
        passes.histogram(stretches, weighing, &mut table);
        masses.extend(table.iter());
        let mut found = Vec::new();
        for bucket in [0, weighing.bucket(row[row.len() / 2]), 24 * 128 - 1] {
            passes.in_bucket(stretches, weighing, bucket, &mut |at| found.push(at));
        }
        let maxima = maxima.into_iter().map(f32::to_bits).collect();
        (sound, maxima, masses, found)
    }

    proptest! {
        #[test]
        fn every_instruction_set_gives_the_plain_bits(
            row in prop::collection::vec(prop_oneof![
                8 => -30.0_f32..10.0,
                1 => Just(f32::NEG_INFINITY),
                1 => Just(-0.0),
            ], 1..1000),
            temperature in 1e-5_f32..2.0,
            least in (-20.0_f32..3.0, 0.0_f32..0.2),
            damaged in prop::option::of(any::<prop::sample::Index>()),
        ) {
            let mut row = row;
            row[0] = 10.0;
            let weighing = Weighing {
                least_logit: least.0,
                least_share: least.1,
                ..Weighing::new(10.0, temperature)
            };
            let plain = said(&PlainPasses, &row, &weighing);
            for isa in IsaChoice::available() {
                prop_assert_eq!(&said(&CompiledPasses(isa), &row, &weighing), &plain);
            }
            if let Some(at) = damaged {
                *at.get_mut(&mut row) = f32::NAN;
                let mut maxima = vec![0.0; row.len().div_ceil(STRETCH)];
                for isa in IsaChoice::available() {
                    prop_assert!(!CompiledPasses(isa).maxima(&row, &mut maxima));
                }
            }
        }
    }
}
