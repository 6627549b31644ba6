//! Root-mean-square norm of one row.
//!
//! `out[i] = x[i] / sqrt(mean(x²) + eps) · weight[i]`
//!
//! Source: Zhang & Sennrich 2019, arXiv:1910.07467.

use crate::isa::math::sum_lanes;
use crate::isa::{Isa, Kernel};

/// Plain loops in double precision.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "specification"
)]
pub(crate) fn reference(x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    let squares: f64 = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
    let scale = 1.0 / (squares / x.len() as f64 + f64::from(eps)).sqrt();
    x.iter()
        .zip(weight)
        .map(|(&x, &weight)| (f64::from(x) * scale * f64::from(weight)) as f32)
        .collect()
}

/// The same in single precision; the order of the sum depends on the length alone.
///
/// # Shapes   x, weight, out: the same length
pub(crate) struct RmsNorm<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) weight: &'a [f32],
    pub(crate) eps: f32,
    pub(crate) out: &'a mut [f32],
}

impl Kernel for RmsNorm<'_> {
    type Output = ();

    #[inline(always)]
    #[expect(clippy::cast_precision_loss, reason = "lengths are far below 2^24")]
    fn run<I: Isa>(self, isa: I) {
        let len = self.x.len();
        assert!(
            self.weight.len() == len && self.out.len() == len,
            "rows of one length"
        );
        let (chunks, rest) = self.x.as_chunks::<8>();
        let mut sums = [isa.splat(0.0); 2];
        for (i, chunk) in chunks.iter().enumerate() {
            // SAFETY: a chunk holds eight floats.
            let x = unsafe { isa.load(chunk.as_ptr()) };
            sums[i % 2] = isa.fma(x, x, sums[i % 2]);
        }
        let mut squares = sum_lanes(isa, isa.add(sums[0], sums[1]));
        for x in rest {
            squares += x * x;
        }
        let scale = 1.0 / (squares / len as f32 + self.eps).sqrt();
        for ((out, x), weight) in self.out.iter_mut().zip(self.x).zip(self.weight) {
            *out = x * scale * weight;
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
            (x, weight) in (1_usize..300).prop_flat_map(|len| (
                proptest::collection::vec(-100.0_f32..100.0, len),
                proptest::collection::vec(-3.0_f32..3.0, len),
            )),
        ) {
            let want = reference(&x, &weight, 1e-5);
            let mut first: Option<Vec<f32>> = None;
            for isa in IsaChoice::available() {
                let mut out = vec![0.0; x.len()];
                isa.run(RmsNorm { x: &x, weight: &weight, eps: 1e-5, out: &mut out });
                for (got, want) in out.iter().zip(&want) {
                    prop_assert!((got - want).abs() <= 2e-6 * want.abs() + 1e-30, "{got} {want}");
                }
                prop_assert_eq!(first.get_or_insert(out.clone()), &out);
            }
        }
    }
}
