//! Norms of one row: `out[i] = (x[i] − c) / sqrt(mean((x − c)²) + eps) · weight[i] + bias[i]`, where
//! `c` is 0 (root mean square) or `mean(x)` (layer norm).
//!
//! Source: Zhang & Sennrich 2019, arXiv:1910.07467; Ba et al. 2016, arXiv:1607.06450.

use crate::isa::math::sum_lanes;
use crate::isa::{Isa, Kernel};
use forthwith_core::program::NormKind;

/// A norm's parameters as numbers.
#[derive(Clone, Copy)]
pub(crate) struct NormValues<'a> {
    pub(crate) kind: NormKind,
    pub(crate) weight: &'a [f32],
    pub(crate) bias: Option<&'a [f32]>,
    pub(crate) eps: f32,
}

/// Plain loops in double precision.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "specification"
)]
pub(crate) fn reference(norm: NormValues<'_>, x: &[f32]) -> Vec<f32> {
    let len = x.len() as f64;
    let center = match norm.kind {
        NormKind::RootMeanSquare => 0.0,
        NormKind::Layer => x.iter().map(|&x| f64::from(x)).sum::<f64>() / len,
    };
    let squares: f64 = x.iter().map(|&x| (f64::from(x) - center).powi(2)).sum();
    let scale = 1.0 / (squares / len + f64::from(norm.eps)).sqrt();
    let bias = |i: usize| norm.bias.map_or(0.0, |bias| f64::from(bias[i]));
    let value = |(i, &x): (usize, &f32)| {
        ((f64::from(x) - center) * scale * f64::from(norm.weight[i]) + bias(i)) as f32
    };
    x.iter().enumerate().map(value).collect()
}

/// The same in single precision; the order of the sums depends on the length alone.
///
/// # Shapes   x, weight, bias, out: the same length
pub(crate) struct Normalize<'a> {
    pub(crate) norm: NormValues<'a>,
    pub(crate) x: &'a [f32],
    pub(crate) out: &'a mut [f32],
}

impl Kernel for Normalize<'_> {
    type Output = ();

    #[inline(always)]
    #[expect(clippy::cast_precision_loss, reason = "lengths are far below 2^24")]
    fn run<I: Isa>(self, isa: I) {
        let Self { norm, x, out } = self;
        let len = x.len();
        let fits = |other: &[f32]| other.len() == len;
        assert!(
            fits(norm.weight) && fits(out) && norm.bias.is_none_or(fits),
            "rows of one length"
        );
        match norm.kind {
            NormKind::RootMeanSquare => {
                let squares = sum(isa, x, |x, sum| isa.fma(x, x, sum), |x| x * x);
                let scale = 1.0 / (squares / len as f32 + norm.eps).sqrt();
                for ((out, x), weight) in out.iter_mut().zip(x).zip(norm.weight) {
                    *out = x * scale * weight;
                }
            }
            NormKind::Layer => {
                let center = sum(isa, x, |x, sum| isa.add(sum, x), |x| x) / len as f32;
                let centers = isa.splat(center);
                let square = |x, sum| {
                    let apart = isa.sub(x, centers);
                    isa.fma(apart, apart, sum)
                };
                let squares = sum(isa, x, square, |x| (x - center) * (x - center));
                let scale = 1.0 / (squares / len as f32 + norm.eps).sqrt();
                for ((out, x), weight) in out.iter_mut().zip(x).zip(norm.weight) {
                    *out = (x - center) * scale * weight;
                }
            }
        }
        if let Some(bias) = norm.bias {
            for (out, bias) in out.iter_mut().zip(bias) {
                *out += bias;
            }
        }
    }
}

/// Sums over a row: eight lanes of two sums in turn, then the rest one by one.
#[inline(always)]
fn sum<I: Isa>(
    isa: I,
    x: &[f32],
    add: impl Fn(I::F, I::F) -> I::F,
    of_rest: impl Fn(f32) -> f32,
) -> f32 {
    let (chunks, rest) = x.as_chunks::<8>();
    let mut sums = [isa.splat(0.0); 2];
    for (i, chunk) in chunks.iter().enumerate() {
        // SAFETY: a chunk holds eight floats.
        let x = unsafe { isa.load(chunk.as_ptr()) };
        sums[i % 2] = add(x, sums[i % 2]);
    }
    let mut total = sum_lanes(isa, isa.add(sums[0], sums[1]));
    for &x in rest {
        total += of_rest(x);
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::IsaChoice;
    use proptest::prelude::*;

    fn values(size: f32, len: usize) -> impl Strategy<Value = Vec<f32>> {
        proptest::collection::vec(-size..size, len)
    }

    proptest! {
        #[test]
        fn matches_the_reference(
            (x, weight, bias) in (1_usize..300)
                .prop_flat_map(|len| (values(100.0, len), values(3.0, len), values(3.0, len))),
            layer in any::<bool>(),
            biased in any::<bool>(),
        ) {
            let norm = NormValues {
                kind: if layer { NormKind::Layer } else { NormKind::RootMeanSquare },
                weight: &weight,
                bias: biased.then_some(&bias),
                eps: 1e-5,
            };
            let want = reference(norm, &x);
            // Taking the mean away leaves what the rounding of the largest element was.
            let coarse = if layer { 3e-5 } else { 1e-30 };
            let mut first: Option<Vec<f32>> = None;
            for isa in IsaChoice::available() {
                let mut out = vec![0.0; x.len()];
                isa.run(Normalize { norm, x: &x, out: &mut out });
                for (got, want) in out.iter().zip(&want) {
                    let bound = 2e-6 * want.abs() + coarse + if biased { 1e-5 } else { 0.0 };
                    prop_assert!((got - want).abs() <= bound, "{got} {want}");
                }
                prop_assert_eq!(first.get_or_insert(out.clone()), &out);
            }
        }
    }
}
