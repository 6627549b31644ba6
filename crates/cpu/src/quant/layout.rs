//! How packed matrices lie in memory.
//!
//! Sixteen rows form a group; each 32 columns of a group form a *record*: codes, scales, offsets.
//! One broadcast of four activations meets all sixteen rows (`codes.rs`). Records follow one another
//! through the columns, groups through the rows; the product of a group streams its memory once, in
//! order.
//!
//! Where scales are small multiples of a number of 256 columns, records hold the multiples as bytes, and
//! eight records, a *run*, share a *head* before them with that number of each row.

use super::codes::{self, CodeForm};
use crate::isa::{Dots, Lanes};
use forthwith_core::format::{Affine, Codes, Scales};

/// Rows in a group: the lanes of a wide vector.
pub(crate) const LANES: usize = 16;
/// Bytes of a vector.
pub(crate) const VECTOR: usize = 4 * LANES;
/// Columns in a record.
pub(crate) const COLUMNS: usize = 32;
/// `ZERO` of layouts that store their offsets.
pub(crate) const STORED: i32 = -1;
/// `SCALE` of scales stored as half floats.
pub(crate) const HALF: u32 = 0;
/// `SCALE` of scales stored as `bf16`.
pub(crate) const BRAIN: u32 = 1;
/// `SCALE` of scales stored as single floats.
pub(crate) const SINGLE: u32 = 2;
/// `SCALE` of scales stored as signed bytes, multiples of half floats in the head.
pub(crate) const BYTES: u32 = 3;
/// Records that share a head.
const SHARING: usize = 8;

/// A source of codes, scales and offsets for the product kernel.
pub(crate) trait Layout: Copy {
    /// Bits of a code. Decides how sums may accumulate.
    const BITS: u32;
    /// Columns that share a scale: 32 or 16.
    const SUB: usize;
    /// Whether offsets exist.
    const OFFSETS: bool;
    /// Bytes of a record.
    const RECORD: usize;
    /// Records of a run.
    const RUN: usize;
    /// Bytes before the records of a run.
    const HEAD: usize;
    /// Bytes of a run.
    const RUN_BYTES: usize = Self::HEAD + Self::RUN * Self::RECORD;
    /// Whether codes of 8 bits become unsigned, too large by 128, with [`Dots::Unsigned`]: sums over
    /// 32 columns start at what that is too much by.
    const RAISED: bool = Self::BITS == 8 && Self::SUB == COLUMNS;
    /// Whether a record begins with the eight vectors of codes, a byte each.
    const PANEL: bool;

    /// The vectors of codes `j = v` and `j = v + 4`, for `v` in 0..4. Codes of 8 bits are signed
    /// unless [`Layout::RAISED`] and [`Dots::Unsigned`]; all others are unsigned.
    ///
    /// # Safety
    /// A whole record is readable at `record`.
    unsafe fn pair<I: Lanes>(isa: I, record: *const u8, v: usize) -> (I::I, I::I);

    /// What the scales and the offsets of a run are multiples of, one per row; zeros without a head.
    ///
    /// # Safety
    /// A head is readable at `run`.
    unsafe fn head<I: Lanes>(isa: I, run: *const u8) -> (I::F, I::F);

    /// Scales and offsets of sub-block `sub`, one per row.
    ///
    /// # Safety
    /// A whole record is readable at `record`.
    unsafe fn affine<I: Lanes>(
        isa: I,
        head: (I::F, I::F),
        record: *const u8,
        sub: usize,
    ) -> (I::F, I::F);
}

/// A stored layout: codes, columns per scale, how scales are stored, zero point or [`STORED`].
#[derive(Clone, Copy)]
pub(crate) struct Packed<C, const SUB: usize, const SCALE: u32, const ZERO: i32>(C);

impl<C: CodeForm, const SUB: usize, const SCALE: u32, const ZERO: i32> Packed<C, SUB, SCALE, ZERO> {
    const CODES: usize = C::STORED_BITS * VECTOR;
    const SCALES: Stored = match SCALE {
        HALF => Stored::Floats(Scales::Half),
        BRAIN => Stored::Floats(Scales::Brain),
        BYTES => Stored::Multiples,
        _ => Stored::Floats(Scales::Single),
    };

