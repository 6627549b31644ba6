//! The product of packed groups with quantized rows.

use super::activations::ActivationsView;
use super::layout::{COLUMNS, Expanded, LANES, Layout};
use crate::isa::{Isa, Kernel};
use std::marker::PhantomData;

/// From this many rows of activations on, a group is expanded once and reused.
const EXPAND_FROM: usize = 5;
/// How far ahead of its reads the streaming product asks for memory, in bytes.
const PREFETCH: usize = 2048;

/// `out[t, lane] = Σ_k weight[lane, k] · activation[t, k]` for one group of eight rows.
///
/// Integer sums are exact: with codes of at most 15, 31 and 63 and activations of at most 127,
/// eight, four and two products of neighbouring bytes stay below 32768 (30480, 31496, 32004), and
/// signed bytes give at most 2·128·127 = 32512. Floats accumulate over records in order, so the
/// result does not depend on how many rows are computed together.
///
/// # Cost   reads the group once and every row of activations once per call
pub(crate) struct GroupProduct<'a, L> {
    /// The group's records.
    pub(crate) group: &'a [u8],
    pub(crate) activations: ActivationsView<'a>,
    /// How many rows of activations there are.
    pub(crate) rows: usize,
    /// `[rows, 8]`
    pub(crate) out: &'a mut [f32],
    /// Room for the expanded group.
    pub(crate) panel: &'a mut [u8],
    pub(crate) layout: PhantomData<L>,
}

/// One row of activations.
#[derive(Clone, Copy)]
struct Row {
    codes: *const i8,
    scales: *const f32,
    sums: *const f32,
}

impl<L: Layout> Kernel for GroupProduct<'_, L> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let records = self.activations.cols / COLUMNS;
        assert!(
            self.group.len() >= records * L::RECORD,
            "the group holds its records"
        );
        assert!(self.out.len() >= self.rows * LANES, "room for the result");
        let rows = RowSource::new::<L>(self.activations, self.rows);
        let out = self.out.as_mut_ptr();
        if self.rows < EXPAND_FROM {
            // SAFETY: the group holds `records` records, `out` has room for all rows, both
            // checked above; `rows` was checked by its source.
            unsafe {
                match self.rows {
                    1 => tile::<I, L, 1, true>(isa, self.group.as_ptr(), records, &rows, 0, out),
                    2 => tile::<I, L, 2, true>(isa, self.group.as_ptr(), records, &rows, 0, out),
                    3 => tile::<I, L, 3, true>(isa, self.group.as_ptr(), records, &rows, 0, out),
                    _ => tile::<I, L, 4, true>(isa, self.group.as_ptr(), records, &rows, 0, out),
                }
            }
            return;
        }
        let panel = self.panel;
        assert!(
            panel.len() >= records * Expanded::<L>::RECORD,
            "the panel holds the group"
        );
        // SAFETY: group, panel, rows and out were checked above.
        unsafe {
            for record in 0..records {
                let from = self.group.as_ptr().add(record * L::RECORD);
                let to = panel.as_mut_ptr().add(record * Expanded::<L>::RECORD);
                Expanded::<L>::expand(isa, from, to);
            }
            let panel = panel.as_ptr();
            let mut first = 0;
            while first + 4 <= self.rows {
                tile::<I, Expanded<L>, 4, false>(isa, panel, records, &rows, first, out);
                first += 4;
            }
            while first < self.rows {
                tile::<I, Expanded<L>, 1, false>(isa, panel, records, &rows, first, out);
                first += 1;
            }
        }
    }
}

/// Finds rows in checked buffers.
struct RowSource {
    codes: *const i8,
    scales: *const f32,
    sums: *const f32,
    cols: usize,
    subs: usize,
}

impl RowSource {
    fn new<L: Layout>(activations: ActivationsView<'_>, rows: usize) -> Self {
        let (cols, subs) = (activations.cols, COLUMNS / L::SUB);
        let groups = rows * cols / COLUMNS;
        let sums = if L::SUB == 16 {
            activations.sums16
        } else {
            activations.sums32
        };
        // SAFETY: a barrier separates the writers of activations from the products.
        unsafe {
            Self {
                codes: activations.codes.range(0..rows * cols).as_ptr(),
                scales: activations.scales.range(0..groups).as_ptr(),
                sums: sums.range(0..groups * subs).as_ptr(),
                cols,
                subs,
            }
        }
    }

    /// # Safety
    /// `row` is below the number of rows given to `new`.
    unsafe fn row(&self, row: usize) -> Row {
        let group = row * self.cols / COLUMNS;
        // SAFETY: `new` checked the buffers for every row.
        unsafe {
            Row {
                codes: self.codes.add(row * self.cols),
                scales: self.scales.add(group),
                sums: self.sums.add(group * self.subs),
            }
        }
    }
}

