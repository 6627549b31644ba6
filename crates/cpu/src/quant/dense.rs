//! Matrices of floats: groups of sixteen rows, column after column.
//!
//! Every output is one chain of fused multiply-adds over the columns in order, for any number of rows
//! and groups: what is done side by side are chains of different outputs. A chain that is put down in
//! `out` and taken up again is the same chain.

use super::activations::ActivationsView;
use super::layout::LANES;
use crate::isa::{Isa, Kernel, Lanes};
use crate::kv::{KvFormat, SingleStore, Store};
use std::marker::PhantomData;

/// Columns of a group that are multiplied by all rows before the next: with a few rows of activations
/// they fit the nearest cache as single floats.
const PANEL_COLUMNS: usize = 256;
/// Bytes of the panel in which columns are expanded to single floats.
pub(crate) const PANEL_BYTES: usize = PANEL_COLUMNS * LANES * size_of::<f32>();
/// How far ahead of its reads the product of few rows asks for memory, in bytes.
const PREFETCH: usize = 2048;
/// Bytes of a cache line.
const LINE: usize = 64;

/// How many groups a product with so many rows of activations takes best at a time: a fused
/// multiply-add takes four cycles and two begin in each, so eight vectors of sums keep it busy.
pub(crate) fn together(rows: usize) -> usize {
    match rows {
        1 => 4,
        2 | 3 => 2,
        _ => 1,
    }
}

/// The most tiles that few rows fill at a time: `together(rows) · rows` where that is above `rows`.
pub(crate) const FEW_TILES: usize = 6;

/// `out[group, t, lane] = Σ_k weight[group, lane, k] · x[t, k]`, columns in order, each product fused.
///
/// # Cost   reads the groups once; bounded by memory for few rows, by multiply-adds for many
pub(crate) struct DenseProduct<'a, S> {
    /// Groups one after the other: `[groups][cols, 16]` elements.
    pub(crate) groups: &'a [u8],
    pub(crate) activations: ActivationsView<'a>,
    pub(crate) rows: usize,
    /// `[groups, rows, 16]`
    pub(crate) out: &'a mut [f32],
    /// Room for [`PANEL_BYTES`].
    pub(crate) panel: &'a mut [u8],
    pub(crate) store: PhantomData<S>,
}

impl<S: Store> Kernel for DenseProduct<'_, S> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let (cols, rows) = (self.activations.cols, self.rows);
        let column_bytes = LANES * S::FORMAT.element_bytes();
        let group_bytes = cols * column_bytes;
        let count = self.groups.len() / group_bytes.max(1);
        assert!(
            self.out.len() >= count * rows * LANES,
            "room for the result"
        );
        assert!(self.panel.len() >= PANEL_BYTES, "room for the panel");
        // SAFETY: a barrier separates the writers of activations from the products.
        let x = unsafe { self.activations.plain.range(0..rows * cols) };
        let lanes = isa.wide();
        let mut at = 0;
        while at < count {
            let weights = self.groups[at * group_bytes..].as_ptr();
            let part = Part {
                weights,
                group_bytes,
                columns: cols,
                x: x.as_ptr(),
                x_stride: cols,
                out: self.out[at * rows * LANES..].as_mut_ptr(),
                out_stride: rows * LANES,
                resumes: false,
                ahead: weights.wrapping_add(PREFETCH),
                ahead_step: column_bytes,
            };
            // SAFETY: `count - at` groups, `x` and as many outputs are there, checked above.
            at += unsafe {
                match (rows, count - at) {
                    (1, 1) => part.multiply::<I::Wide, S, 1, 1, true>(lanes),
                    (1, 2) => part.multiply::<I::Wide, S, 1, 2, true>(lanes),
                    (1, 3) => part.multiply::<I::Wide, S, 1, 3, true>(lanes),
                    (1, _) => part.multiply::<I::Wide, S, 1, 4, true>(lanes),
                    (2, 1) => part.multiply::<I::Wide, S, 2, 1, true>(lanes),
                    (2, _) => part.multiply::<I::Wide, S, 2, 2, true>(lanes),
                    (3, 1) => part.multiply::<I::Wide, S, 3, 1, true>(lanes),
                    (3, _) => part.multiply::<I::Wide, S, 3, 2, true>(lanes),
                    _ => many::<I, S>(isa, part, rows, self.panel.as_mut_ptr()),
                }
            };
        }
    }
}