    /// The layout as a value.
    pub(crate) const RECIPE: Recipe = Recipe {
        bits: C::STORED_BITS,
        table: C::TABLE,
        sub: SUB,
        scales: Self::SCALES,
        zero: ZERO,
    };

    #[inline(always)]
    unsafe fn floats<I: Lanes>(isa: I, factor: I::F, record: *const u8, index: usize) -> I::F {
        // SAFETY: within the record, by the layout.
        unsafe {
            let at = record.add(Self::CODES + index * LANES * Self::SCALES.bytes());
            match SCALE {
                HALF => isa.load_half(at.cast()),
                BRAIN => isa.load_bf16(at.cast()),
                BYTES => isa.mul(factor, isa.load_i8(at.cast())),
                _ => isa.load(at.cast()),
            }
        }
    }
}

impl<C: CodeForm, const SUB: usize, const SCALE: u32, const ZERO: i32> Layout
    for Packed<C, SUB, SCALE, ZERO>
{
    const BITS: u32 = C::BITS;
    const SUB: usize = SUB;
    const OFFSETS: bool = ZERO == STORED || ZERO + C::SHIFT != 0;
    const RECORD: usize = Self::RECIPE.record();
    const RUN: usize = Self::RECIPE.run();
    const HEAD: usize = Self::RECIPE.head();
    const PANEL: bool = false;

    #[inline(always)]
    unsafe fn pair<I: Lanes>(isa: I, record: *const u8, v: usize) -> (I::I, I::I) {
        // SAFETY: the codes come first in the record.
        let (low, high) = unsafe { C::pair(isa, record, v) };
        if I::DOTS == Dots::Unsigned && Self::RAISED {
            let sign = isa.splat_byte(0x80);
            return (isa.xor(low, sign), isa.xor(high, sign));
        }
        (low, high)
    }

    #[inline(always)]
    unsafe fn head<I: Lanes>(isa: I, run: *const u8) -> (I::F, I::F) {
        let zero = isa.splat(0.0);
        // SAFETY: within the head, by the layout.
        unsafe {
            match SCALE {
                BYTES if ZERO == STORED => {
                    let second = run.add(2 * LANES);
                    (isa.load_half(run.cast()), isa.load_half(second.cast()))
                }
                BYTES => (isa.load_half(run.cast()), zero),
                _ => (zero, zero),
            }
        }
    }

    #[inline(always)]
    unsafe fn affine<I: Lanes>(
        isa: I,
        head: (I::F, I::F),
        record: *const u8,
        sub: usize,
    ) -> (I::F, I::F) {
        // SAFETY: within the record, by the layout.
        unsafe {
            let scale = Self::floats(isa, head.0, record, sub);
            if ZERO == STORED {
                let index = COLUMNS / SUB + sub;
                return (scale, Self::floats(isa, head.1, record, index));
            }
            if !Self::OFFSETS {
                return (scale, scale);
            }
            #[expect(clippy::cast_precision_loss, reason = "zero points are below 64")]
            let zero = isa.splat(-((ZERO + C::SHIFT) as f32));
            (scale, isa.mul(scale, zero))
        }
    }
}

/// A group expanded once for many columns of activations: bytes and single floats.
#[derive(Clone, Copy)]
pub(crate) struct Expanded<L: Layout>(L);

impl<L: Layout> Expanded<L> {
    const SUBS: usize = COLUMNS / L::SUB;

    /// Writes the expanded form of one record.
    ///
    /// # Safety
    /// A record of `L` is readable at `from`; `Self::RECORD` bytes are writable at `to`.
    #[inline(always)]
    pub(crate) unsafe fn expand<I: Lanes>(
        isa: I,
        head: (I::F, I::F),
        from: *const u8,
        to: *mut u8,
    ) {
        // SAFETY: within both records, by their layouts.
        unsafe {
            for v in 0..4 {
                let (low, high) = L::pair(isa, from, v);
                isa.store_bytes(to.add(VECTOR * v), low);
                isa.store_bytes(to.add(VECTOR * (v + 4)), high);
            }
            for sub in 0..Self::SUBS {
                let (scale, offset) = L::affine(isa, head, from, sub);
                let at = to.add((8 + 2 * sub) * VECTOR);
                isa.store(at.cast(), scale);
                isa.store(at.add(VECTOR).cast(), offset);
            }
        }
    }
}

