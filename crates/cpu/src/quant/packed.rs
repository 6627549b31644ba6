//! The product of packed groups with quantized rows.

use super::activations::ActivationsView;
use super::layout::{COLUMNS, Expanded, LANES, Layout, VECTOR};
use crate::isa::{Dots, Isa, Kernel, Lanes};
use std::marker::PhantomData;

/// Above this many rows of activations, a group is expanded once and reused.
const EXPAND_ABOVE: usize = 32;
/// The same where the panel is multiplied faster than what it was made from.
const EXPAND_FOR_SPEED: usize = 12;
/// How far ahead of its reads the streaming product asks for memory, in bytes.
const PREFETCH: usize = 2048;

/// `out[t, lane] = Σ_k weight[lane, k] · activation[t, k]` for one group of sixteen rows.
///
/// Integer sums are exact: with codes of at most 15, 31 and 63 and activations of at most 127,
/// eight, four and two pairs of neighbouring products stay below 32768 (30480, 31496, 32004), and
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
    /// `[rows, 16]`
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
    biases: *const i32,
}

impl<L: Layout> Kernel for GroupProduct<'_, L> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let records = self.activations.cols / COLUMNS;
        assert!(
            records.is_multiple_of(L::RUN) && self.group.len() >= records / L::RUN * L::RUN_BYTES,
            "the group holds its records"
        );
        assert!(self.out.len() >= self.rows * LANES, "room for the result");
        let rows = RowSource::new::<L>(self.activations, self.rows);
        let (lanes, out) = (isa.wide(), self.out.as_mut_ptr());
        let packed = Records {
            start: self.group.as_ptr(),
            count: records,
        };
        let few = if by_vectors::<I::Wide, Expanded<L>>() {
            EXPAND_FOR_SPEED
        } else {
            EXPAND_ABOVE
        };
        if self.rows <= few {
            // SAFETY: the group holds `records` records and `out` has room for all rows, both
            // checked above; `rows` was checked by its source.
            unsafe {
                // Few rows apart from the loop over tiles: single rows lose a tenth inside it.
                match self.rows {
                    1 => _ = tile::<I::Wide, L, 1, true>(lanes, packed, &rows, 0, out),
                    2 => _ = tile::<I::Wide, L, 2, true>(lanes, packed, &rows, 0, out),
                    3 => _ = tile::<I::Wide, L, 3, true>(lanes, packed, &rows, 0, out),
                    4 => _ = tile::<I::Wide, L, 4, true>(lanes, packed, &rows, 0, out),
                    _ => product::<I::Wide, L, true>(lanes, packed, &rows, out),
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
            for run in 0..records / L::RUN {
                let start = packed.start.add(run * L::RUN_BYTES);
                // The next group comes when this one is multiplied.
                let next = start.wrapping_add(records / L::RUN * L::RUN_BYTES);
                for line in 0..L::RUN_BYTES.div_ceil(64) {
                    lanes.prefetch_far(next.wrapping_add(64 * line));
                }
                let head = L::head(lanes, start);
                for r in 0..L::RUN {
                    let from = start.add(L::HEAD + r * L::RECORD);
                    let record = run * L::RUN + r;
                    let to = panel.as_mut_ptr().add(record * Expanded::<L>::RECORD);
                    Expanded::<L>::expand(lanes, head, from, to);
                }
            }
            let expanded = Records {
                start: panel.as_ptr(),
                count: records,
            };
            product::<I::Wide, Expanded<L>, false>(lanes, expanded, &rows, out);
        }
    }
}

/// The records of a group.
#[derive(Clone, Copy)]
struct Records {
    start: *const u8,
    count: usize,
}

/// Whether [`panel_dots`] computes the products of a layout.
const fn by_vectors<V: Lanes, L: Layout>() -> bool {
    matches!(V::DOTS, Dots::None) && L::PANEL && L::BITS <= 4 && L::SUB == COLUMNS
}

