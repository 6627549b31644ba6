//! Matrices of floats: groups of eight rows, column after column.

use super::activations::ActivationsView;
use super::layout::LANES;
use crate::isa::{Isa, Kernel};
use forthwith_core::format::Format;

/// `out[t, lane] = Σ_k weight[lane, k] · x[t, k]`, columns in order, each product fused.
///
/// # Cost   reads the group once per four rows of activations; compute-bound from there on
pub(crate) struct DenseProduct<'a> {
    pub(crate) format: Format,
    /// The group: `[cols, 8]` elements of the format.
    pub(crate) group: &'a [u8],
    pub(crate) activations: ActivationsView<'a>,
    pub(crate) rows: usize,
    /// `[rows, 8]`
    pub(crate) out: &'a mut [f32],
}

impl Kernel for DenseProduct<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let cols = self.activations.cols;
        let size = self.format.info().bytes;
        assert!(
            self.group.len() >= cols * LANES * size,
            "the group holds its columns"
        );
        assert!(self.out.len() >= self.rows * LANES, "room for the result");
        // SAFETY: a barrier separates the writers of activations from the products.
        let x = unsafe { self.activations.plain.range(0..self.rows * cols) };
        let load = |k: usize| {
            // SAFETY: column `k` of the group, checked above.
            unsafe {
                let at = self.group.as_ptr().add(k * LANES * size);
                match self.format {
                    Format::F16 => isa.load_half(at.cast()),
                    Format::BF16 => isa.load_bf16(at.cast()),
                    _ => isa.load(at.cast()),
                }
            }
        };
        let mut first = 0;
        while first < self.rows {
            let count = (self.rows - first).min(4);
            let mut sums = [isa.splat(0.0); 4];
            for k in 0..cols {
                let weight = load(k);
                for (c, sum) in sums.iter_mut().enumerate().take(count) {
                    *sum = isa.fma(weight, isa.splat(x[(first + c) * cols + k]), *sum);
                }
            }
            for (c, &sum) in sums.iter().enumerate().take(count) {
                // SAFETY: row `first + c` of `out`, checked above.
                unsafe { isa.store(self.out.as_mut_ptr().add((first + c) * LANES), sum) };
            }
            first += count;
        }
    }
}