impl<L: Layout> Layout for Expanded<L> {
    const BITS: u32 = L::BITS;
    const SUB: usize = L::SUB;
    const OFFSETS: bool = L::OFFSETS;
    const PANEL: bool = true;
    const RECORD: usize = (8 + 2 * Self::SUBS) * VECTOR;
    const RUN: usize = 1;
    const HEAD: usize = 0;

    #[inline(always)]
    unsafe fn pair<I: Lanes>(isa: I, record: *const u8, v: usize) -> (I::I, I::I) {
        // SAFETY: within the record, by the layout.
        unsafe {
            (
                isa.load_bytes(record.add(VECTOR * v)),
                isa.load_bytes(record.add(VECTOR * (v + 4))),
            )
        }
    }

    #[inline(always)]
    unsafe fn head<I: Lanes>(isa: I, _: *const u8) -> (I::F, I::F) {
        (isa.splat(0.0), isa.splat(0.0))
    }

    #[inline(always)]
    unsafe fn affine<I: Lanes>(
        isa: I,
        _: (I::F, I::F),
        record: *const u8,
        sub: usize,
    ) -> (I::F, I::F) {
        // SAFETY: within the record, by the layout.
        unsafe {
            let at = record.add((8 + 2 * sub) * VECTOR);
            (isa.load(at.cast()), isa.load(at.add(VECTOR).cast()))
        }
    }
}

/// The largest expanded record of any layout.
pub(crate) const EXPANDED_RECORD: usize = (8 + 2 * 2) * VECTOR;

/// How scales and offsets are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    /// Each as a float.
    Floats(Scales),
    /// Each as a signed byte, times a half float in the head of the run.
    Multiples,
}

impl Stored {
    const fn bytes(self) -> usize {
        match self {
            Self::Multiples => 1,
            Self::Floats(Scales::Half | Scales::Brain) => 2,
            Self::Floats(Scales::Single) => 4,
        }
    }
}

/// The parameters of [`Packed`] as values, for packing and for reading single rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Recipe {
    /// Bits of a stored code.
    pub(crate) bits: usize,
    /// The values that codes stand for, if not themselves.
    pub(crate) table: Option<&'static [i8; 16]>,
    pub(crate) sub: usize,
    pub(crate) scales: Stored,
    pub(crate) zero: i32,
}

impl Recipe {
    pub(crate) fn of(affine: &Affine) -> Self {
        let (bits, table) = match affine.codes {
            Codes::Unsigned2 => (2, None),
            Codes::Unsigned3 => (3, None),
            Codes::Unsigned4 => (4, None),
            Codes::Unsigned5 => (5, None),
            Codes::Unsigned6 => (6, None),
            Codes::Signed8 => (8, None),
            Codes::Table(values) => (4, Some(values)),
        };
        Self {
            bits,
            table,
            sub: affine.sub_block,
            scales: match affine.multiples {
                Some(_) => Stored::Multiples,
                None => Stored::Floats(affine.scales),
            },
            zero: affine.zero_point.map_or(STORED, i32::from),
        }
    }

    const fn codes_bytes(self) -> usize {
        self.bits * VECTOR
    }

    /// Scales and, where they are stored, offsets.
    const fn kinds(self) -> usize {
        if self.zero == STORED { 2 } else { 1 }
    }

    pub(crate) const fn record(self) -> usize {
        self.codes_bytes() + COLUMNS / self.sub * LANES * self.scales.bytes() * self.kinds()
    }

    /// Records of a run.
    pub(crate) const fn run(self) -> usize {
        match self.scales {
            Stored::Multiples => SHARING,
            Stored::Floats(_) => 1,
        }
    }

    /// Bytes before the records of a run.
    const fn head(self) -> usize {
        match self.scales {
            Stored::Multiples => 2 * LANES * self.kinds(),
            Stored::Floats(_) => 0,
        }
    }

    pub(crate) const fn run_bytes(self) -> usize {
        self.head() + self.run() * self.record()
    }

    /// Writes the codes of 32 columns of row `lane` into record `r` of a zeroed run.
    pub(crate) fn put_codes(self, run: &mut [u8], r: usize, lane: usize, codes: &[u8]) {
        let record = &mut run[self.head() + r * self.record()..];
        for (k, &code) in codes.iter().enumerate() {
            codes::put(self.bits, record, (k, lane), code);
        }
    }