/// All rows of activations, as many at a time as registers hold; `STREAM` if the group comes from
/// memory.
///
/// # Safety
/// The records of `L` are readable; all rows are writable in `out`.
#[inline(always)]
unsafe fn product<V: Lanes, L: Layout, const STREAM: bool>(
    lanes: V,
    records: Records,
    rows: &RowSource,
    out: *mut f32,
) {
    let mut first = 0;
    while first < rows.count {
        // SAFETY: as many rows are left; the rest is passed on to the caller.
        unsafe {
            first += match rows.count - first {
                1 => tile::<V, L, 1, STREAM>(lanes, records, rows, first, out),
                2 => tile::<V, L, 2, STREAM>(lanes, records, rows, first, out),
                3 => tile::<V, L, 3, STREAM>(lanes, records, rows, first, out),
                8.. if V::MANY_REGISTERS => {
                    tile::<V, L, 8, STREAM>(lanes, records, rows, first, out)
                }
                6.. if by_vectors::<V, L>() => {
                    tile::<V, L, 6, STREAM>(lanes, records, rows, first, out)
                }
                _ => tile::<V, L, 4, STREAM>(lanes, records, rows, first, out),
            };
        }
    }
}

/// Finds rows in checked buffers.
struct RowSource {
    codes: *const i8,
    scales: *const f32,
    sums: *const f32,
    biases: *const i32,
    count: usize,
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
                biases: activations.biases.range(0..groups).as_ptr(),
                count: rows,
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
                biases: self.biases.add(group),
            }
        }
    }
}

/// Sixteen rows of weights times `C` rows of activations; returns `C`.
///
/// # Safety
/// The records of `L` are readable; rows `first..first + C` exist in `rows` and are writable in `out`.
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "sub-blocks index dots and sums")]
unsafe fn tile<V: Lanes, L: Layout, const C: usize, const STREAM: bool>(
    lanes: V,
    records: Records,
    rows: &RowSource,
    first: usize,
    out: *mut f32,
) -> usize {
    // SAFETY: the caller vouches for records and rows; offsets stay within them by the layout.
    unsafe {
        let mut row = [rows.row(first); C];
        for c in 1..C {
            row[c] = rows.row(first + c);
        }
        let mut sums = [lanes.splat(0.0); C];
        let half = std::hint::black_box(4);
        for run in 0..records.count / L::RUN {
            let start = records.start.add(run * L::RUN_BYTES);
            if STREAM && L::HEAD > 0 {
                lanes.prefetch(start.wrapping_add(PREFETCH));
            }
            let head = L::head(lanes, start);
            for i in 0..L::RUN {
                let r = run * L::RUN + i;
                let record = start.add(L::HEAD + i * L::RECORD);
                if STREAM {
                    for line in 0..L::RECORD.div_ceil(64) {
                        lanes.prefetch(record.wrapping_add(PREFETCH + 64 * line));
                    }
                }
                let fused = match V::DOTS {
                    Dots::None => false,
                    Dots::Unsigned => L::BITS < 8 || L::RAISED,
                    Dots::Signed => true,
                };
                let dots = if fused {
                    fused_dots::<V, L, C>(lanes, record, &row, r)
                } else if L::BITS == 8 {
                    signed_dots::<V, L, C>(lanes, record, &row, r)
                } else if by_vectors::<V, L>() {
                    panel_dots::<V, C>(lanes, record, &row, (r, half))
                } else {
                    word_dots::<V, L, C>(lanes, record, &row, r)
                };
                for sub in 0..COLUMNS / L::SUB {
                    let (scale, offset) = L::affine(lanes, head, record, sub);
                    for c in 0..C {
                        let scale = lanes.mul(scale, lanes.splat(*row[c].scales.add(r)));
                        sums[c] = lanes.fma(lanes.to_float(dots[c][sub]), scale, sums[c]);
                        if L::OFFSETS {
                            let sum = *row[c].sums.add(r * (COLUMNS / L::SUB) + sub);
                            sums[c] = lanes.fma(offset, lanes.splat(sum), sums[c]);
                        }
                    }
                }
            }
        }
        for (c, &sum) in sums.iter().enumerate() {
            lanes.store(out.add((first + c) * LANES), sum);
        }
        C
    }
}

