//! Soft capping: `cap · tanh(x / cap)` in place.

use crate::isa::math::tanh;
use crate::isa::{Isa, Kernel};

/// Plain loops in double precision.
#[expect(clippy::cast_possible_truncation, reason = "specification")]
pub(crate) fn reference(cap: f32, values: &mut [f32]) {
    for value in values {
        *value = (f64::from(cap) * (f64::from(*value) / f64::from(cap)).tanh()) as f32;
    }
}

/// The same with the vector `tanh`.
pub(crate) struct Softcap<'a> {
    pub(crate) cap: f32,
    pub(crate) values: &'a mut [f32],
}

impl Kernel for Softcap<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        for chunk in self.values.chunks_mut(8) {
            let mut lanes = [0.0; 8];
            lanes[..chunk.len()].copy_from_slice(chunk);
            let cap = isa.splat(self.cap);
            // SAFETY: `lanes` holds eight floats.
            let capped = unsafe { tanh(isa, isa.div(isa.load(lanes.as_ptr()), cap)) };
            chunk.copy_from_slice(&isa.to_array(isa.mul(cap, capped))[..chunk.len()]);
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
        fn matches_the_reference(values in proptest::collection::vec(-200.0_f32..200.0, 1..40)) {
            let mut want = values.clone();
            reference(30.0, &mut want);
            for isa in IsaChoice::available() {
                let mut got = values.clone();
                isa.run(Softcap { cap: 30.0, values: &mut got });
                for (got, want) in got.iter().zip(&want) {
                    prop_assert!((got - want).abs() < 2e-5, "{got} {want}");
                }
            }
        }
    }
}
