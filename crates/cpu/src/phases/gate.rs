//! The non-linearity of a feed-forward layer: `out = activation(gate) ⊙ up`, or `activation(up)` alone.

use crate::isa::math::{erfc, exp, tanh};
use crate::isa::{Isa, IsaChoice, Kernel, Lanes};
use forthwith_core::program::Activation;

/// `sqrt(2/π)`
const GELU_SCALE: f32 = 0.797_884_6;
const GELU_CUBE: f32 = 0.044_715;

/// Plain loops in double precision.
#[expect(clippy::cast_possible_truncation, reason = "specification")]
pub(crate) fn reference(activation: Activation, gate: &[f32], up: &[f32]) -> Vec<f32> {
    let product = |(gate, up): (&f32, &f32)| {
        (reference_of_one(activation, f64::from(*gate)) * f64::from(*up)) as f32
    };
    gate.iter().zip(up).map(product).collect()
}

/// Without a gate: in place.
#[expect(clippy::cast_possible_truncation, reason = "specification")]
pub(crate) fn reference_alone(activation: Activation, values: &mut [f32]) {
    for value in values {
        *value = reference_of_one(activation, f64::from(*value)) as f32;
    }
}

fn reference_of_one(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }
        Activation::Gelu => 0.5 * x * reference_erfc(-x * std::f64::consts::FRAC_1_SQRT_2),
        Activation::Relu => x.max(0.0),
        Activation::Tanh => x.tanh(),
    }
}

/// `1 − erf(x)`: the alternating series near zero, the continued fraction far from it.
fn reference_erfc(x: f64) -> f64 {
    let root = std::f64::consts::PI.sqrt();
    if x < 0.0 {
        return 2.0 - reference_erfc(-x);
    }
    if x < 2.0 {
        let (mut term, mut sum) = (x, x);
        for n in 1..80_u32 {
            let n = f64::from(n);
            term *= -x * x / n;
            sum += term / (2.0 * n + 1.0);
        }
        return 1.0 - 2.0 / root * sum;
    }
    let mut fraction = x;
    for n in (1..120_u32).rev() {
        fraction = x + f64::from(n) / 2.0 / fraction;
    }
    (-x * x).exp() / (root * fraction)
}

/// `activation(x)`
#[inline(always)]
fn activate<L: Lanes>(isa: L, activation: Activation, x: L::F) -> L::F {
    let (zero, one) = (isa.splat(0.0), isa.splat(1.0));
    match activation {
        Activation::Silu => {
            let e = exp(isa, isa.sub(zero, x));
            isa.div(x, isa.add(one, e))
        }
        Activation::GeluTanh => {
            let square = isa.mul(x, x);
            let factor = isa.fma(isa.splat(GELU_CUBE), square, one);
            let inner = isa.mul(isa.mul(isa.splat(GELU_SCALE), x), factor);
            let half = isa.mul(isa.splat(0.5), x);
            isa.mul(half, isa.add(one, tanh(isa, inner)))
        }
        Activation::Gelu => {
            // max(x, 0) − |x|/2 · erfc(|x|/√2), small where the result is.
            let size = isa.abs(x);
            let tail = erfc(
                isa,
                isa.mul(size, isa.splat(std::f32::consts::FRAC_1_SQRT_2)),
            );
            let half = isa.mul(isa.splat(0.5), size);
            isa.sub(isa.max(zero, x), isa.mul(half, tail))
        }
        Activation::Relu => isa.max(zero, x),
        Activation::Tanh => tanh(isa, x),
    }
}

/// The gated unit for tiles of sixteen lanes.
///
/// # Shapes   gate, up: `[tokens, 16]`
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
        for (gate, up) in gates.iter().zip(ups) {
            // SAFETY: both chunks hold sixteen floats.
            unsafe {
                let activated = activate(isa, self.activation, isa.load(gate.as_ptr()));
                let product = isa.mul(activated, isa.load(up.as_ptr()));
                isa.store(up.as_mut_ptr(), product);
            }
        }
    }
}

/// The activation alone, in place.
///
/// # Shapes   values: `[tokens, 16]`
pub(crate) struct Activate<'a> {
    pub(crate) activation: Activation,
    pub(crate) values: &'a mut [f32],
}