/// The integer dot products of record `r`, per row of activations and sub-block, where one
/// instruction multiplies, widens and adds.
///
/// # Safety
/// A record is readable at `record` and record `r` of each of `rows`.
#[inline(always)]
unsafe fn fused_dots<V: Lanes, L: Layout, const C: usize>(
    lanes: V,
    record: *const u8,
    rows: &[Row; C],
    r: usize,
) -> [[V::I; 2]; C] {
    // SAFETY: the caller vouches for the record and the rows.
    unsafe {
        let mut dots = [[lanes.zero(); 2]; C];
        if V::DOTS == Dots::Unsigned && L::RAISED {
            for c in 0..C {
                dots[c][0] = lanes.broadcast4(rows[c].biases.add(r).cast());
            }
        }
        let second = usize::from(L::SUB == 16);
        let paired = if V::MATRICES { C / 2 * 2 } else { 0 };
        if paired > 0 {
            two_by_two::<V, L, C>(lanes, record, rows, r, &mut dots);
        }
        for v in 0..4 {
            let (low, high) = L::pair(lanes, record, v);
            for c in paired..C {
                let codes = rows[c].codes.add(r * COLUMNS + 4 * v);
                dots[c][0] = lanes.dot(dots[c][0], low, lanes.broadcast4(codes));
                let high = lanes.dot(dots[c][second], high, lanes.broadcast4(codes.add(16)));
                dots[c][second] = high;
            }
        }
        dots
    }
}

/// The same for rows two by two, by matrix products of bytes; an odd last row is left.
///
/// # Safety
/// As for [`fused_dots`].
#[inline(always)]
unsafe fn two_by_two<V: Lanes, L: Layout, const C: usize>(
    lanes: V,
    record: *const u8,
    rows: &[Row; C],
    r: usize,
    dots: &mut [[V::I; 2]; C],
) {
    // SAFETY: the caller vouches for the record and the rows.
    unsafe {
        let (mut low, mut high) = ([lanes.zero(); 4], [lanes.zero(); 4]);
        for v in 0..4 {
            (low[v], high[v]) = L::pair(lanes, record, v);
        }
        for c in (0..C / 2 * 2).step_by(2) {
            let start = r * COLUMNS;
            let codes = [rows[c].codes.add(start), rows[c + 1].codes.add(start)];
            let upper = [codes[0].add(16), codes[1].add(16)];
            let a = lanes.dots_of_two(low, codes);
            let b = lanes.dots_of_two(high, upper);
            for i in 0..2 {
                dots[c + i] = if L::SUB == 16 {
                    [a[i], b[i]]
                } else {
                    [lanes.add32(a[i], b[i]), lanes.zero()]
                };
            }
        }
    }
}

/// The same for signed bytes, by products of absolute values and signed activations.
///
/// # Safety
/// As for [`fused_dots`].
#[inline(always)]
unsafe fn signed_dots<V: Lanes, L: Layout, const C: usize>(
    lanes: V,
    record: *const u8,
    rows: &[Row; C],
    r: usize,
) -> [[V::I; 2]; C] {
    // SAFETY: the caller vouches for the record and the rows.
    unsafe {
        let mut dots = [[lanes.zero(); 2]; C];
        for v in 0..4 {
            let (low, high) = L::pair(lanes, record, v);
            let (low_size, high_size) = (lanes.abs_bytes(low), lanes.abs_bytes(high));
            for c in 0..C {
                let codes = rows[c].codes.add(r * COLUMNS + 4 * v);
                let a = lanes.apply_sign(lanes.broadcast4(codes), low);
                let b = lanes.apply_sign(lanes.broadcast4(codes.add(16)), high);
                let a = lanes.add_pairs16(lanes.multiply_add_bytes(low_size, a));
                let b = lanes.add_pairs16(lanes.multiply_add_bytes(high_size, b));
                if L::SUB == 16 {
                    dots[c] = [lanes.add32(dots[c][0], a), lanes.add32(dots[c][1], b)];
                } else {
                    dots[c][0] = lanes.add32(dots[c][0], lanes.add32(a, b));
                }
            }
        }
        dots
    }
}

