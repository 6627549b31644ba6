//! Rows of activations as signed bytes ("A8"): one scale per 32 elements.
//!
//! Every matrix product sees its input in this form, for one row and for many, so that batching
//! cannot change a bit. Weights in float formats read the plain rows beside it.

use crate::isa::math::{max_lane, sum_lanes};
use crate::isa::{Isa, IsaChoice, Kernel};
use crate::memory::{Buffer, OutOfMemory, SharedSlice};

/// Elements that share one scale.
pub(crate) const GROUP: usize = 32;

/// Buffers for the activations of one step, reused by every phase.
pub(crate) struct Activations {
    codes: Buffer<i8>,
    scales: Buffer<f32>,
    sums32: Buffer<f32>,
    sums16: Buffer<f32>,
    biases: Buffer<i32>,
    plain: Buffer<f32>,
}

/// The same, shared by the thread team; row `t` starts at `t · cols`.
#[derive(Clone, Copy)]
pub(crate) struct ActivationsView<'a> {
    /// Elements of a row.
    pub(crate) cols: usize,
    pub(crate) codes: SharedSlice<'a, i8>,
    /// One per 32 elements.
    pub(crate) scales: SharedSlice<'a, f32>,
    /// `scale · Σ codes` of each 32 elements: what an offset of the weights multiplies.
    pub(crate) sums32: SharedSlice<'a, f32>,
    /// The same for each 16 elements.
    pub(crate) sums16: SharedSlice<'a, f32>,
    /// `−128 · Σ codes` of each 32 elements: what signed weights owe when they are offset by 128.
    pub(crate) biases: SharedSlice<'a, i32>,
    /// The rows before quantization.
    pub(crate) plain: SharedSlice<'a, f32>,
}

impl Activations {
    /// Room for `rows` rows of up to `cols` elements.
    pub(crate) fn new(rows: usize, cols: usize) -> Result<Self, OutOfMemory> {
        let groups = rows * cols.div_ceil(GROUP);
        Ok(Self {
            codes: Buffer::zeroed(rows * cols)?,
            scales: Buffer::zeroed(groups)?,
            sums32: Buffer::zeroed(groups)?,
            sums16: Buffer::zeroed(2 * groups)?,
            biases: Buffer::zeroed(groups)?,
            plain: Buffer::zeroed(rows * cols)?,
        })
    }

    /// The bytes of such buffers.
    pub(crate) fn bytes(rows: usize, cols: usize) -> usize {
        rows * cols * 5 + rows * cols.div_ceil(GROUP) * 20
    }

    /// A view for rows of `cols` elements.
    pub(crate) fn view(&mut self, cols: usize) -> ActivationsView<'_> {
        ActivationsView {
            cols,
            codes: self.codes.shared(),
            scales: self.scales.shared(),
            sums32: self.sums32.shared(),
            sums16: self.sums16.shared(),
            biases: self.biases.shared(),
            plain: self.plain.shared(),
        }
    }
}

impl<'a> ActivationsView<'a> {
    /// The same buffers for rows of another length.
    pub(crate) fn with_cols(self, cols: usize) -> ActivationsView<'a> {
        ActivationsView { cols, ..self }
    }

    /// The same buffers from a row on.
    pub(crate) fn tail(self, row: usize) -> ActivationsView<'a> {
        let (start, group) = (row * self.cols, row * (self.cols / GROUP));
        ActivationsView {
            cols: self.cols,
            codes: self.codes.tail(start),
            scales: self.scales.tail(group),
            sums32: self.sums32.tail(group),
            sums16: self.sums16.tail(2 * group),
            biases: self.biases.tail(group),
            plain: self.plain.tail(start),
        }
    }

    /// Copies a row of as many elements from elsewhere into a place.
    ///
    /// # Safety
    /// No other thread touches this row or writes the other meanwhile.
    pub(crate) unsafe fn copy(
        &self,
        row: usize,
        from: &ActivationsView<'_>,
        from_row: usize,
        keep_plain: bool,
    ) {
        let (to, from) = (self.tail(row), from.tail(from_row));
        let (cols, groups) = (self.cols, self.cols / GROUP);
        macro_rules! copy {
            ($($part:ident: $count:expr),*) => {
                // SAFETY: parts of these rows only, which the caller vouches for.
                unsafe { $(to.$part.range_mut(0..$count).copy_from_slice(from.$part.range(0..$count));)* }
            };
        }
        copy!(codes: groups * GROUP, scales: groups, sums32: groups, sums16: 2 * groups, biases: groups);
        if keep_plain {
            copy!(plain: cols);
        }
    }

    /// Quantizes one row into its place; `keep_plain` also stores the row itself.
    ///
    /// # Safety
    /// No other thread touches this row meanwhile.
    pub(crate) unsafe fn put(&self, isa: IsaChoice, row: usize, values: &[f32], keep_plain: bool) {
        let (start, cols) = (row * self.cols, self.cols);
        let groups = cols / GROUP;
        // SAFETY: parts of this row only, which the caller owns.
        unsafe {
            if keep_plain {
                self.plain
                    .range_mut(start..start + cols)
                    .copy_from_slice(values);
            }
            isa.run(Quantize {
                values,
                codes: self.codes.range_mut(start..start + groups * GROUP),
                scales: self.scales.range_mut(row * groups..(row + 1) * groups),
                sums32: self.sums32.range_mut(row * groups..(row + 1) * groups),
                sums16: self
                    .sums16
                    .range_mut(2 * row * groups..2 * (row + 1) * groups),
                biases: self.biases.range_mut(row * groups..(row + 1) * groups),
            });
        }
    }
}