impl Kernel for Activate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let isa = isa.wide();
        for chunk in self.values.as_chunks_mut::<16>().0 {
            // SAFETY: a chunk holds sixteen floats.
            unsafe {
                let activated = activate(isa, self.activation, isa.load(chunk.as_ptr()));
                isa.store(chunk.as_mut_ptr(), activated);
            }
        }
    }
}

/// `activation(x)` of a single number.
pub(crate) fn activate_one(isa: IsaChoice, activation: Activation, x: f32) -> f32 {
    let mut values = [x; 16];
    let values = &mut values;
    isa.run(Activate { activation, values });
    values[0]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ALL: [Activation; 5] = [
        Activation::Silu,
        Activation::GeluTanh,
        Activation::Gelu,
        Activation::Relu,
        Activation::Tanh,
    ];

    /// From tables of the error function.
    #[test]
    fn the_reference_has_the_known_values() {
        for (x, value) in [
            (0.0, 1.0),
            (0.5, 0.479_500_122_186_953_5),
            (-1.0, 1.842_700_792_949_715),
            (1.9, 0.007_209_570_764_742_53),
            (2.5, 4.069_520_174_449_589e-4),
        ] {
            let got = reference_erfc(x);
            assert!((got / value - 1.0).abs() < 1e-12, "erfc({x}) = {got}");
        }
    }

    struct Erfc([f32; 16]);

    impl Kernel for Erfc {
        type Output = [f32; 16];

        #[inline(always)]
        fn run<I: Isa>(self, isa: I) -> [f32; 16] {
            let (wide, mut out) = (isa.wide(), self.0);
            // SAFETY: sixteen floats.
            unsafe { wide.store(out.as_mut_ptr(), erfc(wide, wide.load(out.as_ptr()))) };
            out
        }
    }

    #[test]
    fn erfc_keeps_its_bound_on_every_isa() {
        for start in 0..1000_u16 {
            let x: [f32; 16] = std::array::from_fn(|lane| {
                (f32::from(start) + f32::from(u8::try_from(lane).unwrap()) / 16.0) / 250.0
            });
            let all = IsaChoice::available()
                .into_iter()
                .map(|isa| isa.run(Erfc(x)));
            let all: Vec<[f32; 16]> = all.collect();
            for (lane, &got) in all[0].iter().enumerate() {
                let want = reference_erfc(f64::from(x[lane]));
                let error = (f64::from(got) / want - 1.0).abs();
                assert!(
                    want < 1e-6 || error < 2e-6,
                    "erfc({}) = {got}, off by {error}",
                    x[lane]
                );
            }
            let bits = |out: &[f32; 16]| out.map(f32::to_bits);
            assert!(
                all.iter().all(|out| bits(out) == bits(&all[0])),
                "at {start}"
            );
        }
    }

    /// In the far tail the result is small, and exact in proportion.
    #[test]
    fn gelu_is_exact_in_proportion() {
        for step in -2000..4000_i16 {
            let x = f32::from(step) / 400.0;
            let want = reference_of_one(Activation::Gelu, f64::from(x));
            let got = f64::from(activate_one(IsaChoice::best(), Activation::Gelu, x));
            // Of the two parts whose difference it is, the larger is rounded to 6e-8 of itself.
            let bound = 3e-6 * want.abs() + 1e-7 * f64::from(x.max(0.0));
            assert!((got - want).abs() <= bound, "gelu({x}) = {got}, not {want}");
        }
    }

    proptest! {
        #[test]
        fn matches_the_reference(
            gate in proptest::collection::vec(-30.0_f32..30.0, 16),
            up in proptest::collection::vec(-3.0_f32..3.0, 16),
        ) {
            for activation in ALL {
                let want = reference(activation, &gate, &up);
                let mut alone = gate.clone();
                reference_alone(activation, &mut alone);
                for isa in IsaChoice::available() {
                    let mut got = up.clone();
                    isa.run(GatedUnit { activation, gate: &gate, up: &mut got });
                    let mut got_alone = gate.clone();
                    isa.run(Activate { activation, values: &mut got_alone });
                    let pairs = got.iter().zip(&want).chain(got_alone.iter().zip(&alone));
                    for (got, want) in pairs {
                        let bound = 1e-6 * want.abs() + 2e-6;
                        prop_assert!((got - want).abs() <= bound, "{activation:?}: {got} {want}");
                    }
                }
            }
        }
    }
}
