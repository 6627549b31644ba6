//! Matrices of floats: groups of sixteen rows, column after column.

use super::activations::ActivationsView;
use super::layout::LANES;
use crate::isa::{Isa, Kernel, Lanes};
use crate::kv::Store;
use std::marker::PhantomData;

/// `out[t, lane] = Σ_k weight[lane, k] · x[t, k]`, columns in order, each product fused.
///
/// # Cost   reads the group once per four rows of activations; compute-bound from there on
pub(crate) struct DenseProduct<'a, S> {
    /// The group: `[cols, 16]` elements.
    pub(crate) group: &'a [u8],
    pub(crate) activations: ActivationsView<'a>,
    pub(crate) rows: usize,
    /// `[rows, 16]`
    pub(crate) out: &'a mut [f32],
    pub(crate) store: PhantomData<S>,
}

impl<S: Store> Kernel for DenseProduct<'_, S> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let (cols, rows) = (self.activations.cols, self.rows);
        assert!(
            self.group.len() >= cols * LANES * S::FORMAT.element_bytes(),
            "the group holds its columns"
        );
        assert!(self.out.len() >= rows * LANES, "room for the result");
        // SAFETY: a barrier separates the writers of activations from the products.
        let x = unsafe { self.activations.plain.range(0..rows * cols) };
        let (lanes, group) = (isa.wide(), self.group.as_ptr());
        let mut first = 0;
        while first < rows {
            // SAFETY: the group holds `cols` columns, `x` and `out` all rows, checked above.
            unsafe {
                let (x, out) = (
                    x.as_ptr().add(first * cols),
                    self.out.as_mut_ptr().add(first * LANES),
                );
                if I::DOTS && first + 8 <= rows {
                    tile::<I::Wide, S, 8>(lanes, group, cols, x, out);
                    first += 8;
                } else if first + 4 <= rows {
                    tile::<I::Wide, S, 4>(lanes, group, cols, x, out);
                    first += 4;
                } else {
                    tile::<I::Wide, S, 1>(lanes, group, cols, x, out);
                    first += 1;
                }
            }
        }
    }
}

/// Sixteen rows of weights times `C` rows of activations.
///
/// # Safety
/// `cols` columns are readable at `group`, `C` rows of `cols` at `x`; `C` tiles are writable at `out`.
#[inline(always)]
unsafe fn tile<V: Lanes, S: Store, const C: usize>(
    lanes: V,
    group: *const u8,
    cols: usize,
    x: *const f32,
    out: *mut f32,
) {
    // SAFETY: the caller vouches for columns, rows and tiles.
    unsafe {
        let mut sums = [lanes.splat(0.0); C];
        for k in 0..cols {
            let weight = S::load(lanes, group, k * LANES);
            for (c, sum) in sums.iter_mut().enumerate() {
                *sum = lanes.fma(weight, lanes.splat(*x.add(c * cols + k)), *sum);
            }
        }
        for (c, &sum) in sums.iter().enumerate() {
            lanes.store(out.add(c * LANES), sum);
        }
    }
}