/// Quantizes a row; a trailing part shorter than 32 is left out (integer formats never have one).
///
/// `scale = max|x| / 127`, `code = round(x / scale)` to nearest even. A group with a value that is
/// not finite gets the scale NaN, so that the fault shows in the result.
pub(crate) struct Quantize<'a> {
    pub(crate) values: &'a [f32],
    pub(crate) codes: &'a mut [i8],
    pub(crate) scales: &'a mut [f32],
    pub(crate) sums32: &'a mut [f32],
    pub(crate) sums16: &'a mut [f32],
    pub(crate) biases: &'a mut [i32],
}

impl Kernel for Quantize<'_> {
    type Output = ();

    #[inline(always)]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "sums of codes are integral and small"
    )]
    fn run<I: Isa>(self, isa: I) {
        let (groups, _) = self.values.as_chunks::<GROUP>();
        let (codes, _) = self.codes.as_chunks_mut::<GROUP>();
        for (g, (values, codes)) in groups.iter().zip(codes).enumerate() {
            // SAFETY: four times eight floats and bytes of arrays of 32.
            unsafe {
                let zero = isa.splat(0.0);
                let mut x = [zero; 4];
                for (i, x) in x.iter_mut().enumerate() {
                    *x = isa.load(values.as_ptr().add(8 * i));
                }
                let largest = isa.max(
                    isa.max(isa.abs(x[0]), isa.abs(x[1])),
                    isa.max(isa.abs(x[2]), isa.abs(x[3])),
                );
                let largest = max_lane(isa, largest);
                // Zero unless a value is NaN or infinite.
                let mut probe = zero;
                for &x in &x {
                    probe = isa.fma(x, zero, probe);
                }
                let finite = sum_lanes(isa, probe) == 0.0;
                let inverse = if finite && largest > 0.0 {
                    127.0 / largest
                } else {
                    0.0
                };
                let scale = if finite { largest / 127.0 } else { f32::NAN };
                let multiplier = isa.splat(if inverse.is_finite() { inverse } else { 0.0 });
                let mut rounded = if finite { x } else { [zero; 4] };
                for value in &mut rounded {
                    *value = isa.round(isa.mul(*value, multiplier));
                }
                for (i, &value) in rounded.iter().enumerate() {
                    isa.store_as_i8(codes.as_mut_ptr().add(8 * i), value);
                }
                let first = sum_lanes(isa, isa.add(rounded[0], rounded[1]));
                let second = sum_lanes(isa, isa.add(rounded[2], rounded[3]));
                self.scales[g] = scale;
                self.sums32[g] = scale * (first + second);
                self.sums16[2 * g] = scale * first;
                self.sums16[2 * g + 1] = scale * second;
                self.biases[g] = -128 * (first + second) as i32;
            }
        }
    }
}

/// The meaning of [`Quantize`]: the values that the codes stand for.
pub(crate) fn reference(values: &[f32]) -> Vec<f32> {
    let mut out = Vec::with_capacity(values.len());
    for group in values.chunks(GROUP) {
        if group.iter().any(|value| !value.is_finite()) {
            out.extend(group.iter().map(|_| f32::NAN));
            continue;
        }
        let largest = group.iter().fold(0.0_f32, |a, b| a.max(b.abs()));
        let inverse = if largest > 0.0 { 127.0 / largest } else { 0.0 };
        let inverse = if inverse.is_finite() { inverse } else { 0.0 };
        let scale = largest / 127.0;
        out.extend(
            group
                .iter()
                .map(|value| (value * inverse).round_ties_even() * scale),
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Row = (Vec<i8>, Vec<f32>, Vec<f32>, Vec<f32>, Vec<i32>);

    fn quantize(isa: IsaChoice, values: &[f32]) -> Row {
        let groups = values.len() / GROUP;
        let mut out = (
            vec![0; values.len()],
            vec![0.0; groups],
            vec![0.0; groups],
            vec![0.0; 2 * groups],
            vec![0; groups],
        );
        isa.run(Quantize {
            values,
            codes: &mut out.0,
            scales: &mut out.1,
            sums32: &mut out.2,
            sums16: &mut out.3,
            biases: &mut out.4,
        });
        out
    }

    proptest! {
        #[test]
        fn codes_equal_the_reference_on_every_isa(
            mut values in proptest::collection::vec(-5.0_f32..5.0, 96),
            size in prop_oneof![Just(0.0_f32), Just(1e-39), 1e-3_f32..1e6],
        ) {
            for value in &mut values {
                *value *= size;
            }
            let want = reference(&values);
            for isa in IsaChoice::available() {
                let (codes, scales, sums32, sums16, biases) = quantize(isa, &values);
                for (i, want) in want.iter().enumerate() {
                    prop_assert_eq!(f32::from(codes[i]) * scales[i / GROUP], *want);
                }
                for g in 0..3 {
                    let sum = |range: std::ops::Range<usize>| -> f32 {
                        codes[range].iter().map(|&code| f32::from(code)).sum::<f32>() * scales[g]
                    };
                    prop_assert_eq!(sums32[g], sum(32 * g..32 * g + 32));
                    let codes = &codes[32 * g..32 * g + 32];
                    let total: i32 = codes.iter().map(|&code| i32::from(code)).sum();
                    prop_assert_eq!(biases[g], -128 * total);
                    prop_assert_eq!(sums16[2 * g], sum(32 * g..32 * g + 16));
                    prop_assert_eq!(sums16[2 * g + 1], sum(32 * g + 16..32 * g + 32));
                }
            }
        }
    }

    #[test]
    fn values_that_are_not_finite_show() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut values = vec![1.0; 64];
            values[40] = bad;
            for isa in IsaChoice::available() {
                let (codes, scales, ..) = quantize(isa, &values);
                assert!(scales[1].is_nan() && codes[40] == 0 && !scales[0].is_nan());
            }
        }
    }
}