/// Eight rows of weights times `C` rows of activations.
///
/// # Safety
/// `records` records of `L` are readable at `group`; rows `first..first + C` exist in `rows` and
/// are writable in `out`.
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "sub-blocks index dots and sums")]
unsafe fn tile<I: Isa, L: Layout, const C: usize, const STREAM: bool>(
    isa: I,
    group: *const u8,
    records: usize,
    rows: &RowSource,
    first: usize,
    out: *mut f32,
) {
    // SAFETY: the caller vouches for records and rows; offsets stay within them by the layout.
    unsafe {
        let mut row = [rows.row(first); C];
        for c in 1..C {
            row[c] = rows.row(first + c);
        }
        let mut sums = [isa.splat(0.0); C];
        for r in 0..records {
            let record = group.add(r * L::RECORD);
            if STREAM {
                for line in 0..L::RECORD.div_ceil(64) {
                    isa.prefetch(record.wrapping_add(PREFETCH + 64 * line));
                }
            }
            let mut codes = [row[0].codes; C];
            for c in 0..C {
                codes[c] = row[c].codes.add(r * COLUMNS);
            }
            let dots = record_dots::<I, L, C>(isa, record, codes);
            for sub in 0..COLUMNS / L::SUB {
                let (scale, offset) = L::affine(isa, record, sub);
                for c in 0..C {
                    let scale = isa.mul(scale, isa.splat(*row[c].scales.add(r)));
                    sums[c] = isa.fma(isa.to_float(dots[c][sub]), scale, sums[c]);
                    if L::OFFSETS {
                        let sum = *row[c].sums.add(r * (COLUMNS / L::SUB) + sub);
                        sums[c] = isa.fma(offset, isa.splat(sum), sums[c]);
                    }
                }
            }
        }
        for (c, &sum) in sums.iter().enumerate() {
            isa.store(out.add((first + c) * LANES), sum);
        }
    }
}

/// The integer dot products of one record: per row of activations and sub-block, eight lanes.
///
/// # Safety
/// A record is readable at `record` and 32 codes at each of `codes`.
#[inline(always)]
unsafe fn record_dots<I: Isa, L: Layout, const C: usize>(
    isa: I,
    record: *const u8,
    codes: [*const i8; C],
) -> [[I::I; 2]; C] {
    // SAFETY: the caller vouches for the record and the codes.
    unsafe {
        let mut dots = [[isa.zero(); 2]; C];
        if L::BITS == 8 {
            for v in 0..4 {
                let (low, high) = L::pair(isa, record, v);
                let (low_size, high_size) = (isa.abs_bytes(low), isa.abs_bytes(high));
                for c in 0..C {
                    let a = isa.apply_sign(isa.broadcast4(codes[c].add(4 * v)), low);
                    let b = isa.apply_sign(isa.broadcast4(codes[c].add(4 * v + 16)), high);
                    let a = isa.add_pairs16(isa.multiply_add_bytes(low_size, a));
                    let b = isa.add_pairs16(isa.multiply_add_bytes(high_size, b));
                    dots[c][0] = isa.add32(dots[c][0], isa.add32(a, b));
                }
            }
            return dots;
        }
        // Vectors whose 16-bit sums may be added before they are widened.
        let run = if L::BITS == 6 { 2 } else { 4 };
        for start in (0..4).step_by(run) {
            let mut words = [[isa.zero(); 2]; C];
            for v in start..start + run {
                let (low, high) = L::pair(isa, record, v);
                for c in 0..C {
                    let a = isa.multiply_add_bytes(low, isa.broadcast4(codes[c].add(4 * v)));
                    let b = isa.multiply_add_bytes(high, isa.broadcast4(codes[c].add(4 * v + 16)));
                    if L::BITS == 4 {
                        words[c][0] = isa.add16(words[c][0], isa.add16(a, b));
                    } else {
                        words[c][0] = isa.add16(words[c][0], a);
                        words[c][1] = isa.add16(words[c][1], b);
                    }
                }
            }
            for c in 0..C {
                let low = isa.add_pairs16(words[c][0]);
                if L::BITS == 4 {
                    dots[c][0] = low;
                    continue;
                }
                let high = isa.add_pairs16(words[c][1]);
                if L::SUB == 16 {
                    dots[c][0] = isa.add32(dots[c][0], low);
                    dots[c][1] = isa.add32(dots[c][1], high);
                } else {
                    dots[c][0] = isa.add32(dots[c][0], isa.add32(low, high));
                }
            }
        }
        dots
    }
}
