//! The gate of a feed-forward layer: `out = activation(gate) ⊙ up`.

use crate::isa::math::{exp, tanh};
use crate::isa::{Isa, Kernel, Lanes};
use forthwith_core::program::Activation;

/// `sqrt(2/π)`
const GELU_SCALE: f32 = 0.797_884_6;
const GELU_CUBE: f32 = 0.044_715;

/// Plain loops in double precision.
#[expect(clippy::cast_possible_truncation, reason = "specification")]
pub(crate) fn reference(activation: Activation, gate: &[f32], up: &[f32]) -> Vec<f32> {
    let activate = |x: f64| match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }
    };
    let product = |(gate, up): (&f32, &f32)| (activate(f64::from(*gate)) * f64::from(*up)) as f32;
    gate.iter().zip(up).map(product).collect()
}

/// The same for tiles of sixteen lanes.
///
/// # Shapes   gate, up, out: `[tokens, 16]`; `out` has its own stride and may be narrower at the end
pub(crate) struct GatedUnit<'a> {
    pub(crate) activation: Activation,
    pub(crate) gate: &'a [f32],
    /// Replaced by the result.
    pub(crate) up: &'a mut [f32],
}

impl Kernel for GatedUnit<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let isa = isa.wide();
        let (gates, _) = self.gate.as_chunks::<16>();
        let (ups, _) = self.up.as_chunks_mut::<16>();
        let one = isa.splat(1.0);
        for (gate, up) in gates.iter().zip(ups) {
            // SAFETY: both chunks hold sixteen floats.
            unsafe {
                let x = isa.load(gate.as_ptr());
                let activated = match self.activation {
                    Activation::Silu => {
                        let e = exp(isa, isa.sub(isa.splat(0.0), x));
                        isa.div(x, isa.add(one, e))
                    }
                    Activation::GeluTanh => {
                        let square = isa.mul(x, x);
                        let factor = isa.fma(isa.splat(GELU_CUBE), square, one);
                        let inner = isa.mul(isa.mul(isa.splat(GELU_SCALE), x), factor);
                        let half = isa.mul(isa.splat(0.5), x);
                        isa.mul(half, isa.add(one, tanh(isa, inner)))
                    }
                };
                let product = isa.mul(activated, isa.load(up.as_ptr()));
                isa.store(up.as_mut_ptr(), product);
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
            gate in proptest::collection::vec(-30.0_f32..30.0, 16),
            up in proptest::collection::vec(-3.0_f32..3.0, 16),
        ) {
            for activation in [Activation::Silu, Activation::GeluTanh] {
                let want = reference(activation, &gate, &up);
                for isa in IsaChoice::available() {
                    let mut got = up.clone();
                    isa.run(GatedUnit { activation, gate: &gate, up: &mut got });
                    for (got, want) in got.iter().zip(&want) {
                        let bound = 1e-6 * want.abs() + 2e-6;
                        prop_assert!((got - want).abs() <= bound, "{activation:?}: {got} {want}");
                    }
                }
            }
        }
    }
}
