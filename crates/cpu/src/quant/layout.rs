//! How packed matrices lie in memory.
//!
//! Sixteen rows form a group; each 32 columns of a group form a *record*: codes, scales, offsets.
//! One broadcast of four activations meets all sixteen rows (`codes.rs`). Records follow one another
//! through the columns, groups through the rows; the product of a group streams its memory once, in
//! order.

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

    /// Scales and offsets of sub-block `sub`, one per row.
    ///
    /// # Safety
    /// A whole record is readable at `record`.
    unsafe fn affine<I: Lanes>(isa: I, record: *const u8, sub: usize) -> (I::F, I::F);
}

/// A stored layout: codes, columns per scale, how scales are stored, zero point or [`STORED`].
#[derive(Clone, Copy)]
pub(crate) struct Packed<C, const SUB: usize, const SCALE: u32, const ZERO: i32>(C);

impl<C: CodeForm, const SUB: usize, const SCALE: u32, const ZERO: i32> Packed<C, SUB, SCALE, ZERO> {
    const CODES: usize = C::STORED_BITS * VECTOR;
    const SCALES: Scales = match SCALE {
        HALF => Scales::Half,
        BRAIN => Scales::Brain,
        _ => Scales::Single,
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
    unsafe fn floats<I: Lanes>(isa: I, record: *const u8, index: usize) -> I::F {
        // SAFETY: within the record, by the layout.
        unsafe {
            let at = record.add(Self::CODES + index * LANES * scale_bytes(Self::SCALES));
            match SCALE {
                HALF => isa.load_half(at.cast()),
                BRAIN => isa.load_bf16(at.cast()),
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
    unsafe fn affine<I: Lanes>(isa: I, record: *const u8, sub: usize) -> (I::F, I::F) {
        // SAFETY: within the record, by the layout.
        unsafe {
            let scale = Self::floats(isa, record, sub);
            if ZERO == STORED {
                return (scale, Self::floats(isa, record, COLUMNS / SUB + sub));
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
    pub(crate) unsafe fn expand<I: Lanes>(isa: I, from: *const u8, to: *mut u8) {
        // SAFETY: within both records, by their layouts.
        unsafe {
            for v in 0..4 {
                let (low, high) = L::pair(isa, from, v);
                isa.store_bytes(to.add(VECTOR * v), low);
                isa.store_bytes(to.add(VECTOR * (v + 4)), high);
            }
            for sub in 0..Self::SUBS {
                let (scale, offset) = L::affine(isa, from, sub);
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
    unsafe fn affine<I: Lanes>(isa: I, record: *const u8, sub: usize) -> (I::F, I::F) {
        // SAFETY: within the record, by the layout.
        unsafe {
            let at = record.add((8 + 2 * sub) * VECTOR);
            (isa.load(at.cast()), isa.load(at.add(VECTOR).cast()))
        }
    }
}

/// The largest expanded record of any layout.
pub(crate) const EXPANDED_RECORD: usize = (8 + 2 * 2) * VECTOR;

/// The parameters of [`Packed`] as values, for packing and for reading single rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Recipe {
    /// Bits of a stored code.
    pub(crate) bits: usize,
    /// The values that codes stand for, if not themselves.
    pub(crate) table: Option<&'static [i8; 16]>,
    pub(crate) sub: usize,
    pub(crate) scales: Scales,
    pub(crate) zero: i32,
}

const fn scale_bytes(scales: Scales) -> usize {
    match scales {
        Scales::Half | Scales::Brain => 2,
        Scales::Single => 4,
    }
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
            scales: affine.scales,
            zero: affine.zero_point.map_or(STORED, i32::from),
        }
    }

    const fn codes_bytes(self) -> usize {
        self.bits * VECTOR
    }

    pub(crate) const fn record(self) -> usize {
        let kinds = if self.zero == STORED { 2 } else { 1 };
        self.codes_bytes() + COLUMNS / self.sub * LANES * scale_bytes(self.scales) * kinds
    }

    /// Writes the codes of 32 columns of row `lane` into a zeroed record.
    pub(crate) fn put_codes(self, record: &mut [u8], lane: usize, codes: &[u8]) {
        for (k, &code) in codes.iter().enumerate() {
            codes::put(self.bits, record, (k, lane), code);
        }
    }

    /// Writes the scale and offset of sub-block `sub` of row `lane`.
    pub(crate) fn put_affine(self, record: &mut [u8], lane: usize, sub: usize, of: (f32, f32)) {
        self.put_float(record, sub * LANES + lane, of.0);
        if self.zero == STORED {
            self.put_float(record, (COLUMNS / self.sub + sub) * LANES + lane, of.1);
        }
    }

    fn put_float(self, record: &mut [u8], index: usize, value: f32) {
        let at = self.codes_bytes() + index * scale_bytes(self.scales);
        let mut put = |bytes: &[u8]| record[at..at + bytes.len()].copy_from_slice(bytes);
        match self.scales {
            Scales::Half => put(&half::f16::from_f32(value).to_le_bytes()),
            Scales::Brain => put(&half::bf16::from_f32(value).to_le_bytes()),
            Scales::Single => put(&value.to_le_bytes()),
        }
    }

    fn float(self, record: &[u8], index: usize) -> f32 {
        let at = self.codes_bytes() + index * scale_bytes(self.scales);
        let bytes = &record[at..at + scale_bytes(self.scales)];
        match (self.scales, bytes) {
            (Scales::Half, &[a, b]) => half::f16::from_le_bytes([a, b]).to_f32(),
            (Scales::Brain, &[a, b]) => half::bf16::from_le_bytes([a, b]).to_f32(),
            (_, bytes) => f32::from_le_bytes(bytes.try_into().expect("four bytes")),
        }
    }

    /// Reads back 32 columns of row `lane`.
    #[expect(clippy::cast_precision_loss, reason = "zero points are below 64")]
    pub(crate) fn read(self, record: &[u8], lane: usize, out: &mut [f32]) {
        for (k, value) in out.iter_mut().enumerate() {
            let stored = codes::get(self.bits, record, k, lane);
            let code = match self.table {
                Some(values) => f32::from(values[usize::from(stored)]),
                None if self.bits == 8 => f32::from(stored.cast_signed()),
                None => f32::from(stored),
            };
            let sub = k / self.sub;
            let scale = self.float(record, sub * LANES + lane);
            *value = if self.zero == STORED {
                let offset = self.float(record, (COLUMNS / self.sub + sub) * LANES + lane);
                scale * code + offset
            } else {
                scale * (code - self.zero as f32)
            };
        }
    }
}