/// The group of `group` times all rows, some columns at a time; returns 1.
///
/// # Safety
/// A group of elements of `S` and `rows` rows are readable, as many outputs and the panel writable.
#[inline(always)]
unsafe fn many<I: Isa, S: Store>(isa: I, group: Part, rows: usize, panel: *mut u8) -> usize {
    let lanes = isa.wide();
    for start in (0..group.columns).step_by(PANEL_COLUMNS) {
        let columns = PANEL_COLUMNS.min(group.columns - start);
        // SAFETY: columns stay below those of the group, and the panel holds as many.
        unsafe {
            let stored = group.weights.add(start * group.ahead_step);
            let weights = if matches!(S::FORMAT, KvFormat::F32) {
                stored
            } else {
                for k in 0..columns {
                    let weight = S::load(lanes, stored, k * LANES);
                    lanes.store(panel.cast::<f32>().add(k * LANES), weight);
                }
                panel.cast_const()
            };
            // What follows in memory is multiplied next, be it of this group or another. It is asked
            // for once: asking while each tile of rows is multiplied takes up to a tenth of their speed.
            let next = stored.wrapping_add(columns * group.ahead_step);
            for line in (0..columns * group.ahead_step).step_by(LINE) {
                lanes.prefetch_far(next.wrapping_add(line));
            }
            // In a function of its own, compiled once for all formats.
            isa.vectorize(Panel {
                part: Part {
                    weights,
                    columns,
                    x: group.x.add(start),
                    resumes: start > 0,
                    ..group
                },
                rows,
            });
        }
    }
    1
}

/// Some columns of one group, as single floats, times many rows: as many at a time as registers hold.
/// Whoever makes one vouches for weights, rows and outputs.
struct Panel {
    part: Part,
    rows: usize,
}

impl Kernel for Panel {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let lanes = isa.wide();
        let most = if I::MANY_REGISTERS { 8 } else { 6 };
        let mut first = 0;
        while first < self.rows {
            let left = self.rows - first;
            // Of equal sizes: a single row at the end would cost as much as four.
            let size = left.div_ceil(left.div_ceil(most));
            // SAFETY: rows that are left; whoever made the panel vouches for them.
            unsafe {
                let part = Part {
                    x: self.part.x.add(first * self.part.x_stride),
                    out: self.part.out.add(first * LANES),
                    ..self.part
                };
                match size {
                    1 => part.multiply::<I::Wide, SingleStore, 1, 1, false>(lanes),
                    2 => part.multiply::<I::Wide, SingleStore, 2, 1, false>(lanes),
                    3 => part.multiply::<I::Wide, SingleStore, 3, 1, false>(lanes),
                    4 => part.multiply::<I::Wide, SingleStore, 4, 1, false>(lanes),
                    5 => part.multiply::<I::Wide, SingleStore, 5, 1, false>(lanes),
                    6 => part.multiply::<I::Wide, SingleStore, 6, 1, false>(lanes),
                    7 if I::MANY_REGISTERS => {
                        part.multiply::<I::Wide, SingleStore, 7, 1, false>(lanes)
                    }
                    _ if I::MANY_REGISTERS => {
                        part.multiply::<I::Wide, SingleStore, 8, 1, false>(lanes)
                    }
                    _ => unreachable!("at most six rows"),
                };
            }
            first += size;
        }
    }
}

/// Some columns of some groups, and of some rows of activations.
#[derive(Clone, Copy)]
struct Part {
    /// The first column of the first group.
    weights: *const u8,
    /// From one group to the next.
    group_bytes: usize,
    columns: usize,
    /// The first column of the first row.
    x: *const f32,
    /// Elements from one row to the next.
    x_stride: usize,
    /// `[rows, 16]` of the first group.
    out: *mut f32,
    /// Elements from one group's outputs to the next.
    out_stride: usize,
    /// Whether sums begin with what stands in `out`, not with zero.
    resumes: bool,
    /// What to ask of memory meanwhile, and how many bytes of it for each column.
    ahead: *const u8,
    ahead_step: usize,
}

impl Part {
    /// `C` rows times `G` groups, asking for memory meanwhile if `STREAM`; returns `G`.
    ///
    /// # Safety
    /// Weights, rows and outputs are there.
    #[inline(always)]
    #[expect(clippy::needless_range_loop, reason = "groups index weights and sums")]
    unsafe fn multiply<V: Lanes, S: Store, const C: usize, const G: usize, const STREAM: bool>(
        self,
        lanes: V,
    ) -> usize {
        // SAFETY: the caller vouches for columns, rows and outputs.
        unsafe {
            let mut sums = [[lanes.splat(0.0); C]; G];
            if self.resumes {
                for g in 0..G {
                    for c in 0..C {
                        sums[g][c] = lanes.load(self.out.add(g * self.out_stride + c * LANES));
                    }
                }
            }
            for k in 0..self.columns {
                let mut weights = [lanes.splat(0.0); G];
                for g in 0..G {
                    let group = g * self.group_bytes;
                    let ahead = k * self.ahead_step;
                    if STREAM && ahead.is_multiple_of(LINE) {
                        lanes.prefetch(self.ahead.wrapping_add(group + ahead));
                    }
                    weights[g] = S::load(lanes, self.weights.add(group), k * LANES);
                }
                for c in 0..C {
                    let x = lanes.splat(*self.x.add(c * self.x_stride + k));
                    for g in 0..G {
                        sums[g][c] = lanes.fma(weights[g], x, sums[g][c]);
                    }
                }
            }
            for g in 0..G {
                for c in 0..C {
                    lanes.store(self.out.add(g * self.out_stride + c * LANES), sums[g][c]);
                }
            }
        }
        G
    }
}