/// The same for codes of at most 6 bits, adding products while they fit 16 bits.
///
/// # Safety
/// As for [`fused_dots`].
#[inline(always)]
unsafe fn word_dots<V: Lanes, L: Layout, const C: usize>(
    lanes: V,
    record: *const u8,
    rows: &[Row; C],
    r: usize,
) -> [[V::I; 2]; C] {
    // SAFETY: the caller vouches for the record and the rows.
    unsafe {
        let mut dots = [[lanes.zero(); 2]; C];
        // Whether all products of the record may be added before they are widened.
        let whole = L::BITS <= 4 && L::SUB == COLUMNS;
        // Vectors whose products may.
        let run = if L::BITS == 6 { 2 } else { 4 };
        for start in (0..4).step_by(run) {
            let mut words = [[lanes.zero(); 2]; C];
            for v in start..start + run {
                let (low, high) = L::pair(lanes, record, v);
                for c in 0..C {
                    let codes = rows[c].codes.add(r * COLUMNS + 4 * v);
                    let a = lanes.multiply_add_bytes(low, lanes.broadcast4(codes));
                    let b = lanes.multiply_add_bytes(high, lanes.broadcast4(codes.add(16)));
                    if whole {
                        words[c][0] = lanes.add16(words[c][0], lanes.add16(a, b));
                    } else {
                        words[c][0] = lanes.add16(words[c][0], a);
                        words[c][1] = lanes.add16(words[c][1], b);
                    }
                }
            }
            for c in 0..C {
                let low = lanes.add_pairs16(words[c][0]);
                if whole {
                    dots[c][0] = low;
                    continue;
                }
                let high = lanes.add_pairs16(words[c][1]);
                if L::SUB == 16 {
                    dots[c][0] = lanes.add32(dots[c][0], low);
                    dots[c][1] = lanes.add32(dots[c][1], high);
                } else {
                    dots[c][0] = lanes.add32(dots[c][0], lanes.add32(low, high));
                }
            }
        }
        dots
    }
}

/// The same for a panel whose sums fit 16 bits: one vector of codes after the other, so that the sums
/// of many rows stay in registers. `half` is four: hidden from the compiler, which else unrolls the
/// loop and loads far ahead of use, for which there are not registers enough.
///
/// # Safety
/// As for [`fused_dots`].
#[inline(always)]
unsafe fn panel_dots<V: Lanes, const C: usize>(
    lanes: V,
    record: *const u8,
    rows: &[Row; C],
    (r, half): (usize, usize),
) -> [[V::I; 2]; C] {
    // SAFETY: the caller vouches for the record and the rows.
    unsafe {
        let mut words = [lanes.zero(); C];
        for pair in 0..half {
            for j in [2 * pair, 2 * pair + 1] {
                let weights = lanes.load_bytes(record.add(VECTOR * j));
                for c in 0..C {
                    let codes = lanes.broadcast4(rows[c].codes.add(r * COLUMNS + 4 * j));
                    words[c] = lanes.add16(words[c], lanes.multiply_add_bytes(weights, codes));
                }
            }
        }
        let mut dots = [[lanes.zero(); 2]; C];
        for c in 0..C {
            dots[c][0] = lanes.add_pairs16(words[c]);
        }
        dots
    }
}