    /// Writes what the scales and offsets of row `lane` are multiples of.
    pub(crate) fn put_factors(self, run: &mut [u8], lane: usize, factors: [f32; 2]) {
        for (kind, factor) in factors.into_iter().enumerate().take(self.kinds()) {
            let at = 2 * (kind * LANES + lane);
            run[at..at + 2].copy_from_slice(&half::f16::from_f32(factor).to_le_bytes());
        }
    }

    /// Writes the scale and offset of sub-block `sub` of row `lane` in record `r` of a run, or what
    /// they are multiples by.
    pub(crate) fn put_affine(
        self,
        run: &mut [u8],
        (r, lane, sub): (usize, usize, usize),
        of: (Scale, Scale),
    ) {
        let offset = (self.zero == STORED).then_some((COLUMNS / self.sub + sub, of.1));
        for (kind, value) in [(sub, of.0)].into_iter().chain(offset) {
            let at = self.place(r, kind * LANES + lane);
            let mut put = |bytes: &[u8]| run[at..at + bytes.len()].copy_from_slice(bytes);
            match (self.scales, value) {
                (Stored::Floats(Scales::Half), Scale::Float(value)) => {
                    put(&half::f16::from_f32(value).to_le_bytes());
                }
                (Stored::Floats(Scales::Brain), Scale::Float(value)) => {
                    put(&half::bf16::from_f32(value).to_le_bytes());
                }
                (Stored::Floats(Scales::Single), Scale::Float(value)) => put(&value.to_le_bytes()),
                (_, Scale::Times(times)) => put(&times.to_le_bytes()),
                (Stored::Multiples, Scale::Float(_)) => unreachable!("a byte holds no float"),
            }
        }
    }

    /// Where a scale or offset of record `r` lies in its run.
    fn place(self, r: usize, index: usize) -> usize {
        self.head() + r * self.record() + self.codes_bytes() + index * self.scales.bytes()
    }

    /// The scale or offset `kind` of row `lane` in record `r` of a run.
    fn float(self, run: &[u8], r: usize, kind: usize, lane: usize) -> f32 {
        let half = |at: usize| half::f16::from_le_bytes([run[at], run[at + 1]]).to_f32();
        let at = self.place(r, kind * LANES + lane);
        match self.scales {
            Stored::Multiples => {
                let factor = half(2 * (kind / (COLUMNS / self.sub) * LANES + lane));
                factor * f32::from(run[at].cast_signed())
            }
            Stored::Floats(Scales::Half) => half(at),
            Stored::Floats(Scales::Brain) => {
                half::bf16::from_le_bytes([run[at], run[at + 1]]).to_f32()
            }
            Stored::Floats(Scales::Single) => {
                f32::from_le_bytes(run[at..at + 4].try_into().expect("four bytes"))
            }
        }
    }

    /// Reads back 32 columns of row `lane` from record `r` of a run.
    #[expect(clippy::cast_precision_loss, reason = "zero points are below 64")]
    pub(crate) fn read(self, run: &[u8], r: usize, lane: usize, out: &mut [f32]) {
        let record = &run[self.head() + r * self.record()..];
        let subs = COLUMNS / self.sub;
        for (sub, values) in out.chunks_exact_mut(self.sub).enumerate() {
            let scale = self.float(run, r, sub, lane);
            let offset = (self.zero == STORED).then(|| self.float(run, r, subs + sub, lane));
            for (k, value) in values.iter_mut().enumerate() {
                let stored = codes::get(self.bits, record, sub * self.sub + k, lane);
                let code = match self.table {
                    Some(values) => f32::from(values[usize::from(stored)]),
                    None if self.bits == 8 => f32::from(stored.cast_signed()),
                    None => f32::from(stored),
                };
                *value = match offset {
                    Some(offset) => scale * code + offset,
                    None => scale * (code - self.zero as f32),
                };
            }
        }
    }
}

/// A scale or an offset.
#[derive(Clone, Copy)]
pub(crate) enum Scale {
    /// Itself.
    Float(f32),
    /// What it is a multiple by.
    Times(i8),
}
